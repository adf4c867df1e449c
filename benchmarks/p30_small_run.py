"""P30: a run of one round of 100,000 flights, compared with one batch of Spark's connector.

All sides have the same handler, reader options and output, in a session that has run them before. What a leased run
does in addition is nearly the same for any number of records: it leases, plans, reads the outcomes back and
acknowledges. A further run has the connections of the one before, as a program that follows its topic has. The first
run of a group opens its own, and also calls the handler for a trial. The calls to the JVM and the Spark jobs of a
side are counted: unlike seconds, they are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from py4j.java_gateway import GatewayClient  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from benchmarks.harness import WARM_UP, Side, Table, case, in_turn, median, number, seconds, side_rows
from benchmarks.stack import Holder, Stages, group_on, jobs, spent_note, stack
from pipelines.flights.pipeline import flight_delays
from pipelines.flights.producer import produce
from pipelines.flights.records import TOPIC
from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.kafka.topics import Topics
from sharequeue.state import State

CONNECTOR = "Spark's connector, same handler"
FIRST, AGAIN = "leased, the group's first run", "leased, a further run"


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


def start_again(settings: Settings, holder: Holder) -> None:
    """Let a group lease its topic from the beginning once more."""
    with Database.open(settings) as database, Topics(settings) as topics:
        starts = {(at.topic, at.partition): 0 for at in holder.assignment}
        topic_ids = {TOPIC: topics.describe([TOPIC])[TOPIC].topic_id}
        State(database).administration.reset_offsets(holder.group, starts, topic_ids, execute=True)


@case("P30", "ours, a further run, ≥ 0.85 × as fast as the connector, same handler", records=20_000, times=2)
def small_run(records: int = 100_000, times: int = 7) -> Iterator[Table]:
    """Compare a run of one round of flights with a batch of the connector."""
    stages: Stages = {}
    counts: dict[str, list[tuple[int, int]]] = {CONNECTOR: [], FIRST: [], AGAIN: []}
    with stack() as settings:
        produce(settings, limit=records)
        holder = group_on(settings, TOPIC)
        with jobs(settings) as job, job.servers() as servers, calls_counted() as calls:

            def counted(name: str, call: Callable[[], float]) -> float:
                began, before = calls[0], jobs_so_far(job.spark)
                taken = call()
                counts[name].append((calls[0] - began, jobs_so_far(job.spark) - before))
                return taken

            def leased(stages: Stages, **more: Any) -> float:
                return job.leased(flight_delays, TOPIC, records, records, stages, **more)

            def again() -> float:
                start_again(settings, holder)
                return counted(AGAIN, lambda: leased(stages, holder=holder, servers=servers))

            sides: dict[str, Side] = {
                CONNECTOR: lambda: counted(
                    CONNECTOR, lambda: seconds(lambda: job.plain(flight_delays, TOPIC))
                ),
                FIRST: lambda: counted(FIRST, lambda: leased({})),
                AGAIN: again,
            }
            measured = in_turn(sides, times, warm_up=WARM_UP)
        rows = [
            (*row, *(f"{median([each[at] for each in counts[row[0]][WARM_UP:]]):.0f}" for at in (0, 1)))
            for row in side_rows(measured, base=AGAIN, records=records)
        ]
        headings = ("side", f"seconds, median of {times}", "range", "records/s", f"× the time of: {AGAIN}")
        fastest = min(measured[CONNECTOR]) / min(measured[AGAIN])
        notes = [f"of the fastest runs: {number(fastest)}", spent_note(stages)]
        yield Table(
            (*headings, "calls to the JVM", "Spark jobs"), rows, f"{records:,} flights to Parquet", notes
        )
