"""The configs of groups over HTTP: describe, alter."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from sharequeue.deadletters.topic import warning_of_alter
from sharequeue.domain.errors import InvalidGroupId
from sharequeue.groups.configs import GroupConfigs, alter_and_tell
from sharequeue.groups.configs.keys import GROUP_CONFIGS
from sharequeue.groups.configs.names import known_key
from sharequeue.groups.configs.texts import as_text
from sharequeue.service.error_responses import error_fields
from sharequeue.service.messages import (
    MOST,
    Answer,
    Refusal,
    RequestBody,
    Text,
    ThrottleTime,
    for_each_group,
    without_nul,
)
from sharequeue.service.principal import Principal


class DescribeConfigsBody(RequestBody):
    """DescribeConfigs of groups; null requests all names."""

    request = "DescribeConfigs"

    group_ids: list[Text] = Field(max_length=MOST)
    names: list[Text] | None = None


class ConfigAnswer(TypedDict):
    """A config of a group."""

    name: str
    value: str | None
    is_default: bool


class GroupConfigsAnswer(Refusal):
    """The configs of a group."""

    group_id: str
    configs: list[ConfigAnswer]


class DescribeConfigsAnswer(ThrottleTime):
    """DescribeConfigs's response."""

    groups: list[GroupConfigsAnswer]


def describe_configs(principal: Principal, body: DescribeConfigsBody) -> Answer:
    """DescribeConfigs of groups: return each value, and whether the group has set it.

    An unknown name is refused, as in all operations here; Kafka silently leaves it out of the response.
    """

    def one(group_id: str) -> Answer:
        principal.require(group_id, "DESCRIBE_CONFIGS")
        for name in body.names or ():
            known_key(name, GROUP_CONFIGS)
        found = GroupConfigs.load(principal.database, group_id)
        return {
            "configs": [
                {"name": name, "value": as_text(value), "is_default": name not in found.own}
                for name, value in found.values.items()
                if body.names is None or name in body.names
            ]
        }

    return {"groups": for_each_group(body.group_ids, one, {"configs": []})}


def _config_value(value: Any) -> Any:
    """Return a value of one of several types; pydantic's own message would name only the first type."""
    if not isinstance(value, str | int | None):
        raise PydanticCustomError(
            "config_value", "Input should be a string, a whole number, true, false or null"
        )
    return without_nul(value) if isinstance(value, str) else value


_ConfigValue = Annotated[Text | int | bool | None, BeforeValidator(_config_value)]


class AlterConfigsBody(RequestBody):
    """IncrementalAlterConfigs of a group: names with values; null removes a value."""

    request = "IncrementalAlterConfigs"

    group_id: Text
    configs: dict[Text, _ConfigValue] = Field(max_length=MOST)


class AlterConfigsAnswer(Refusal, ThrottleTime):
    """IncrementalAlterConfigs's response."""

    warnings: list[str]


def alter_configs(principal: Principal, body: AlterConfigsBody) -> Answer:
    """IncrementalAlterConfigs of a group: make all changes or, after an error, none. Null removes a value."""
    if not body.group_id:
        raise InvalidGroupId()
    principal.require(body.group_id, "ALTER_CONFIGS")
    with principal.acting() as database:
        configs, late = alter_and_tell(database, body.group_id, body.configs)
    # After the transaction, because the broker may be slow.
    held = warning_of_alter(principal.topics.settings, principal.database, configs, body.configs)
    warnings = [warning for warning in (late, held) if warning is not None]
    return {**error_fields(None), "warnings": warnings}
