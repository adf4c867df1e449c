"""Where does the time of a small run of Dagster's go?

Its own stack is brought up. Each run works through a thousand flights that were just produced, as the demo launches
one: a process of its own, with a session of Spark of its own. The times are those of Dagster's events. The peers are
what no run of ours can be shorter than: the definitions, a run of Dagster's own with one empty asset, the import of
Great Expectations, and PySpark with one job, each a process.

    .venv/bin/python benchmarks/bench_small_run.py [--full]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
from rig import FULL

from orchestration.demo.queue import QUEUE
from orchestration.demo.runs import Launcher, open_instance, sole_demo
from pipelines.flights.records import produce
from sharequeue.database import Database
from sharequeue.local import stack
from sharequeue.local.home import Home
from sharequeue.settings import Settings

RUNS = 9 if FULL else 2
RECORDS = 1_000
PEERS = {
    "loading the definitions": "from orchestration.definitions import defs; defs().get_repository_def()",
    "Dagster alone, an empty asset": "import dagster as dg; dg.materialize([dg.asset(lambda: None, name='bare')])",
    "importing Great Expectations": "import great_expectations.expectations",
    "PySpark alone, one job": (
        "from pyspark.sql import SparkSession;"
        "SparkSession.builder.master('local[2]').getOrCreate().range(1000).repartition(2).count()"
    ),
}


def stages(
    instance: dg.DagsterInstance, run_id: str, began: float, ended: float
) -> Iterator[tuple[str, float]]:
    """The stages of a run from the start of its process to its end, in seconds."""
    record = instance.get_run_record_by_id(run_id)
    assert record is not None
    assert record.start_time is not None
    assert record.end_time is not None
    yield "process, imports, definitions", record.start_time - began
    start, at_work, in_rounds = 0.0, 0.0, 0.0
    for entry in instance.all_logs(run_id):
        event = entry.dagster_event
        if event is None:
            if " works on " in entry.user_message:
                at_work = entry.timestamp
            continue
        step = str(event.step_key).removeprefix(f"{QUEUE.name}_")
        if event.event_type == dg.DagsterEventType.STEP_START:
            start = entry.timestamp
        elif event.event_type == dg.DagsterEventType.ASSET_MATERIALIZATION and step == "accepted":
            figures = event.step_materialization_data.materialization.metadata
            in_rounds = float(figures["run_seconds"].value)  # type: ignore[arg-type]
        elif event.event_type == dg.DagsterEventType.STEP_SUCCESS and step == "accepted":
            yield "accepted: Spark's start, joining", at_work - start
            yield "accepted: the rounds", in_rounds
            yield "accepted: all else", entry.timestamp - at_work - in_rounds
        elif event.event_type == dg.DagsterEventType.STEP_SUCCESS:
            yield step.replace("_", " "), entry.timestamp - start
    yield "the process's end", ended - record.end_time
    yield "together", ended - began


def alone(code: str) -> float:
    """Run this in a process of its own."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", code], check=True, stderr=subprocess.DEVNULL)
    return time.monotonic() - began


def peers() -> None:
    """Print the medians of what a run is made of without us."""
    turns = [[alone(code) for code in PEERS.values()] for _ in range(RUNS + 1)]
    for name, figures in zip(PEERS, zip(*turns[1:], strict=True), strict=True):
        print(f"{name:<36}{statistics.median(figures):6.1f}", flush=True)


def main() -> None:
    """Print the medians."""
    with tempfile.TemporaryDirectory(prefix="sharequeue-bench-") as folder:
        home = Home.at(folder)
        home.path.chmod(0o755)
        try:
            os.environ.setdefault("SHAREQUEUE_JARS", str(Settings.load().jars))
            stack.up(home.path, lambda line: None)
            settings = Settings.load(folder)
            with Database.open(settings) as database:
                QUEUE.configure(database)
            found: list[dict[str, float]] = []
            with open_instance(settings) as instance, sole_demo(home, print) as lock:
                launcher = Launcher(settings, instance, lock)
                records = 0
                for _ in range(RUNS + 1):  # the first fills the caches
                    records += RECORDS
                    produce(settings, limit=records)
                    began = time.time()
                    outcome = launcher.launch(None, lambda stage: None)
                    assert outcome.succeeded, outcome
                    found.append(dict(stages(instance, outcome.run_id, began, began + outcome.seconds)))
        finally:
            stack.down(Path(folder), lambda line: None)
    print(f"medians of {RUNS}, seconds; a run of {RECORDS:,} flights")
    peers()
    for stage in found[1]:
        print(f"{stage:<36}{statistics.median(each.get(stage, 0) for each in found[1:]):8.1f}")


if __name__ == "__main__":
    main()
