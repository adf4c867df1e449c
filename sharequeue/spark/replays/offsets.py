"""Find the offsets of the log that a replay selects.

By time: a producer may set any timestamps, so they may be out of order. The broker returns the first offset whose
record is at or after a time, and no wanted record is before it. There is no such bound for the end: a record of the
window may have any later offset. So the log is read from there to its end, once for many windows, and filtered by
timestamp. Records that retention has removed cannot be replayed: the selection is refused, or they are left out and
named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from uuid import UUID

import sqlalchemy as sa
from pyspark.sql import Column
from pyspark.sql import functions as fn

from sharequeue.domain.errors import (
    BrokerNotAvailable,
    InvalidRequest,
    OffsetOutOfRange,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.domain.values import Delivery, Lease, SharePartition
from sharequeue.kafka.topics import LogOffsets, TopicInfo, is_same
from sharequeue.outputs.manifest import ELSEWHERE
from sharequeue.spark.job import ShareGroupJob
from sharequeue.spark.outcomes.offset_sets import OffsetGroup, reduce_to_offset_sets
from sharequeue.spark.output.manifest import read_counted
from sharequeue.spark.reading.plan import TopicPartition
from sharequeue.spark.reading.source import TopicSource, by_scan_or_offset
from sharequeue.spark.replays.selection import TimeWindow
from sharequeue.state import State

WINDOWS_AT_ONCE = 100
"""The most windows of one pass over the log."""
MOST_NAMED = 5
"""The most topic-partitions that an error names."""
_IN_FLIGHT = sa.text(
    "select s.topic, s.partition, f.delivery_count, cast(f.offsets as text) as offsets,"
    " f.state = 0 and (f.not_before is null or f.not_before <= sharequeue.clock()) as due"
    " from sharequeue.share_partition_status s join sharequeue.in_flight_offsets f using (share_partition_id)"
    " where s.group_id = :group_id and f.state in (0, 1) order by lower(f.offsets)"
)
_NEVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ReplayedLogs:
    """The logs of a job's topics as they are when a replay begins."""

    infos: Mapping[str, TopicInfo]
    ends: Mapping[TopicPartition, LogOffsets]
    isolation_level: str

    def start(self, at: TopicPartition) -> int:
        """Return the log start."""
        return self.ends[at].log_start

    def end(self, at: TopicPartition) -> int:
        """Return the log end for this reader."""
        log = self.ends[at]
        return log.last_stable_offset if self.isolation_level == "read_committed" else log.log_end


@dataclass(frozen=True, slots=True)
class ChosenRecords:
    """The records of one replay: their offsets by topic-partition."""

    offsets: Mapping[TopicPartition, OffsetSet]
    missing: tuple[str, ...]
    scanned: int


def logs_of(source: TopicSource, topics: Iterable[str], isolation_level: str) -> ReplayedLogs:
    """Return the log starts and log ends of these topics. Raises UnknownTopicOrPartition, and BrokerNotAvailable also
    for a partition without a leader.
    """
    infos = source.topics.require(topics)
    ends = {}
    for topic, info in sorted(infos.items()):
        logs = source.topics.offsets(topic)
        for partition in range(info.partitions):
            if partition not in logs:
                raise BrokerNotAvailable(f"{topic}-{partition} has no leader: its records cannot be read.")
            ends[topic, partition] = logs[partition]
    return ReplayedLogs(infos, ends, isolation_level)


def by_time(
    source: TopicSource,
    job: ShareGroupJob,
    logs: ReplayedLogs,
    windows: Sequence[TimeWindow],
    allow_missing: bool,
) -> list[ChosenRecords]:
    """Return the records of each window. Raises OffsetOutOfRange if retention has removed records of a window, unless
    they may be missing.
    """
    chosen: list[ChosenRecords] = []
    lefts = _first_offsets(source, logs, 0)
    for at in range(0, len(windows), WINDOWS_AT_ONCE):
        some = windows[at : at + WINDOWS_AT_ONCE]
        missing = [_removed(source, logs, window, lefts, allow_missing) for window in some]
        earliest = min(some, key=lambda window: window.since)
        spans = _spans(logs, _first_offsets(source, logs, earliest.since_ms))
        found: list[dict[TopicPartition, OffsetSet]] = [{} for _ in some]
        if spans:
            # Windows may overlap, so a record has the numbers of all its windows.
            numbers = [fn.when(_inside(window), fn.lit(str(number))) for number, window in enumerate(some)]
            leases = first_deliveries(job.group, spans, logs.isolation_level)
            for (topic, partition, inside), offsets, _ in by_scan_or_offset(
                partial(_in_windows, source, leases, numbers)
            ):
                for number in inside.split(","):
                    place = found[int(number)]
                    place[topic, partition] = place.get((topic, partition), EMPTY) | offsets
        scanned = sum(some.count for some in spans.values())
        chosen += [
            ChosenRecords(each, tuple(gone), scanned) for each, gone in zip(found, missing, strict=True)
        ]
    return chosen


def by_offsets(
    source: TopicSource,
    job: ShareGroupJob,
    logs: ReplayedLogs,
    offsets: Mapping[TopicPartition, OffsetSet],
    allow_missing: bool,
) -> ChosenRecords:
    """Return the records at these offsets. Raises UnknownTopicOrPartition for a partition that the job does not read,
    OffsetOutOfRange for offsets outside the log, unless those below its start may be missing.
    """
    spans: dict[TopicPartition, OffsetSet] = {}
    gone: list[str] = []
    for at, some in sorted(offsets.items()):
        if at not in logs.ends:
            raise UnknownTopicOrPartition(
                f"Group {job.group} reads {', '.join(job.topics)}: there is no {at[0]}-{at[1]} in them."
            )
        if some.end > logs.end(at):
            raise OffsetOutOfRange(
                f"Offset {some.end - 1} of {at[0]}-{at[1]} is not in the log, which ends at {logs.end(at)}."
            )
        inside = some & OffsetSet.of((logs.start(at), some.end)) if logs.start(at) < some.end else EMPTY
        if lost := some - inside:
            gone.append(
                f"{at[0]}-{at[1]}: {lost.count:,} offsets from {lost.first} on lie before the log start "
                f"{logs.start(at)}"
            )
        if inside:
            spans[at] = inside
    _refuse("Retention has removed records", gone, allow_missing)
    found: dict[TopicPartition, OffsetSet] = {}
    if spans:
        leases = first_deliveries(job.group, spans, logs.isolation_level)
        for (topic, partition), some, _ in by_scan_or_offset(partial(_there, source, leases)):
            found[topic, partition] = some
    return ChosenRecords(found, tuple(gone), sum(some.count for some in spans.values()))


def _in_windows(
    source: TopicSource, leases: Sequence[Lease], numbers: Sequence[Column], by_offset: bool
) -> Sequence[OffsetGroup]:
    """Return the offsets by topic, partition and the numbers of their windows, of records that have any."""
    records = source.records(leases, by_offset=by_offset)
    wanted = records.withColumn("windows", fn.concat_ws(",", *numbers)).filter("windows <> ''")
    return reduce_to_offset_sets(wanted, "topic", "partition", "windows")


def _there(source: TopicSource, leases: Sequence[Lease], by_offset: bool) -> Sequence[OffsetGroup]:
    """Return the offsets of these leases that are in the log, by topic and partition."""
    return reduce_to_offset_sets(source.records(leases, by_offset=by_offset), "topic", "partition")


def accepted_by(
    source: TopicSource, job: ShareGroupJob, lease_ids: Sequence[int]
) -> dict[TopicPartition, OffsetSet]:
    """Return the offsets that these leases had accepted, from the files that count.

    Raises InvalidRequest for a lease without counted output, and for one whose rows are not in files; UnknownTopicId
    for a lease of a deleted topic.
    """
    counted = {row.lease_id: row for row in source.state.outputs.counted(job.group, job.sink)}
    unknown = [str(at) for at in lease_ids if at not in counted]
    if unknown:
        raise InvalidRequest(
            f"No output of lease {', '.join(unknown[:MOST_NAMED])} counts in output {job.sink} of group {job.group}: "
            "the lease was not acknowledged, or belongs to another group. The tag `sharequeue/leases` of a run has "
            "its leases."
        )
    rows = [counted[at] for at in lease_ids if counted[at].records]
    if elsewhere := next((row for row in rows if row.location.startswith(ELSEWHERE)), None):
        raise InvalidRequest(
            f"The rows of lease {elsewhere.lease_id} are not in files, but in "
            f"{elsewhere.location.removeprefix(ELSEWHERE)}: give offsets or a time instead."
        )
    if not rows:
        return {}
    now = source.topics.describe({row.topic for row in rows})
    for row in rows:
        if not is_same(now, row.topic, row.topic_id):
            raise UnknownTopicId(
                f"Lease {row.lease_id} belongs to a topic {row.topic!r} that was deleted or recreated since: its "
                "records no longer exist."
            )
    folders = sorted({row.location for row in rows})
    accepted = read_counted(source.spark, folders).filter(
        fn.col("lease_id").isin([row.lease_id for row in rows])
    )
    return {
        (topic, partition): offsets
        for (topic, partition), offsets, _ in reduce_to_offset_sets(accepted, "topic", "partition")
    }


@dataclass(frozen=True, slots=True)
class InFlight:
    """Records between SPSO and SPEO that the group has not finished."""

    at: TopicPartition
    offsets: OffsetSet
    delivery_count: int
    due: bool
    """Whether they may be delivered now."""


def in_flight(state: State, group: str) -> list[InFlight]:
    """Return the available and the acquired records of a group that were leased before, by their first offset."""
    return [
        InFlight(
            (row["topic"], row["partition"]),
            OffsetSet.parse(row["offsets"]),
            row["delivery_count"],
            row["due"],
        )
        for row in state.database.rows(_IN_FLIGHT, group_id=group)
    ]


def first_deliveries(
    group: str, offsets: Mapping[TopicPartition, OffsetSet], isolation_level: str
) -> list[Lease]:
    """Return stand-ins for leases of these offsets, as delivered for the first time."""
    return stand_ins(
        group, {at: [Delivery(1, some)] for at, some in offsets.items() if some}, isolation_level
    )


def stand_ins(
    group: str, deliveries: Mapping[TopicPartition, Sequence[Delivery]], isolation_level: str
) -> list[Lease]:
    """Return stand-ins for leases of these deliveries. Their ids are below 0, which no real lease has."""
    return [
        Lease(
            -1 - number,
            SharePartition(group, topic, partition),
            0,
            "",
            None,
            UUID(int=0),
            _NEVER,
            0,
            tuple(some),
            isolation_level,
        )
        for number, ((topic, partition), some) in enumerate(sorted(deliveries.items()))
        if some
    ]


def refuse_changed(
    source: TopicSource, logs: ReplayedLogs, missing: Mapping[TopicPartition, OffsetSet]
) -> None:
    """Raise UnknownTopicId when a topic was deleted or recreated since the replay began, and OffsetOutOfRange when
    retention has removed records that are `missing` now.
    """
    now = source.topics.describe(logs.infos)
    for name, info in logs.infos.items():
        if not is_same(now, name, info.topic_id):
            raise UnknownTopicId(
                f"Topic {name!r} was deleted or recreated while its records were replayed: nothing was kept."
            )
    for (topic, partition), some in missing.items():
        log = source.topics.offsets(topic).get(partition) if some else None
        if log is not None and some.first < log.log_start:
            raise OffsetOutOfRange(
                f"Retention has removed records of {topic}-{partition} below offset {log.log_start} while they were "
                "replayed: nothing was kept. Replay again."
            )


def _inside(window: TimeWindow) -> Column:
    return fn.expr(
        f"timestamp >= timestamp_millis({window.since_ms}) and timestamp < timestamp_millis({window.until_ms})"
    )


def _first_offsets(
    source: TopicSource, logs: ReplayedLogs, since_ms: int
) -> dict[TopicPartition, int | None]:
    """Return the first offset at or after a time in each partition, None if there is none."""
    found: dict[TopicPartition, int | None] = {}
    for topic, info in logs.infos.items():
        firsts = source.topics.offsets_for_times(topic, max(0, since_ms))
        for partition in range(info.partitions):
            if partition not in firsts:
                raise BrokerNotAvailable(f"{topic}-{partition} has no leader: its records cannot be found.")
            found[topic, partition] = firsts[partition]
    return found


def _spans(
    logs: ReplayedLogs, firsts: Mapping[TopicPartition, int | None]
) -> dict[TopicPartition, OffsetSet]:
    return {
        at: OffsetSet.of((first, logs.end(at)))
        for at, first in firsts.items()
        if first is not None and first < logs.end(at)
    }


def _removed(
    source: TopicSource,
    logs: ReplayedLogs,
    window: TimeWindow,
    lefts: Mapping[TopicPartition, int | None],
    allow_missing: bool,
) -> list[str]:
    """Return a text naming the partitions from which retention may have removed records of this window, or refuse
    them. `lefts` has the first remaining record of each partition.

    It has removed none if the first remaining record is before the window. With timestamps out of order, a record of
    the window may have been removed before that one; this cannot be detected.
    """
    shortened = sorted(at for at in logs.ends if logs.start(at) > 0)
    firsts = _first_offsets(source, logs, window.since_ms) if shortened else {}
    named = [
        f"{topic}-{partition}: its log starts at offset {logs.start((topic, partition))}"
        for topic, partition in shortened
        if firsts[topic, partition] == lefts[topic, partition]
    ]
    _refuse(f"Retention has removed records, perhaps of {window}", named, allow_missing)
    return named


def _refuse(what: str, gone: Sequence[str], allow_missing: bool) -> None:
    if gone and not allow_missing:
        more = "; …" if len(gone) > MOST_NAMED else ""
        raise OffsetOutOfRange(
            f"{what}: {'; '.join(gone[:MOST_NAMED])}{more}. Nothing was replayed. To replay what is left, allow "
            "missing records."
        )
