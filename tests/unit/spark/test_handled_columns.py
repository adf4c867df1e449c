"""What Spark's plan of a handler's result says of its columns, in the JSON that Spark writes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sharequeue.spark.handled_columns import column_sources, ids_of

OF = "org.apache.spark.sql.catalyst.plans.logical."
RECORDS: list[dict[str, Any]] = [{"class": f"{OF}LocalRelation", "num-children": 0, "data": None}]
IDS = "topic#1\noffset#2L\nkey#3\nvalue#4\nlease_id#5L\nkey_hash#6"


def column(number: int, name: str = "") -> dict[str, Any]:
    """A column as an expression refers to it."""
    of = "org.apache.spark.sql.catalyst.expressions.AttributeReference"
    return {"class": of, "num-children": 0, "name": name, "exprId": {"id": number, "jvmId": "j"}}


def made(number: int, name: str, *parts: dict[str, Any]) -> list[dict[str, Any]]:
    """A column that is computed of these."""
    alias = {**column(number, name), "class": "org.apache.spark.sql.catalyst.expressions.Alias"}
    return [{**alias, "num-children": len(parts)}, *parts]


def node(kind: str, children: int = 1, **fields: Any) -> dict[str, Any]:
    """A node of a plan."""
    return {"class": OF + kind, "num-children": children, **fields}


def found(*nodes: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """What is found in a plan of these nodes above the records."""
    return column_sources(json.dumps([*nodes, *RECORDS]), json.dumps(RECORDS), ids_of(IDS))


def test_columns_are_followed_by_their_ids() -> None:
    """Names that were given anew do not matter; the lease is not of the record; a hash is of the key."""
    inner = [made(10, "value", column(3)), made(11, "both", column(4), column(1), column(5)), [column(6)]]
    outer = [made(20, "key", column(10)), [column(11, "both")], made(21, "fixed"), [column(6, "hash")]]
    assert found(
        node("Project", projectList=outer), node("Filter"), node("Project", projectList=[*inner, [column(1)]])
    ) == {"key": ("key",), "both": ("topic", "value"), "hash": ("key",)}


@pytest.mark.parametrize("kind", ["Union", "Aggregate", "MapInArrow", "NodeOfALaterSpark"])
def test_nothing_is_said_of_columns_behind_another_node(kind: str) -> None:
    """Even if it passes on their ids: a union has those of its first child."""
    top = node("Project", projectList=[[column(4, "value")]])
    assert found(top, node("Sort")) == {"value": ("value",)}
    assert found(top, node(kind)) == {}


def test_a_column_that_in_part_comes_from_elsewhere_has_no_sources() -> None:
    """Another table, and a subquery."""
    subquery = {**column(4), "class": "org.apache.spark.sql.catalyst.expressions.ScalarSubquery", "plan": []}
    columns = [
        made(20, "both", column(4), column(30)),
        made(21, "highest", column(4), subquery),
        [column(30, "other")],
        [column(4, "value")],
    ]
    other = node("LocalRelation", 0, output=[[column(30)]])
    plan = [node("Project", projectList=columns), node("Join", 2), *RECORDS, other]
    assert column_sources(json.dumps(plan), json.dumps(RECORDS), ids_of(IDS)) == {"value": ("value",)}


def test_what_is_exploded_has_the_sources_of_the_whole() -> None:
    """Also beside columns that are passed on."""
    generator = [{"class": "org.apache.spark.sql.catalyst.expressions.Explode"}, column(4)]
    exploded = node("Generate", generator=generator, generatorOutput=[[column(12)]])
    top = node("Project", projectList=[[column(12, "line")], [column(1, "topic")]])
    assert found(top, exploded) == {"line": ("value",), "topic": ("topic",)}
