"""Two schemas that Avro resolves, and that mean different values by the same bytes."""

from __future__ import annotations

from typing import Any

import pytest

from sharequeue.spark.formats.avro_units import changed_unit


def record(*fields: Any) -> dict[str, Any]:
    named = [{"name": f"f{at}", "type": kind} for at, kind in enumerate(fields)]
    return {"type": "record", "name": "R", "namespace": "n", "fields": named}


def decimal(scale: int, **more: Any) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": scale, **more}


def moment(unit: str) -> dict[str, Any]:
    return {"type": "long", "logicalType": unit}


@pytest.mark.parametrize(
    ("writer", "reader", "said"),
    [
        (decimal(4), decimal(2), "the value: decimal of scale 4, and decimal of scale 2"),
        (
            record("int", decimal(4)),
            record("int", decimal(2)),
            "f1: decimal of scale 4, and decimal of scale 2",
        ),
        (
            record(["null", moment("timestamp-millis")]),
            record(["null", moment("timestamp-micros")]),
            "f0: timestamp-millis, and timestamp-micros",
        ),
        (
            record({"type": "array", "items": record(moment("local-timestamp-millis"))}),
            record({"type": "array", "items": record(moment("local-timestamp-nanos"))}),
            "f0.element.f0: local-timestamp-millis, and local-timestamp-nanos",
        ),
        (
            record({"type": "map", "values": decimal(1, type="fixed", name="D", size=4)}, "D"),
            record({"type": "map", "values": decimal(1, type="fixed", name="D", size=4)}, decimal(1)),
            None,
        ),
        (record(decimal(2), "string"), record(decimal(2, precision=20), "string", "int"), None),
        (record("long", "bytes"), record(moment("timestamp-millis"), decimal(2)), None),
        (record(["null", "n.R"]), record(["null", "R"]), None),
        ("long", "long", None),
    ],
)
def test_a_part_with_another_unit_is_found(writer: Any, reader: Any, said: str | None) -> None:
    """Wherever it is; a unit that only one of them names is the reader's choice."""
    assert changed_unit(writer, reader) == said


def test_a_field_that_was_renamed_is_found_by_its_alias() -> None:
    """As Avro itself finds it."""
    reader = record(moment("timestamp-micros"))
    reader["fields"][0] |= {"name": "at", "aliases": ["f0"]}
    writer = record(moment("timestamp-millis"))
    assert changed_unit(writer, reader) == "at: timestamp-millis, and timestamp-micros"
