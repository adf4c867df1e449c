"""Try a job's handler on the next records, without leasing them.

A trial reads the records that a run would lease, without leasing them: nothing is written or acknowledged, and no
group is created. The handler runs on them in Spark, all its columns are computed, and its outcomes are checked as a
run checks them, and counted.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

from sharequeue.domain.names import plural
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.results.table import Shown, Table
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import Delivery, Lease
from sharequeue.groups.configs import GroupConfigs
from sharequeue.kafka.topics import Topics
from sharequeue.spark.handler import ACCEPT, OUTCOMES, call_handler
from sharequeue.spark.job import ShareGroupJob
from sharequeue.spark.leasing.group import living_topics
from sharequeue.spark.ordering.frames import without_order
from sharequeue.spark.outcomes.outcomes import SeenOutcomes, seen_of, without_outcome
from sharequeue.spark.reading.options import ReaderOptions
from sharequeue.spark.reading.plan import TopicPartition
from sharequeue.spark.reading.source import TopicSource, by_scan_or_offset
from sharequeue.spark.replays.offsets import ReplayedLogs, in_flight, logs_of, stand_ins
from sharequeue.spark.spark_jobs import uncache
from sharequeue.state import State

__all__ = ["Trial", "try_on"]

MOST_ERRORS = 5
"""The most failed records that are named."""
NO_ROW = "no row"
"""Shown instead of an outcome if the handler returned no row for a record."""


@dataclass(frozen=True, slots=True)
class Trial(Shown):
    """The result of a handler on some records."""

    group: str
    records: int
    outcomes: Mapping[str, int]
    """Records by outcome; `no row` are those that the handler returned no row for."""
    errors: tuple[str, ...]
    """The first records that were not accepted, with the handler's error."""
    seconds: float
    remark: str | None = None
    """Remarks: which records were used if a run would lease none, and what a run would do with records without a row
    or with an unknown outcome.
    """

    def table(self) -> Table:
        """Return a row for each outcome, and the first errors."""
        return Table(
            f"tried on {plural(self.records, 'record')} for group {self.group} in {self.seconds:,.1f} s: nothing was "
            "leased, written or acknowledged",
            ("outcome", "records"),
            list(self.outcomes.items()),
            (*self.errors, self.remark),
        )


def try_on(
    job: ShareGroupJob, records: int, settings: Settings, state: State, topics: Topics, spark: SparkSession
) -> Trial:
    """Run a job's handler on up to so many records that a run would lease now.

    If there are none, the last records of the topics are used instead, and `remark` is set. Raises ValueError for
    less than one record, UnknownTopicOrPartition, HandlerError, SparkNotReady, InvalidTimestamp, and what the
    handler raises.
    """
    if records < 1:
        raise ValueError(f"records is {records}: expected how many to try the handler on, 1 or more")
    began = time.monotonic()
    there = living_topics(topics, state, job.group, job.topics)
    configs = GroupConfigs.load(state.database, job.group)
    source = TopicSource(settings, state, topics, spark, ReaderOptions.of(job.reader_options), job.headers)
    leases, remark = _would_lease(
        job, records, state, logs_of(source, there, configs.isolation_level), configs
    )
    if not leases:
        return Trial(job.group, 0, {}, (), time.monotonic() - began, remark)
    seen, errors, count = by_scan_or_offset(partial(_handled, job, source, leases, configs))
    for lease in leases:
        without_outcome(lease, seen.get(lease.lease_id))
    counts = Counter[str]()
    for of_lease in seen.values():
        counts.update(
            {
                name: of_lease.outcomes[kind].count
                for name, kind in OUTCOMES.items()
                if kind in of_lease.outcomes
            }
        )
        counts.update({name: offsets.count for name, offsets in of_lease.unknown.items()})
    if without := count - counts.total():
        counts[NO_ROW] = without
    return Trial(
        job.group,
        count,
        dict(sorted(counts.items())),
        errors,
        time.monotonic() - began,
        "; ".join(each for each in (remark, *_of_a_run(job, counts)) if each) or None,
    )


def _handled(
    job: ShareGroupJob, source: TopicSource, leases: Sequence[Lease], configs: GroupConfigs, by_offset: bool
) -> tuple[dict[int, SeenOutcomes], tuple[str, ...], int]:
    """Return the outcomes of the leases' records by lease id, the first errors, and the number of records."""
    read = without_order(source.records(leases, by_offset=by_offset), configs)
    # Cached, so that every column is computed and each record is handled once.
    handled = call_handler(job.handler, read).cache()
    try:
        seen = seen_of(handled, leases)
        failed = handled.where(fn.col("outcome") != ACCEPT).dropDuplicates(["topic", "partition", "offset"])
        errors = (
            failed.orderBy("topic", "partition", "offset")
            .limit(MOST_ERRORS)
            .select(
                fn.concat(
                    fn.format_string("%s-%d offset %d: %s", "topic", "partition", "offset", "outcome"),
                    fn.coalesce(fn.concat(fn.lit(", "), fn.col("error")), fn.lit("")),
                )
            )
            .collect()
        )
        return seen, tuple(text for (text,) in errors), read.count()
    finally:
        uncache(read)


def _of_a_run(job: ShareGroupJob, counts: Mapping[str, int]) -> Iterator[str]:
    """Yield what a run would do with records that have no row, or an unknown outcome."""
    if none := counts.get(NO_ROW, 0):
        yield (
            f"a run would end with HandlerError: no row for {plural(none, 'record')}, and `without_row=` is not set"
            if job.without_row is None
            else f"a run would give the outcome {job.without_row} (`without_row=`) to {plural(none, 'record')}"
            " without a row"
        )
    if strange := sorted(counts.keys() - OUTCOMES.keys() - {NO_ROW}):
        yield f"a run would end with HandlerError: {strange[0]!r} is not one of {', '.join(OUTCOMES)}"


def _would_lease(
    job: ShareGroupJob, records: int, state: State, logs: ReplayedLogs, configs: GroupConfigs
) -> tuple[list[Lease], str | None]:
    """Return stand-ins for leases of the next records, spread over the partitions; and a remark if they are other
    records.
    """
    known = _deliverable(job, state, logs)
    if configs.auto_offset_reset == "earliest":
        known = {at: _fresh(logs.start(at), logs.end(at)) for at in logs.ends} | known
    remark = None
    if not any(known.values()):
        remark = "a run would lease nothing now: these are the last records of the topics"
        if not state.figures.describe(job.group):
            remark += (
                f". Group {job.group} has not begun, and begins at the end of the log "
                f"(share.auto.offset.reset={configs.auto_offset_reset}). In Dagster, its first run sets the configs "
                "of its defs.yaml"
            )
        known = {at: _fresh(max(logs.start(at), logs.end(at) - records), logs.end(at)) for at in logs.ends}
    # The shortest first: the others make up for the records that these lack.
    places = sorted(
        ((at, deliveries) for at, deliveries in known.items() if deliveries),
        key=lambda place: (sum(delivery.offsets.count for delivery in place[1]), place[0]),
    )
    taken: dict[TopicPartition, tuple[Delivery, ...]] = {}
    left = records
    for number, (at, deliveries) in enumerate(places):
        taken[at] = _first(deliveries, math.ceil(left / (len(places) - number)))
        left -= sum(delivery.offsets.count for delivery in taken[at])
    return stand_ins(job.group, taken, logs.isolation_level), remark


def _deliverable(
    job: ShareGroupJob, state: State, logs: ReplayedLogs
) -> dict[TopicPartition, list[Delivery]]:
    """Return what the state would deliver now, by partition: redelivered records first, then fresh ones."""
    again = [each for each in in_flight(state, job.group) if each.due]
    found: dict[TopicPartition, list[Delivery]] = {}
    for status in state.figures.describe(job.group):
        at = status.topic, status.partition
        if at in logs.ends:
            come_again = [Delivery(each.delivery_count + 1, each.offsets) for each in again if each.at == at]
            fresh = _fresh(max(status.speo, status.log_start), logs.end(at))
            found[at] = [] if status.paused_reason else [*come_again, *fresh]
    return found


def _fresh(first: int, end: int) -> list[Delivery]:
    return [Delivery(1, OffsetSet.of((first, end)))] if first < end else []


def _first(deliveries: list[Delivery], most: int) -> tuple[Delivery, ...]:
    """Return the first `most` offsets of some deliveries."""
    taken: list[Delivery] = []
    for delivery in deliveries:
        some = OffsetSet.from_offsets(islice(delivery.offsets.iter_offsets(), most))
        most -= some.count
        if some:
            taken.append(replace(delivery, offsets=some))
    return tuple(taken)
