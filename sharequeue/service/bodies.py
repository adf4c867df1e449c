"""How do requests and responses look as JSON?

Kafka's messages in snake case (kafka-semantics 2.19), checked where they enter: what is wrong with a body
becomes one sentence under INVALID_REQUEST. The meaning of the fields is `groups`'. Ours beside Kafka's:
`client_id` in the request (Kafka has it in the request header), `topic_name` and `session_timeout_ms` in the
answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from sharequeue.errors import InvalidRequest
from sharequeue.groups.assignments import AssignedTopic
from sharequeue.groups.descriptions import GroupDescription, MemberDescription
from sharequeue.groups.heartbeats import HeartbeatRequest, HeartbeatResponse
from sharequeue.service.answers import (
    AssignmentAnswer,
    GroupAnswer,
    HeartbeatAnswer,
    MemberAnswer,
    SharePartitionAnswer,
)
from sharequeue.values import SharePartitionStatus


def _without_nul(text: str) -> str:
    if "\x00" in text:
        raise ValueError("must not contain the character NUL")
    return text


Text = Annotated[str, AfterValidator(_without_nul), Field(json_schema_extra={"pattern": "^[^\\u0000]*$"})]


class HeartbeatBody(BaseModel):
    """ShareGroupHeartbeat's request. Null, or a field left out, means "as before"."""

    model_config = ConfigDict(strict=True, extra="forbid")

    group_id: Text
    member_id: Text
    member_epoch: int = Field(ge=-(2**31), le=2**31 - 1)
    rack_id: Text | None = None
    subscribed_topic_names: list[Text] | None = Field(default=None, max_length=10_000)
    client_id: Text = ""


def heartbeat_request(body: bytes, client_host: str) -> HeartbeatRequest:
    """The request in a body. Raises `InvalidRequest` that names the field and what is wrong with it."""
    try:
        parsed = HeartbeatBody.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        what = "the body is not JSON" if first["type"] == "json_invalid" else f"`{where or 'body'}`"
        raise InvalidRequest(f"{what}: {first['msg']}. See ShareGroupHeartbeat for the fields.") from None
    topics = parsed.subscribed_topic_names
    return HeartbeatRequest(
        group_id=parsed.group_id,
        member_id=parsed.member_id,
        member_epoch=parsed.member_epoch,
        rack_id=parsed.rack_id,
        subscribed_topic_names=None if topics is None else tuple(topics),
        client_id=parsed.client_id,
        client_host=client_host,
    )


def heartbeat_response(response: HeartbeatResponse) -> HeartbeatAnswer:
    """The response to a ShareGroupHeartbeat."""
    return {
        "throttle_time_ms": 0,
        "error_code": response.error_code,
        "error_message": response.error_message,
        "member_id": response.member_id,
        "member_epoch": response.member_epoch,
        "heartbeat_interval_ms": response.heartbeat_interval_ms,
        "session_timeout_ms": response.session_timeout_ms,
        "assignment": None if response.assignment is None else _assignment(response.assignment),
    }


def group_description(
    group: GroupDescription, partitions: list[SharePartitionStatus], waiting: dict[str, str]
) -> GroupAnswer:
    """ShareGroupDescribe's group, with DescribeShareGroupOffsets' figures and ours beside them."""
    return {
        "error_code": 0,
        "error_message": None,
        "group_id": group.group_id,
        "group_state": group.group_state,
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor_name,
        "members": member_descriptions(group.members),
        "offsets": [_offsets(partition) for partition in partitions],
        "waiting": waiting,
    }


def member_descriptions(members: Iterable[MemberDescription]) -> list[MemberAnswer]:
    """ShareGroupDescribe's members."""
    return [
        {
            "member_id": member.member_id,
            "rack_id": member.rack_id,
            "member_epoch": member.member_epoch,
            "client_id": member.client_id,
            "client_host": member.client_host,
            "subscribed_topic_names": list(member.subscribed_topic_names),
            "joined_at": member.joined_at.isoformat(),
            "session_expires_at": member.session_expires_at.isoformat(),
            "assignment": _assignment(member.assignment),
        }
        for member in members
    ]


def _assignment(topics: tuple[AssignedTopic, ...]) -> AssignmentAnswer:
    return {
        "topic_partitions": [
            {"topic_id": topic.topic_id, "topic_name": topic.topic_name, "partitions": list(topic.partitions)}
            for topic in topics
        ]
    }


def _offsets(status: SharePartitionStatus) -> SharePartitionAnswer:
    return {
        "topic_name": status.topic,
        "topic_id": status.topic_id,
        "partition_index": status.partition,
        "start_offset": status.spso,
        "state_epoch": status.state_epoch,
        "lag": status.lag,
        "status": status.status,
        "end_offset": status.speo,
        "log_end_offset": status.log_end,
        "acquired": status.acquired,
        "available": status.available,
        "archiving": status.archiving,
        "remark": status.remark,
    }
