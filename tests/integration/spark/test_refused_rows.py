"""A row that a table of Postgres refuses is its record's own outcome, in the same round, with Postgres's words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import psycopg2
import pytest
import sqlalchemy as sa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.spark.handler import MostFailed
from sharequeue.spark.job import Summary
from sharequeue.spark.output.manifest import read_output
from sharequeue.spark.sinks.interface import SinkContext, SinkRefused
from sharequeue.spark.sinks.postgres.copy import ATTEMPT, OFFSET, row_refusal
from sharequeue.spark.sinks.postgres.move import Piece, StagedRows
from sharequeue.spark.sinks.postgres.sink import PostgresTable
from sharequeue.spark.sinks.postgres.tables import Target, cursor_of
from sharequeue.state import State
from tests.fixtures.pipelines import Assigned, MakeTable, Produce, RunJob, job_of
from tests.fixtures.stack import MakeTopic

COLUMNS = """
    "offset" bigint, text text, code varchar(4), doc jsonb, amount numeric(5, 2), parent integer,
    kind text not null check (kind <> 'checked'), unique (parent)
"""
REFUSED = {
    "nul": r"CharacterNotInRepertoire: .*0x00",
    "long": r"StringDataRightTruncation: value too long for type character varying\(4\) \(column code\)",
    "json": r"UntranslatableCharacter: ",
    "wide": r"NumericValueOutOfRange: numeric field overflow \(column amount\)",
    "checked": r'CheckViolation: .*"accepted_kind_check"',
    "twice": r"UniqueViolation: .*Key \(parent\)=\(7\) already exists",
    "null": r"NotNullViolation: .*kind",
    "raised": r"RaiseException: not today",
    "custom": r"\w+: in a class of its own",
    "skipped": r"RowLeftOut: a trigger or a rule of table .*accepted did not insert the row",
}


def refused_kinds(records: DataFrame) -> DataFrame:
    """A row that the table refuses in the way that the record's value names."""
    value = fn.col("value").cast("string")

    def given(name: str, there: Column, other: Column) -> Column:
        return fn.when(value == name, there).otherwise(other)

    return records.select(
        *("topic", "partition", "offset", "lease_id"),
        given("nul", fn.lit("a\0b"), value).alias("text"),
        given("long", fn.lit("12345"), fn.lit("1234")).alias("code"),
        given("json", fn.lit('"\\u0000"'), fn.lit('{"a": 1}')).alias("doc"),
        given("wide", fn.lit(1234.5), fn.lit(1.5)).cast("decimal(9,2)").alias("amount"),
        given("twice", fn.lit(7), fn.when(value == "first", 7)).cast("int").alias("parent"),
        fn.when(value != "null", value).alias("kind"),
        fn.lit("accept").alias("outcome"),
    )


def trigger(database: Database, table: str) -> None:
    """Refuse some rows with an error, and leave out another without."""
    schema = table.partition(".")[0]
    body = """
        begin
            if new.kind = 'raised' then raise exception 'not today'; end if;
            if new.kind = 'custom' then raise exception 'in a class of its own' using errcode = 'QX001'; end if;
            if new.kind = 'skipped' then return null; end if;
            return new;
        end
    """
    with database.transaction() as connection:
        connection.exec_driver_sql(
            f"create function {schema}.refuse() returns trigger language plpgsql as $${body}$$"
        )
        connection.exec_driver_sql(
            f"create trigger refuse before insert on {table} for each row execute function {schema}.refuse()"
        )


def offsets_of(database: Database, table: str) -> list[int]:
    return [row["offset"] for row in database.rows(sa.text(f'select "offset" from {table} order by 1'))]  # noqa: S608


def test_each_refused_row_is_rejected_with_the_words_of_postgres(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    spark: SparkSession,
    state: State,
    database: Database,
    make_table: MakeTable,
) -> None:
    """One round accepts all other records, of this partition and of another, and nothing is delivered again. A
    summary counts the accepted rows only."""
    topic, table = make_topic(2), make_table(COLUMNS)
    trigger(database, table)
    produce(topic, 0, ["first", *REFUSED, *(f"healthy {n}" for n in range(9))])
    produce(topic, 1, ["a", "b"])
    count = Summary("count", lambda rows: rows.groupBy("lease_id").count())
    job = job_of(group, topic, refused_kinds, destination=PostgresTable(table), summaries=(count,))
    report = run_job(job, assigned(topic))
    assert (len(report.rounds), report.accepted, report.rejected, report.lag) == (1, 12, 10, 0)
    assert offsets_of(database, table) == sorted([0, *range(11, 20), 0, 1])
    counts = read_output(spark, state, group, job.summary_sink(count)).collect()
    assert sorted(row["count"] for row in counts) == [2, 10]
    rejected = read_output(spark, state, group, job.exceptions_sink).orderBy("offset").collect()
    assert [row["outcome"] for row in rejected] == ["reject"] * len(REFUSED)
    for row, (name, words) in zip(rejected, REFUSED.items(), strict=True):
        assert re.match(words, row["error"]), (name, row["error"])
    assert "reject, CharacterNotInRepertoire" in report.errors[0]


def test_a_lease_of_which_every_row_is_refused_ends(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    database: Database,
    make_table: MakeTable,
) -> None:
    """Nothing is left to copy: the records are rejected in their round, beside a lease that is accepted."""
    topic, table = make_topic(2), make_table(COLUMNS)
    produce(topic, 0, ["long", "checked", "nul"])
    produce(topic, 1, ["a"])
    job = job_of(group, topic, refused_kinds, destination=PostgresTable(table))
    report = run_job(job, assigned(topic))
    assert (len(report.rounds), report.accepted, report.rejected, report.lag) == (1, 1, 3, 0)
    assert offsets_of(database, table) == [0]


def test_a_table_that_refuses_most_rows_ends_the_run(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    database: Database,
    make_table: MakeTable,
) -> None:
    """Then the table or the handler is at fault: no record becomes a dead letter, and all deliveries are given
    back."""
    topic, table = make_topic(1), make_table(COLUMNS)
    produce(topic, 0, ["checked"] * 110 + ["healthy"] * 10)
    job = job_of(group, topic, refused_kinds, destination=PostgresTable(table))
    with pytest.raises(MostFailed, match=r'110 of 120 .*110 times: CheckViolation: .*"accepted_kind_check"'):
        run_job(job, assigned(topic))
    (status,) = state.figures.describe(group)
    assert (status.spso, status.acquired, offsets_of(database, table)) == (0, 0, [])


def test_a_column_that_nothing_fills_is_refused_before_a_lease(
    group: str,
    state: State,
    spark: SparkSession,
    settings: Settings,
    database: Database,
    make_table: MakeTable,
) -> None:
    """NOT NULL without a default, and not in the handler's result: every row would be refused. An identity fills it,
    and a trigger may."""
    table = make_table(
        '"offset" bigint, lacks text not null, a int not null default 1, b int generated always as identity'
    )
    context = SinkContext(settings, state, spark, job_of(group, "any", refused_kinds).names)
    rows = spark.sql("select 1L as offset, 'accept' as outcome")
    with (
        PostgresTable(table).open(context) as sink,
        pytest.raises(SinkRefused, match="NOT NULL and no default on lacks, which"),
    ):
        sink.fits(rows)
    trigger(database, table)
    with PostgresTable(table).open(context) as sink:
        assert sink.fits(rows) is rows


Row = tuple[int, int | None]
"""The number of a row, which is also its record's offset, and the number of the row that it refers to."""
Tried = Callable[..., tuple[dict[int, str], list[Piece]]]


@pytest.fixture
def tried(database: Database, group: str) -> Iterator[Tried]:
    """Give a function that tries staged rows on a table, and moves them if none is refused: refusals and pieces."""
    schema = group.replace("-", "_")
    staging = f"create unlogged table {schema}.staging ({ATTEMPT} text, {OFFSET} bigint, n int, parent int)"

    def given(rows: list[Row], statement: str) -> tuple[dict[int, str], list[Piece]]:
        with database.transaction() as connection:
            for each in (f"create schema {schema}", statement.replace("SCHEMA", schema), staging):
                connection.exec_driver_sql(each)
            for n, parent in rows:
                connection.exec_driver_sql(
                    f"insert into {schema}.staging values ('a', %s, %s, %s)",  # noqa: S608 - ours
                    (n, n, parent),
                )
        staged = StagedRows(Target(schema, "t", {}), "staging", ("n", "parent"), {"a": len(rows)})
        with database.engine.connect() as connection:
            trial = staged.tried(connection.connection.cursor(), {})
        if not trial.reasons:
            with database.transaction() as connection:
                staged.move(cursor_of(connection), len(rows), trial.pieces)
        return trial.reasons, trial.pieces

    yield given
    with database.transaction() as connection:
        connection.exec_driver_sql(f"drop schema if exists {schema} cascade")


def test_rows_that_are_refused_only_together_are_moved_in_pieces(tried: Tried) -> None:
    """No record is at fault where a trigger limits the rows of one insert: the halves are written."""
    limited = """
        create table SCHEMA.t (n int, parent int);
        create function SCHEMA.few() returns trigger language plpgsql as $$
        begin
            if (select count(*) from given) > 2 then raise exception 'too many at once'; end if;
            return null;
        end $$;
        create trigger few after insert on SCHEMA.t referencing new table as given
            for each statement execute function SCHEMA.few()
    """
    assert tried([(n, None) for n in range(4)], limited) == ({}, [(0, 1), (2, 3)])


@pytest.mark.parametrize(
    ("rows", "reasons", "pieces"),
    [
        ([(0, 3), (1, None), (2, None), (3, None)], [], [(0, 3)]),
        ([(0, None), (1, 77), (2, 0), (3, None)], [1], [(0, 0), (2, 3)]),
    ],
    ids=["to a later row", "to no row"],
)
def test_a_deferred_constraint_refuses_only_its_record(
    tried: Tried, rows: list[Row], reasons: list[int], pieces: list[Piece]
) -> None:
    """A row may refer to a later one; the one that refers to none is found, although the end names no record."""
    deferred = """
        create table SCHEMA.t
            (n int primary key, parent int references SCHEMA.t (n) deferrable initially deferred)
    """
    found, accepted = tried(rows, deferred)
    assert (list(found), accepted) == (reasons, pieces)
    assert all(words.startswith("ForeignKeyViolation: ") and "(77)" in words for words in found.values())


@pytest.mark.parametrize(
    ("code", "of_the_row"),
    [("40P01", False), ("53100", False), ("42501", False), ("22003", True), ("P0001", True), ("QX001", True)],
)
def test_errors_that_do_not_depend_on_a_row_are_not_its_outcome(
    database: Database, code: str, of_the_row: bool
) -> None:
    """A deadlock, a full disk, a missing right: the round fails. With policies a missing right is one of them."""
    with database.engine.connect() as connection, pytest.raises(psycopg2.Error) as raised:
        connection.connection.cursor().execute(
            f"do $$ begin raise exception 'no' using errcode = '{code}'; end $$"
        )
    assert (row_refusal(raised.value) is not None) is of_the_row
    assert (row_refusal(raised.value, row_security=True) is not None) is (of_the_row or code == "42501")
