"""Read the records at wanted offsets of topics with confluent-kafka.

This module runs in the Python workers. Each task has a part of the wanted ranges, in order, and a separate consumer.
It reads the same records as Spark's connector, and those that it cannot represent: an offset that is not in the log
(compacted, a transaction marker, aborted under read_committed, below the log start) has no row. A broker that does
not respond is an error; the offset does not count as absent.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.cloudpickle import register_pickle_by_value

from sharequeue.kafka import damage, headers, reading
from sharequeue.kafka.headers import headers_of
from sharequeue.kafka.reading import AHEAD, AT_ONCE, NEAR, PartitionReader, client, open_consumer

if TYPE_CHECKING:
    from confluent_kafka import Message

LATEST = 2**63 - 1
"""The largest time of a column, in microseconds since 1970: a producer may write nanoseconds as milliseconds."""
ROWS = 1000
BYTES = 8 * 2**20
"""The most rows and bytes of a batch that a task passes on; its last record may exceed the bytes."""


class OffsetReader:
    """A reader of wanted ranges: a sorted table of `topic, partition, first, last, delivery_count, lease_id`.

    It is called with batches of task numbers, out of `tasks` in total. `config` is confluent-kafka's, `schema` the
    one of the records. Gaps of up to `near` offsets are read over, wider ones are skipped. Raises TimeoutError if the
    broker does not respond for `seconds`, KafkaException if it refuses, and for a damaged batch, as the connector
    does.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        wanted: pa.Table,
        tasks: int,
        schema: pa.Schema,
        *,
        headers: bool = True,
        near: int = NEAR,
        seconds: float = 30.0,
    ) -> None:
        self.config = {**AHEAD, **config}
        self.wanted = wanted
        self.tasks = tasks
        self.schema = schema
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
                    reader = PartitionReader(
                        *(consumer, topic, partition), near=self.near, seconds=self.seconds, at_once=AT_ONCE
                    )
                for message in reader.read(first, last + 1):
                    if message.error() is not None:
                        raise client().KafkaException(message.error())
                    rows.append((*self._of_record(message), count, lease_id))
                    size += len(message.value() or b"") + len(message.key() or b"")
                    if len(rows) >= ROWS or size >= BYTES:
                        yield self._batch(rows)
                        rows, size = [], 0
        finally:
            consumer.close()
        if rows:
            yield self._batch(rows)

    def _batch(self, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
        columns = zip(zip(*rows, strict=True), self.schema, strict=True)
        return pa.record_batch(
            [pa.array(values, field.type) for values, field in columns], schema=self.schema
        )

    def _of_record(self, message: Message) -> tuple[Any, ...]:
        kind, milliseconds = message.timestamp()
        return (
            message.topic(),
            message.partition(),
            message.offset(),
            # Java's client returns -1 for both if there is none, and counts the types from 0.
            -1000 if kind == client().TIMESTAMP_NOT_AVAILABLE else min(milliseconds * 1000, LATEST),
            kind - 1,
            message.key(),
            message.value(),
            self._headers(message),
        )

    def _headers(self, message: Message) -> list[dict[str, Any]] | None:
        found = headers_of(message) if self.headers else ()
        return [{"key": name, "value": value} for name, value in found] or None


# These modules are sent to the executors by value: they need PyArrow and confluent-kafka, but not this package.
for _module in (sys.modules[__name__], damage, headers, reading):
    register_pickle_by_value(_module)  # type: ignore[no-untyped-call]
