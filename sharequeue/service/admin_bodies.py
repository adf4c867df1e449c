"""The requests of admin operations as JSON.

Kafka's messages in snake case, validated on entry: the fault of a body is one sentence under INVALID_REQUEST.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from sharequeue.service.bodies import Part, RequestBody, Text, without_nul

MOST = 1000
"""The maximum number of groups, topics or configs in one request."""


def _config_value(value: Any) -> Any:
    """Return a value of one of several types; pydantic's own message would name only the first type."""
    if not isinstance(value, str | int | None):
        raise PydanticCustomError(
            "config_value", "Input should be a string, a whole number, true, false or null"
        )
    return without_nul(value) if isinstance(value, str) else value


_ConfigValue = Annotated[Text | int | bool | None, BeforeValidator(_config_value)]
_Index = Annotated[int, Field(ge=0, le=2**31 - 1)]


class DescribeBody(RequestBody):
    """ShareGroupDescribe."""

    request = "ShareGroupDescribe"

    group_ids: list[Text] = Field(max_length=MOST)
    include_authorized_operations: bool = False


class TopicPartitions(Part):
    """A topic and some of its partitions."""

    topic_name: Text
    partitions: list[_Index]


class GroupTopics(Part):
    """A group and the requested topics; null requests all."""

    group_id: Text
    topics: list[TopicPartitions] | None = None


class DescribeOffsetsBody(RequestBody):
    """DescribeShareGroupOffsets."""

    request = "DescribeShareGroupOffsets"

    groups: list[GroupTopics] = Field(max_length=MOST)


class StartOffset(Part):
    """The start offset of a partition."""

    partition_index: _Index
    start_offset: int = Field(ge=-(2**63), le=2**63 - 1)


class TopicStarts(Part):
    """A topic and the start offsets of its partitions."""

    topic_name: Text
    partitions: list[StartOffset]


class AlterOffsetsBody(RequestBody):
    """AlterShareGroupOffsets."""

    request = "AlterShareGroupOffsets"

    group_id: Text
    topics: list[TopicStarts] = Field(max_length=MOST)


class TopicName(Part):
    """A topic."""

    topic_name: Text


class DeleteOffsetsBody(RequestBody):
    """DeleteShareGroupOffsets."""

    request = "DeleteShareGroupOffsets"

    group_id: Text
    topics: list[TopicName] = Field(max_length=MOST)


class DeleteGroupsBody(RequestBody):
    """DeleteGroups."""

    request = "DeleteGroups"

    groups_names: list[Text] = Field(max_length=MOST)


class DescribeConfigsBody(RequestBody):
    """DescribeConfigs of groups; null requests all names."""

    request = "DescribeConfigs"

    group_ids: list[Text] = Field(max_length=MOST)
    names: list[Text] | None = None


class AlterConfigsBody(RequestBody):
    """IncrementalAlterConfigs of a group: names with values; null removes a value."""

    request = "IncrementalAlterConfigs"

    group_id: Text
    configs: dict[Text, _ConfigValue] = Field(max_length=MOST)
