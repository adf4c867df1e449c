"""P30: a run of one round of 100,000 flights, compared with one batch of Spark's connector.

Both sides have the same handler, reader options and output, in a session that has run both before. What the leased
run does in addition is nearly the same for any number of records: it calls the handler for a trial, leases, plans,
reads the outcomes back and acknowledges. The calls to the JVM and the Spark jobs of a side are counted: unlike
seconds, they are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from py4j.java_gateway import GatewayClient  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from benchmarks.harness import Side, Table, case, in_turn, median, number, seconds, side_rows
from benchmarks.stack import Stages, jobs, spent_note, stack
from pipelines.flights.pipeline import flight_delays
from pipelines.flights.producer import produce
from pipelines.flights.records import TOPIC

CONNECTOR, LEASED = "Spark's connector, same handler", "leased, a run of one round"


@contextmanager
def calls_counted() -> Iterator[list[int]]:
    """Yield a list with the number of calls to the JVM that the block has made so far."""
    count, send = [0], GatewayClient.send_command

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        count[0] += 1
        return send(self, *args, **kwargs)

    GatewayClient.send_command = counted
    try:
        yield count
    finally:
        GatewayClient.send_command = send


def jobs_so_far(spark: SparkSession) -> int:
    """Return the number of Spark jobs that the session has started."""
    context: Any = spark.sparkContext._jsc.sc()
    return int(context.dagScheduler().nextJobId())


@case("P30", "ours ≥ 0.85 × as fast as the connector, same handler", records=20_000, times=2)
def small_run(records: int = 100_000, times: int = 7) -> Iterator[Table]:
    """Compare a run of one round of flights with a batch of the connector."""
    stages: Stages = {}
    counts: dict[str, list[tuple[int, int]]] = {CONNECTOR: [], LEASED: []}
    with stack() as settings:
        produce(settings, limit=records)
        with jobs(settings) as job, calls_counted() as calls:

            def counted(name: str, call: Callable[[], float]) -> float:
                began, before = calls[0], jobs_so_far(job.spark)
                taken = call()
                counts[name].append((calls[0] - began, jobs_so_far(job.spark) - before))
                return taken

            sides: dict[str, Side] = {
                CONNECTOR: lambda: counted(
                    CONNECTOR, lambda: seconds(lambda: job.plain(flight_delays, TOPIC))
                ),
                LEASED: lambda: counted(
                    LEASED, lambda: job.leased(flight_delays, TOPIC, records, records, stages)
                ),
            }
            measured = in_turn(sides, times, after=job.empty)
        rows = [
            (*row, *(f"{median([each[at] for each in counts[row[0]][1:]]):.0f}" for at in (0, 1)))
            for row in side_rows(measured, base=LEASED, records=records)
        ]
        headings = ("side", f"seconds, median of {times}", "range", "records/s", f"× the time of: {LEASED}")
        fastest = min(measured[CONNECTOR]) / min(measured[LEASED])
        notes = [f"of the fastest runs: {number(fastest)}", spent_note(stages)]
        yield Table(
            (*headings, "calls to the JVM", "Spark jobs"), rows, f"{records:,} flights to Parquet", notes
        )
