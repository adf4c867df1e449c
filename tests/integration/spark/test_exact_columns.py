"""A value that a column of a Postgres table would change is its record's own outcome, for all types and widths."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyspark.sql import types

from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.spark.sinks.interface import SinkContext
from sharequeue.spark.sinks.postgres.copy import LEASE, OFFSET
from sharequeue.spark.sinks.postgres.sink import PostgresTable
from sharequeue.state import State
from tests.fixtures.pipelines import MakeTable, all_accepted, job_of

NUMBER, REAL, DOUBLE, TEXT = (
    types.DecimalType(20, 6),
    types.FloatType(),
    types.DoubleType(),
    types.StringType(),
)
MOMENT, LOCAL = types.TimestampType(), types.TimestampNTZType()
DOMAINS = (
    "create domain {}.cents as numeric(10,2)",
    "create domain {0}.price as {0}.cents check (value > 0)",
)
CASES: tuple[tuple[types.DataType, str, tuple[str, ...], tuple[str, ...]], ...] = (
    (
        NUMBER,
        "numeric(10,2)",
        ("1.2", "1.230000", "-99999999.99"),
        ("1.2345", "0.001", "-1.005", "123456789"),
    ),
    (NUMBER, "numeric(3,-2)", ("1200", "0"), ("1250", "1", "99999")),
    (NUMBER, "numeric", ("1.2345", "99999999999999.000001"), ()),
    (NUMBER, "SCHEMA.price", ("1.23",), ("1.234",)),
    (REAL, "numeric(10,2)", ("1.5", "0.25", "NaN"), ("1.255", "inf")),
    (DOUBLE, "numeric(10,2)", ("1.5", "1e3", "NaN"), ("1.2345", "1e-30", "1e10", "-inf")),
    (DOUBLE, "numeric", ("4.9e-324", "1.7976931348623157e308"), ()),
    (types.LongType(), "numeric(3)", ("999",), ("1000",)),
    (types.LongType(), "varchar(3)", ("123",), ("1234",)),
    (
        MOMENT,
        "timestamptz(0)",
        ("2024-01-01 00:00:01",),
        ("2024-12-31 23:59:59.999999", "2024-01-01 00:00:00.4"),
    ),
    (MOMENT, "timestamp(3)", ("2024-01-01 00:00:00.123",), ("2024-01-01 00:00:00.123456",)),
    (MOMENT, "timestamptz", ("2024-01-01 00:00:00.123456", "0001-01-01 00:00:00"), ()),
    (LOCAL, "timestamp(0)", ("2024-01-01 00:00:01",), ("2024-12-31 23:59:59.999999",)),
    (TEXT, "varchar(3)", ("abc", ""), ("abc ", "abcd")),
    (TEXT, "char(3)", ("abc", "ab"), ("abcd",)),
    (TEXT, "numeric(10,2)", ("1.20", "1e2"), ("1.2345", "x")),
    (TEXT, "numeric(10,2)[]", ("{1.2,NULL}",), ("{1.2345}", "{1.2,1.234}")),
    (TEXT, "timestamptz(0)", ("2024-01-01T00:00:00+02:00",), ("2024-01-01 00:00:00.5",)),
    (TEXT, "timestamptz", ("2024-01-01T00:00:00.123456+02:00",), ("2024-13-01",)),
    (TEXT, "timestamp", ("2024-01-01 10:00", "2024-01-01T10:00Z"), ("2024-01-01 10:00+02:00",)),
    (TEXT, "timestamp(0)", ("2024-01-01 10:00",), ("2024-01-01 10:00:00.5", "2024-01-01 10:00+02")),
    (TEXT, "date", ("2024-01-01", "2024-01-01 00:00"), ("2024-01-01 12:30", "2024-01-01 00:00+02")),
    (TEXT, "time(0)", ("12:30", "12:30:01"), ("12:30:00.5", "12:30+02")),
    (TEXT, "interval(0)", ("1 day 2 s",), ("0.5 s",)),
    (TEXT, "interval day", ("2 days",), ("2 days 3 hours",)),
    (TEXT, "name", ("a" * 63,), ("a" * 64,)),
    (TEXT, '"char"', ("a",), ("ab",)),
    (TEXT, "bit(3)", ("101",), ("1011",)),
    (TEXT, "text", ("a\n\\.\nb", "\\.", "a\r\nb"), ("a\0b",)),
    (TEXT, "uuid", ("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",), ("a0eebc99",)),
)
ARROW: dict[types.DataType, pa.DataType] = {
    NUMBER: pa.string(),
    REAL: pa.float32(),
    DOUBLE: pa.float64(),
    TEXT: pa.string(),
}
PERCENT = "a %s {name}"


def arrow_of(kind: types.DataType, values: list[str | None]) -> pa.Array:
    """The values as Spark passes them to the copy."""
    given = pa.array(values, pa.string())
    if isinstance(kind, types.LongType):
        return given.cast(pa.int64())
    if isinstance(kind, (types.TimestampType, types.TimestampNTZType)):
        zone = "America/New_York" if isinstance(kind, types.TimestampType) else None
        moments = given.cast(pa.timestamp("us"))
        return moments.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us", zone)) if zone else moments
    return given.cast(ARROW[kind])


@pytest.fixture
def table(make_table: MakeTable, database: Database, group: str) -> str:
    """Give a table with a column for each case; rows are checked as they would be in a lease."""
    schema = group.replace("-", "_")
    table = make_table(f'"offset" bigint, "{PERCENT}" numeric(4,1)')
    columns = [
        f"alter table {table} add column c{at} {there.replace('SCHEMA', schema)}"
        for at, (_, there, *_) in enumerate(CASES)
    ]
    with database.transaction() as connection:
        for each in (*(domain.format(schema) for domain in DOMAINS), *columns):
            connection.exec_driver_sql(each)
    return table


def test_a_value_that_a_column_would_change_is_refused_and_no_other(
    table: str, group: str, settings: Settings, state: State, database: Database
) -> None:
    """Each row has a value in one column. The reason has both values; a column that cannot change any has no witness.
    Postgres itself refuses the others."""
    schema = types.StructType([types.StructField(f"c{at}", kind) for at, (kind, *_) in enumerate(CASES)])
    schema = schema.add(PERCENT, NUMBER)
    rows: list[tuple[int, str, bool]] = [
        (at, value, value in kept)
        for at, (_, _, kept, refused) in enumerate(CASES)
        for value in (*kept, *refused)
    ]
    rows.append((len(CASES), "1.25", False))
    no_spark: Any = None
    context = SinkContext(settings, state, no_spark, job_of(group, "any", all_accepted).names)
    with PostgresTable(table).open(context) as sink:
        staging = sink.staging
        staging.match(schema)
        given = {each.name: at for at, each in enumerate(schema.fields)}
        of = {each.name: each.column for each in staging.columns.witnesses}
        columns: dict[str, pa.Array] = {
            LEASE: pa.array([7] * len(rows), pa.int64()),
            OFFSET: pa.array(range(len(rows)), pa.int64()),
        }
        for name in (*schema.names, *of):
            at = given[of.get(name, name)]
            values = [value if case == at else None for case, value, _ in rows]
            columns[name] = arrow_of(schema.fields[at].dataType, values)
        receipts = [
            row for batch in staging.copier([7])([pa.record_batch(columns)]) for row in batch.to_pylist()
        ]
        staging.take(tuple(row.values()) for row in receipts)
        refused = staging.refused[7]
        wrong = [
            (CASES[case][1], value, refused.get(offset))
            for offset, (case, value, kept) in enumerate(rows[:-1])
            if (offset in refused) == kept
        ]
        assert wrong == []
        assert refused[len(rows) - 1] == f"ValueChanged: column {PERCENT}: 1.25 would become 1.3"
        first = next(offset for offset, (_, value, _) in enumerate(rows) if value == "1.2345")
        assert refused[first] == "ValueChanged: column c0: 1.2345 would become 1.23"
        plain = {
            f"c{at}" for at, (_, there, *_) in enumerate(CASES) if there in ("numeric", "timestamptz", "uuid")
        }
        assert plain.isdisjoint(of.values())
    assert database.rows(sa.text(f"select count(*) as n from {table}"))[0]["n"] == 0  # noqa: S608
