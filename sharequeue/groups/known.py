"""A name that is not known is an error, never an empty result: a typo must not look like a success."""

from __future__ import annotations

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.errors import GroupIdNotFound
from sharequeue.names import nearest, shown

__all__ = [
    "awaited_share_partitions",
    "group_names",
    "group_topics",
    "require_among",
    "require_group",
    "require_there",
]


def group_names(database: Database) -> list[str]:
    """Return the names of all share groups."""
    rows = database.rows(sa.text("select group_id from sharequeue.group_list order by group_id"))
    return [row["group_id"] for row in rows]


def require_group(database: Database, group: str) -> None:
    """Raise GroupIdNotFound, with the names most like it, when there is no share group of this name."""
    require_among(group_names(database), group)


def require_among(known: list[str], group: str) -> None:
    """As `require_group`, among names that are known already."""
    if group not in known:
        raise GroupIdNotFound(f"There is no share group {group}. {nearest(group, known, 'share groups')}")


def require_there(database: Database, group: str) -> None:
    """Raise GroupIdNotFound when there is no share group of this name. It names no others: for callers who may not be
    allowed to see them."""
    query = sa.text("select 1 from sharequeue.share_groups where group_id = :group_id")
    if not database.rows(query, group_id=group):
        raise GroupIdNotFound(f"There is no share group {shown(group)}. It may have been deleted.")


def group_topics(database: Database, group: str) -> set[str]:
    """Return the topics that a group has share-partitions of, or members for."""
    rows = database.rows(
        sa.text(
            "select distinct topic from sharequeue.share_partitions where group_id = :group_id"
            " union select unnest(subscribed_topic_names) from sharequeue.members where group_id = :group_id"
        ),
        group_id=group,
    )
    return {row["topic"] for row in rows}


def awaited_share_partitions(database: Database, group: str) -> list[tuple[str, int]]:
    """Return the topics and partitions that a group's members subscribe to and that have no state yet."""
    rows = database.rows(
        sa.text(
            "select topic, partition from sharequeue.awaited_share_partitions where group_id = :group_id"
            " order by topic, partition"
        ),
        group_id=group,
    )
    return [(row["topic"], row["partition"]) for row in rows]
