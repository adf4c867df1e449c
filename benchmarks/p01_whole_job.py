"""P1, P3b: flights to Parquet under leases, beside Spark's connector and an application on share groups.

Topic `flights`: JSON of 346 bytes, lz4, four partitions; 2.8 % of the flights fail. The job parses and validates each
flight and writes Parquet. The plain side uses the same handler and reader options on the connector; another
side leaves out the outcomes. The leased side leases, reads, handles, writes, reads the outcomes back and acknowledges
every record. The peer is a typical application on share groups: `json.loads`, Parquet files of 50,000 rows, every
record acknowledged.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as fn

from benchmarks.harness import Side, Table, case, in_turn, say, seconds, side_table
from benchmarks.share_groups import confluent_seconds
from benchmarks.stack import Jobs, Stages, connector, jobs, spent_note, stack
from pipelines.flights.pipeline import FLIGHT, flight_delays
from pipelines.flights.producer import produce
from pipelines.flights.records import TOPIC
from sharequeue.domain.settings import Settings

BY_FILE = 50_000
LEASED = "leased, each record acknowledged"


def parsed_only(job: Jobs) -> None:
    """Parse and write on the connector, without outcomes."""
    flight = fn.from_json(fn.col("value").cast("string"), FLIGHT).alias("f")
    parsed = connector(job.settings, job.spark, TOPIC).select("partition", "offset", "timestamp", flight)
    flights = parsed.select("partition", "offset", "timestamp", "f.*")
    flights.write.parquet(f"{job.folder}/{uuid.uuid4()}")


class Application:
    """The application on share groups, in a separate process."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.rows: list[dict[str, Any]] = []

    def __call__(self, messages: list[Any]) -> None:
        """Parse and validate the messages of a poll; write a file if there are enough rows, or no more messages."""
        for message in messages:
            flight = json.loads(message.value())
            failed = flight.get("dep_time") is None or flight.get("arr_delay") is None
            outcome = "release" if failed else "accept"
            self.rows.append(
                {**flight, "partition": message.partition(), "offset": message.offset(), "outcome": outcome}
            )
        if self.rows and (len(self.rows) >= BY_FILE or not messages):
            pq.write_table(pa.Table.from_pylist(self.rows), f"{self.folder}/{uuid.uuid4()}.parquet")
            self.rows = []


def application(settings: Settings, folder: Path, records: int, processes: int) -> float:
    """Return the seconds of that application, from its first record to its last file."""
    here = folder / str(uuid.uuid4())
    here.mkdir()
    taken = confluent_seconds(settings, TOPIC, records, processes, work=Application(str(here)), explicit=True)
    written = sum(pq.read_metadata(file).num_rows for file in here.glob("*.parquet"))
    assert written >= records, f"{written} of {records} records written"
    return taken


@case(
    "P1 P3b",
    "ours ≥ 0.95 × as fast as the connector, same handler; ≥ 1.25 × as fast as two processes on share groups",
    records=336_776,
    rounds=2,
)
def whole_job(records: int = 6 * 336_776, rounds: int = 5, peers: bool = True) -> Iterator[Table]:
    """Compare a whole Spark job under leases with the connector and with the broker's own share groups."""
    stages: Stages = {}
    with stack() as settings:
        say(f"producing {records:,} flights")
        produce(settings, limit=records)
        with jobs(settings) as job:
            sides: dict[str, Side] = {
                "Spark's connector, same handler": lambda: seconds(lambda: job.plain(flight_delays, TOPIC)),
                LEASED: lambda: job.leased(flight_delays, TOPIC, records, records, stages),
                "Spark's connector, parsed only": lambda: seconds(lambda: parsed_only(job)),
            }
            for processes in (1, 2) if peers else ():
                side = partial(application, settings, job.folder, records, processes)
                sides[f"share group, confluent-kafka × {processes}"] = side
            measured = in_turn(sides, rounds, after=job.empty)
        yield side_table(
            measured,
            base=LEASED,
            records=records,
            title=f"{records:,} flights to Parquet",
            notes=[spent_note(stages)],
        )
