"""P1b, P16: runs of many rounds, compared with as many batches of Spark's connector.

Both sides process the same records in the same batches, with the same handler and reader options, and write Parquet.
The plain side is a loop over batches of the connector. The leased side is one `run_rounds`; the whole run is timed.
P1b parses and validates flights in rounds of 250,000; P16 accepts all of a thousand records, and also has a run of
one round, which includes the fixed cost of a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from benchmarks.harness import Side, Table, case, in_turn, seconds, side_table
from benchmarks.stack import PARTITIONS, Jobs, Ranges, Stages, fill, jobs, spent_note, stack
from pipelines.flights.pipeline import flight_delays
from pipelines.flights.producer import produce
from pipelines.flights.records import TOPIC as FLIGHTS
from sharequeue.domain.settings import Settings
from sharequeue.kafka.topics import Topics
from sharequeue.spark import pipeline
from sharequeue.spark.job import ShareGroupJob
from sharequeue.spark.reading.options import READER_OPTIONS

CONNECTOR, LEASED = "Spark's connector, same handler", "leased, each record acknowledged"


def accept_all(records: DataFrame) -> DataFrame:
    """Accept every record."""
    return records.withColumn("outcome", fn.lit("accept"))


def batches(ends: dict[int, int], records: int, rounds: int) -> list[Ranges]:
    """Return the batches that a run's rounds lease.

    Each begins at the next partition, and goes on to another one at the end of a partition.
    """
    at = dict.fromkeys(ends, 0)
    found: list[Ranges] = []
    for number in range(rounds):
        batch: dict[int, tuple[int, int]] = {}
        for step in range(len(ends)):
            partition = (number + step) % len(ends)
            left = records - sum(end - first for first, end in batch.values())
            taken = min(left, ends[partition] - at[partition])
            if taken > 0:
                batch[partition] = (at[partition], at[partition] + taken)
                at[partition] += taken
        found.append(batch)
    return found


@dataclass(frozen=True)
class Work:
    """A job over a topic, its batches, and the maximum records of a round."""

    job: Jobs
    pipeline: ShareGroupJob
    topic: str
    batches: list[Ranges]

    def plain(self) -> float:
        """Return the seconds of a batch of the connector."""
        options = {**READER_OPTIONS, "includeHeaders": "true"}

        def run() -> None:
            for each in self.batches:
                self.job.plain(self.pipeline.handler, self.topic, each, options)

        return seconds(run) / len(self.batches)

    def leased(self, rounds: int, stages: Stages) -> float:
        """Return the seconds of a leased round."""
        counts = [sum(end - first for first, end in each.values()) for each in self.batches]
        expected = sum(counts[:rounds])
        return self.job.leased(self.pipeline, self.topic, max(counts), expected, stages, rounds) / rounds


def ends_of(settings: Settings, topic: str) -> dict[int, int]:
    """Return the end offsets of a topic's logs."""
    with Topics(settings) as topics:
        return {partition: offsets.log_end for partition, offsets in topics.offsets(topic).items()}


@case(
    "P1b",
    "ours ≥ 1.0 × as fast: the next lease is taken and planned while the last is acknowledged",
    records=40_000,
    times=2,
)
def rounds_of_flights(records: int = 250_000, rounds: int = 8, times: int = 5) -> Iterator[Table]:
    """Compare eight leased rounds of flights with eight batches of the connector."""
    stages: Stages = {}
    with stack() as settings:
        produce(settings, limit=records * rounds)
        with jobs(settings) as job:
            work = Work(job, flight_delays, FLIGHTS, batches(ends_of(settings, FLIGHTS), records, rounds))
            sides = {CONNECTOR: work.plain, LEASED: lambda: work.leased(rounds, stages)}
            measured = in_turn(sides, times, after=job.empty)
        title = f"seconds a round, {rounds} rounds of {records:,} flights"
        yield side_table(measured, base=LEASED, records=records, title=title, notes=[spent_note(stages)])


@case("P16", "a round takes ≤ 1.2 × the connector's batch", times=2)
def small_rounds(records: int = 1_000, rounds: int = 8, times: int = 5) -> Iterator[Table]:
    """Compare eight leased rounds of a thousand records with eight batches of the connector."""
    stages: Stages = {}
    with stack() as settings:
        fill(settings, "small", records * rounds * PARTITIONS)
        with jobs(settings) as job:
            handler = pipeline(group="small", topics=("small",), sink="small")(accept_all)
            work = Work(job, handler, "small", batches(ends_of(settings, "small"), records, rounds))
            sides: dict[str, Side] = {
                CONNECTOR: work.plain,
                LEASED: lambda: work.leased(rounds, stages),
                "leased, a run of one round": lambda: work.leased(1, {}),
            }
            measured = in_turn(sides, times, after=job.empty)
        title = f"seconds a round, {rounds} rounds of {records:,} records"
        yield side_table(measured, base=CONNECTOR, records=records, title=title, notes=[spent_note(stages)])
