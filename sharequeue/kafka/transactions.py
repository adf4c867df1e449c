"""Write a batch of records to its topics exactly once, even if the process is killed.

Kafka's producer alone guarantees at least once. A batch is sent in one Kafka transaction that also commits the number
of the batch, as an offset of a consumer group that has no other use: the marker. Records and marker become visible
together or not at all. After a crash the marker shows whether the batch was sent. The order matters: first open the
producer (it aborts a transaction that a dead or slow producer left open, and fences that producer), then read the
state, then the marker.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self

import confluent_kafka as kafka

TRANSACTION_TIMEOUT_MS = 60_000
"""How long an unfinished transaction of a dead producer can delay read_committed readers of the topic."""
TIMEOUT_SECONDS = 30.0
ABORT_TIMEOUT_SECONDS = 10.0
ASK_AGAIN_SECONDS = 0.1
FILLING_SECONDS = 20.0
"""A transaction takes records for this long, so that it ends within its timeout on a slow connection, too."""
UNSENT_BYTES = 1024 * 1024
"""The bytes of a transaction that may wait for the broker: after `FILLING_SECONDS` they must still be sent."""
LARGEST_MESSAGE_BYTES = 1_000_000_000
"""The highest limit that the client knows. The broker checks the topic's limit, after compression."""
DEFAULT_MAX_MESSAGE_BYTES = 1_048_588
"""A broker's default for `max.message.bytes`."""
MOST_BATCH_BYTES = 1_000_000
_REPORTED_WITHIN_SECONDS = 2.0
_FULL_SECONDS, _FLUSH_SECONDS = 0.01, 0.2
_RETURNS_WITHIN_SECONDS = 5.0
"""So much later than its timeout a request returns."""

_log = logging.getLogger(__name__)
FENCED = frozenset(
    {
        kafka.KafkaError._FENCED,
        kafka.KafkaError.INVALID_PRODUCER_EPOCH,
        kafka.KafkaError.PRODUCER_FENCED,
        kafka.KafkaError.INVALID_PRODUCER_ID_MAPPING,
        kafka.KafkaError.INVALID_TXN_STATE,
        kafka.KafkaError.CONCURRENT_TRANSACTIONS,
    }
)
"""Another producer with the same transactional id has started, or the transaction has timed out."""
_PASSING = frozenset(
    {
        # A coordinator is being elected, loaded or moved: always so for the first group of a new broker.
        kafka.KafkaError.NOT_COORDINATOR,
        kafka.KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        kafka.KafkaError.COORDINATOR_NOT_AVAILABLE,
        kafka.KafkaError.LEADER_NOT_AVAILABLE,
        kafka.KafkaError.NOT_LEADER_FOR_PARTITION,
        kafka.KafkaError._TRANSPORT,
        kafka.KafkaError._DESTROY_BROKER,
        kafka.KafkaError._TIMED_OUT,
        kafka.KafkaError._ALL_BROKERS_DOWN,
        kafka.KafkaError.REQUEST_TIMED_OUT,
        kafka.KafkaError.NETWORK_EXCEPTION,
        kafka.KafkaError.BROKER_NOT_AVAILABLE,
        kafka.KafkaError.NOT_ENOUGH_REPLICAS,
        kafka.KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        kafka.KafkaError.KAFKA_STORAGE_ERROR,
        kafka.KafkaError._MSG_TIMED_OUT,
        # An open transaction has a newer marker: it ends, at the latest after its timeout.
        kafka.KafkaError.UNSTABLE_OFFSET_COMMIT,
        # An error without a code in the broker. One is known: a commit between another producer's fence and the
        # abort that follows it. The broker then logs `Preparing transaction state transition`.
        kafka.KafkaError.UNKNOWN,
    }
)
DENIED = frozenset(
    {
        kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED,
        kafka.KafkaError.GROUP_AUTHORIZATION_FAILED,
        kafka.KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        kafka.KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
"""A right is missing."""
_OF_ANOTHER_RECORD = frozenset(
    {
        kafka.KafkaError._PURGE_QUEUE,
        kafka.KafkaError._PURGE_INFLIGHT,
        kafka.KafkaError._INVALID_DIFFERENT_RECORD,
    }
)
"""Reports of records that were not written because another one was refused."""
_OF_THE_TOPIC = frozenset(
    {kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED, kafka.KafkaError.UNKNOWN_TOPIC_OR_PART}
)
"""Refusals of all records of a topic, for which there may be no reports."""


def most_uncompressed(config: Mapping[str, str]) -> int:
    """Return how large a batch may be, as its producer sends it, for a topic with these configs to take it.

    A broker with a compression of its own checks the limit afterwards, and bytes that cannot be compressed grow: by 5
    bytes in 16 kB with gzip, less with the others, and by a header.
    """
    most = int(config.get("max.message.bytes", DEFAULT_MAX_MESSAGE_BYTES))
    if config.get("compression.type", "producer") in ("producer", "uncompressed"):
        return most
    return max(1, most - most // 1_000 - 32)


def producer_limits(targets: Collection[Mapping[str, str]]) -> dict[str, Any]:
    """Return a producer's configuration for topics with these configs: it takes their limits and their compression.

    Only the broker knows whether a record fits, because its limit holds after compression. Where the topic keeps what
    a producer chooses, that is gzip, which all clients can read.
    """
    smallest = min(map(most_uncompressed, targets), default=0)
    codecs = {each.get("compression.type", "producer") for each in targets}
    named = codecs - {"producer", "uncompressed"}
    return {
        "message.max.bytes": LARGEST_MESSAGE_BYTES,
        # Records that share a batch fit into every topic; a larger record is alone in its batch.
        "batch.size": max(1, min(MOST_BATCH_BYTES, smallest)),
        "compression.type": "none"
        if codecs == {"uncompressed"}
        else named.pop()
        if len(named) == 1
        else "gzip",
    }


def is_passing(cause: kafka.KafkaError) -> bool:
    """Return whether the same request may succeed in a moment without any change."""
    return bool(cause.code() in _PASSING or cause.retriable())


def takes_commits(group: str) -> bool:
    """Return whether the client commits offsets for a consumer group of this name: it must be printable ASCII."""
    return all(" " <= each <= "~" for each in group)


class RecordsRefused(Exception):
    """The broker or the client refuses some records of a transaction, which was aborted; others may be written.

    The reasons are by the number that each record was given in `produce`.
    """

    def __init__(self, reasons: Mapping[int, kafka.KafkaError]) -> None:
        super().__init__(next(iter(reasons.values())).str())
        self.reasons = reasons


class MarkerGroup:
    """The consumer group of the markers, with this client's configuration. A context manager: leaving it closes the
    client.

    A marker in an unfinished transaction is waited for, unless `stable` is False: then the one before it is returned.
    """

    def __init__(self, client: Mapping[str, Any], group: str, *, stable: bool = True) -> None:
        isolation = "read_committed" if stable else "read_uncommitted"
        config = {"group.id": group, "enable.auto.commit": False, "isolation.level": isolation}
        self._consumer = kafka.Consumer({**client, **config})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()

    @property
    def membership(self) -> Any:
        """The group metadata that a transaction needs to commit an offset of the group."""
        return self._consumer.consumer_group_metadata()

    def committed(self, topic: str, partition: int) -> kafka.TopicPartition:
        """Return the marker of a partition; its offset is negative if there is none. Raises KafkaException."""
        (found,) = self.committed_of([(topic, partition)])
        return found

    def committed_of(self, places: Sequence[tuple[str, int]]) -> list[kafka.TopicPartition]:
        """Return the markers of partitions, in one request. Raises KafkaException, also for the error of one."""
        if not places:
            return []
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            seconds = max(deadline - time.monotonic(), ASK_AGAIN_SECONDS)
            try:
                asked = [kafka.TopicPartition(*place) for place in places]
                found = {
                    (each.topic, each.partition): each
                    for each in self._consumer.committed(asked, timeout=seconds)
                }
                for each in found.values():
                    if each.error is not None:
                        raise kafka.KafkaException(each.error)
                return [found[place] for place in places]
            except kafka.KafkaException as error:
                # The client does not retry by itself while the group's coordinator is being elected.
                if not is_passing(error.args[0]) or time.monotonic() >= deadline:
                    raise
            time.sleep(ASK_AGAIN_SECONDS)


def _note_refusal(
    refused: dict[int, kafka.KafkaError], number: int, error: kafka.KafkaError | None, _: Any
) -> None:
    """Note that a record was refused, unless that will pass or is for the sake of another record."""
    if error is not None and not (
        error.code() in _OF_ANOTHER_RECORD or error.code() in FENCED or error.fatal() or is_passing(error)
    ):
        refused[number] = error


class MarkedProducer:
    """A transactional producer whose transactions commit a marker.

    A context manager: leaving it aborts an open transaction. `config` is of a client and of a producer. The broker
    fences an older producer with the same `transactional_id`. `failure` makes the exception for an error of the
    broker. An error that concerns single records is `RecordsRefused`; then the others need a new producer, because
    the aborted numbers are not used again.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        transactional_id: str,
        markers: MarkerGroup,
        failure: Callable[[kafka.KafkaException], Exception],
    ) -> None:
        self._id, self._markers, self._failure, self._open = transactional_id, markers, failure, False
        self._began_at = 0.0
        self._numbers: list[int] = []
        self._sizes: list[int] = []
        """The bytes of the transaction up to and including each of its records."""
        self._confirmed = 0
        self._refused: dict[int, kafka.KafkaError] = {}
        self._producer = kafka.Producer(
            {
                **config,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                # A topic that is deleted meanwhile would come back with the broker's defaults.
                "allow.auto.create.topics": False,
                # The client keeps a callback for each record, and calls only those of errors.
                "delivery.report.only.error": True,
            }
        )

    def __enter__(self) -> Self:
        self._asked(self._producer.init_transactions, TIMEOUT_SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._open:
            self._abort()

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self._open

    @property
    def is_late(self) -> bool:
        """Whether the transaction has to end, because it has taken records for `FILLING_SECONDS`."""
        return time.monotonic() - self._began_at >= FILLING_SECONDS

    def begin(self) -> None:
        """Open the transaction."""
        self._asked(self._producer.begin_transaction)
        self._open, self._began_at = True, time.monotonic()
        self._numbers, self._sizes, self._confirmed = [], [], 0

    def produce(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Any,
        number: int = 0,
        size: int = 0,
        timestamp: int = 0,
    ) -> None:
        """Add one record of about `size` bytes; wait while too much is unsent, but not longer than `is_late`. Its
        timestamp is in milliseconds since 1970, 0 for now.

        Raises `RecordsRefused` with the `number` of a record that cannot be written.
        """
        self._numbers.append(number)
        self._sizes.append((self._sizes[-1] if self._sizes else 0) + size)
        # Without a reference to this producer: the client holds it as long as it has the record.
        report = partial(_note_refusal, self._refused, number)
        while True:
            try:
                self._producer.produce(
                    topic, value, key, partition, report, timestamp=timestamp, headers=headers
                )
                break
            except BufferError:
                self._serve(self._producer.poll, _FULL_SECONDS)
            except kafka.KafkaException as error:
                if error.args[0].code() == kafka.KafkaError.MSG_SIZE_TOO_LARGE:
                    self._refused[number] = error.args[0]
                raise self._refusal(error) from error
            except (TypeError, ValueError) as error:
                # A header that the client cannot encode, for example.
                raise RecordsRefused(
                    {number: kafka.KafkaError(kafka.KafkaError._INVALID_ARG, str(error))}
                ) from error
        self._wait_for_room()

    def _wait_for_room(self) -> None:
        while self._sizes[-1] - self._confirmed >= UNSENT_BYTES and not self.is_late:
            self._serve(self._producer.poll, 0)
            # Records are confirmed about in their order.
            confirmed = len(self._sizes) - len(self._producer)
            if confirmed > 0 and self._sizes[confirmed - 1] > self._confirmed:
                self._confirmed = self._sizes[confirmed - 1]
            else:
                self._serve(self._producer.poll, _FULL_SECONDS)

    def mark(self, marker: kafka.TopicPartition) -> None:
        """Add the marker to the transaction."""
        self._deliver()
        self._asked(self._send_offset, marker)

    def _send_offset(self, marker: kafka.TopicPartition) -> None:
        """Add the marker. Raises KafkaException, also if the client does not return in time: it may wait without end
        for a coordinator that stood still (librdkafka issue 5456).
        """
        done, membership = Future[None](), self._markers.membership

        def send() -> None:
            try:
                self._producer.send_offsets_to_transaction([marker], membership, TIMEOUT_SECONDS)
                done.set_result(None)
            except BaseException as error:
                done.set_exception(error)

        threading.Thread(target=send, name=f"marker-of-{self._id}", daemon=True).start()
        if not wait([done], TIMEOUT_SECONDS + _RETURNS_WITHIN_SECONDS).done:
            # Thread and producer are left behind. The next producer, or its time-out, aborts the transaction.
            self._open = False
            raise kafka.KafkaException(
                kafka.KafkaError(
                    kafka.KafkaError._TIMED_OUT, "the group's coordinator did not take the marker"
                )
            )
        done.result()

    def commit(self) -> None:
        """Make records and marker visible, both or neither.

        The commit may have succeeded despite an error here. Nothing is lost: the next attempt reads the marker.
        """
        self._deliver()
        self._asked(self._producer.commit_transaction, TIMEOUT_SECONDS)
        self._open = False

    def _deliver(self) -> None:
        """Send what is unsent, while it makes progress. Raises `RecordsRefused` as soon as a record is refused: in a
        commit, the client would wait in vain for the others."""
        left, moved_at = len(self._producer), time.monotonic()
        while left and time.monotonic() - moved_at < _REPORTED_WITHIN_SECONDS:
            now = self._serve(self._producer.flush, _FLUSH_SECONDS)
            if now < left:
                left, moved_at = now, time.monotonic()

    def _serve(self, call: Callable[[float], int], seconds: float) -> int:
        """Let the client report what it has sent; raise what it reports."""
        try:
            left = call(seconds)
        except kafka.KafkaException as error:
            # The client reports a fatal error so.
            raise self._refusal(error) from error
        if self._refused:
            raise RecordsRefused(dict(self._refused))
        return left

    def _asked(self, request: Callable[..., Any], *arguments: Any) -> None:
        try:
            request(*arguments)
        except kafka.KafkaException as error:
            raise self._refusal(error) from error

    def _refusal(self, error: kafka.KafkaException) -> Exception:
        """Return the exception to raise for an error: `RecordsRefused` if it concerns single records."""
        cause = self._cause(error)
        code = cause.args[0].code()
        if code in FENCED or cause.args[0].fatal() or (is_passing(cause.args[0]) and not self._refused):
            return self._failure(cause)
        self._wait_for_reports()
        if not self._refused and code in _OF_THE_TOPIC:
            self._refused.update(dict.fromkeys(self._numbers, cause.args[0]))
        return RecordsRefused(dict(self._refused)) if self._refused else self._failure(cause)

    def _wait_for_reports(self) -> None:
        """Wait for the first report of a refused record: it may come just after the error of its transaction."""
        until = time.monotonic() + _REPORTED_WITHIN_SECONDS
        with suppress(kafka.KafkaException):
            while self._open and self._numbers and not self._refused and time.monotonic() < until:
                self._producer.poll(_FULL_SECONDS)

    def _cause(self, error: kafka.KafkaException) -> kafka.KafkaException:
        """Return the cause of an error.

        For a producer that cannot continue, for example a fenced one, the client reports only a fatal error, and for
        a transaction that has failed only its state; a call on the transaction returns the cause.
        """
        ask = {
            kafka.KafkaError._FATAL: self._producer.abort_transaction,
            kafka.KafkaError._STATE: self._producer.commit_transaction,
        }
        if (call := ask.get(error.args[0].code())) is not None and self._open:
            try:
                call(ABORT_TIMEOUT_SECONDS)
            except kafka.KafkaException as cause:
                return cause
        return error

    def _abort(self) -> None:
        self._open = False
        try:
            self._producer.abort_transaction(ABORT_TIMEOUT_SECONDS)
            self._producer.poll(0)
        except kafka.KafkaException as error:
            # Fenced, or the broker is away: the next producer aborts it with init_transactions, or its time-out does.
            _log.debug("transaction of %s not aborted: %s", self._id, error)
