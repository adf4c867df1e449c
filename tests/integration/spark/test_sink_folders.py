"""The folders of a sink: each is of one group and one database. A sink without an output is empty, or unknown."""

from __future__ import annotations

import shutil
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
from sharequeue.domain.errors import InconsistentClusterId
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import SharePartition
from sharequeue.groups.heartbeats import ensure_group
from sharequeue.kafka.topics import Topics
from sharequeue.outputs.errors import NoSuchSink
from sharequeue.outputs.manifest import read_manifest
from sharequeue.spark.handler import with_outcomes
from sharequeue.spark.job import ShareGroupJob
from sharequeue.spark.output.compaction import compact, sweep_compactions
from sharequeue.spark.output.files import Files
from sharequeue.spark.output.folders import is_ours
from sharequeue.spark.output.lease_files import LeaseFiles
from sharequeue.spark.output.manifest import missing_outputs, read_output
from sharequeue.spark.output.owners import SinkTaken
from sharequeue.spark.reading.frame import leased_records
from sharequeue.spark.sweep import sweep_outputs
from sharequeue.state import State
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
from tests.fixtures.stack import MakeCopy, MakeTopic

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
    lease_files = LeaseFiles(spark, output_settings, state, job.names, files)
    first = lease_files.write(rejected, [lease])
    written = lease_files.write(records, [lease])
    assert written.exceptions == {}
    assert pq.read_table(written.accepted[lease.lease_id]).num_rows == 10
    assert pq.read_table(first.accepted[lease.lease_id]).num_rows == 7
    assert pq.read_table(first.exceptions[lease.lease_id]).num_rows == 3
    both = {str(Path(each.accepted[lease.lease_id]).parent) for each in (first, written)}
    assert {str(path) for path in (output_settings.local_output / job.sink).iterdir()} == both
    single.release(state, lease)
    assert set(sweep_outputs(spark, output_settings, state, job)) == both


def test_of_two_groups_with_one_sink_the_second_is_refused(
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

    counted: list[int] = []

    def while_the_other_counts(records: DataFrame) -> DataFrame:
        if not counted and records.first() is not None:
            counted.append(run_job(job, holder).accepted)
        return by_value(records)

    taken = rf"{job.sink} has the output of group '{job.group}', not of '{other.group}'.*sink="
    with pytest.raises(SinkTaken, match=taken):
        run_job(replace(other, handler=while_the_other_counts), held)
    assert counted == [2]
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
    with pytest.raises(SinkTaken, match=f"of another state database.*{state.outputs.identity().origin_id}"):
        sweep_outputs(spark, output_settings, anew, job)
    produce(topic, 0, ["accept c"])
    with pytest.raises(SinkTaken, match="of another state database"):
        run_job(job, holder, state=anew)
    shutil.rmtree(output_settings.local_output / job.sink / "_state")
    assert sweep_outputs(spark, output_settings, anew, job) == []
    assert is_ours(Path(row.location).parent.name, state) == {row.lease_id}
    assert is_ours(Path(row.location).parent.name, anew) is None
    assert read_output(spark, state, job.group, job.sink).count() == 2


def test_of_a_state_and_its_copy_only_one_continues(
    job: ShareGroupJob,
    produce: Produce,
    run_job: RunJob,
    spark: SparkSession,
    output_settings: Settings,
    topics: Topics,
    private_database: Database,
    make_copy: MakeCopy,
) -> None:
    """A sweep through a copy removes nothing, and the original goes on. The adopted copy has the sink, and removes
    nothing that the original has counted since; then the original is refused, until it is adopted in its turn."""
    (topic,) = job.topics
    original, holder = State(private_database), Holder([SharePartition(job.group, topic, 0)])
    ensure_group(private_database, job.group)
    original.initialize(holder.assignment[0], topics.info(topic).topic_id, 0, 1)
    produce(topic, 0, ["accept a", "accept b"])
    assert run_job(job, holder, state=original, max_rounds=1).accepted == 2
    copy = State(make_copy(private_database))
    produce(topic, 0, ["accept c"])
    assert run_job(job, holder, state=original, max_rounds=1).accepted == 1
    with pytest.raises(InconsistentClusterId, match="this is a copy"):
        sweep_outputs(spark, output_settings, copy, job)
    with pytest.raises(InconsistentClusterId, match="this is a copy"):
        compact(spark, output_settings, copy, job.group, job.sink)
    assert missing_outputs(spark, original, job.group) == []

    copy.administration.adopt()
    assert run_job(job, holder, state=copy, max_rounds=1).accepted == 1
    assert sweep_outputs(spark, output_settings, copy, job) == []
    refused = "marked at .* by a run that this database does not know.*sharequeue adopt"
    for begin in (
        lambda: run_job(job, holder, state=original),
        lambda: sweep_outputs(spark, output_settings, original, job),
        lambda: compact(spark, output_settings, original, job.group, job.sink),
        lambda: sweep_compactions(spark, output_settings, original, job.group, job.exceptions_sink),
    ):
        with pytest.raises(SinkTaken, match=refused):
            begin()
    for state in (original, copy):
        assert read_output(spark, state, job.group, job.sink).count() == 3
        assert missing_outputs(spark, state, job.group) == []

    original.administration.adopt()
    produce(topic, 0, ["accept d"])
    assert run_job(job, holder, state=original, max_rounds=1).accepted == 1
    with pytest.raises(SinkTaken, match=refused):
        sweep_outputs(spark, output_settings, copy, job)


def test_a_copy_of_the_servers_files_is_refused_where_the_original_has_been(
    job: ShareGroupJob,
    produce: Produce,
    run_job: RunJob,
    spark: SparkSession,
    output_settings: Settings,
    topics: Topics,
    private_database: Database,
    make_copy: MakeCopy,
) -> None:
    """Its place looks like that of the original, as after a promotion: it goes on if the original has begun nothing
    since. Otherwise the sink has a mark that it does not know, and nothing is swept."""
    (topic,) = job.topics
    original, holder = State(private_database), Holder([SharePartition(job.group, topic, 0)])
    ensure_group(private_database, job.group)
    original.initialize(holder.assignment[0], topics.info(topic).topic_id, 0, 1)
    produce(topic, 0, ["accept a"])
    assert run_job(job, holder, state=original, max_rounds=1).accepted == 1
    promoted = State(make_copy(private_database))
    with promoted.database.transaction() as connection:
        connection.exec_driver_sql(
            "update sharequeue.state_identity set (system_identifier, database_oid, table_oid) ="
            " (select system_identifier, database_oid, table_oid from sharequeue_internal.place())"
        )
    assert sweep_outputs(spark, output_settings, promoted, job) == []
    produce(topic, 0, ["accept b"])
    assert run_job(job, holder, state=original, max_rounds=1).accepted == 1
    with pytest.raises(SinkTaken, match="by a run that this database does not know"):
        sweep_outputs(spark, output_settings, promoted, job)
    assert missing_outputs(spark, original, job.group) == []


def test_outputs_without_files_are_named(
    job: ShareGroupJob,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    spark: SparkSession,
    state: State,
) -> None:
    """A folder that is gone, and one without a file in it, each with its lease; empty outputs have none."""
    (topic,) = job.topics
    produce(topic, 0, ["accept a", "reject b"])
    holder = assigned(topic)
    for value in ("accept c", "accept d"):
        assert run_job(job, holder, max_rounds=1).rounds
        produce(topic, 0, [value])
    assert run_job(job, holder, max_rounds=1).accepted == 1
    assert missing_outputs(spark, state, job.group) == []
    kept, emptied, gone = (Path(row.location) for row in state.outputs.counted(job.group, job.sink))
    shutil.rmtree(gone.parent)
    for file in emptied.iterdir():
        file.unlink()
    found = missing_outputs(spark, state, job.group)
    assert [each.partition(":")[0] for each in found] == [
        f"sink {job.sink} of group {job.group} counts 1 records of lease {at.name.partition('=')[2]} in {at}"
        for at in (emptied, gone)
    ]
    assert kept.exists()


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
