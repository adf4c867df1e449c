"""The folders of a sink: each is of one group and one database. A sink without an output is empty, or unknown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.database import Database
from sharequeue.groups.heartbeats import ensure_group
from sharequeue.kafka.topics import Topics
from sharequeue.spark.handler import with_outcomes
from sharequeue.spark.job import ShareGroupJob
from sharequeue.spark.output.files import Files
from sharequeue.spark.output.folders import SinkTaken, is_ours
from sharequeue.spark.output.lease_files import write_leases
from sharequeue.spark.output.manifest import NoSuchSink, read_manifest, read_output
from sharequeue.spark.reading.frame import leased_records
from sharequeue.spark.sweep import sweep_outputs
from sharequeue.state import State
from sharequeue.words.settings import Settings
from tests import single
from tests.fixtures.pipelines import (
    Assigned,
    Holder,
    Produce,
    RunJob,
    all_accepted,
    by_value,
    job_of,
)
from tests.fixtures.stack import MakeTopic

Handler = Callable[[DataFrame], DataFrame]


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


def test_another_database_neither_writes_nor_sweeps(
    job: ShareGroupJob,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    spark: SparkSession,
    output_settings: Settings,
    state: State,
    topics: Topics,
    private_database: Database,
) -> None:
    """A database made anew counts leases from 1 again. It has another id: the sink is refused; and where the sink was
    of before there were ids, each database still has folders of its own."""
    (topic,) = job.topics
    produce(topic, 0, ["accept a", "accept b"])
    holder = assigned(topic)
    assert run_job(job, holder, max_rounds=1).accepted == 2
    (row,) = state.outputs.counted(job.group, job.sink)
    anew = State(private_database)
    ensure_group(private_database, job.group)
    for at in holder.assignment:
        anew.initialize(at, topics.info(topic).topic_id, 0, 1)
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


def _topic_id(state: State, group: str) -> str:
    return state.figures.describe(group)[0].topic_id
