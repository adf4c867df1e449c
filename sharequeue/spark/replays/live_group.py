"""Measure the live group before and after a replay.

A replay holds no lease, so it has no way to change the group. Whatever differs was changed by others: the journal has
their leases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from sharequeue.state import State
from sharequeue.words.names import listed

FIGURES = (
    *(
        "spso",
        "speo",
        "delivery_complete_count",
        "state_epoch",
        "acquired",
        "available",
        "archiving",
        "leases",
    ),
    *("accepted", "rejected", "exhausted", "gap", "lost_records", "highest_delivery_count"),
)
"""The figures of a share-partition that only an operation on it changes."""
MOST_NAMED = 5
"""The most share-partitions, and the most members, that are named."""
_LEASES_SINCE = sa.text(
    "select count(distinct j.lease_id) as leases,"
    " array_agg(distinct j.member_id order by j.member_id) filter (where j.member_id is not null) as members"
    " from sharequeue.journal j join sharequeue.share_partitions sp using (share_partition_id)"
    " where sp.group_id = :group_id and j.at >= :since and j.lease_id is not null"
)


@dataclass(frozen=True, slots=True)
class LiveGroup:
    """The figures of a group at a time of the database."""

    at: datetime
    figures: Mapping[str, tuple[int, ...]]
    """The values of FIGURES by share-partition."""


def measure(state: State, group: str) -> LiveGroup:
    """Return the figures of a group as of now."""
    at = state.now()
    return LiveGroup(
        at,
        {
            f"{each.topic}-{each.partition}": tuple(getattr(each, name) for name in FIGURES)
            for each in state.figures.describe(group)
        },
    )


def changes(state: State, group: str, before: LiveGroup, after: LiveGroup) -> str:
    """Describe what has changed between two measurements, and by which members."""
    places = {**before.figures, **after.figures}
    if not places:
        return "unchanged: the group has no state"
    changed = [at for at in places if before.figures.get(at) != after.figures.get(at)]
    if not changed:
        return (
            f"unchanged: SPSO and {len(FIGURES) - 1} figures of {len(places):,} share-partitions are the same"
        )
    (row,) = state.database.rows(_LEASES_SINCE, group_id=group, since=before.at)
    what = listed([_change(at, before.figures.get(at), after.figures.get(at)) for at in changed], MOST_NAMED)
    if not row["leases"]:
        return f"changed meanwhile without a lease (an operator, an expired lock, or retention): {what}"
    by = listed(row["members"] or ["unknown"], MOST_NAMED)
    leases = f"{row['leases']:,} lease{'s' if row['leases'] > 1 else ''}"
    return f"changed meanwhile by {leases} of members of the group ({by}): {what}"


def _change(at: str, before: tuple[int, ...] | None, after: tuple[int, ...] | None) -> str:
    if before is None or after is None:
        return f"{at} is {'new' if before is None else 'gone'}"
    name, old, new = next(
        (name, old, new) for name, old, new in zip(FIGURES, before, after, strict=True) if old != new
    )
    return f"{at} {name} {old:,} → {new:,}"


__all__ = ["LiveGroup", "changes", "measure"]
