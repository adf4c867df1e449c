"""Rounds of a job on the real stack: each record's outcome is durable before it is acknowledged, and counts
once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.database import Database
from sharequeue.groups.heartbeats import ensure_group
from sharequeue.kafka.topics import Topics
from sharequeue.spark.handler import HandlerError, with_outcomes
from sharequeue.spark.job import ShareGroupJob, Summary
from sharequeue.spark.output.files import Files
from sharequeue.spark.output.folders import SinkTaken, is_ours
from sharequeue.spark.output.lease_files import write_leases
from sharequeue.spark.output.manifest import NoSuchSink, read_manifest, read_output
from sharequeue.spark.pipeline import pipeline
from sharequeue.spark.progress import Progress
from sharequeue.spark.reading.frame import leased_records
from sharequeue.spark.sweep import sweep_outputs
from sharequeue.state import State
from sharequeue.words.errors import UnknownTopicOrPartition
from sharequeue.words.settings import Settings
from tests import single
from tests.fixtures.pipelines import Assigned, Holder, Produce, RunJob, all_accepted, job_of
from tests.fixtures.stack import MakeTopic

Handler = Callable[[DataFrame], DataFrame]


def by_value(records: DataFrame) -> DataFrame:
    """The outcome is what the value begins with: accept, release or reject, anything else as it is."""
    text = fn.col("text")
    outcome = fn.substring_index(text, " ", 1)
    named = records.withColumn("text", fn.col("value").cast("string"))
    return named.select("topic", "partition", "offset", "lease_id", "text").withColumns(
        {"outcome": outcome, "error": fn.when(outcome != "accept", fn.concat(fn.lit("because of "), text))}
    )


def offsets_in(frame: DataFrame) -> list[tuple[int, int]]:
    return sorted((row["partition"], row["offset"]) for row in frame.select("partition", "offset").collect())


@pytest.fixture
def job(group: str, make_topic: MakeTopic) -> ShareGroupJob:
    return job_of(group, make_topic(2), by_value, unknown="release", deliveries_per_run=5)


def test_every_outcome_ends_where_it_belongs(
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
    report = run_job(job, holder, max_rounds=1, progress=said.append)

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
    assert [p.stage for p in said] == [
        "observe", "acquire", "plan", "write", "summarise", "read back", "acknowledge", "done",
    ]  # fmt: skip
    assert said[-1].records_done == 7
    assert "7 records done" in str(said[-1])
    assert set(report.stage_seconds) == {p.stage for p in said} - {"done"}

    again = run_job(job, holder)
    assert again.drained
    assert [r.leased for r in again.rounds] == [2, 2, 2, 2]
    assert (again.released, again.exhausted) == (6, 2)
    assert len(offsets_in(read_output(spark, state, job.group, job.sink))) == 4
    assert state.figures.verify(job.group) == []


def test_an_outcome_that_is_none_is_what_the_job_says(
    job: ShareGroupJob,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    spark: SparkSession,
    state: State,
) -> None:
    """Where the job says so, a misspelt or missing outcome releases its record, and is written down."""
    (topic,) = job.topics
    produce(topic, 0, ["Accept a", "b"])

    @pipeline(group=job.group, topics=job.topics, sink=job.sink, unknown="release")
    def misspelt(records: DataFrame) -> DataFrame:
        value = fn.col("value").cast("string")
        return records.withColumn("outcome", fn.when(value != "b", fn.substring_index(value, " ", 1)))

    report = run_job(misspelt, assigned(topic), max_rounds=1)
    assert (report.accepted, report.released) == (0, 2)
    errors = (
        read_output(spark, state, job.group, job.exceptions_sink).orderBy("offset").select("error").collect()
    )
    assert [row["error"] for row in errors] == ["unknown outcome: Accept", "unknown outcome: null"]


@pytest.mark.parametrize(
    ("dropped", "counted"), [("release", "released"), ("accept", "accepted"), ("reject", "rejected")]
)
def test_a_record_without_a_row_gets_the_outcome_of_the_policy(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    dropped: str,
    counted: str,
) -> None:
    """A handler that filters drops records: they get the outcome that the job says, and are counted."""
    topic = make_topic(1)
    produce(topic, 0, range(10))
    even: Handler = lambda records: all_accepted(records.where(fn.col("offset") % 2 == 0))  # noqa: E731
    report = run_job(job_of(group, topic, even, dropped=dropped), assigned(topic), max_rounds=1)
    assert report.dropped == 5
    assert report.gaps == 0
    assert getattr(report, counted) == (10 if dropped == "accept" else 5)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dropped": "ignore"}, "not an outcome"),
        ({"unknown": "Accept"}, "not an outcome"),
        ({"deliveries_per_run": 0}, "1 or more"),
        ({"failed_share": 1.5}, "share of a round"),
        ({"failed_records": 0}, "1 or more"),
    ],
)
def test_what_a_job_cannot_be(group: str, changes: dict[str, object], said: str) -> None:
    """A job with a setting that means nothing is refused where it is made."""
    with pytest.raises(ValueError, match=said):
        job_of(group, "t", by_value, **changes)


def test_each_write_of_a_lease_has_a_folder_of_its_own(
    job: ShareGroupJob,
    produce: Produce,
    assigned: Assigned,
    spark: SparkSession,
    state: State,
    output_settings: Settings,
) -> None:
    """Written again, a lease has other folders, which hold what was written last. The first ones stay as they are,
    and the sweep removes both, because neither counts."""
    (topic,) = job.topics
    produce(topic, 0, [f"accept {n}" for n in range(10)])
    (share_partition, _) = assigned(topic).assignment
    single.observe(state, share_partition, _topic_id(state, job.group), 0, 10, 10)
    lease = single.acquire(state, share_partition, "holder", None, 100)
    assert lease is not None
    records = with_outcomes(by_value(leased_records(spark, output_settings, [lease])))
    rejected = records.withColumn("outcome", fn.when(fn.col("offset") < 3, "reject").otherwise("accept"))

    files = Files(spark, output_settings.output)
    first = write_leases(files, output_settings, state, job.names, rejected, [lease])
    written = write_leases(files, output_settings, state, job.names, records, [lease])
    assert written.exceptions == {}
    assert pq.read_table(written.accepted[lease.lease_id]).num_rows == 10
    assert pq.read_table(first.accepted[lease.lease_id]).num_rows == 7
    assert pq.read_table(first.exceptions[lease.lease_id]).num_rows == 3
    both = {str(Path(each.accepted[lease.lease_id]).parent) for each in (first, written)}
    assert {str(path) for path in (output_settings.local_output / job.sink).iterdir()} == both
    single.release(state, lease)
    assert set(sweep_outputs(spark, output_settings, state, job)) == both


def test_rows_in_any_order_and_several_by_record(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    spark: SparkSession,
    state: State,
) -> None:
    """A handler may shuffle its rows, and make three of one record: all are written, each record is
    answered once."""
    topic = make_topic(1)
    produce(topic, 0, range(2000))

    def tripled(records: DataFrame) -> DataFrame:
        copies = records.withColumn("copy", fn.explode(fn.array(fn.lit(1), fn.lit(2), fn.lit(3))))
        return all_accepted(copies.repartition(5, fn.xxhash64("offset", "copy"))).orderBy(fn.rand(seed=7))

    report = run_job(job_of(group, topic, tripled), assigned(topic))
    assert (report.accepted, report.dropped, report.gaps) == (2000, 0, 0)
    assert Counter(offsets_in(read_output(spark, state, group, f"sink-{group}"))) == {
        (0, n): 3 for n in range(2000)
    }
    (output,) = state.outputs.counted(group, f"sink-{group}")
    assert output.records == 6000


def test_rows_of_one_record_must_agree(
    group: str, make_topic: MakeTopic, produce: Produce, assigned: Assigned, run_job: RunJob, state: State
) -> None:
    """Accepted and rejected at once is refused before anything is acknowledged, and everything is given
    back."""
    topic = make_topic(1)
    produce(topic, 0, range(5))

    def torn(records: DataFrame) -> DataFrame:
        both = fn.explode(fn.array(fn.lit("accept"), fn.lit("reject")))
        return records.select("topic", "partition", "offset", "lease_id", both.alias("outcome"))

    with pytest.raises(HandlerError, match="more than one outcome"):
        run_job(job_of(group, topic, torn), assigned(topic))
    _nothing_happened(state, group, 5)


def test_offsets_that_were_not_leased_are_refused(
    group: str, make_topic: MakeTopic, produce: Produce, assigned: Assigned, run_job: RunJob, state: State
) -> None:
    topic = make_topic(1)
    produce(topic, 0, range(5))
    shifted: Handler = lambda records: all_accepted(records.withColumn("offset", fn.col("offset") + 1))  # noqa: E731
    with pytest.raises(HandlerError, match="was not leased"):
        run_job(job_of(group, topic, shifted), assigned(topic))
    _nothing_happened(state, group, 5)


def test_a_handler_must_pass_on_which_record_a_row_is(
    group: str, make_topic: MakeTopic, produce: Produce, assigned: Assigned, run_job: RunJob, state: State
) -> None:
    topic = make_topic(1)
    produce(topic, 0, range(5))
    with pytest.raises(HandlerError, match="lacks lease_id, outcome"):
        run_job(job_of(group, topic, lambda records: records.drop("lease_id")), assigned(topic))
    _nothing_happened(state, group, 0)


@pytest.mark.parametrize(
    ("planned", "told"),
    [
        (lambda records: records.withColumn("outcome", fn.col("valu")), "`valu` cannot be resolved.*`value`"),
        (lambda records: records.withColumn("outcome", records.valu), "Attribute `valu` is not supported"),
        (
            lambda records: records.withColumn("outcome", fn.expr("uper(value)")),
            "Cannot resolve routine `uper`",
        ),
        (lambda records: records.withColumn("outcome", fn.expr("upper(")), "Syntax error"),
    ],
    ids=["column", "attribute", "function", "expression"],
)
def test_what_spark_cannot_plan_is_an_error_of_the_handler_in_one_line(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    capfd: pytest.CaptureFixture[str],
    planned: Handler,
    told: str,
) -> None:
    """Before a record is touched, and without the JVM's stack: not in the message, and not on stderr as JSON."""
    topic = make_topic(1)
    produce(topic, 0, range(5))
    with pytest.raises(HandlerError, match=f"^Spark cannot plan what the handler does: .*{told}") as failed:
        run_job(job_of(group, topic, planned), assigned(topic))
    assert len(str(failed.value).splitlines()) == 1
    assert '"stacktrace"' not in "".join(capfd.readouterr())
    _nothing_happened(state, group, 0)


def test_of_two_groups_that_begin_with_one_sink_one_passes(
    job: ShareGroupJob,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    output_settings: Settings,
    state: State,
    spark: SparkSession,
    database: Database,
    topics: Topics,
) -> None:
    """Two functions of one name, in two groups: both have leased when the first of them counts. The other is
    refused with nothing acknowledged, its records are no suspects, and later on it is refused before it leases. Its
    sweep is refused, too; where nothing is known of the claim it removes the files of its own lease alone."""
    (topic,) = job.topics
    produce(topic, 0, ["accept a", "accept b"])
    holder = assigned(topic)
    other = replace(job, group=f"{job.group}-other")
    ensure_group(database, other.group)
    for at in holder.assignment:
        topic_id = topics.describe([topic])[topic].topic_id
        state.initialize(replace(at, group_id=other.group), topic_id, 0, 1)
    held = Holder([replace(at, group_id=other.group) for at in holder.assignment], "other")

    def while_the_other_counts(records: DataFrame) -> DataFrame:
        if records.first() is not None:
            assert run_job(job, holder).accepted == 2
        return by_value(records)

    taken = rf"{job.sink} has the output of group '{job.group}', not of '{other.group}'.*sink="
    with pytest.raises(SinkTaken, match=taken):
        run_job(replace(other, handler=while_the_other_counts), held)
    assert state.outputs.counted(other.group, job.sink) == []
    assert {(status.spso, status.acquired) for status in state.figures.describe(other.group)} == {(0, 0)}
    assert state.figures.delivery_counts(other.group) == []
    leased = Counter(status.highest_delivery_count for status in state.figures.describe(other.group))
    with pytest.raises(SinkTaken, match=taken):
        run_job(other, held)
    assert leased == Counter(status.highest_delivery_count for status in state.figures.describe(other.group))
    with pytest.raises(SinkTaken, match=taken):
        sweep_outputs(spark, output_settings, state, other)
    database.call(sa.text("delete from sharequeue.sink_folders where group_id = :g returning 1"), g=job.group)
    assert len(sweep_outputs(spark, output_settings, state, other)) == 1
    assert read_output(spark, state, job.group, job.sink).count() == 2
    assert sweep_outputs(spark, output_settings, state, job) == []
    assert state.figures.verify(other.group) == []


@pytest.mark.parametrize(
    ("lease_id", "told"), [("lease_id + 1000", r"lease_id \d+"), ("null", "lease_id null")]
)
def test_rows_under_another_lease_id_are_named(
    job: ShareGroupJob,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    lease_id: str,
    told: str,
) -> None:
    """They would be found nowhere: an error, and nothing is answered."""
    (topic,) = job.topics
    produce(topic, 0, ["accept a", "accept b"])

    def changing(records: DataFrame) -> DataFrame:
        changed = fn.when(fn.col("offset") == 1, fn.expr(lease_id)).otherwise(fn.col("lease_id"))
        return by_value(records).withColumn("lease_id", changed.cast("long"))

    with pytest.raises(HandlerError, match=f"rows with {told}, which this round does not have"):
        run_job(replace(job, handler=changing), assigned(topic))
    _nothing_happened(state, job.group, 2)


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [
        ("topic", "'x'", "topic 'x' and partition 0"),
        ("topic", "concat('x', offset)", r"topic 'x\d' and partition 0"),
        ("partition", "if(offset = 1, partition + 1, partition)", "and partition 1"),
        ("partition", "cast(null as int)", "and partition None"),
    ],
)
@pytest.mark.parametrize("delays", [False, True])
def test_rows_that_say_they_are_of_another_partition_are_named(
    job: ShareGroupJob,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    column: str,
    value: str,
    told: str,
    delays: bool,
) -> None:
    """They would be found under a record that is not theirs: an error, and nothing is answered."""
    (topic,) = job.topics
    produce(topic, 0, ["accept a", "accept b", "reject c"])

    def changing(records: DataFrame) -> DataFrame:
        handled = by_value(records).withColumn(column, fn.expr(value))
        return handled.withColumn("not_before", fn.current_timestamp()) if delays else handled

    with pytest.raises(HandlerError, match=told):
        run_job(replace(job, handler=changing), assigned(topic))
    _nothing_happened(state, job.group, 3)


def test_another_database_neither_writes_nor_sweeps(
    job: ShareGroupJob,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    spark: SparkSession,
    output_settings: Settings,
    state: State,
    database: Database,
) -> None:
    """A database made anew counts leases from 1 again. It has another id: the sink is refused; and where the sink was
    of before there were ids, each database still has folders of its own."""
    (topic,) = job.topics
    produce(topic, 0, ["accept a", "accept b"])
    holder = assigned(topic)
    assert run_job(job, holder, max_rounds=1).accepted == 2
    (row,) = state.outputs.counted(job.group, job.sink)
    anew = State(database)
    anew.outputs._state_id = uuid4()
    with pytest.raises(SinkTaken, match=f"of another state database.*{state.outputs.state_id()}"):
        sweep_outputs(spark, output_settings, anew, job)
    produce(topic, 0, ["accept c"])
    with pytest.raises(SinkTaken, match="of another state database"):
        run_job(job, holder, state=anew)
    (output_settings.local_output / job.sink / "_state").unlink()
    assert sweep_outputs(spark, output_settings, anew, job) == []
    assert is_ours(Path(row.location).parent.name, state) == {row.lease_id}
    assert is_ours(Path(row.location).parent.name, anew) is None
    assert read_output(spark, state, job.group, job.sink).count() == 2
    assert State(database).outputs.state_id() == state.outputs.state_id()


def test_a_deleted_group_leaves_its_output(
    job: ShareGroupJob,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    spark: SparkSession,
    output_settings: Settings,
    state: State,
) -> None:
    """What it had accepted is read as before, and no sweep takes its files for those of a lost lease."""
    (topic,) = job.topics
    produce(topic, 0, ["accept a", "accept b"])
    assert run_job(job, assigned(topic), max_rounds=1).accepted == 2
    assert state.administration.delete_group(job.group)
    assert sweep_outputs(spark, output_settings, state, job) == []
    assert read_output(spark, state, job.group, job.sink).count() == 2


def test_what_a_handler_caches_is_gone_after_the_round(
    job: ShareGroupJob, produce: Produce, assigned: Assigned, run_job: RunJob, spark: SparkSession
) -> None:
    """What it has cached of other data stays."""
    (topic,) = job.topics
    produce(topic, 0, ["accept a", "accept b"])
    context: Any = spark.sparkContext._jsc
    before = set(context.getPersistentRDDs().keySet())
    table = spark.range(3).cache()

    def caching(records: DataFrame) -> DataFrame:
        kept = records.where("offset < 100").cache()
        assert kept.join(table, kept["offset"] == table["id"]).count() <= 1
        return by_value(kept)

    try:
        assert run_job(replace(job, handler=caching), assigned(topic), max_records=1).accepted == 2
        assert table.storageLevel.useMemory
        assert len(set(context.getPersistentRDDs().keySet()) - before) == 1
    finally:
        table.unpersist()


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


def test_the_budget_bounds_a_round_and_turns_go_round(
    group: str, make_topic: MakeTopic, produce: Produce, assigned: Assigned, run_job: RunJob
) -> None:
    """A round leases no more than its budget, and the next one begins with the next share-partition."""
    topic = make_topic(2)
    produce(topic, 0, range(10))
    produce(topic, 1, range(10))
    report = run_job(job_of(group, topic, all_accepted), assigned(topic), max_records=8)
    assert report.drained
    assert [r.leased for r in report.rounds] == [8, 8, 4]


def test_spark_s_jobs_say_what_they_are_for(
    monkeypatch: pytest.MonkeyPatch,
    spark: SparkSession,
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
) -> None:
    """By group, round and stage, and by the run's trace; what the session's owner has said of the next jobs is as
    before."""
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    monkeypatch.setenv("TRACEPARENT", trace)
    topic = make_topic(1)
    produce(topic, 0, range(3))
    spark.sparkContext.setJobDescription("the owner's")
    try:
        run_job(job_of(group, topic, all_accepted), assigned(topic))
        assert spark.sparkContext.getLocalProperty("spark.job.description") == "the owner's"
    finally:
        spark.sparkContext.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]
    scala: Any = spark.sparkContext._jsc.sc()
    scala.listenerBus().waitUntilEmpty()
    tracker = scala.statusTracker()
    assert len(tracker.getJobIdsForTag(f"traceparent-{trace}")) > 0
    assert f"traceparent-{trace}" not in spark.sparkContext.getJobTags()
    jvm: Any = spark.sparkContext._jvm
    jobs = scala.statusStore().jobsList(jvm.java.util.ArrayList())
    said = {str(jobs.apply(at).description().toString()) for at in range(jobs.size())}
    assert f"Some({group}, round 1: write)" in said


def test_no_round_begins_when_the_time_is_up(
    group: str, make_topic: MakeTopic, produce: Produce, assigned: Assigned, run_job: RunJob, state: State
) -> None:
    topic = make_topic(1)
    produce(topic, 0, range(10))
    report = run_job(job_of(group, topic, all_accepted), assigned(topic), max_seconds=0.0)
    assert report.rounds == ()
    assert not report.drained


def test_nothing_acknowledged_is_an_empty_output(spark: SparkSession, state: State, group: str) -> None:
    assert read_manifest(state, group, "sink") == ()
    assert read_output(spark, state, group, "sink", "offset long", known=["sink"]).columns == ["offset"]
    assert read_output(spark, state, group, "sink", known=["sink"]).count() == 0


def test_a_sink_that_never_had_an_output_is_named(
    spark: SparkSession,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    group: str,
) -> None:
    """A typo is no empty output. A sink that counts, and has no accepted row, is one."""
    topic = make_topic(1)
    produce(topic, 0, range(3))
    job = job_of(group, topic, all_accepted)
    run_job(job, assigned(topic))
    with pytest.raises(NoSuchSink, match=f"Did you mean {job.sink}"):
        read_output(spark, state, group, job.sink + "x")
    assert read_output(spark, state, group, job.exceptions_sink).count() == 0


def _nothing_happened(state: State, group: str, available: int) -> None:
    """No answer was given, no output counts, nothing is held: what was leased waits to be delivered again."""
    statuses = state.figures.describe(group)
    assert sum(status.acquired for status in statuses) == 0
    assert sum(status.available for status in statuses) == available
    assert state.outputs.counted(group, f"sink-{group}") == []
    assert state.figures.verify(group) == []


def _topic_id(state: State, group: str) -> str:
    return state.figures.describe(group)[0].topic_id


def test_chosen_partitions_are_drained_and_the_others_are_named(
    job: ShareGroupJob, produce: Produce, assigned: Assigned, run_job: RunJob, state: State
) -> None:
    """Of what is assigned only the chosen ones are leased; one that is another member's is named too, and what the
    topic does not have is refused before anything is leased."""
    (topic,) = job.topics
    for partition in range(2):
        produce(topic, partition, ["accept a", "accept b"])
    holder = assigned(topic)
    report = run_job(job, holder, only=[f"{topic}-1"])
    assert (report.accepted, report.drained, report.lag) == (2, True, 2)
    assert (report.left_out, report.not_assigned) == ((f"{topic}-0",), ())
    assert f"left to other runs: {topic}-0" in str(report)
    assert [(each.partition, each.lag) for each in state.figures.describe(job.group)] == [(0, 2), (1, 0)]

    first, second = holder.assignment
    holder.assignment = [second]
    report = run_job(job, holder, only=[f"{topic}-0"])
    assert (report.leased, report.drained, report.not_assigned) == (0, False, (f"{topic}-0",))
    assert report.remark == f"{topic}-0 of group {job.group} is not assigned to this member"
    with pytest.raises(UnknownTopicOrPartition, match=f"reads no partition {topic}-2"):
        run_job(job, holder, only=[f"{topic}-2"])
    holder.assignment = [first, second]
    assert run_job(job, holder).accepted == 2
