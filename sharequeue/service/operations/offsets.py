"""The offsets of groups over HTTP: describe, alter, delete."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from pydantic import Field
from typing_extensions import TypedDict

from sharequeue.domain.errors import InvalidRequest, ShareError, UnknownTopicOrPartition
from sharequeue.domain.figures import SharePartitionStatus
from sharequeue.domain.names import shown
from sharequeue.domain.values import ResetRow
from sharequeue.reports.remarks import joined_remarks, remarks_of
from sharequeue.service.error_responses import error_fields
from sharequeue.service.messages import (
    MOST,
    Answer,
    Int32,
    Offset,
    PartitionIndex,
    Refusal,
    RequestBody,
    RequestPart,
    Text,
    ThrottleTime,
    for_each_group,
)
from sharequeue.service.principal import Principal
from sharequeue.state import State

_NO_OFFSET = -1
_NO_LEADER_EPOCH = -1
"""Kafka's value for an unknown epoch: a share-partition has no leader here."""


class TopicPartitions(RequestPart):
    """A topic and some of its partitions."""

    topic_name: Text
    partitions: list[PartitionIndex]


class GroupTopics(RequestPart):
    """A group and the requested topics; null requests all."""

    group_id: Text
    topics: list[TopicPartitions] | None = None


class DescribeOffsetsBody(RequestBody):
    """DescribeShareGroupOffsets."""

    request = "DescribeShareGroupOffsets"

    groups: list[GroupTopics] = Field(max_length=MOST)


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


class DescribeOffsetsAnswer(ThrottleTime):
    """DescribeShareGroupOffsets's response."""

    groups: list[GroupOffsets]


def describe_offsets(principal: Principal, body: DescribeOffsetsBody) -> Answer:
    """DescribeShareGroupOffsets: return start offsets and lag; -1 if there is none. A group need not exist."""

    def one(group_id: str, topics: Sequence[TopicPartitions] | None) -> Answer:
        database = principal.database
        principal.require(group_id, "DESCRIBE")
        found = {(each.topic, each.partition): each for each in State(database).figures.describe(group_id)}
        noted = remarks_of(database, group_id, found.values())
        remarks = joined_remarks(noted)
        # A partition without state has a remark.
        noted_at = {
            (each.topic, each.partition) for each in noted if each.topic and each.partition is not None
        }
        named: list[tuple[str, int]] = sorted(noted_at | found.keys())
        if topics is not None:
            named = [(topic.topic_name, part) for topic in topics for part in topic.partitions]
        refused = principal.refused_topics({topic for topic, _ in named}, "DESCRIBE")
        if topics is None:
            named = [at for at in named if at[0] not in refused]

        def one_of(at: tuple[str, int]) -> Answer:
            return _offsets(at[1], found.get(at), remarks.get(at), refused.get(at[0]))

        return {"topics": _by_topic(named, one_of)}

    answers: list[Answer] = []
    for each in body.groups:
        answers += for_each_group([each.group_id], partial(one, topics=each.topics), {"topics": []})
    return {"groups": answers}


def _offsets(
    partition: int, found: SharePartitionStatus | None, remark: str | None, refused: ShareError | None = None
) -> Answer:
    if refused is not None:
        found = remark = None
    return {
        "partition_index": partition,
        "start_offset": found.spso if found else _NO_OFFSET,
        "leader_epoch": _NO_LEADER_EPOCH,
        "lag": found.lag if found else _NO_OFFSET,
        "remark": remark,
        **error_fields(refused),
    }


def _by_topic(named: Sequence[tuple[str, int]], one: Callable[[tuple[str, int]], Answer]) -> list[Answer]:
    topics: dict[str, list[Answer]] = {}
    for at in named:
        topics.setdefault(at[0], []).append(one(at))
    return [{"topic_name": topic, "partitions": partitions} for topic, partitions in topics.items()]


class StartOffset(RequestPart):
    """The start offset of a partition."""

    partition_index: PartitionIndex
    start_offset: int = Field(ge=-(2**63), le=2**63 - 1)


class TopicStarts(RequestPart):
    """A topic and the start offsets of its partitions."""

    topic_name: Text
    partitions: list[StartOffset]


class AlterOffsetsBody(RequestBody):
    """AlterShareGroupOffsets."""

    request = "AlterShareGroupOffsets"

    group_id: Text
    topics: list[TopicStarts] = Field(max_length=MOST)


class PartitionDone(Refusal):
    """The result for a share-partition."""

    partition_index: int


class TopicDone(TypedDict):
    """The results for a topic's share-partitions."""

    topic_name: str
    partitions: list[PartitionDone]


class AlterOffsetsAnswer(Refusal, ThrottleTime):
    """AlterShareGroupOffsets's response."""

    responses: list[TopicDone]


def alter_offsets(principal: Principal, body: AlterOffsetsBody) -> Answer:
    """AlterShareGroupOffsets: set the start offsets of a group, and create it if needed. Refused while it has
    members."""
    principal.require(body.group_id, "READ")
    done = {(row.topic, row.partition): row for row in _altered(principal, body)}

    def one(at: tuple[str, int]) -> Answer:
        return {"partition_index": at[1], **error_fields(done[at].error)}

    return {**error_fields(None), "responses": _by_topic(sorted(done), one)}


def _altered(principal: Principal, body: AlterOffsetsBody) -> list[ResetRow]:
    """Set the start offsets, and return a row for each partition; that of a refused one has the error."""
    if not body.topics:
        return []  # as in Kafka: an empty request creates no group
    named = [(each.topic_name, part.partition_index) for each in body.topics for part in each.partitions]
    for (topic_name, index), times in Counter(named).items():
        if times > 1:
            raise InvalidRequest(
                f"partition {index} of topic {shown(topic_name)} is named twice: give it one start offset"
            )
    topics = {each.topic_name for each in body.topics}
    refused = principal.refused_topics(topics, "READ")
    ids = dict(principal.topics.ask(topics).known)
    starts: dict[tuple[str, int], int] = {}
    errors: list[ResetRow] = []
    for topic in body.topics:
        for each in topic.partitions:
            known = ids.get(topic.topic_name)
            error = refused.get(topic.topic_name)
            if error is None and (known is None or not 0 <= each.partition_index < known.partitions):
                error = UnknownTopicOrPartition()
            if error is None:
                starts[topic.topic_name, each.partition_index] = each.start_offset
            else:
                at = (topic.topic_name, each.partition_index)
                errors.append(ResetRow(*at, None, each.start_offset, None, error))
    with principal.acting() as database:
        done = State(database).administration.reset_offsets(
            body.group_id, starts, {name: info.topic_id for name, info in ids.items()}, execute=True
        )
    return [*done, *errors]


class TopicName(RequestPart):
    """A topic."""

    topic_name: Text


class DeleteOffsetsBody(RequestBody):
    """DeleteShareGroupOffsets."""

    request = "DeleteShareGroupOffsets"

    group_id: Text
    topics: list[TopicName] = Field(max_length=MOST)


class TopicDeleted(Refusal):
    """The result for a topic."""

    topic_name: str


class DeleteOffsetsAnswer(Refusal, ThrottleTime):
    """DeleteShareGroupOffsets's response."""

    responses: list[TopicDeleted]


def delete_offsets(principal: Principal, body: DeleteOffsetsBody) -> Answer:
    """DeleteShareGroupOffsets: delete a group's state of topics. Refused while it has members."""
    principal.require(body.group_id, "DELETE")
    names = dict.fromkeys(each.topic_name for each in body.topics)
    refused = principal.refused_topics(names, "READ")
    deleted: dict[str, int] = {}
    for topic in (name for name in names if name not in refused):
        # One transaction each: all transactions lock share-partitions in the same order.
        with principal.acting() as database:
            deleted[topic] = State(database).administration.delete_offsets(body.group_id, topic)
    absent = UnknownTopicOrPartition("There is no offset information to delete.")
    responses = [
        {"topic_name": topic, **error_fields(refused.get(topic) or (None if deleted[topic] else absent))}
        for topic in (each.topic_name for each in body.topics)
    ]
    return {**error_fields(None), "responses": responses}
