"""How do the requests of admin operations look as JSON?

Kafka's messages in snake case, checked where they enter: what is wrong with a body is one sentence under
INVALID_REQUEST.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sharequeue.errors import InvalidRequest
from sharequeue.service.bodies import Text

MOST = 1000
"""Groups, topics or configs of one request."""

Body = TypeVar("Body", bound=BaseModel)
_Index = Annotated[int, Field(ge=0, le=2**31 - 1)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class DescribeBody(_Strict):
    """ShareGroupDescribe."""

    group_ids: list[Text] = Field(max_length=MOST)
    include_authorized_operations: bool = False


class TopicPartitions(_Strict):
    """A topic and some of its partitions."""

    topic_name: Text
    partitions: list[_Index]


class GroupTopics(_Strict):
    """A group, and the topics that are asked for; null is all."""

    group_id: Text
    topics: list[TopicPartitions] | None = None


class DescribeOffsetsBody(_Strict):
    """DescribeShareGroupOffsets."""

    groups: list[GroupTopics] = Field(max_length=MOST)


class StartOffset(_Strict):
    """Where a partition is to start."""

    partition_index: _Index
    start_offset: int = Field(ge=-(2**63), le=2**63 - 1)


class TopicStarts(_Strict):
    """A topic, and where its partitions are to start."""

    topic_name: Text
    partitions: list[StartOffset]


class AlterOffsetsBody(_Strict):
    """AlterShareGroupOffsets."""

    group_id: Text
    topics: list[TopicStarts] = Field(max_length=MOST)


class TopicName(_Strict):
    """A topic."""

    topic_name: Text


class DeleteOffsetsBody(_Strict):
    """DeleteShareGroupOffsets."""

    group_id: Text
    topics: list[TopicName] = Field(max_length=MOST)


class DeleteGroupsBody(_Strict):
    """DeleteGroups."""

    groups_names: list[Text] = Field(max_length=MOST)


class DescribeConfigsBody(_Strict):
    """DescribeConfigs of groups; null is all names."""

    group_ids: list[Text] = Field(max_length=MOST)
    names: list[Text] | None = None


class AlterConfigsBody(_Strict):
    """IncrementalAlterConfigs of a group: names with values, null to take one away."""

    group_id: Text
    configs: dict[Text, Text | int | bool | None] = Field(max_length=MOST)


def parsed(model: type[Body], body: bytes) -> Body:
    """The request in a body. Raises `InvalidRequest` that names the field and what is wrong with it."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        what = "the body is not JSON" if first["type"] == "json_invalid" else f"`{where or 'body'}`"
        raise InvalidRequest(f"{what}: {first['msg']}. See {model.__doc__} for the fields.") from None
