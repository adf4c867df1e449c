"""Rounds of a job on the real stack: each record's outcome is durable before it is acknowledged, and counts
once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.domain.values import SharePartition
from sharequeue.kafka.topics import Topics
from sharequeue.outputs.manifest import read_manifest
from sharequeue.spark.job import ShareGroupJob, Summary
from sharequeue.spark.output.manifest import read_output
from sharequeue.spark.progress import Progress
from sharequeue.state import State
from tests import single
from tests.fixtures.pipelines import (
    Assigned,
    Produce,
    RunJob,
    all_accepted,
    by_value,
    job_of,
    offsets_in,
)
from tests.fixtures.stack import MakeTopic

Handler = Callable[[DataFrame], DataFrame]


def test_each_outcome_is_in_its_output_and_in_the_state(
    job: ShareGroupJob,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    spark: SparkSession,
    state: State,
) -> None:
    """Accepted records are in the sink, released and rejected ones among the exceptions with their errors,
    and the state agrees; the second round gets what was released."""
    (topic,) = job.topics
    produce(topic, 0, ["accept a", "reject b", "release c", "accept d"])
    produce(topic, 1, ["accept e", "bogus f", "accept g"])
    said: list[Progress] = []
    holder = assigned(topic)
    report = run_job(replace(job, try_empty=True), holder, max_rounds=1, progress=said.append)

    assert (report.accepted, report.released, report.rejected, report.gaps) == (4, 2, 1, 0)
    assert not report.drained
    assert report.lag == 2
    assert offsets_in(read_output(spark, state, job.group, job.sink)) == [(0, 0), (0, 3), (1, 0), (1, 2)]
    exceptions = read_output(spark, state, job.group, job.exceptions_sink).orderBy("partition", "offset")
    assert [(row["offset"], row["outcome"], row["error"]) for row in exceptions.collect()] == [
        (1, "reject", "because of reject b"),
        (2, "release", "because of release c"),
        (1, "release", "because of bogus f"),
    ]
    before = ["opening the output", "calling the handler without records"]
    assert [p.stage for p in said[:2]] == before
    assert str(said[1]) == "round 1: calling the handler without records"
    assert [p.stage for p in said[2:]] == [
        "observe", "acquire", "plan", "write", "summarise", "read back", "acknowledge", "done",
    ]  # fmt: skip
    assert said[-1].records_done == 7
    assert "7 records done" in str(said[-1])
    assert (said[1].seconds, 0 < report.start_seconds < report.seconds) == (0.0, True)
    assert report.rate == report.done / (report.seconds - report.start_seconds)
    assert set(report.stage_seconds) == {p.stage for p in said[2:]} - {"done"}

    again = run_job(job, holder)
    assert again.drained
    assert [r.leased for r in again.rounds] == [2, 2, 2, 2]
    assert (again.released, again.exhausted) == (6, 2)
    assert len(offsets_in(read_output(spark, state, job.group, job.sink))) == 4
    assert state.figures.verify(job.group) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"without_row": "ignore"}, "not an outcome"),
        ({"deliveries_per_run": 0}, "1 or more"),
        ({"failed_share": 1.5}, "share of a round"),
    ],
)
def test_invalid_settings_of_a_job_are_refused(group: str, changes: dict[str, object], said: str) -> None:
    """A job with a setting that means nothing is refused where it is made."""
    with pytest.raises(ValueError, match=said):
        job_of(group, "t", by_value, **changes)


def test_partial_sums_count_with_their_lease(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    spark: SparkSession,
    state: State,
) -> None:
    """A summary is one partial sum by lease; the sum over the manifest is the sum over what was accepted."""
    topic = make_topic(3)
    for partition in range(3):
        produce(topic, partition, ["accept x", "reject y", "accept z"])
    counted = Summary(
        "texts", lambda accepted: accepted.groupBy("lease_id", "text").agg(fn.count("*").alias("n"))
    )
    job = job_of(group, topic, by_value, summaries=(counted,))
    run_job(job, assigned(topic))
    partials = read_output(spark, state, group, job.summary_sink(counted))
    assert len(read_manifest(state, group, job.summary_sink(counted))) == 3
    sums = partials.groupBy("text").agg(fn.sum("n").alias("n")).orderBy("text").collect()
    assert [(row["text"], row["n"]) for row in sums] == [("accept x", 3), ("accept z", 3)]


def test_the_budget_bounds_a_round_and_share_partitions_take_turns(
    group: str, make_topic: MakeTopic, produce: Produce, assigned: Assigned, run_job: RunJob
) -> None:
    """A round leases no more than its budget, and the next one begins with the next share-partition."""
    topic = make_topic(2)
    produce(topic, 0, range(10))
    produce(topic, 1, range(10))
    report = run_job(job_of(group, topic, all_accepted), assigned(topic), max_records=8)
    assert report.drained
    assert [r.leased for r in report.rounds] == [8, 8, 4]


def test_spark_jobs_have_the_trace_of_their_run(
    monkeypatch: pytest.MonkeyPatch,
    spark: SparkSession,
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
) -> None:
    """By a tag, which the next jobs of the session do not have."""
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    monkeypatch.setenv("TRACEPARENT", trace)
    topic = make_topic(1)
    produce(topic, 0, range(3))
    run_job(job_of(group, topic, all_accepted), assigned(topic))
    scala: Any = spark.sparkContext._jsc.sc()
    scala.listenerBus().waitUntilEmpty()
    assert len(scala.statusTracker().getJobIdsForTag(f"traceparent-{trace}")) > 0
    assert f"traceparent-{trace}" not in spark.sparkContext.getJobTags()


def test_no_round_begins_when_the_time_is_up(
    group: str, make_topic: MakeTopic, produce: Produce, assigned: Assigned, run_job: RunJob, state: State
) -> None:
    topic = make_topic(1)
    produce(topic, 0, range(10))
    report = run_job(job_of(group, topic, all_accepted), assigned(topic), max_seconds=0.0)
    assert report.rounds == ()
    assert not report.drained


def test_a_run_at_whose_end_records_come_is_not_drained(
    job: ShareGroupJob,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    topics: Topics,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Lag and `drained` are of one moment, so no report has both."""
    (topic,) = job.topics
    produce(topic, 0, ["accept a"])
    holder = assigned(topic)

    def late(*_: object) -> None:
        produce(topic, 0, ["accept b"] * 3)
        at = SharePartition(job.group, topic, 0)
        single.observe(state, at, topics.info(topic).topic_id, 0, 4, 4)

    with monkeypatch.context() as at_its_end:
        at_its_end.setattr(import_module("sharequeue.spark.run"), "write_letters_at_end", late)
        report = run_job(job, holder)
    assert (report.accepted, report.lag, report.drained) == (1, 3, False)
    assert "records came at the end of the run, and the lag is 3" in str(report.remark)
    again = run_job(job, holder)
    assert (again.accepted, again.lag, again.drained) == (3, 0, True)
