"""P32: results in a topic, exactly once.

P32: flights from a topic to another one. Our side leases them, writes its files, acknowledges, and sends the rows
with `KafkaTopic`. The peer reads the same records with Spark's connector and writes the same rows with Spark's own
sink, which may write a record twice. The records of both are read back and must be equal in number and bytes.

P32b: one record at a time through a followed job: from its acknowledgement, as Postgres shows it, until a consumer of
committed records has its result.

P32c: the memory of the driver and of the Python workers that send, as a round grows. Executors are separate
processes.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psutil
from confluent_kafka import Consumer, Producer
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from benchmarks.harness import (
    Table,
    case,
    in_turn,
    median,
    number,
    percentile,
    say,
    seconds,
    side_table,
    spread,
)
from benchmarks.p15_driver_memory import MASTER, MIB, Watch
from benchmarks.p21_latency import acknowledged, process
from benchmarks.stack import PARTITIONS, Jobs, Stages, connector, fill, jobs, spent_note, stack
from pipelines.flights.pipeline import FLIGHT
from pipelines.flights.producer import produce
from pipelines.flights.records import TOPIC as FLIGHTS
from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.groups.configs import alter_group_configs
from sharequeue.kafka.clients import client_config, spark_options
from sharequeue.kafka.topics import Topics
from sharequeue.spark import KafkaTopic, pipeline
from sharequeue.spark.formats import json
from sharequeue.spark.handler import KEPT_COLUMNS
from sharequeue.spark.reading.options import READER_OPTIONS
from sharequeue.spark.sinks.kafka.records import SOURCE_HEADERS

WARM_UP = 3
MODULE = """
from pyspark.sql import functions as fn
from sharequeue.spark import KafkaTopic, pipeline

def handler(records):
    kept = records.select("topic", "partition", "offset", "lease_id", fn.col("value").cast("string").alias("text"))
    return kept.withColumn("outcome", fn.lit("accept"))

followed = pipeline(group="followed", topics=["given"], sink="followed",
                    destination=KafkaTopic("made", value="text"))(handler)
"""


def flights_by_carrier(records: DataFrame) -> DataFrame:
    """Parse the flights, and make of each a key and a text."""
    kept = [name for name in KEPT_COLUMNS if name in records.columns]
    flights = json(records, FLIGHT).select(*kept, "value.*")
    named = [name for name in flights.columns if name not in kept]
    text = fn.to_json(fn.struct(*named)).alias("text")
    return flights.select(*kept, fn.col("offset").cast("string").alias("key"), text).withColumn(
        "outcome", fn.lit("accept")
    )


class Sinks:
    """Both sides over one stack; each round writes a topic of its own."""

    def __init__(self, job: Jobs, records: int) -> None:
        self.job, self.records, self.stages = job, records, Stages()
        self.topics, self.numbers = Topics(job.settings), count()
        self.unnamed: list[float] = []
        """What is left of the time of a round without its stages."""
        self.written: dict[str, tuple[int, int]] = {}

    def ours(self) -> float:
        """Return the seconds of a leased round into a topic."""
        target = self._target()
        sink = KafkaTopic(target, key="key", value="text")
        work = pipeline(group="flights", topics=(FLIGHTS,), sink="flights", headers=False, destination=sink)
        taken = self.job.leased(work(flights_by_carrier), FLIGHTS, self.records, self.records, self.stages)
        self.unnamed.append(taken - sum(each[-1] for each in self.stages.values()))
        self._check("ours", target)
        return taken

    def plain(self) -> float:
        """Return the seconds of the connector and Spark's sink."""
        target = self._target()
        options = spark_options(self.job.settings)

        def write() -> None:
            records = connector(self.job.settings, self.job.spark, FLIGHTS, options=READER_OPTIONS)
            rows = flights_by_carrier(records.withColumn("lease_id", fn.lit(10**6)))
            named = zip(SOURCE_HEADERS, ("topic", "partition", "offset", "lease_id"), strict=True)
            headers = [
                fn.struct(
                    fn.lit(name).alias("key"), fn.col(column).cast("string").cast("binary").alias("value")
                )
                for name, column in named
            ]
            made = rows.select(
                fn.lit(target).alias("topic"),
                fn.col("key").cast("binary").alias("key"),
                fn.col("text").cast("binary").alias("value"),
                fn.array(*headers).alias("headers"),
            )
            made.write.format("kafka").options(**options, includeHeaders="true").save()

        taken = seconds(write)
        self._check("plain", target)
        return taken

    def _target(self) -> str:
        name = f"results-{next(self.numbers):03}"
        self.topics.create(name, PARTITIONS, {"retention.ms": "-1"})
        return name

    def _check(self, side: str, target: str) -> None:
        """Check the number and the bytes of the records, without the lease's id, whose length differs."""
        if side not in self.written:
            options = {"includeHeaders": "true", "kafka.isolation.level": "read_committed"}
            found = connector(self.job.settings, self.job.spark, target, options=options)
            size = "length(h.key) + if(h.key like '%lease', 0, length(h.value))"
            headers = f"aggregate(headers, 0, (total, h) -> int(total + {size}))"
            row = found.agg(
                fn.count("*"), fn.sum(fn.expr(f"length(key) + length(value) + {headers}"))
            ).first()
            assert row is not None
            self.written[side] = (int(row[0]), int(row[1]))
            assert len(set(self.written.values())) == 1, self.written
        self.topics.delete(target)


@case("P32", "ratio ≥ 0.6 of Spark's sink, which may write a record twice", records=200_000, rounds=1)
def results_in_a_topic(records: int = 2_000_000, rounds: int = 3) -> Iterator[Table]:
    """Compare flights into a topic, exactly once, with Spark's sink."""
    ours, plain = "KafkaTopic, exactly once", "Spark's sink, at least once"
    with stack() as settings:
        produce(settings, limit=records)
        with jobs(settings) as job:
            both = Sinks(job, records)
            measured = in_turn({ours: both.ours, plain: both.plain}, rounds, after=job.empty)
    ratios = [sink / own for own, sink in zip(measured[ours], measured[plain], strict=True)]
    written, size = both.written["ours"]
    yield side_table(
        measured,
        base=ours,
        records=records,
        title=f"{written:,} records of {size / written:.0f} bytes with their headers, {PARTITIONS} partitions",
        notes=[
            f"ratio, median of the rounds' own: {number(median(ratios))} ({spread(ratios)})",
            f"{spent_note(both.stages)}; the rest, which is sending: {number(median(both.unnamed[1:]))}",
        ],
    )


class Arrivals:
    """A consumer of committed records, which notes when each value came."""

    def __init__(self, settings: Settings, topic: str) -> None:
        config = client_config(settings, isolation_level="read_committed", auto_offset_reset="earliest")
        self._consumer = Consumer(config | {"group.id": "arrivals", "enable.auto.commit": False})
        self._consumer.subscribe([topic])
        self.at: dict[bytes, float] = {}
        self._over = threading.Event()

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Consume during the block."""
        thread = threading.Thread(target=self._consume)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()
            self._consumer.close()

    def _consume(self) -> None:
        while not self._over.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.at[message.value() or b""] = time.monotonic()


def until(condition: Callable[[], bool]) -> float:
    """Wait for a condition; return when it came."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + 120, "nothing came in 120 s"
        time.sleep(0.005)
    return time.monotonic()


@case("P32b", "from acknowledged to readable: median ≤ 2 s", records=10)
def results_latency(records: int = 50) -> Iterator[Table]:
    """Measure the time from a record's acknowledgement until its result can be read."""
    taken: dict[str, list[float]] = {"produced to acknowledged": [], "acknowledged to readable": []}
    with stack(service=True) as settings, tempfile.TemporaryDirectory(prefix="sharequeue-bench-") as name:
        folder = Path(name)
        (folder / "latency.py").write_text(MODULE)
        with Topics(settings, timeout=60) as topics, Database.open(settings) as database:
            for each in ("given", "made"):
                topics.create(each, 2, {"retention.ms": "-1"})
            alter_group_configs(database, "followed", {"share.auto.offset.reset": "earliest"})
        producer = Producer(client_config(settings, enable_idempotence=True, linger_ms=0) | {"log_level": 0})
        done, arrivals = acknowledged(settings, "followed"), Arrivals(settings, "made")
        draw = random.Random(32)  # noqa: S311
        command = [sys.executable, "-m", "sharequeue.cli", "run", "latency:followed", "--follow"]
        with process(command, settings, folder), arrivals.noted():
            for at in range(records + WARM_UP):
                time.sleep(draw.uniform(0.2, 3.0))
                before, value, began = done(), b"%d" % at, time.monotonic()
                producer.produce("given", value, partition=at % 2)
                assert producer.flush(30) == 0
                acknowledged_at = until(lambda before=before: done() > before)  # type: ignore[misc]
                until(lambda value=value: value in arrivals.at)  # type: ignore[misc]
                if at >= WARM_UP:
                    taken["produced to acknowledged"].append(acknowledged_at - began)
                    # A look at Postgres takes some milliseconds.
                    taken["acknowledged to readable"].append(max(arrivals.at[value] - acknowledged_at, 0.0))
    taken["produced to readable"] = [sum(each) for each in zip(*taken.values(), strict=True)]
    rows = [
        (way, str(len(each)), f"{median(each):.2f}", f"{percentile(each, 99):.2f}", spread(each))
        for way, each in taken.items()
    ]
    yield Table(("from … to", "records", "median, s", "p99, s", "range"), rows)


class WatchWorkers(Watch):
    """The maximum memory of the driver, and of one Python worker."""

    def look(self) -> None:
        """Look at the driver, and at the Python processes of its executors."""
        super().look()
        for each in psutil.Process().children(recursive=True):
            try:
                if "pyspark" in " ".join(each.cmdline()) and "java" not in each.name():
                    self.worker = max(self.worker, each.memory_info().rss)
            except psutil.NoSuchProcess:
                continue

    worker = 0


def accept_values(records: DataFrame) -> DataFrame:
    """Accept every record, with its value."""
    kept = records.select("topic", "partition", "offset", "lease_id", "value")
    return kept.withColumn("outcome", fn.lit("accept"))


@case("P32c", "flat from 10⁵ records on", most=10**6)
def results_memory(most: int = 10**7) -> Iterator[Table]:
    """Measure the memory of the driver and of the Python workers as a round into a topic grows."""
    sizes = [10**exponent for exponent in range(5, 9) if 10**exponent <= most]
    rows = []
    with stack() as settings, jobs(settings.replace(spark_master=MASTER)) as job, Topics(settings) as topics:
        for at, size in enumerate((sizes[0], *sizes)):  # the first one warms up
            if at:
                say(f"{size:,} records")
            source, target = f"memory-{at}", f"made-{at}"
            fill(settings, source, size)
            topics.create(target, PARTITIONS, {"retention.ms": "-1"})
            work = pipeline(
                group="memory",
                topics=(source,),
                sink="memory",
                headers=False,
                destination=KafkaTopic(target, value="value"),
            )
            watch = WatchWorkers(job.spark)
            with watch.watching():
                taken = job.leased(work(accept_values), source, size, size, {})
            with Topics(settings) as found:
                ends = found.offsets(target).values()
            assert sum(each.last_stable_offset for each in ends) >= size
            job.empty()
            memory = [f"{each / MIB:.0f}" for each in (watch.heap, watch.python, watch.worker)]
            rows.append((f"{size:,}", *memory, f"{taken:.1f}"))
    headings = ("records", "driver JVM, MiB", "driver Python, MiB", "a Python worker, MiB", "seconds")
    yield Table(headings, rows[1:])
