"""What would a job make of the next records?

A trial reads records that a run would lease, by plain reading: nothing is leased, written or acknowledged, and no
group is made. The handler runs on them in Spark, all its columns are computed, and its outcomes are counted.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from uuid import UUID

import sqlalchemy as sa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.groups.configs import GroupConfigs
from sharequeue.kafka.topics import Topics
from sharequeue.offsets import EMPTY, OffsetSet
from sharequeue.settings import Settings
from sharequeue.spark.contract import ACCEPT, KEPT_AS_GIVEN, OUTCOMES, HandlerError
from sharequeue.spark.job import ShareGroupJob
from sharequeue.spark.outcomes.handler_result import call_handler
from sharequeue.spark.reading.plan import TopicPartition
from sharequeue.spark.reading.source import Source
from sharequeue.spark.session import uncache
from sharequeue.spark.showing import Shown, Table
from sharequeue.state import State
from sharequeue.values import Delivery, Lease, SharePartition

__all__ = ["Trial", "try_on"]

MOST_ERRORS = 5
"""Failed records that are named."""
_NEVER = datetime.max.replace(tzinfo=UTC)
_At = tuple[str, int, int]
_Row = tuple[str, int, int, str, str | None, int | None]
"""Topic, partition, offset, outcome, error and lease of a row."""
NO_ROW = "no row"
"""Instead of an outcome, where the handler returned no row for a record."""


@dataclass(frozen=True, slots=True)
class Trial(Shown):
    """What a handler made of some records."""

    group: str
    records: int
    outcomes: Mapping[str, int]
    """Records by outcome; `no row` are those that the handler returned no row for."""
    errors: tuple[str, ...]
    """The first records that were not accepted, with what the handler says of them."""
    seconds: float
    remark: str | None = None
    """Which records these are, where a run would lease none; and what a run would do with records without a row or
    with an unknown outcome.
    """

    def table(self) -> Table:
        """Return a row for each outcome, and the first errors."""
        return Table(
            f"tried on {self.records:,} records for group {self.group} in {self.seconds:,.1f} s: nothing was leased, "
            "written or acknowledged",
            ("outcome", "records"),
            list(self.outcomes.items()),
            (*self.errors, self.remark),
        )


def try_on(
    job: ShareGroupJob, records: int, settings: Settings, state: State, topics: Topics, spark: SparkSession
) -> Trial:
    """Run a job's handler on up to so many records that a run would lease now.

    Where there are none, the last records of the topics take their place, and `remark` says so. Raises ValueError for
    less than one record, UnknownTopicOrPartition, HandlerError, SparkNotReady, and what the handler raises.
    """
    if records < 1:
        raise ValueError(f"records is {records}: expected how many to try the handler on, 1 or more")
    began = time.monotonic()
    topics.require(job.topics)
    configs = GroupConfigs.load(state.database, job.group)
    source = Source(
        settings,
        state,
        topics,
        spark,
        job.reader_options,
        job.headers,
        job.max_scans,
    )
    leases, remark = _would_lease(job, records, state, topics, configs)
    if not leases:
        return Trial(job.group, 0, {}, (), time.monotonic() - began, remark)
    read = source.records(leases)
    handled = call_handler(job.handler, read, job.unknown)
    try:
        # Kept, so that every column is computed and each record is handled once.
        rows = _outcomes(handled.cache())
        there = [tuple(row) for row in read.select("topic", "partition", "offset").collect()]
    finally:
        uncache(handled)
    _refuse_other_leases(rows, leases)
    outcomes = _agreed(rows)
    if strangers := sorted(outcomes.keys() - set(there), key=str):
        topic, partition, offset = strangers[0]
        raise HandlerError(
            f"the handler's result has a row of {topic}-{partition}, offset {offset}, which it did not get: "
            f"{KEPT_AS_GIVEN}"
        )
    counts = Counter(outcomes[at][0] if at in outcomes else NO_ROW for at in there)
    failed = sorted(at for at in outcomes if outcomes[at][0] != ACCEPT)
    return Trial(
        job.group,
        len(there),
        dict(sorted(counts.items())),
        tuple(_named(at, *outcomes[at]) for at in failed[:MOST_ERRORS]),
        time.monotonic() - began,
        "; ".join(each for each in (remark, *_of_a_run(job, counts)) if each) or None,
    )


def _outcomes(handled: DataFrame) -> Sequence[_Row]:
    rows = handled.select("topic", "partition", "offset", "outcome", fn.col("error"), "lease_id").collect()
    return [tuple(row) for row in rows]


def _refuse_other_leases(rows: Sequence[_Row], leases: Sequence[Lease]) -> None:
    """Raise HandlerError for a row under another lease_id, as a run does."""
    ids = {(at.share_partition.topic, at.share_partition.partition): at.lease_id for at in leases}
    for topic, partition, offset, _, _, lease_id in rows:
        if ids.get((topic, partition), lease_id) != lease_id or lease_id is None:
            raise HandlerError(
                f"the handler's result has a row of {topic}-{partition}, offset {offset}, with another lease_id than "
                f"it got: {KEPT_AS_GIVEN}"
            )


def _agreed(rows: Sequence[_Row]) -> dict[_At, tuple[str, str | None]]:
    """Return outcome and error by record. Raises HandlerError for two rows that do not agree, as a run does."""
    found: dict[_At, tuple[str, str | None]] = {}
    for topic, partition, offset, outcome, error, _ in rows:
        if found.setdefault((topic, partition, offset), (outcome, error))[0] != outcome:
            raise HandlerError(
                f"the handler gave offset {offset} of {topic}-{partition} more than one outcome: rows made from one "
                "record must agree on it"
            )
    return found


def _of_a_run(job: ShareGroupJob, counts: Mapping[str, int]) -> Iterator[str]:
    """What a run would do with records that have no row, or an outcome that is none."""
    if none := counts.get(NO_ROW, 0):
        yield (
            f"a run would end with HandlerError: {none:,} records have no row, and `dropped=` does not say what they "
            "get"
            if job.dropped is None
            else f"a run would give the {none:,} records without a row the outcome {job.dropped} (`dropped=`)"
        )
    if strange := sorted(counts.keys() - OUTCOMES.keys() - {NO_ROW}):
        yield f"a run would end with HandlerError: {strange[0]!r} is none of {', '.join(OUTCOMES)}"


def _named(at: tuple[str, int, int], outcome: str, error: str | None) -> str:
    topic, partition, offset = at
    return f"{topic}-{partition} offset {offset}: {outcome}" + (f", {error}" if error else "")


def _would_lease(
    job: ShareGroupJob, records: int, state: State, topics: Topics, configs: GroupConfigs
) -> tuple[list[Lease], str | None]:
    """Stand-ins for leases of the next records, spread over the partitions; and a word where these are others."""
    infos = topics.describe(job.topics)
    logs = {
        at: log
        for at, log in topics.offsets_of({topic: info.partitions for topic, info in infos.items()}).items()
        if log is not None
    }
    ends = {
        at: log.last_stable_offset if configs.isolation_level == "read_committed" else log.log_end
        for at, log in logs.items()
    }
    known = _deliverable(job, state, ends)
    if configs.auto_offset_reset == "earliest":
        known = {at: _fresh(log.log_start, ends[at]) for at, log in logs.items()} | known
    remark = None
    if not any(known.values()):
        remark = "a run would lease nothing now: these are the last records of the topics"
        known = {at: _fresh(max(log.log_start, ends[at] - records), ends[at]) for at, log in logs.items()}
    # The shortest first: what they have too little of is taken from the others.
    places = sorted(
        ((at, deliveries) for at, deliveries in known.items() if deliveries),
        key=lambda place: (sum(delivery.offsets.count for delivery in place[1]), place[0]),
    )
    leases: list[Lease] = []
    left = records
    for number, ((topic, partition), deliveries) in enumerate(places):
        taken = _first(deliveries, math.ceil(left / (len(places) - number)))
        if taken:
            at = SharePartition(job.group, topic, partition)
            leases.append(
                Lease(
                    -1 - number, at, 0, "trial", None, UUID(int=0), _NEVER, 0, taken, configs.isolation_level
                )
            )
            left -= leases[-1].offsets.count
    return leases, remark


def _deliverable(
    job: ShareGroupJob, state: State, ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, list[Delivery]]:
    """By partition, what the state would deliver now: records that come again, and then fresh ones."""
    again = state.database.rows(
        sa.text(
            "select s.topic, s.partition, f.delivery_count, cast(f.offsets as text) as offsets"
            " from sharequeue.share_partition_status s join sharequeue.in_flight_offsets f using (share_partition_id)"
            " where s.group_id = :group_id and f.state = 0"
            " and (f.not_before is null or f.not_before <= sharequeue.clock())"
            " order by lower(f.offsets)"
        ),
        group_id=job.group,
    )
    found: dict[TopicPartition, list[Delivery]] = {}
    for status in state.figures.describe(job.group):
        at = (status.topic, status.partition)
        if at in ends:
            come_again = [
                Delivery(row["delivery_count"] + 1, OffsetSet.parse(row["offsets"]))
                for row in again
                if (row["topic"], row["partition"]) == at
            ]
            fresh = _fresh(max(status.speo, status.log_start), ends[at])
            found[at] = [] if status.paused_reason else [*come_again, *fresh]
    return found


def _fresh(first: int, end: int) -> list[Delivery]:
    return [Delivery(1, OffsetSet.of((first, end)))] if first < end else []


def _first(deliveries: Sequence[Delivery], most: int) -> tuple[Delivery, ...]:
    """The first so many offsets of some deliveries."""
    taken: list[Delivery] = []
    for delivery in deliveries:
        kept = EMPTY
        for first, end in delivery.offsets.ranges:
            if most > 0:
                kept |= OffsetSet.of((first, min(end, first + most)))
                most -= min(end - first, most)
        if kept:
            taken.append(replace(delivery, offsets=kept))
    return tuple(taken)
