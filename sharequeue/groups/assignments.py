"""The assignment of each member of a group.

``sql/functions/20_groups/heartbeats.sql`` decides when an assignment is due, and what a member gets of it
(kafka-semantics 2.14, rules 4 to 8). `assignors` or `backlog_assignor` computes the assignment, as the group is
configured. This module connects the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import text

# pydantic, which makes the OpenAPI document of it, does not support the TypedDict of Python 3.11 itself.
from typing_extensions import TypedDict

from sharequeue.database import Database
from sharequeue.groups.assignors import Assignment, assign
from sharequeue.groups.backlog_assignor import assign_by_backlog
from sharequeue.groups.configs import ServiceConfigs
from sharequeue.groups.lock_timeouts import STEP_LOCK_TIMEOUT_MS, with_short_waits

ASSIGN = (
    "select sharequeue.assign_share_partitions("
    ":group_id, :group_epoch, cast(:member_ids as text[]), cast(:share_partition_ids as bigint[]))"
)

BACKLOG = "backlog"
"""The assignor that balances by lag (`share.assignors`)."""


class AssignedTopic(TypedDict):
    """A topic's share-partitions of one member, in SQL, in Python and in JSON.

    Kafka sends the id alone; the name saves the member a look-up.
    """

    topic_id: str
    topic_name: str
    partitions: list[int]


def write_assignment(database: Database, group_id: str, due: Mapping[str, Any]) -> None:
    """Compute the assignment that is due in a group, and write it.

    `due` is what ``sharequeue_internal.to_assign`` returned. No lock is held while the assignment is computed:
    nothing is written if the group has changed since, or if another process has assigned it.
    """
    database.rows(_ASSIGN, group_id=group_id, **assignment_parameters(due))


def assignment_parameters(due: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the assignment that is due; return it as the parameters of `ASSIGN`."""
    pairs = [(member_id, share) for member_id, shares in _target(due).items() for share in sorted(shares)]
    return {
        "group_epoch": due["group_epoch"],
        "member_ids": [member_id for member_id, _ in pairs],
        "share_partition_ids": [share for _, share in pairs],
    }


def backlog_groups(database: Database, service: ServiceConfigs) -> list[str]:
    """Return the groups with members that are assigned by backlog."""
    rows = database.rows(
        text(
            "select g.group_id from sharequeue.share_groups g"
            " left join sharequeue.group_configs c on c.group_id = g.group_id and c.name = 'share.assignors'"
            " where coalesce(c.value, :usual) = 'backlog'"
            " and exists (select from sharequeue.members m where m.group_id = g.group_id)"
        ),
        usual=service.values["group.share.assignors"],
    )
    return [str(row["group_id"]) for row in rows]


def rebalance(database: Database, group_id: str) -> bool:
    """Compare the assignment of a group with its present lags; return whether it has to be assigned again.

    If so, its epoch is raised, and ``heartbeats.refresh_group`` or a member's heartbeat assigns it.
    """
    [row] = database.rows(_COMPARE, group_id=group_id)
    found = row["to_assign"]
    if found is None:
        return False
    current = {member_id: frozenset(shares) for member_id, shares in found["current"].items()}
    if {member_id: shares for member_id, shares in _target(found).items() if shares} == current:
        return False
    [row] = database.rows(_REBALANCE, group_id=group_id, group_epoch=found["group_epoch"])
    return bool(row["raised"])


def _target(found: Mapping[str, Any]) -> Assignment:
    # The keys of a JSON object have no order: members are served by name.
    subscriptions = dict(sorted(found["subscriptions"].items()))
    if found["assignor"] != BACKLOG:
        return assign(subscriptions, found["partitions"], found["current"])
    lags = {int(share): lag for share, lag in found["lags"].items()}
    return assign_by_backlog(subscriptions, found["partitions"], found["current"], lags)


_ASSIGN = with_short_waits(ASSIGN)
_COMPARE = text("select sharequeue.backlog_assignment(:group_id) as to_assign")
_REBALANCE = with_short_waits(
    "select sharequeue.rebalance_group(:group_id, :group_epoch) as raised", STEP_LOCK_TIMEOUT_MS
)
