"""The journal of a share-partition, and the check that replaying it gives the current state.

The journal corresponds to Kafka's share-group state topic: every change of state is a row (ShareUpdate), written by
the database in the change's own transaction. A snapshot is written from time to time and holds the complete state
(ShareSnapshot), so that replay need not start at the beginning. This module reads the journal, takes and checks
snapshots, and keeps it short: one partition per day, created ahead and dropped after the retention, with rows per day
kept for the reports. The meaning of a row is documented at the table, in ``sql/migrations/0100_baseline.sql``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from sharequeue.database import Database
from sharequeue.database.sqlstates import LOCK_NOT_AVAILABLE, sqlstate
from sharequeue.domain.errors import first_line
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import SharePartition
from sharequeue.state.rows import share_partition_name

__all__ = [
    "Change",
    "Day",
    "DayOutcome",
    "DueDay",
    "Journal",
    "JournalPartition",
    "JournalUpkeep",
    "Replay",
    "ReplayedBatch",
    "ReplayedLease",
    "Snapshot",
]

UPDATES_PER_SNAPSHOT = 500
"""Kafka's default of ``share.coordinator.snapshot.update.records.per.snapshot``."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A possible start of a replay: the journal id of its first row, and its time."""

    journal_id: int
    taken_at: datetime


@dataclass(frozen=True, slots=True)
class Change:
    """One row of the journal: the state after the change. `values` holds the columns that its kind uses."""

    journal_id: int
    at: datetime
    kind: str
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReplayedBatch:
    """A row of in-flight state: a batch in one state, or one state in a batch that was split."""

    first_offset: int
    last_offset: int
    part: int
    state: int
    delivery_count: int
    lease_id: int | None
    isolate: int | None
    not_before: datetime | None
    cause: str | None
    offsets: OffsetSet


@dataclass(frozen=True, slots=True)
class ReplayedLease:
    """A lease as granted or last renewed. Durations in milliseconds."""

    lease_id: int
    member_id: str
    member_epoch: int
    token: UUID
    lock_duration_ms: int
    acquired_at: datetime
    locked_at: datetime
    expires_at: datetime
    fan_out: bool
    own_lock_duration: bool
    read_committed: bool | None
    """None for a lease acquired before the journal had this value."""


@dataclass(frozen=True, slots=True)
class Replay:
    """The state of one share-partition at one point of its journal; offsets, SPEO exclusive."""

    spso: int
    speo: int
    delivery_complete_count: int
    state_epoch: int
    status: str
    paused_reason: str | None
    batches: tuple[ReplayedBatch, ...]
    leases: tuple[ReplayedLease, ...]
    outcomes: dict[tuple[str, int], int]
    """Ended records by outcome and delivery count, except those accepted at their first delivery."""


@dataclass(frozen=True, slots=True)
class JournalPartition:
    """One day of the journal (UTC) and its size on disk, indexes included, in bytes."""

    day: date
    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Day:
    """One share-partition on one day (UTC), counted from the journal. Records, offsets, rows."""

    day: date
    topic: str
    partition: int
    updates: int
    snapshots: int
    leases: int
    entered: int
    accepted_first: int
    lost_records: int
    highest_delivery_count: int
    spso: int
    speo: int
    delivery_complete_count: int
    state_epoch: int


@dataclass(frozen=True, slots=True)
class DayOutcome:
    """Records of one share-partition that ended with one outcome on one day (UTC), by delivery count. Records
    accepted at their first delivery are not included: they are a `Day`'s ``accepted_first``."""

    day: date
    topic: str
    partition: int
    outcome: str
    delivery_count: int
    records: int


@dataclass(frozen=True, slots=True)
class DueDay:
    """A day (UTC) of the journal that is older than the retention, and its number of rows."""

    day: date
    rows: int


@dataclass(frozen=True, slots=True)
class JournalUpkeep:
    """The result of one maintenance round of the journal."""

    snapshots: int = 0
    made: tuple[date, ...] = ()
    rolled_up: tuple[date, ...] = ()
    dropped: tuple[date, ...] = ()
    waiting: str | None = None
    """Why a partition could not be created or dropped now; the next round tries again."""


_ID = sa.text(
    "select share_partition_id from sharequeue.share_partitions"
    " where group_id = :group_id and topic = :topic and partition = :partition"
)
_REPLAYED_SHARE_PARTITION = sa.text(
    "select spso, speo, delivery_complete_count, state_epoch, status, paused_reason"
    " from sharequeue.replay_share_partition(:id, :snapshot, cast(:until as bigint))"
)
_REPLAYED_BATCHES = sa.text(
    "select * from sharequeue.replay_batches(:id, :snapshot, cast(:until as bigint)) order by first_offset, part"
)
_REPLAYED_LEASES = sa.text(
    "select * from sharequeue.replay_leases(:id, :snapshot, cast(:until as bigint)) order by lease_id"
)
_REPLAYED_OUTCOMES = sa.text(
    "select * from sharequeue.replay_outcomes(:id, :snapshot, cast(:until as bigint))"
)
# A look at the index of each day's partition, for each share-partition of the group.
_DAYS_WITH_FIGURES = sa.text(
    "select day from sharequeue.daily_rollups where group_id = :group_id"
    " union"
    " select d.day from sharequeue.journal_days() as d (day)"
    " where d.day < cast(sharequeue.clock() at time zone 'UTC' as date) and exists ("
    "  select from sharequeue.share_partitions sp join sharequeue.journal j using (share_partition_id)"
    "  where sp.group_id = :group_id and j.at >= cast(d.day as timestamp) at time zone 'UTC'"
    "  and j.at < cast(d.day + 1 as timestamp) at time zone 'UTC')"
    " order by day"
)


_MAKE_PARTITIONS = sa.text("select sharequeue.make_journal_partitions(:ahead) as result")
_ROLL_UP = sa.text("select sharequeue.roll_up_due_days() as result")
_DROP_PARTITION = sa.text("select sharequeue.drop_journal_partition(:retention) as result")
_CLEAR_OTHER = sa.text("select sharequeue.clear_other_journal(:retention) as result")
_DUE_DAYS = sa.text(
    "select d.day, (select count(*) from sharequeue.journal j"
    "  where j.at >= cast(d.day as timestamp) at time zone 'UTC'"
    "  and j.at < cast(d.day + 1 as timestamp) at time zone 'UTC') as rows"
    " from sharequeue.journal_days() as d (day)"
    " where cast(d.day + 1 as timestamp) at time zone 'UTC' <= sharequeue.clock() - cast(:retention as interval)"
    " order by d.day"
)


class Journal:
    """The journal of one database. Safe to share between threads."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def snapshots(self, at: SharePartition) -> list[Snapshot]:
        """Return the snapshots from which a replay may start, latest first."""
        rows = self._database.rows(
            sa.text("select * from sharequeue.snapshots(cast(:id as bigint))"), id=self._id(at)
        )
        return [Snapshot(**row) for row in rows]

    def changes(self, at: SharePartition, after: int = 0, limit: int = 1000) -> list[Change]:
        """Return the changes of a share-partition after a journal id, in order, at most ``limit`` rows."""
        rows = self._database.rows(
            sa.text(
                "select journal_id, at, kind, jsonb_strip_nulls(to_jsonb(j)) as values from sharequeue.journal j"
                " where j.share_partition_id = :id and j.journal_id > :after order by j.journal_id limit :limit"
            ),
            id=self._id(at),
            after=after,
            limit=limit,
        )
        head = ("journal_id", "share_partition_id", "at", "kind")
        return [
            Change(
                row["journal_id"],
                row["at"],
                row["kind"],
                {name: value for name, value in row["values"].items() if name not in head},
            )
            for row in rows
        ]

    def leases_of(self, group_id: str, member_id: str, since: datetime) -> list[int]:
        """Return the leases that a member of a group was granted since a time."""
        rows = self._database.rows(
            sa.text(
                "select distinct j.lease_id from sharequeue.journal j"
                " join sharequeue.share_partitions sp using (share_partition_id) where sp.group_id = :group_id"
                " and j.member_id = :member_id and j.at >= :since and j.lease_id is not null"
            ),
            group_id=group_id,
            member_id=member_id,
            since=since,
        )
        return [row["lease_id"] for row in rows]

    def replay(
        self, at: SharePartition, snapshot: int | None = None, until: int | None = None
    ) -> Replay | None:
        """Replay the state from the journal: from a snapshot up to and including the change ``until``.

        By default from the latest usable snapshot to the end of the journal. None if no snapshot can be used or the
        share-partition is not initialised.
        """
        if snapshot is None:
            fitting = (s.journal_id for s in self.snapshots(at) if until is None or s.journal_id <= until)
            snapshot = next(fitting, None)
        names = {"id": self._id(at), "snapshot": snapshot, "until": until}
        with self._database.transaction() as connection:
            connection.execute(sa.text("set transaction isolation level repeatable read, read only"))
            head = connection.execute(_REPLAYED_SHARE_PARTITION, names).mappings().one_or_none()
            if head is None:
                return None
            batches = connection.execute(_REPLAYED_BATCHES, names).mappings().all()
            leases = connection.execute(_REPLAYED_LEASES, names).mappings().all()
            outcomes = connection.execute(_REPLAYED_OUTCOMES, names).mappings().all()
        return Replay(
            **head,
            batches=tuple(_batch(row) for row in batches),
            leases=tuple(ReplayedLease(**{**row, "token": UUID(str(row["token"]))}) for row in leases),
            outcomes={(row["outcome"], row["delivery_count"]): row["records"] for row in outcomes},
        )

    def verify(self, group_id: str | None = None, snapshots: int = 1) -> list[str]:
        """Return the differences between the current state and replays from the latest ``snapshots`` snapshots, as
        text; empty if there are none.
        """
        rows = self._database.rows(
            sa.text("select * from sharequeue.verify_journal(cast(:group_id as text), :snapshots)"),
            group_id=group_id,
            snapshots=snapshots,
        )
        return [
            f"{row['group_id']} {row['topic']}-{row['partition']}: {row['differs']} (from {row['journal_id']})"
            for row in rows
        ]

    def days(self, group_id: str, since: date | None = None, until: date | None = None) -> list[Day]:
        """Return a group's share-partitions day by day, ``until`` included, also for days whose journal was dropped.

        A day is included once it is over and has been rolled up.
        """
        rows = self._database.rows(
            sa.text(
                "select day, topic, partition, updates, snapshots, leases, entered, accepted_first, lost_records,"
                " highest_delivery_count, spso, speo, delivery_complete_count, state_epoch"
                " from sharequeue.daily_rollups where group_id = :group_id"
                " and (cast(:since as date) is null or day >= :since)"
                " and (cast(:until as date) is null or day <= :until) order by day, topic, partition"
            ),
            group_id=group_id,
            since=since,
            until=until,
        )
        return [Day(**row) for row in rows]

    def days_with_figures(self, group_id: str) -> list[date]:
        """Return the days (UTC) that are over and have figures of a group: days that were counted, and days of the
        journal on which its state changed.
        """
        rows = self._database.rows(_DAYS_WITH_FIGURES, group_id=group_id)
        return [row["day"] for row in rows]

    def outcomes(self, group_id: str, day: date) -> list[DayOutcome]:
        """Return the outcomes of a group's records on one day that has been rolled up."""
        rows = self._database.rows(
            sa.text(
                "select day, topic, partition, outcome, delivery_count, records from sharequeue.daily_outcomes"
                " where group_id = :group_id and day = :day order by topic, partition, outcome, delivery_count"
            ),
            group_id=group_id,
            day=day,
        )
        return [DayOutcome(**row) for row in rows]

    def partitions(self) -> list[JournalPartition]:
        """Return the days in the journal, oldest first."""
        rows = self._database.rows(sa.text("select * from sharequeue.journal_partitions()"))
        return [JournalPartition(**row) for row in rows]

    def roll_up(self, day: date) -> int:
        """Count a day (UTC) of the journal again; return the number of share-partitions."""
        rows = self._database.rows(sa.text("select sharequeue.roll_up_journal(:day) as counted"), day=day)
        return int(rows[0]["counted"])

    def keep(
        self, *, retention: timedelta, updates_per_snapshot: int = UPDATES_PER_SNAPSHOT, ahead: int = 2
    ) -> JournalUpkeep:
        """Do one maintenance round: take due snapshots, create partitions for the days ahead, roll up days that are
        over, remove days older than ``retention``. Each step is a transaction of its own.

        Several callers at the same time are harmless. Creating and dropping wait a quarter of a second for a lock,
        then give way to the operations until the next round. A step that waits does not hold up the others.
        """
        waiting: list[str] = []
        taken = self._database.rows(
            sa.text("select sharequeue.take_snapshots(:updates) as taken"), updates=updates_per_snapshot
        )[0]["taken"]
        made: list[date] = self._unless_locked(waiting, _MAKE_PARTITIONS, ahead=ahead) or []
        rolled_up: list[date] = []
        dropped: list[date] = []
        # One day a call, so that no transaction is long after days without the service.
        while days := self._unless_locked(waiting, _ROLL_UP):
            rolled_up += days
        while day := self._unless_locked(waiting, _DROP_PARTITION, retention=retention):
            dropped.append(day)
        while self._unless_locked(waiting, _CLEAR_OTHER, retention=retention):
            pass
        return JournalUpkeep(taken, tuple(made), tuple(rolled_up), tuple(dropped), next(iter(waiting), None))

    def due(self, retention: timedelta) -> list[DueDay]:
        """Return the days that a maintenance round with this retention would remove, with the rows of each."""
        rows = self._database.rows(_DUE_DAYS, retention=retention)
        return [DueDay(**row) for row in rows]

    def _unless_locked(self, waiting: list[str], call: sa.TextClause, **values: object) -> Any:
        """Return the result of a step; None, and its reason in `waiting`, if it has to wait for a lock."""
        try:
            rows = self._database.rows(call, **values)
        except DBAPIError as error:
            if sqlstate(error) != LOCK_NOT_AVAILABLE:
                raise
            waiting.append(first_line(error.orig or error))
            return None
        return rows[0]["result"]

    def _id(self, at: SharePartition) -> int | None:
        rows = self._database.rows(_ID, **share_partition_name(at))
        return int(rows[0]["share_partition_id"]) if rows else None


def _batch(row: sa.RowMapping) -> ReplayedBatch:
    offsets = (
        OffsetSet.of((row["first_offset"], row["last_offset"] + 1))
        if row["offsets"] is None
        else OffsetSet.parse(row["offsets"])
    )
    return ReplayedBatch(**{**row, "offsets": offsets})
