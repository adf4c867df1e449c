"""Tables of Delta and Iceberg: each accepted record is there once, wherever a run fails or wakes up late."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.domain.settings import Settings
from sharequeue.outputs.errors import NotFiles
from sharequeue.outputs.manifest import PENDING
from sharequeue.spark.output.manifest import read_output
from sharequeue.spark.sinks import iceberg
from sharequeue.spark.sinks.interface import SinkContext
from sharequeue.spark.sinks.transfers import Step, TableTransfers
from sharequeue.spark.sweep import sweep_outputs
from sharequeue.state import State
from tests.fixtures.lakes import RECORDS, Lake, once
from tests.fixtures.pipelines import Assigned, Produce, RunJob, all_accepted, job_of
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("short_claims")

STEPS: tuple[Step, ...] = ("acknowledged", "begun", "appended", "ended", "removed")


@pytest.mark.parametrize("lake", ["delta", "iceberg", "delta on s3", "iceberg on s3"], indirect=True)
def test_each_accepted_record_is_in_the_table_once(
    lake: Lake,
    lake_topic: str,
    group: str,
    assigned: Assigned,
    produce: Produce,
    run_job: RunJob,
    state: State,
    spark: SparkSession,
    output_settings: Settings,
) -> None:
    """Over two runs of several rounds; a released and a rejected record are not there; no file is left, and the
    sink's readers are sent to the table."""

    def handler(records: DataFrame) -> DataFrame:
        outcome = fn.when(fn.col("offset") == 5, "reject").otherwise("accept")
        return all_accepted(records).withColumn("outcome", outcome)

    lake.create()
    holder = assigned(lake_topic)
    job = job_of(group, lake_topic, handler, destination=lake.sink())
    first = run_job(job, holder, max_records=30)
    assert len(first.rounds) > 2
    assert first.accepted == 2 * RECORDS - 2
    produce(lake_topic, 0, range(3))
    run_job(job, holder)
    expected = once() + Counter((0, RECORDS + n) for n in range(3))
    assert lake.found() == expected - Counter([(0, 5), (1, 5)])
    root = output_settings.local_output / job.sink
    assert not [path for path in root.glob("leases=*/sharequeue_lease=*") if "=-" not in path.name]
    with pytest.raises(NotFiles, match=f"it was written to {lake.kind}:"):
        read_output(spark, state, group, job.sink)
    assert not sweep_outputs(spark, output_settings, state, job)
    assert state.figures.verify(group) == []


@pytest.mark.parametrize("lake", ["delta", "iceberg", "delta on s3", "iceberg on s3"], indirect=True)
@pytest.mark.parametrize("at", STEPS)
def test_a_run_that_fails_at_a_step_is_completed_by_the_next(
    lake: Lake,
    lake_topic: str,
    group: str,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    spark: SparkSession,
    output_settings: Settings,
    at: Step,
) -> None:
    """Before the number is known, before the table's commit, between it and Postgres, before the files go. A sweep in
    between removes nothing that waits. The next run has nothing to lease, and completes it."""
    lake.create()
    holder, steps = assigned(lake_topic), Counter[Step]()

    def fail(step: Step) -> None:
        steps[step] += 1
        # The first time that nothing waits is when the run is opened.
        if step == at and (step != "acknowledged" or steps[step] > 1):
            raise OSError("failed here")

    job = job_of(group, lake_topic, all_accepted, destination=lake.sink(fail))
    with pytest.raises(OSError, match="failed here"):
        run_job(job, holder)
    job = replace(job, destination=lake.sink())
    waiting = [row for row in state.outputs.counted(group, job.sink) if row.location.startswith(PENDING)]
    assert bool(waiting) == (at in STEPS[:3])
    if waiting:
        with pytest.raises(NotFiles, match="for the next round or run"):
            read_output(spark, state, group, job.sink)
    sweep_outputs(spark, output_settings, state, job)
    report = run_job(job, holder)
    assert (report.accepted, report.lag) == (0, 0)
    assert lake.found() == once()
    sweep_outputs(spark, output_settings, state, job)
    assert not list((output_settings.local_output / job.sink).glob("leases=*"))


def gated(rows: DataFrame, gate: Path, asked: Path) -> DataFrame:
    """The same rows, which come only once there is a file `gate`; the task that waits makes a file `asked`."""

    def wait(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        asked.touch()
        deadline = time.monotonic() + 240
        while not gate.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield from batches

    return rows.coalesce(1).mapInArrow(wait, rows.schema)


@pytest.mark.parametrize(
    ("lake", "at"),
    [("delta", "reading"), ("iceberg", "reading"), ("iceberg", "publishing"), ("iceberg", "committing")],
    indirect=["lake"],
)
def test_a_late_process_adds_no_rows(
    lake: Lake,
    lake_topic: str,
    group: str,
    assigned: Assigned,
    produce: Produce,
    run_job: RunJob,
    state: State,
    spark: SparkSession,
    output_settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    at: str,
) -> None:
    """One process is stopped in the middle of its transfer: while tasks write, before and in the publishing commit,
    which Delta does not have: its own commit is one step.
    Its claim lapses, another process does the same transfer and a further one, and removes the files. Then the first
    goes on: its commit is refused, it ends without an error, and each record is there once."""
    lake.create()
    holder, gate, asked = assigned(lake_topic), lake.where / "gate", lake.where / "asked"
    job = job_of(group, lake_topic, all_accepted, destination=lake.sink())

    def fail(step: Step) -> None:
        if step == "begun":
            raise OSError("failed here")

    with pytest.raises(OSError, match="failed here"):
        run_job(replace(job, destination=lake.sink(fail)), holder)
    context = SinkContext(output_settings, state, spark, job.names)
    late = threading.Thread(target=lambda: ended.append(attempt()))
    ended: list[BaseException | None] = []

    def attempt() -> BaseException | None:
        try:
            with lake.sink().open(context):
                pass
        except BaseException as error:
            return error
        return None

    # A process that is stopped does not extend its claim.
    monkeypatch.setattr(TableTransfers, "renewed", lambda self, found: True)
    if at == "reading":
        append = TableTransfers._append

        def slowly(self: TableTransfers, found: object) -> None:
            if threading.current_thread() is not late:
                append(self, found)  # type: ignore[arg-type]
                return
            taken = self.table.append
            first = not asked.exists()

            class Gated:
                def __getattr__(self, name: str) -> object:
                    return getattr(table, name)

                def append(self, rows: Callable[[SparkSession], DataFrame], number: int) -> None:
                    taken((lambda session: gated(rows(session), gate, asked)) if first else rows, number)

            table = self.table
            self.table = Gated()  # type: ignore[assignment]
            try:
                append(self, found)  # type: ignore[arg-type]
            finally:
                self.table = table

        monkeypatch.setattr(TableTransfers, "_append", slowly)
    else:
        publish = iceberg._OpenIcebergTable._publish

        def publish_slowly(
            self: iceberg._OpenIcebergTable, table: object, staged: object, number: int
        ) -> None:
            if threading.current_thread() is not late:
                publish(self, table, staged, number)
                return
            if at == "publishing":
                asked.touch()
                wait_until(gate.exists, 240)
                publish(self, table, staged, number)
                return
            transaction = table.newTransaction()  # type: ignore[attr-defined]
            transaction.manageSnapshots().cherrypick(staged).commit()
            transaction.updateProperties().set(self.application, str(number)).commit()
            asked.touch()
            wait_until(gate.exists, 240)
            transaction.commitTransaction()

        monkeypatch.setattr(iceberg._OpenIcebergTable, "_publish", publish_slowly)
    late.start()
    # Where it reads, its transaction has begun when its tasks run.
    wait_until(asked.exists, 120)
    # The other one: it waits for the claim, completes the transfer, and does another.
    assert run_job(job, holder).accepted == 0
    produce(lake_topic, 0, range(3))
    assert run_job(job, holder).accepted == 3
    gate.touch()
    late.join(120)
    assert ended == [None]
    expected = once() + Counter((0, RECORDS + n) for n in range(3))
    assert lake.found() == expected
    produce(lake_topic, 1, range(2))
    assert run_job(job, holder).accepted == 2
    assert lake.found() == expected + Counter((1, RECORDS + n) for n in range(2))
