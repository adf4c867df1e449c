"""P16, P1b: what does the queue cost where a run has many rounds?

Both sides take the same records in the same batches, with the same handler and the same reader options, and write
Parquet. The plain side is a loop over batches of Spark's connector, written by outcome; what is lost, doubled or to
be done again is its user's matter. The leased side is one `run_rounds` with as many rounds: each leases, reads,
handles, writes, reads back and acknowledges every record. All of the run counts, from its first question to its last
reply.

With `--flights` (P1b) the handler parses and validates flights in rounds of 250,000; without (P16) it accepts every
one of a thousand records. P16 also has a run of one round, which pays for what a run does once.

    .venv/bin/python benchmarks/bench_rounds.py [--flights] [--rounds 8] [--records 1000] [--times 5]
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from leased_rig import PARTITIONS, fill, group_on, leased_rounds, say, session, stack, versions
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from rig import in_turn, median, report, seconds, spread

from pipelines.flights.pipeline import flight_delays
from pipelines.flights.records import TOPIC as FLIGHTS
from pipelines.flights.records import produce
from sharequeue.kafka.clients import spark_options
from sharequeue.kafka.topics import Topics
from sharequeue.settings import Settings
from sharequeue.spark import pipeline
from sharequeue.spark.job import ShareGroupJob
from sharequeue.spark.reading.frame import READER_OPTIONS
from sharequeue.spark.report import STAGES

Batch = dict[int, tuple[int, int]]
"""From which to which offset of which partition, half-open."""


@dataclass(frozen=True)
class Work:
    """What both sides do."""

    topic: str
    handler: Callable[[DataFrame], DataFrame]
    job: ShareGroupJob
    batches: list[Batch]

    @property
    def records(self) -> int:
        """How many records a batch has at most."""
        return max(sum(end - first for first, end in batch.values()) for batch in self.batches)


def accept_all(records: DataFrame) -> DataFrame:
    """Accept every record."""
    return records.withColumn("outcome", fn.lit("accept"))


def batches(ends: dict[int, int], records: int, rounds: int) -> list[Batch]:
    """The batches that a run's rounds lease: each begins at the next partition, and goes on to another when it has
    taken all of one."""
    at = dict.fromkeys(ends, 0)
    found = []
    for number in range(rounds):
        batch: Batch = {}
        for step in range(len(ends)):
            partition = (number + step) % len(ends)
            left = records - sum(end - first for first, end in batch.values())
            taken = min(left, ends[partition] - at[partition])
            if taken > 0:
                batch[partition] = (at[partition], at[partition] + taken)
                at[partition] += taken
        found.append(batch)
    return found


def plain(settings: Settings, spark: SparkSession, folder: Path, work: Work, rounds: int) -> float:
    """Seconds a batch of the handler on the connector, written by outcome."""

    def batch(of: Batch) -> None:
        options = {
            **spark_options(settings),
            **READER_OPTIONS,
            "includeHeaders": "true",
            "assign": json.dumps({work.topic: list(of)}),
            "startingOffsets": json.dumps({work.topic: {str(at): first for at, (first, _) in of.items()}}),
            "endingOffsets": json.dumps({work.topic: {str(at): end for at, (_, end) in of.items()}}),
        }
        records = spark.read.format("kafka").options(**options).load()
        records = records.withColumnRenamed("timestampType", "timestamp_type").withColumns(
            {"delivery_count": fn.lit(1), "lease_id": fn.lit(0).cast("long")}
        )
        work.handler(records).write.partitionBy("outcome").parquet(f"{folder}/{uuid.uuid4()}")

    return seconds(lambda: [batch(of) for of in work.batches[:rounds]]) / rounds


def leased(
    settings: Settings,
    spark: SparkSession,
    folder: Path,
    work: Work,
    rounds: int,
    stages: dict[str, list[float]],
) -> float:
    """Seconds a round of the same under leases; where they went is put into `stages`."""
    holder = group_on(settings, work.topic)
    group = holder.assignment[0].group_id
    job = replace(work.job, group=group, sink=group, summaries=())
    taken, done = leased_rounds(
        settings.replace(output=folder), spark, job, holder, work.records, stages, rounds
    )
    assert len(done.rounds) == rounds, done
    expected = sum(end - first for of in work.batches[:rounds] for first, end in of.values())
    assert done.leased == done.accepted + done.released + done.rejected == expected, done
    return taken / rounds


def prepare(settings: Settings, flights: bool, records: int, rounds: int) -> Work:
    """Fill the topic."""
    say(f"producing {records * rounds:,} records")
    if flights:
        produce(settings, limit=records * rounds)
        topic, handler, job = FLIGHTS, flight_delays.handler, flight_delays
    else:
        topic, handler = "small", accept_all
        fill(settings, topic, records * rounds * PARTITIONS)
        job = pipeline(group="small", topics=(topic,), sink="small")(handler)
    with Topics(settings) as topics:
        ends = {partition: offsets.log_end for partition, offsets in topics.offsets(topic).items()}
    return Work(topic, handler, job, batches(ends, records, rounds))


def main() -> None:
    """Measure the sides in turn and print the table, and where the time of the leased side went."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--flights", action="store_true", help="P1b: flights, 250,000 a round")
    parser.add_argument("--records", type=int, help="records a round")
    parser.add_argument("--rounds", type=int, default=8, help="rounds of a run")
    parser.add_argument("--times", type=int, default=5, help="measured runs of each side")
    given = parser.parse_args()
    records = given.records or (250_000 if given.flights else 1_000)
    folder = Path(tempfile.mkdtemp(prefix="sharequeue-bench-output-"))
    stages: dict[str, list[float]] = {}
    try:
        with stack() as settings:
            work = prepare(settings, given.flights, records, given.rounds)
            with session(settings) as spark:
                plain_side = partial(plain, settings, spark, folder, work)
                leased_side = partial(leased, settings, spark, folder, work)
                sides = [
                    ("Spark's connector, same handler", partial(plain_side, given.rounds)),
                    ("leased, each record acknowledged", partial(leased_side, given.rounds, stages)),
                ]
                if not given.flights:
                    sides.append(("leased, a run of one round", partial(leased_side, 1, {})))
                measured = in_turn([_told(name, side, folder) for name, side in sides], given.times)
            rows = [
                (
                    name,
                    f"{median(figures):,.3f}",
                    spread(figures),
                    f"{records / median(figures):,.0f}",
                    f"{median(figures) / median(measured[0]):,.2f}",
                    f"{median(measured[0]) / median(figures):,.2f}",
                )
                for (name, _), figures in zip(sides, measured, strict=True)
            ]
            report(
                settings.database_url,
                f"{'P1b' if given.flights else 'P16'}: {given.rounds} rounds of {records:,} records to Parquet,"
                f" median of {given.times}",
                ("side", "seconds a round", "range", "records/s", "× as long", "× as fast"),
                rows,
            )
            spent = ", ".join(
                f"{stage} {median(stages[stage][1:]) / given.rounds:.3f}"
                for stage in STAGES
                if stage in stages
            )
            print(f"where a leased round's seconds went: {spent}")
            print(versions())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _told(name: str, side: Callable[[], float], folder: Path) -> Callable[[], float]:
    def run() -> float:
        taken = side()
        say(f"{name}: {taken:.3f} s")
        # A disk full of the last round's files would slow the next.
        for path in folder.iterdir():
            shutil.rmtree(path)
        return taken

    return run


if __name__ == "__main__":
    main()
