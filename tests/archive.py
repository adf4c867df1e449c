"""Class-data archives for the JVMs that the tests start: each starts in half of the time.

`python -m tests.archive` makes them, once for each environment: a build does that while mypy uses one core, and a run
with several workers while these collect their tests. A JVM that finds none, or one of another version or class path,
starts without it.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PLACE = Path(sys.prefix)
ARCHIVES = {"spark": PLACE / f"spark-{version('pyspark')}.jsa", "broker": PLACE / "broker.jsa"}
LOCK = PLACE / "archives.lock"
"""Held while archives are made."""
QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""Without it a JVM that cannot use the archive warns of it in its standard output."""
OF_SPARK = f"-XX:SharedArchiveFile={ARCHIVES['spark']} {QUIET}"
"""Options of a driver."""
# A JVM of the tests lives for seconds. What its second compiler does never pays, and is a quarter of all CPU.
# What the first one makes of two hundred tests does not fit into the room that it has by default: a fourteenth of a
# driver's CPU cleared that room.
FIRST_COMPILER = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
# A fifth of a driver's CPU went into making code for queries of a few records, and compiling it.
# A page of Spark's UI, which nobody opens, would have a long form of each query.
INTERPRETED = (
    "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
    " -Dspark.sql.ui.explainMode=simple"
)
"""Spark evaluates expressions itself, to the same results. The end-to-end runs and all deep tests have its generated
code, as users do."""
PATIENCE_SECONDS = 120


def use(*, generated_code: bool) -> None:
    """Have each JVM that this process or one of its children starts use its archive: a driver of Spark by its own
    option, which comes last; any other one the broker's. Drivers generate code, or do not."""
    os.environ.setdefault(
        "JDK_JAVA_OPTIONS", f'{FIRST_COMPILER} "-XX:SharedArchiveFile={ARCHIVES["broker"]}" {QUIET}'
    )
    os.environ["SPARK_SUBMIT_OPTS"] = OF_SPARK if generated_code else f"{OF_SPARK} {INTERPRETED}"


def make(at_the_end: Callable[[Callable[[], None]], None]) -> None:
    """Start making the archives that are not there, unless somebody is making them; `at_the_end` gets what waits for
    them. Without an archive the tests are slower, and that is all."""
    with LOCK.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        making = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.archive", name],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[lock.fileno()],
            )
            for name, archive in ARCHIVES.items()
            if not archive.exists()
        ]
    for each in making:
        at_the_end(partial(_end_of, each))


def _end_of(process: subprocess.Popen[bytes]) -> None:
    process.wait()


def wait() -> None:
    """Wait until no archive is being made."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    with LOCK.open("w") as lock:
        while time.monotonic() < deadline:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                time.sleep(0.1)


def _spark(made: Path, folder: Path) -> None:
    """Load the classes that the tests' jobs load: planning, generated code, JSON, Parquet, functions of Python."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as fn

    from sharequeue.domain.java import launchers_home

    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:ArchiveClassesAtExit={made} {QUIET}"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with launchers_home() as home:
        if home is not None:
            os.environ["JAVA_HOME"] = str(home)
        made_of = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        spark = made_of.config("spark.sql.shuffle.partitions", "2").getOrCreate()
        numbers = spark.range(1000).withColumn("value", fn.to_json(fn.struct("id")))
        numbers.write.parquet(f"{folder}/parquet")
        numbers.write.json(f"{folder}/json")
        numbers.withColumn("kind", fn.col("id") % 2).write.partitionBy("kind").parquet(f"{folder}/kinds")
        read = spark.read.parquet(f"{folder}/parquet").withColumn("parsed", fn.from_json("value", "id long"))
        doubled = fn.udf(lambda value: value * 2, "long")
        read.join(numbers.groupBy("id").count(), "id").select(doubled("parsed.id")).orderBy(
            fn.rand()
        ).collect()
        read.mapInArrow(lambda batches: batches, read.schema).groupBy("id").agg(fn.count("*")).toArrow()
        spark.stop()
        # The archive is written when the JVM ends.
        gateway: Any = spark.sparkContext._gateway
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()


def _broker(made: Path, folder: Path) -> None:
    """Load the classes that the tests' brokers load: topics, transactions, consumers' groups."""
    from confluent_kafka import Consumer, Producer

    from sharequeue.domain.java import find_java
    from sharequeue.domain.settings import Settings
    from sharequeue.kafka.topics import Topics
    from sharequeue.local import jars, kafka, ports
    from sharequeue.local.home import Home, write_json
    from tests.fixtures.stack import jars_folder
    from tests.servers.ports import free_port

    java, where = find_java(), jars_folder()
    given = os.environ.get("SHAREQUEUE_IVY_SETTINGS")
    jars.ensure_stack(where, java, Path(given).absolute() if given else None, lambda line: None)
    home = Home.at(folder / "home")
    home.create()
    write_json(home.ports_file, {name: free_port() for name in ports.PREFERRED})
    # Apart: its JVM would write an archive, too.
    kafka._format(home, java, where, free_port(), free_port())
    os.environ["JDK_JAVA_OPTIONS"] = f'{FIRST_COMPILER} "-XX:ArchiveClassesAtExit={made}" {QUIET}'
    port = kafka.ensure(home, java, where, lambda line: None)
    try:
        address = {"bootstrap.servers": f"{ports.LOOPBACK}:{port}"}
        with Topics(Settings.load(home.path, bootstrap_servers=address["bootstrap.servers"])) as topics:
            topics.create("trained", 2)
        producer = Producer({**address, "transactional.id": "trained"})
        producer.init_transactions(PATIENCE_SECONDS)
        producer.begin_transaction()
        producer.produce("trained", b"value")
        producer.commit_transaction(PATIENCE_SECONDS)
        consumer = Consumer({**address, "group.id": "trained", "auto.offset.reset": "earliest"})
        consumer.subscribe(["trained"])
        consumer.poll(PATIENCE_SECONDS)
        consumer.close()
    finally:
        # The archive is written when the JVM ends.
        ports.stop(home, kafka.NAME)


def _make_one(name: str) -> None:
    # A JVM that writes an archive uses no other one.
    os.environ["JDK_JAVA_OPTIONS"] = FIRST_COMPILER
    # In the environment's folder: a file cannot be renamed into another file system.
    with tempfile.TemporaryDirectory(dir=PLACE) as own:
        archive = ARCHIVES[name]
        {"spark": _spark, "broker": _broker}[name](Path(own) / archive.name, Path(own))
        (Path(own) / archive.name).rename(archive)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _make_one(sys.argv[1])
    else:
        waiting: list[Callable[[], None]] = []
        make(waiting.append)
        for wait_for_it in waiting:
            wait_for_it()
