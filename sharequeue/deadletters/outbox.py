"""Write numbered batches of records to Kafka exactly once, also after a kill.

Dead letters and redrives use it, on the driver; an executor of Spark can, too: it gets the configuration of a client
and not the settings. Kafka's producer alone guarantees at least once. So:

1. Open the producer. The broker fences an older one of the same transactional id and aborts its open transaction.
2. Open a batch: its number and its offsets are durable in Postgres before anything is produced.
3. If an earlier writer has opened the batch: read the marker to see whether it has written it; where the marker is
   gone, look into the target itself.
4. Produce what is missing, and the marker, in one Kafka transaction: they become visible together or not at all. What
   does not fit into one, by bytes and by time, goes into the next. Records of one offset are never divided.
5. Close the batch in Postgres, and open the next.

A writer that dies leaves an open batch, and the next one starts at step 1. The order matters: read the state only
after fencing. The marker is an offset committed for a consumer group that has no other use: its offset is the number
of the batch, its metadata the batch's identity, the topic, and how far it was written. An `OutboxSource` defines what
is read, how a record is built, where it goes, and what happens to a record that cannot be written.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, Protocol, Self, TypeAlias, TypeVar

import confluent_kafka as kafka

from sharequeue.domain.offsets import MAX_OFFSET, OffsetSet
from sharequeue.domain.record_bytes import number_of
from sharequeue.kafka.headers import Header
from sharequeue.kafka.transactions import MarkedProducer, MarkerGroup, RecordsRefused

PRODUCED_STEP = 1_000
"""The step `producing` is called after this many records; in a smaller batch, after its half."""
TRANSACTION_BYTES = 64 * 1024 * 1024
"""A transaction is committed at this size, or when it is late (`MarkedProducer.is_late`), and what is left goes into
another one, so that each ends within its timeout."""

NOW = 0
"""The timestamp of a record that gets the time at which it is sent, as Kafka's client has it."""

BatchStep = Literal["initialised", "opened", "begun", "producing", "marked", "committed", "closed"]


class Fenced(Exception):
    """Another writer has taken over, or the transaction timed out. Read the state again."""


class Batch(Protocol):
    """Records that are written together, with a number."""

    @property
    def sequence(self) -> int:
        """Its number."""

    @property
    def identity(self) -> str:
        """The same for every attempt at this batch, and for no other batch."""

    @property
    def offsets(self) -> OffsetSet:
        """The offsets of its records."""

    @property
    def is_new(self) -> bool:
        """Whether it was opened just now, so that nothing of it can be written yet."""


B = TypeVar("B", bound=Batch)


Record: TypeAlias = tuple[
    int, str, int, bytes | None, bytes | None, list[Header] | dict[str, bytes | None], int, int
]
"""One record to write: its offset in the batch, topic, partition, key, value, headers, its size in bytes, about, and
its timestamp in milliseconds since 1970, or NOW. Several records may have one offset. A plain tuple, because making a
named one takes a quarter of the time of producing a letter."""


@dataclass(frozen=True, slots=True)
class Marker:
    """The broker's record of the last batch that was written from a partition."""

    sequence: int
    batch: str
    """The batch's identity."""
    topic: str = ""
    """The topic to which it was written, if all records went to the same one."""
    topic_id: str = ""
    through: int = -1
    """The offset up to which the batch was written."""

    @classmethod
    def parse(cls, at: kafka.TopicPartition) -> Self | None:
        """Parse the marker in a committed offset; return None if nothing is committed.

        An offset that another program committed, or whose metadata it truncated, becomes a marker that matches none
        of our batches.
        """
        if at.offset < 0:
            return None
        batch, topic, topic_id, through = [*(at.metadata or "").split(" "), "", "", "", ""][:4]
        number = number_of(through, MAX_OFFSET)
        return cls(int(at.offset), batch, topic, topic_id, -1 if number is None else number)

    def committed_at(self, topic: str, partition: int) -> kafka.TopicPartition:
        """Return the offset to commit, with the rest as its metadata."""
        metadata = f"{self.batch} {self.topic} {self.topic_id} {self.through}"
        return kafka.TopicPartition(topic, partition, self.sequence, metadata=metadata)

    def is_of(self, batch: Batch) -> bool:
        """Return whether the marker is of that batch."""
        return (self.sequence, self.batch) == (batch.sequence, batch.identity)

    def wrote_all_of(self, batch: Batch) -> bool:
        """Return whether the whole batch was written."""
        return self.is_of(batch) and self.through >= batch.offsets.end - 1


class OutboxSource(Protocol[B]):
    """One partition whose records are written in batches: the differences between dead letters and redrives."""

    @property
    def transactional_id(self) -> str:
        """The id that allows one writer at a time: the broker fences an older producer with the same id."""

    @property
    def producer(self) -> Mapping[str, Any]:
        """The producer's configuration, besides the client's."""

    @property
    def place(self) -> tuple[str, int]:
        """The topic and partition for which the marker is committed."""

    def open(self) -> B | None:
        """Return the batch to write next; None if none is left."""

    def marker(self, batch: B) -> Marker | None:
        """Return the marker of a batch before any record is written; None if it cannot be committed."""

    def written(self, batch: B) -> OffsetSet:
        """Return the offsets of a batch that are in the target: the marker that would show it may be gone."""

    def records(self, batch: B, wanted: OffsetSet) -> Iterable[Record]:
        """Yield the records for these offsets of a batch, ascending unless `part` cuts batches. Those of the same
        offset follow one another."""

    def part(self, batch: B, written: Callable[[], OffsetSet]) -> B:
        """Return the batch before the commit of a part of it: the same, or one that is cut to what is written, so
        that the rest comes with the next."""

    def refused(self, batch: B, reasons: Mapping[int, kafka.KafkaError]) -> None:
        """Leave records out of a batch, durably: they cannot be written. Or raise what ends the writing."""

    def close(self, batch: B) -> int:
        """Close a batch that the broker has confirmed; return its records, 0 if it was closed before."""

    def failure(self, error: kafka.KafkaException) -> Exception:
        """Return the exception for an error of the broker: `Fenced`, or a reason with what to do."""


@dataclass(frozen=True, slots=True)
class BatchDone:
    """The result of a closed batch, in records: written now, or already written by an earlier writer."""

    sequence: int
    written: int
    resumed: int


class Outbox(Generic[B]):
    """A writer for the batches of one source, with this client's configuration. `on_step` is called at each step."""

    def __init__(
        self,
        client: Mapping[str, Any],
        source: OutboxSource[B],
        markers: MarkerGroup,
        on_step: Callable[[BatchStep], None] = lambda step: None,
    ) -> None:
        self._client = client
        self._source = source
        self._markers = markers
        self._on_step = on_step
        self._known: tuple[str, OffsetSet] = "", OffsetSet()
        """The last batch of this writer, and what was absent of it before this writer began."""

    def write(self) -> Iterator[BatchDone]:
        """Write all waiting batches, one after the other; yield each when it is closed.

        Raises the exceptions of the source's `failure` and `refused`; the current batch is then still open, and a
        transaction is visible completely or not at all.
        """
        ended = False
        while not ended:
            with self._producer() as producer:
                self._on_step("initialised")
                ended = yield from self._write_with(producer)

    def _write_with(self, producer: MarkedProducer) -> Generator[BatchDone, None, bool]:
        """Write batches; return False if another producer has to go on, because some records were refused."""
        while (batch := self._source.open()) is not None:
            self._on_step("opened")
            marker = self._source.marker(batch)
            absent = batch.offsets if batch.is_new else self._absent(batch, marker) & batch.offsets
            self._known = batch.identity, absent
            try:
                batch = self._send(producer, batch, absent, marker)
            except RecordsRefused as refused:
                self._source.refused(batch, refused.reasons)
                return False
            closed = self._source.close(batch)
            self._on_step("closed")
            written = min((absent & batch.offsets).count, closed)
            yield BatchDone(batch.sequence, written, closed - written)
        return True

    def take_over(self) -> Marker | None:
        """Fence an active writer, abort the open transaction of a dead one, and return the last batch's marker."""
        with self._producer():
            return self._found()

    def _producer(self) -> MarkedProducer:
        source = self._source
        config = {**self._client, **source.producer}
        return MarkedProducer(config, source.transactional_id, self._markers, source.failure)

    def _found(self) -> Marker | None:
        try:
            return Marker.parse(self._markers.committed(*self._source.place))
        except kafka.KafkaException as error:
            raise self._source.failure(error) from error

    def _absent(self, batch: B, marker: Marker | None) -> OffsetSet:
        """Return the offsets of a batch that are not written yet; another writer may have written it."""
        found = None if marker is None else self._found()
        if marker is not None and found is not None and found.is_of(batch):
            # A topic that was deleted and created again has lost the records; one with another name still has them.
            lost = found.topic == marker.topic and found.topic_id != marker.topic_id
            return batch.offsets if lost else batch.offsets - OffsetSet.of((0, found.through + 1))
        if found is not None and found.sequence < batch.sequence:
            return batch.offsets
        identity, absent = self._known
        return absent if identity == batch.identity else batch.offsets - self._source.written(batch)

    def _send(self, producer: MarkedProducer, batch: B, absent: OffsetSet, marker: Marker | None) -> B:
        """Write the absent records; return the batch as it is then, because it may have been cut."""
        if not absent:
            return batch
        every = max(1, min(PRODUCED_STEP, absent.count // 2))
        size, sent = 0, list[int]()
        for number, record in enumerate(self._source.records(batch, absent), start=1):
            offset, topic, partition, key, value, headers, record_size, timestamp = record
            if sent and offset != sent[-1] and (size >= TRANSACTION_BYTES or producer.is_late):
                part = self._part(batch, absent, sent)
                if part is not batch:
                    self._commit(producer, marker, part.offsets.end - 1)
                    return part
                self._commit(producer, marker, sent[-1])
                # A batch in order may have any number of records.
                size = 0
                sent.clear()
            if not producer.in_transaction:
                producer.begin()
                self._on_step("begun")
            producer.produce(topic, partition, key, value, headers, offset, record_size, timestamp)
            sent.append(offset)
            if number % every == 0:
                self._on_step("producing")
            size += record_size
        if producer.in_transaction:
            self._commit(producer, marker, batch.offsets.end - 1)
        return batch

    def _part(self, batch: B, absent: OffsetSet, sent: Sequence[int]) -> B:
        return self._source.part(batch, lambda: (batch.offsets - absent) | OffsetSet.from_offsets(sent))

    def _commit(self, producer: MarkedProducer, marker: Marker | None, through: int) -> None:
        if marker is not None:
            producer.mark(replace(marker, through=through).committed_at(*self._source.place))
            self._on_step("marked")
        producer.commit()
        self._on_step("committed")
