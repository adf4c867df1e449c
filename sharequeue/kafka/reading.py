"""Read the records of topics by their offsets.

Every consumer that reads a topic as a log is opened here: for dead letters and their records, for browsing, for
samples, for leased records that Spark's connector cannot represent, for the share consumer. They join no group and
commit nothing. An offset without a record (removed, compacted, aborted, a transaction's marker) yields nothing.
Silence of the broker is an error and never means that records are absent.

`PartitionReader` and what it uses are sent to Spark's executors by value: they need confluent-kafka, and nothing of
this package.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Generator, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from sharequeue.domain.errors import BrokerNotAvailable
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import READ_UNCOMMITTED
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.damage import CHECKED, DECOMPRESSED_BYTES, is_unreadable, records_of_unreadable

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

TopicAndPartition = tuple[str, int]
"""Topic and partition."""

LIMIT = "receive.message.max.bytes"
"""The config that limits a response, and a zstd batch after its decompression."""
READING = {
    **CHECKED,
    LIMIT: DECOMPRESSED_BYTES,
    # librdkafka requires a group, although none is joined and nothing is committed.
    "group.id": "sharequeue.reader",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    # The reader itself corrects a position outside the log: the log may have been truncated while it was read.
    "auto.offset.reset": "error",
    # At the log's end a fetch waits this long for more records, and a seek waits for the fetch.
    "fetch.wait.max.ms": 20,
    # A client that has enough records pauses its fetches: by default for a second, longer than a reader takes.
    "fetch.queue.backoff.ms": 10,
}
SEEKING = {
    **READING,
    # One log batch is fetched for a wanted offset; nothing is read ahead.
    "fetch.message.max.bytes": 1,
    "queued.min.messages": 1,
    "fetch.queue.backoff.ms": 0,
    "fetch.wait.max.ms": 10,
    # The end of an unreadable batch is searched with reads that fail.
    "fetch.error.backoff.ms": 20,
}
"""The config for single records."""
AHEAD = {"queued.max.messages.kbytes": 16 * 1024}
"""The config for reading that may end soon: no more than a few large records are fetched ahead."""
NEAR = 1000
"""Gaps of up to this many offsets are read, not skipped: cheaper than a seek for records of ordinary size."""
TIMEOUT_SECONDS = 30.0
AT_ONCE = 500
SCANNED_AT_ONCE = 5000
POLL_SECONDS = 0.05
"""A poll for many records ends only when it is full or after its timeout: the last one of a scan takes this long."""


def client() -> Any:
    """Return confluent-kafka. Its classes cannot be sent to executors, so each executor imports it."""
    try:
        import confluent_kafka
    except ImportError as error:
        raise ImportError(
            "an executor reads records by offset and lacks confluent-kafka: install it there"
        ) from error
    return confluent_kafka


def open_consumer(config: Mapping[str, Any]) -> Consumer:
    """Return a consumer for reading by offset, with this configuration of confluent-kafka. Close it after use."""
    return client().Consumer({**READING, **config})  # type: ignore[no-any-return]


class _Connecting:
    """Has a consumer of its own. A context manager; it connects when it is first used."""

    def __init__(self, settings: Settings, **config: Any) -> None:
        self._settings, self._given = settings, config
        self._consumer: Consumer | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._consumer is not None:
            self._consumer.close()

    @property
    def _config(self) -> dict[str, Any]:
        return client_config(self._settings, **self._given)

    @property
    def _connected(self) -> Consumer:
        if self._consumer is None:
            self._consumer = open_consumer(self._config)
        return self._consumer


class RecordReader(_Connecting):
    """Reads records by offset, of any topic. A context manager; it connects when it is first used.

    `config` is for the consumer, written with underscores.
    """

    def __init__(self, settings: Settings, isolation_level: str = READ_UNCOMMITTED, **config: Any) -> None:
        ahead = {name.replace(".", "_"): value for name, value in AHEAD.items()}
        super().__init__(settings, **{**ahead, "isolation_level": isolation_level, **config})
        self._partition: PartitionReader | None = None

    def read(self, topic: str, partition: int, offsets: OffsetSet) -> Iterator[Message]:
        """Yield the records at these offsets that are in the log, ascending; missing ones no longer exist.

        Records of an unreadable batch have an error and no content. For read_uncommitted. Raises
        `BrokerNotAvailable` if the broker is silent for 30 s, KafkaException if it refuses.
        """
        at = client().TopicPartition(topic, partition)
        start, end = self._connected.get_watermark_offsets(at, timeout=TIMEOUT_SECONDS)
        reader = self._partition
        if reader is None or (reader.topic, reader.partition) != (topic, partition):
            reader = PartitionReader(self._connected, topic, partition, near=NEAR, at_once=AT_ONCE)
            self._partition = reader
        if start < end:
            try:
                for bounds in (offsets & OffsetSet.of((start, end))).ranges:
                    yield from reader.read(*bounds)
            except TimeoutError as error:
                raise BrokerNotAvailable(f"{error}; try again.") from error

    def sample(
        self, topic: str, partition: int, first: int, most: int, wait: float, more: float = 0.0
    ) -> list[Message]:
        """Return up to `most` records from an offset on, without errors.

        Wait up to `wait` seconds for the first one, as there may be only gaps, and `more` seconds for the others.
        """
        consumer, self._partition = self._connected, None
        consumer.assign([client().TopicPartition(topic, partition, first)])
        found = consumer.consume(1, wait)
        if found and most > 1:
            found += consumer.consume(most - 1, more)
        consumer.unassign()
        return [message for message in found if message.error() is None]


def scan(
    settings: Settings,
    isolation_level: str,
    starts: Mapping[TopicAndPartition, int],
    ends: Mapping[TopicAndPartition, int] | None = None,
) -> Generator[Message, None, None]:
    """Yield the records of some partitions as `Scanner.scan` does, with a client of its own."""
    with Scanner(settings, isolation_level) as scanner:
        yield from scanner.scan(starts, ends)


class Scanner(_Connecting):
    """Reads partitions from an offset to another, any number of times with one client. A context manager; it connects
    when it is first used.
    """

    def __init__(self, settings: Settings, isolation_level: str) -> None:
        super().__init__(settings, isolation_level=isolation_level, auto_offset_reset="earliest", log_level=3)

    def scan(
        self, starts: Mapping[TopicAndPartition, int], ends: Mapping[TopicAndPartition, int] | None = None
    ) -> Generator[Message, None, None]:
        """Yield the records of some partitions, each partition in its order.

        A partition ends before the offset in `ends`, or where the broker reports the end of its log. A start below
        the log is moved to its start. Records of an unreadable batch have an error and no content. End one scan
        before the next begins. Raises `BrokerNotAvailable` if the broker is silent for 30 s, KafkaException if it
        refuses.
        """
        kafka, consumer = client(), self._connected
        left = {at for at, start in starts.items() if ends is None or start < ends[at]}
        reached = dict(starts)
        try:
            consumer.assign([kafka.TopicPartition(*at, starts[at]) for at in sorted(left)])
            heard_at = time.monotonic()
            while left:
                messages = consumer.consume(SCANNED_AT_ONCE, POLL_SECONDS)
                if messages:
                    heard_at = time.monotonic()
                elif time.monotonic() - heard_at > TIMEOUT_SECONDS:
                    names = ", ".join(sorted({f"`{topic}`" for topic, _ in left}))
                    raise BrokerNotAvailable(
                        f"no record of {names} arrived within {TIMEOUT_SECONDS:.0f} s; try again."
                    )
                unreadable = set[TopicAndPartition]()
                for message in messages:
                    at, error = place_of(message), message.error()
                    if at not in left or at in unreadable:
                        continue
                    if is_unreadable(message):
                        unreadable.add(at)
                        lost = unreadable_records(self._config, message, reached[at])
                        reached[at] = offset_of(lost[-1]) + 1
                        yield from (each for each in lost if ends is None or offset_of(each) < ends[at])
                        consumer.incremental_unassign([kafka.TopicPartition(*at)])
                        consumer.incremental_assign([kafka.TopicPartition(*at, reached[at])])
                        heard_at = time.monotonic()
                        continue
                    if error is not None and error.code() != kafka.KafkaError._PARTITION_EOF:
                        raise kafka.KafkaException(error)
                    # A marker can be the last offset below the end: then only the end-of-partition event ends the
                    # partition.
                    if error is not None or (ends is not None and offset_of(message) >= ends[at]):
                        left.discard(at)
                        consumer.incremental_unassign([kafka.TopicPartition(*at)])
                        continue
                    reached[at] = offset_of(message) + 1
                    yield message
        finally:
            consumer.unassign()


def unreadable_records(config: Mapping[str, Any], report: Message, position: int) -> list[Message]:
    """Return a message with the error for each record of an unreadable batch from `position` on, by another client.

    Raises `BrokerNotAvailable` if the broker does not respond for 30 s.
    """
    # A client with another limit would read the batch.
    consumer = open_consumer({**config, **SEEKING, LIMIT: config.get(LIMIT, READING[LIMIT])})
    try:
        return records_of_unreadable(consumer, report, position)
    except TimeoutError as error:
        raise BrokerNotAvailable(f"{error}; try again.") from error
    finally:
        consumer.close()


def first_records(
    settings: Settings, starts: Mapping[TopicAndPartition, int], seconds: float
) -> dict[TopicAndPartition, Message]:
    """Return the first record of each partition at or after an offset, of those that come within `seconds`.

    All partitions are read at once, one log batch of each. A start below the log is moved to its start. Partitions
    that cannot be read, or have no record there, are left out. Raises KafkaException for a config that librdkafka
    refuses.
    """
    if not starts:
        return {}
    kafka = client()
    config = client_config(settings, auto_offset_reset="earliest", log_level=3)
    consumer = open_consumer({**SEEKING, **config})
    found = dict[TopicAndPartition, "Message"]()
    until = time.monotonic() + seconds
    try:
        left = _existing(consumer, starts, until)
        consumer.assign([kafka.TopicPartition(*at, starts[at]) for at in sorted(left)])
        while left and time.monotonic() < until:
            for message in consumer.consume(len(left), POLL_SECONDS):
                if (at := place_of(message)) in left:
                    left.discard(at)
                    consumer.incremental_unassign([kafka.TopicPartition(*at)])
                    if message.error() is None:
                        found[at] = message
    finally:
        consumer.close()
    return found


def _existing(
    consumer: Consumer, places: Collection[TopicAndPartition], until: float
) -> set[TopicAndPartition]:
    """Return those partitions that the broker has, none if it has not answered by `until`: an assigned partition that
    does not exist is never reported.
    """
    there: set[TopicAndPartition] = set()
    for topic in {topic for topic, _ in places}:
        try:
            known = consumer.list_topics(topic, timeout=max(0.0, until - time.monotonic())).topics[topic]
        except client().KafkaException:
            return set()
        if known.error is None:
            there |= {at for at in places if at[0] == topic and at[1] in known.partitions}
    return there


def place_of(message: Message) -> TopicAndPartition:
    """Return topic and partition of a message that a consumer returned."""
    return message.topic(), message.partition()  # type: ignore[return-value]


def offset_of(message: Message) -> int:
    """Return the offset of a message that a consumer returned."""
    return message.offset()  # type: ignore[return-value]


class PartitionReader:
    """Reads one partition forward, as the only user of its consumer.

    An offset at most `near` away is reached by reading on, others by a seek. `at_once` messages are taken from the
    client at a time. Records of an unreadable batch have an error and no content. Raises TimeoutError if the broker
    is silent for `seconds`, KafkaException if it refuses.
    """

    def __init__(
        self,
        consumer: Consumer,
        topic: str,
        partition: int,
        *,
        near: int,
        seconds: float = 30.0,
        at_once: int = 1,
    ) -> None:
        self.topic, self.partition = topic, partition
        self._consumer, self._near, self._seconds, self._at_once = consumer, near, seconds, at_once
        self._log_start = 0
        self._position = -1
        """The position of the consumer, once it has one. The log has nothing between it and the first of `_came`."""
        self._came: deque[Message] = deque()
        self._unreadable_end = 0
        """Messages with an error below this offset stand for records of an unreadable batch."""

    def read(self, first: int, end: int) -> Iterator[Message]:
        """Yield the records of [first, end) that the log has."""
        while (begin := max(first, self._log_start)) < end:
            self._move_to(begin)
            try:
                message = self._next(end)
            except _OutsideTheLog:
                if self._log_start <= begin:
                    # Past the log's end: it was truncated. The caller notices the missing record.
                    return
                continue
            if message is None or (offset := offset_of(message)) >= end:
                return
            self._came.popleft()
            self._position = offset + 1
            first = max(first, self._position)
            if offset >= begin:
                yield message

    def _move_to(self, offset: int) -> None:
        """Continue from the last position if the offset is near: a seek discards what was fetched."""
        if self._position >= 0:
            # The last one may be an error, which has no offset.
            known = (self._came[-1].offset() or 0) if self._came else 0
            if self._position <= offset <= max(known, self._position + self._near):
                return
        self._consumer.assign([client().TopicPartition(self.topic, self.partition, offset)])
        self._position, self._unreadable_end = offset, 0
        self._came.clear()

    def _next(self, end: int) -> Message | None:
        """Return the next record without removing it; None if the log ends at or after `end`."""
        kafka = client()
        silent_until = time.monotonic() + self._seconds
        while True:
            if not self._came:
                self._wait(silent_until)
                continue
            message = self._came[0]
            error = message.error()
            if error is None or (is_unreadable(message) and offset_of(message) < self._unreadable_end):
                return message
            if is_unreadable(message):
                self._came.clear()
                self._came += records_of_unreadable(self._consumer, message, self._position, self._seconds)
                self._unreadable_end = offset_of(self._came[-1]) + 1
                self._consumer.assign(
                    [kafka.TopicPartition(self.topic, self.partition, self._unreadable_end)]
                )
                continue
            self._came.popleft()
            if error.code() == kafka.KafkaError._PARTITION_EOF:
                # Reported once. An end before the wanted one is ignored: records follow soon, or silence is an error.
                if offset_of(message) >= end:
                    self._position = -1
                    return None
            elif error.code() == kafka.KafkaError._AUTO_OFFSET_RESET:
                place = kafka.TopicPartition(self.topic, self.partition)
                self._log_start, _ = self._consumer.get_watermark_offsets(place, timeout=self._seconds)
                self._position = -1
                raise _OutsideTheLog
            else:
                raise kafka.KafkaException(error)

    def _wait(self, silent_until: float) -> None:
        message = self._consumer.poll(0.1)
        if message is not None:
            self._came.append(message)
            if self._at_once > 1:
                self._came += self._consumer.consume(self._at_once - 1, 0)
        elif time.monotonic() > silent_until:
            raise TimeoutError(
                f"no record of {self.topic}-{self.partition} from offset {self._position} on arrived within "
                f"{self._seconds:g} s: the broker does not answer, or the log was truncated"
            )


class _OutsideTheLog(Exception):
    """The position is below the log's start, or past its end."""


def passes(offsets: OffsetSet, near: int = NEAR) -> list[tuple[int, int]]:
    """Return ranges that cover every offset once; they include holes of at most `near` offsets."""
    covering: list[tuple[int, int]] = []
    for first, end in offsets.ranges:
        if covering and first - covering[-1][1] <= near:
            covering[-1] = (covering[-1][0], end)
        else:
            covering.append((first, end))
    return covering
