"""The page on the record of a handler, `docs/reference/record.md`, compared with the records themselves."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql.types import StructType

from sharequeue.spark import by_row
from sharequeue.spark.reading.frame import RECORD_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = (Path(__file__).parents[3] / "docs/reference/record.md").read_text()


def _rows(text: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in text.splitlines()
        if line[:3] == "| `"
    ]


def test_the_page_has_the_columns_and_types_of_a_record(spark: SparkSession) -> None:
    """The table of `record.md` has the columns of a record in their order, with their Spark types and with the Python
    types that `by_row` and `collect` give with the installed Spark."""
    sample = ("orders", 0, 7, datetime(2026, 1, 2, tzinfo=UTC), 0, b"k", b"v", [("kind", b"x")], 1, 3)
    records = spark.createDataFrame([sample], RECORD_SCHEMA)
    seen = by_row(lambda record: {"types": repr(_kinds(record))}, "types string")(records)
    by_row_kinds: dict[str, str] = dict(eval(seen.collect()[0].types))  # noqa: S307  (made three lines above)
    collected = _kinds(records.collect()[0].asDict())
    table = _rows(PAGE.split("\n## ")[0])
    declared = StructType.fromDDL(RECORD_SCHEMA)
    assert isinstance(declared, StructType)
    assert [row[0].strip("`") for row in table] == declared.names
    for row, field in zip(table, declared, strict=True):
        name, on_page = row[0].strip("`"), re.findall(r"`([^`]+)`", row[1])[0].replace(" ", "")
        assert on_page == field.dataType.simpleString().replace(" ", ""), name
        if name != "headers":
            assert by_row_kinds[name] == re.findall(r"`([^`]+)`", row[2])[0], name
            first, *before = re.findall(r"`([^`]+)`", row[3])
            assert collected[name] == (before[0] if before and pyspark.__version__ < "4.1" else first), name
    assert by_row_kinds["headers"] == "[{'key': 'str', 'value': 'bytes'}]"


def _kinds(record: dict[str, Any]) -> dict[str, str]:
    return {
        name: str([{key: type(part).__name__ for key, part in each.items()} for each in value])
        if isinstance(value, list) and isinstance(value[0], dict)
        else type(value).__name__
        for name, value in record.items()
    }
