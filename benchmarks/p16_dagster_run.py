"""P16: a whole Dagster run over a thousand records, cold.

Each run processes a thousand flights that were just produced, launched as in the demo: a separate process with its
own Spark session. The peers are lower bounds for our run, each a process: the definitions, a Dagster run with one
empty asset, the import of Great Expectations, and PySpark with one job.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial

from benchmarks.harness import Side, Table, case, in_turn, seconds, side_table
from benchmarks.stack import stack
from orchestration.demo.queue import QUEUE
from orchestration.demo.runs import Launcher, open_instance, sole_demo
from pipelines.flights.producer import produce
from sharequeue.database import Database
from sharequeue.local.home import Home

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


def alone(code: str) -> float:
    """Return the seconds of the given code in a separate process."""
    return seconds(
        lambda: subprocess.run([sys.executable, "-c", code], check=True, stderr=subprocess.DEVNULL)
    )


@case("P16", "≤ 12 s, nothing imported that this run does not use", runs=2)
def dagster_run(runs: int = 9) -> Iterator[Table]:
    """Measure a whole run of Dagster's with a thousand records, cold."""
    with stack(service=True) as settings:
        with Database.open(settings) as database:
            QUEUE.configure(database)
        with open_instance(settings) as instance, sole_demo(Home.at(settings.home), print) as lock:
            launcher, produced = Launcher(settings, instance, lock), 0

            def ours() -> float:
                nonlocal produced
                produced += RECORDS
                produce(settings, limit=produced)
                outcome = launcher.launch(None, lambda stage: None)
                assert outcome.succeeded, outcome
                return float(outcome.seconds)

            sides: dict[str, Side] = {"a run of ours": ours}
            sides |= {name: partial(alone, code) for name, code in PEERS.items()}
            measured = in_turn(sides, runs)
    yield side_table(measured, base="a run of ours", title=f"runs of {RECORDS:,} flights")
