"""A program that a test interrupts, again and again: one run after the other, in one Spark session.

Each case begins when it reads a line: the test looks at what the last one has left before. It prints `ready <case>`
where it is to be interrupted, and then what ended the run. The session is made
by PySpark itself, whose own handler of SIGINT is then in place, as in anybody's notebook.
"""

from __future__ import annotations

import signal
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import dagster as dg

# What Dagster does around each step of a run; it has no public name.
from dagster._utils.interrupts import raise_interrupts_as
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import SharePartition
from sharequeue.kafka.topics import Topics
from sharequeue.spark import spark_session
from sharequeue.spark.run import run_rounds
from sharequeue.spark.session import configuration
from sharequeue.state import State
from tests.fixtures.pipelines import Holder, all_accepted, job_of
from tests.waiting import wait_until

CASES = ("job", "dagster", "planning", "group", "twice", "terminated", "acknowledging")
"""In a job of Spark's, in the same with Dagster's handler, in the handler on the driver, in a job with a signal to
the whole process group as Ctrl-C sends it, with two signals, with SIGTERM, in an acknowledgement."""

INTERRUPTED = "interrupted"
"""The file that the test makes when it has sent the signal."""


def ready(case: str) -> None:
    """Tell the test that it is time."""
    print(f"ready {case}", flush=True)


class Slow(State):
    """Acknowledgements that go on once the file `interrupted` is there."""

    def __init__(self, database: Database, interrupted: Path) -> None:
        super().__init__(database)
        self._interrupted = interrupted

    def acknowledge(self, *arguments: Any, **named: Any) -> Any:
        """Wait until the run has been interrupted."""
        ready("acknowledging")
        wait_until(self._interrupted.exists)
        return super().acknowledge(*arguments, **named)


def handler_of(case: str, marker: Path) -> Any:
    """A handler that is at work until it is interrupted."""

    def planning(records: DataFrame) -> DataFrame:
        ready(case)
        time.sleep(300)
        return all_accepted(records)

    def waiting(records: DataFrame) -> DataFrame:
        path = str(marker)

        @fn.udf("string")
        def wait(offset: int) -> str:
            Path(path).touch()
            time.sleep(300)
            return "accept"

        return all_accepted(records).withColumn("outcome", wait("offset"))

    return {"planning": planning, "acknowledging": all_accepted}.get(case, waiting)


def main() -> None:
    """Run the cases, one after the other."""
    home, output, group, topic, marker = sys.argv[1:]
    settings = Settings.load(home).replace(output=Path(output))
    spark_session(settings, "interrupted").stop()
    print(f"kept {signal.getsignal(signal.SIGINT) is signal.default_int_handler}", flush=True)
    builder = SparkSession.builder
    for name, value in configuration(settings, "interrupted").items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    print(f"kept {signal.getsignal(signal.SIGINT) is signal.default_int_handler}", flush=True)
    holder = Holder([SharePartition(group, topic, 0)], "interrupted")
    with Database.open(settings) as database, Topics(settings) as topics:
        for case in CASES:
            sys.stdin.readline()
            job = job_of(group, topic, handler_of(case, Path(marker, case)))
            interrupted = Path(marker, INTERRUPTED)
            state = Slow(database, interrupted) if case == "acknowledging" else State(database)
            around = (
                raise_interrupts_as(dg.DagsterExecutionInterruptedError)
                if case == "dagster"
                else nullcontext()
            )
            try:
                with around:
                    run_rounds(settings, job, membership=holder, state=state, topics=topics, spark=spark)
            except BaseException as error:
                print(f"ended {case} {type(error).__name__} {error!s:.200}".replace("\n", " "), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
