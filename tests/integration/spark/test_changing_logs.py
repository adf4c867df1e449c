"""The log changes while a run reads it: its start moves, it is compacted, the topic is deleted, or made again.

Nothing is lost without a figure, nothing is acknowledged that was not there, and what stops the run says so.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from sharequeue.domain.errors import UnknownTopicId
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import SharePartition
from sharequeue.kafka.topics import Topics
from sharequeue.spark import lease
from sharequeue.spark.output.manifest import read_output
from sharequeue.spark.progress import Progress, ProgressCallback
from sharequeue.state import State
from tests import single
from tests.fixtures.logs import delete_before
from tests.fixtures.pipelines import Assigned, Produce, RunJob, all_accepted, job_of
from tests.fixtures.stack import MakeTopic
from tests.integration.spark.test_read_topics import KEYS, _compacted, _until_compacted, quick_cleaner

IMPATIENT = {"kafkaConsumer.pollTimeoutMs": "2000"}


def at_stage(stage: str, act: Callable[[], object]) -> ProgressCallback:
    """Return a callback that acts once, when the first round comes to a stage."""
    waiting = [act]

    def told(progress: Progress) -> None:
        if progress.stage == stage and waiting:
            waiting.pop()()

    return told


def from_five_on(records: DataFrame) -> DataFrame:
    """Have no row for the first five records."""
    return all_accepted(records.where("offset >= 5"))


@pytest.mark.parametrize("stage", ["write", "read back"])
@pytest.mark.parametrize("observed", [False, True])
@pytest.mark.parametrize("start", [8, pytest.param(20, marks=pytest.mark.deep)])
def test_records_removed_during_a_run_are_accepted_or_counted_as_lost(
    stage: str,
    observed: bool,
    start: int,
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    settings: Settings,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    topics: Topics,
    spark: SparkSession,
) -> None:
    """Before the reading, or after it: each record is accepted and counts in the output, or is counted as lost. The
    service may have seen the log start meanwhile or not, and the log may have nothing left."""
    topic = make_topic(1)
    produce(topic, 0, range(20))
    holder = assigned(topic)
    topic_id = topics.describe([topic])[topic].topic_id

    def retention() -> None:
        delete_before(settings, topic, start)
        if observed:
            single.observe(state, SharePartition(group, topic, 0), topic_id, start, 20, 20)

    job = job_of(group, topic, all_accepted)
    report = run_job(job, holder, progress=at_stage(stage, retention))
    read = 20 if stage == "read back" else 20 - start
    assert (report.gaps, report.without_row, report.released, report.rejected) == (0, 0, 0, 0)
    (status,) = state.figures.describe(group)
    assert (status.spso, status.lag, status.acquired, status.leases) == (20, 0, 0, 0)
    counted = read_output(spark, state, group, job.sink, "offset long").select("offset").collect()
    assert (report.accepted, report.lost) == (read, 20 - read)
    assert sorted(row["offset"] for row in counted) == list(range(20 - read, 20))
    assert state.figures.verify(group) == []


def test_records_without_a_row_that_retention_removed_are_lost(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    settings: Settings,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
) -> None:
    """Offsets without a row are looked for in the log once more; what it no longer has is lost and no gap."""
    topic = make_topic(1)
    produce(topic, 0, range(20))
    job = job_of(group, topic, from_five_on, without_row="reject")
    retention = at_stage("read back", lambda: delete_before(settings, topic, 3))
    report = run_job(job, assigned(topic), progress=retention)
    assert (report.accepted, report.lost, report.without_row, report.rejected, report.gaps) == (
        15,
        3,
        2,
        2,
        0,
    )
    (status,) = state.figures.describe(group)
    assert (status.spso, status.lag, status.lost_records, status.leases) == (20, 0, 3, 0)


@pytest.mark.parametrize("stage", ["write", "read back"])
@pytest.mark.parametrize("again", [False, True])
def test_a_topic_deleted_during_a_round_ends_the_run_by_name(
    stage: str,
    again: bool,
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    topics: Topics,
) -> None:
    """The run ends with an error that names the topic. Nothing of it is acknowledged, nothing counts, no delivery is
    used up. So it is where the topic was made again with as many records."""
    topic = make_topic(1)
    produce(topic, 0, range(20))
    holder = assigned(topic)

    def delete() -> None:
        topics.delete(topic)
        if again:
            make_topic(1, topic)
            produce(topic, 0, range(100, 120))

    job = job_of(group, topic, all_accepted, reader_options=IMPATIENT)
    with pytest.raises(UnknownTopicId, match=topic):
        run_job(job, holder, progress=at_stage(stage, delete))
    (status,) = state.figures.describe(group)
    assert (status.spso, status.acquired, status.accepted, status.gap, status.archiving) == (0, 0, 0, 0, 0)
    assert state.outputs.counted(group, job.sink) == []
    assert state.figures.verify(group) == []


@pytest.mark.parametrize("stage", ["write", "read back"])
def test_records_compacted_during_a_run_are_gaps_or_were_accepted(
    stage: str,
    group: str,
    make_topic: MakeTopic,
    settings: Settings,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    spark: SparkSession,
) -> None:
    """Between lease and read: what is gone is a gap. After the reading: it was accepted. In both the last value of
    each key is in the output."""
    with quick_cleaner(settings):
        topic = _compacted(settings, make_topic)
        kept: list[int] = []
        compaction = at_stage(stage, lambda: kept.extend(_until_compacted(settings, topic)))

        job = job_of(group, topic, all_accepted)
        report = run_job(job, assigned(topic), progress=compaction, max_rounds=1)
    gone = KEYS // 2 if stage == "write" else 0
    leased = report.rounds[0].leased
    assert (report.accepted, report.gaps, report.lost, report.without_row) == (leased - gone, gone, 0, 0)
    rows = read_output(spark, state, group, job.sink, "offset long").select("offset").collect()
    assert {row["offset"] for row in rows} >= {offset for offset in kept if offset < leased}


@pytest.mark.parametrize("again", [False, True])
def test_a_topic_deleted_during_a_lease_refuses_its_acknowledgement(
    again: bool,
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    settings: Settings,
    assigned: Assigned,
    state: State,
    spark: SparkSession,
    topics: Topics,
    tmp_path: Path,
) -> None:
    """Between what the block wrote and its acknowledgement: that is refused by the topic's name, nothing counts, and
    no record is a suspect."""
    topic = make_topic(1)
    produce(topic, 0, range(20))
    given = {"membership": assigned(topic), "settings": settings, "spark": spark, "state": state}

    def work() -> None:
        with lease(group, [topic], **given) as leased:  # type: ignore[arg-type]
            leased.write(all_accepted(leased.records), tmp_path / "outcomes")
            topics.delete(topic)
            if again:
                make_topic(1, topic)
                produce(topic, 0, range(100, 120))
            leased.acknowledge()

    with pytest.raises(UnknownTopicId, match=topic):
        work()
    (status,) = state.figures.describe(group)
    assert (status.spso, status.acquired, status.accepted, status.gap, status.archiving) == (0, 0, 0, 0, 0)
    assert (status.available, status.highest_delivery_count) == (20, 0)


def test_records_removed_during_a_lease_count_if_they_were_written(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    settings: Settings,
    assigned: Assigned,
    state: State,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    """What was read and written counts; of what no row names, the log is asked once more, and what it has lost since
    is lost and no gap."""
    topic = make_topic(1)
    produce(topic, 0, range(20))
    given = {"membership": assigned(topic), "settings": settings, "spark": spark, "state": state}
    with lease(group, [topic], without_row="release", **given) as leased:  # type: ignore[arg-type]
        leased.write(from_five_on(leased.records), tmp_path / "outcomes")
        delete_before(settings, topic, 8)
        done = leased.acknowledge()
    assert (done.accepted, done.released, done.lost, done.gaps) == (15, 0, 5, 0)
    (status,) = state.figures.describe(group)
    assert (status.spso, status.lag, status.lost_records, status.leases) == (20, 0, 5, 0)
