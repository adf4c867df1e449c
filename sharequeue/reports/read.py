"""The figures of whole share groups, now and over the last day.

Read only: the views of ``sql/functions/82_report_views`` and ``83_group_views``, and the history that
``Reports.record`` has written, as values. Pages, pictures and metadata are made of these elsewhere. Lists that grow
with the number of share-partitions are limited here: a report on a thousand of them is as long as one on fifty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from itertools import pairwise

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.domain.figures import GroupFigures, SharePartitionStatus, column_list
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import DeliveryCount, LeaseRow
from sharequeue.reports.ages import Ages, read_ages
from sharequeue.reports.remarks import Remark, remarks_of
from sharequeue.state.figures import Figures

STATES = ("available", "acquired", "acknowledged", "archiving", "archived")
"""The states of an offset in flight, in the order of Kafka's numbers."""
HISTORY = timedelta(hours=24)
CAUSE_DAYS = 30
MOST_WINDOWS = 50
MOST_STUCK = 100


@dataclass(frozen=True, slots=True)
class OffsetWindow:
    """The offsets in flight of one share-partition, [SPSO, SPEO), by state."""

    topic: str
    partition: int
    spso: int
    speo: int
    states: dict[str, OffsetSet] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OldestRecord:
    """The oldest unfinished record of a share-partition; its age is None if no report has seen it yet."""

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
class ReportedMoment:
    """A group at one report, in records. ``ended`` is the number of ended records."""

    at: datetime
    lag: int
    available: int
    acquired: int
    archiving: int
    ended: int


@dataclass(frozen=True, slots=True)
class GroupReport:
    """All values that a report on one group shows."""

    at: datetime
    figures: GroupFigures
    statuses: Sequence[SharePartitionStatus] = ()
    moments: Sequence[ReportedMoment] = ()
    """Of the last 24 hours, oldest first."""
    delivery_counts: Sequence[DeliveryCount] = ()
    windows: Sequence[OffsetWindow] = ()
    """The share-partitions with most in flight, MOST_WINDOWS at most."""
    oldest: Sequence[OldestRecord] = ()
    stuck: Sequence[LeaseRow] = ()
    """The leases that were held longest, MOST_STUCK at most."""
    causes: Sequence[CausesOfDay] = ()
    """Of the last CAUSE_DAYS days."""
    remarks: Sequence[Remark] = ()

    def rates(self) -> list[tuple[datetime, float]]:
        """Return ended records per second, from each report to the next; the last rate is repeated at the end."""
        found = [
            (earlier.at, max(0, later.ended - earlier.ended) / (later.at - earlier.at).total_seconds())
            for earlier, later in pairwise(self.moments)
        ]
        return [*found, (self.moments[-1].at, found[-1][1])] if found else []


_FIGURES = sa.text(
    f"select {column_list(GroupFigures)} from sharequeue.group_figures"  # noqa: S608 - columns of ours
    " where group_id = any (cast(:groups as text[]))"
)
_OF_REPORTS = (
    "where group_id = :group_id and reported_at > sharequeue.clock() - cast(:history as interval)"
    " group by reported_at"
)
# About 300 reports: one a minute for a day is more than a picture can show. The highest lag is always one of them.
_MOMENTS = sa.text(
    "select h.at, h.lag, h.available, h.acquired, h.archiving, coalesce(e.ended, 0) as ended from ("  # noqa: S608
    "  select reported_at as at, sum(lag)::bigint as lag, sum(available)::bigint as available,"
    "   sum(acquired)::bigint as acquired, sum(archiving)::bigint as archiving,"
    "   row_number() over (order by reported_at desc) - 1 as back, count(*) over () as reports,"
    "   row_number() over (order by sum(lag) desc, reported_at) as height"
    f"  from sharequeue.share_partition_reports {_OF_REPORTS}) as h"
    " left join (select reported_at as at, sum(records)::bigint as ended"
    f"  from sharequeue.delivery_count_reports {_OF_REPORTS}) as e using (at)"
    " where h.back % (1 + h.reports / 300) = 0 or h.height = 1 order by h.at"
)
# Share-partitions named by topic and partition are read directly, without a search.
_NAMED = "unnest(cast(:topics as text[]), cast(:partitions as integer[])) as m (topic, partition)"
_LARGEST = (
    "(select topic, partition from sharequeue.share_partition_status s"
    "  where group_id = :group_id and speo > spso and (cardinality(cast(:topics as text[])) = 0 or exists ("
    "   select 1 from unnest(cast(:topics as text[]), cast(:partitions as integer[])) as wanted (topic, partition)"
    "   where wanted.topic = s.topic and coalesce(wanted.partition, s.partition) = s.partition))"
    "  order by speo - spso desc, topic, partition limit :most) as m"
)
_WINDOWS = (
    "select w.topic, w.partition, w.spso, w.speo, w.state, cast(w.offsets as text) as offsets from {chosen}"
    " cross join lateral (select * from sharequeue.in_flight_windows i where i.group_id = :group_id"
    "  and i.topic = m.topic and i.partition = m.partition offset 0) as w"
    " order by w.topic, w.partition, w.state"
)
_OLDEST = sa.text(
    f"select {column_list(OldestRecord)} from sharequeue.oldest_records"  # noqa: S608 - columns of ours
    " where group_id = :group_id order by age_seconds desc nulls last, topic, partition"
)
_CAUSES = sa.text(
    "select group_id, day, cause, sum(written_records)::bigint as written_records,"
    " sum(dropped_records)::bigint as dropped_records from sharequeue.dead_letter_causes"
    " where group_id = any (cast(:groups as text[]))"
    " and day > (sharequeue.clock() at time zone 'UTC')::date - cast(:days as integer)"
    " group by group_id, day, cause order by day, cause"
)


def figures_of_groups(database: Database, group_ids: Sequence[str]) -> dict[str, GroupFigures]:
    """Return the figures of those of these groups that exist."""
    rows = database.rows(_FIGURES, groups=list(group_ids))
    return {row["group_id"]: GroupFigures(**row) for row in rows}


def read_figures(
    database: Database,
    group_id: str,
    ages: Ages | None = None,
    first: Sequence[SharePartitionStatus] = (),
) -> GroupFigures:
    """Return the figures of a group; all are zero if there is no such group.

    With `ages`, the age of the oldest record is that of its timestamp, where it is known. `first` is what a first run
    of the group would find in topics without state.
    """
    found = figures_of_groups(database, [group_id]).get(group_id) or GroupFigures(group_id)
    if ages:
        oldest = max(age for age in (*ages.values(), found.oldest_age_seconds) if age is not None)
        found = replace(found, oldest_age_seconds=oldest)
    return replace(
        found,
        share_partitions=found.share_partitions + len(first),
        lag=found.lag + sum(each.lag for each in first),
    )


def causes_of_groups(database: Database, group_ids: Sequence[str]) -> dict[str, list[CausesOfDay]]:
    """Return the dead letters of the last CAUSE_DAYS days (UTC), by group, then by day and cause."""
    found: dict[str, list[CausesOfDay]] = {}
    for row in database.rows(_CAUSES, groups=list(group_ids), days=CAUSE_DAYS):
        of_day = CausesOfDay(row["day"], row["cause"], row["written_records"], row["dropped_records"])
        found.setdefault(row["group_id"], []).append(of_day)
    return found


def read_causes(database: Database, group_id: str) -> list[CausesOfDay]:
    """Return the dead letters of a group of the last CAUSE_DAYS days (UTC), by day and cause."""
    return causes_of_groups(database, [group_id]).get(group_id, [])


def read_moments(database: Database, group_id: str) -> list[ReportedMoment]:
    """Return a group at the reports of the last 24 hours, about 300 at most, oldest first."""
    rows = database.rows(_MOMENTS, group_id=group_id, history=HISTORY)
    return [ReportedMoment(**row) for row in rows]


def read_windows(
    database: Database,
    group_id: str,
    wanted: Mapping[str, Sequence[int] | None] | None = None,
    most: int | None = MOST_WINDOWS,
) -> list[OffsetWindow]:
    """Return the windows of the share-partitions with most in flight, `most` at most; None means no limit.

    `wanted` are the topics, each with its partitions or with None for all of them; without it, every topic. If
    `most` is None and all partitions are named, they are returned whatever they have in flight, at a cost that does
    not depend on the size of the group.
    """
    asked = [(topic, each) for topic, parts in (wanted or {}).items() for each in parts or (None,)]
    chosen = _NAMED if most is None and asked and all(each is not None for _, each in asked) else _LARGEST
    rows = database.rows(
        sa.text(_WINDOWS.format(chosen=chosen)),
        group_id=group_id,
        topics=[topic for topic, _ in asked],
        partitions=[each for _, each in asked],
        **({"most": most} if chosen is _LARGEST else {}),
    )
    windows: dict[tuple[str, int], OffsetWindow] = {}
    for row in rows:
        window = OffsetWindow(row["topic"], row["partition"], row["spso"], row["speo"])
        window = windows.setdefault((window.topic, window.partition), window)
        window.states[row["state"]] = OffsetSet.parse(row["offsets"])
    return list(windows.values())


def read_report(
    database: Database,
    group_id: str,
    settings: Settings | None = None,
    first: Sequence[SharePartitionStatus] = (),
) -> GroupReport:
    """Return everything that a report on a group shows, as of now by the database's clock.

    With `settings`, the ages of records are those of their timestamps, which are read from the broker. `first` is
    what a first run of the group would find in topics without state.
    """
    (now,) = database.rows(sa.text("select sharequeue.clock() as at"))
    figures = Figures(database)
    statuses = [*figures.describe(group_id), *first]
    ages = {} if settings is None else read_ages(settings, statuses, now["at"])
    oldest = [OldestRecord(**row) for row in database.rows(_OLDEST, group_id=group_id)]
    oldest = [
        replace(each, age_seconds=ages.get((each.topic, each.partition), each.age_seconds)) for each in oldest
    ]
    return GroupReport(
        now["at"],
        read_figures(database, group_id, ages, first),
        statuses,
        read_moments(database, group_id),
        figures.delivery_counts(group_id),
        read_windows(database, group_id),
        sorted(oldest, key=lambda each: -(each.age_seconds or 0)),
        figures.leases(group_id, stuck=True, most=MOST_STUCK),
        read_causes(database, group_id),
        remarks_of(database, group_id, statuses),
    )
