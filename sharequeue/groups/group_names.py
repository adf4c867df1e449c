"""Check the names of groups: an unknown name is an error, so that a typo does not look like an empty result."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.domain.errors import GroupIdNotFound
from sharequeue.domain.names import nearest, shown

__all__ = [
    "all_group_names",
    "awaited_share_partitions",
    "group_topics",
    "listed_groups",
    "require_among",
    "require_group",
    "require_there",
]


def listed_groups(database: Database) -> list[dict[str, Any]]:
    """Return all share groups by name: `group`, `state`, `members` and `created_at` of each."""
    rows = database.rows(
        sa.text(
            'select group_id as "group", state, members, created_at from sharequeue.group_list order by group_id'
        )
    )
    return [dict(row) for row in rows]


def all_group_names(database: Database) -> list[str]:
    """Return the names of all share groups."""
    return [each["group"] for each in listed_groups(database)]


def require_group(database: Database, group: str) -> None:
    """Raise GroupIdNotFound, with the names most like it, when there is no share group of this name."""
    require_among(all_group_names(database), group)


def require_among(known: list[str], group: str) -> None:
    """As `require_group`, for names that are already loaded."""
    if group not in known:
        raise GroupIdNotFound(f"There is no share group {group}. {nearest(group, known, 'share groups')}")


def require_there(database: Database, group: str) -> None:
    """Raise GroupIdNotFound when there is no share group of this name.

    The error names no other groups, as the caller may not be allowed to see them.
    """
    query = sa.text("select 1 from sharequeue.share_groups where group_id = :group_id")
    if not database.rows(query, group_id=group):
        raise GroupIdNotFound(f"There is no share group {shown(group)}. It may have been deleted.")


def group_topics(database: Database, group: str) -> set[str]:
    """Return the topics of a group's share-partitions and of its members' subscriptions."""
    rows = database.rows(
        sa.text(
            "select distinct topic from sharequeue.share_partitions where group_id = :group_id"
            " union select unnest(subscribed_topic_names) from sharequeue.members where group_id = :group_id"
        ),
        group_id=group,
    )
    return {row["topic"] for row in rows}


def awaited_share_partitions(database: Database, group: str) -> list[tuple[str, int]]:
    """Return the topics and partitions that a group should read and that have no state yet."""
    rows = database.rows(
        sa.text(
            "select topic, partition from sharequeue.awaited_share_partitions where group_id = :group_id"
            " order by topic, partition"
        ),
        group_id=group,
    )
    return [(row["topic"], row["partition"]) for row in rows]
