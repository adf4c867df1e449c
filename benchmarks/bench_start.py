"""How long do Spark's start, a first job and a first write take, and what shortens them?

The sides: as it is (the JVM started directly, with the class-data archive); started by Spark's launcher; without the
archive; and with the JVM's first compiler alone. Each is a Python process of its own, and they take turns. The wall
clock counts from before the session; a large job follows, because a choice of compiler must also serve that. The
processor's time is the JVM's, before the large job. The archive is made first if it is not there (half a minute).

    .venv/bin/python benchmarks/bench_start.py [--full]
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from rig import FULL

from sharequeue.jvm.class_archive import folder_of
from sharequeue.local import class_archives
from sharequeue.local.preflight import find_java
from sharequeue.settings import Settings

TURNS = 8 if FULL else 3
LARGE = 200_000_000
SIDES: dict[str, dict[str, str]] = {
    "as it is": {},
    "by Spark's launcher": {"SPARK_PRINT_LAUNCH_COMMAND": "1"},  # only the launcher reads it
    "without the archive": {},
    "first compiler alone": {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"},
}


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
    spark.range(LARGE).selectExpr("max(xxhash64(id, id % 7))").collect()
    ended = time.perf_counter()
    stages = [started - began, counted - started, written - counted, written - began, ended - written]
    print(json.dumps([*stages, cpu.user + cpu.system]))


def side(jars: Path, environment: dict[str, str]) -> list[float]:
    """Run once in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="sharequeue-bench-") as folder:
        command = [sys.executable, __file__, "--once", str(jars), folder]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **environment}
        )
    return [float(figure) for figure in json.loads(done.stdout.splitlines()[-1])]


def main() -> None:
    """Measure the sides in turns and print the medians."""
    own, java = Settings.load().jars, find_java().executable
    folder_of(own).mkdir(exist_ok=True)
    class_archives.make_all(folder_of(own), lambda: class_archives.missing(own, java))
    with tempfile.TemporaryDirectory(prefix="sharequeue-bench-") as elsewhere:
        bare = Path(elsewhere) / "jars"  # the same jars, and no archive beside them
        bare.symlink_to(own)
        turns = [
            [side(bare if name == "without the archive" else own, given) for name, given in SIDES.items()]
            for _ in range(TURNS)
        ]
    print(f"medians of {TURNS}, seconds: start, first job, first write, together; a large job; processor")
    for name, runs in zip(SIDES, zip(*turns, strict=True), strict=True):
        medians = (statistics.median(figures) for figures in zip(*runs, strict=True))
        print(f"{name:<22}", *(f"{median:6.1f}" for median in medians))


if __name__ == "__main__":
    if "--once" in sys.argv:
        once(Path(sys.argv[-2]), Path(sys.argv[-1]))
    else:
        main()
