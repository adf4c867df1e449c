"""The consumer of a share group, with the interface of ``confluent_kafka.ShareConsumer``.

A program imports either of them and runs unchanged. This module has the public calls: when each is allowed, what an
acknowledgement means, which errors are raised. The work behind the calls is in ``fetcher``, membership in ``member``.
Terms: KIP-932.
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

from sharequeue.consumer.acknowledgements import Acknowledgements, Result
from sharequeue.consumer.call_guard import AcknowledgementCommitCallback, CallGuard
from sharequeue.consumer.configs import consumer_config
from sharequeue.consumer.errors import integer, kafka_exception, real_number
from sharequeue.consumer.failures import error_text
from sharequeue.consumer.fetcher import AHEAD_S, Fetcher
from sharequeue.consumer.handover import Handover
from sharequeue.consumer.held_leases import NOT_YET, HeldLease
from sharequeue.consumer.member import ConsumerMember
from sharequeue.consumer.reader import Key
from sharequeue.database import Database
from sharequeue.domain.errors import ShareError, UnknownTopicId, first_line
from sharequeue.domain.names import plural
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import AcknowledgeType
from sharequeue.state.listening import Listener
from sharequeue.state.locks import lock_clock

_log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 30.0
_LEAST_STOP_S = 5.0
_FOREVER_S = 1e7
_LONGEST_DELAY_S = 366 * 86_400.0
_INVALID = "Local: Invalid argument or configuration"
_STATE = "Local: Erroneous state"
UNASSIGNED_S = 10.0
"""After this time without a share-partition, a poll logs a warning."""
_ACCEPT, _RENEW = int(AcknowledgeType.ACCEPT), int(AcknowledgeType.RENEW)


class ShareConsumer:
    """A consumer of one share group. Each message is acquired for a limited time and must be acknowledged in it.

    ``ShareConsumer({"group.id": "work", "bootstrap.servers": "…"})``. The database is given by the settings of the
    environment, or by ``sharequeue.database.url``. As confluent's, it must not be used from several threads at once
    (ConcurrentModificationException); only ``wakeup`` may be called from any thread. Close it, or use it as a context
    manager: then its records are available again at once, otherwise when the locks lapse.
    """

    _handle: Fetcher | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if self._handle is not None:
            raise RuntimeError("ShareConsumer already initialized")
        if len(args) > 1 or (args and not isinstance(args[0], Mapping)) or not (args or kwargs):
            raise TypeError("expected configuration dict")
        self._guard = CallGuard()
        self._config = config = consumer_config(args[0] if args else {}, kwargs)
        self._database = Database.open(config.settings, pool_size=3)
        self._handover = handover = Handover(config)
        self._member = ConsumerMember(
            config,
            self._database,
            handover.wake,
            handover.fail,
            lambda: fetcher.give_back_except(frozenset()),
        )
        self._handle = self._fetcher = fetcher = Fetcher(
            config, self._database, handover, self._member, lambda: listener.active
        )
        self._listener = listener = Listener(self._database, config.group_id, handover.wake)
        self._in_hand: list[HeldLease] = []
        """Leases with polled records whose acknowledgements are not sent yet."""
        self._subscribed: tuple[str, ...] = ()
        self._callback: AcknowledgementCommitCallback | None = None
        self._callback_results: deque[tuple[Key, tuple[OffsetSet, Result]]] = deque()
        """Results that are not passed to the callback yet."""
        self._handed_at = 0.0
        self._handed = 0
        self._unassigned_since: float | None = None
        """When the subscription without a share-partition began; None once that was logged, or if there is one."""
        self._abandon = weakref.finalize(self, _abandon, os.getpid(), fetcher, self._member, listener)

    def subscribe(self, topics: list[str]) -> None:
        """Consume these topics. They replace the previous ones; an empty list is the same as ``unsubscribe``.

        Raises TypeError if they are not a list, ValueError for an empty or repeated name.
        """
        with self._guard.call():
            if not isinstance(topics, list):
                raise TypeError("expected list of topic unicode strings")
            names = [str(topic) for topic in topics]
            if "" in names or len(set(names)) < len(names):
                raise ValueError(f"Failed to subscribe: {_INVALID}")
            self._subscribe(tuple(sorted(names)))

    def unsubscribe(self) -> None:
        """Stop consuming and leave the group. Polled records may still be acknowledged."""
        with self._guard.call():
            self._subscribe(())

    def subscription(self) -> list[str]:
        """Return the topics."""
        with self._guard.call("Failed to get subscription: "):
            return list(self._subscribed)

    def poll(self, timeout: float = -1) -> Messages:
        """Return the next records: at most ``max.poll.records``, none if none arrive in ``timeout`` seconds.

        In a group that is ordered by key, they have different keys, and no earlier record of these keys is open. In
        implicit mode this accepts the records of the last poll. In explicit mode all of them must be acknowledged
        before. Acknowledgements are sent with the poll. Raises IllegalStateException for records that are not
        acknowledged, and without a subscription. A topic that was deleted or created again is reported once: to
        ``error_cb``, if the config has one, else by KafkaException UNKNOWN_TOPIC_ID. Poll again: other topics
        continue.
        """
        with self._guard.call():
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
            self._warn_of_no_assignment()
            self._handed, self._handed_at = len(messages), time.monotonic()
            # No callback from here on: if it raised, the program would not get these records.
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

        Until then the acknowledgement may be replaced by another one. RENEW (``sharequeue.AcknowledgeType``) keeps
        the lock for another full duration: a later poll returns the record again, with the same delivery count. A
        released record is delivered again after ``delay`` seconds at the earliest. ``error`` is the reason of the
        failure, for the dead letter. Raises IllegalStateException in implicit mode and for a record that is not in
        hand, ValueError for an unknown type, for a ``delay`` without RELEASE and an ``error`` without RELEASE or
        REJECT.
        """
        self._guard.check("Failed to acknowledge message: ")
        if not isinstance(message, Message):
            raise TypeError(f"argument 1 must be confluent_kafka.cimpl.Message, not {type(message).__name__}")
        if error is not None and ack_type not in (AcknowledgeType.RELEASE, AcknowledgeType.REJECT):
            raise ValueError(
                "an error was given with another acknowledgement than RELEASE or REJECT: leave it out"
            )
        offset = message.offset()
        holding = self._acknowledge("message", message.topic(), message.partition(), offset, ack_type, delay)
        if error is None and (own := message.error()) is not None:
            error = own.str()
        if error is not None and offset is not None:
            holding.errors[offset] = error_text(error)

    def acknowledge_offset(
        self, topic: str, partition: int, offset: int, ack_type: int = AcknowledgeType.ACCEPT
    ) -> None:
        """As ``acknowledge``, by the record's coordinates."""
        self._guard.check("Failed to acknowledge offset: ")
        if not isinstance(topic, str):
            raise TypeError(f"argument 1 must be str, not {type(topic).__name__}")
        self._acknowledge("offset", topic, integer(partition), integer(offset), ack_type, None)

    def lock_remaining(self, message: Message) -> float:
        """Return the seconds until the lock of a record of the last poll lapses; 0 if it has lapsed.

        They are measured by this process's clock.

        Raises IllegalStateException for a record that is not in hand.
        """
        self._guard.check()
        holding = self._holding(message.topic(), message.partition(), message.offset())
        if holding is None:
            raise IllegalStateException(
                "the record is not held: it was already acknowledged, or never polled"
            )
        return max(0.0, holding.lock.deadline - lock_clock())

    def commit_sync(self, timeout: float = 60) -> dict[TopicPartition, KafkaException | None]:
        """Send the acknowledgements and wait for their results; in implicit mode, accept the polled records.

        Return None for each partition, or the error of its acknowledgements; REQUEST_TIMED_OUT if there is no result
        after ``timeout`` seconds (-1: no limit). The acknowledgements may still take effect then. In explicit mode,
        as in Kafka, records that are not acknowledged stay held without an entry here; the next poll raises.
        """
        with self._guard.call():
            seconds = float(real_number(timeout))
            sending = self._send()
            results: dict[TopicPartition, KafkaException | None] = {}
            if sending is not None:
                self._handover.wait_for(sending, _FOREVER_S if seconds < 0 else seconds)
                for (topic, partition), (_, error) in sending.by_partition().items():
                    results[TopicPartition(topic, partition, 0)] = (
                        None if error is None else kafka_exception(error)
                    )
            self._dispatch()
            return results

    def commit_async(self) -> None:
        """Send the acknowledgements; a later call passes the results to the callback. Returns at once."""
        with self._guard.call():
            self._send()
            self._dispatch()

    def set_acknowledgement_commit_callback(self, callback: AcknowledgementCommitCallback | None) -> None:
        """Have ``callback(offsets, exception)`` called with the results of acknowledgements, once for each partition.

        It is called in this thread, from within poll, commit_sync, commit_async and close. None removes it.
        """
        with self._guard.call():
            if callback is not None and not callable(callback):
                raise TypeError("callback must be callable or None")
            self._callback = callback

    def wakeup(self) -> None:
        """End a waiting poll or commit_sync, or the next one, with ``WakeupException``. From any thread."""
        self._handover.interrupt()

    def client_instance_id(self, timeout: float = -1) -> str:
        """Return the id by which the group knows this consumer: in `members`, leases and dead letters."""
        with self._guard.call():
            return self._member.member_id

    def metrics(self) -> dict[str, float]:
        """Return this consumer's figures, by the names of Kafka's client (KIP-932): totals since it was made."""
        with self._guard.call():
            return self._handover.metrics() | self._member.metrics()

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Set new credentials for the next connection to the broker."""
        with self._guard.call():
            for each in (username, password):
                if not isinstance(each, str):
                    raise TypeError(f"argument must be str, not {type(each).__name__}")
            self._fetcher.set_sasl_credentials(username, password)

    def close(self, timeout: float | None = None) -> None:
        """Send acknowledgements, give back the rest and leave the group, in up to ``timeout`` seconds (default 30).

        In implicit mode, polled records that were not committed are given back, not accepted. If the database does
        not respond in time, held records are available again when their locks lapse. A second close does nothing.
        """
        if self._guard.closed or self._guard.elsewhere:
            return
        with self._guard.call():
            deadline = time.monotonic() + (CLOSE_TIMEOUT_S if timeout is None else timeout)
            if self._config.explicit:
                self._send()
            self._guard.closed = True
            self._abandon.detach()
            ending = threading.Thread(target=self._end, args=(deadline, self._in_hand), daemon=True)
            ending.start()
            ending.join(max(0.0, deadline - time.monotonic()))
            self._in_hand = []
            self._dispatch()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _end(self, deadline: float, in_hand: list[HeldLease]) -> None:
        self._listener.stop()
        # Acknowledgements are sent first, even if close does not wait for them.
        self._fetcher.stop(max(_LEAST_STOP_S, deadline - time.monotonic()))
        try:
            self._fetcher.release_all(in_hand)
        except (SQLAlchemyError, ShareError) as error:
            _log.warning(
                "records of %s are delivered again when their locks lapse: %s",
                self._member.member_id,
                first_line(error),
            )
        self._member.membership.leave(max(0.0, deadline - time.monotonic()))
        self._database.close()

    def _subscribe(self, topics: tuple[str, ...]) -> None:
        if topics == self._subscribed:
            self._handover.forget_failure()
            return
        self._subscribed = topics
        self._unassigned_since = time.monotonic()
        self._member.subscribe(topics)
        self._handover.forget_failure()  # no older failure arrives from here on
        self._fetcher.give_back_except(frozenset(topics))
        if topics:
            self._fetcher.start()
            self._listener.start()

    def _take(self, seconds: float) -> tuple[list[Message], list[HeldLease]]:
        deadline = time.monotonic() + seconds
        error_callback = self._config.reading.get("error_cb")
        while True:
            try:
                return self._handover.take(
                    self._config.max_poll_records, max(0.0, deadline - time.monotonic())
                )
            except UnknownTopicId as error:
                if error_callback is None:
                    raise
                error_callback(KafkaError(error.code, error.message))

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
    ) -> HeldLease:
        kind = integer(kind)
        if topic is None or partition is None or offset is None or partition < 0 or offset < 0:
            raise ValueError(f"Failed to acknowledge {what}: {_INVALID}")
        if not self._config.explicit:
            raise IllegalStateException(
                f"Failed to acknowledge {what}: {_STATE} (implicit mode: the next poll or commit accepts the "
                "records; to acknowledge each, set share.acknowledgement.mode=explicit)"
            )
        if not _ACCEPT <= kind <= _RENEW:
            raise ValueError(f"Failed to acknowledge {what}: {_INVALID}")
        if delay is not None:
            if kind != AcknowledgeType.RELEASE:
                raise ValueError("a delay was given with another acknowledgement than RELEASE: leave it out")
            if not 0 <= real_number(delay) <= _LONGEST_DELAY_S:
                raise ValueError(f"the delay is {delay}: expected 0 to {_LONGEST_DELAY_S:.0f} seconds")
        holding = self._holding(topic, partition, offset)
        if holding is None:
            raise IllegalStateException(
                f"Failed to acknowledge {what}: {_STATE} (the record is not held: it was already acknowledged, or "
                "never polled)"
            )
        holding.handed[offset] = kind
        if holding.delays:
            holding.delays.pop(offset, None)
        if holding.errors:
            holding.errors.pop(offset, None)
        if delay:
            holding.delays[offset] = delay
        return holding

    def _preset(self, message: Message, kind: AcknowledgeType, error: BaseException) -> None:
        """Set the acknowledgement of a polled record, in either mode, unless the program sets another one."""
        offset = message.offset()
        holding = self._holding(message.topic(), message.partition(), offset)
        if holding is not None and offset is not None:
            holding.handed[offset] = kind
            holding.errors[offset] = error_text(error)

    def _renewed(self, message: Message) -> bool:
        """Return whether a record of this poll was polled before, and its lock renewed."""
        holding = self._holding(message.topic(), message.partition(), message.offset())
        return holding is not None and holding.renewed

    def _holding(self, topic: str | None, partition: int | None, offset: int | None) -> HeldLease | None:
        for holding in self._in_hand:
            if offset in holding.handed and holding.key == (topic, partition):
                return holding
        return None

    def _send(self) -> Acknowledgements | None:
        """Queue all acknowledgements that can be sent now."""
        sending = self._handover.outcomes_of(self._in_hand, implicit=not self._config.explicit)
        self._in_hand = [each for each in self._in_hand if each.handed]
        if sending is not None:
            self._handover.send(sending)
        return sending

    def _note_pace(self) -> None:
        """Lease ahead for a program that processes the records of a poll quickly."""
        if not self._handed:
            return
        per_record = (time.monotonic() - self._handed_at) / self._handed
        ahead = int(AHEAD_S / per_record) if per_record > 0 else 0
        self._handover.lease_ahead(ahead if ahead >= self._config.max_poll_records else 0)

    def _dispatch(self) -> None:
        """Call the callback with the results that have arrived. If it raises, the rest is passed on next time."""
        for sending in self._handover.finished():
            if self._callback is not None:
                self._callback_results.extend(sending.by_partition().items())
            elif not self._config.explicit:
                self._warn_of_refusals(sending)
        while self._callback_results and self._callback is not None:
            (topic, partition), (offsets, error) = self._callback_results.popleft()
            self._guard.in_callback = True
            try:
                at = TopicPartition(topic, partition, 0)
                self._callback(
                    {at: set(offsets.iter_offsets())}, None if error is None else kafka_exception(error)
                )
            finally:
                self._guard.in_callback = False

    def _warn_of_no_assignment(self) -> None:
        if self._unassigned_since is None:
            return
        if self._member.assignment:
            self._unassigned_since = None
        elif time.monotonic() - self._unassigned_since > UNASSIGNED_S:
            self._unassigned_since = None
            _log.warning(
                "no share-partition of %s is assigned to this member of group %s yet: check that the topic exists "
                "and that the service runs (`sharequeue doctor`); other members may have all share-partitions",
                ", ".join(self._subscribed),
                self._config.group_id,
            )

    def _warn_of_refusals(self, sending: Acknowledgements) -> None:
        """Log refused acknowledgements of implicit mode without a callback: a poll does not report them."""
        for (topic, partition), (offsets, error) in sending.by_partition().items():
            if error is not None:
                _log.warning(
                    "%s of %s-%d not accepted, and may be delivered again: %s",
                    plural(offsets.count, "record"),
                    topic,
                    partition,
                    error,
                )


def _abandon(pid: int, fetcher: Fetcher, member: ConsumerMember, listener: Listener) -> None:
    """Stop the threads of a consumer that was not closed; a forked copy cannot be used."""
    if pid != os.getpid():
        return
    member.membership.abandon()
    listener.stop()
    fetcher.stop(0.0)
