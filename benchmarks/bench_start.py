"""How long do Spark's start, a first job and a first write take, with and without the class-data archive?

Each is a Python process of its own; the two sides take turns. The wall clock counts from before the session to the
written files; the processor's time is the JVM's. The archive is made first if it is not there (half a minute).

    .venv/bin/python benchmarks/bench_start.py [--full]
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from rig import FULL

from sharequeue.class_archive import folder_of
from sharequeue.local import class_archives
from sharequeue.local.preflight import find_java
from sharequeue.settings import Settings

PAIRS = 8 if FULL else 4


def once(jars: Path, folder: Path) -> None:
    """Start, count, write; print the seconds of each and the processor's."""
    from pyspark import SparkContext

    from sharequeue.spark.session import spark_session

    began = time.perf_counter()
    spark = spark_session(Settings.load(folder).replace(jars=jars), "start")
    started = time.perf_counter()
    spark.range(100_000).mapInArrow(lambda batches: batches, "id long").groupBy("id").count().count()
    counted = time.perf_counter()
    spark.range(100_000).write.parquet(str(folder / "out"))
    written = time.perf_counter()
    cpu = psutil.Process(SparkContext._gateway.proc.pid).cpu_times()
    print(
        json.dumps(
            [started - began, counted - started, written - counted, written - began, cpu.user + cpu.system]
        )
    )


def side(jars: Path) -> list[float]:
    """Run once in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="sharequeue-bench-") as folder:
        command = [sys.executable, __file__, "--once", str(jars), folder]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [float(figure) for figure in json.loads(done.stdout.splitlines()[-1])]


def main() -> None:
    """Measure both sides in turns and print the medians."""
    own, java = Settings.load().jars, find_java().executable
    folder_of(own).mkdir(exist_ok=True)
    class_archives.make_all(folder_of(own), lambda: class_archives.missing(own, java))
    with tempfile.TemporaryDirectory(prefix="sharequeue-bench-") as elsewhere:
        bare = Path(elsewhere) / "jars"  # the same jars, and no archive beside them
        bare.symlink_to(own)
        pairs = [(side(own), side(bare)) for _ in range(PAIRS)]
    print(f"medians of {PAIRS} pairs, seconds: start, first job, first write, together, processor")
    for name, runs in zip(("with the archive", "without"), zip(*pairs, strict=True), strict=True):
        medians = (statistics.median(figures) for figures in zip(*runs, strict=True))
        print(f"{name:<18}", *(f"{median:6.1f}" for median in medians))


if __name__ == "__main__":
    if "--once" in sys.argv:
        once(Path(sys.argv[-2]), Path(sys.argv[-1]))
    else:
        main()
