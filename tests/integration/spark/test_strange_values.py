"""A value of a record that Python or Java cannot represent is the outcome of this record alone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.database import Database
from sharequeue.deadletters.attempts import read_errors
from sharequeue.domain.errors import InvalidTimestamp
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.topics import Topics
from sharequeue.spark.leased_records import lease
from sharequeue.spark.output.manifest import read_output
from sharequeue.spark.reading.frame import leased_records, segments_by_offset
from sharequeue.spark.reading.options import ISOLATION
from sharequeue.spark.reading.plan import plan_scans
from sharequeue.spark.replays.replay import run_replay
from sharequeue.spark.replays.trial import try_on
from sharequeue.state import State
from tests.fixtures.pipelines import Assigned, Produce, RunJob, all_accepted, job_of
from tests.fixtures.stack import MakeTopic
from tests.leases import lease_of

TIMES = (
    "timestamp'9999-12-31 23:59:59.999999'",
    "timestamp_seconds(1700000000000)",
    f"timestamp_micros({2**63 - 1}L)",
    "timestamp'2200-01-01'",
    f"timestamp_micros({-(2**63) + 1}L)",
    "timestamp'2050-01-01'",
)


def test_a_time_not_before_that_is_out_of_range_is_its_records_own_outcome(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    spark: SparkSession,
    state: State,
    database: Database,
) -> None:
    """More than 99 years ahead: rejected, with the reason; the others are released, with a time in the past at
    once."""
    topic = make_topic(1)
    produce(topic, 0, range(7))
    times = " ".join(f"when {offset} then {time}" for offset, time in enumerate(TIMES))

    def later(records: DataFrame) -> DataFrame:
        outcome = fn.when(fn.col("offset") == 6, "accept").otherwise("release")
        return all_accepted(records).withColumns(
            {"outcome": outcome, "not_before": fn.expr(f"case offset {times} end"), "error": fn.lit("why")}
        )

    job = job_of(group, topic, later, failed_share=None)
    report = run_job(job, assigned(topic), max_rounds=1)
    assert (report.accepted, report.released, report.rejected) == (1, 2, 4)
    read = read_output(spark, state, group, job.exceptions_sink)
    rows = read.orderBy("offset").select("outcome", "error").collect()
    assert read.where("outcome = 'reject' and not_before is not null").isEmpty()
    assert [row["outcome"] for row in rows] == ["reject"] * 4 + ["release"] * 2
    assert rows[1]["error"].startswith(
        "not_before is +55840-11-08 22:13:20: expected a time at most 99 years ahead"
    )
    assert [row["error"].rpartition("; ")[2] for row in rows] == ["why"] * 6
    waiting = sa.text(
        "select not_before from sharequeue.in_flight_batches join sharequeue.share_partitions"
        " using (share_partition_id) where group_id = :group and state = 0 order by first_offset"
    )
    assert [each["not_before"] for each in database.rows(waiting, group=group)] == [
        None,
        datetime(2050, 1, 1, tzinfo=UTC),
    ]


def test_an_error_that_is_not_utf8_ends_no_round(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
) -> None:
    """A handler that puts the bytes of a record into its error: the report and the dead letter have it readable."""
    topic = make_topic(1)
    produce(topic, 0, [b"a\xff", "b"])

    def cited(records: DataFrame) -> DataFrame:
        text = fn.col("value").cast("string")
        kept = records.select("topic", "partition", "offset", "lease_id", text.alias("error"))
        return kept.withColumn("outcome", fn.lit("reject"))

    job = job_of(group, topic, cited)
    assert run_job(job, assigned(topic)).errors == (f"{topic}-0 offset 0: reject, a\ufffd",)
    (output, *_) = [row for row in state.outputs.counted(group, job.exceptions_sink) if row.records]
    table = read_errors(output.location)
    assert table is not None
    assert sorted(table["error"].to_pylist()) == ["a\ufffd", "b"]


def test_records_with_timestamps_in_nanoseconds_are_read_by_offset(
    group: str,
    make_topic: MakeTopic,
    output_settings: Settings,
    assigned: Assigned,
    run_job: RunJob,
    spark: SparkSession,
    state: State,
    topics: Topics,
) -> None:
    """Spark's connector cannot represent them: a trial, a run and a replay read them by offset. They get the last
    time that there is, and the gap between them is found. A lease names the remedy."""
    settings = output_settings
    topic = make_topic(1, message_timestamp_after_max_ms=str(2**63 - 1))
    producer = Producer(client_config(settings, transactional_id=topic))
    producer.init_transactions()
    for some in ((2**63 - 1, 1_700_000_000_000), (1_700_000_000_000_000, 1_700_000_000_000_000_000)):
        producer.begin_transaction()
        for at in some:
            producer.produce(topic, b"a", timestamp=at, partition=0)
        producer.commit_transaction()
    holder = assigned(topic)
    job = job_of(group, topic, all_accepted)
    assert try_on(job, 10, settings, state, topics, spark).outcomes == {"accept": 4}
    leased = lease(group, topic, settings=settings, spark=spark, membership=holder, max_records=1)
    with pytest.raises(InvalidTimestamp, match="with a pipeline, whose runs read them by offset"), leased:
        leased.records.collect()
    report = run_job(job, holder)
    assert (report.accepted, report.gaps) == (4, 2)
    given: dict[str, Any] = {"state": state, "topics": topics, "spark": spark}
    ends: dict[str, Any] = {
        "since": datetime(2020, 1, 1, tzinfo=UTC),
        "until": datetime(2024, 1, 1, tzinfo=UTC),
    }
    assert run_replay(job, settings, **ends, **given).accepted == 1
    offsets = {(topic, 0): OffsetSet.of((0, 6))}
    assert run_replay(job, settings, offsets=offsets, **given).accepted == 4


def test_records_without_a_row_are_read_by_offset_if_they_cannot_be_scanned(
    group: str, make_topic: MakeTopic, settings: Settings, assigned: Assigned, run_job: RunJob
) -> None:
    """In a group that is ordered by key, whose run reads the keys of records that its handler has left out."""
    topic = make_topic(1, message_timestamp_after_max_ms=str(2**63 - 1))
    producer = Producer(client_config(settings))
    for offset in range(4):
        producer.produce(topic, b"a", key=str(offset), timestamp=1_700_000_000_000_000_000, partition=0)
    producer.flush()
    holder = assigned(topic, sharequeue_order="key")

    def first_half(records: DataFrame) -> DataFrame:
        return records.where("offset < 2").withColumn("outcome", fn.lit("accept"))

    job = job_of(group, topic, first_half, without_row="reject")
    report = run_job(job, holder)
    assert (report.accepted, report.rejected) == (2, 2)


def test_timestamps_before_1582_are_read_as_they_were_written(
    make_topic: MakeTopic, settings: Settings, spark: SparkSession
) -> None:
    """Also before 1582, where Spark's connector takes it for a day of another calendar, and if read by offset."""
    topic = make_topic(1)
    times = [
        int(datetime(year, month, day, 12, tzinfo=UTC).timestamp() * 1000)
        for year, month, day in (
            (1, 1, 1),
            (100, 3, 2),
            (1200, 2, 28),
            (1582, 10, 14),
            (1582, 10, 15),
            (2024, 1, 1),
        )
    ]
    producer = Producer(client_config(settings))
    for at in times:
        producer.produce(topic, b"a", timestamp=at, partition=0)
    producer.flush()
    (scan,) = plan_scans({(topic, 0): OffsetSet.of((0, len(times)))})
    scanned = leased_records(spark, settings, [lease_of(1, topic, 0, (1, OffsetSet.of((0, len(times)))))])
    by_offset = segments_by_offset(spark, settings, scan, {ISOLATION: "read_uncommitted"}, headers=False)
    for records in (scanned, by_offset):
        found = records.orderBy("offset").selectExpr("unix_millis(timestamp)").collect()
        assert [row[0] for row in found] == times
