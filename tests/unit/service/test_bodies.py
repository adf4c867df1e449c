"""A body of a request: taken as it is meant, or refused with the field."""

from __future__ import annotations

import json

import pytest

from sharequeue.domain.errors import InvalidRequest
from sharequeue.service.call import Endpoint
from sharequeue.service.endpoints import ENDPOINTS
from sharequeue.service.messages import RequestBody, parsed
from sharequeue.service.operations.configs import AlterConfigsBody, DescribeConfigsBody
from sharequeue.service.operations.groups import DeleteGroupsBody
from sharequeue.service.operations.heartbeat import HeartbeatBody, heartbeat_request
from sharequeue.service.operations.offsets import AlterOffsetsBody

BEAT = '{"group_id":"g","member_id":"m","member_epoch":0%s}'


def refusal(model: type[RequestBody], body: str | bytes) -> str:
    """Return why a body is refused."""
    with pytest.raises(InvalidRequest) as refused:
        parsed(model, body.encode() if isinstance(body, str) else body)
    return refused.value.message


@pytest.mark.parametrize(
    ("model", "body", "name"),
    [
        (HeartbeatBody, BEAT % ',"group_id":"h"', "group_id"),
        (HeartbeatBody, BEAT % ',"group_id" : "h"', "group_id"),
        (HeartbeatBody, BEAT % ',"\\u0067roup_id":"g"', "group_id"),
        (HeartbeatBody, BEAT % ',"rack_id":null,"rack_id":null', "rack_id"),
        (AlterConfigsBody, '{"group_id":"g","configs":{"a":"3","a":"4"}}', "a"),
        (AlterConfigsBody, '{"group_id":"g","configs":{"a":"3"},"configs":{"a":"4"}}', "configs"),
        (
            AlterOffsetsBody,
            '{"group_id":"g","topics":[{"topic_name":"t","partitions":'
            '[{"partition_index":0,"start_offset":1,"start_offset":2}]}]}',
            "start_offset",
        ),
    ],
)
def test_a_field_that_is_there_twice_is_refused(model: type[RequestBody], body: str, name: str) -> None:
    """JSON has no rule for it, and parsers take the last: an operator who sent both meant neither for sure."""
    assert refusal(model, body) == f"'{name}' is in one object twice: give it once."


@pytest.mark.parametrize(
    "value",
    ['"a:b"', '"\\":\\":"', '"{\\"group_id\\":1,\\"group_id\\":2}"', '"é\\ud83d\\ude00"', '"\\u0009"'],
)
def test_what_only_looks_like_two_fields_is_taken(value: str) -> None:
    """A colon in a text is none of an object."""
    body = BEAT % f',"client_id":{value}'
    assert heartbeat_request(body.encode(), "host").client_id == json.loads(value)


def test_the_same_field_in_two_objects_is_taken() -> None:
    """And a number that is too long for an `int` of Python's."""
    starts = [{"partition_index": at, "start_offset": 5} for at in range(2)]
    body = {"group_id": "g", "topics": [{"topic_name": "t:u", "partitions": starts}]}
    assert parsed(AlterOffsetsBody, json.dumps(body).encode()).model_dump() == body
    long = f'{{"group_id":"g","configs":{{"a":{"9" * 4000}}}}}'
    assert parsed(AlterConfigsBody, long.encode()).configs == {"a": int("9" * 4000)}


@pytest.mark.parametrize("each", [each for each in ENDPOINTS if each.body], ids=lambda each: each.path)
def test_a_refusal_names_the_request(each: Endpoint) -> None:
    """Under the name that the pages and Kafka have for it."""
    assert each.body is not None
    assert each.body.request in each.summary
    assert refusal(each.body, '{"nix":1}').endswith(f" See {each.body.request} for the fields.")


@pytest.mark.parametrize(
    ("model", "body", "said"),
    [
        (
            HeartbeatBody,
            "{",
            "the body is not JSON: Invalid JSON: EOF while parsing an object at line 1 column 1",
        ),
        (HeartbeatBody, "null", "`body`: Input should be an object"),
        (HeartbeatBody, "[" * 100_000, "the body is not JSON: Invalid JSON: recursion limit exceeded"),
        (HeartbeatBody, BEAT % ',"rack_id":"\\u0000"', "`rack_id`: must not contain the character NUL."),
        (AlterConfigsBody, '{"group_id":"g"}', "`configs`: Field required. See IncrementalAlterConfigs for"),
        (
            AlterConfigsBody,
            '{"group_id":"g","configs":{"a":["3"]}}',
            "`configs.a`: Input should be a string, a whole number, true, false or null. See Incremental",
        ),
        (
            AlterConfigsBody,
            '{"group_id":"g","configs":{"a":3.5}}',
            "`configs.a`: Input should be a string, a",
        ),
        (AlterConfigsBody, '{"group_id":"g","configs":{"a":"\\u0000"}}', "`configs.a`: must not contain the"),
        (
            DescribeConfigsBody,
            '{"group_ids":[1]}',
            "`group_ids.0`: Input should be a valid string. See Describe",
        ),
        (DeleteGroupsBody, '{"groups_names":"g"}', "`groups_names`: Input should be a valid array"),
    ],
)
def test_what_is_wrong_is_one_sentence(model: type[RequestBody], body: str, said: str) -> None:
    """With the field, and with nothing of how it is checked."""
    found = refusal(model, body)
    assert found.startswith(said)
    assert "function" not in found
    assert "Value error" not in found


def test_values_of_configs_keep_their_type() -> None:
    """Null takes a value away."""
    body = '{"group_id":"g","configs":{"a":"3","b":4,"c":true,"d":null}}'
    assert parsed(AlterConfigsBody, body.encode()).configs == {"a": "3", "b": 4, "c": True, "d": None}
