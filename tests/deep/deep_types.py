"""Every type of Spark, and values at its ends, through every sink: what comes out is what went in, or the run is
refused by name before anything is leased."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy as sa
from pyspark.sql import DataFrame, SparkSession

from sharequeue.database import Database
from sharequeue.spark.formats import json
from sharequeue.spark.handler import HandlerError
from sharequeue.spark.output.manifest import read_output
from sharequeue.spark.sinks.interface import Sink, SinkRefused
from sharequeue.spark.sinks.parquet import ParquetByLease
from sharequeue.spark.sinks.postgres.sink import PostgresTable
from sharequeue.state import State
from tests.fixtures.lakes import Lake, LakeOf
from tests.fixtures.pipelines import Assigned, MakeTable, Produce, RunJob, all_accepted, job_of
from tests.fixtures.stack import MakeTopic

BIG = "99999999999999999999999999999999999999"
FAR = (
    "0001-01-01 00:00:00.000001",
    "1582-10-10 12:00:00",
    "1900-01-01 00:00:00.5",
    "9999-12-31 23:59:59.999999",
)


@dataclass(frozen=True)
class Kind:
    """A type: its name in Spark, some values as SQL has them, and in Postgres its type and their texts."""

    spark: str
    values: tuple[str, ...]
    postgres: str | None = None
    texts: tuple[str, ...] = ()


KINDS: Mapping[str, Kind] = {
    "boolean": Kind("boolean", ("true", "false"), "boolean", ("true", "false")),
    "tiny": Kind("tinyint", ("-128Y", "127Y"), "smallint", ("-128", "127")),
    "small": Kind("smallint", ("-32768S", "32767S"), "smallint", ("-32768", "32767")),
    "whole": Kind("int", ("-2147483648", "2147483647"), "integer", ("-2147483648", "2147483647")),
    "large": Kind(
        "bigint",
        ("bigint('-9223372036854775808')", "9223372036854775807L"),
        "bigint",
        ("-9223372036854775808", "9223372036854775807"),
    ),
    "single": Kind(
        "float",
        ("float('NaN')", "float('-Infinity')", "float('1.17549435E-38')"),
        "real",
        ("NaN", "-Infinity", "1.1754944e-38"),
    ),
    "double": Kind(
        "double",
        ("double('NaN')", "double('Infinity')", "4.9E-324D", "1.7976931348623157E308D"),
        "double precision",
        ("NaN", "Infinity", "5e-324", "1.7976931348623157e+308"),
    ),
    "digits": Kind("decimal(38,0)", (f"{BIG}BD", f"-{BIG}BD"), "numeric", (BIG, f"-{BIG}")),
    "fraction": Kind("decimal(38,38)", (f"cast(0.{BIG}BD as decimal(38,38))",), "numeric", (f"0.{BIG}",)),
    "text": Kind("string", ("''", "'é😀\"q\", \\'x'", "'null'"), "text", ("", 'é😀"q", \'x', "null")),
    "bytes": Kind("binary", ("X''", "X'00FF0A22'"), "bytea", ("\\x", "\\x00ff0a22")),
    "day": Kind(
        "date",
        ("date'0001-01-01'", "date'1582-10-10'", "date'9999-12-31'"),
        "date",
        ("0001-01-01", "1582-10-10", "9999-12-31"),
    ),
    "moment": Kind("timestamp", tuple(f"timestamp'{each}+00:00'" for each in FAR), "timestamptz", FAR),
    "local": Kind("timestamp_ntz", tuple(f"timestamp_ntz'{each}'" for each in FAR), "timestamp", FAR),
    "list": Kind("array<int>", ("array(1, null)", "array()"), "jsonb", ("[1, null]", "[]")),
    "pairs": Kind("map<string, int>", ("map('a', 1, 'b', null)",), "jsonb", ('{"a": 1, "b": null}',)),
    "parts": Kind(
        "struct<x: int, y: struct<z: string>>",
        ("named_struct('x', 1, 'y', named_struct('z', cast(null as string)))",),
        "jsonb",
        ('{"x": 1, "y": {"z": null}}',),
    ),
    "nested": Kind(
        "array<map<string, array<timestamp_ntz>>>", (f"array(map('a', array(timestamp_ntz'{FAR[0]}')))",)
    ),
    "months": Kind("interval year to month", ("interval '-178956970-8' year to month", "interval '1' month")),
    "seconds": Kind("interval day to second", ("interval '1 02:03:04.000005' day to second",)),
    "variant": Kind("variant", ('parse_json(\'{"a": [1, null, "x"]}\')',)),
    "nothing": Kind("void", ("null",)),
    "calendar": Kind("interval", ("make_interval(1, 2, 3, 4, 5, 6, 7.5)",)),
}
NO_FILE = {"nothing", "calendar"}
NOT_IN: Mapping[str, set[str]] = {
    "delta": {*NO_FILE, "months", "seconds"},
    "iceberg": {*NO_FILE, "months", "seconds", "variant"},
    "postgres": {*NO_FILE, "months", "seconds", "variant", "nested"},
    "parquet": NO_FILE,
}
RECORDS = max(len(kind.values) for kind in KINDS.values()) + 1


def with_kinds(records: DataFrame, names: set[str]) -> DataFrame:
    """A column for each type, with the value whose number the record's offset is, or null."""
    return all_accepted(records).selectExpr("*", *(_column(name) for name in KINDS if name in names))


def _column(name: str) -> str:
    kind = KINDS[name]
    values = " ".join(f"when {at} then {value}" for at, value in enumerate(kind.values))
    cast = f"case offset {values} end"
    return f"{cast if kind.spark == 'interval' else f'cast({cast} as {kind.spark})'} as {name}"


def assert_same(found: DataFrame, names: set[str], spark: SparkSession) -> None:
    """Every value is as it was."""
    wanted = with_kinds(
        spark.range(RECORDS).selectExpr("'t' as topic", "0 as partition", "id as offset", "1L as lease_id"),
        names,
    )
    both = found.alias("found").join(wanted.alias("wanted"), "offset")
    assert both.count() == found.count() == RECORDS
    for name in sorted(names):
        as_text = KINDS[name].spark.startswith(("map", "array<map", "variant"))
        one, other = (
            f"to_json(struct({of}.{name} as v))" if as_text else f"{of}.{name}" for of in ("found", "wanted")
        )
        changed = (
            both.where(f"not ({one} <=> {other})").selectExpr(f"string({one})", f"string({other})").collect()
        )
        assert changed == [], name


@pytest.fixture
def topic(make_topic: MakeTopic, produce: Produce) -> str:
    """Give a topic with a record for each value."""
    topic = make_topic(1)
    produce(topic, 0, range(RECORDS))
    return topic


def test_parquet_keeps_every_type(
    topic: str, group: str, assigned: Assigned, run_job: RunJob, state: State, spark: SparkSession
) -> None:
    """Intervals and variants among them."""
    names = KINDS.keys() - NOT_IN["parquet"]
    job = job_of(group, topic, lambda records: with_kinds(records, names))
    assert run_job(job, assigned(topic)).accepted == RECORDS
    assert_same(read_output(spark, state, group, job.sink), names, spark)


@pytest.mark.parametrize("partition", [None, "moment", "local", "day", "double", "fraction", "text"])
def test_a_lakehouse_table_keeps_every_type_that_it_has(
    lake: Lake,
    topic: str,
    group: str,
    assigned: Assigned,
    run_job: RunJob,
    spark: SparkSession,
    partition: str | None,
) -> None:
    """All types that such a table has, also where one of them divides it; a text that Delta would change there is
    rejected."""
    names = KINDS.keys() - NOT_IN[lake.kind]
    lake.create(
        "`offset` bigint, " + ", ".join(f"{name} {KINDS[name].spark}" for name in KINDS if name in names),
        f"partitioned by ({partition})" if partition else "",
    )
    job = job_of(group, topic, lambda records: with_kinds(records, names), destination=lake.sink())
    report = run_job(job, assigned(topic))
    if partition == "text" and lake.kind == "delta":
        assert (report.accepted, report.rejected) == (RECORDS - 1, 1)
        assert lake.rows().where("text = ''").count() == 0
        return
    assert report.accepted == RECORDS
    assert_same(lake.rows(), names, spark)


def test_a_postgres_table_keeps_every_type_that_it_has(
    topic: str,
    group: str,
    assigned: Assigned,
    run_job: RunJob,
    make_table: MakeTable,
    database: Database,
) -> None:
    """Nested values as JSON; moments as moments, whatever the zones of session and server."""
    names = KINDS.keys() - NOT_IN["postgres"]
    table = make_table(
        '"offset" bigint, ' + ", ".join(f"{name} {KINDS[name].postgres}" for name in sorted(names))
    )
    job = job_of(group, topic, lambda records: with_kinds(records, names), destination=PostgresTable(table))
    assert run_job(job, assigned(topic)).accepted == RECORDS
    columns = (
        f"({name}{' at time zone' if KINDS[name].postgres == 'timestamptz' else ''}"
        f"{chr(32) + repr('UTC') if KINDS[name].postgres == 'timestamptz' else ''})::text as {name}"
        for name in sorted(names)
    )
    rows = database.rows(sa.text(f'select {", ".join(columns)} from {table} order by "offset"'))  # noqa: S608
    for name in sorted(names):
        texts = KINDS[name].texts
        found: list[Any] = [row[name] for row in rows]
        assert found == [*texts, *[None] * (RECORDS - len(texts))], name


@pytest.mark.parametrize("sink", ["parquet", "postgres", "delta", "iceberg"])
def test_nanoseconds_of_json_are_cut_to_microseconds(
    sink: str,
    make_topic: MakeTopic,
    produce: Produce,
    group: str,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    spark: SparkSession,
    database: Database,
    make_table: MakeTable,
    lake_of: LakeOf,
) -> None:
    """Whatever the sink is, as `docs/howto/formats.md` says; a text of the same record keeps them."""
    topic, text = make_topic(1), "1969-12-31T23:59:59.999999999Z"
    produce(topic, 0, [f'{{"at": "{text}", "as_text": "{text}"}}'])
    destination: Sink = ParquetByLease()
    table: Lake | str | None = None
    if sink == "postgres":
        table = make_table("at timestamptz, as_text text")
        destination = PostgresTable(table)
    elif sink != "parquet":
        table = lake_of(sink)
        table.create("at timestamp, as_text string")
        destination = table.sink()

    def handler(records: DataFrame) -> DataFrame:
        decoded = json(records, "at timestamp, as_text string")
        return decoded.select("topic", "partition", "offset", "lease_id", "value.*", "outcome", "error")

    job = job_of(group, topic, handler, destination=destination)
    assert run_job(job, assigned(topic)).accepted == 1
    found: Any
    if isinstance(table, str):
        columns = "(extract(epoch from at) * 1000000)::bigint as micros, as_text"
        (found,) = database.rows(sa.text(f"select {columns} from {table}"))  # noqa: S608
    else:
        rows = table.rows() if table else read_output(spark, state, group, job.sink)
        (found,) = rows.selectExpr("unix_micros(at) as micros", "as_text").collect()
    assert (found["micros"], found["as_text"]) == (-1, text)


@pytest.mark.parametrize(
    ("sink", "name"), [(sink, name) for sink, names in NOT_IN.items() for name in sorted(names - {"nested"})]
)
def test_a_type_that_a_sink_lacks_is_refused_before_anything_is_leased(
    sink: str,
    name: str,
    topic: str,
    group: str,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    make_table: MakeTable,
    lake_of: LakeOf,
) -> None:
    """By its column's name."""
    destination: Sink = ParquetByLease()
    if sink == "postgres":
        destination = PostgresTable(make_table(f'"offset" bigint, {name} text'))
    elif sink in ("delta", "iceberg"):
        table = lake_of(sink)
        table.create(f"`offset` bigint, {name} string")
        destination = table.sink()
    job = job_of(group, topic, lambda records: with_kinds(records, {name}), destination=destination)
    with pytest.raises((SinkRefused, HandlerError), match=name):
        run_job(job, assigned(topic))
    (status,) = state.figures.describe(group)
    assert (status.spso, status.speo, status.acquired) == (0, 0, 0)
