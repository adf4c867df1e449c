"""P17: a Spark job under leases on a topic of a thousand partitions.

One round over all partitions, 100 records each: the same handler that accepts everything and writes Parquet, on
Spark's connector alone, and under leases. Reading the ends of the logs, leasing, planning and acknowledging are
our work; reading and writing are Spark's on both sides. The locks last 30 s and are renewed.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from benchmarks.harness import Table, case, in_turn, number, say, seconds, side_rows
from benchmarks.stack import Stages, connector, fill, jobs, spent_note, stack, stage_medians
from sharequeue.spark import pipeline

RECORDS = 100
TOPIC = "thousand"
OURS = ("observe", "acquire", "plan", "acknowledge")


def handler(records: DataFrame) -> DataFrame:
    """Accept every record."""
    return records.withColumn("outcome", fn.lit("accept"))


@case("P17", f"{', '.join(OURS)} < 1 s together, no lock lost at 30 s", partitions=200, rounds=1)
def thousand_partitions(partitions: int = 1_000, rounds: int = 3) -> Iterator[Table]:
    """Measure a Spark job under leases on a topic of a thousand partitions."""
    records, stages = RECORDS * partitions, Stages()
    with stack() as settings:
        say(f"producing {records:,} records")
        fill(settings, TOPIC, records, partitions=partitions)
        with jobs(settings) as job:
            leased = pipeline(group=TOPIC, topics=(TOPIC,), sink=TOPIC)(handler)

            def plain() -> None:
                handled = handler(connector(settings, job.spark, TOPIC))
                handled.write.partitionBy("outcome").parquet(f"{job.folder}/{uuid.uuid4()}")

            sides = {
                "Spark's connector, same handler": lambda: seconds(plain),
                "leased, each record acknowledged": lambda: job.leased(
                    leased, TOPIC, records, records, stages
                ),
            }
            measured = in_turn(sides, rounds)
    ours = sum(taken for stage, taken in stage_medians(stages).items() if stage in OURS)
    rows = [*side_rows(measured), (f"of that {', '.join(OURS)}", number(ours), "")]
    title = f"{records:,} records in {partitions:,} partitions, one round"
    headings = ("side", f"seconds, median of {rounds}", "range")
    yield Table(headings, rows, title, [spent_note(stages)])
