"""What is each member of a group assigned, and at which epoch?

The group's own epochs and its target assignment as rows (kafka-semantics 2.14, rules 4 to 7): when the group
epoch rises, when the assignment follows, and how a member jumps to it. Every function runs inside the
caller's transaction, which holds the group's row. Who gets what is computed by `assignors`; who is a member
is `groups`' matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

from sharequeue.groups.assignors import assign
from sharequeue.groups.configs import GroupConfigs


@dataclass(frozen=True, slots=True)
class AssignedTopic:
    """A topic's share-partitions of one member. Kafka sends the id alone; the name saves the member a
    look-up."""

    topic_id: str
    topic_name: str
    partitions: tuple[int, ...]


def update_epochs(connection: Connection, configs: GroupConfigs, *, subscription_changed: bool) -> None:
    """Raise the group epoch where there is reason to (R-GR rule 4), then the assignment, if it is its time
    (rule 5)."""
    group_id = configs.group_id
    connection.execute(
        text("select sharequeue.raise_group_epoch(:group_id, :changed)"),
        {"group_id": group_id, "changed": subscription_changed},
    )
    due = connection.scalar(
        text(
            "select assignment_epoch < group_epoch and (assigned_at is null"
            " or sharequeue.clock() - assigned_at >= cast(:interval as interval))"
            " from sharequeue.share_groups where group_id = :group_id"
        ),
        {"group_id": group_id, "interval": f"{configs.assignment_interval_ms} milliseconds"},
    )
    if due:
        _assign(connection, group_id)


def _assign(connection: Connection, group_id: str) -> None:
    parameters = {"group_id": group_id}
    members = connection.execute(
        text(
            "select member_id, subscribed_topic_names from sharequeue.members where group_id = :group_id"
            " order by member_id"
        ),
        parameters,
    ).all()
    assignable = connection.execute(
        text("select topic, share_partition_id from sharequeue.assignable_share_partitions(:group_id)"),
        parameters,
    ).all()
    assigned = connection.execute(
        text("select member_id, share_partition_id from sharequeue.assignments where group_id = :group_id"),
        parameters,
    ).all()
    partitions: dict[str, list[int]] = {}
    for topic, share_partition_id in assignable:
        partitions.setdefault(topic, []).append(share_partition_id)
    current: dict[str, set[int]] = {}
    for member_id, share_partition_id in assigned:
        current.setdefault(member_id, set()).add(share_partition_id)
    target = assign(
        {member.member_id: member.subscribed_topic_names for member in members}, partitions, current
    )
    before = {(member_id, share) for member_id, shares in current.items() for share in shares}
    after = {(member_id, share) for member_id, shares in target.items() for share in shares}
    _write_assignment(connection, group_id, sorted(before - after), sorted(after - before))
    connection.execute(
        text(
            # An assignment of nothing does not make the next one wait: the first member of a new group gets
            # its share-partitions as soon as they are initialised.
            "update sharequeue.share_groups set assignment_epoch = group_epoch,"
            " assigned_at = case when :some then sharequeue.clock() end where group_id = :group_id"
        ),
        {**parameters, "some": bool(after)},
    )


def _write_assignment(
    connection: Connection, group_id: str, taken: Sequence[tuple[str, int]], given: Sequence[tuple[str, int]]
) -> None:
    def columns(pairs: Sequence[tuple[str, int]]) -> dict[str, Any]:
        return {
            "group_id": group_id,
            "member_ids": [member_id for member_id, _ in pairs],
            "share_partition_ids": [share_partition_id for _, share_partition_id in pairs],
        }

    if taken:
        connection.execute(
            text(
                "delete from sharequeue.assignments a"
                " using unnest(cast(:member_ids as text[]), cast(:share_partition_ids as bigint[]))"
                " as t (member, id)"
                " where a.group_id = :group_id and a.member_id = t.member and a.share_partition_id = t.id"
            ),
            columns(taken),
        )
    if given:
        connection.execute(
            text(
                "insert into sharequeue.assignments (group_id, member_id, share_partition_id)"
                " select :group_id, t.member, t.id"
                " from unnest(cast(:member_ids as text[]), cast(:share_partition_ids as bigint[]))"
                " as t (member, id) order by t.id"
            ),
            columns(given),
        )


def settle_member(connection: Connection, group_id: str, member_id: str) -> tuple[int, bool]:
    """The member jumps to the assignment's epoch (R-GR rule 7); gives its epoch and whether that moved."""
    row = connection.execute(
        text(
            "with jumped as ("
            " update sharequeue.members m set previous_member_epoch = m.member_epoch,"
            " member_epoch = g.assignment_epoch from sharequeue.share_groups g"
            " where g.group_id = m.group_id and m.group_id = :group_id and m.member_id = :member_id"
            " and m.member_epoch <> g.assignment_epoch returning m.member_id)"
            " select g.assignment_epoch, exists (select from jumped) as moved"
            " from sharequeue.share_groups g where g.group_id = :group_id"
        ),
        {"group_id": group_id, "member_id": member_id},
    ).one()
    return int(row.assignment_epoch), bool(row.moved)


def assignment_of(connection: Connection, group_id: str, member_id: str) -> tuple[AssignedTopic, ...]:
    """What a member is assigned, of the topics that it is still subscribed to."""
    rows = connection.execute(
        text(
            "select sp.topic_id, sp.topic, array_agg(sp.partition order by sp.partition) as partitions"
            " from sharequeue.assignments a join sharequeue.share_partitions sp using (share_partition_id)"
            " join sharequeue.members m on m.group_id = a.group_id and m.member_id = a.member_id"
            " where a.group_id = :group_id and a.member_id = :member_id"
            " and sp.topic = any (m.subscribed_topic_names)"
            " group by sp.topic_id, sp.topic order by sp.topic"
        ),
        {"group_id": group_id, "member_id": member_id},
    )
    return tuple(AssignedTopic(row.topic_id, row.topic, tuple(row.partitions)) for row in rows)


def tell_assignment(
    connection: Connection, group_id: str, member_id: str, *, always: bool
) -> tuple[AssignedTopic, ...] | None:
    """What to tell a member of its assignment: all of it; None when it was told the same before, unless `always`
    (R-GR rule 8)."""
    member = {"group_id": group_id, "member_id": member_id}
    changed = connection.execute(
        text(
            "update sharequeue.members m set told_share_partition_ids = n.ids from (select coalesce("
            " array_agg(a.share_partition_id order by a.share_partition_id), '{}') as ids"
            " from sharequeue.assignments a join sharequeue.share_partitions sp using (share_partition_id)"
            " join sharequeue.members k on k.group_id = a.group_id and k.member_id = a.member_id"
            " where a.group_id = :group_id and a.member_id = :member_id"
            " and sp.topic = any (k.subscribed_topic_names)) as n"
            " where m.group_id = :group_id and m.member_id = :member_id"
            " and m.told_share_partition_ids is distinct from n.ids returning m.member_id"
        ),
        member,
    )
    if changed.first() is None and not always:
        return None
    return assignment_of(connection, group_id, member_id)
