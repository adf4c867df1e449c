"""How do the service's responses look as JSON?

The types of what `bodies` and `admin` return, for type checkers and for the OpenAPI document, which is made of
them (`openapi.py`). Fields are Kafka's in snake case (kafka-semantics 2.19), and ours beside them.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

# pydantic reads no TypedDict of Python 3.11's own.
from typing_extensions import TypedDict

from sharequeue.service.health.faults import Kind

Int32 = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]
Offset = Annotated[int, Field(ge=-1, le=2**63 - 1)]


class Refusal(TypedDict):
    """Kafka's error: 0 and null where there is none."""

    error_code: Int32
    error_message: str | None


class Throttled(TypedDict):
    """What every response of Kafka's begins with: how long to wait before the next request; 0 within the rate."""

    throttle_time_ms: Int32


class TopicPartitionsAnswer(TypedDict):
    """Share-partitions of a topic."""

    topic_id: str
    topic_name: str
    partitions: list[int]


class AssignmentAnswer(TypedDict):
    """What a member is assigned."""

    topic_partitions: list[TopicPartitionsAnswer]


class HeartbeatAnswer(Refusal, Throttled):
    """ShareGroupHeartbeat's response. A null assignment means "as before"."""

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
    """A share-partition's figures; `remark` says what somebody should know."""

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
    remark: str | None


class GroupAnswer(Refusal, Described):
    """A group with its share-partitions, and why topics wait."""

    group_id: str
    offsets: list[SharePartitionAnswer]
    waiting: dict[str, str]


class ListedGroup(TypedDict):
    """A group in the list of all."""

    group_id: str
    group_state: str
    members: int


class GroupsAnswer(TypedDict):
    """The groups there are."""

    groups: list[ListedGroup]


class DescribedGroup(Refusal, Described):
    """ShareGroupDescribe's group; `authorized_operations` is null unless it was asked for."""

    group_id: str
    authorized_operations: list[str] | None


class DescribeAnswer(Throttled):
    """ShareGroupDescribe's response."""

    groups: list[DescribedGroup]


class PartitionOffset(Refusal):
    """Where a share-partition starts, and its lag: -1 where there is none."""

    partition_index: int
    start_offset: Offset
    leader_epoch: Int32
    lag: int


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
    """What was done to a share-partition."""

    partition_index: int


class TopicDone(TypedDict):
    """What was done to a topic's share-partitions."""

    topic_name: str
    partitions: list[PartitionDone]


class AlterOffsetsAnswer(Refusal, Throttled):
    """AlterShareGroupOffsets's response."""

    responses: list[TopicDone]


class TopicDeleted(Refusal):
    """What was done to a topic."""

    topic_name: str


class DeleteOffsetsAnswer(Refusal, Throttled):
    """DeleteShareGroupOffsets's response."""

    responses: list[TopicDeleted]


class GroupDeleted(Refusal):
    """What was done to a group."""

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
    """Something that is wrong: of which kind, with which group, topic or partition, why, and for how long."""

    kind: Kind
    group: str | None
    topic: str | None
    partition: int | None
    reason: str
    age_seconds: float


class WorkAnswer(TypedDict):
    """Seconds since this replica, and since any, last did what replicas do by themselves; null where it never did."""

    this_replica_seconds: float | None
    any_replica_seconds: float | None


class _Ready(TypedDict):
    ready: bool
    degraded: bool


class ReadyAnswer(_Ready, total=False):
    """Whether members may be sent here; and what is wrong, the oldest fault first, for who may know it."""

    broker: str
    database: str
    faults: list[FaultAnswer]
    more_faults: int
    work: dict[str, WorkAnswer]
