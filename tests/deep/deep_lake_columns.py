"""The columns of tables of Delta and Iceberg: what a table cannot take is refused before anything is leased, a record
beyond its limits is a reject, and a table that was altered since loses nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.domain.settings import Settings
from sharequeue.spark.output.manifest import read_output
from sharequeue.spark.sinks.interface import SinkRefused
from sharequeue.spark.sinks.transfers import Step
from sharequeue.state import State
from tests.fixtures.lakes import RECORDS, Lake, once
from tests.fixtures.pipelines import Assigned, Produce, RunJob, all_accepted, job_of

pytestmark = pytest.mark.usefixtures("short_claims")


@pytest.mark.parametrize(
    ("columns", "change", "said"),
    [
        (None, None, "there is no (Delta|Iceberg) table .*create table"),
        ("note string", None, "has no column partly"),
        (
            "partly int, `offset` bigint",
            None,
            "column partly is bigint in the handler's result and int in table",
        ),
        (
            "partly bigint, must string not null",
            None,
            "has NOT NULL on must, which the handler's result does not",
        ),
        ("partly decimal(20,0), `offset` int", None, "column offset is bigint .* and int in table"),
        (
            "partly bigint",
            "delta: set tblproperties ('delta.setTransactionRetentionDuration'='interval 1 days')",
            "it would forget which transfers it has accepted",
        ),
        (
            "partly bigint",
            "iceberg: unset tblproperties ('write.wap.enabled')",
            "lacks the property write.wap.enabled",
        ),
    ],
)
def test_a_table_that_cannot_take_all_is_refused_before_anything_is_leased(
    lake: Lake,
    lake_topic: str,
    group: str,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    columns: str | None,
    change: str | None,
    said: str,
) -> None:
    """No table, no column, a narrower one, one that refuses nulls or values, one that would forget: an error says
    what to do, and no record was delivered."""
    if change is not None:
        kind, _, change = change.partition(": ")
        if kind != lake.kind:
            return
    if columns is not None:
        lake.create(columns)
    if change is not None:
        lake.alter(change)
    holder = assigned(lake_topic)

    def handler(records: DataFrame) -> DataFrame:
        return all_accepted(records).withColumn("partly", fn.col("offset") * 2)

    with pytest.raises(SinkRefused, match=said):
        run_job(job_of(group, lake_topic, handler, destination=lake.sink()), holder)
    assert [each.acquired for each in state.figures.describe(group)] == [0, 0]
    assert [each.spso for each in state.figures.describe(group)] == [0, 0]


def test_a_narrower_column_goes_into_a_wider_one(
    lake: Lake, lake_topic: str, group: str, assigned: Assigned, run_job: RunJob
) -> None:
    """A column that the table has as a wider type, nested ones, and one that the table alone has."""
    lake.create("partition bigint, `offset` bigint, tags array<string>, place struct<x: int>, other string")

    def handler(records: DataFrame) -> DataFrame:
        tags, place = fn.array(fn.lit("a")), fn.struct(fn.col("partition").alias("x"))
        return all_accepted(records).withColumns({"tags": tags, "place": place})

    run_job(job_of(group, lake_topic, handler, destination=lake.sink()), assigned(lake_topic))
    assert lake.found() == once()
    [row] = lake.rows().where("partition = 1 and offset = 3").collect()
    assert (row["tags"], row["place"]["x"], row["other"]) == (["a"], 1, None)


DECLARED = {
    "delta": "id bigint not null, v varchar(3), c char(3), k string, tags array<varchar(2)>",
    "iceberg": "id bigint not null, v string, c string, k string, tags array<string>",
}
BEYOND = {
    "delta": {
        1: "v is longer than varchar(3)",
        2: "c is longer than char(3)",
        3: "id is null, and the table has NOT NULL on it",
        4: "k is a partition column, in which Delta stores this text as null",
        5: "tags.element is longer than varchar(2)",
        6: "CHECK few of the table: id < 1000",
        7: "k is too long for the name of a partition's folder",
    },
    "iceberg": {
        3: "id is null, and the table has NOT NULL on it",
        7: "k is too long for the name of a partition's folder",
    },
}


def test_a_record_beyond_the_limits_of_a_table_is_rejected_and_the_others_go_on(
    lake: Lake,
    lake_topic: str,
    group: str,
    assigned: Assigned,
    produce: Produce,
    run_job: RunJob,
    state: State,
    spark: SparkSession,
) -> None:
    """`varchar(n)`, `char(n)`, NOT NULL, CHECK, partition columns: each record that the table would refuse or change
    is a reject with the reason, before its acknowledgement; the table gets all others, round after round."""
    lake.create(f"partition int, {DECLARED[lake.kind]}", "partitioned by (k)")
    if lake.kind == "delta":
        lake.alter("add constraint few check (id < 1000)")

    def handler(records: DataFrame) -> DataFrame:
        return all_accepted(records).selectExpr(
            "*",
            "case offset when 3 then null when 6 then 1000 else offset end as id",
            "if(offset = 1, 'four', 'abc') as v",
            "if(offset = 2, 'four', 'éèê') as c",
            "case offset when 4 then '' when 7 then repeat('x', 300) else concat('a/b=', partition) end as k",
            "array('a', if(offset = 5, 'four', null)) as tags",
        )

    job = job_of(group, lake_topic, handler, destination=lake.sink())
    holder, beyond = assigned(lake_topic), BEYOND[lake.kind]
    report = run_job(job, holder, max_records=30)
    assert len(report.rounds) > 1
    assert (report.accepted, report.rejected) == (2 * (RECORDS - len(beyond)), 2 * len(beyond))
    exceptions = read_output(spark, state, group, job.exceptions_sink).collect()
    assert {row["offset"]: row["error"] for row in exceptions} == beyond
    found = Counter((row["partition"], row["id"]) for row in lake.rows().collect())
    expected = Counter(
        (partition, 1000 if n == 6 else n)
        for partition in range(2)
        for n in range(RECORDS)
        if n not in beyond
    )
    assert found == expected
    produce(lake_topic, 0, range(3))
    assert run_job(job, holder).accepted == 3


def test_rows_that_no_longer_fit_their_table_wait_in_files(
    lake: Lake, lake_topic: str, group: str, assigned: Assigned, run_job: RunJob, output_settings: Settings
) -> None:
    """A column is renamed after its rows were acknowledged: the next run is refused by name before it leases, and
    removes nothing. Called as before, every value is there."""
    columns = "partition int, `offset` bigint, uid string"
    lake.create(columns)
    if lake.kind == "delta":
        lake.alter(
            "set tblproperties ('delta.columnMapping.mode'='name', 'delta.minReaderVersion'='2',"
            " 'delta.minWriterVersion'='5')"
        )
    handler = lambda records: all_accepted(records).withColumn("uid", fn.col("offset").cast("string"))  # noqa: E731
    job, holder = job_of(group, lake_topic, handler), assigned(lake_topic)

    def fail(step: Step) -> None:
        if step == "begun":
            raise OSError("failed here")

    with pytest.raises(OSError, match="failed here"):
        run_job(replace(job, destination=lake.sink(fail)), holder)
    lake.alter("rename column uid to other")
    before = sorted((output_settings.local_output / job.sink).glob("leases=*/*/*.parquet"))
    for _ in range(2):
        with pytest.raises(
            SinkRefused, match=r"80 accepted rows wait .* has no column uid.* Nothing was removed"
        ):
            run_job(replace(job, destination=lake.sink()), holder)
    assert before == sorted((output_settings.local_output / job.sink).glob("leases=*/*/*.parquet")) != []
    assert lake.rows().count() == 0
    lake.alter("rename column other to uid")
    run_job(replace(job, destination=lake.sink()), holder)
    assert lake.found() == once()
    assert lake.rows().where("uid = cast(offset as string)").count() == 2 * RECORDS


def test_a_table_altered_after_a_transfer_delays_no_run(
    lake: Lake, lake_topic: str, group: str, assigned: Assigned, run_job: RunJob
) -> None:
    """The run ended between the table's commit and the note of it, and a column was renamed then: the number is in
    the table, and the next run goes on."""
    lake.create("partition int, `offset` bigint, uid string")
    if lake.kind == "delta":
        lake.alter(
            "set tblproperties ('delta.columnMapping.mode'='name', 'delta.minReaderVersion'='2',"
            " 'delta.minWriterVersion'='5')"
        )
    handler = lambda records: all_accepted(records).withColumn("uid", fn.lit("x"))  # noqa: E731
    job, holder = job_of(group, lake_topic, handler), assigned(lake_topic)

    def fail(step: Step) -> None:
        if step == "appended":
            raise OSError("failed here")

    with pytest.raises(OSError, match="failed here"):
        run_job(replace(job, destination=lake.sink(fail)), holder)
    lake.alter("rename column uid to other")
    run_job(job_of(group, lake_topic, all_accepted, destination=lake.sink()), holder)
    assert lake.found() == once()
    assert lake.rows().where("other = 'x'").count() == 2 * RECORDS


@pytest.mark.parametrize("case_sensitive", ["true", "false"])
def test_names_that_differ_in_case_are_matched_or_refused(
    lake: Lake,
    lake_topic: str,
    group: str,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    spark: SparkSession,
    case_sensitive: str,
) -> None:
    """A column `UID` gets the values of `uid`: in Delta always, in Iceberg where case does not count in the session;
    else the run is refused before it leases. Nothing becomes null."""
    lake.create("partition int, `offset` bigint, UID string")
    handler = lambda records: all_accepted(records).withColumn("uid", fn.lit("x"))  # noqa: E731
    job, holder = job_of(group, lake_topic, handler, destination=lake.sink()), assigned(lake_topic)
    spark.conf.set("spark.sql.caseSensitive", case_sensitive)
    try:
        if lake.kind == "iceberg" and case_sensitive == "true":
            with pytest.raises(SinkRefused, match="has no column uid"):
                run_job(job, holder)
            assert [each.spso for each in state.figures.describe(group)] == [0, 0]
            return
        run_job(job, holder)
    finally:
        spark.conf.set("spark.sql.caseSensitive", "false")
    assert lake.rows().where("UID = 'x'").count() == 2 * RECORDS
