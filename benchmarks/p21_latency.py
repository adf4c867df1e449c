"""P21: from a record produced to its effect committed.

One record at a time, at random moments, each after the last one is done; three sides in turn, on one broker.

- A followed job, `sharequeue run --follow`, in a separate process: until its acknowledgement, with the manifest of
the output, is committed in Postgres. Its idle cost is measured at the end. - The peer: Spark's Structured Streaming
with its file sink, without a pause between micro-batches, so that it polls the broker continuously: until the batch
is in the sink's log. - Dagster: its daemon, the lag sensor of a new project, and a process with Spark for each run.

The first records of each side are a warm-up and are discarded.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path

import psutil
from confluent_kafka import Producer

from benchmarks.database import connect
from benchmarks.harness import REPOSITORY, Table, case, median, percentile, say, spread
from benchmarks.stack import session, stack
from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.groups.configs import alter_group_configs
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.topics import Topics
from sharequeue.local import dagster_ui
from sharequeue.local.home import Home

PARTITIONS = 2
WARM_UP = 3
IDLE_SECONDS = 20.0
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
"""A function that returns the number of finished records."""


class Sender:
    """A producer of one record at a time."""

    def __init__(self, settings: Settings) -> None:
        config = client_config(settings, enable_idempotence=True, linger_ms=0) | {"log_level": 0}
        self._producer, self._numbers = Producer(config), count()

    def latencies(self, topic: str, done: Done, records: int, warm_up: int = WARM_UP) -> list[float]:
        """Return the seconds from just before each record is sent until it is done, without the warm-up."""
        taken, draw = [], random.Random(21)  # noqa: S311
        for number in islice(self._numbers, records + warm_up):
            time.sleep(draw.uniform(0.2, 3.0))
            before, began = done(), time.monotonic()
            self._producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
            assert self._producer.flush(30) == 0
            while done() == before:
                assert time.monotonic() < began + 120, f"a record of {topic} was not done in 120 s"
                time.sleep(0.01)
            taken.append(time.monotonic() - began)
        return taken[warm_up:]


def acknowledged(settings: Settings, group: str) -> Done:
    """Return a function that counts a group's acknowledged records, with a separate connection."""
    cursor = connect(settings.database_url).cursor()
    query = "select coalesce(sum(spso), 0) from sharequeue.share_partition_status where group_id = %s"

    def done() -> int:
        cursor.execute(query, (group,))
        return int((cursor.fetchone() or (0,))[0])

    return done


@contextmanager
def process(command: Sequence[str], settings: Settings, folder: Path) -> Iterator[psutil.Process]:
    """Run a process that can import this module, and end it."""
    path = {"PYTHONPATH": f"{folder}{os.pathsep}{REPOSITORY}"}
    with (folder / "log").open("a") as log:
        running = subprocess.Popen(
            command,
            cwd=folder,
            env={**dagster_ui.environment(settings), **path},
            stdout=log,
            stderr=log,
            start_new_session=True,
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
    """Return the latencies of a followed job, and its idle cost."""
    command = [sys.executable, "-m", "sharequeue.cli", "run", "latency:followed", "--follow"]
    with process(command, settings, folder) as running:
        taken = send.latencies("followed", acknowledged(settings, "followed"), records)
        family = [running, *running.children(recursive=True)]

        def cpu() -> float:
            return sum(sum(each.cpu_times()[:2]) for each in family)

        before, began = cpu(), time.monotonic()
        time.sleep(IDLE_SECONDS)
        used = (cpu() - before) / (time.monotonic() - began)
        size = sum(each.memory_info().rss for each in family) / 2**20
    return taken, f"The followed job while nothing came: {used:.1%} of a core; {size:,.0f} MiB with its JVM."


def streamed(settings: Settings, send: Sender, folder: Path, records: int) -> list[float]:
    """Return the latencies of Structured Streaming, in this process."""
    with session(settings) as spark:
        frame = spark.readStream.format("kafka").option("kafka.bootstrap.servers", settings.bootstrap_servers)
        frame = frame.option("subscribe", "streamed").option("startingOffsets", "earliest")
        rows = frame.load().select("topic", "partition", "offset", "value")
        sink = rows.writeStream.format("parquet").option("path", str(folder / "streamed"))
        query = sink.option("checkpointLocation", str(folder / "checkpoint")).start()
        log = folder / "streamed" / "_spark_metadata"

        def batches() -> int:
            # Every tenth file is named like `9.compact`.
            names = [each.name.partition(".")[0] for each in log.iterdir()] if log.exists() else []
            return max((int(name) + 1 for name in names if name), default=0)

        try:
            return send.latencies("streamed", batches, records)
        finally:
            query.stop()


def scheduled(settings: Settings, send: Sender, folder: Path, records: int) -> list[float]:
    """Return the latencies through Dagster's sensor and a run process."""
    dagster_ui.prepare(Home.at(settings.home))
    workspace = folder / "workspace.yaml"
    workspace.write_text("load_from:\n  - python_module: latency\n")
    command = [str(Path(sys.executable).parent / "dagster-daemon"), "run", "-w", str(workspace)]
    with process(command, settings, folder):
        return send.latencies("scheduled", acknowledged(settings, "scheduled"), records, warm_up=1)


@case("P21", "followed: median ≤ 5 s, p99 ≤ 10 s; through Dagster ≤ 45 s", records=5, dagster=1)
def latency(records: int = 20, dagster: int = 3) -> Iterator[Table]:
    """Measure the time from a record produced to its effect committed."""
    with stack(service=True) as settings, tempfile.TemporaryDirectory(prefix="sharequeue-bench-") as name:
        folder, send = Path(name), Sender(settings)
        (folder / "latency.py").write_text(MODULE)
        with Topics(settings, timeout=60) as topics, Database.open(settings) as database:
            for each in ("followed", "streamed", "scheduled"):
                topics.create(each, PARTITIONS, {"retention.ms": "-1"})
            for each in ("followed", "scheduled"):
                alter_group_configs(database, each, {"share.auto.offset.reset": "earliest"})
        say("following")
        taken = {}
        taken["followed job"], idle = followed(settings, send, folder, records)
        say("streaming")
        taken["Structured Streaming, file sink"] = streamed(settings, send, folder, records)
        if dagster:
            say("Dagster")
            ways = scheduled(settings, send, folder, dagster)
            taken["Dagster's sensor and a run process"] = ways
    rows = [
        (way, str(len(each)), f"{median(each):.1f}", f"{percentile(each, 99):.1f}", spread(each))
        for way, each in taken.items()
    ]
    yield Table(("way", "records", "median, s", "p99, s", "range"), rows, notes=[idle])
