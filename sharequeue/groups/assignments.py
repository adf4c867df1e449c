"""What is each member of a group assigned?

When an assignment is due, and what a member gets of it, is decided in ``sql/functions/20_groups/heartbeats.sql``
(kafka-semantics 2.14, rules 4 to 8). Who gets what is computed by `assignors`. This module brings the two together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sharequeue.database import Database
from sharequeue.groups.assignors import assign
from sharequeue.groups.service_leases import with_short_waits


@dataclass(frozen=True, slots=True)
class AssignedTopic:
    """A topic's share-partitions of one member. Kafka sends the id alone; the name saves the member a
    look-up."""

    topic_id: str
    topic_name: str
    partitions: tuple[int, ...]


def assigned_topics(assignment: Sequence[Mapping[str, Any]]) -> tuple[AssignedTopic, ...]:
    """Return an assignment as values, from the database's rows."""
    return tuple(
        AssignedTopic(topic["topic_id"], topic["topic_name"], tuple(topic["partitions"]))
        for topic in assignment
    )


def write_assignment(database: Database, group_id: str, due: Mapping[str, Any]) -> None:
    """Compute the assignment that is due in a group, and write it.

    `due` is what ``sharequeue.due_assignment`` returned. No lock is held while the assignment is computed: nothing is
    written when the group has changed since, or when somebody else has assigned it.
    """
    # In a JSON object keys have no order: members are dealt to by name.
    subscriptions = dict(sorted(due["subscriptions"].items()))
    target = assign(subscriptions, due["partitions"], due["current"])
    pairs = [(member_id, share) for member_id, shares in target.items() for share in sorted(shares)]
    database.rows(
        _ASSIGN,
        group_id=group_id,
        group_epoch=due["group_epoch"],
        member_ids=[member_id for member_id, _ in pairs],
        share_partition_ids=[share for _, share in pairs],
    )


_ASSIGN = with_short_waits(
    "select sharequeue.assign_share_partitions("
    ":group_id, :group_epoch, cast(:member_ids as text[]), cast(:share_partition_ids as bigint[]))"
)
