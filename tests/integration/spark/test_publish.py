"""A replay takes the place of what the live group had made of the same records: each is there once, as before."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.database import Database
from sharequeue.deadletters.redrive.redrive import Redrive
from sharequeue.deadletters.redrive.selection import Selection
from sharequeue.domain.errors import InvalidRequest, UnknownTopicId
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.kafka.topics import Topics
from sharequeue.outputs.manifest import read_manifest
from sharequeue.spark import PublishReport, Summary, pipeline
from sharequeue.spark.output.compaction import compact, sweep_compactions, write_folder
from sharequeue.spark.output.manifest import read_output
from sharequeue.spark.pipelines import Pipeline
from sharequeue.spark.sinks.interface import SinkRefused
from sharequeue.spark.sinks.postgres.sink import PostgresTable
from sharequeue.state import State
from tests import single
from tests.fixtures.deadletters import execute
from tests.fixtures.pipelines import Assigned, Holder, MakeTable, Produce, RunJob, standing
from tests.fixtures.stack import MakeTopic

RECORDS = 20
"""Of each of two partitions: every fifth is rejected."""


def first_version(records: DataFrame) -> DataFrame:
    """Rejects every fifth."""
    kept = records.select("topic", "partition", "offset", "lease_id").withColumn("note", fn.lit("first"))
    return kept.withColumn("outcome", fn.when(fn.col("offset") % 5 == 3, "reject").otherwise("accept"))


def second_version(records: DataFrame) -> DataFrame:
    """Accepts all but every seventh, makes two rows of every tenth, and has a column more."""
    kept = records.select("topic", "partition", "offset", "lease_id").withColumns(
        {"note": fn.lit("second"), "more": fn.col("offset") * 2}
    )
    outcome = fn.when(fn.col("offset") % 7 == 6, "reject").otherwise("accept")
    twice = kept.withColumn("copy", fn.expr("explode(if(offset % 10 = 0, array(1, 2), array(1)))"))
    return twice.withColumn("outcome", outcome).drop("copy")


def by_note(accepted: DataFrame) -> DataFrame:
    return accepted.groupBy("lease_id", "note").agg(fn.count("*").alias("rows"))


def wanted(hidden: OffsetSet) -> Counter[tuple[int, int, str]]:
    """What the output has once these offsets of both partitions are published."""
    found: Counter[tuple[int, int, str]] = Counter()
    for partition in range(2):
        for at in range(RECORDS):
            if at not in hidden:
                found[partition, at, "first"] = int(at % 5 != 3)
            else:
                found[partition, at, "second"] = 0 if at % 7 == 6 else 2 if at % 10 == 0 else 1
    return +found


class Case:
    """A job that has done its records, and its next version."""

    def __init__(
        self,
        old: Pipeline,
        settings: Settings,
        state: State,
        spark: SparkSession,
        holder: Holder,
        run_job: RunJob,
    ) -> None:
        self.old, self.new = old, replace(old, handler=second_version)
        self.settings, self.state, self.spark, self.holder, self.run_job = (
            settings,
            state,
            spark,
            holder,
            run_job,
        )
        self.topic = old.topics[0]

    def replay(self, offsets: OffsetSet, name: str = "again") -> None:
        given = {(self.topic, partition): offsets for partition in range(2)}
        self.new.replay(self.settings, offsets=given, name=name, spark=self.spark, state=self.state)

    def publish(self, name: str = "again", **given: Any) -> PublishReport:
        return self.new.publish(name, self.settings, spark=self.spark, state=self.state, **given)

    def output(self) -> Counter[tuple[int, int, str]]:
        rows = read_output(self.spark, self.state, self.old.group, self.old.sink).select(
            "partition", "offset", "note"
        )
        return Counter((row[0], row[1], row[2]) for row in rows.collect())

    def counted(self) -> int:
        return sum(row.records for row in self.state.outputs.counted(self.old.group, self.old.sink))

    def sums(self) -> dict[str, int]:
        sink = self.old.summary_sink(self.old.summaries[0])
        rows = read_output(self.spark, self.state, self.old.group, sink).groupBy("note").agg(fn.sum("rows"))
        return {row[0]: row[1] for row in rows.collect()}


@pytest.fixture
def case(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    output_settings: Settings,
    state: State,
    spark: SparkSession,
) -> Case:
    """Give a group with two leases of each partition, whose output and summary are in files."""
    topic = make_topic(2)
    job = pipeline(group=group, topics=topic, sink=f"sink-{group}", summaries=[Summary("notes", by_note)])(
        first_version
    )
    holder = assigned(topic)
    for _ in range(2):
        for partition in range(2):
            produce(topic, partition, range(RECORDS // 2))
        run_job(job, holder, max_rounds=1)
    return Case(job, output_settings, state, spark, holder, run_job)


def test_published_files_have_each_record_once_with_its_summary(case: Case) -> None:
    """Out with the old rows, in with the new, also of records that were rejected before; counts and sums follow; a
    dry run changes nothing; old folders stay for the grace; a second time is the same."""
    hidden = OffsetSet.of((2, 7), (8, 9))
    case.replay(hidden)
    before, figures = case.output(), standing(case.state, case.old.group)
    assert before == wanted(OffsetSet())
    old = read_manifest(case.state, case.old.group, case.old.sink)
    would = case.publish()
    assert (would.published, would.hidden_rows, would.added_rows, would.folders) == (False, 8, 10, 2)
    assert (case.output(), read_manifest(case.state, case.old.group, case.old.sink)) == (before, old)

    done = case.publish(execute=True)
    assert replace(would, published=True) == done
    expected = wanted(hidden)
    assert case.output() == expected
    assert case.counted() == expected.total()
    assert case.sums() == Counter(note for *_, note in expected.elements())
    assert standing(case.state, case.old.group) == figures
    assert case.spark.read.parquet(*old).count() == before.total()

    case.replay(hidden)
    assert case.publish(execute=True).hidden_rows == 10
    assert case.output() == expected
    assert case.sums() == Counter(note for *_, note in expected.elements())
    swept = sweep_compactions(
        case.spark, case.settings, case.state, case.old.group, case.old.sink, grace=timedelta(0)
    )
    assert len(swept) == 3
    assert case.output() == expected


@pytest.mark.deep
def test_a_replay_is_published_into_compacted_folders(case: Case) -> None:
    """A compacted folder has rows of many leases: those of others stay, and so do their sums."""
    for sink in (case.old.sink, case.old.summary_sink(case.old.summaries[0])):
        assert compact(case.spark, case.settings, case.state, case.old.group, sink)
    hidden = OffsetSet.of((0, 6))
    case.replay(hidden)
    assert case.publish(execute=True).folders == 1
    expected = wanted(hidden)
    assert case.output() == expected
    assert case.counted() == expected.total()
    assert case.sums() == Counter(note for *_, note in expected.elements())


def test_a_record_that_was_redriven_is_left_out(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    output_settings: Settings,
    database: Database,
    spark: SparkSession,
) -> None:
    """Its letter was put back, so that the group has accepted it at another offset: the replay's row would be the
    second one. Another record with a letter is published, and not redriven any more."""
    topic = make_topic(1)
    letters = make_topic(1, name=f"dlq.{topic}", errors_deadletterqueue_group_enable="true")
    state = State(database)
    old = pipeline(group=group, topics=topic, sink=f"sink-{group}")(first_version)
    holder = assigned(
        topic,
        errors_deadletterqueue_topic_name=letters,
        errors_deadletterqueue_copy_record_enable="true",
    )
    produce(topic, 0, range(10))
    run_job(old, holder)
    new = replace(old, handler=second_version)
    with_state: Any = {"spark": spark, "state": state}
    new.replay(output_settings, offsets={(topic, 0): OffsetSet.of((0, 10))}, name="again", **with_state)
    # The letters are of the offsets 3 and 8.
    first = Selection(offsets={0: OffsetSet.of((0, 1))})
    assert execute(Redrive(output_settings, database, letters, first)).sent == 1
    run_job(old, holder)

    would = new.publish("again", output_settings, **with_state)
    assert (would.records, would.redriven, would.hidden_rows, would.added_rows) == (10, 1, 8, 9)
    assert "1 record left out" in str(would)
    done = new.publish("again", output_settings, execute=True, **with_state)
    assert (done.redriven, done.added_rows) == (1, 9)
    rows = read_output(spark, state, group, old.sink).select("offset", "note").collect()
    expected = Counter({(at, "second"): 1 for at in (1, 2, 4, 5, 7, 8, 9)}) + Counter({(0, "second"): 2})
    (redriven,) = Counter((row[0], row[1]) for row in rows) - expected
    assert redriven[0] >= 10
    assert redriven[1] == "first"
    # The group would have the other one twice.
    plan = Redrive(output_settings, database, letters, Selection()).plan()
    assert (plan.letters, plan.sent_before, plan.published) == (0, 1, 1)


@pytest.mark.deep
def test_records_that_the_group_has_not_finished_are_not_published(
    case: Case, produce: Produce, topics: Topics, tmp_path: Path
) -> None:
    """It would come again and be there twice; neither is a replay that nobody made, or of another topic."""
    produce(case.topic, 1, range(3))
    given = {(case.topic, 1): OffsetSet.of((RECORDS - 1, RECORDS + 2))}
    case.new.replay(case.settings, offsets=given, name="early", spark=case.spark, state=case.state)
    with pytest.raises(InvalidRequest, match=rf"2 of {case.topic}-1, from offset {RECORDS} on"):
        case.publish("early", execute=True)
    case.run_job(case.old, case.holder, max_rounds=1)
    case.publish("early", execute=True)
    assert case.output()[1, RECORDS + 1, "second"] == 1
    assert case.output()[1, RECORDS + 1, "first"] == 0
    with pytest.raises(InvalidRequest, match="There is no replay in"):
        case.publish("other")
    topics.delete(case.topic)
    topics.create(case.topic, 2)
    with pytest.raises(UnknownTopicId, match="replay it again"):
        case.publish("early")
    (lease_id, *_) = [row.lease_id for row in case.state.outputs.counted(case.old.group, case.old.sink)]
    with pytest.raises(UnknownTopicId, match="its records no longer exist"):
        case.new.replay(case.settings, leases=[lease_id], spark=case.spark, state=case.state)
    produce(case.topic, 1, range(3))
    again = topics.describe([case.topic])[case.topic]
    for at in case.holder.assignment:
        single.alter_offsets(case.state, at, again.topic_id, 0)
    case.run_job(case.old, case.holder, max_rounds=1)
    given = {(case.topic, 1): OffsetSet.of((0, 3))}
    case.new.replay(case.settings, offsets=given, name="anew", spark=case.spark, state=case.state)
    with pytest.raises(UnknownTopicId, match="also has records of an earlier topic"):
        case.publish("anew", execute=True)


@pytest.mark.deep
def test_a_concurrent_compaction_refuses_the_whole_publication(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest moved meanwhile: the publication is refused as a whole, and can be done again."""
    from sharequeue.spark.sinks import parquet

    hidden = OffsetSet.of((2, 7))
    case.replay(hidden)
    write = write_folder

    def late(*given: Any) -> Any:
        compact(case.spark, case.settings, case.state, case.old.group, case.old.sink)
        monkeypatch.setattr(parquet, "write_folder", write)
        return write(*given)

    monkeypatch.setattr(parquet, "write_folder", late)
    with pytest.raises(InvalidRequest, match="another compaction was faster"):
        case.publish(execute=True)
    assert case.output() == wanted(OffsetSet())
    case.publish(execute=True)
    assert case.output() == wanted(hidden)
    assert case.sums() == Counter(note for *_, note in wanted(hidden).elements())


def test_rows_of_a_table_are_replaced_in_one_transaction(
    case: Case, database: Database, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By topic, partition and offset; what fails in between changes nothing; a table without offsets is refused."""
    table = make_table('topic text, partition integer, "offset" bigint, note text, more bigint')
    sink = PostgresTable(table)
    case.old = replace(case.old, destination=sink, summaries=(), sink=f"{case.old.sink}-table")
    case.new = replace(case.old, handler=second_version)
    for partition in range(2):
        at = case.holder.assignment[partition]
        (status,) = [each for each in case.state.figures.describe(at.group_id) if each.partition == partition]
        single.alter_offsets(case.state, at, status.topic_id, 0)
    case.run_job(case.old, case.holder)

    def rows() -> Counter[tuple[int, int, str]]:
        found = database.rows(sa.text(f'select partition, "offset", note from {table}'))  # noqa: S608 - ours
        return Counter((row["partition"], row["offset"], row["note"]) for row in found)

    hidden = OffsetSet.of((0, 7))
    case.replay(hidden)
    assert rows() == wanted(OffsetSet())
    would = case.publish()
    assert (would.hidden_rows, would.added_rows, would.where) == (12, 14, f"table {table}")

    from sharequeue.spark.sinks.postgres.move import StagedRows, StagingLost

    def lost(*given: object) -> None:
        raise StagingLost("gone")

    with monkeypatch.context() as broken:
        broken.setattr(StagedRows, "move", lost)
        with pytest.raises(StagingLost):
            case.publish(execute=True)
    assert rows() == wanted(OffsetSet())
    for _ in range(2):
        case.publish(execute=True)
        assert rows() == wanted(hidden)
    with database.transaction() as connection:
        connection.exec_driver_sql(f'alter table {table} drop column "offset"')
    with pytest.raises(SinkRefused, match="has no column offset"):
        case.publish()
