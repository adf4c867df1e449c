"""Groups over HTTP: list, describe, delete."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, cast

from pydantic import Field
from starlette.responses import JSONResponse, Response
from typing_extensions import TypedDict

from sharequeue.domain.errors import InvalidRequest
from sharequeue.domain.figures import SharePartitionStatus, figures_of
from sharequeue.domain.values import WaitingResults
from sharequeue.groups.descriptions import GroupDescription, describe_group, groups_as_json
from sharequeue.reports.remarks import Remark, joined_remarks, lines_of, remarks_of
from sharequeue.service.call import Call
from sharequeue.service.messages import (
    MOST,
    Answer,
    Int32,
    Offset,
    Refusal,
    RequestBody,
    Text,
    ThrottleTime,
    for_each_group,
)
from sharequeue.service.operations.heartbeat import AssignmentAnswer
from sharequeue.service.principal import Principal
from sharequeue.state import State

_STATES = {"Empty", "Stable", "Dead"}


class ListedGroup(TypedDict):
    """A group in the list of all groups."""

    group_id: str
    group_state: str
    members: int


class GroupsAnswer(TypedDict):
    """The existing groups."""

    groups: list[ListedGroup]


async def list_groups(call: Call) -> Response:
    """Return the groups that the caller may DESCRIBE, by name; with `state`, only groups in these states."""
    principal = await call.principal()
    asked = call.request.query_params.get("state", "")
    states = {each.strip().capitalize() for each in asked.split(",")} - {""}
    if states - _STATES:
        raise InvalidRequest("`state` must be a comma-separated list of Empty, Stable and Dead.")

    def listed() -> str:
        with principal.acting() as database:
            return groups_as_json(database, states or _STATES)

    return Response(f'{{"groups": {await call.run(listed)}}}', media_type="application/json")


class MemberAnswer(TypedDict):
    """A member of a group."""

    member_id: str
    rack_id: str | None
    member_epoch: Int32
    client_id: str
    client_host: str
    subscribed_topic_names: list[str]
    joined_at: str
    session_expires_at: str
    assignment: AssignmentAnswer


class Described(TypedDict):
    """State, epochs and members of a group."""

    group_state: str
    group_epoch: Int32
    assignment_epoch: Int32
    assignor_name: str
    members: list[MemberAnswer]


def described(group: GroupDescription) -> Described:
    """Return state, epochs and members of a group, as in ShareGroupDescribe."""
    return {
        "group_state": group.group_state,
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor_name,
        "members": [
            {
                "member_id": member.member_id,
                "rack_id": member.rack_id,
                "member_epoch": member.member_epoch,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "subscribed_topic_names": list(member.subscribed_topic_names),
                "joined_at": member.joined_at.isoformat(),
                "session_expires_at": member.session_expires_at.isoformat(),
                "assignment": {"topic_partitions": member.assignment},
            }
            for member in group.members
        ],
    }


class SharePartitionAnswer(TypedDict):
    """A share-partition's figures; `remark` has what an operator should know, such as that the lag is out of date.

    If there is lag and nothing can be leased, `blocked_by` is the reason in one word; it may change at
    `blocked_until`, if that is known, and `blocked_offset` is the offset of the blocking record. In a group that is
    ordered by key, `held_records` wait behind an earlier record of their key (`available` counts them too), and
    `open_offset` is that record of the key that is open for the longest time.
    """

    topic_name: str
    topic_id: str
    partition_index: int
    start_offset: Offset
    state_epoch: Int32
    lag: int
    status: str
    end_offset: Offset
    log_end_offset: Offset
    acquired: int
    available: int
    archiving: int
    held_records: int
    open_keys: int
    letter_keys: int
    open_offset: int | None
    open_since: str | None
    blocked_by: str | None
    blocked_until: str | None
    blocked_offset: int | None
    remark: str | None


class ResultsAnswer(TypedDict):
    """Accepted rows that are not in the table or topic of their sink yet; `held_reason` is why that could not be
    written."""

    sink: str
    rows: int
    oldest_at: str
    held_since: str | None
    held_reason: str | None


class GroupAnswer(Refusal, Described):
    """A group with its share-partitions, the results that wait for the target of their sink, all remarks on them and
    on what has no state yet, and the reasons why topics wait."""

    group_id: str
    offsets: list[SharePartitionAnswer]
    results: list[ResultsAnswer]
    remarks: list[str]
    waiting: dict[str, str]


async def group(call: Call) -> Response:
    """Return the group with its members and share-partitions; 404 if it does not exist."""
    group_id, database = await call.group(), call.service.database
    found = await call.run(lambda: describe_group(database, group_id))
    partitions = await call.run(lambda: State(database).figures.describe(group_id))
    results = await call.run(lambda: State(database).outputs.waiting_results([group_id]))
    remarks = await call.run(lambda: remarks_of(database, group_id, partitions, results=results))
    waiting = {
        topic: why for (waits, topic), why in call.service.coordinator.waiting.items() if waits == group_id
    }
    return JSONResponse(group_answer(found, partitions, results, remarks, waiting))


def group_answer(
    group: GroupDescription,
    partitions: Sequence[SharePartitionStatus],
    results: Sequence[WaitingResults],
    remarks: Sequence[Remark],
    waiting: dict[str, str],
) -> GroupAnswer:
    """Return ShareGroupDescribe's group, with the figures of DescribeShareGroupOffsets and our own."""
    texts = joined_remarks(remarks)
    return {
        "error_code": 0,
        "error_message": None,
        "group_id": group.group_id,
        **described(group),
        "offsets": [_figures(each, texts.get((each.topic, each.partition))) for each in partitions],
        "results": [
            {
                "sink": each.sink,
                "rows": each.rows,
                "oldest_at": each.oldest_at.isoformat(),
                "held_since": None if each.held_since is None else each.held_since.isoformat(),
                "held_reason": each.held_reason,
            }
            for each in results
        ],
        "remarks": [line.text for line in lines_of(remarks)],
        "waiting": waiting,
    }


def _figures(status: SharePartitionStatus, remark: str | None) -> SharePartitionAnswer:
    figures: dict[str, Any] = {
        each.http: getattr(status, each.name) for each in figures_of(SharePartitionStatus) if each.http
    }
    named = {
        "topic_name": status.topic,
        "topic_id": status.topic_id,
        "partition_index": status.partition,
        "remark": remark,
    }
    found = {
        name: value.isoformat() if isinstance(value, datetime) else value for name, value in figures.items()
    }
    return cast("SharePartitionAnswer", named | found)


class DescribeBody(RequestBody):
    """ShareGroupDescribe."""

    request = "ShareGroupDescribe"

    group_ids: list[Text] = Field(max_length=MOST)
    include_authorized_operations: bool = False


class DescribedGroup(Refusal, Described):
    """ShareGroupDescribe's group; `authorized_operations` is null unless requested."""

    group_id: str
    authorized_operations: list[str] | None


class DescribeAnswer(ThrottleTime):
    """ShareGroupDescribe's response."""

    groups: list[DescribedGroup]


_NOTHING_DESCRIBED: Answer = {
    "group_state": "",
    "group_epoch": 0,
    "assignment_epoch": 0,
    "assignor_name": "",
    "members": [],
    "authorized_operations": None,
}


def describe_groups(principal: Principal, body: DescribeBody) -> Answer:
    """ShareGroupDescribe: return state, epochs and members of groups, and the caller's allowed operations."""

    def one(group_id: str) -> Answer:
        allowed = principal.require(group_id, "DESCRIBE")
        found = describe_group(principal.database, group_id)
        principal.require_topics(
            {topic["topic_name"] for member in found.members for topic in member.assignment}
        )
        return {
            **described(found),
            "authorized_operations": allowed if body.include_authorized_operations else None,
        }

    return {"groups": for_each_group(body.group_ids, one, _NOTHING_DESCRIBED)}


class DeleteGroupsBody(RequestBody):
    """DeleteGroups."""

    request = "DeleteGroups"

    groups_names: list[Text] = Field(max_length=MOST)


class GroupDeleted(Refusal):
    """The result for a group."""

    group_id: str


class DeleteGroupsAnswer(ThrottleTime):
    """DeleteGroups's response."""

    results: list[GroupDeleted]


def delete_groups(principal: Principal, body: DeleteGroupsBody) -> Answer:
    """DeleteGroups: delete each group with all its data except its configs. Refused while it has members."""

    def one(group_id: str) -> Answer:
        # First, so that the answer about a closed group is the same whether there is such a group or not.
        principal.require(group_id, "DELETE")
        with principal.acting() as database:
            describe_group(principal.database, group_id)
            State(database).administration.delete_group(group_id)
        return {}

    return {"results": for_each_group(body.groups_names, one)}
