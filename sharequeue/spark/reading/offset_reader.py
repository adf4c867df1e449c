"""Read a few records that are far apart in a topic, without reading all records between them.

This module runs in the Python workers. Each task has a part of the wanted ranges, in order, and a separate consumer,
which seeks to one wanted offset after another. It reads the same records as Spark's connector: an offset that is not
in the log (compacted, a transaction marker, aborted under read_committed, below the log start) has no row. A broker
that does not respond is an error; the offset does not count as absent.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.cloudpickle import register_pickle_by_value

from sharequeue.kafka import reading
from sharequeue.kafka.reading import SEEKING, PartitionReader, client, open_consumer

if TYPE_CHECKING:
    from confluent_kafka import Message

ROWS = 1000
BYTES = 8 * 2**20
"""The most rows and bytes of a batch that a task passes on; its last record may exceed the bytes."""

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
    """A reader of wanted ranges: a sorted table of `topic, partition, first, last, delivery_count, lease_id`.

    It is called with batches of task numbers, out of `tasks` in total. `config` is confluent-kafka's. Gaps of up to
    `near` offsets are read over, not sought. Raises TimeoutError if the broker does not respond for `seconds`,
    KafkaException if it refuses.
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
        self.config = {**config, **SEEKING}
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
        consumer = open_consumer(self.config)
        try:
            reader: PartitionReader | None = None
            for topic, partition, first, last, count, lease_id in zip(
                *(column.to_pylist() for column in wanted.columns), strict=True
            ):
                if reader is None or (reader.topic, reader.partition) != (topic, partition):
                    reader = PartitionReader(consumer, topic, partition, near=self.near, seconds=self.seconds)
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
            # Java's client returns -1 for both if there is none, and counts the types from 0.
            -1000 if kind == client().TIMESTAMP_NOT_AVAILABLE else milliseconds * 1000,
            kind - 1,
            message.key(),
            message.value(),
            [{"key": key, "value": value} for key, value in headers] if headers else None,
        )


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(values, field.type) for values, field in zip(columns, _SCHEMA, strict=True)], schema=_SCHEMA
    )


# These modules are sent to the executors by value: they need PyArrow and confluent-kafka, but not this package.
for _module in (sys.modules[__name__], reading):
    register_pickle_by_value(_module)  # type: ignore[no-untyped-call]
