"""How rows are matched with a table's columns, and which records its limits reject: with Spark alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from sharequeue.spark.handler import with_outcomes
from sharequeue.spark.sinks.columns import Limit, Shape, as_table, by_name, folder_limits, unfit_rejected
from sharequeue.spark.sinks.interface import SinkRefused

KEPT = "'t' as topic, 0 as partition, bigint(`offset`) as `offset`, 1L as lease_id"


def columns_of(ddl: str) -> StructType:
    """Columns by their names and types, as SQL has them."""
    columns = StructType.fromDDL(ddl)
    assert isinstance(columns, StructType)
    return columns


def shape(columns: str, exact: bool = False, lengths: str | None = None) -> Shape:
    """A table of these columns; its first one was declared with `lengths`."""
    fields = columns_of(columns).fields
    if lengths is not None:
        first = fields[0]
        metadata = {"__CHAR_VARCHAR_TYPE_STRING": lengths}
        fields[0] = StructField(first.name, first.dataType, first.nullable, metadata)
    return Shape(StructType(fields), exact)


def handled(spark: SparkSession, rows: str, outcome: str = "'accept'") -> DataFrame:
    """What a handler made of records: a row of `rows` is its offset and `v`."""
    given = f"values {rows} as given (`offset`, v)"
    made = spark.sql(f"select {KEPT}, v, {outcome} as outcome from {given}")  # noqa: S608 - a test's own
    return with_outcomes(made)


@pytest.mark.parametrize(
    ("table", "result", "exact", "pairs"),
    [
        ("UID bigint, other int", "uid int", False, {"UID": "uid"}),
        ("UID bigint, uid int", "uid int", True, {"uid": "uid"}),
        ("id bigint", "id int, topic string, error string", False, {"id": "id"}),
    ],
)
def test_names_are_matched_one_to_one(
    spark: SparkSession, table: str, result: str, exact: bool, pairs: dict[str, str]
) -> None:
    """By the case rule of the table; columns that every handler passes on may be absent, and the queue's own are left
    out."""
    assert by_name("t", shape(table, exact), columns_of(result)) == pairs


@pytest.mark.parametrize(
    ("table", "result", "exact", "said"),
    [
        ("UID bigint", "uid bigint", True, "has no column uid"),
        ("UID bigint, uid int", "uid int", False, "differ only in case"),
        ("uid bigint", "uid int, UID int", False, "differ only in case"),
        ("id int", "id bigint", False, "column id is bigint in the handler's result and int in table"),
        ("id int, must string not null", "id int", False, "has NOT NULL on must, which the handler's result"),
        ("s struct<x: int>", "s struct<X: int>", False, "column s is struct<X:int>"),
        ("other int", "topic string", False, "has no column in common"),
    ],
)
def test_columns_that_do_not_match_are_refused(
    spark: SparkSession, table: str, result: str, exact: bool, said: str
) -> None:
    """By name, with what is wrong."""
    with pytest.raises(SinkRefused, match=said):
        by_name("t", shape(table, exact), columns_of(result))


FEW = (("not coalesce(v > 0, false)", "CHECK few"),)
FOLDER = folder_limits("v", StringType(), "v")


@pytest.mark.parametrize(
    ("columns", "lengths", "limits", "rows", "reason"),
    [
        ("v string", "varchar(3)", (), "(1, 'abc'), (2, 'abcd')", "v is longer than varchar(3)"),
        ("V string", "char(2)", (), "(1, 'éé'), (2, 'abc')", "V is longer than char(2)"),
        ("v string not null", None, (), "(1, ''), (2, null)", "v is null, and the table has NOT NULL on it"),
        (
            "v array<string>",
            "array<varchar(1)>",
            (),
            "(1, array('a', null)), (2, array('a', 'bb'))",
            "v.element is longer than varchar(1)",
        ),
        (
            "v map<string, struct<x: string>>",
            "map<string, struct<x: varchar(1)>>",
            (),
            "(1, map('long', struct('a' as x))), (2, map('a', struct('bb' as x)))",
            "v.value.x is longer than varchar(1)",
        ),
        (
            "v struct<x: string not null>",
            None,
            (),
            "(1, cast(null as struct<x: string>)), (2, struct(cast(null as string) as x))",
            "v.x is null, and the table has NOT NULL on it",
        ),
        ("v int", None, FEW, "(1, 1), (2, cast(null as int))", "CHECK few"),
        (
            "v string",
            None,
            FOLDER,
            "(1, repeat('a', 253)), (2, repeat('a', 254))",
            "v is too long for the name of a partition's folder",
        ),
    ],
)
def test_a_record_that_a_table_would_refuse_is_a_reject(
    spark: SparkSession, columns: str, lengths: str | None, limits: Sequence[Limit], rows: str, reason: str
) -> None:
    """With the reason; another record is accepted, and a released one stays released. What is accepted is what the
    table gets."""
    table = replace(shape(columns, lengths=lengths), limits=tuple(limits))
    made = handled(spark, rows)
    pairs = by_name("t", table, made.schema)
    fitted = unfit_rejected(made, table, pairs)
    assert fitted.schema.names == made.schema.names
    found = {row["offset"]: (row["outcome"], row["error"]) for row in fitted.collect()}
    assert found == {1: ("accept", None), 2: ("reject", reason)}
    kept = fitted.select(*as_table(table, pairs)).schema.names
    assert kept == table.columns.names
    released = unfit_rejected(handled(spark, rows, "'release'"), table, pairs)
    assert {row["outcome"] for row in released.collect()} == {"release"}


def test_all_rows_of_a_record_are_rejected_with_the_one_that_does_not_fit(spark: SparkSession) -> None:
    """Rows made from one record agree on its outcome."""
    table = shape("v string", lengths="varchar(3)")
    made = handled(spark, "(1, 'a'), (1, 'long'), (2, 'b'), (2, 'c')")
    fitted = unfit_rejected(made, table, by_name("t", table, made.schema))
    found = sorted((row["offset"], row["v"], row["outcome"]) for row in fitted.collect())
    assert found == [(1, "a", "reject"), (1, "long", "reject"), (2, "b", "accept"), (2, "c", "accept")]


def test_a_result_is_left_as_it_is_where_a_table_has_no_limits(spark: SparkSession) -> None:
    """No shuffle, and no other plan."""
    table = shape("v string")
    made = handled(spark, "(1, 'a')")
    assert unfit_rejected(made, table, by_name("t", table, made.schema)) is made
