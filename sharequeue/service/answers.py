"""The service's responses as JSON.

The types that `bodies` and `admin` return, for type checkers and for the OpenAPI document, which is generated from
them (`openapi.py`). Fields are Kafka's in snake case (KIP-932, the messages of its protocol), and our own.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

# pydantic does not support Python 3.11's own TypedDict.
from typing_extensions import TypedDict

from sharequeue.groups.assignments import AssignedTopic
from sharequeue.service.health.faults import Kind

Int32 = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]
Offset = Annotated[int, Field(ge=-1, le=2**63 - 1)]


class Refusal(TypedDict):
    """Kafka's error: 0 and null if there is none."""

    error_code: Int32
    error_message: str | None


class Throttled(TypedDict):
    """The first field of Kafka's responses: the time to wait before the next request; 0 within the rate."""

    throttle_time_ms: Int32


class AssignmentAnswer(TypedDict):
    """The assignment of a member."""

    topic_partitions: list[AssignedTopic]


class HeartbeatAnswer(Refusal, Throttled):
    """ShareGroupHeartbeat's response. A null assignment means that it is unchanged."""

    member_id: str | None
    member_epoch: Int32
    heartbeat_interval_ms: Int32
    session_timeout_ms: Int32
    assignment: AssignmentAnswer | None


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


class SharePartitionAnswer(TypedDict):
    """A share-partition's figures; `remark` has what an operator should know, such as that the lag is out of date.

    If there is lag and nothing can be leased, `blocked_by` is the reason in one word; it may change at
    `blocked_until`, if that is known, and `blocked_offset` is the offset of the blocking record.
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
    blocked_by: str | None
    blocked_until: str | None
    blocked_offset: int | None
    remark: str | None


class GroupAnswer(Refusal, Described):
    """A group with its share-partitions, all remarks on them and on what has no state yet, and the reasons why topics
    wait."""

    group_id: str
    offsets: list[SharePartitionAnswer]
    remarks: list[str]
    waiting: dict[str, str]


class ListedGroup(TypedDict):
    """A group in the list of all groups."""

    group_id: str
    group_state: str
    members: int


class GroupsAnswer(TypedDict):
    """The existing groups."""

    groups: list[ListedGroup]


class DescribedGroup(Refusal, Described):
    """ShareGroupDescribe's group; `authorized_operations` is null unless requested."""

    group_id: str
    authorized_operations: list[str] | None


class DescribeAnswer(Throttled):
    """ShareGroupDescribe's response."""

    groups: list[DescribedGroup]


class PartitionOffset(Refusal):
    """A share-partition's start offset and lag, -1 if there is none; `remark` is our own, as in a group's answer."""

    partition_index: int
    start_offset: Offset
    leader_epoch: Int32
    lag: int
    remark: str | None


class TopicOffsets(TypedDict):
    """Share-partitions of a topic."""

    topic_name: str
    partitions: list[PartitionOffset]


class GroupOffsets(Refusal):
    """DescribeShareGroupOffsets's group."""

    group_id: str
    topics: list[TopicOffsets]


class DescribeOffsetsAnswer(Throttled):
    """DescribeShareGroupOffsets's response."""

    groups: list[GroupOffsets]


class PartitionDone(Refusal):
    """The result for a share-partition."""

    partition_index: int


class TopicDone(TypedDict):
    """The results for a topic's share-partitions."""

    topic_name: str
    partitions: list[PartitionDone]


class AlterOffsetsAnswer(Refusal, Throttled):
    """AlterShareGroupOffsets's response."""

    responses: list[TopicDone]


class TopicDeleted(Refusal):
    """The result for a topic."""

    topic_name: str


class DeleteOffsetsAnswer(Refusal, Throttled):
    """DeleteShareGroupOffsets's response."""

    responses: list[TopicDeleted]


class GroupDeleted(Refusal):
    """The result for a group."""

    group_id: str


class DeleteGroupsAnswer(Throttled):
    """DeleteGroups's response."""

    results: list[GroupDeleted]


class ConfigAnswer(TypedDict):
    """A config of a group."""

    name: str
    value: str | None
    is_default: bool


class GroupConfigsAnswer(Refusal):
    """The configs of a group."""

    group_id: str
    configs: list[ConfigAnswer]


class DescribeConfigsAnswer(Throttled):
    """DescribeConfigs's response."""

    groups: list[GroupConfigsAnswer]


class AlterConfigsAnswer(Refusal, Throttled):
    """IncrementalAlterConfigs's response."""

    warnings: list[str]


class Refused(Refusal, Throttled):
    """An admin operation that was refused as a whole."""


class HealthAnswer(TypedDict):
    """The process runs."""

    status: str
    version: str


class FaultAnswer(TypedDict):
    """A fault: its kind, its group, topic or partition, its reason, and its age."""

    kind: Kind
    group: str | None
    topic: str | None
    partition: int | None
    reason: str
    age_seconds: float


class WorkAnswer(TypedDict):
    """Seconds since this replica, and since any replica, last did each kind of background work; null if never."""

    this_replica_seconds: float | None
    any_replica_seconds: float | None


class _Ready(TypedDict):
    ready: bool
    degraded: bool


class ReadyAnswer(_Ready, total=False):
    """Whether the service is ready for members; and the faults, the oldest first, for callers that may see them."""

    broker: str
    database: str
    faults: list[FaultAnswer]
    more_faults: int
    work: dict[str, WorkAnswer]
