"""Run a pipeline's handler on leased records of a list, and acknowledge the outcomes, like a round of a run.

The outcomes are read from the handler's rows, not from files. The modules of a run (`sharequeue.spark.outcomes`)
decide what an offset without a row means, which outcomes are refused and how long a released record waits.
Features that need files or a broker are missing: sinks, summaries, and the limit of failed records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sharequeue.words.values import Acknowledged, Lease, SharePartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

    from sharequeue.spark import Pipeline
    from sharequeue.spark.outcomes.outcomes import Acknowledgement
    from sharequeue.testing.queue import Queue
    from sharequeue.words.offsets import OffsetSet


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


def handle(queue: Queue, job: Pipeline, spark: SparkSession, max_records: int) -> Handled:
    """Lease up to `max_records`, run the handler on them, and acknowledge. Raises as `Queue.handle` does."""
    from sharequeue.spark.outcomes.acknowledging import acknowledge

    leases = queue.lease(job.group, max_records=max_records)
    try:
        rows, wanted = _outcomes(queue, job, spark, leases)
    except BaseException:
        queue.state.release(leases)
        raise
    acknowledged = tuple(acknowledge(queue.state, lease, wanted[lease.lease_id], ()) for lease in leases)
    return Handled(tuple(rows), acknowledged)


def _outcomes(
    queue: Queue, job: Pipeline, spark: SparkSession, leases: Sequence[Lease]
) -> tuple[list[Row], dict[int, Acknowledgement]]:
    from sharequeue.spark.handler import call_handler
    from sharequeue.spark.outcomes.outcomes import acknowledgements, seen_of

    if not leases:
        return [], {}
    records = _frame(queue, spark, leases, job.headers)
    handled = call_handler(job.handler, records).cache()
    try:
        rows = handled.collect()
        return rows, acknowledgements(_Lists(records), leases, seen_of(handled, leases), {}, job.dropped)
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

    records: DataFrame

    def log_starts(
        self, missing: Iterable[tuple[Lease, OffsetSet]], infos: Mapping[str, object]
    ) -> dict[SharePartition, int]:
        return {lease.share_partition: 0 for lease, _ in missing}

    def same_topics(self, names: Iterable[str], infos: Mapping[str, object]) -> object:
        return infos  # no topic can be created again

    def passes_over(self, leases: Sequence[Lease]) -> bool:
        return False

    def scanned(self, scan: object, isolation_level: str, only_for: str | None = None) -> DataFrame:
        return self.records
