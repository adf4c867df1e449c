"""Accepted rows in a Postgres table by the transaction that acknowledges them; what cannot be is refused first."""

from __future__ import annotations

import datetime
import json
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.database import Database
from sharequeue.domain.errors import InvalidRecordState
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import AcknowledgeType, SharePartition
from sharequeue.outputs.errors import NotFiles
from sharequeue.outputs.manifest import read_manifest
from sharequeue.spark.output.manifest import read_output
from sharequeue.spark.sinks.interface import SinkContext, SinkRefused
from sharequeue.spark.sinks.postgres.copy import Copier
from sharequeue.spark.sinks.postgres.move import StagingLost
from sharequeue.spark.sinks.postgres.sink import PostgresTable, Step
from sharequeue.spark.sinks.postgres.staging import StagingTables
from sharequeue.spark.sweep import sweep_outputs
from sharequeue.state import State
from tests import single
from tests.fixtures.pipelines import Assigned, Holder, MakeTable, Produce, RunJob, job_of
from tests.fixtures.stack import MakeTopic

COLUMNS = """
    "offset" bigint, "partition" integer, text text not null, raw bytea, tags jsonb, share numeric(6, 3),
    at timestamptz, day date, yes boolean, ratio double precision, "how many %" integer, empty text, nothing text,
    written_at timestamptz not null default now()
"""


@pytest.fixture
def table(make_table: MakeTable) -> str:
    """Give a table for what is accepted."""
    return make_table(COLUMNS)


def staging_of(database: Database, table: str) -> list[str]:
    names = sa.text(
        "select relname from pg_class where relname like 'sharequeue_staging%' and"
        " relnamespace = to_regnamespace(:schema)"
    )
    return [row["relname"] for row in database.rows(names, schema=table.partition(".")[0])]


def every_type(records: DataFrame) -> DataFrame:
    """A column of each kind; multiples of seven are rejected."""
    text = fn.col("value").cast("string")
    return records.select(
        "topic",
        "partition",
        "offset",
        "lease_id",
        fn.concat(text, fn.lit(' "quoted", \\. \\N\nnext line é')).alias("text"),
        fn.col("value").alias("raw"),
        fn.map_from_arrays(fn.array(fn.lit("number")), fn.array(fn.col("offset"))).alias("tags"),
        (fn.col("offset") / 8).cast("decimal(6,3)").alias("share"),
        fn.lit(datetime.datetime(2013, 7, 4, 5, 6, 7, 890123)).alias("at"),
        fn.lit(datetime.date(2013, 7, 4)).alias("day"),
        (fn.col("offset") % 2 == 0).alias("yes"),
        fn.when(fn.col("offset") == 1, fn.lit(float("nan"))).otherwise(fn.lit(0.1)).alias("ratio"),
        fn.col("offset").cast("int").alias("how many %"),
        fn.lit("").alias("empty"),
        fn.lit(None).cast("string").alias("nothing"),
        fn.when(fn.col("offset") % 7 == 0, "reject").otherwise("accept").alias("outcome"),
        fn.lit("a multiple of seven").alias("error"),
    )


def simple(records: DataFrame) -> DataFrame:
    """Two columns, everything accepted."""
    text = fn.col("value").cast("string").alias("text")
    return records.select("topic", "partition", "offset", "lease_id", text, fn.lit("accept").alias("outcome"))


def rows_of(database: Database, table: str) -> list[dict[str, Any]]:
    found = database.rows(sa.text(f'select * from {table} order by "partition", "offset"'))  # noqa: S608
    return [dict(row) for row in found]


def test_every_accepted_row_is_in_the_table_with_its_values(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    spark: SparkSession,
    state: State,
    database: Database,
    table: str,
    output_settings: Settings,
) -> None:
    """Text, bytes, JSON, decimals, times, NaN, empty and null come as they are; a default is filled in; the rejected
    stay among the exceptions; no file of an accepted row and no staging table is left."""
    topic = make_topic(2)
    for partition in range(2):
        produce(topic, partition, [f"value {n}" for n in range(20)])
    job = job_of(group, topic, every_type, destination=PostgresTable(table))
    report = run_job(job, assigned(topic), max_records=25)
    assert (report.accepted, report.rejected, report.drained) == (34, 6, True)
    assert report.stage_seconds["stage"] > 0

    rows = rows_of(database, table)
    assert Counter((row["partition"], row["offset"]) for row in rows) == {
        (partition, n): 1 for partition in range(2) for n in range(20) if n % 7
    }
    first = rows[0]
    assert first["text"] == 'value 1 "quoted", \\. \\N\nnext line é'
    assert bytes(first["raw"]) == b"value 1"
    assert first["tags"] == {"number": 1} or json.loads(first["tags"]) == {"number": 1}
    assert (first["share"], first["yes"], first["how many %"]) == (Decimal("0.125"), False, 1)
    assert first["at"] == datetime.datetime(2013, 7, 4, 5, 6, 7, 890123, datetime.UTC)
    assert first["day"] == datetime.date(2013, 7, 4)
    assert first["ratio"] != first["ratio"]
    assert (first["empty"], first["nothing"]) == ("", None)
    assert first["written_at"] is not None

    assert read_output(spark, state, group, job.exceptions_sink).count() == 6
    assert sum(row.records for row in state.outputs.counted(group, job.sink)) == 34
    with pytest.raises(NotFiles, match=r"postgresql:.*accepted"):
        read_manifest(state, group, job.sink)
    assert sweep_outputs(spark, output_settings, state, job) == []
    kept = (output_settings.local_output / job.sink).glob("leases=*/*")
    assert all(path.name.startswith("sharequeue_lease=-") for path in kept)


def test_a_refused_acknowledgement_rolls_back_the_rows(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    spark: SparkSession,
    state: State,
    database: Database,
    table: str,
    output_settings: Settings,
) -> None:
    """A lease lost between insert and acknowledgement: the table is as it was; what was staged is gone, its files are
    swept; the next run writes each record once."""
    topic = make_topic(1)
    produce(topic, 0, range(30))
    holder = assigned(topic)

    def rob(step: Step) -> None:
        if step == "inserted":
            state.release_member(group, holder.member_id)

    job = job_of(group, topic, simple, destination=PostgresTable(table, on_step=rob))
    with pytest.raises(InvalidRecordState):
        run_job(job, holder)
    assert rows_of(database, table) == []
    assert state.outputs.counted(group, job.sink) == []
    (swept,) = sweep_outputs(spark, output_settings, state, job)
    assert "/leases=" in swept
    job = job_of(group, topic, simple, destination=PostgresTable(table))
    assert sweep_outputs(spark, output_settings, state, job) == []

    assert run_job(job, holder).accepted == 30
    assert [row["offset"] for row in rows_of(database, table)] == list(range(30))


def released_and_accepted_elsewhere(state: State, at: SharePartition) -> None:
    """The lease is lost by force; another worker accepts its records."""
    state.administration.force_release(at, OffsetSet.of((0, 30)), execute=True)
    lease = single.acquire(state, at, "second", None, 30)
    assert lease is not None
    single.acknowledge(state, lease, {AcknowledgeType.ACCEPT: lease.offsets})


def given_up(state: State, at: SharePartition) -> None:
    """The records are archived as rejected, whoever holds them."""
    state.administration.force_dead_letter(at, OffsetSet.of((0, 30)), execute=True)


@pytest.mark.parametrize("lose", [released_and_accepted_elsewhere, given_up])
def test_a_late_holder_moves_no_rows(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    database: Database,
    table: str,
    lose: Callable[[State, SharePartition], None],
) -> None:
    """The records were done with elsewhere and SPSO has passed them when the acknowledgement comes: it is refused,
    and the table is as it was."""
    topic = make_topic(1)
    produce(topic, 0, range(30))
    at = SharePartition(group, topic, 0)

    def late(step: Step) -> None:
        if step == "locked":
            lose(state, at)

    job = job_of(group, topic, simple, destination=PostgresTable(table, on_step=late))
    with pytest.raises(InvalidRecordState, match="output"):
        run_job(job, assigned(topic))
    assert rows_of(database, table) == []
    assert state.outputs.counted(group, job.sink) == []
    assert (state.figures.describe(group)[0].spso, state.figures.verify(group)) == (30, [])


def test_rows_that_are_not_all_there_are_not_acknowledged(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    database: Database,
    table: str,
) -> None:
    """A staging table that was emptied, as a crash of Postgres does, fails the run; everything is given back."""
    topic = make_topic(1)
    produce(topic, 0, range(30))
    schema = table.partition(".")[0]

    def empty(step: Step) -> None:
        if step != "copied":
            return
        with database.transaction() as connection:
            names = connection.execute(
                sa.text(
                    "select relname from pg_class where relname like 'sharequeue_staging%' and"
                    " relnamespace = to_regnamespace(:schema)"
                ),
                {"schema": schema},
            )
            for (name,) in names.all():
                connection.exec_driver_sql(f"truncate {schema}.{name}")

    with pytest.raises(StagingLost, match=r"30 accepted rows.* 0 could be moved"):
        run_job(
            job_of(group, topic, simple, destination=PostgresTable(table, on_step=empty)), assigned(topic)
        )
    assert rows_of(database, table) == []
    assert state.figures.describe(group)[0].available == 30
    assert staging_of(database, table) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_run_that_ends_early_leaves_no_staging_table(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    database: Database,
    table: str,
    error: type[BaseException],
) -> None:
    """Cancelled or failed, it drops its own. What a kill leaves, the next run drops."""
    topic = make_topic(1)
    produce(topic, 0, range(30))
    holder = assigned(topic)

    def end(step: Step) -> None:
        if step == "copied":
            assert staging_of(database, table)
            raise error

    job = job_of(group, topic, simple, destination=PostgresTable(table, on_step=end))
    with pytest.raises(error):
        run_job(job, holder)
    assert staging_of(database, table) == []
    assert state.figures.describe(group)[0].acquired == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StagingTables, "close", lambda self: None)
        with pytest.raises(error):
            run_job(job, holder)
    assert staging_of(database, table)
    job = job_of(group, topic, simple, destination=PostgresTable(table))
    assert run_job(job, holder).accepted == 30
    assert staging_of(database, table) == []


def test_rows_of_an_attempt_that_spark_did_not_count_are_not_moved(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    monkeypatch: pytest.MonkeyPatch,
    database: Database,
    table: str,
) -> None:
    """Every task's rows are copied twice, as by a repeated or a speculative attempt, and committed both times: the
    table has those of the attempt that was counted."""
    topic = make_topic(1)
    produce(topic, 0, range(30))
    once = Copier.__call__

    def twice(self: Copier, batches: Any) -> Any:
        kept = list(batches)
        list(once(self, kept))
        return once(self, kept)

    monkeypatch.setattr(Copier, "__call__", twice)
    report = run_job(job_of(group, topic, simple, destination=PostgresTable(table)), assigned(topic))
    assert report.accepted == 30
    assert [row["offset"] for row in rows_of(database, table)] == list(range(30))


def test_a_missing_or_foreign_table_is_refused_before_anything_is_leased(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    stack: Any,
    private_database: Database,
    table: str,
) -> None:
    """No such table, or a table in another Postgres than the state's: said at once, with what to do."""
    topic = make_topic(1)
    produce(topic, 0, range(3))
    holder = assigned(topic)
    elsewhere = private_database.engine.url.render_as_string(hide_password=False)
    for output, said in (
        (PostgresTable("no_such.table"), "no table no_such.table in the state's database"),
        (PostgresTable(table, url=elsewhere), "another database"),
    ):
        with pytest.raises(SinkRefused, match=said):
            run_job(job_of(group, topic, simple, destination=output), holder)
        assert state.figures.describe(group)[0].in_flight == 0
    same = PostgresTable(table, url=stack.database_url)
    assert run_job(job_of(group, topic, simple, destination=same), holder).accepted == 3


def test_a_column_that_the_table_lacks_is_refused_before_anything_is_written(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    table: str,
    output_settings: Settings,
) -> None:
    """A column that the table lacks, or of a type that cannot be copied: nothing is leased for it."""
    topic = make_topic(1)
    produce(topic, 0, range(3))
    holder: Holder = assigned(topic)
    refused = (
        ("extra", fn.lit(1), "no column extra"),
        ("text", fn.expr("interval 1 day"), "cast it"),
    )
    for name, value, said in refused:

        def wider(records: DataFrame, name: str = name, value: Column = value) -> DataFrame:
            return simple(records).withColumn(name, value)

        job = job_of(group, topic, wider, destination=PostgresTable(table), try_empty=True)
        with pytest.raises(SinkRefused, match=said):
            run_job(job, holder)
    assert state.figures.describe(group)[0].speo == 0
    assert not (output_settings.local_output / f"sink-{group}").exists()


@pytest.mark.parametrize(
    ("columns", "selected", "said"),
    [
        (
            "tags text[]",
            "array('a') as tags",
            "in table .* it is an array, and such a column is copied as JSON: change it to json",
        ),
        (
            "at timestamptz",
            "timestamp_ntz'2013-07-04 05:06:07' as at",
            "in table .* it has a time zone, and the handler's has none",
        ),
        ("at timestamptz", "date'2013-07-04' as at", "it has a time zone, and the handler's has none"),
        ("other int", "'x' as outcome", "no column in common with the handler's result"),
        ("n int", "1L as n", "column n is bigint in .* it is int4, which cannot hold all of it"),
        ("n real", "1d as n", "column n is double in .* it is float4, which cannot"),
        ("n bigint", "1.5 as n", "which cannot hold all of it"),
        ("n double precision", "1L as n", "which cannot hold all of it"),
        ("n date", "timestamp'2013-07-04 05:06:07' as n", "which cannot hold all of it"),
        ("n text", "X'00' as n", "which cannot hold all of it"),
        ("n money", "'1.23' as n", "it is money, which rounds: change it to numeric"),
        ("n jsonb", "map(date'2013-07-04', 1) as n", "a map with keys of type date, which JSON cannot have"),
        ("n bigint generated always as identity, m int", "1L as n", "has n as `generated always`"),
        ("n bigint generated always as (m * 2) stored, m int", "1L as n", "has n as `generated always`"),
    ],
)
def test_incompatible_types_are_refused_before_the_copy(
    group: str,
    make_table: MakeTable,
    state: State,
    spark: SparkSession,
    settings: Settings,
    columns: str,
    selected: str,
    said: str,
) -> None:
    """By the types of both sides, and by name."""
    job = job_of(group, "any", simple)
    context = SinkContext(settings, state, spark, job.names)
    with (
        PostgresTable(make_table(columns)).open(context) as table,
        pytest.raises(SinkRefused, match=said),
    ):
        table.fits(spark.sql(f"select 't' as topic, 1L as lease_id, {selected}"))


def test_the_parts_of_a_struct_are_in_the_json_as_they_are(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    make_table: MakeTable,
    database: Database,
) -> None:
    """A null, and not a field that is absent; a time with its microseconds, in UTC. A record with a number that JSON
    cannot have is rejected."""
    topic, table = make_topic(1), make_table("tags jsonb")
    produce(topic, 0, ["a", "b"])

    def nested(records: DataFrame) -> DataFrame:
        tags = (
            "named_struct('none', cast(null as int), 'at', timestamp'2024-01-01 01:00:00.123456+01:00', "
            "'local', timestamp_ntz'2024-01-01 00:00:00.123456', "
            "'many', array(map('x', double(if(offset = 1, 'NaN', '0.5')))))"
        )
        return simple(records).drop("text").selectExpr("*", f"{tags} as tags")

    report = run_job(
        job_of(group, topic, nested, destination=PostgresTable(table), failed_share=None), assigned(topic)
    )
    assert (report.accepted, report.rejected) == (1, 1)
    assert report.errors == (
        f"{topic}-0 offset 1: reject, ValueChanged: column tags: a part of it is NaN or infinite, which JSON cannot "
        "have",
    )
    (row,) = database.rows(sa.text(f"select tags from {table}"))  # noqa: S608
    assert row["tags"] == {
        "none": None,
        "at": "2024-01-01T00:00:00.123456Z",
        "local": "2024-01-01T00:00:00.123456",
        "many": [{"x": 0.5}],
    }
