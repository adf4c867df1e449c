"""The consumer of a share group, with the interface of ``confluent_kafka.ShareConsumer``.

A program imports one or the other and runs unchanged. What it calls is here: which call is allowed when, what an
acknowledgement says, what is raised. What goes on behind the calls is the ``fetcher``'s, membership the
``member``'s. Terms: KIP-932.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from confluent_kafka import (
    IllegalStateException,
    KafkaError,
    KafkaException,
    Message,
    Messages,
    TopicPartition,
)
from sqlalchemy.exc import SQLAlchemyError

from sharequeue.consumer.beats import beats
from sharequeue.consumer.calls import AcknowledgementCommitCallback
from sharequeue.consumer.configs import consumer_config
from sharequeue.consumer.errors import integer, kafka_exception, real_number
from sharequeue.consumer.failures import error_text
from sharequeue.consumer.fetcher import AHEAD_S, Fetcher
from sharequeue.consumer.holdings import NOT_YET, Holding, lock_clock
from sharequeue.consumer.listening import Listener
from sharequeue.consumer.member import Member
from sharequeue.consumer.reader import Key
from sharequeue.consumer.sending import Result, Sending
from sharequeue.consumer.stopping import Stopping
from sharequeue.database import Database
from sharequeue.errors import ShareError, UnknownTopicId
from sharequeue.offsets import OffsetSet
from sharequeue.values import AcknowledgeType

_log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 30.0
_LEAST_STOP_S = 5.0
_FOREVER_S = 1e7
_LONGEST_DELAY_S = 366 * 86_400.0
_INVALID = "Local: Invalid argument or configuration"
_STATE = "Local: Erroneous state"
_ACCEPT, _RENEW = int(AcknowledgeType.ACCEPT), int(AcknowledgeType.RENEW)


class ShareConsumer(Stopping):
    """A consumer of one share group. Each message is acquired for a limited time, and is to be acknowledged in it.

    ``ShareConsumer({"group.id": "work", "bootstrap.servers": "…"})``. The database is found by the settings of the
    environment, or by ``sharequeue.database.url``. Not safe for use from several threads at once, as confluent's:
    ConcurrentModificationException; only ``wakeup`` may be called from any. Close it, or use it as a context manager:
    what it holds comes back at once then, and else when the locks lapse.
    """

    _handle: Fetcher | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if self._handle is not None:
            raise RuntimeError("ShareConsumer already initialized")
        if len(args) > 1 or (args and not isinstance(args[0], Mapping)) or not (args or kwargs):
            raise TypeError("expected configuration dict")
        super().__init__()
        self._config = config = consumer_config(args[0] if args else {}, kwargs)
        self._database = Database.open(config.settings, pool_size=3)
        self._member = Member(
            self._database,
            config.group_id,
            config.client_id,
            config.client_rack,
            config.max_poll_interval_ms,
            lambda: fetcher.wake(),
            lambda error: fetcher.fail(error),
            beats(self._database, config.settings, config.service_url),
            lambda: fetcher.drop(frozenset()),
        )
        self._handle = self._fetcher = fetcher = Fetcher(
            config, self._database, self._member, lambda: listener.active
        )
        self._listener = listener = Listener(self._database, config.group_id, lambda: fetcher.wake())
        self._in_hand: list[Holding] = []
        """Leases of which the last poll returned something that has not been sent yet."""
        self._subscribed: tuple[str, ...] = ()
        self._callback: AcknowledgementCommitCallback | None = None
        self._untold: deque[tuple[Key, tuple[OffsetSet, Result]]] = deque()
        """Results that the callback is still to be called with."""
        self._handed_at = 0.0
        self._handed = 0
        self._abandon = weakref.finalize(self, _abandon, os.getpid(), fetcher, self._member, listener)

    def subscribe(self, topics: list[str]) -> None:
        """Consume these topics; they replace those of before, and an empty list is ``unsubscribe``.

        Raises TypeError for what is no list, ValueError for an empty or doubled name.
        """
        with self._call():
            if not isinstance(topics, list):
                raise TypeError("expected list of topic unicode strings")
            names = [str(topic) for topic in topics]
            if "" in names or len(set(names)) < len(names):
                raise ValueError(f"Failed to subscribe: {_INVALID}")
            self._subscribe(tuple(sorted(names)))

    def unsubscribe(self) -> None:
        """Consume nothing more, and leave the group. What was polled may still be acknowledged."""
        with self._call():
            self._subscribe(())

    def subscription(self) -> list[str]:
        """Return the topics."""
        with self._call("Failed to get subscription: "):
            return list(self._subscribed)

    def poll(self, timeout: float = -1) -> Messages:
        """Return the next records: ``max.poll.records`` at most, none when there are none in ``timeout`` seconds.

        In implicit mode this accepts what the last poll returned. In explicit mode all of it must be acknowledged:
        IllegalStateException otherwise, and where there is no subscription. Acknowledgements are sent with it.
        A topic that was deleted, or made again, is told once: to ``error_cb``, where the config has one, else by
        KafkaException UNKNOWN_TOPIC_ID. Poll again: other topics go on.
        """
        with self._call():
            seconds = float(real_number(timeout))
            if not self._subscribed:
                raise IllegalStateException("Consumer is not subscribed to any topics")
            if self._config.explicit and (left := self._unacknowledged()):
                raise IllegalStateException(f"{left} records from previous poll have not been acknowledged")
            self._note_pace()
            self._send()
            self._dispatch()
            try:
                self._member.polled()
                messages, holdings = self._take(_FOREVER_S if seconds < 0 else seconds)
            except ShareError as error:
                raise kafka_exception(error) from error
            finally:
                self._member.returned()
            self._in_hand += [each for each in holdings if each not in self._in_hand]
            self._handed, self._handed_at = len(messages), time.monotonic()
            # No callback from here on: what it raises would keep these from the program.
            return Messages(messages)

    def acknowledge(
        self,
        message: Message,
        ack_type: int = AcknowledgeType.ACCEPT,
        *,
        delay: float | None = None,
        error: BaseException | str | None = None,
    ) -> None:
        """Acknowledge a record of the last poll; it is sent with the next poll, commit or close.

        A record may be acknowledged again, differently, until then. RENEW (``sharequeue.AcknowledgeType``) keeps its
        lock for another full duration: the next poll returns it again, with the same delivery count. A released
        record is delivered again after ``delay`` seconds at the earliest. ``error`` is why it failed, for its letter.
        Raises IllegalStateException in implicit mode and for a record that is not in hand, ValueError for a type that
        there is not.
        """
        self._check_call("Failed to acknowledge message: ")
        if not isinstance(message, Message):
            raise TypeError(f"argument 1 must be confluent_kafka.cimpl.Message, not {type(message).__name__}")
        offset = message.offset()
        holding = self._acknowledge("message", message.topic(), message.partition(), offset, ack_type, delay)
        if error is not None and offset is not None:
            holding.errors[offset] = error_text(error)

    def acknowledge_offset(
        self, topic: str, partition: int, offset: int, ack_type: int = AcknowledgeType.ACCEPT
    ) -> None:
        """As ``acknowledge``, by the record's coordinates."""
        self._check_call("Failed to acknowledge offset: ")
        if not isinstance(topic, str):
            raise TypeError(f"argument 1 must be str, not {type(topic).__name__}")
        self._acknowledge("offset", topic, integer(partition), integer(offset), ack_type, None)

    def lock_remaining(self, message: Message) -> float:
        """Seconds until the lock of a record of the last poll lapses, 0 when it has; by this process's clock.

        Raises IllegalStateException for a record that is not in hand.
        """
        self._check_call()
        holding = self._holding(message.topic(), message.partition(), message.offset())
        if holding is None:
            raise IllegalStateException("the record is not in hand: it was acknowledged, or never polled")
        return max(0.0, holding.deadline - lock_clock())

    def commit_sync(self, timeout: float = 60) -> dict[TopicPartition, KafkaException | None]:
        """Send the acknowledgements and wait for their results; in implicit mode accept what was polled.

        Return for each partition None, or why its acknowledgements were refused; REQUEST_TIMED_OUT where no result
        came in ``timeout`` seconds (-1: wait as long as it takes). They may still be done then.
        """
        with self._call():
            seconds = float(real_number(timeout))
            sending = self._send()
            results: dict[TopicPartition, KafkaException | None] = {}
            if sending is not None:
                self._fetcher.wait_for(sending, _FOREVER_S if seconds < 0 else seconds)
                for (topic, partition), (_, error) in sending.by_partition().items():
                    results[TopicPartition(topic, partition, 0)] = (
                        None if error is None else kafka_exception(error)
                    )
            self._dispatch()
            return results

    def commit_async(self) -> None:
        """Send the acknowledgements; the results come to the callback, in a later call. Returns at once."""
        with self._call():
            self._send()
            self._dispatch()

    def set_acknowledgement_commit_callback(self, callback: AcknowledgementCommitCallback | None) -> None:
        """Have ``callback(offsets, exception)`` called with the results of acknowledgements, once for each partition.

        It is called in this thread, from within poll, commit_sync, commit_async and close. None removes it.
        """
        with self._call():
            if callback is not None and not callable(callback):
                raise TypeError("callback must be callable or None")
            self._callback = callback

    def wakeup(self) -> None:
        """End a poll or commit_sync that waits, or the next one, with ``WakeupException``. From any thread."""
        self._fetcher.interrupt()

    def forget_wakeup(self) -> None:
        """A wakeup that nothing waited for is not to end the next poll. From any thread."""
        self._fetcher.forget_interrupt()

    def client_instance_id(self, timeout: float = -1) -> str:
        """Return the id by which the group knows this consumer: in `members`, leases and dead letters."""
        with self._call():
            return self._member.member_id

    def metrics(self) -> dict[str, float]:
        """Figures of this consumer, by the names of Kafka's client (KIP-932): totals since it was made."""
        with self._call():
            return self._fetcher.metrics() | self._member.metrics()

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """New credentials for the next time the broker is connected to."""
        with self._call():
            for each in (username, password):
                if not isinstance(each, str):
                    raise TypeError(f"argument must be str, not {type(each).__name__}")
            self._fetcher.set_sasl_credentials(username, password)

    def close(self, timeout: float | None = None) -> None:
        """Send what is acknowledged, give back the rest, leave the group: in ``timeout`` seconds, 30 without.

        In implicit mode what was polled last and not committed is given back, not accepted. Where the database does
        not answer in time, what is held comes back when its locks lapse. A second close does nothing.
        """
        if self._closed or self._elsewhere:
            return
        with self._call():
            deadline = time.monotonic() + (CLOSE_TIMEOUT_S if timeout is None else timeout)
            if self._config.explicit:
                self._send()
            self._closed = True
            self._ended.set()
            self._abandon.detach()
            ending = threading.Thread(target=self._end, args=(deadline, self._in_hand), daemon=True)
            ending.start()
            ending.join(max(0.0, deadline - time.monotonic()))
            self._in_hand = []
            self._restore_signals()
            self._dispatch()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _end(self, deadline: float, in_hand: list[Holding]) -> None:
        self._listener.stop()
        # What is acknowledged goes first, also where close does not wait for it.
        self._fetcher.stop(max(_LEAST_STOP_S, deadline - time.monotonic()))
        try:
            self._fetcher.release_all(in_hand)
        except (SQLAlchemyError, ShareError) as error:
            _log.warning("what %s holds comes back when its locks lapse: %s", self._member.member_id, error)
        self._member.close(max(0.0, deadline - time.monotonic()))
        self._database.close()

    def _subscribe(self, topics: tuple[str, ...]) -> None:
        if topics == self._subscribed:
            self._fetcher.forget_failure()
            return
        self._subscribed = topics
        self._member.subscribe(topics)
        self._fetcher.forget_failure()  # no older one comes from here on
        self._fetcher.drop(frozenset(topics))
        if topics:
            self._fetcher.start()
            self._listener.start()

    def _take(self, seconds: float) -> tuple[list[Message], list[Holding]]:
        deadline = time.monotonic() + seconds
        told = self._config.reading.get("error_cb")
        while True:
            try:
                return self._fetcher.take(
                    self._config.max_poll_records, max(0.0, deadline - time.monotonic())
                )
            except UnknownTopicId as error:
                if told is None:
                    raise
                told(KafkaError(error.code, error.message))

    def _unacknowledged(self) -> int:
        return sum(list(each.handed.values()).count(NOT_YET) for each in self._in_hand)

    def _acknowledge(
        self,
        what: str,
        topic: str | None,
        partition: int | None,
        offset: int | None,
        kind: int,
        delay: float | None,
    ) -> Holding:
        kind = integer(kind)
        if topic is None or partition is None or offset is None or partition < 0 or offset < 0:
            raise ValueError(f"Failed to acknowledge {what}: {_INVALID}")
        if not self._config.explicit:
            raise IllegalStateException(f"Failed to acknowledge {what}: {_STATE}")
        if not _ACCEPT <= kind <= _RENEW:
            raise ValueError(f"Failed to acknowledge {what}: {_INVALID}")
        if delay is not None and not 0 <= delay <= _LONGEST_DELAY_S:
            raise ValueError(f"a record waits 0 to {_LONGEST_DELAY_S:.0f} seconds, not {delay}")
        holding = self._holding(topic, partition, offset)
        if holding is None:
            raise IllegalStateException(f"Failed to acknowledge {what}: {_STATE}")
        holding.handed[offset] = kind
        if holding.delays:
            holding.delays.pop(offset, None)
        if holding.errors:
            holding.errors.pop(offset, None)
        if delay:
            holding.delays[offset] = delay
        return holding

    def _preset(self, message: Message, kind: AcknowledgeType, error: BaseException) -> None:
        """What is said of a record of this poll unless the program says otherwise, in either mode."""
        offset = message.offset()
        holding = self._holding(message.topic(), message.partition(), offset)
        if holding is not None and offset is not None:
            holding.handed[offset] = kind
            holding.errors[offset] = error_text(error)

    def _renewed(self, message: Message) -> bool:
        """Whether a record of this poll was polled before, and its lock renewed."""
        holding = self._holding(message.topic(), message.partition(), message.offset())
        return holding is not None and holding.renewed

    def _holding(self, topic: str | None, partition: int | None, offset: int | None) -> Holding | None:
        for holding in self._in_hand:
            if offset in holding.handed and holding.key == (topic, partition):
                return holding
        return None

    def _send(self) -> Sending | None:
        """Have everything sent that is to be acknowledged now."""
        sending = self._fetcher.outcomes_of(self._in_hand, implicit=not self._config.explicit)
        self._in_hand = [each for each in self._in_hand if each.handed]
        if sending is not None:
            self._fetcher.send(sending)
        return sending

    def _note_pace(self) -> None:
        """Lease ahead for a program that is done with a poll's records soon."""
        if not self._handed:
            return
        per_record = (time.monotonic() - self._handed_at) / self._handed
        ahead = int(AHEAD_S / per_record) if per_record > 0 else 0
        self._fetcher.lease_ahead(ahead if ahead >= self._config.max_poll_records else 0)

    def _dispatch(self) -> None:
        """Call the callback with the results that have come. What is left when it raises is told next time."""
        for sending in self._fetcher.finished():
            if self._callback is not None:
                self._untold.extend(sending.by_partition().items())
        while self._untold and self._callback is not None:
            (topic, partition), (offsets, error) = self._untold.popleft()
            self._in_callback = True
            try:
                at = TopicPartition(topic, partition, 0)
                self._callback(
                    {at: set(offsets.iter_offsets())}, None if error is None else kafka_exception(error)
                )
            finally:
                self._in_callback = False


def _abandon(pid: int, fetcher: Fetcher, member: Member, listener: Listener) -> None:
    """A consumer went out of use and was not closed: nobody is to think that it works. A fork's copy is none."""
    if pid != os.getpid():
        return
    member.abandon()
    listener.stop()
    fetcher.stop(0.0)
