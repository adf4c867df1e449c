"""The work that a run would find now, and the members that are working.

Read only, from Postgres alone, in one short transaction with its own time-out: for schedulers that ask every few
seconds. The service records new log ends of the broker every two seconds, for every group that has state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.database.pool import Joined
from sharequeue.domain.figures import column_list
from sharequeue.domain.values import WaitingResults
from sharequeue.state import State

STATEMENT_TIMEOUT_MS = 10_000


@dataclass(frozen=True, slots=True)
class WaitingWork:
    """The work for a run in one share-partition, in records; the view `waiting_work`."""

    topic: str
    partition: int
    lag: int
    ready_records: int
    """New, released or lapsed records, which a run could lease now."""
    unwritten_letters: int
    """Dead letters that no service writes."""
    held_letters: int
    """Dead letters that the last attempt could not write."""
    waiting_records: int
    """Records with a delay; that of the first ends at `waiting_until`."""
    waiting_until: datetime | None
    acquired_records: int
    """Records that a member holds under a lock that has not lapsed."""
    blocked_reason: str | None
    """Why nothing can be leased, in words, if there is lag."""
    spso: int
    speo: int
    log_end: int
    delivery_complete_count: int
    highest_delivery_count: int
    observed_at: datetime | None
    letters_written_at: datetime | None
    """When the last dead letters were written, or dropped."""
    blocked_by: str | None = None
    """The same in one word: paused, breaker, window, transaction, leased, waiting, dead_letters …"""
    blocked_until: datetime | None = None
    """When that may change, if it is known."""
    blocked_offset: int | None = None
    """The record that blocks."""


@dataclass(frozen=True, slots=True)
class GroupWork:
    """The work for a run of a group, as of `at` by the database's clock."""

    at: datetime
    share_partitions: Sequence[WaitingWork]
    members: int
    """Members whose session has not expired."""
    service_heard_at: datetime | None
    """When a replica of the service was last running; None if there never was one."""
    results: Sequence[WaitingResults] = ()
    """Acknowledged rows that are not in the table or topic of their sink yet: the next run completes them."""
    at_work: frozenset[str] = frozenset()
    """The ids of the live members and of the holders of locks that have not lapsed, and the members' client ids."""
    gone: frozenset[str] = frozenset()
    """The client ids of members whose session has expired."""

    @property
    def lag(self) -> int:
        """The lag of KIP-1226, over all share-partitions."""
        return sum(each.lag for each in self.share_partitions)

    @property
    def pending_rows(self) -> int:
        """The number of these rows."""
        return sum(each.rows for each in self.results)

    @property
    def records(self) -> int:
        """Records that a run would lease, dead letters that it would write, and rows that it would complete."""
        waiting = sum(each.ready_records + each.unwritten_letters for each in self.share_partitions)
        return waiting + self.pending_rows

    @property
    def letters_written_at(self) -> datetime | None:
        """When the last dead letters were written, or dropped; a time before the clock was set back is left out."""
        times = (each.letters_written_at for each in self.share_partitions)
        return max((time for time in times if time is not None and time <= self.at), default=None)

    def service_silent_for(self) -> timedelta:
        """Return the time since a replica of the service last ran; zero if there never was one.

        A time in the future, from before the clock was set back, counts as past by as much as it is ahead.
        """
        return timedelta() if self.service_heard_at is None else abs(self.at - self.service_heard_at)

    def broker_silent_for(self) -> timedelta:
        """Return the time since the running service last saw the logs; zero if there is no service."""
        seen = [each.observed_at for each in self.share_partitions if each.observed_at]
        return timedelta() if self.service_heard_at is None or not seen else abs(self.at - max(seen))


@contextmanager
def bounded(database: Database) -> Iterator[Database]:
    """Open a transaction in which no statement may take longer than STATEMENT_TIMEOUT_MS."""
    with database.transaction() as connection:
        connection.execute(
            sa.text("select set_config('statement_timeout', :milliseconds, true)"),
            {"milliseconds": str(STATEMENT_TIMEOUT_MS)},
        )
        yield Joined(connection)


def waiting_work_of(database: Database, group_id: str) -> list[WaitingWork]:
    """Return the work of each share-partition of a group: one statement, of all that `work_of` sends."""
    query = (
        f"select {column_list(WaitingWork)} from sharequeue.waiting_work"  # noqa: S608 - columns of ours
        " where group_id = :group_id order by topic, partition"
    )
    return [WaitingWork(**row) for row in database.rows(sa.text(query), group_id=group_id)]


def work_of(database: Database, group_id: str) -> GroupWork:
    """Return the work of a group. Raises SQLAlchemy's DBAPIError where Postgres does not respond in time."""
    with bounded(database) as joined:
        parts = waiting_work_of(joined, group_id)
        members = joined.rows(
            sa.text(
                "select member_id, client_id, session_expires_at > sharequeue.clock() as at_work"
                " from sharequeue.group_members where group_id = :group_id"
                " union all select distinct member_id, '', true from sharequeue.held_leases"
                " where group_id = :group_id and seconds_left > 0"
            ),
            group_id=group_id,
        )
        (about,) = joined.rows(
            sa.text(
                "select sharequeue.clock() as at, (select max(heard_at) from sharequeue.replicas) as heard_at,"
                " (select count(*) from sharequeue.group_members"
                "  where group_id = :group_id and session_expires_at > sharequeue.clock()) as members"
            ),
            group_id=group_id,
        )
        results = State(joined).outputs.waiting_results([group_id])
    at_work = {row[name] for row in members if row["at_work"] for name in ("member_id", "client_id")}
    return GroupWork(
        about["at"],
        parts,
        about["members"],
        about["heard_at"],
        results,
        at_work=frozenset(at_work - {""}),
        gone=frozenset(row["client_id"] for row in members if not row["at_work"]) - at_work,
    )
