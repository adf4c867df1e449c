"""Leases and pipelines inside `foreachBatch` of Structured Streaming: they work in the batch's own session, and what
the stream does again, or stops, changes nothing of what the group has done."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.streaming.query import StreamingQuery

from sharequeue.domain.settings import Settings
from sharequeue.spark.leased_records import lease
from sharequeue.spark.output.manifest import read_output
from sharequeue.state import State
from tests.fixtures.pipelines import Assigned, Produce, RunJob, all_accepted, job_of
from tests.fixtures.stack import MakeTopic
from tests.waiting import wait_until

RECORDS = 30
EachBatch = Callable[[DataFrame, int], None]
Start = Callable[[EachBatch], StreamingQuery]


@pytest.fixture
def start(spark: SparkSession, tmp_path: Path) -> Iterator[Start]:
    """Give a function that starts a stream that ticks, with one checkpoint for the test."""
    queries: list[StreamingQuery] = []

    def go(each_batch: EachBatch) -> StreamingQuery:
        ticks = spark.readStream.format("rate").option("rowsPerSecond", 5).load()
        writer = ticks.writeStream.foreachBatch(each_batch).trigger(processingTime="100 milliseconds")
        queries.append(writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start())
        return queries[-1]

    yield go
    for query in queries:
        query.stop()


def test_a_pipeline_runs_in_the_session_of_the_batch(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    start: Start,
    spark: SparkSession,
    state: State,
) -> None:
    """The batch's session is a clone with settings of its own, which the run leaves alone. Records that come later
    are taken by a later tick; each counts once, also where the stream does a batch again after a failure."""
    topic = make_topic(1)
    produce(topic, 0, range(RECORDS))
    job, holder = job_of(group, topic, all_accepted), assigned(topic)
    seen: list[tuple[int, int]] = []
    clones: list[bool] = []

    def each_batch(batch: DataFrame, batch_id: int) -> None:
        session = batch.sparkSession
        before = session.conf.get("spark.sql.adaptive.enabled")
        accepted = run_job(job, holder, spark=session).accepted
        clones.append(session._jsparkSession != spark._jsparkSession)
        assert session.conf.get("spark.sql.adaptive.enabled") == before
        seen.append((batch_id, accepted))
        if accepted == 1:
            raise RuntimeError("after the acknowledgement")

    query = start(each_batch)
    wait_until(lambda: sum(accepted for _, accepted in seen) == RECORDS, 60)
    assert clones[0]
    produce(topic, 0, ["one more"])
    with pytest.raises(StreamingQueryException, match="after the acknowledgement"):
        query.awaitTermination(60)
    failed = seen[-1][0]
    start(each_batch)
    wait_until(lambda: len([batch_id for batch_id, _ in seen if batch_id == failed]) == 2, 60)
    output = read_output(spark, state, group, job.sink)
    assert Counter(row["offset"] for row in output.collect()) == dict.fromkeys(range(RECORDS + 1), 1)
    assert state.figures.verify(group) == []


def test_a_lease_works_in_a_stream_of_its_topic(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    spark: SparkSession,
    settings: Settings,
    tmp_path: Path,
) -> None:
    """`availableNow` calls the function for what is there and ends; the records come from the lease, those of the
    batch need not be read."""
    topic = make_topic(1)
    produce(topic, 0, range(RECORDS))
    holder = assigned(topic)
    accepted: list[int] = []

    def each_batch(batch: DataFrame, batch_id: int) -> None:
        while True:
            with lease(
                group, [topic], settings=settings, spark=batch.sparkSession, membership=holder, max_records=20
            ) as leased:
                if not leased:
                    return
                leased.write(leased.records.withColumn("outcome", fn.lit("accept")), tmp_path / "orders")
                accepted.append(leased.acknowledge().accepted)

    stream = spark.readStream.format("kafka").option("kafka.bootstrap.servers", settings.bootstrap_servers)
    stream = stream.option("subscribe", topic).option("startingOffsets", "earliest")
    writer = stream.load().writeStream.foreachBatch(each_batch).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    assert query.awaitTermination(120)
    assert accepted == [20, 10]


def test_a_stopped_stream_leaves_no_suspects(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    start: Start,
    spark: SparkSession,
    state: State,
) -> None:
    """Its job is cancelled, and what was leased is given back at once, as after Ctrl-C: no record is a suspect, and
    the next run takes all of them in one lease."""
    topic = make_topic(1)
    produce(topic, 0, range(RECORDS))
    holder = assigned(topic)
    ended: list[BaseException | int] = []
    working = threading.Event()

    def slow(records: DataFrame) -> DataFrame:
        waits = fn.expr("java_method('java.lang.Thread', 'sleep', cast(20000 as bigint))")
        return all_accepted(records).withColumn("waits", waits)

    def each_batch(batch: DataFrame, batch_id: int) -> None:
        try:
            working.set()
            run_job(job_of(group, topic, slow), holder, spark=batch.sparkSession)
        except BaseException as error:
            ended.append(error)
            raise

    query = start(each_batch)
    assert working.wait(60)
    tracker = spark.sparkContext.statusTracker()

    def at_work() -> bool:
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        return any(stage.numActiveTasks for stage in stages if stage)

    wait_until(lambda: state.figures.describe(group)[0].acquired == RECORDS and at_work(), 60)
    query.stop()
    wait_until(lambda: bool(ended), 60)
    assert isinstance(ended[0], Exception)
    (after,) = state.figures.describe(group)
    assert (after.acquired, after.lag) == (0, RECORDS)
    report = run_job(job_of(group, topic, all_accepted), holder)
    assert (report.accepted, [len(each.lease_ids) for each in report.rounds]) == (RECORDS, [1])


def test_a_stream_is_no_result_of_a_handler(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    spark: SparkSession,
    state: State,
) -> None:
    """Spark says why, when the handler is tried: nothing is leased."""
    topic = make_topic(1)
    produce(topic, 0, range(RECORDS))

    def joined(records: DataFrame) -> DataFrame:
        ticks = spark.readStream.format("rate").load()
        return all_accepted(records).join(ticks, fn.col("value") == fn.col("offset"))

    with pytest.raises(
        AnalysisException, match="Queries with streaming sources must be executed with writeStream"
    ):
        run_job(job_of(group, topic, joined), assigned(topic))
    assert state.figures.describe(group)[0].acquired == 0
