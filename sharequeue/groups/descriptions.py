"""Describe a share group: its state, its epochs, its members.

Read only; the values of Kafka's ListGroups and ShareGroupDescribe (KIP-932; R-AD-4). The figures
of share-partitions are in `State.figures.describe`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import text

from sharequeue.database import Database
from sharequeue.domain.errors import GroupIdNotFound, InvalidGroupId
from sharequeue.domain.names import too_long
from sharequeue.groups.assignments import AssignedTopic

ASSIGNOR = "simple"
"""Kafka's SimpleAssignor, the only one of share groups."""


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A group in a list: `Empty` without members, else `Stable`."""

    group_id: str
    group_state: str
    members: int


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group and its assignment."""

    member_id: str
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    joined_at: datetime
    session_expires_at: datetime
    assignment: list[AssignedTopic]

    @property
    def assigned(self) -> str:
        """The assignment, as Kafka's tools write it: `flights:0,2;orders:1`."""
        return ";".join(
            f"{topic['topic_name']}:{','.join(map(str, sorted(topic['partitions'])))}"
            for topic in sorted(self.assignment, key=lambda topic: topic["topic_name"])
        )

    @property
    def partitions(self) -> int:
        """The number of share-partitions of the assignment."""
        return sum(len(topic["partitions"]) for topic in self.assignment)


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group with its members."""

    group_id: str
    group_state: str
    group_epoch: int
    assignment_epoch: int
    assignor_name: str
    members: tuple[MemberDescription, ...]
    created_at: datetime


# Whether ACLs apply to a group is stored; if none do, every caller may see it.
_LISTED = (
    "select g.group_id, (select count(*) from sharequeue.members m where m.group_id = g.group_id) as members"
    " from sharequeue.share_groups g left join sharequeue.group_settings s using (group_id)"
    " where g.group_id > :after and (:part = '' or position(lower(:part) in lower(g.group_id)) > 0)"
    " and (s.acls_apply is false or 'DESCRIBE' = any (sharequeue.authorized_operations(g.group_id, '{DESCRIBE}')))"
    " order by g.group_id limit :most"
)
_LIST = text(_LISTED)
_LIST_AS_JSON = text(
    "select cast(coalesce(json_agg(json_build_object("  # noqa: S608  (no value is in it)
    " 'group_id', group_id, 'group_state', state, 'members', members) order by group_id), '[]') as text) as groups"
    " from (select *, case when members > 0 then 'Stable' else 'Empty' end as state from"
    f" ({_LISTED}) as l) as s where state = any (cast(:states as text[]))"
)


def list_groups(
    database: Database, part: str = "", after: str = "", most: int | None = None
) -> list[GroupSummary]:
    """Return the groups that the caller may DESCRIBE (Kafka's ListGroups), by name.

    These are groups after the id `after` with `part` in their id, `most` at most. One statement for any number of
    groups.
    """
    rows = database.rows(_LIST, part=part, after=after, most=most)
    return [GroupSummary(row["group_id"], _state(row["members"]), row["members"]) for row in rows]


def groups_as_json(database: Database, states: Iterable[str]) -> str:
    """Return all groups of `list_groups` that are in one of these states, as a JSON array.

    Postgres makes the text: objects for thousands of groups would block every other thread of this process.
    """
    [row] = database.rows(_LIST_AS_JSON, part="", after="", most=None, states=list(states))
    return str(row["groups"])


def describe_group(database: Database, group_id: str) -> GroupDescription:
    """Describe one group. Raises `InvalidGroupId` for an invalid id, `GroupIdNotFound` if there is no such group."""
    if not group_id or "\x00" in group_id or too_long("group id", group_id):
        raise InvalidGroupId(too_long("group id", group_id) or None)
    parameters = {"group_id": group_id}
    with database.transaction() as connection:
        group = connection.execute(
            text("select * from sharequeue.share_groups where group_id = :group_id"), parameters
        ).one_or_none()
        if group is None:
            raise GroupIdNotFound(
                f"There is no share group {group_id}. A group is created by its first member."
            )
        rows = connection.execute(
            text(
                "select m.*, sharequeue.assignment_of(m.group_id, m.member_id) as assignment"
                " from sharequeue.members m where m.group_id = :group_id order by m.member_id"
            ),
            parameters,
        ).all()
        members = tuple(
            MemberDescription(
                row.member_id,
                row.rack_id,
                row.member_epoch,
                row.client_id,
                row.client_host,
                tuple(row.subscribed_topic_names),
                row.joined_at,
                row.session_expires_at,
                row.assignment,
            )
            for row in rows
        )
    state = _state(len(members))
    return GroupDescription(
        group_id, state, group.group_epoch, group.assignment_epoch, ASSIGNOR, members, group.created_at
    )


def _state(members: int) -> str:
    return "Stable" if members else "Empty"
