"""Records in a list, and the state of their share groups in Postgres, as in production.

The list replaces only the broker: before each lease the state gets the log end offsets of the lists, as a run
gives it those of the broker. Everything else is the real engine.

`Queue.handle` runs a handler like a round of a run, but reads the outcomes from the handler's rows, not from files.
The modules of a run (`sharequeue.spark.outcomes`) decide what an offset without a row means, which outcomes are
refused and how long a released record waits. Features that need files or a broker are missing: sinks, summaries, and
the limit of failed records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.domain.errors import GroupIdNotFound
from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.domain.record_bytes import offsets_by_key
from sharequeue.domain.values import Acknowledged, Lease, LogSeen, SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.groups.heartbeats import ensure_group
from sharequeue.state import State

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

    from sharequeue.spark import Pipeline
    from sharequeue.spark.outcomes.outcomes import Acknowledgement

MAX_RECORDS = 500
"""The default number of records per lease: the same as in a poll of Kafka's consumer."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record of a topic, as a producer sends it."""

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass(frozen=True, slots=True)
class GivenUpRecord:
    """A record with a final failure: `rejected`, or `exhausted` if its deliveries were used up."""

    topic: str
    partition: int
    offset: int
    cause: str
    delivery_count: int
    record: Record


@dataclass(frozen=True, slots=True)
class Handled:
    """The handler's outcomes for the records of some leases, and the results of their acknowledgement."""

    rows: tuple[Row, ...]
    """The rows that the handler returned, with their outcome and error."""
    acknowledged: tuple[Acknowledged, ...]
    """The state's results, lease by lease."""

    @property
    def accepted(self) -> int:
        """The number of accepted records."""
        return sum(each.accepted for each in self.acknowledged)

    @property
    def released(self) -> int:
        """The number of records that were released and will be delivered again."""
        return sum(each.released for each in self.acknowledged)

    @property
    def given_up(self) -> int:
        """The number of records rejected or released for the last time: dead letters, if the group has any."""
        return sum(each.rejected + each.exhausted for each in self.acknowledged)


class Queue:
    """Share groups over lists of records. `state` and `database` are for code that needs them."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.state = State(database)
        self._logs: dict[tuple[str, int], list[Record]] = {}
        self._topics: dict[str, tuple[str, ...]] = {}

    def produce(
        self, topic: str, records: Sequence[Record | bytes | str], *, partition: int = 0
    ) -> OffsetSet:
        """Append records, or values alone, to a partition of a topic; return their offsets, which begin at 0.

        Raises TypeError if `records` is not a list of records, and ValueError for a negative partition.
        """
        if isinstance(records, str | bytes):
            raise TypeError(f"records is {records!r}: expected a list of records; put it in brackets")
        if partition < 0:
            raise ValueError(f"partition is {partition}: expected 0 or more")
        sent = [_record(each) for each in records]
        log = self._logs.setdefault((topic, partition), [])
        log += sent
        return OffsetSet.of((len(log) - len(sent), len(log))) if sent else EMPTY

    def group(
        self, group_id: str, topics: Sequence[str], configs: Mapping[str, str | int | bool] | None = None
    ) -> None:
        """Create a share group that reads these topics from offset 0 on, and set its configs by Kafka's names.

        Raises InvalidGroupId and InvalidConfig.
        """
        ensure_group(self.database, group_id)
        self._topics[group_id] = (topics,) if isinstance(topics, str) else tuple(topics)
        if configs:
            alter_group_configs(self.database, group_id, configs)

    def share_partitions(self, group_id: str) -> list[SharePartition]:
        """Return the share-partitions of a group that have records. Raises GroupIdNotFound."""
        topics = self._topics.get(group_id)
        if topics is None:
            raise GroupIdNotFound(
                f"Group {group_id} is not in this queue: call queue.group({group_id!r}, […]) first."
            )
        return [SharePartition(group_id, *at) for at in sorted(self._logs) if at[0] in topics]

    def lease(
        self,
        group_id: str,
        *,
        max_records: int = MAX_RECORDS,
        member_id: str = "test",
        lock_duration_ms: int | None = None,
    ) -> tuple[Lease, ...]:
        """Lease records as a run does: redelivered ones first, suspects in parts. Empty if there is nothing to lease.

        Raises GroupIdNotFound, and the state's errors.
        """
        there = self.share_partitions(group_id)
        self._observe(there)
        acquired = self.state.acquire(there, member_id, None, max_records, lock_duration_ms=lock_duration_ms)
        for refusal in acquired.refusals.values():
            raise refusal
        return acquired.leases

    def records(self, lease: Lease) -> Iterator[tuple[int, int, Record]]:
        """Yield offset, delivery count and record for each record of a lease, in the order of delivery counts."""
        log = self._logs[lease.share_partition.topic, lease.share_partition.partition]
        for delivery in lease.deliveries:
            for offset in delivery.offsets.iter_offsets():
                yield offset, delivery.delivery_count, log[offset]

    def handle(self, job: Pipeline, spark: SparkSession, *, max_records: int = MAX_RECORDS) -> Handled:
        """Lease, run the handler, and acknowledge by its outcomes, like one round of a run; write no files.

        A missing group is created with default configs. If the handler raises, its records are released like
        those of a run, and are redelivered in parts. Raises HandlerError, and the handler's errors.
        """
        if job.group not in self._topics:
            self.group(job.group, job.topics)
        return _handle(self, job, spark, max_records)

    def write_dead_letters(self, group_id: str) -> list[GivenUpRecord]:
        """Write the waiting dead letters in both phases, as the service does, and return them.

        A group has dead letters if it has the config `errors.deadletterqueue.topic.name`.
        """
        letters = []
        for at in self.share_partitions(group_id):
            log = self._logs[at.topic, at.partition]
            while batch := self.state.dead_letters.open(at, MAX_RECORDS):
                letters += [
                    GivenUpRecord(at.topic, at.partition, offset, run.cause, run.delivery_count, log[offset])
                    for run in batch.letters
                    for offset in run.offsets.iter_offsets()
                ]
                self.state.dead_letters.close(batch, keys=_keys_of(batch.offsets, log))
        return sorted(letters, key=lambda letter: (letter.topic, letter.partition, letter.offset))

    def advance(self, seconds: float) -> None:
        """Advance the clock of the database, by which locks expire and released records become available.

        Raises ValueError for a negative time.
        """
        if seconds < 0:
            raise ValueError(f"seconds is {seconds}: expected 0 or more, because the clock only goes forward")
        self.database.rows(
            sa.text(
                "select sharequeue.set_clock_offset("
                "coalesce((select amount from sharequeue.clock_offset), interval '0') + :more)"
            ),
            more=timedelta(seconds=seconds),
        )

    def _observe(self, share_partitions: Sequence[SharePartition]) -> None:
        """Record the log end offsets in the state, as a run does before it leases."""
        seen = []
        for at in share_partitions:
            end = len(self._logs[at.topic, at.partition])
            topic_id = f"id-of-{at.topic}"
            self.state.initialize(at, topic_id, 0, 1)
            seen.append(LogSeen(at, topic_id, 0, end, end))
        self.state.observe(seen)


def _keys_of(offsets: OffsetSet, log: Sequence[Record]) -> dict[UUID | None, OffsetSet]:
    """Return these offsets by the hash of their record's key."""
    return offsets_by_key((offset, log[offset].key) for offset in offsets.iter_offsets())


def _record(given: object) -> Record:
    """Convert a test's value into a record."""
    if isinstance(given, Record):
        return given
    if isinstance(given, str | bytes):
        return Record(given.encode() if isinstance(given, str) else given)
    raise TypeError(f"a record is {given!r}: expected bytes, a text, or a Record(value, key, headers)")


def _handle(queue: Queue, job: Pipeline, spark: SparkSession, max_records: int) -> Handled:
    """Lease up to `max_records`, run the handler on them, and acknowledge. Raises as `Queue.handle` does."""
    from sharequeue.spark.outcomes.acknowledging import acknowledge, to_send

    leases = queue.lease(job.group, max_records=max_records)
    try:
        rows, wanted = _outcomes(queue, job, spark, leases)
    except BaseException:
        queue.state.release(leases)
        raise
    acknowledged = tuple(acknowledge(queue.state, to_send(lease, wanted[lease.lease_id])) for lease in leases)
    return Handled(tuple(rows), acknowledged)


def _outcomes(
    queue: Queue, job: Pipeline, spark: SparkSession, leases: Sequence[Lease]
) -> tuple[list[Row], dict[int, Acknowledgement]]:
    from sharequeue.groups.configs import GroupConfigs
    from sharequeue.spark.handler import ACCEPT, call_handler
    from sharequeue.spark.ordering.cut import Rows, find_cut, rows_without
    from sharequeue.spark.ordering.frames import KeyOrder, Offered
    from sharequeue.spark.outcomes.outcomes import acknowledgements, seen_of

    if not leases:
        return [], {}
    lists = _Lists(_frame(queue, spark, leases, job.headers))
    order = KeyOrder.of(queue.state, leases, GroupConfigs.load(queue.database, job.group))
    offered = Offered(lists.all) if order is None else order.offered(lists.all, leases)
    handled = cut_rows = offered.with_held(call_handler(job.handler, offered.records)).cache()
    try:
        seen = seen_of(handled, leases)
        if order is not None:
            without = rows_without(lists, leases, seen, job.without_row or ACCEPT)
            cut = find_cut(order, leases, Rows.of(handled) | without)
            seen, cut_rows = cut.applied(seen), cut.made_in(handled)
        return cut_rows.collect(), acknowledgements(lists, leases, seen, {}, job.without_row)
    finally:
        handled.unpersist()


def _frame(queue: Queue, spark: SparkSession, leases: Sequence[Lease], headers: bool) -> DataFrame:
    """Return the records of leases, with the columns that a run gives to a handler."""
    from sharequeue.spark.reading.frame import RECORD_SCHEMA

    rows = [
        (
            lease.share_partition.topic,
            lease.share_partition.partition,
            offset,
            record.timestamp,
            0,
            record.key,
            record.value,
            list(record.headers) or None if headers else None,
            delivery_count,
            lease.lease_id,
        )
        for lease in leases
        for offset, delivery_count, record in queue.records(lease)
    ]
    return spark.createDataFrame(rows, RECORD_SCHEMA)


@dataclass(frozen=True, slots=True)
class _Lists:
    """Logs of leased records in lists: nothing is removed from them, and no offset is a gap."""

    all: DataFrame

    def records(self, leases: Sequence[Lease], *, by_offset: bool = False) -> DataFrame:
        wanted = [(lease.lease_id, offset) for lease in leases for offset in lease.offsets.iter_offsets()]
        some = self.all.sparkSession.createDataFrame(wanted, "lease_id long, offset long")
        return self.all.join(some, ["lease_id", "offset"], "left_semi")

    def log_starts(
        self, missing: Iterable[tuple[Lease, OffsetSet]], infos: Mapping[str, object]
    ) -> dict[SharePartition, int]:
        return {lease.share_partition: 0 for lease, _ in missing}

    def same_topics(self, names: Iterable[str], infos: Mapping[str, object]) -> object:
        return infos  # no topic can be created again

    def passes_over(self, leases: Sequence[Lease]) -> bool:
        return False

    def scanned(
        self, scan: object, isolation_level: str, only_for: str | None = None, *, by_offset: bool = False
    ) -> DataFrame:
        return self.all
