"""The share consumer for asyncio.

A thin layer: all calls run in one separate thread, so that they do not block the event loop. A cancelled poll loses
nothing: the next poll returns its records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, TypeVar

from confluent_kafka import IllegalStateException, KafkaException, Message, Messages, TopicPartition

from sharequeue.consumer.call_guard import AcknowledgementCommitCallback
from sharequeue.consumer.errors import WakeupException
from sharequeue.consumer.share_consumer import ShareConsumer
from sharequeue.words.values import AcknowledgeType

_T = TypeVar("_T")


class AIOShareConsumer:
    """``ShareConsumer`` for asyncio: the same methods, to be awaited, one at a time. Callbacks run in its thread."""

    def __init__(
        self, *args: Any, consumer_class: type[ShareConsumer] = ShareConsumer, **kwargs: Any
    ) -> None:
        self._consumer = consumer_class(*args, **kwargs)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="share-consumer")
        self._polling: asyncio.Future[Messages] | None = None
        """A cancelled poll that may not have ended."""
        self._unseen: asyncio.Future[Messages] | None = None
        """The cancelled poll, once it has ended: the next poll returns its records."""
        self._closing: asyncio.Future[None] | None = None

    async def subscribe(self, topics: list[str]) -> None:
        """As ``ShareConsumer.subscribe``."""
        await self._settle()
        await self._call(self._consumer.subscribe, topics)

    async def unsubscribe(self) -> None:
        """As ``ShareConsumer.unsubscribe``."""
        await self._settle()
        await self._call(self._consumer.unsubscribe)

    async def subscription(self) -> list[str]:
        """As ``ShareConsumer.subscription``."""
        return await self._call(self._consumer.subscription)

    async def poll(self, timeout: float = -1) -> Messages:
        """As ``ShareConsumer.poll``. May be cancelled; the next poll returns the records that had arrived."""
        await self._settle()
        unseen, self._unseen = self._unseen, None
        if unseen is not None and len(left := unseen.result()):
            return left
        polling = asyncio.ensure_future(self._call(self._consumer.poll, timeout))
        try:
            return await asyncio.shield(polling)
        except asyncio.CancelledError:
            self._polling = polling
            self._consumer.wakeup()
            raise

    async def acknowledge(
        self,
        message: Message,
        ack_type: int = AcknowledgeType.ACCEPT,
        *,
        delay: float | None = None,
        error: BaseException | str | None = None,
    ) -> None:
        """As ``ShareConsumer.acknowledge``."""
        await self._settle()
        self._consumer.acknowledge(message, ack_type, delay=delay, error=error)

    async def acknowledge_offset(
        self, topic: str, partition: int, offset: int, ack_type: int = AcknowledgeType.ACCEPT
    ) -> None:
        """As ``ShareConsumer.acknowledge_offset``."""
        await self._settle()
        self._consumer.acknowledge_offset(topic, partition, offset, ack_type)

    async def commit_sync(self, timeout: float = 60) -> dict[TopicPartition, KafkaException | None]:
        """As ``ShareConsumer.commit_sync``; nothing is committed while a cancelled poll's records are unseen."""
        if await self._settle() and not self._consumer._config.explicit:
            return {}
        return await self._call(self._consumer.commit_sync, timeout)

    async def commit_async(self) -> None:
        """As ``ShareConsumer.commit_async``; nothing is committed while a cancelled poll's records are unseen."""
        if await self._settle() and not self._consumer._config.explicit:
            return
        await self._call(self._consumer.commit_async)

    async def set_acknowledgement_commit_callback(
        self, callback: AcknowledgementCommitCallback | None
    ) -> None:
        """As ``ShareConsumer.set_acknowledgement_commit_callback``; it is called in the consumer's thread."""
        await self._call(self._consumer.set_acknowledgement_commit_callback, callback)

    async def close(self, timeout: float | None = None) -> None:
        """As ``ShareConsumer.close``. A waiting poll or commit of another task ends with ``WakeupException``."""
        if self._consumer._guard.elsewhere:
            return
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close(timeout))
            self._consumer.wakeup()
        # It continues if this call is cancelled; another close waits for it.
        await asyncio.shield(self._closing)

    async def _close(self, timeout: float | None) -> None:
        await self._end_polling()
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._consumer.close, timeout)
        finally:
            self._consumer._restore_signals()  # the consumer's thread may not do this
            self._thread.shutdown(wait=False)

    async def lock_remaining(self, message: Message) -> float:
        """As ``ShareConsumer.lock_remaining``."""
        await self._settle()
        return self._consumer.lock_remaining(message)

    async def client_instance_id(self, timeout: float = -1) -> str:
        """As ``ShareConsumer.client_instance_id``."""
        return await self._call(self._consumer.client_instance_id, timeout)

    async def metrics(self) -> dict[str, float]:
        """As ``ShareConsumer.metrics``."""
        return await self._call(self._consumer.metrics)

    async def set_sasl_credentials(self, username: str, password: str) -> None:
        """As ``ShareConsumer.set_sasl_credentials``."""
        await self._call(self._consumer.set_sasl_credentials, username, password)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def stopping(self) -> bool:
        """As ``ShareConsumer.stopping``."""
        return self._consumer.stopping

    def wakeup(self) -> None:
        """As ``ShareConsumer.wakeup``."""
        self._consumer.wakeup()

    def stop(self, timeout: float = 25.0) -> None:
        """As ``ShareConsumer.stop``."""
        self._consumer.stop(timeout)

    def stop_on_signal(self, *signals: int, timeout: float = 25.0) -> None:
        """As ``ShareConsumer.stop_on_signal``."""
        self._check_open()
        self._consumer.stop_on_signal(*signals, timeout=timeout)

    async def _settle(self) -> bool:
        """Wait for a cancelled poll to end; return whether it returned records that are still unseen."""
        self._check_open()
        await self._end_polling()
        self._check_open()
        return (
            self._unseen is not None and self._unseen.exception() is None and len(self._unseen.result()) > 0
        )

    async def _end_polling(self) -> None:
        if self._polling is not None:
            # If this call is cancelled, the next one waits for it.
            await asyncio.wait([self._polling])
            ended, self._polling = self._polling, None
            if not isinstance(ended.exception(), WakeupException):
                # It had ended before the wakeup, which must not end the next poll.
                self._consumer.forget_wakeup()
                self._unseen = ended

    async def _call(self, call: Callable[..., _T], *args: Any) -> _T:
        self._check_open()

        def called() -> _T:
            self._check_open()  # the consumer may have been closed while this call waited
            return call(*args)

        return await asyncio.get_running_loop().run_in_executor(self._thread, called)

    def _check_open(self) -> None:
        self._consumer._guard.check_open()
        if self._closing is not None:
            raise IllegalStateException("Share consumer closed")
