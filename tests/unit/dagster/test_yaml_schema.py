"""Names and types of a `defs.yaml`: a mistake is one error, which names the field and what is expected."""

from __future__ import annotations

from typing import Annotated, Any

import dagster as dg
import pytest
from dagster_shared.yaml_utils.sample_yaml import generate_sample_yaml
from jsonschema import Draft202012Validator

from sharequeue.dagster import ShareGroupComponent
from tests.fixtures.dagster_yaml import MINIMAL, refused


def problems(**given: Any) -> dict[str, list[str]]:
    """What `dg check yaml` says of a queue: the messages, by the field that it points to."""
    model = ShareGroupComponent.get_model_cls()
    assert model is not None
    found: dict[str, list[str]] = {}
    for error in Draft202012Validator(model.model_json_schema()).iter_errors({**MINIMAL, **given}):
        found.setdefault(".".join(map(str, error.absolute_path)), []).append(error.message)
    return found


@pytest.mark.parametrize(
    ("given", "field", "messages"),
    [
        (
            {"automation": {"sensor": {"interval": 5}}},
            "automation.sensor.interval",
            ["'one of the fields enabled, min_lag, "],
        ),
        (
            {"freshness": {"window": "2h", "fail_window": "2h"}},
            "freshness.window",
            ["'one of the fields fail_window, warn_window' was expected"],
        ),
        ({"pipelines": "x"}, "pipelines", ["'one of the fields group, "]),
        ({"freshness": {}}, "freshness", ["'fail_window' is a required property"]),
        (
            {"backfill": {"start": "2013-01-01", "partitions": "weekdays"}},
            "backfill.partitions",
            ["'weekdays' is not one of ["],
        ),
        ({"run": {"max_records": "ten"}}, "run.max_records", ["'ten' is not of type 'integer'"]),
        ({"run": {"max_records": [1]}}, "run.max_records", ["[1] is not of type 'integer', 'string'"]),
        ({"topics": [1]}, "topics.0", ["1 is not of type 'string'"]),
        ({"topics": {"a": 1}}, "topics", ["is not of type 'array', 'string'"]),
        ({"summaries": {"delays": 1}}, "summaries.delays", ["1 is not of type 'string'"]),
        ({"backfill": 5}, "backfill", ["5 is not of type 'object', 'null', 'string'"]),
        ({"topic_assets": 5}, "topic_assets", ["5 is not of type 'boolean', 'string'"]),
        ({"topic_translation": "raw"}, "topic_translation", ["'raw' is not of type 'object', 'null'"]),
        ({"translation": {"kay": "x"}}, "translation", ["('kay' was unexpected)"]),
    ],
)
def test_dg_check_yaml_names_the_wrong_field_and_what_is_expected(
    given: dict[str, Any], field: str, messages: list[str]
) -> None:
    """At any depth, once; the message is never only that no schema fits."""
    told = problems(**given)
    assert list(told) == [field]
    assert all(any(message in each for each in told[field]) for message in messages)
    assert len(told[field]) == len(messages)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"run": {"max_records": "{{ env.MOST }}", "max_bytes": None, "max_seconds": 1.5}},
        {"automation": "{{ automation }}", "freshness": None, "key_prefix": ["a", "b"]},
        {"backfill": {"start": "2013-01-01", "partitions": "{{ partitions }}"}, "key_prefix": "a"},
        {"configs": {"share.delivery.count.limit": 5, "share.auto.offset.reset": "earliest"}},
        {"translation": {"group_name": "lake"}, "tags": {"a": "b"}, "owners": ["team:a"]},
    ],
)
def test_dg_check_yaml_allows_what_loads(given: dict[str, Any]) -> None:
    """Values, templates in place of values, and null where a value is optional."""
    assert problems(**given) == {}


def test_the_schema_has_the_fields_of_a_custom_component() -> None:
    class Audited(ShareGroupComponent):
        auditor: str = "nobody"
        translation: Annotated[Any, dg.Resolver(lambda context, given: None, model_field_type=str)] = None

    model = Audited.get_model_cls()
    assert model is not None
    validator = Draft202012Validator(model.model_json_schema())
    assert [*validator.iter_errors({**MINIMAL, "auditor": "team:a", "translation": "b"})] == []
    assert model.model_validate({**MINIMAL, "translation": "b"})
    assert generate_sample_yaml("shop.Audited", model.model_json_schema())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"automation": {"schedule": {"cron": 5}}},
            "automation.schedule.cron is 5: expected a list or a text",
        ),
        (
            {"automation": {"schedule": {"cron": None}}},
            "automation.schedule.cron is null: expected a list or",
        ),
        ({"automation": {"schedule": {"cron": ["0 3 * * *", 5]}}}, "cron[1] is 5: expected a text"),
        ({"automation": {"schedule": {}}}, "automation.schedule needs the field 'cron': it has none"),
        ({"automation": {"sensor": {"enabled": "maybe"}}}, 'enabled is "maybe": expected true or false'),
        ({"run": 5}, "run is 5: expected fields (max_seconds, max_records, max_bytes and 3 more)"),
        ({"run": "fast"}, 'run is "fast": expected fields (max_seconds, '),
        ({"run": {"max_seconds": "ten"}}, 'run.max_seconds is "ten": expected a number'),
        ({"run": {"max_records": 1.5}}, "run.max_records is 1.5: expected a whole number"),
        ({"run": {"max_records": True}}, "run.max_records is true: expected a whole number"),
        ({"run": {"launch": {"client": "a", "arguments": ["a"]}}}, 'arguments is ["a"]: expected names with'),
        (
            {"configs": {"share.delivery.count.limit": [5]}},
            "configs.share.delivery.count.limit is [5]: expected a",
        ),
        ({"topics": "orders"}, 'topics is "orders": expected a list'),
        ({"group": 5}, "group is 5: expected a text"),
        ({"tags": {"a": 5}}, "tags.a is 5: expected a text"),
        ({"columns": ["a"]}, 'columns[0] is "a": expected fields (name, description, sources and 6 more)'),
        ({"columns": [{"name": "a", "min": "low"}]}, 'columns[0].min is "low": expected a number or null'),
        ({"columns": [{"name": "a", "severity": "FATAL"}]}, 'severity is "FATAL": expected WARN or ERROR'),
        ({"topic_assets": 5}, "topic_assets is 5: expected true or false"),
        ({"topic_translation": "raw"}, 'topic_translation is "raw": expected fields ('),
        ({"translation": {"kay": "raw"}}, "translation has no field 'kay'. Did you mean key?"),
    ],
)
def test_a_wrong_type_is_one_error_when_the_file_is_loaded(given: dict[str, Any], message: str) -> None:
    """Dagster's model would have one for each type of each field above it."""
    told = refused({**MINIMAL, **given})
    assert message in told
    assert "1 validation error for" in told


TEXTS = ["5", "1.0", "2024_01", "None", "(1, 2)", "true", "a"]


def test_a_text_in_quotes_stays_a_text() -> None:
    """Where there may be a text: Dagster alone would make numbers and other values of some. Elsewhere it does."""
    given = {
        "group": "5",
        "topics": ["2024_01", "'7'"],
        "tags": {"version": "1"},
        "columns": [{"name": "a", "accepted_values": TEXTS, "description": "6"}],
        "job": {"tags": {"a": "5", "b": {"c": ["7", 8]}}, "max_runtime": "6h"},
        "run": {
            "max_records": "5",
            "launch": {
                "client": "a",
                "arguments": {"command": TEXTS, "env": {"A": "1"}, "n": 5, "t": "{{ 6 }}"},
            },
        },
        "automation": {"sensor": {"enabled": "yes"}},
        "owners": "['team:a']",
    }
    model = ShareGroupComponent.get_model_cls()
    assert model is not None
    attributes = model.model_validate({**MINIMAL, **given})
    queue = ShareGroupComponent.load(attributes, dg.ComponentTree.for_test().load_context)
    assert (queue.group, queue.name, queue.topics, queue.tags) == (
        "5",
        "5",
        ["2024_01", "7"],
        {"version": "1"},
    )
    (column,) = queue.columns
    assert (column.accepted_values, column.description) == (TEXTS, "6")
    assert queue.job.tags == {"a": "5", "b": {"c": ["7", 8]}}
    assert queue.run.launch is not None
    assert queue.run.launch.arguments == {"command": TEXTS, "env": {"A": "1"}, "n": 5, "t": 6}
    assert (queue.run.max_records, queue.automation.sensor.enabled, queue.owners) == (5, True, ["team:a"])
