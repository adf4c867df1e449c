"""A class-data archive for the JVMs of Spark that the tests start: each starts in half of the time.

A run with several workers makes it beside its first tests, once for each environment. A JVM that finds none, or one
of another version or class path, starts without it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

ARCHIVE = Path(sys.prefix) / f"spark-{version('pyspark')}.jsa"
QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""Without it a JVM that cannot use the archive warns of it in its standard output."""


def use() -> None:
    """Have each driver that this process or one of its children starts use the archive."""
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:SharedArchiveFile={ARCHIVE} {QUIET}"


def make(at_the_end: Callable[[Callable[[], None]], None]) -> None:
    """Start making the archive, unless it is there; `at_the_end` gets what waits for it. Without an archive the tests
    are slower, and that is all."""
    if ARCHIVE.exists():
        return
    made = subprocess.Popen(
        [sys.executable, "-m", "tests.archive"],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def wait() -> None:
        made.wait()

    at_the_end(wait)


@contextmanager
def _made_at_the_end(folder: Path) -> Iterator[None]:
    from sharequeue.domain.java import launchers_home

    made = folder / ARCHIVE.name
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:ArchiveClassesAtExit={made} {QUIET}"
    with launchers_home() as home:
        if home is not None:
            os.environ["JAVA_HOME"] = str(home)
        yield
    made.rename(ARCHIVE)


def _job(folder: Path) -> None:
    """Load the classes that the tests' jobs load: planning, generated code, JSON, Parquet, functions of Python."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as fn

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    numbers = spark.range(1000).withColumn("value", fn.to_json(fn.struct("id")))
    numbers.write.parquet(f"{folder}/parquet")
    numbers.write.json(f"{folder}/json")
    read = spark.read.parquet(f"{folder}/parquet").withColumn("parsed", fn.from_json("value", "id long"))
    doubled = fn.udf(lambda value: value * 2, "long")
    read.join(numbers.groupBy("id").count(), "id").select(doubled("parsed.id")).orderBy(fn.rand()).collect()
    spark.stop()
    # The archive is written when the JVM ends.
    gateway: Any = spark.sparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    # In the environment's folder: a file cannot be renamed into another file system.
    with tempfile.TemporaryDirectory(dir=sys.prefix) as made_in, _made_at_the_end(Path(made_in)):
        _job(Path(made_in))
