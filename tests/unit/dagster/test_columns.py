"""The columns of a `defs.yaml`: what the catalog shows of them, and which checks they get."""

from __future__ import annotations

import math
from typing import Any

import dagster as dg
import pytest
from pydantic import ValidationError

from sharequeue.dagster import share_group_defs, share_group_resources
from sharequeue.dagster.columns import lineage_of, schema_of
from tests.fixtures.dagster import share_group

COLUMNS = [
    {"name": "note", "description": "What the customer wrote.", "sources": ["value"], "not_null": True},
    {"name": "price", "sources": ["value", "headers"], "min": 0, "max": 100.5, "severity": "ERROR"},
    {"name": "state of it", "accepted_values": ["open", "paid"], "matches": "[a-z]+"},
]


def test_the_catalog_has_descriptions_and_constraints() -> None:
    """Those of the yaml, and our own for the columns of every output."""
    group = share_group("orders", columns=COLUMNS)
    kinds = {"offset": "bigint", "note": "string", "price": "double", "other": "int"}
    schema = schema_of(kinds, {"offset": "The record's offset."}, group.columns)["dagster/column_schema"]
    found = {each.name: each for each in schema.columns}
    assert found["offset"].description == "The record's offset."
    assert (found["note"].description, found["note"].constraints.nullable) == (
        "What the customer wrote.",
        False,
    )
    assert found["price"].constraints.other == ["is at least 0", "is at most 100.5"]
    assert found["other"] == dg.TableColumn("other", "int")
    assert schema_of({}, {}, group.columns) == {}


def test_lineage_leads_to_the_columns_of_each_topic() -> None:
    """A column depends on the columns of the record that the yaml names, or else that a run has seen, in every topic
    of the queue.
    """
    group = share_group("orders", topics=["a", "b"], columns=COLUMNS)
    topics = [*map(group.topic_key, group.topics)]
    seen = {"note": ("key", "headers"), "other": ("key",)}
    lineage = lineage_of(group.columns, seen, topics)["dagster/column_lineage"]
    deps = {
        name: {(dep.asset_key.path[-1], dep.column_name) for dep in some}
        for name, some in lineage.deps_by_column.items()
    }
    assert deps["note"] == {("a", "value"), ("b", "value")}
    assert deps["price"] == {(topic, column) for topic in "ab" for column in ("value", "headers")}
    assert deps["other"] == {("a", "key"), ("b", "key")}
    assert "state of it" not in deps
    assert lineage_of(share_group("orders").columns, {}, topics) == {}


def test_a_topic_has_the_columns_of_a_record() -> None:
    """So the lineage of a column ends at a column that Dagster knows."""
    defs = dg.Definitions.merge(share_group_defs(share_group("orders")), share_group_resources())
    every = {spec.key.to_user_string(): spec for spec in defs.resolve_all_asset_specs()}
    columns = every["kafka/flights"].metadata["dagster/column_schema"].columns
    assert {"key", "value", "headers", "timestamp"} <= {each.name for each in columns}


def test_each_constraint_is_a_check() -> None:
    """They are checks of `accepted`, and a run of the job executes them."""
    defs = share_group_defs(share_group("orders", columns=COLUMNS))
    (found,) = [each for each in defs.asset_checks or () if each.node_def.name == "orders_columns"]
    assert isinstance(found, dg.AssetChecksDefinition)
    specs = {spec.name: spec for spec in found.check_specs}
    assert set(specs) == {
        "note_not_null",
        "price_min",
        "price_max",
        "state_of_it_accepted_values",
        "state_of_it_matches",
    }
    assert {spec.asset_key for spec in specs.values()} == {dg.AssetKey(["orders", "accepted"])}
    without = share_group_defs(share_group("orders")).asset_checks or ()
    assert "orders_columns" not in {each.node_def.name for each in without}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"name": "a", "sources": ["payload"]}, "sources: a record has no 'payload': expected topic, "),
        ({"name": "a", "severity": "FATAL"}, "severity"),
        ({"description": "no name"}, "name"),
        ({"name": "a", "matches": "("}, r"matches is '\(': expected a regular expression"),
        ({"name": ""}, "name must not be empty"),
        ({"name": "a", "min": 5, "max": 1}, "min 5 is more than max 1: no row could pass"),
        ({"name": "a", "min": math.nan}, "expected a finite number, but it is nan"),
        ({"name": "a", "max": math.inf}, "expected a finite number, but it is inf"),
        ({"name": "a", "accepted_values": []}, "accepted_values is empty: expected a value or more"),
        ({"name": "a", "accepted_values": [1.5, math.nan]}, "accepted_values has NaN"),
        ({"name": "a", "accepted_values": ["a", 1]}, r"of different types, and a column has one: \['a', 1\]"),
        ({"name": "a", "accepted_values": [True, 1]}, "Put texts in quotes, such as '1'"),
    ],
)
def test_a_wrong_column_is_refused(given: dict[str, Any], words: str) -> None:
    """The error names the field, and what is expected."""
    with pytest.raises(ValidationError, match=words):
        share_group("orders", columns=[given])


def test_a_name_that_is_given_twice_is_refused() -> None:
    """Two checks of one name would be one, and a handler's result has no two columns that differ only in case."""
    for twice in (["a", "a"], ["a b", "a_b"], ["a", "A"]):
        with pytest.raises(ValidationError, match=f"columns: {twice[0]} and {twice[1]} are one column"):
            share_group("orders", columns=[{"name": name} for name in twice])
