"""Rows handed to a writer of the user's, times not before, and byte budgets: on the real stack."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.database import Database
from sharequeue.domain.errors import InvalidRecordState
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import Lease
from sharequeue.groups.configs import alter_group_configs
from sharequeue.outputs.errors import NotFiles
from sharequeue.outputs.manifest import read_manifest
from sharequeue.spark.handler import HandlerError, MostFailed
from sharequeue.spark.job import ShareGroupJob
from sharequeue.spark.leasing import budget
from sharequeue.spark.outcomes import most_failed
from sharequeue.spark.output.manifest import read_output
from sharequeue.spark.sinks.at_least_once import AtLeastOnce
from sharequeue.spark.sinks.interface import SinkRefused
from sharequeue.spark.sweep import sweep_outputs
from sharequeue.state import State
from sharequeue.state.calls import DELAYS
from tests import single
from tests.fixtures.pipelines import Assigned, Produce, RunJob, all_accepted, job_of
from tests.fixtures.stack import MakeTopic


def test_a_users_writer_gets_unacknowledged_records_again(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    spark: SparkSession,
    state: State,
    output_settings: Settings,
) -> None:
    """At least once: rows written whose lease was lost before the acknowledgement are written again under another
    lease, with the same topic, partition and offset; all others once. Nothing of it stays in files."""
    topic = make_topic(2)
    for partition in range(2):
        produce(topic, partition, range(10))
    holder = assigned(topic)
    written: list[tuple[int, int, int]] = []

    def upsert(rows: DataFrame, lease: Lease) -> None:
        got = rows.select("partition", "offset", "lease_id").collect()
        assert {row["lease_id"] for row in got} == {lease.lease_id}
        written.extend((row["lease_id"], row["partition"], row["offset"]) for row in got)
        if len(written) == 20:
            single.release(state, lease)  # the second lease, as if its lock had lapsed

    job = job_of(group, topic, all_accepted, destination=AtLeastOnce(upsert))
    with pytest.raises(InvalidRecordState):
        run_job(job, holder)
    assert run_job(job, holder).accepted == 10
    times = Counter((partition, offset) for _, partition, offset in written)
    assert sorted(times.values()) == [1] * 10 + [2] * 10
    assert len({lease_id for lease_id, _, _ in written}) >= 3

    assert sum(row.records for row in state.outputs.counted(group, job.sink)) == 20
    with pytest.raises(NotFiles, match="at least once by upsert"):
        read_manifest(state, group, job.sink)
    # The folder of the lease that was lost is the sweep's; the others are gone already.
    assert len(sweep_outputs(spark, output_settings, state, job)) == 1
    assert not list((output_settings.local_output / job.sink).glob("leases=*"))


def test_a_released_record_comes_no_sooner_than_its_time(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    spark: SparkSession,
    database: Database,
) -> None:
    """`not_before` of each record goes with its release, rounded up to the second; without one it comes at once; for
    what is accepted or rejected it says nothing."""
    topic = make_topic(1)
    produce(topic, 0, range(12))
    soon = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1, microseconds=250_000)
    late = soon + timedelta(hours=1)

    def patient(records: DataFrame) -> DataFrame:
        time = (
            fn.when(fn.col("offset") < 3, fn.lit(soon))
            .when(fn.col("offset") < 5, fn.lit(late))
            .when(fn.col("offset") == 11, fn.lit(late))
        )
        outcome = fn.when(fn.col("offset") < 8, "release").otherwise("accept")
        return records.select("topic", "partition", "offset", "lease_id").withColumns(
            {"outcome": outcome, "not_before": time}
        )

    holder = assigned(topic)
    report = run_job(job_of(group, topic, patient), holder, max_rounds=1)
    assert (report.accepted, report.released) == (4, 8)
    times = _times(database, group)
    second = timedelta(seconds=1)
    assert times == {
        None: "{[5,8)}",
        soon.replace(microsecond=0) + second: "{[0,3)}",
        late.replace(microsecond=0) + second: "{[3,5)}",
    }
    (output,) = state.outputs.counted(group, f"sink-{group}")
    assert output.records == 4
    again = run_job(job_of(group, topic, all_accepted), holder)
    assert again.accepted == 3
    assert read_output(spark, state, group, f"sink-{group}").count() == 7
    (status,) = state.figures.describe(group)
    assert (status.available, status.waiting) == (5, 5)
    assert state.figures.verify(group) == []


def test_thousands_of_times_are_rounded_up_to_a_hundred(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    database: Database,
) -> None:
    """A time for every record: the acknowledgement takes a bounded number of them, each rounded up."""
    topic = make_topic(1)
    produce(topic, 0, range(2000))
    began = datetime.now(UTC) + timedelta(hours=1)

    def scattered(records: DataFrame) -> DataFrame:
        later = fn.expr("make_dt_interval(0, 0, 0, offset)")
        return all_accepted(records).withColumns(
            {"outcome": fn.lit("release"), "not_before": fn.lit(began) + later}
        )

    job = job_of(group, topic, scattered, failed_share=None)
    report = run_job(job, assigned(topic), max_rounds=1)
    assert report.released == 2000
    times = _times(database, group)
    assert 20 < len(times) <= DELAYS
    for time, offsets in times.items():
        assert time is not None
        (last,) = [int(text.split(",")[1].rstrip(")}")) - 1 for text in [offsets]]
        wanted = began + timedelta(seconds=last)
        assert wanted <= time < wanted + timedelta(seconds=121)


def test_a_text_as_timestamp_is_refused(
    group: str, make_topic: MakeTopic, produce: Produce, assigned: Assigned, run_job: RunJob
) -> None:
    """Text is no timestamp: said before anything is written."""
    topic = make_topic(1)
    produce(topic, 0, range(3))
    textual = lambda records: all_accepted(records).withColumn("not_before", fn.lit("tomorrow"))  # noqa: E731
    with pytest.raises(HandlerError, match="`not_before` is of type string: expected timestamp"):
        run_job(job_of(group, topic, textual), assigned(topic))


def test_rows_of_one_record_must_agree_on_its_time(
    group: str, make_topic: MakeTopic, produce: Produce, assigned: Assigned, run_job: RunJob
) -> None:
    topic = make_topic(1)
    produce(topic, 0, range(3))

    def torn(records: DataFrame) -> DataFrame:
        times = fn.explode(fn.expr("array(timestamp '2100-01-01', timestamp '2100-01-02')"))
        return all_accepted(records).withColumns({"outcome": fn.lit("release"), "not_before": times})

    with pytest.raises(HandlerError, match="more than one time not before"):
        run_job(job_of(group, topic, torn), assigned(topic))


def test_a_byte_budget_becomes_records_by_their_mean_size(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`max_bytes` of the run or of the group bounds each round by the size of what is there; a record
    larger than the budget comes alone."""
    monkeypatch.setattr(budget, "WAIT_SECONDS", 120.0)  # until a record is measured, and none is guessed
    topic = make_topic(1)
    produce(topic, 0, [b"x" * 995] * 40)  # 1,997 bytes with its key, `key-b'xxx…'`
    holder = assigned(topic)
    job = job_of(group, topic, all_accepted)
    report = run_job(job, holder, max_rounds=1, max_bytes=20_000)
    assert report.rounds[0].leased == 10
    report = run_job(job, holder, max_rounds=2, max_bytes=100)
    assert [r.leased for r in report.rounds] == [1, 1]
    alter_group_configs(database, group, {"sharequeue.fetch.max.bytes": "30000"})
    report = run_job(job_of(group, topic, all_accepted), holder)
    assert report.drained
    assert [r.leased for r in report.rounds] == [15, 13]


def _times(database: Database, group: str) -> dict[datetime | None, str]:
    """The available offsets of a group's only share-partition, by when they may be delivered."""
    rows = database.rows(
        sa.text(
            "select not_before,"
            " range_agg(sharequeue_internal.offsets_of(first_offset, last_offset, offsets))::text as offsets"
            " from sharequeue.in_flight_batches join sharequeue.share_partitions using (share_partition_id)"
            " where group_id = :group and state = 0 group by 1"
        ),
        group=group,
    )
    return {row["not_before"]: row["offsets"] for row in rows}


def test_a_column_of_another_type_is_refused_before_anything_is_leased(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    spark: SparkSession,
    state: State,
    database: Database,
) -> None:
    """A wider type and a new column are read with the older files as one table. A type that fits with none of them,
    or a name that differs in case, would be found by a reader: the run ends before it leases."""
    topic = make_topic(1)
    holder = assigned(topic)

    def job(column: str) -> ShareGroupJob:
        handler = lambda records: all_accepted(records).selectExpr("*", column)  # noqa: E731
        return job_of(group, topic, handler, try_empty=True)

    for at, column in enumerate(("cast(1 as int) as n", "2L as n", "'new' as later")):
        produce(topic, 0, [at])
        assert run_job(job(column), holder).accepted == 1
    # As an earlier release leaves it: its columns are not kept, and are those of the newest files.
    database.call(
        sa.text("delete from sharequeue.sink_columns where group_id = :group returning 1"), group=group
    )
    produce(topic, 0, ["last"])
    for column, said in (
        ("array(1) as later", "later is array<int> in the handler's result and string in files"),
        ("'x' as Later", "Later of the handler's result is called later in files"),
    ):
        with pytest.raises(SinkRefused, match=said):
            run_job(job(column), holder)
    (status,) = state.figures.describe(group)
    assert (status.spso, status.acquired) == (3, 0)
    assert run_job(job("'again' as later"), holder).accepted == 1
    read = read_output(spark, state, group, f"sink-{group}")
    assert read.schema["n"].dataType.simpleString() == "bigint"
    found = [(row["n"], row["later"]) for row in read.orderBy("offset").collect()]
    assert found == [(1, None), (2, None), (None, "new"), (None, "again")]


def test_columns_are_stored_only_when_their_rows_count(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    spark: SparkSession,
    state: State,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mistyped column of a run on an empty topic, of one whose rows were too many rejects, or of one that was
    refused when it acknowledged, binds nothing: the run that is right goes on. From then on its columns hold."""
    monkeypatch.setattr(most_failed, "FAILED_RECORDS", 1)
    topic = make_topic(1)
    holder = assigned(topic)

    def job(column: str, outcome: str = "accept") -> ShareGroupJob:
        handler = lambda records: (  # noqa: E731
            all_accepted(records).selectExpr("*", column).withColumn("outcome", fn.lit(outcome))
        )
        return job_of(group, topic, handler, try_empty=True)

    assert run_job(job("'typo' as n"), holder).rounds == ()
    produce(topic, 0, range(2))
    with pytest.raises(MostFailed):
        run_job(job("array(1) as n", "reject"), holder)

    def refused(*_: object, **__: object) -> None:
        raise InvalidRecordState("refused here")

    with monkeypatch.context() as patched:
        patched.setattr("sharequeue.spark.lease_results.acknowledge_all", refused)
        with pytest.raises(InvalidRecordState, match="refused here"):
            run_job(job("map(1, 2) as n"), holder)
    assert run_job(job("1 as n"), holder).accepted == 2
    with pytest.raises(SinkRefused, match="n is string in the handler's result and int in files"):
        run_job(job("'typo' as n"), holder)
    assert read_output(spark, state, group, f"sink-{group}").where("n = 1").count() == 2
