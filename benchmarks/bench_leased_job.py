"""P1, P3b: what does the queue cost a whole Spark job, and what would the job cost on the broker's own share groups?

Topic `flights`: JSON of 346 bytes, lz4, four partitions; 2.8 % of the flights fail. The job parses and validates
each flight and writes Parquet. The plain side does it with the same handler on Spark's connector, with the same
reader options, into one folder by outcome; what is lost, doubled or to be done again is its user's matter. A second
plain side leaves out even the outcomes. The leased side is `run_rounds`: lease, read, handle, write, read the
outcomes back, acknowledge every record, the failing ones released or rejected. The peer is the application one
would write on share groups: two processes of confluent-kafka, `json.loads`, Parquet by 50,000, every record
acknowledged.

    .venv/bin/python benchmarks/bench_leased_job.py [--records 2020656] [--rounds 5] [--no-peers]
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from leased_rig import confluent_seconds, group_on, leased_rounds, say, session, stack, versions
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from rig import in_turn, median, report, seconds, spread

from pipelines.flights.pipeline import FLIGHT, flight_delays
from pipelines.flights.records import TOPIC, produce
from sharequeue.kafka.clients import spark_options
from sharequeue.settings import Settings
from sharequeue.spark.reading.frame import READER_OPTIONS
from sharequeue.spark.report import STAGES

BY_FILE = 50_000


def read(settings: Settings, spark: SparkSession) -> DataFrame:
    """The topic by Spark's connector, under the names that a handler gets."""
    options = {**spark_options(settings), **READER_OPTIONS, "subscribe": TOPIC}
    records = spark.read.format("kafka").options(**options).load()
    return records.withColumnRenamed("timestampType", "timestamp_type").withColumns(
        {"delivery_count": fn.lit(1), "lease_id": fn.lit(0).cast("long")}
    )


def plain(settings: Settings, spark: SparkSession, folder: Path) -> float:
    """Seconds of the same handler on the connector, written by outcome."""

    def run() -> None:
        handled = flight_delays(read(settings, spark))
        handled.write.partitionBy("outcome").parquet(f"{folder}/{uuid.uuid4()}")

    return seconds(run)


def bare(settings: Settings, spark: SparkSession, folder: Path) -> float:
    """Seconds of parsing and writing alone, without any outcome."""

    flight = fn.from_json(fn.col("value").cast("string"), FLIGHT).alias("f")

    def run() -> None:
        parsed = read(settings, spark).select("partition", "offset", "timestamp", flight)
        flights = parsed.select("partition", "offset", "timestamp", "f.*")
        flights.write.parquet(f"{folder}/{uuid.uuid4()}")

    return seconds(run)


def leased(
    settings: Settings, spark: SparkSession, folder: Path, records: int, stages: dict[str, list[float]]
) -> float:
    """Seconds of the job under leases, each record acknowledged; where they went is put into `stages`."""
    holder = group_on(settings, TOPIC)
    group = holder.assignment[0].group_id
    job = replace(flight_delays, group=group, sink=group, summaries=())
    taken, done = leased_rounds(settings.replace(output=folder), spark, job, holder, records, stages)
    assert done.leased == done.accepted + done.released + done.rejected == records, done
    return taken


class Application:
    """What one would write on share groups: parse, validate, a file of Parquet every 50,000. Used in a process of its
    own.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.rows: list[dict[str, Any]] = []

    def __call__(self, messages: list[Any]) -> None:
        """Take the messages of a poll; none means that these were the last."""
        for message in messages:
            flight = json.loads(message.value())
            failed = flight.get("dep_time") is None or flight.get("arr_delay") is None
            outcome = "release" if failed else "accept"
            self.rows.append(
                {**flight, "partition": message.partition(), "offset": message.offset(), "outcome": outcome}
            )
        if len(self.rows) >= BY_FILE or not messages:
            self.flush()

    def flush(self) -> None:
        """Write what there is."""
        if self.rows:
            pq.write_table(pa.Table.from_pylist(self.rows), f"{self.folder}/{uuid.uuid4()}.parquet")
            self.rows = []


def application(settings: Settings, folder: Path, records: int, processes: int) -> float:
    """Seconds of that application, from its first record to its last file."""
    here = folder / str(uuid.uuid4())
    here.mkdir()
    taken = confluent_seconds(settings, TOPIC, records, processes, work=Application(str(here)), explicit=True)
    written = sum(pq.read_metadata(file).num_rows for file in here.glob("*.parquet"))
    assert written >= records, f"{written} of {records} records written"
    return taken


def main() -> None:
    """Measure the sides in turn and print the table, and where the time of the leased side went."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=6 * 336_776, help="flights in the topic")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds of each side")
    parser.add_argument("--no-peers", action="store_true", help="without the application on share groups")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="sharequeue-bench-output-"))
    stages: dict[str, list[float]] = {}
    try:
        with stack() as settings:
            say(f"producing {given.records:,} flights")
            produce(settings, limit=given.records)
            with session(settings) as spark:
                sides: list[tuple[str, Callable[[], float]]] = [
                    ("Spark's connector, same handler", partial(plain, settings, spark, folder)),
                    (
                        "leased, each record acknowledged",
                        partial(leased, settings, spark, folder, given.records, stages),
                    ),
                    ("Spark's connector, parsed only", partial(bare, settings, spark, folder)),
                ]
                if not given.no_peers:
                    peer = partial(application, settings, folder, given.records)
                    sides += [
                        ("share group, confluent-kafka × 1", partial(peer, 1)),
                        ("share group, confluent-kafka × 2", partial(peer, 2)),
                    ]
                measured = in_turn([_told(name, side, folder) for name, side in sides], given.rounds)
            ours = median(measured[1])
            rows = [
                (
                    name,
                    f"{median(figures):,.2f}",
                    spread(figures),
                    f"{given.records / median(figures):,.0f}",
                    f"{median(figures) / ours:,.2f}",
                )
                for (name, _), figures in zip(sides, measured, strict=True)
            ]
            report(
                settings.database_url,
                f"P1, P3b: {given.records:,} flights to Parquet, median of {given.rounds}",
                ("side", "seconds", "range", "records/s", "leased is × as fast"),
                rows,
            )
            spent = ", ".join(
                f"{stage} {median(stages[stage][1:]):.2f}" for stage in STAGES if stage in stages
            )
            print(f"where the leased side's seconds went: {spent}")
            print(versions())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _told(name: str, side: Callable[[], float], folder: Path) -> Callable[[], float]:
    def run() -> float:
        taken = side()
        say(f"{name}: {taken:.2f} s")
        # A disk full of the last round's files would slow the next.
        for path in folder.iterdir():
            shutil.rmtree(path)
        return taken

    return run


if __name__ == "__main__":
    main()
