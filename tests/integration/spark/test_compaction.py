"""Small files become few: readers of the manifest see every record once, before, after, and whatever was killed."""

from __future__ import annotations

import json
import textwrap
import threading
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.cli import command
from sharequeue.domain.errors import InvalidRequest, ShareError
from sharequeue.domain.settings import Settings
from sharequeue.outputs.manifest import read_manifest
from sharequeue.spark.job import Summary
from sharequeue.spark.output.compaction import Step, compact, sweep_compactions
from sharequeue.spark.output.manifest import read_output
from sharequeue.spark.sweep import sweep_outputs
from sharequeue.state import State
from tests.fixtures.pipelines import Assigned, Produce, RunJob, all_accepted, job_of
from tests.fixtures.stack import MakeTopic
from tests.killed import run_killed
from tests.waiting import wait_until

RECORDS = 40
PARTITIONS = 4
STEPS: tuple[Step, ...] = tuple(step for step in get_args(Step) if step != "removed")
AT_ONCE = timedelta(0)


class Killed(BaseException):
    """The process ends here: nothing catches it, and nothing is tidied up."""


@pytest.fixture
def sink(group: str, make_topic: MakeTopic, produce: Produce, assigned: Assigned, run_job: RunJob) -> str:
    """Give a sink with four leases' folders."""
    topic = make_topic(PARTITIONS)
    for partition in range(PARTITIONS):
        produce(topic, partition, range(RECORDS // PARTITIONS))
    run_job(job_of(group, topic, all_accepted), assigned(topic), max_rounds=1)
    return f"sink-{group}"


@pytest.fixture
def seen(spark: SparkSession, state: State, group: str, sink: str) -> Counter[tuple[int, int]]:
    """Give how often each record is in the output, before anything is compacted: once."""
    found = content(spark, state, group, sink)
    assert found == {
        (partition, n): 1 for partition in range(PARTITIONS) for n in range(RECORDS // PARTITIONS)
    }
    assert len(read_manifest(state, group, sink)) == 4
    return found


def content(spark: SparkSession, state: State, group: str, sink: str) -> Counter[tuple[int, int]]:
    rows = read_output(spark, state, group, sink).select("partition", "offset").collect()
    return Counter((row[0], row[1]) for row in rows)


def folders(settings: Settings, sink: str) -> set[str]:
    """What there is in a sink's folder, by lease or compaction, marker files not."""
    root = settings.local_output / sink
    found = [*root.glob("leases=*/*"), *root.glob("compacted=*")]
    assert len([*root.glob("leases=*")]) == len({path.parent for path in found} - {root})  # none is empty
    return {str(path) for path in found}


def test_compacted_folders_stay_for_a_grace_period(
    spark: SparkSession,
    output_settings: Settings,
    state: State,
    group: str,
    sink: str,
    seen: Counter[tuple[int, int]],
) -> None:
    """The same records from one folder with one file; who read the manifest before still can; after the grace the old
    folders are gone, and the lease's own sweep has let them be."""
    before = read_manifest(state, group, sink)
    assert [d.records for d in compact(spark, output_settings, state, group, sink, dry_run=True)] == [RECORDS]
    assert read_manifest(state, group, sink) == before
    (done,) = compact(spark, output_settings, state, group, sink)
    assert (sorted(done.replaced), done.records) == (sorted(before), RECORDS)
    assert read_manifest(state, group, sink) == (done.location,)
    assert content(spark, state, group, sink) == seen
    assert len(list(Path(done.location).glob("*.parquet"))) == 1
    assert sum(row.records for row in state.outputs.counted(group, sink)) == RECORDS

    job = job_of(group, "any", all_accepted)
    assert sweep_outputs(spark, output_settings, state, job) == []
    assert sweep_compactions(spark, output_settings, state, group, sink) == []
    assert spark.read.parquet(*before).count() == RECORDS
    assert compact(spark, output_settings, state, group, sink) == []
    swept = sweep_compactions(spark, output_settings, state, group, sink, grace=AT_ONCE)
    assert sorted(swept) == sorted(before)
    assert folders(output_settings, sink) == {done.location}
    assert content(spark, state, group, sink) == seen
    assert sweep_compactions(spark, output_settings, state, group, sink, grace=AT_ONCE) == []


def test_large_folders_are_left_alone_and_files_get_their_size(
    spark: SparkSession,
    output_settings: Settings,
    state: State,
    group: str,
    sink: str,
    seen: Counter[tuple[int, int]],
) -> None:
    """A folder of half the target or more is not touched; what is brought together has files of the target size."""
    assert compact(spark, output_settings, state, group, sink, target_bytes=1000) == []
    size = max(sum(f.stat().st_size for f in Path(at).iterdir()) for at in read_manifest(state, group, sink))
    (done,) = compact(spark, output_settings, state, group, sink, target_bytes=2 * size + 2)
    assert len(list(Path(done.location).glob("*.parquet"))) == 2
    assert content(spark, state, group, sink) == seen


@pytest.mark.parametrize(
    "step",
    [pytest.param(step, marks=[pytest.mark.deep] if step == "written" else []) for step in STEPS],
)
def test_a_compaction_killed_at_any_step_changes_no_content(
    spark: SparkSession,
    output_settings: Settings,
    state: State,
    group: str,
    sink: str,
    seen: Counter[tuple[int, int]],
    step: Step,
) -> None:
    """Wherever a compaction ends: every record is there once, the next one works, and after sweeps only what the
    manifest names is left."""

    def die(at: Step) -> None:
        if at == step:
            raise Killed

    with pytest.raises(Killed):
        compact(spark, output_settings, state, group, sink, on_step=die)
    assert content(spark, state, group, sink) == seen
    assert len(read_manifest(state, group, sink)) == (1 if step == "committed" else 4)

    def die_removing(at: Step) -> None:
        raise Killed

    with pytest.raises(Killed):
        sweep_compactions(spark, output_settings, state, group, sink, grace=AT_ONCE, on_step=die_removing)
    assert content(spark, state, group, sink) == seen
    compact(spark, output_settings, state, group, sink)
    # As at the end of a run.
    sweep_outputs(spark, output_settings, state, job_of(group, "any", all_accepted), grace=AT_ONCE)
    assert content(spark, state, group, sink) == seen
    assert folders(output_settings, sink) == set(read_manifest(state, group, sink))
    assert len(folders(output_settings, sink)) == 1


KILLED = textwrap.dedent(
    """
    import os, sys
    from sharequeue.spark import spark_session
    from sharequeue.spark.output.compaction import compact
    from sharequeue.database import Database
    from sharequeue.domain.settings import Settings
    from sharequeue.state import State

    home, output, group, sink = sys.argv[1:]
    settings = Settings.load(home, output=output)
    kill = lambda step: os.kill(os.getpid(), 9) if step == "written" else None
    compact(spark_session(settings, "killed"), settings, State(Database.open(settings)), group, sink, on_step=kill)
    """
)


@pytest.mark.deep
@pytest.mark.slow
def test_a_compaction_killed_before_its_commit_is_swept(
    spark: SparkSession,
    output_settings: Settings,
    state: State,
    group: str,
    sink: str,
    seen: Counter[tuple[int, int]],
) -> None:
    """A process killed with its folder in place: nobody sees the folder, and the sweep removes it."""
    run_killed(KILLED, output_settings.home, output_settings.output, group, sink)
    assert len(folders(output_settings, sink)) == 5
    assert content(spark, state, group, sink) == seen
    assert len(sweep_compactions(spark, output_settings, state, group, sink, grace=AT_ONCE)) == 1
    assert folders(output_settings, sink) == set(read_manifest(state, group, sink))


def test_of_two_concurrent_compactions_one_is_refused(
    spark: SparkSession,
    output_settings: Settings,
    state: State,
    group: str,
    sink: str,
    seen: Counter[tuple[int, int]],
) -> None:
    """The slower one finds the folders replaced, changes nothing, and leaves its own folder to the sweep."""

    def overtake(step: Step) -> None:
        if step == "written":
            compact(spark, output_settings, state, group, sink)

    with pytest.raises(InvalidRequest, match="another compaction was faster"):
        compact(spark, output_settings, state, group, sink, on_step=overtake)
    assert content(spark, state, group, sink) == seen
    sweep_compactions(spark, output_settings, state, group, sink, grace=AT_ONCE)
    assert folders(output_settings, sink) == set(read_manifest(state, group, sink))
    assert content(spark, state, group, sink) == seen


def test_a_compaction_longer_than_the_grace_period_is_refused(
    spark: SparkSession,
    output_settings: Settings,
    state: State,
    group: str,
    sink: str,
    seen: Counter[tuple[int, int]],
) -> None:
    """Its folder was swept, so its commit is refused: the manifest never names a folder that is not there."""

    def die(step: Step) -> None:
        raise Killed

    def sweep(step: Step) -> None:
        if step == "written":
            with pytest.raises(Killed):
                sweep_compactions(spark, output_settings, state, group, sink, grace=AT_ONCE, on_step=die)

    with pytest.raises(InvalidRequest, match="abandoned by a sweep"):
        compact(spark, output_settings, state, group, sink, on_step=sweep)
    assert content(spark, state, group, sink) == seen


def test_readers_see_each_record_once_during_compactions(
    spark: SparkSession,
    output_settings: Settings,
    state: State,
    group: str,
    sink: str,
    seen: Counter[tuple[int, int]],
) -> None:
    """Somebody reads by the manifest all the time while the sink is compacted and swept."""
    over, reads, wrong = threading.Event(), [], []

    def read() -> None:
        while not over.is_set():
            found = content(spark, state, group, sink)
            reads.append(found)
            if found != seen:
                wrong.append(found)

    def somebody_reads(_: Step) -> None:
        before = len(reads)
        wait_until(lambda: len(reads) > before, otherwise="nobody reads")

    reader = threading.Thread(target=read)
    reader.start()
    try:
        compact(spark, output_settings, state, group, sink, on_step=somebody_reads)
        sweep_compactions(spark, output_settings, state, group, sink, on_step=somebody_reads)
    finally:
        over.set()
        reader.join()
    assert len(reads) >= 2
    assert wrong == []


def test_the_compact_command_has_a_dry_run(
    monkeypatch: pytest.MonkeyPatch,
    spark: SparkSession,
    output_settings: Settings,
    state: State,
    group: str,
    sink: str,
    seen: Counter[tuple[int, int]],
) -> None:
    """A dry run changes nothing; without it the folders are brought together; with no grace the old ones go."""
    monkeypatch.setenv("SHAREQUEUE_OUTPUT", str(output_settings.output))
    monkeypatch.setenv("SHAREQUEUE_DATABASE_URL", output_settings.database_url)

    def rows(*words: str, of: str = group, sink: str = sink) -> Any:
        given = ["compact", "--home", str(output_settings.home), "--group", of, "--sink", sink, "-o", "json"]
        done = CliRunner().invoke(command, [*given, *words])
        if done.exception is not None:
            raise done.exception
        return json.loads(done.stdout)

    for typo in ({"of": f"{group}s"}, {"sink": f"{sink}s"}):
        with pytest.raises(ShareError, match="Did you mean"):
            rows(**typo)
    (planned,) = rows()
    assert (planned["step"], planned["folders"], planned["records"]) == ("compact", 4, 40)
    assert len(read_manifest(state, group, sink)) == 4
    assert [row["step"] for row in rows("--execute", "--yes")] == ["compact"]
    assert [row["step"] for row in rows("--grace-seconds", "0")] == 4 * ["remove"]
    assert len(folders(output_settings, sink)) == 5
    assert [row["step"] for row in rows("--grace-seconds", "0", "--execute", "--yes")] == 4 * ["remove"]
    assert folders(output_settings, sink) == set(read_manifest(state, group, sink))
    assert content(spark, state, group, sink) == seen


def test_summaries_and_doubled_exceptions_are_compacted(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    spark: SparkSession,
    state: State,
    output_settings: Settings,
) -> None:
    """The rows of a summary are not the records that it counts, and a rejected record may have several rows."""
    topic = make_topic(2)
    for partition in range(2):
        produce(topic, partition, range(10))

    def doubled(records: DataFrame) -> DataFrame:
        outcome = fn.when(fn.col("offset") < 3, "reject").otherwise("accept")
        copies = fn.explode(fn.expr("array(1, 2)"))
        return all_accepted(records).withColumns({"outcome": outcome, "copy": copies})

    sums = Summary("sums", lambda rows: rows.groupBy("lease_id").agg(fn.count("*").alias("n")))
    job = job_of(group, topic, doubled, summaries=(sums,))
    run_job(job, assigned(topic), max_rounds=1)
    for name, rows in ((job.sink, 28), (job.exceptions_sink, 12), (job.summary_sink(sums), 2)):
        before = state.outputs.counted(group, name)
        (done,) = compact(spark, output_settings, state, group, name)
        assert read_manifest(state, group, name) == (done.location,)
        assert read_output(spark, state, group, name).count() == rows
        assert [row.records for row in state.outputs.counted(group, name)] == [row.records for row in before]
