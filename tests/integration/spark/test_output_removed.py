"""Somebody removes or damages the output while it is written, before it is acknowledged, or after it counts: an error
that names the leases, no acknowledgement, and no delivery that a record pays for."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.domain.settings import Settings
from sharequeue.outputs.manifest import read_manifest
from sharequeue.spark import OutputDamaged, OutputNotReachable, lease_results, read_output
from sharequeue.spark.job import ShareGroupJob, Summary
from sharequeue.spark.leased_records import lease
from sharequeue.spark.outcomes.outcomes import read_back
from sharequeue.spark.output.compaction import compact
from sharequeue.spark.output.files import Files
from sharequeue.state import State
from tests.damage import flip
from tests.fixtures.pipelines import Assigned, Holder, Produce, RunJob, all_accepted, job_of
from tests.fixtures.stack import MakeTopic

RECORDS = 20


@pytest.fixture
def holder(make_topic: MakeTopic, produce: Produce, assigned: Assigned) -> Holder:
    """Give one who may lease the records of a topic."""
    topic = make_topic(1)
    produce(topic, 0, range(RECORDS))
    return assigned(topic)


@pytest.fixture
def job(group: str, holder: Holder) -> ShareGroupJob:
    return job_of(group, holder.assignment[0].topic, all_accepted)


@pytest.fixture
def sink(output_settings: Settings, job: ShareGroupJob) -> Path:
    return Path(output_settings.output) / job.sink


def parts(folder: Path) -> list[Path]:
    return sorted(folder.rglob("part-*.parquet"))


def emptied(folder: Path) -> None:
    for file in parts(folder):
        file.unlink()


def cut_off(folder: Path) -> None:
    for file in parts(folder):
        file.write_bytes(file.read_bytes()[:40])


OTHER_DAMAGE = [pytest.param(damage, marks=pytest.mark.deep) for damage in (shutil.rmtree, emptied)]


def is_untouched(state: State, job: ShareGroupJob) -> bool:
    """Whether nothing was acknowledged or is held, and every record comes as if it had never been leased."""
    (status,) = state.figures.describe(job.group)
    return (
        status.spso,
        status.acquired,
        status.highest_delivery_count,
        read_manifest(state, job.group, job.sink),
    ) == (0, 0, 0, ())


def test_a_run_on_a_deleted_folder_leases_nothing(
    job: ShareGroupJob, holder: Holder, produce: Produce, run_job: RunJob, state: State, sink: Path
) -> None:
    """The outputs that count are gone: an error names the folder and what to do. With the folder made again, empty,
    the run goes on, and with a new sink."""
    run_job(job, holder)
    shutil.rmtree(sink)
    produce(job.topics[0], 0, range(5))
    with pytest.raises(OutputDamaged, match=rf"the folder {sink} is missing.*Nothing was leased.*new sink"):
        run_job(job, holder)
    (status,) = state.figures.describe(job.group)
    assert (status.spso, status.acquired, status.highest_delivery_count) == (RECORDS, 0, 0)
    elsewhere = replace(job, sink=f"{job.sink}-2")
    assert run_job(elsewhere, holder).remark is None
    produce(job.topics[0], 0, range(5))
    sink.mkdir()
    report = run_job(job, holder)
    assert report.accepted == 5


def test_columns_that_come_and_go_are_named(
    job: ShareGroupJob, holder: Holder, produce: Produce, run_job: RunJob
) -> None:
    """The report says which columns earlier rows have as null, and which the rows of this run."""
    wide = replace(
        job, handler=lambda records: all_accepted(records).withColumns({"a": fn.lit(1), "b": fn.lit(2)})
    )
    assert run_job(wide, holder).remark is None
    produce(job.topics[0], 0, range(5))
    assert run_job(wide, holder).remark is None
    produce(job.topics[0], 0, range(5))
    other = replace(
        job, handler=lambda records: all_accepted(records).withColumns({"b": fn.lit(1), "c": fn.lit(2)})
    )
    assert run_job(other, holder).remark == (
        "earlier rows have column a, which rows of this run have as null; "
        "rows of this run have column c, which earlier rows have as null"
    )


@pytest.mark.parametrize(
    ("damage", "timed"),
    [
        pytest.param(shutil.rmtree, False, id="by pyarrow-all"),
        pytest.param(cut_off, True, id="by spark-cut off"),
        pytest.param(emptied, False, id="by pyarrow-emptied", marks=pytest.mark.deep),
        pytest.param(cut_off, False, id="by pyarrow-cut off", marks=pytest.mark.deep),
        pytest.param(shutil.rmtree, True, id="by spark-all", marks=pytest.mark.deep),
        pytest.param(emptied, True, id="by spark-emptied", marks=pytest.mark.deep),
    ],
)
def test_files_removed_before_the_read_back_end_the_run(
    job: ShareGroupJob,
    holder: Holder,
    run_job: RunJob,
    state: State,
    sink: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[Path], None],
    timed: bool,
) -> None:
    """The error names the lease and what to do; nothing is acknowledged, however often;
    and the next run takes all."""

    def handler(records: DataFrame) -> DataFrame:
        handled = all_accepted(records)
        return handled.withColumn("not_before", fn.current_timestamp()) if timed else handled

    leased: list[int] = []

    def damaged(*arguments: object, **named: object) -> object:
        leased[:] = [lease.lease_id for lease in state.figures.leases(job.group)]
        damage(sink)
        return read_back(*arguments, **named)  # type: ignore[arg-type]

    again = job_of(job.group, job.topics[0], handler)
    with monkeypatch.context() as patch:
        patch.setattr(lease_results, "read_back", damaged)
        for _ in range(2):
            with pytest.raises(OutputDamaged, match="somebody has removed or changed them") as raised:
                run_job(again, holder)
            assert f"the files written for lease {leased[0]} (" in str(raised.value)
            assert is_untouched(state, job)
    report = run_job(again, holder)
    assert (report.accepted, len(report.rounds)) == (RECORDS, 1)


def test_files_removed_before_a_summary_end_the_run(
    job: ShareGroupJob, holder: Holder, run_job: RunJob, state: State, sink: Path
) -> None:
    """The same where a summary reads it first."""

    def by_lease(accepted: DataFrame) -> DataFrame:
        made = accepted.groupBy("lease_id").agg(fn.count("*").alias("rows"))
        shutil.rmtree(sink)
        return made

    again = job_of(job.group, job.topics[0], all_accepted, summaries=(Summary("rows", by_lease),))
    with pytest.raises(OutputDamaged, match="the files written for lease"):
        run_job(again, holder)
    assert is_untouched(state, job)


def test_an_unwritable_sink_is_refused_before_anything_is_leased(
    job: ShareGroupJob, holder: Holder, run_job: RunJob, state: State, sink: Path
) -> None:
    """A file in the place of its folder."""
    sink.parent.mkdir()
    sink.write_text("in the way")
    with pytest.raises(OutputNotReachable, match="cannot be written to: check whether it was removed"):
        run_job(job, holder)
    assert is_untouched(state, job)
    assert state.figures.leases(job.group) == []


def test_a_sink_that_becomes_unwritable_costs_no_delivery(
    job: ShareGroupJob, holder: Holder, run_job: RunJob, state: State, sink: Path
) -> None:
    """It is the output's fault, and not the records': however often, they are no suspects, and none is given up."""

    def in_the_way(records: DataFrame) -> DataFrame:
        if sink.is_dir():  # not when the handler is tried
            shutil.rmtree(sink)
            sink.write_text("in the way")
        return all_accepted(records)

    for _ in range(2):
        with pytest.raises(OutputNotReachable, match="cannot be written to: check whether it was removed"):
            run_job(job_of(job.group, job.topics[0], in_the_way), holder)
        assert is_untouched(state, job)
        sink.unlink()
    assert run_job(job, holder).accepted == RECORDS


@pytest.mark.parametrize(
    "name",
    [
        "a#b",
        *(pytest.param(each, marks=pytest.mark.deep) for each in ("a?b", "a b", "[x]", "ä")),
        "a%20b",
        "a:b",
    ],
)
def test_a_folder_with_an_unusual_name_is_local(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """What is written there is flushed: a `#` or `%` in the name made it look like a folder that is not there."""
    folder = tmp_path / name / "leases=1"
    folder.mkdir(parents=True)
    (folder / "part-0.parquet").touch()
    assert Files(spark, str(tmp_path)).here(str(folder)) == [folder / "part-0.parquet"]


@pytest.mark.parametrize("damage", [cut_off, *OTHER_DAMAGE])
def test_a_lease_without_its_written_outcomes_is_not_acknowledged(
    job: ShareGroupJob,
    holder: Holder,
    output_settings: Settings,
    spark: SparkSession,
    state: State,
    tmp_path: Path,
    damage: Callable[[Path], None],
) -> None:
    """`leased.write` knows how many rows it wrote: without them nothing is accepted, whatever `without_row` says."""

    def block() -> None:
        given = {"settings": output_settings, "spark": spark, "membership": holder, "without_row": "accept"}
        with lease(job.group, job.topics, **given) as leased:  # type: ignore[arg-type]
            damage(Path(leased.write(all_accepted(leased.records), tmp_path / "outcomes")))
            leased.acknowledge()

    with pytest.raises(OutputDamaged, match="the files written for lease"):
        block()
    assert is_untouched(state, job)


@pytest.mark.parametrize("damage", [cut_off, *OTHER_DAMAGE])
def test_a_removed_folder_that_counts_is_named_with_its_lease(
    job: ShareGroupJob,
    holder: Holder,
    run_job: RunJob,
    output_settings: Settings,
    spark: SparkSession,
    state: State,
    sink: Path,
    damage: Callable[[Path], None],
) -> None:
    """Who reads the output is told of which lease, a compaction too; runs go on, and the other leases are there."""
    report = run_job(job, holder, max_records=RECORDS // 2)
    (lost,), (kept,) = (each.lease_ids for each in report.rounds)
    assert read_output(spark, state, job.group, job.sink).count() == RECORDS
    folder = next(iter(sink.glob(f"*/sharequeue_lease={lost}")))
    named = f"are missing or cannot be read: lease {lost} in {folder}"
    content = flip(parts(folder)[0])
    with pytest.raises(OutputDamaged, match=named):
        compact(spark, output_settings, state, job.group, job.sink)
    parts(folder)[0].write_bytes(content)
    damage(folder)
    for read in (
        lambda: read_output(spark, state, job.group, job.sink),
        lambda: compact(spark, output_settings, state, job.group, job.sink),
    ):
        with pytest.raises(OutputDamaged, match=named):
            read()
    assert run_job(job, holder).drained
    assert [each.name for each in sink.glob(f"*/sharequeue_lease={kept}")]
