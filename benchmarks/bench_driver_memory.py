"""Does the driver's memory grow with the records of a leased job (P15)?

The same job, one round, over topics of more and more records: lease, read, Parquet by lease, outcomes read back,
acknowledge. Executors are processes of their own (`local-cluster`), so that the driver holds what a driver
holds: the most that its JVM keeps alive (after a collection, asked for every second) and the most that its
Python takes. Once with every record accepted, once with one in a thousand released, singly: what the driver
holds then are their ranges.

    .venv/bin/python benchmarks/bench_driver_memory.py [--full | --records 100000000]
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
from leased_rig import fill, group_on, session, stack
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from rig import report, seconds

from sharequeue.database import Database
from sharequeue.kafka.topics import Topics
from sharequeue.settings import Settings
from sharequeue.spark.job import ShareGroupJob
from sharequeue.spark.run import run_rounds
from sharequeue.state import State

MASTER = "local-cluster[1,2,1024]"
RELEASED_EVERY = 1000
MIB = 2**20


def sizes() -> list[int]:
    """Records of each run, tenfold from 10^5."""
    most = 10**7 if "--full" in sys.argv else 10**6
    if "--records" in sys.argv:
        most = int(sys.argv[sys.argv.index("--records") + 1])
    found = [10**5]
    while found[-1] * 10 <= most:
        found.append(found[-1] * 10)
    return found


class Watch:
    """The most that the driver held while it was watched."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark._jvm
        self.heap = 0
        self.python = 0

    def look(self) -> None:
        """Have the JVM collect what is not needed, and see what is left."""
        self._jvm.java.lang.System.gc()
        runtime = self._jvm.java.lang.Runtime.getRuntime()
        self.heap = max(self.heap, int(runtime.totalMemory()) - int(runtime.freeMemory()))
        self.python = max(self.python, psutil.Process().memory_info().rss)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look every second, and once at the end."""
        over = threading.Event()

        def go() -> None:
            while not over.wait(1.0):
                self.look()

        watcher = threading.Thread(target=go)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()
            self.look()


def handler(released: bool) -> Any:
    """Accept all, or release one in a thousand."""

    def handle(records: DataFrame) -> DataFrame:
        outcome = fn.when(fn.col("offset") % RELEASED_EVERY == 0, "release").otherwise("accept")
        kept = records.select("topic", "partition", "offset", "lease_id", fn.length("value").alias("bytes"))
        return kept.withColumn("outcome", outcome if released else fn.lit("accept"))

    return handle


def run(spark: SparkSession, settings: Settings, records: int, *, released: bool) -> tuple[float, Watch]:
    """One round over a topic of so many records."""
    topic = f"memory-{records}"
    holder = group_on(settings, topic)
    group = holder.assignment[0].group_id
    job = ShareGroupJob(group, (topic,), handler(released), f"sink-{group}", headers=False)
    watch = Watch(spark)

    def go() -> None:
        with watch.watching(), Database.open(settings) as database, Topics(settings) as topics:
            done = run_rounds(
                settings,
                job,
                membership=holder,
                state=State(database),
                topics=topics,
                spark=spark,
                max_rounds=1,
                max_records=records,
            )
        assert done.leased == records
        assert done.released == (records // RELEASED_EVERY if released else 0)

    return seconds(go), watch


def main() -> None:
    """Runs each size and prints the table."""
    with stack() as settings:
        settings = settings.replace(spark_master=MASTER)
        with session(settings) as spark:
            for records in sizes():
                fill(settings, f"memory-{records}", records)
            run(spark, settings, sizes()[0], released=True)
            rows = []
            for released in (False, True):
                for records in sizes():
                    taken, watch = run(spark, settings, records, released=released)
                    what = f"1 in {RELEASED_EVERY} released" if released else "all accepted"
                    rows.append(
                        (
                            what,
                            f"{records:,}",
                            f"{watch.heap / MIB:.0f}",
                            f"{watch.python / MIB:.0f}",
                            f"{taken:.1f}",
                        )
                    )
        headings = ("outcomes", "records", "driver JVM, MiB", "driver Python, MiB", "s")
        report(settings.database_url, "Memory of the driver, one round", headings, rows)


if __name__ == "__main__":
    main()
