"""The assignment of each member of a group.

``sql/functions/20_groups/heartbeats.sql`` decides when an assignment is due, and what a member gets of it
(R-GR-4 to R-GR-8). `assignors` computes the assignment. This module connects the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# pydantic, which makes the OpenAPI document of it, does not support the TypedDict of Python 3.11 itself.
from typing_extensions import TypedDict

from sharequeue.database import Database
from sharequeue.database.lock_timeouts import with_short_waits
from sharequeue.groups.assignors import assign

ASSIGN = (
    "select sharequeue.assign_share_partitions("
    ":group_id, :group_epoch, cast(:member_ids as text[]), cast(:share_partition_ids as bigint[]))"
)


class AssignedTopic(TypedDict):
    """A topic's share-partitions of one member, in SQL, in Python and in JSON.

    Kafka sends the id alone; the name saves the member a look-up.
    """

    topic_id: str
    topic_name: str
    partitions: list[int]


def write_assignment(database: Database, group_id: str, due: Mapping[str, Any]) -> None:
    """Compute the assignment that is due in a group, and write it.

    `due` is what ``sharequeue_internal.due_assignment`` returned. No lock is held while the assignment is computed:
    nothing is written if the group has changed since, or if another process has assigned it.
    """
    database.rows(_ASSIGN, group_id=group_id, **assignment_parameters(due))


def assignment_parameters(due: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the assignment that is due; return it as the parameters of `ASSIGN`."""
    # The keys of a JSON object have no order: members are served by name.
    target = assign(dict(sorted(due["subscriptions"].items())), due["partitions"], due["current"])
    pairs = [(member_id, share) for member_id, shares in target.items() for share in sorted(shares)]
    return {
        "group_epoch": due["group_epoch"],
        "member_ids": [member_id for member_id, _ in pairs],
        "share_partition_ids": [share for _, share in pairs],
    }


_ASSIGN = with_short_waits(ASSIGN)
