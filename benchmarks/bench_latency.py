"""P21: how long does it take from a record produced to its effect committed?

A record at a time, at random moments, each when the last one is done: three ways in turn, on one broker.

- A followed job, `sharequeue run --follow`, a process of its own: until its acknowledgement, with the manifest of the
  output, is committed in Postgres.
- The peer: Spark's Structured Streaming with its file sink, without a pause between micro-batches, which asks the
  broker all the time: until the batch is in the sink's log.
- Dagster: its daemon, the lag sensor as a new project has it, and a process with Spark for each run.

The first records of each way warm it up and are thrown away. What the followed process costs while nothing comes is
measured at its end.

    .venv/bin/python benchmarks/bench_latency.py [--records 20] [--dagster 3]
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
from confluent_kafka import Producer
from leased_rig import say, session, stack, versions
from rig import connect, median, report

from sharequeue.database import Database
from sharequeue.groups.configs import alter_group_configs
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.topics import Topics
from sharequeue.local import dagster_ui
from sharequeue.local.home import Home
from sharequeue.settings import Settings

PARTITIONS = 2
WARM_UP = 3
IDLE_SECONDS = 20.0
REPOSITORY = Path(__file__).parents[1]
MODULE = """
import dagster as dg
from pyspark.sql import functions as fn
from sharequeue.spark import pipeline

def handler(records):
    return records.select("topic", "partition", "offset", "lease_id", "value").withColumn("outcome", fn.lit("accept"))

followed = pipeline(group="followed", topics=["followed"], sink="followed")(handler)
scheduled = pipeline(group="scheduled", topics=["scheduled"], sink="scheduled")(handler)

@dg.definitions
def defs():
    from sharequeue.dagster import ShareGroup, share_group_defs, share_group_resources

    group = ShareGroup(group="scheduled", topics=["scheduled"], pipeline="latency:scheduled",
                       automation={"sensor": {"enabled": True}})
    return dg.Definitions.merge(share_group_defs(group), share_group_resources())
"""
Done = Callable[[], int]
"""How many records are done."""


class Sender:
    """Sends a record at a time."""

    def __init__(self, settings: Settings) -> None:
        self._producer = Producer(
            client_config(settings, enable_idempotence=True, linger_ms=0) | {"log_level": 0}
        )
        self._sent = 0

    def __call__(self, topic: str) -> None:
        """Send one to a topic; the broker has it."""
        self._sent += 1
        self._producer.produce(topic, b"%d" % self._sent, partition=self._sent % PARTITIONS)
        assert self._producer.flush(30) == 0


def latencies(
    send: Sender, topic: str, done: Done, records: int, warm_up: int = WARM_UP, limit: float = 120.0
) -> list[float]:
    """Seconds from just before each record is sent until it is done, without the first ones."""
    draw = random.Random(21)  # noqa: S311
    taken = []
    for number in range(records + warm_up):
        time.sleep(draw.uniform(0.2, 3.0))
        before, began = done(), time.monotonic()
        send(topic)
        while done() == before:
            assert time.monotonic() < began + limit, f"record {number} of {topic} was not done in {limit:g} s"
            time.sleep(0.01)
        taken.append(time.monotonic() - began)
    return taken[warm_up:]


@contextmanager
def acknowledged(settings: Settings, group: str) -> Iterator[Done]:
    """How many records of a group are acknowledged, by a connection of its own."""
    with connect(settings.database_url) as connection, connection.cursor() as cursor:

        def count() -> int:
            cursor.execute(
                "select coalesce(sum(spso), 0) from sharequeue.share_partition_status where group_id = %s",
                (group,),
            )
            (row,) = cursor.fetchall()
            return int(row[0])

        yield count


@contextmanager
def process(command: Sequence[str], settings: Settings, folder: Path) -> Iterator[psutil.Process]:
    """A process of the benchmark's, ended with its children."""
    environment = {
        **dagster_ui.environment(settings),
        "PYTHONPATH": f"{folder}{os.pathsep}{REPOSITORY}",
    }
    with (folder / "log").open("a") as log:
        running = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield psutil.Process(running.pid)
    finally:
        running.terminate()
        try:
            running.wait(30)
        except subprocess.TimeoutExpired:
            running.kill()


def followed(settings: Settings, send: Sender, folder: Path, records: int) -> tuple[list[float], str]:
    """The latencies of a followed job, and what it cost while it waited."""
    command = [sys.executable, "-m", "sharequeue.cli", "run", "latency:followed", "--follow"]
    with acknowledged(settings, "followed") as done, process(command, settings, folder) as running:
        taken = latencies(send, "followed", done, records)
        family = [running, *running.children(recursive=True)]

        def cpu() -> float:
            return sum(sum(each.cpu_times()[:2]) for each in family)

        before, began = cpu(), time.monotonic()
        time.sleep(IDLE_SECONDS)
        used = (cpu() - before) / (time.monotonic() - began)
        size = sum(each.memory_info().rss for each in family) / 2**20
        return (
            taken,
            f"The followed job while nothing came: {used:.1%} of a core; {size:,.0f} MiB with its JVM.",
        )


def streamed(settings: Settings, send: Sender, folder: Path, records: int) -> list[float]:
    """The latencies of Structured Streaming, in this process."""
    with session(settings) as spark:
        frame = spark.readStream.format("kafka").option("kafka.bootstrap.servers", settings.bootstrap_servers)
        frame = frame.option("subscribe", "streamed").option("startingOffsets", "earliest")
        rows = frame.load().select("topic", "partition", "offset", "value")
        sink = rows.writeStream.format("parquet").option("path", str(folder / "streamed"))
        query = sink.option("checkpointLocation", str(folder / "checkpoint")).start()
        log = folder / "streamed" / "_spark_metadata"

        def batches() -> int:
            # Every tenth is called `9.compact`.
            names = [each.name.partition(".")[0] for each in log.iterdir()] if log.exists() else []
            return max((int(name) + 1 for name in names if name), default=0)

        try:
            return latencies(send, "streamed", batches, records)
        finally:
            query.stop()


def scheduled(settings: Settings, send: Sender, folder: Path, records: int) -> list[float]:
    """The latencies through Dagster's sensor and a run process."""
    dagster_ui.prepare(Home.at(settings.home))
    (folder / "workspace.yaml").write_text("load_from:\n  - python_module: latency\n")
    command = [
        str(Path(sys.executable).parent / "dagster-daemon"),
        "run",
        "-w",
        str(folder / "workspace.yaml"),
    ]
    with acknowledged(settings, "scheduled") as done, process(command, settings, folder):
        return latencies(send, "scheduled", done, records, warm_up=1)


def row(name: str, taken: list[float]) -> tuple[str, ...]:
    """A line of the table."""
    ordered = sorted(taken)
    late = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return (
        name,
        str(len(taken)),
        f"{median(taken):.1f}",
        f"{late:.1f}",
        f"{min(taken):.1f} … {max(taken):.1f}",
    )


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=20, help="measured records of the quick ways")
    parser.add_argument(
        "--dagster", type=int, default=3, help="measured records through Dagster; 0 leaves it out"
    )
    given = parser.parse_args()
    with stack(service=True) as settings, tempfile.TemporaryDirectory(prefix="sharequeue-bench-") as name:
        folder = Path(name)
        (folder / "latency.py").write_text(MODULE)
        with Topics(settings, timeout=60) as topics, Database.open(settings) as database:
            for each in ("followed", "streamed", "scheduled"):
                topics.create(each, PARTITIONS, {"retention.ms": "-1"})
            for each in ("followed", "scheduled"):
                alter_group_configs(database, each, {"share.auto.offset.reset": "earliest"})
        send = Sender(settings)
        say("following")
        ours, idle = followed(settings, send, folder, given.records)
        say("streaming")
        peer = streamed(settings, send, folder, given.records)
        rows = [row("followed job", ours), row("Structured Streaming, file sink", peer)]
        if given.dagster:
            say("Dagster")
            rows.append(
                row("Dagster's sensor and a run process", scheduled(settings, send, folder, given.dagster))
            )
        report(
            settings.database_url,
            "P21: seconds from a record produced to its effect committed",
            ("way", "records", "median", "p99", "range"),
            rows,
        )
        print(idle)
        print(versions())


if __name__ == "__main__":
    main()
