"""What would a run that began now find to do, and who is at work already?

Read only, of Postgres alone, in one short transaction with a time-out of its own: for schedulers, who ask every few
seconds. What the broker has got since is known by the service, which records it every two seconds for every group
that has state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.database.pool import Joined

STATEMENT_TIMEOUT_MS = 10_000


@dataclass(frozen=True, slots=True)
class WaitingWork:
    """What a run would find in one share-partition, in records; the view `waiting_work`."""

    topic: str
    partition: int
    lag: int
    ready_records: int
    """Fresh, released or lapsed: a run could lease them now."""
    unwritten_letters: int
    """Dead letters that no service writes."""
    held_letters: int
    """Dead letters that the last attempt could not write."""
    waiting_records: int
    """Their time has still to come, of the first at `waiting_until`."""
    waiting_until: datetime | None
    held_records: int
    """Some member holds them, under a lock that has not lapsed."""
    blocked_reason: str | None
    """Why nothing can be leased, in words, where there is lag."""
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
    """The record that is in the way."""


@dataclass(frozen=True, slots=True)
class GroupWork:
    """What a run of a group would find, as of `at` by the database's clock."""

    at: datetime
    share_partitions: Sequence[WaitingWork]
    members: int
    """Whose session goes on."""
    service_heard_at: datetime | None
    """When a replica of the service was last at work; None if there never was one."""
    pending_rows: int = 0
    """Acknowledged rows that a table of a lakehouse has still to take: the next run completes them."""

    @property
    def lag(self) -> int:
        """KIP-1226's, over all share-partitions."""
        return sum(each.lag for each in self.share_partitions)

    @property
    def records(self) -> int:
        """Records that a run would lease, dead letters that it would write, and rows that it would complete."""
        waiting = sum(each.ready_records + each.unwritten_letters for each in self.share_partitions)
        return waiting + self.pending_rows

    @property
    def letters_written_at(self) -> datetime | None:
        """When the last dead letters were written, or dropped."""
        times = [each.letters_written_at for each in self.share_partitions if each.letters_written_at]
        return max(times, default=None)

    def service_silent_for(self) -> timedelta:
        """How long no replica of the service was at work; nothing where there never was one."""
        return timedelta() if self.service_heard_at is None else self.at - self.service_heard_at

    def broker_silent_for(self) -> timedelta:
        """How long the service, which is at work, has not seen the logs; nothing where there is no service."""
        seen = [each.observed_at for each in self.share_partitions if each.observed_at]
        return timedelta() if self.service_heard_at is None or not seen else self.at - max(seen)


@contextmanager
def bounded(database: Database) -> Iterator[Database]:
    """One transaction in which no statement may take longer than STATEMENT_TIMEOUT_MS."""
    with database.transaction() as connection:
        connection.execute(
            sa.text("select set_config('statement_timeout', :milliseconds, true)"),
            {"milliseconds": str(STATEMENT_TIMEOUT_MS)},
        )
        yield Joined(connection)


def work_of(database: Database, group_id: str) -> GroupWork:
    """Look at a group. Raises SQLAlchemy's DBAPIError where Postgres does not answer in time."""
    with bounded(database) as joined:
        rows = joined.rows(
            sa.text(
                "select topic, partition, lag, ready_records, unwritten_letters, held_letters, waiting_records,"
                " waiting_until, held_records, blocked_reason, spso, speo, log_end, delivery_complete_count,"
                " highest_delivery_count, observed_at, letters_written_at, blocked_by, blocked_until, blocked_offset"
                " from sharequeue.waiting_work where group_id = :group_id order by topic, partition"
            ),
            group_id=group_id,
        )
        (about,) = joined.rows(
            sa.text(
                "select sharequeue.clock() as at, (select max(heard_at) from sharequeue.replicas) as heard_at,"
                " (select count(*) from sharequeue.group_members"
                "  where group_id = :group_id and session_expires_at > sharequeue.clock()) as members,"
                " (select cast(coalesce(sum(records), 0) as bigint) from sharequeue.counted_outputs"
                "  where group_id = :group_id and starts_with(location, 'sink:pending:')) as pending_rows"
            ),
            group_id=group_id,
        )
    parts = [WaitingWork(**row) for row in rows]
    return GroupWork(about["at"], parts, about["members"], about["heard_at"], about["pending_rows"])
