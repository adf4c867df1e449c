"""How do a few records far apart come out of a topic, without all that lies between?

This module runs in the Python workers. Each task has a share of the wanted ranges, in order, and a consumer of its
own, which is set to one wanted offset after another. What it reads is what Spark's connector would read: an offset
that the log does not have (compacted, a transaction's marker, aborted under read_committed, below the log start) has
no row, and silence of the broker is an error, never an absence.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.cloudpickle import register_pickle_by_value

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

CONSUMER = {
    "group.id": "sharequeue.seeker",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    # A position outside the log is said, not mended: the log may have been cut while it was read.
    "auto.offset.reset": "error",
    # One log batch is fetched for a wanted offset, and none ahead.
    "fetch.message.max.bytes": 1,
    "queued.min.messages": 1,
    "fetch.queue.backoff.ms": 0,
    # At the log's end a fetch waits this long for more, and the next offset waits for the fetch.
    "fetch.wait.max.ms": 10,
}
ROWS = 1000
BYTES = 8 * 2**20
"""Rows and bytes of a batch that a task passes on, at most but for the last record."""

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestamp_type", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", _HEADERS),
        ("delivery_count", pa.int32()),
        ("lease_id", pa.int64()),
    ]
)


class Seeker:
    """Reads wanted ranges: a sorted table, of `topic, partition, first, last, delivery_count, lease_id`.

    It is called with batches that have the numbers of tasks, of `tasks` in all. `config` is confluent-kafka's;
    `near` offsets are rather read over than sought. Raises TimeoutError when the broker is silent for so many
    `seconds`, KafkaException when it refuses.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        wanted: pa.Table,
        tasks: int,
        *,
        headers: bool = True,
        near: int = 0,
        seconds: float = 30.0,
    ) -> None:
        self.config = {**config, **CONSUMER}
        self.wanted = wanted
        self.tasks = tasks
        self.headers = headers
        self.near = near
        self.seconds = seconds

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the records, in the columns of a DataFrame of leased records."""
        for batch in batches:
            for task in batch.column(0).to_pylist():
                rows = self.wanted.num_rows
                first, end = rows * task // self.tasks, rows * (task + 1) // self.tasks
                if first < end:
                    yield from self._batches(self.wanted.slice(first, end - first))

    def _batches(self, wanted: pa.Table) -> Iterator[pa.RecordBatch]:
        rows: list[tuple[Any, ...]] = []
        size = 0
        consumer = _kafka().Consumer(self.config)
        try:
            reader: _Reader | None = None
            for topic, partition, first, last, count, lease_id in zip(
                *(column.to_pylist() for column in wanted.columns), strict=True
            ):
                if reader is None or (reader.topic, reader.partition) != (topic, partition):
                    reader = _Reader(consumer, topic, partition, self.near, self.seconds)
                for message in reader.read(first, last + 1):
                    rows.append((*self._of_record(message), count, lease_id))
                    size += len(message.value() or b"") + len(message.key() or b"")
                    if len(rows) >= ROWS or size >= BYTES:
                        yield _batch(rows)
                        rows, size = [], 0
        finally:
            consumer.close()
        if rows:
            yield _batch(rows)

    def _of_record(self, message: Message) -> tuple[Any, ...]:
        kind, milliseconds = message.timestamp()
        headers: Any = message.headers() if self.headers else None
        return (
            message.topic(),
            message.partition(),
            message.offset(),
            # Java's client says -1 for both where there is none, and counts the types from 0.
            -1000 if kind == _kafka().TIMESTAMP_NOT_AVAILABLE else milliseconds * 1000,
            kind - 1,
            message.key(),
            message.value(),
            [{"key": key, "value": value} for key, value in headers] if headers else None,
        )


class Probe:
    """Says whether the worker that calls it could seek: it has what a Seeker needs, and brokers answer it."""

    def __init__(self, config: Mapping[str, Any], topic: str, seconds: float) -> None:
        self.config = {**config, **CONSUMER}
        self.topic = topic
        self.seconds = seconds

    def __call__(self, _: object) -> bool:
        """Return whether it could; whatever is in the way is a reason to scan, and no error."""
        try:
            if find_spec("pyarrow") is None:
                return False
            consumer = _kafka().Consumer(self.config)
            try:
                topic = consumer.list_topics(self.topic, timeout=self.seconds).topics[self.topic]
                # A partition of each leader: that one broker is reached does not say that another is.
                for partition in {each.leader: each.id for each in topic.partitions.values()}.values():
                    place = _kafka().TopicPartition(self.topic, partition)
                    consumer.get_watermark_offsets(place, timeout=self.seconds)
                return topic.error is None
            finally:
                consumer.close()
        except Exception:
            return False


class _Reader:
    """Reads one partition, forward."""

    def __init__(self, consumer: Consumer, topic: str, partition: int, near: int, seconds: float) -> None:
        self.topic, self.partition = topic, partition
        self._consumer, self._near, self._seconds = consumer, near, seconds
        self._log_start = 0
        self._position = -1
        """Where the consumer is, once it was set to an offset. The log has nothing from here to what is `ahead`."""
        self._ahead: tuple[int, Message] | None = None

    def read(self, first: int, end: int) -> Iterator[Message]:
        """Yield the records of [first, end) that the log has."""
        while (begin := max(first, self._log_start)) < end:
            self._move_to(begin)
            try:
                following = self._next(end)
            except _OutsideTheLog:
                if self._log_start <= begin:
                    # Past the log's end: it was cut, which whoever misses the record finds out.
                    return
                continue
            if following is None or following[0] >= end:
                return
            offset, message = following
            self._ahead, self._position = None, offset + 1
            first = max(first, self._position)
            if offset >= begin:
                yield message

    def _move_to(self, offset: int) -> None:
        """Go on from where the last reading ended if the offset is near."""
        if self._position >= 0:
            known = self._position if self._ahead is None else self._ahead[0]
            if self._position <= offset <= max(known, self._position + self._near):
                return
        self._consumer.assign([_kafka().TopicPartition(self.topic, self.partition, offset)])
        self._position, self._ahead = offset, None

    def _next(self, end: int) -> tuple[int, Message] | None:
        """Return the next record, which stays the next; None where the log ends, not before `end`."""
        kafka = _kafka()
        silent_until = time.monotonic() + self._seconds
        while self._ahead is None:
            message = self._consumer.poll(0.1)
            if message is None:
                if time.monotonic() > silent_until:
                    raise TimeoutError(
                        f"nothing came of {self.topic}-{self.partition} from offset {self._position} on for "
                        f"{self._seconds:g} s: the broker does not answer, or the log was cut"
                    )
                continue
            offset, error = message.offset(), message.error()
            if error is None:
                self._ahead = (offset or 0, message)
            elif error.code() == kafka.KafkaError._PARTITION_EOF:
                # Said once. An end before the wanted one is none: records come soon, or silence is an error.
                if offset is not None and offset >= end:
                    self._position = -1
                    return None
            elif error.code() == kafka.KafkaError._AUTO_OFFSET_RESET:
                place = kafka.TopicPartition(self.topic, self.partition)
                self._log_start, _ = self._consumer.get_watermark_offsets(place, timeout=self._seconds)
                self._position = -1
                raise _OutsideTheLog
            else:
                raise kafka.KafkaException(error)
        return self._ahead


class _OutsideTheLog(Exception):
    """The position is below the log's start, or past its end."""


def _kafka() -> Any:
    """Return confluent-kafka. Its classes cannot be sent to executors, so that each looks for it."""
    try:
        import confluent_kafka
    except ImportError as error:
        raise ImportError(
            "an executor seeks records and lacks confluent-kafka: install it there, or leave out the reader's option"
            " sharequeue.seek"
        ) from error
    return confluent_kafka


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(values, field.type) for values, field in zip(columns, _SCHEMA, strict=True)], schema=_SCHEMA
    )


# The module is sent to the executors by value: they need PyArrow and confluent-kafka, but not this package.
register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
