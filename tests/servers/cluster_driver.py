"""A run whose driver can be killed, and whose tasks wait for a signal.

A driver of Spark's as a process of its own, on the cluster that it is told of. It reads one job a line from its
input, runs it to the end, and writes one line of JSON: what `run_rounds` reported, and what Spark had to do over.
Its handler runs on executors that share neither process nor modules with it; the folder of signals is the test's
own means, not the project's.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import SharePartition
from sharequeue.kafka.topics import Topics
from sharequeue.spark import ParquetByLease, spark_session
from sharequeue.spark.job import ShareGroupJob
from sharequeue.spark.run import run_rounds
from sharequeue.spark.sinks.interface import SinkContext
from sharequeue.spark.sinks.postgres.copy import Copier
from sharequeue.spark.sinks.postgres.sink import OpenTable, PostgresTable
from sharequeue.spark.sinks.postgres.staging import StagingTables
from sharequeue.state import State
from tests import archive
from tests.waiting import PATIENCE_S

POISON = 321
COLUMNS = "topic string, partition int, offset long, lease_id long, outcome string, attempt int"
CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": archive.OF_SPARK,
    "spark.executor.cores": "1",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.locality.wait": "0",
    # What a dead executor held is asked for once, not for a quarter of a minute.
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "100ms",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
    # A task is done again elsewhere as soon as half of its stage is done and it takes longer than they did.
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.quantile": "0.5",
    # Not three times as long: the first task of a driver takes many seconds.
    "spark.speculation.multiplier": "1",
}


@dataclass(frozen=True)
class Stop:
    """First attempts of the tasks in `held` stop after their first batch: they fail, or wait until the file `go` is
    there.
    """

    signals: str
    held: tuple[int, ...]
    fails: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What runs on the executors."""
        if ours := {"sharequeue"} & set(sys.modules):
            raise AssertionError(f"an executor has imported {ours}")
        context = TaskContext.get()
        assert context is not None
        stops = context.attemptNumber() == 0 and context.partitionId() in self.held
        for batch in batches:
            yield batch
            if stops:
                self.stop(context.partitionId())
                stops = False

    def stop(self, task: int) -> None:
        """Fail, or say so and wait."""
        if self.fails:
            raise RuntimeError("the first attempt fails half-way")
        if (Path(self.signals) / "go").exists():
            return
        writing = Path(self.signals) / f"{task}.writing"
        writing.write_text(str(os.getpid()))
        writing.rename(Path(self.signals) / str(task))
        deadline = time.monotonic() + PATIENCE_S
        while not (Path(self.signals) / "go").exists() and time.monotonic() < deadline:
            time.sleep(0.05)


def kill(what: str) -> None:
    """Kill this Python worker, or the executor: the parent of the daemon that has forked it."""
    if what == "executor":
        fields = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
        os.kill(int(fields[1]), signal.SIGKILL)
    os._exit(86)


@dataclass(frozen=True)
class Handler:
    """Accepts everything, with the attempt that did it; `packaged` by a function that only `spark.submit.pyFiles`
    brings to the executors. The record `POISON` of partition 0 kills what is named by `kills`: the Python worker that
    has it, or the executor.
    """

    stop: Stop
    shuffled: bool
    packaged: bool = False
    tasks: int = 2
    kills: str | None = None

    def __call__(self, records: DataFrame) -> DataFrame:
        if self.shuffled:
            records = records.repartition(self.tasks, "offset")
        return records.select("topic", "partition", "offset", "lease_id").mapInArrow(self.work, COLUMNS)

    def work(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What runs on the executors."""
        context = TaskContext.get()
        assert context is not None
        outcome = "accept"
        if self.packaged:
            outcome = importlib.import_module("only_in_the_archive").OUTCOME
        for batch in self.stop(batches):
            if self.kills and (0, POISON) in zip(
                batch.column("partition").to_pylist(), batch.column("offset").to_pylist(), strict=True
            ):
                kill(self.kills)
            accepted = pa.array([outcome] * batch.num_rows, pa.string())
            attempts = pa.array([context.attemptNumber()] * batch.num_rows, pa.int32())
            names = [*batch.schema.names, "outcome", "attempt"]
            yield pa.RecordBatch.from_arrays([*batch.columns, accepted, attempts], names=names)


class StoppingCopier(Copier):
    """What copies rows into staging tables on the executors; its first attempts stop."""

    def __init__(self, copier: Copier, stop: Stop) -> None:
        super().__init__(copier.connection, copier.statements)
        self.stop = stop

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return super().__call__(self.stop(batches))


@dataclass(slots=True, kw_only=True)
class StoppingStaging(StagingTables):
    """The staging tables of a run whose copying tasks stop."""

    stop: Stop

    def copier(self, lease_ids: Iterable[int]) -> Copier:
        return StoppingCopier(StagingTables.copier(self, lease_ids), self.stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppingTable(PostgresTable):
    """A table whose copying tasks stop."""

    stop: Stop

    @contextmanager
    def open(self, context: SinkContext) -> Iterator[OpenTable]:
        with PostgresTable.open(self, context) as opened:
            given = {each.name: getattr(opened.staging, each.name) for each in fields(opened.staging)}
            opened.staging = StoppingStaging(**given, stop=self.stop)
            yield opened


def wait_for_executors(spark: SparkSession, wanted: int) -> None:
    """Until both workers have theirs: one that was killed is replaced."""
    tracker: Any = spark.sparkContext._jsc.sc().statusTracker()
    deadline = time.monotonic() + PATIENCE_S
    while len(tracker.getExecutorInfos()) - 1 < wanted:  # the driver counts as one
        assert time.monotonic() < deadline
        time.sleep(0.1)


def done_over(spark: SparkSession, since: int) -> dict[str, int]:
    """Stages from this number on: how many tasks failed, and how many stages were done again."""
    context: Any = spark.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    jvm: Any = spark._jvm
    gateway: Any = spark.sparkContext._gateway
    no_figures, no_tasks = gateway.new_array(jvm.double, 0), jvm.java.util.ArrayList()
    stages = context.statusStore().stageList(None, False, False, no_figures, no_tasks)
    of_job = [stage for stage in map(stages.apply, range(stages.size())) if stage.stageId() >= since]
    return {
        "failed_tasks": sum(stage.numFailedTasks() for stage in of_job),
        "stages_again": sum(stage.attemptId() > 0 for stage in of_job),
        "stages": max((stage.stageId() for stage in of_job), default=since) + 1,
    }


def settings_of(settings: Settings, spark: SparkSession, unshared: str | None) -> Settings:
    """The settings, with an output that is another folder for each process: said to be shared, or not (`untold`), or
    shared with one of the executors (`partly`).
    """
    if unshared is None:
        return settings
    if unshared == "partly":
        application = spark.sparkContext.applicationId
        for executor in Path().glob(f"work-localhost/{application}/*"):
            if not (executor / "output-of-its-own").exists():
                (executor / "output-of-its-own").symlink_to(Path("output-of-its-own").absolute())
    return settings.replace(output="/proc/self/cwd/output-of-its-own", output_shared=unshared != "untold")


def main() -> None:
    """Arguments: home of the stack, output, address of the cluster's master, more of Spark's settings as JSON."""
    from tests.fixtures.pipelines import Holder

    home, output, master, conf = sys.argv[1:]
    settings = Settings.load(home, output=output, output_shared=True, spark_master=master)
    spark = spark_session(settings, "tests on a cluster", {**CONF, **json.loads(conf)})
    since = 0
    for line in sys.stdin:
        given: dict[str, Any] = json.loads(line)
        group, topic = given["group"], given["topic"]
        stop = Stop(given["signals"], tuple(given["held"]), given["fails"])
        table = given["table"]
        handler = Handler(
            stop if table is None else replace(stop, held=()),
            given["shuffled"],
            given.get("packaged", False),
            given.get("tasks", 2),
            given.get("kills"),
        )
        copying = {name: given[name] for name in ("url", "connections") if name in given}
        sink = ParquetByLease() if table is None else StoppingTable(table, stop=stop, **copying)
        job = ShareGroupJob(
            group,
            (topic,),
            handler,
            f"sink-{group}",
            destination=sink,
            name=f"pipeline-{group}",
        )
        holder = Holder([SharePartition(group, topic, number) for number in range(2)])
        wait_for_executors(spark, given.get("executors", 2))
        place = settings_of(settings, spark, given["unshared"])
        with Database.open(settings) as database, Topics(settings) as topics:
            state = State(database)
            try:
                report = run_rounds(place, job, membership=holder, state=state, topics=topics, spark=spark)
            except Exception as error:
                print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
                continue
        again = done_over(spark, since)
        since = again.pop("stages")
        figures = {"accepted": report.accepted, "rounds": len(report.rounds), "lag": report.lag}
        print(json.dumps({**figures, **again}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
