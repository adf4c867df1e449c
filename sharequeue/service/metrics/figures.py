"""The figures that a scrape reads from the database.

There are a few statements, each over all groups, with a total limit of 2.5 s: Postgres cancels what takes longer. The
age of the oldest record is at least the time since a scrape first saw it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from sqlalchemy import text

from sharequeue.database import Database
from sharequeue.service.health.servers import held_letters
from sharequeue.service.metrics.families import SUMMED, Read
from sharequeue.state.replicas import read_replicas

__all__ = ["Reader"]

READ_SECONDS = 2.5
"""The time limit of Postgres for a scrape."""
MOST_MEMBERS = 1_000
"""The maximum number of members with series, those with the oldest locks."""


class Reader:
    """The reads of one replica, one at a time. `monotonic` returns seconds."""

    def __init__(self, database: Database, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._monotonic = monotonic
        self._oldest: dict[int, tuple[int, float]] = {}  # by share-partition: the oldest record, since when

    def read(self) -> Read:
        """Read all rows. Raises the errors of the database, also if it takes too long."""
        began = self._monotonic()
        groups = self._rows(
            began,
            "select g.group_id, g.group_epoch, coalesce(m.members, 0) as members,"
            " coalesce(s.stuck, 0) as stuck_leases,"
            " coalesce(w.rows, 0) as results_waiting, coalesce(w.held, 0) as results_held,"
            " cast(extract(epoch from sharequeue.clock() - w.oldest_at) as double precision)"
            "  as results_oldest_seconds"
            " from sharequeue.share_groups g"
            " left join (select group_id, count(*) as members from sharequeue.members group by 1) as m"
            " using (group_id)"
            " left join (select group_id, count(stuck_reason) as stuck from sharequeue.held_leases group by 1) as s"
            " using (group_id)"
            " left join (select group_id, cast(sum(rows) as bigint) as rows, count(held_reason) as held,"
            "  min(oldest_at) as oldest_at from sharequeue.waiting_results group by 1) as w using (group_id)"
            " order by g.group_id",
        )
        states = self._rows(
            began, "select state, count(*) as groups from sharequeue.group_list group by state"
        )
        partitions = self._rows(
            began, "select * from sharequeue.monitored_share_partitions order by share_partition_id"
        )
        members = self._rows(
            began,
            "select * from sharequeue.monitored_members order by oldest_lock_seconds desc, group_id, member_id"
            " limit :most",
            most=MOST_MEMBERS,
        )
        replicas, held = read_replicas(self._database), held_letters(self._database)
        self._note_oldest(partitions)
        _sum_up(groups, partitions)
        by_state = {row["state"]: row["groups"] for row in states}
        return Read(groups, by_state, partitions, members, replicas, held, self._monotonic() - began)

    def _rows(self, began: float, query: str, **parameters: Any) -> list[dict[str, Any]]:
        left = max(1, int(1000 * (READ_SECONDS - (self._monotonic() - began))))
        # Sent together, so that the timeout needs no round trip.
        limited = text(f"set local statement_timeout = {left}; {query}")
        return [dict(row) for row in self._database.rows(limited, **parameters)]

    def _note_oldest(self, partitions: Iterable[dict[str, Any]]) -> None:
        """Count the age of an oldest record at least from the scrape that first saw it."""
        now = self._monotonic()
        oldest: dict[int, tuple[int, float]] = {}
        for row in partitions:
            row["in_flight"] = row["speo"] - row["spso"]
            if (offset := row["oldest_offset"]) is not None:
                at = row["share_partition_id"]
                known = self._oldest.get(at)
                oldest[at] = known if known and known[0] == offset else (offset, now)
                row["oldest_waits_seconds"] = max(row["oldest_waits_seconds"] or 0.0, now - oldest[at][1])
        self._oldest = oldest


def _sum_up(groups: Iterable[dict[str, Any]], partitions: Iterable[dict[str, Any]]) -> None:
    """Add to each group the sums over its share-partitions."""
    by_name = {group["group_id"]: group for group in groups}
    for group in by_name.values():
        group.update(dict.fromkeys(SUMMED, 0), oldest_waits_seconds=None)
    for row in partitions:
        # A group may be created between the two statements.
        if (of_group := by_name.get(row["group_id"])) is not None:
            for each in SUMMED:
                of_group[each] += row[each]
            if (waits := row["oldest_waits_seconds"]) is not None:
                of_group["oldest_waits_seconds"] = max(of_group["oldest_waits_seconds"] or 0.0, waits)
