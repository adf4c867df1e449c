"""P12: one group of 1,000 members and 1,000 share-partitions; one member leaves.

Measured are the time until the assignment without it is written, and the number of pairs of member and
share-partition that were added and removed besides its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa

from benchmarks.database import members, server, settle
from benchmarks.harness import Table, case, median, seconds
from sharequeue.database import Database
from sharequeue.groups.configs import ServiceConfigs, alter_group_configs
from sharequeue.groups.heartbeats import HeartbeatRequest, heartbeat, refresh_group

PAIRS = "select member_id, share_partition_id from sharequeue.assignments where group_id = :group"


def pairs(database: Database, group: str) -> set[tuple[str, int]]:
    """Return the assigned pairs of member and share-partition."""
    found = database.rows(sa.text(PAIRS), group=group)
    return {(row["member_id"], row["share_partition_id"]) for row in found}


@case("P12", "1,000 members: < 1,000 ms; as many pairs come as the leaver had, no other goes")
def reassignment(size: int = 1_000, leavers: int = 5) -> Iterator[Table]:
    """Measure the reassignment when one of many members leaves, and what moves."""
    configs = ServiceConfigs.of({"group.share.max.size": str(size)})
    group = "group"
    with server() as url, Database(url) as database:
        alter_group_configs(database, group, {"share.assignment.interval.ms": 0})
        members(database, group, size, size, configs)
        settle(url)
        times, came, went, due = [], 0, 0, 0
        for number in range(leavers):
            leaver, before = f"member-{number * 37:04}", pairs(database, group)

            def leave(leaver: str = leaver) -> None:
                heartbeat(database, HeartbeatRequest(group, leaver, -1), configs)
                refresh_group(database, group, configs)

            times.append(seconds(leave) * 1000)
            after = pairs(database, group)
            due += sum(member == leaver for member, _ in before)
            came += len(after - before)
            went += sum(member != leaver for member, _ in before - after)
    moved = (f"{each / leavers:.1f}" for each in (due, came, went))
    headings = (f"ms, median of {leavers}", "most", "pairs of the leaver", "pairs that came")
    title = f"one of {size:,} members leaves {size:,} share-partitions"
    row = (f"{median(times):.0f}", f"{max(times):.0f}", *moved)
    yield Table((*headings, "others that went"), [row], title)
