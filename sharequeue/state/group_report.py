"""What does a report on a whole share group say, now and over the last day?

Read only: the views of ``sql/functions/82_report_views`` and ``83_group_views``, and the history that
``Reports.record`` has written, as values. Pages, pictures and metadata are made of these elsewhere. What grows with
the number of share-partitions is bounded here: a report on a thousand of them is as long as one on fifty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from itertools import pairwise

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.offsets import OffsetSet
from sharequeue.state.figures import Figures
from sharequeue.values import DeliveryCount, SharePartitionStatus

STATES = ("available", "acquired", "acknowledged", "archiving", "archived")
"""What an offset in flight can be, by Kafka's numbers."""
HISTORY = timedelta(hours=24)
CAUSE_DAYS = 30
MOST_WINDOWS = 50
MOST_STUCK = 100


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """A share group in records, seconds, and records a second; the view ``group_figures``.

    ``finished_records`` ended in the last ``window_seconds``, an hour at most: since the first report in it, or since
    the group's share-partitions came to life. None is what is not known.
    """

    group_id: str
    share_partitions: int = 0
    lag: int = 0
    in_flight: int = 0
    available: int = 0
    acquired: int = 0
    archiving: int = 0
    waiting: int = 0
    delivery_complete_count: int = 0
    lost_records: int = 0
    accepted: int = 0
    rejected: int = 0
    exhausted: int = 0
    gap: int = 0
    leases: int = 0
    stuck_leases: int = 0
    oldest_age_seconds: float | None = None
    finished_records: int | None = None
    window_seconds: float | None = None
    throughput: float | None = None
    time_to_drain_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """The offsets in flight of one share-partition, [SPSO, SPEO), by state."""

    topic: str
    partition: int
    spso: int
    speo: int
    states: dict[str, OffsetSet] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StuckLease:
    """A lease that nobody brings to an end, and why; the view ``stuck_leases``."""

    lease_id: int
    topic: str
    partition: int
    member_id: str
    records: int
    held_seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class OldestRecord:
    """The oldest unfinished record of a share-partition; its age is None where no report has seen it yet."""

    topic: str
    partition: int
    oldest_offset: int
    oldest_state: str
    age_seconds: float | None


@dataclass(frozen=True, slots=True)
class CausesOfDay:
    """Dead letters of a group on one day (UTC), by cause."""

    day: date
    cause: str
    written_records: int
    dropped_records: int


@dataclass(frozen=True, slots=True)
class Moment:
    """A whole group at one report, in records. ``ended`` is how many had ended by then, ever."""

    at: datetime
    lag: int
    available: int
    acquired: int
    archiving: int
    ended: int


@dataclass(frozen=True, slots=True)
class GroupReport:
    """Everything that a report on one group shows."""

    at: datetime
    figures: GroupFigures
    statuses: Sequence[SharePartitionStatus] = ()
    moments: Sequence[Moment] = ()
    """Of the last 24 hours, oldest first."""
    delivery_counts: Sequence[DeliveryCount] = ()
    windows: Sequence[Window] = ()
    """Of the share-partitions that have most in flight, MOST_WINDOWS at most."""
    oldest: Sequence[OldestRecord] = ()
    stuck: Sequence[StuckLease] = ()
    """Those held longest, MOST_STUCK at most."""
    causes: Sequence[CausesOfDay] = ()
    """Of the last CAUSE_DAYS days."""

    def rates(self) -> list[tuple[datetime, float]]:
        """Records that ended a second: from each report to the next, and the last rate again where it ends."""
        found = [
            (earlier.at, max(0, later.ended - earlier.ended) / (later.at - earlier.at).total_seconds())
            for earlier, later in pairwise(self.moments)
        ]
        return [*found, (self.moments[-1].at, found[-1][1])] if found else []


_FIGURES = sa.text(
    "select group_id, share_partitions, lag, in_flight, available, acquired, archiving, waiting,"
    " delivery_complete_count, lost_records, accepted, rejected, exhausted, gap, leases, stuck_leases,"
    " oldest_age_seconds, finished_records, window_seconds, throughput, time_to_drain_seconds"
    " from sharequeue.group_figures where group_id = :group_id"
)
# The newest 300 or so: a report a minute for a day is more than a picture can show.
_MOMENTS = sa.text(
    "select h.at, h.lag, h.available, h.acquired, h.archiving, coalesce(e.ended, 0) as ended from ("
    "  select reported_at as at, sum(lag)::bigint as lag, sum(available)::bigint as available,"
    "   sum(acquired)::bigint as acquired, sum(archiving)::bigint as archiving,"
    "   row_number() over (order by reported_at desc) - 1 as back, count(*) over () as reports"
    "  from sharequeue.share_partition_reports"
    "  where group_id = :group_id and reported_at > sharequeue.clock() - cast(:history as interval)"
    "  group by reported_at) as h"
    " left join (select reported_at as at, sum(records)::bigint as ended from sharequeue.delivery_count_reports"
    "  where group_id = :group_id and reported_at > sharequeue.clock() - cast(:history as interval)"
    "  group by reported_at) as e using (at)"
    " where h.back % (1 + h.reports / 300) = 0 order by h.at"
)
_WINDOWS = sa.text(
    "select w.topic, w.partition, w.spso, w.speo, w.state, cast(w.offsets as text) as offsets"
    " from (select topic, partition from sharequeue.share_partition_status s"
    "  where group_id = :group_id and speo > spso and (cardinality(cast(:topics as text[])) = 0 or exists ("
    "   select 1 from unnest(cast(:topics as text[]), cast(:partitions as integer[])) as wanted (topic, partition)"
    "   where wanted.topic = s.topic and coalesce(wanted.partition, s.partition) = s.partition))"
    "  order by speo - spso desc, topic, partition limit :most) as m"
    " join sharequeue.in_flight_windows w using (topic, partition)"
    " where w.group_id = :group_id order by w.topic, w.partition, w.state"
)
_OLDEST = sa.text(
    "select topic, partition, oldest_offset, oldest_state, age_seconds from sharequeue.oldest_records"
    " where group_id = :group_id order by age_seconds desc nulls last, topic, partition"
)
_STUCK = sa.text(
    "select lease_id, topic, partition, member_id, records, held_seconds, reason from sharequeue.stuck_leases"
    " where group_id = :group_id order by held_seconds desc, lease_id limit :most"
)
_CAUSES = sa.text(
    "select day, cause, sum(written_records)::bigint as written_records,"
    " sum(dropped_records)::bigint as dropped_records from sharequeue.dead_letter_causes"
    " where group_id = :group_id and day > (sharequeue.clock() at time zone 'UTC')::date - cast(:days as integer)"
    " group by day, cause order by day, cause"
)


def read_figures(database: Database, group_id: str) -> GroupFigures:
    """Return the figures of a group; all zero where there is no such group."""
    rows = database.rows(_FIGURES, group_id=group_id)
    return GroupFigures(**rows[0]) if rows else GroupFigures(group_id)


def read_causes(database: Database, group_id: str) -> list[CausesOfDay]:
    """Return the dead letters of the last CAUSE_DAYS days (UTC), by day and cause."""
    return [CausesOfDay(**row) for row in database.rows(_CAUSES, group_id=group_id, days=CAUSE_DAYS)]


def read_moments(database: Database, group_id: str) -> list[Moment]:
    """Return a group at its reports of the last 24 hours, the oldest first; 300 or so at most."""
    return [Moment(**row) for row in database.rows(_MOMENTS, group_id=group_id, history=HISTORY)]


def read_windows(
    database: Database,
    group_id: str,
    wanted: Mapping[str, Sequence[int] | None] | None = None,
    most: int | None = MOST_WINDOWS,
) -> list[Window]:
    """Return the share-partitions that have most in flight, `most` at most; None is no bound.

    `wanted` are the topics, each with its partitions or with None for all of them; without it, every topic.
    """
    windows: dict[tuple[str, int], Window] = {}
    asked = [(topic, each) for topic, parts in (wanted or {}).items() for each in parts or (None,)]
    for row in database.rows(
        _WINDOWS,
        group_id=group_id,
        topics=[topic for topic, _ in asked],
        partitions=[each for _, each in asked],
        most=most,
    ):
        window = Window(row["topic"], row["partition"], row["spso"], row["speo"])
        window = windows.setdefault((window.topic, window.partition), window)
        window.states[row["state"]] = OffsetSet.parse(row["offsets"])
    return list(windows.values())


def read_stuck(database: Database, group_id: str) -> list[StuckLease]:
    """Return the stuck leases that are held longest, MOST_STUCK at most."""
    return [StuckLease(**row) for row in database.rows(_STUCK, group_id=group_id, most=MOST_STUCK)]


def read_report(database: Database, group_id: str) -> GroupReport:
    """Return everything that a report on a group shows, as of now by the database's clock."""
    (now,) = database.rows(sa.text("select sharequeue.clock() as at"))
    figures = Figures(database)
    return GroupReport(
        now["at"],
        read_figures(database, group_id),
        figures.describe(group_id),
        read_moments(database, group_id),
        figures.delivery_counts(group_id),
        read_windows(database, group_id),
        [OldestRecord(**row) for row in database.rows(_OLDEST, group_id=group_id)],
        read_stuck(database, group_id),
        read_causes(database, group_id),
    )
