"""What do the pages read, so that a page costs the same however large a group is?

Only what is shown: some groups, some share-partitions, some leases, each query bounded by a number of rows. Sums over
a whole group are bounded by time (`looking`). ACLs are asked in the database, where the groups are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.offsets import OffsetSet
from sharequeue.state.group_report import GroupFigures, Window
from sharequeue.values import SharePartitionStatus

DAYS = 30
"""How far back dead letters are counted."""
LARGEST_STRIP = 10_000
"""Offsets of a window that is drawn beside others; a larger one has its own page."""
RUN = "dagster-run-"
"""What the client id of a member begins with that is a run of Dagster's."""


@dataclass(frozen=True, slots=True)
class Letters:
    """Dead letters of a group in the last DAYS days, and today (UTC)."""

    written: int = 0
    dropped: int = 0
    today: int = 0


@dataclass(frozen=True, slots=True)
class Remark:
    """What somebody has to act on, how many share-partitions of a group it is about, and the name of one of them."""

    group_id: str
    remark: str
    share_partitions: int
    first: str


@dataclass(frozen=True, slots=True)
class Holding:
    """A lease: who holds which records since when; the client id is None once the member is gone."""

    lease_id: int
    topic: str
    partition: int
    member_id: str
    client_id: str | None
    records: int
    first: int | None
    last: int | None
    highest_delivery_count: int | None
    acquired_at: datetime
    expires_at: datetime
    seconds_left: float


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group."""

    member_id: str
    client_id: str
    client_host: str
    rack_id: str | None
    member_epoch: int
    principal: str | None
    subscribed_topic_names: Sequence[str]
    share_partitions: int
    joined_at: datetime
    session_expires_at: datetime


# Whether ACLs apply is written down: where none do, nobody asks topic by topic.
_WHOLE = sa.text(
    "select g.group_id from unnest(cast(:groups as text[])) as g (group_id)"
    " where coalesce((select not s.acls_apply from sharequeue.group_settings s where s.group_id = g.group_id), false)"
    " or not exists (select from (select distinct topic from sharequeue.share_partitions p"
    "   where p.group_id = g.group_id union select t from sharequeue.members m, unnest(m.subscribed_topic_names) as t"
    "   where m.group_id = g.group_id offset 0) as of_group"
    "  where not 'DESCRIBE' = any (sharequeue.authorized_topic_operations(of_group.topic)))"
)
_FIGURES = sa.text(
    "select group_id, share_partitions, lag, in_flight, available, acquired, archiving, waiting,"
    " delivery_complete_count, lost_records, accepted, rejected, exhausted, gap, leases, stuck_leases,"
    " oldest_age_seconds, finished_records, window_seconds, throughput, time_to_drain_seconds"
    " from sharequeue.group_figures where group_id = any (cast(:groups as text[]))"
)
_LETTERS = sa.text(
    "select c.group_id, sum(c.written_records)::bigint as written, sum(c.dropped_records)::bigint as dropped,"
    " coalesce(sum(c.written_records) filter (where c.day = now.day), 0)::bigint as today"
    " from (select (sharequeue.clock() at time zone 'UTC')::date as day) as now, sharequeue.dead_letter_causes c"
    " where c.group_id = any (cast(:groups as text[])) and c.day > now.day - cast(:days as integer)"
    " group by c.group_id"
)
_REMARKS = sa.text(
    "select group_id, r.remark, count(*) as share_partitions, min(topic || '-' || partition) as first"
    " from sharequeue.share_partition_status s"
    " cross join lateral unnest(array[s.paused_reason, s.fault, s.held_reason,"
    " case when s.blocked_by in ('window', 'transaction', 'truncated', 'unknown') then s.blocked_reason end"
    " ]) as r (remark)"
    " where group_id = any (cast(:groups as text[])) and r.remark is not null"
    " group by group_id, r.remark order by group_id, first limit :most"
)
_WINDOWS = sa.text(
    "select w.topic, w.partition, w.spso, w.speo, w.state, cast(w.offsets as text) as offsets"
    " from unnest(cast(:topics as text[]), cast(:partitions as integer[])) as wanted (topic, partition)"
    " cross join lateral (select * from sharequeue.in_flight_windows i where i.group_id = :group_id"
    "  and i.topic = wanted.topic and i.partition = wanted.partition offset 0) as w"
    " order by w.topic, w.partition, w.state"
)
# The ids first, as one array: as a join, Postgres reads all share-partitions for each of them.
_HOLDINGS = sa.text(
    "with chosen as materialized (select l.lease_id, l.share_partition_id from sharequeue.all_leases l"
    "  where l.share_partition_id = any (array(select p.share_partition_id from sharequeue.share_partitions p"
    "   where p.group_id = :group_id and p.topic = coalesce(:topic, p.topic)"
    "   and p.partition = coalesce(cast(:partition as integer), p.partition)))"
    "  order by l.expires_at, l.lease_id limit :most)"
    " select h.lease_id, h.topic, h.partition, h.member_id, m.client_id, h.records, lower(h.offsets) as first,"
    " upper(h.offsets) - 1 as last, h.highest_delivery_count, h.acquired_at, h.expires_at, h.seconds_left"
    " from chosen join sharequeue.share_partitions sp using (share_partition_id)"
    " cross join lateral (select * from sharequeue.held_leases x where x.lease_id = chosen.lease_id"
    "  and x.group_id = sp.group_id and x.topic = sp.topic and x.partition = sp.partition offset 0) as h"
    " left join sharequeue.members m on m.group_id = :group_id and m.member_id = h.member_id"
    " order by h.expires_at, h.lease_id"
)
_MEMBERS = sa.text(
    "select m.member_id, m.client_id, m.client_host, m.rack_id, m.member_epoch, m.principal,"
    " m.subscribed_topic_names, m.joined_at,"
    " (select count(*) from sharequeue.assignments a where a.group_id = m.group_id and a.member_id = m.member_id)"
    " as share_partitions, m.session_expires_at"
    " from sharequeue.members m where m.group_id = :group_id order by m.member_id limit :most"
)
_HISTORY = sa.text(
    "select reported_at, lag from (select reported_at, lag, count(*) over () as reports,"
    "  row_number() over (order by reported_at desc) - 1 as back from sharequeue.share_partition_reports"
    "  where group_id = :group_id and topic = :topic and partition = :partition"
    "  and reported_at > sharequeue.clock() - interval '1 day') as h"
    " where back % (1 + reports / 300) = 0 order by reported_at"
)
_COUNT = sa.text("select count(*) as found from sharequeue.share_partitions where group_id = :group_id")
_PLACE = sa.text(
    "select count(*) as before from sharequeue.share_partitions where group_id = :group_id"
    " and (topic, partition) < (:topic, cast(:partition as integer))"
)


def whole(database: Database, group_ids: Sequence[str]) -> set[str]:
    """Return those of some groups of which the caller may look at all topics."""
    return {row["group_id"] for row in database.rows(_WHOLE, groups=list(group_ids))}


def figures(database: Database, group_ids: Sequence[str]) -> dict[str, GroupFigures]:
    """Return the figures of these groups."""
    found = database.rows(_FIGURES, groups=list(group_ids))
    return {row["group_id"]: GroupFigures(**row) for row in found}


def letters(database: Database, group_ids: Sequence[str]) -> dict[str, Letters]:
    """Return how many dead letters these groups have had; those that had none are left out."""
    found = database.rows(_LETTERS, groups=list(group_ids), days=DAYS)
    return {row["group_id"]: Letters(row["written"], row["dropped"], row["today"]) for row in found}


def remarks(database: Database, group_ids: Sequence[str], most: int) -> list[Remark]:
    """Return what somebody has to act on, by group."""
    return [Remark(**row) for row in database.rows(_REMARKS, groups=list(group_ids), most=most)]


def count(database: Database, group_id: str) -> int:
    """Return how many share-partitions a group has."""
    return int(database.rows(_COUNT, group_id=group_id)[0]["found"])


def place(database: Database, group_id: str, topic: str, partition: int) -> int:
    """Return how many share-partitions of a group come before one, by name."""
    return int(database.rows(_PLACE, group_id=group_id, topic=topic, partition=partition)[0]["before"])


def windows(
    database: Database, group_id: str, of: Sequence[SharePartitionStatus]
) -> dict[tuple[str, int], Window]:
    """Return what is in flight in these share-partitions, by topic and partition."""
    found: dict[tuple[str, int], Window] = {}
    rows = database.rows(
        _WINDOWS,
        group_id=group_id,
        topics=[each.topic for each in of],
        partitions=[each.partition for each in of],
    )
    for row in rows:
        at = (row["topic"], row["partition"])
        window = found.setdefault(at, Window(*at, row["spso"], row["speo"]))
        window.states[row["state"]] = OffsetSet.parse(row["offsets"])
    return found


def holdings(
    database: Database, group_id: str, most: int, topic: str | None = None, partition: int | None = None
) -> list[Holding]:
    """Return the leases of a group, or of one of its share-partitions, the soonest to lapse first."""
    rows = database.rows(_HOLDINGS, group_id=group_id, most=most, topic=topic, partition=partition)
    return [Holding(**row) for row in rows]


def members(database: Database, group_id: str, most: int) -> list[Member]:
    """Return the members of a group, by id."""
    return [Member(**row) for row in database.rows(_MEMBERS, group_id=group_id, most=most)]


def history(database: Database, group_id: str, topic: str, partition: int) -> list[tuple[datetime, float]]:
    """Return the lag of a share-partition at its reports of the last day, the oldest first; 300 or so at most."""
    rows = database.rows(_HISTORY, group_id=group_id, topic=topic, partition=partition)
    return [(row["reported_at"], float(row["lag"])) for row in rows]
