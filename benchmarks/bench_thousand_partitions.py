"""What does a whole Spark job under leases cost on a topic of a thousand partitions (P17)?

One round over all of them, 100 records each: the same handler that accepts everything and writes Parquet, on Spark's
connector alone, and under leases. The table shows the two, and where the leased side's seconds go: looking at the
ends of the logs, leasing, planning, and acknowledging are ours; reading and writing are Spark's on both sides. The
locks last 30 s and are renewed.

    .venv/bin/python benchmarks/bench_thousand_partitions.py [--partitions 1000] [--rounds 3]
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import uuid
from functools import partial
from pathlib import Path

from leased_rig import fill, group_on, leased_rounds, say, session, stack, versions
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from rig import in_turn, median, report, seconds, spread

from sharequeue.kafka.clients import spark_options
from sharequeue.settings import Settings
from sharequeue.spark import pipeline
from sharequeue.spark.reading.frame import READER_OPTIONS
from sharequeue.spark.report import STAGES

RECORDS = 100
TOPIC = "thousand"
OURS = ("observe", "acquire", "plan", "acknowledge")


def handler(records: DataFrame) -> DataFrame:
    """Accept every record."""
    return records.withColumn("outcome", fn.lit("accept"))


def plain(settings: Settings, spark: SparkSession, folder: Path) -> float:
    """Seconds of the handler on the connector, written by outcome."""
    options = {**spark_options(settings), **READER_OPTIONS, "subscribe": TOPIC}

    def run() -> None:
        records = spark.read.format("kafka").options(**options).load()
        handler(records).write.partitionBy("outcome").parquet(f"{folder}/{uuid.uuid4()}")

    return seconds(run)


def leased(
    settings: Settings, spark: SparkSession, folder: Path, records: int, stages: dict[str, list[float]]
) -> float:
    """Seconds of the same under leases; where they went is put into `stages`."""
    holder = group_on(settings, TOPIC)
    group = holder.assignment[0].group_id
    job = pipeline(group=group, topics=(TOPIC,), sink=group, lock_duration_ms=30_000)(handler)
    taken, done = leased_rounds(settings.replace(output=folder), spark, job, holder, records, stages)
    assert done.accepted == records, done
    return taken


def main() -> None:
    """Measure both sides in turn, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds of each side")
    given = parser.parse_args()
    records = RECORDS * given.partitions
    folder = Path(tempfile.mkdtemp(prefix="sharequeue-bench-output-"))
    stages: dict[str, list[float]] = {}
    try:
        with stack() as settings:
            say(f"producing {records:,} records")
            fill(settings, TOPIC, records, partitions=given.partitions)
            with session(settings) as spark:
                sides = [
                    partial(plain, settings, spark, folder),
                    partial(leased, settings, spark, folder, records, stages),
                ]
                measured = in_turn(sides, given.rounds)
            spent = {stage: median(stages[stage][1:]) for stage in STAGES if stage in stages}
            rows = [
                (name, f"{median(figures):,.2f}", spread(figures))
                for name, figures in zip(
                    ("Spark's connector, same handler", "leased, each record acknowledged"),
                    measured,
                    strict=True,
                )
            ]
            rows.append(
                (f"of that {', '.join(OURS)}", f"{sum(spent.get(stage, 0.0) for stage in OURS):,.2f}", "")
            )
            report(
                settings.database_url,
                f"P17: {records:,} records in {given.partitions:,} partitions, one round, median of {given.rounds}",
                ("side", "seconds", "range"),
                rows,
            )
            print("stages: " + ", ".join(f"{stage} {taken:.2f}" for stage, taken in spent.items()))
            print(versions())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
