"""P15: the driver's memory as the records of a leased job grow.

The same job, one round, over topics of increasing size. Executors are separate processes (`local-cluster`), so that
only the driver's memory counts: the maximum that its JVM keeps alive (after a collection, requested every second) and
the maximum of its Python process. Once with every record accepted, once with one in a thousand released, as single
records, whose ranges the driver then holds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from benchmarks.harness import Table, case
from benchmarks.stack import fill, jobs, stack
from sharequeue.spark.job import ShareGroupJob

MASTER = "local-cluster[1,2,1024]"
RELEASED_EVERY = 1000
MIB = 2**20


class Watch:
    """The maximum memory of the driver during the measurement."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark._jvm
        self.heap = 0
        self.python = 0

    def look(self) -> None:
        """Run the JVM's garbage collection, and record the remaining memory."""
        self._jvm.java.lang.System.gc()
        runtime = self._jvm.java.lang.Runtime.getRuntime()
        self.heap = max(self.heap, int(runtime.totalMemory()) - int(runtime.freeMemory()))
        self.python = max(self.python, psutil.Process().memory_info().rss)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Measure every second, and once at the end."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(1.0):
                self.look()

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()
            self.look()


def handler(outcome: Any) -> Callable[[DataFrame], DataFrame]:
    """Return a handler with this outcome."""

    def handle(records: DataFrame) -> DataFrame:
        kept = records.select("topic", "partition", "offset", "lease_id", fn.length("value").alias("bytes"))
        return kept.withColumn("outcome", outcome)

    return handle


@case("P15", "flat from 10⁵ to 10⁸ records", most=10**6)
def driver_memory(most: int = 10**8) -> Iterator[Table]:
    """Measure the driver's memory as the records of a leased job grow."""
    sizes = [10**exponent for exponent in range(5, 9) if 10**exponent <= most]
    rows = []
    with stack() as settings, jobs(settings.replace(spark_master=MASTER)) as job:
        for size in sizes:
            fill(settings, f"memory-{size}", size)
        singly = fn.when(fn.col("offset") % RELEASED_EVERY == 0, "release").otherwise("accept")
        released = (f"1 in {RELEASED_EVERY} released", handler(singly))
        accepted = ("all accepted", handler(fn.lit("accept")))
        for at, (name, handle) in enumerate((released, accepted, released)):
            for size in sizes[:1] if at == 0 else sizes:  # the first one warms up
                topic, watch = f"memory-{size}", Watch(job.spark)
                with watch.watching():
                    leased = ShareGroupJob("group", (topic,), handle, "sink", headers=False)
                    taken = job.leased(leased, topic, size, size, {})
                memory = (f"{watch.heap / MIB:.0f}", f"{watch.python / MIB:.0f}")
                rows.append((name, f"{size:,}", *memory, f"{taken:.1f}"))
    headings = ("outcomes", "records", "driver JVM, MiB", "driver Python, MiB", "seconds")
    yield Table(headings, rows[1:])
