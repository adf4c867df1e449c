"""The figures that a scrape reads from the database.

There are a few statements, each over all groups, with a total limit of 2.5 s: Postgres cancels what takes longer. The
number of rows is limited; rows beyond the limit are counted, and added to the figures of their group. Growth rates
and the age of the oldest record are computed from successive scrapes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import text

from sharequeue.database import Database
from sharequeue.groups.replicas import read_replicas
from sharequeue.service.health.servers import held_letters
from sharequeue.service.metrics.families import SUMMED, Read

__all__ = ["Growth", "MostRows", "Reader"]

READ_SECONDS = 2.5
"""The time limit of Postgres for a scrape."""
SPACING_SECONDS = 300.0
HORIZON_SECONDS = 3600.0
LEAST_SECONDS = 60.0
"""The minimum time span of a rate; the maximum is one hour."""

Row = Mapping[str, Any]
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class MostRows:
    """The maximum numbers of groups, share-partitions and members with series in a scrape."""

    groups: int = 10_000
    share_partitions: int = 10_000
    members: int = 1_000


class Growth(Generic[Key]):
    """The growth rates of figures since earlier scrapes. `monotonic` returns seconds."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._seen: deque[tuple[float, dict[Key, int]]] = deque()

    def rates(self, figures: Mapping[Key, int]) -> dict[Key, float]:
        """Return the growth per second of each figure since its first scrape of the last hour.

        Only figures that existed a minute ago and have not decreased have a rate.
        """
        now = self._monotonic()
        rates: dict[Key, float] = {}
        for at, then in self._seen:
            if now - at < LEAST_SECONDS:
                break
            for key, figure in figures.items():
                if key not in rates and then.get(key, figure + 1) <= figure:
                    rates[key] = (figure - then[key]) / (now - at)
        while self._seen and now - self._seen[0][0] > HORIZON_SECONDS:
            self._seen.popleft()
        if not self._seen or now - self._seen[-1][0] >= SPACING_SECONDS:
            self._seen.append((now, dict(figures)))
        return rates


class Reader:
    """The reads of one replica, one at a time."""

    def __init__(
        self,
        database: Database,
        most: MostRows | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._most = most or MostRows()
        self._monotonic = monotonic
        self._finished = Growth[str](monotonic)
        self._log_starts = Growth[int](monotonic)
        self._oldest: dict[int, tuple[int, float]] = {}  # by share-partition: the oldest record, since when

    def read(self) -> Read:
        """Read all rows. Raises the errors of the database, also if it takes too long."""
        began = self._monotonic()
        groups = self._rows(
            began,
            "select g.group_id, g.group_epoch, count(m.member_id) as members, coalesce(s.stuck, 0) as stuck_leases"
            " from (select group_id, group_epoch from sharequeue.share_groups order by group_id limit :most) as g"
            " left join sharequeue.members m using (group_id)"
            " left join (select group_id, count(stuck_reason) as stuck from sharequeue.held_leases group by 1) as s"
            " using (group_id) group by g.group_id, g.group_epoch, s.stuck order by g.group_id",
            most=self._most.groups,
        )
        states = {
            row["state"]: row["groups"]
            for row in self._rows(
                began, "select state, count(*) as groups from sharequeue.group_list group by state"
            )
        }
        partitions = self._rows(
            began,
            "select * from sharequeue.monitored_share_partitions order by share_partition_id limit :most",
            most=self._most.share_partitions,
        )
        beyond: list[dict[str, Any]] = []
        if len(partitions) >= self._most.share_partitions:
            sums = ", ".join(f"cast(sum({each}) as bigint) as {each}" for each in SUMMED)
            beyond = self._rows(
                began,
                f"select group_id, count(*) as rows, {sums},"  # noqa: S608 - names of ours
                " max(oldest_waits_seconds) as oldest_waits_seconds from sharequeue.monitored_share_partitions"
                " where share_partition_id > :last group by group_id",
                last=partitions[-1]["share_partition_id"],
            )
        members = self._rows(
            began,
            "select m.*, count(*) over () as among from sharequeue.monitored_members m"
            " order by oldest_lock_seconds desc, group_id, member_id limit :most",
            most=self._most.members,
        )
        replicas = read_replicas(self._database)
        held = held_letters(self._database)
        self._complete(partitions)
        self._sum_up(groups, partitions, beyond)
        return Read(
            groups,
            states,
            partitions,
            members,
            {
                "groups": sum(states.values()) - len(groups),
                "share_partitions": sum(row["rows"] for row in beyond),
                "members": members[0]["among"] - len(members) if members else 0,
            },
            replicas,
            held,
            self._monotonic() - began,
        )

    def _rows(self, began: float, query: str, **parameters: Any) -> list[dict[str, Any]]:
        left = max(1, int(1000 * (READ_SECONDS - (self._monotonic() - began))))
        # Sent together, so that the timeout needs no round trip.
        limited = text(f"set local statement_timeout = {left}; {query}")
        return [dict(row) for row in self._database.rows(limited, **parameters)]

    def _complete(self, partitions: Iterable[dict[str, Any]]) -> None:
        """Add the figures that need earlier scrapes."""
        now = self._monotonic()
        oldest: dict[int, tuple[int, float]] = {}
        moves = self._log_starts.rates(
            {row["share_partition_id"]: row["log_start"] for row in partitions if row["lag"]}
        )
        for row in partitions:
            at = row["share_partition_id"]
            if row["oldest_offset"] is not None:
                known = self._oldest.get(at)
                same = known is not None and known[0] == row["oldest_offset"]
                oldest[at] = known if same and known else (row["oldest_offset"], now)
                row["oldest_waits_seconds"] = max(row["oldest_waits_seconds"] or 0.0, now - oldest[at][1])
            speed = moves.get(at, 0.0)
            row["retention_seconds"] = max(0, row["spso"] - row["log_start"]) / speed if speed else None
        self._oldest = oldest

    def _sum_up(
        self,
        groups: Iterable[dict[str, Any]],
        partitions: Iterable[Row],
        beyond: Iterable[Row],
    ) -> None:
        """Add to each group the sums over its share-partitions, and how long it takes to drain."""
        by_name = {group["group_id"]: group for group in groups}
        for group in by_name.values():
            group.update(dict.fromkeys(SUMMED, 0), oldest_waits_seconds=None)
        for row in (*partitions, *beyond):
            summed = by_name.get(row["group_id"])
            if summed is None:
                continue
            for each in SUMMED:
                summed[each] += row[each]
            if row["oldest_waits_seconds"] is not None:
                summed["oldest_waits_seconds"] = max(
                    summed["oldest_waits_seconds"] or 0.0, row["oldest_waits_seconds"]
                )
        finished = {
            name: group["accepted"] + group["rejected"] + group["exhausted"] + group["gap"]
            for name, group in by_name.items()
        }
        speeds = self._finished.rates(finished)
        for name, group in by_name.items():
            speed = speeds.get(name, 0.0)
            group["drain_seconds"] = 0.0 if group["lag"] == 0 else group["lag"] / speed if speed else None
