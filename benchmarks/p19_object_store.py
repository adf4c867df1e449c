"""P19: leases on an object store, compared with Spark's own write of the same rows to it.

The store is an S3 server (moto's, in Python, on this machine); the client is Hadoop's S3A. The rows
are in Spark's memory, so that only the store is measured. The leased side writes them by lease, reads the outcomes
back and acknowledges; the first line leaves out the seconds of the reading. Spark's own side is `DataFrame.write`,
partitioned by outcome, with Spark's default committer, which copies each file on the store, and with the committer of
the leased side. The requests are counted at the server: they do not depend on the load of the machine.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import boto3  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from benchmarks.database import acknowledge, lease_all, wait_until
from benchmarks.harness import Side, Table, case, in_turn, median, seconds, side_rows
from benchmarks.stack import new_group, session, stack
from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import LeaseOutput, SharePartition
from sharequeue.local import optional_jars
from sharequeue.spark.job import ShareGroupJob
from sharequeue.spark.outcomes.outcomes import read_back
from sharequeue.spark.output.files import Files
from sharequeue.spark.output.lease_files import LeaseFiles
from sharequeue.spark.output.shared_folder import all_read_back
from sharequeue.spark.session import ON_S3
from sharequeue.state import State

PARTITIONS = 2
SPARKS_OWN = {
    "spark.sql.sources.commitProtocolClass": (
        "org.apache.spark.sql.execution.datasources.SQLHadoopMapReduceCommitProtocol"
    ),
    "spark.sql.parquet.output.committer.class": "org.apache.parquet.hadoop.ParquetOutputCommitter",
}
OURS = {name: ON_S3[name] for name in SPARKS_OWN}


@contextmanager
def store(log: Path) -> Iterator[dict[str, str]]:
    """Run a server with the bucket `bench` that logs a line for each request; yield Hadoop's settings for it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(port)]
    with log.open("w") as lines:
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=lines)

    def accepts() -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return True
        return False

    try:
        wait_until(accepts)
        keys = {"aws_access_key_id": "bench", "aws_secret_access_key": "bench"}
        boto3.client("s3", endpoint_url=url, region_name="us-east-1", **keys).create_bucket(Bucket="bench")
        yield {
            "fs.s3a.endpoint": url,
            "fs.s3a.endpoint.region": "us-east-1",
            "fs.s3a.path.style.access": "true",
            "fs.s3a.access.key": "bench",
            "fs.s3a.secret.key": "bench",
        }
    finally:
        server.kill()
        server.wait()


def rows_of(spark: SparkSession, records: int) -> DataFrame:
    """Create rows as a handler does, from two partitions, in memory: one in a hundred is rejected."""
    made = spark.range(records, numPartitions=PARTITIONS).select(
        fn.lit("bench").alias("topic"),
        # Each task has one partition, as in a read of a topic.
        fn.expr(f"cast(id div {records // PARTITIONS} as int)").alias("partition"),
        fn.expr(f"id % {records // PARTITIONS}").alias("offset"),
        fn.md5(fn.col("id").cast("string")).alias("note"),
        fn.when(fn.col("id") % 100 == 99, "reject").otherwise("accept").alias("outcome"),
        fn.lit(None).cast("string").alias("error"),
    )
    kept = made.persist()
    kept.count()
    return kept


def configure(spark: SparkSession, conf: dict[str, str]) -> None:
    """Set these options of the session."""
    for name, value in conf.items():
        spark.conf.set(name, value)


def spark_writes(made: DataFrame, output: str, conf: dict[str, str]) -> float:
    """Return the seconds of Spark's own write."""
    configure(made.sparkSession, conf)
    return seconds(lambda: made.write.partitionBy("outcome").parquet(f"{output}/plain/{uuid.uuid4()}"))


def leased(settings: Settings, spark: SparkSession, made: DataFrame, records: int, whole: bool) -> float:
    """Return the seconds of writing and acknowledging a lease for each partition, with or without the reading
    back."""
    configure(spark, OURS)
    with Database.open(settings) as database:
        state, group = State(database), new_group(database)
        job = ShareGroupJob(group, ("bench",), lambda records: records, f"sink-{group}")
        leases = []
        for at in (SharePartition(group, "bench", number) for number in range(PARTITIONS)):
            state.initialize(at, "id", 0, 1)
            leases.append(lease_all(state, at, "id", records // PARTITIONS))
        lease_id = fn.when(fn.col("partition") == 0, leases[0].lease_id).otherwise(leases[1].lease_id)
        files = LeaseFiles(spark, settings, state, job.names, Files(spark, settings.output))
        reading = [0.0]

        def run() -> None:
            given = made.withColumn("lease_id", lease_id.cast("long"))
            written = files.write(given, leases)
            seen = {}

            def read() -> None:
                with files.durable(written):
                    seen.update(read_back(spark, written.folders, delays=False))
                all_read_back(job.sink, written.rows, sum(each.rows for each in seen.values()))

            reading[0] = seconds(read)
            for lease in leases:
                of_lease = seen[lease.lease_id]
                output = LeaseOutput(job.sink, written.accepted[lease.lease_id], of_lease.accepted_rows)
                acknowledge(state, lease, dict(of_lease.outcomes), [output])

        taken = seconds(run)
    return taken if whole else taken - reading[0]


def counted(side: Side, log: Path, requests: list[int]) -> float:
    """Return the seconds of a side; store the number of its requests in ``requests``."""

    def so_far() -> int:
        return log.read_text(errors="replace").count(" HTTP/1.1")

    before = so_far()
    taken = side()
    requests.append(so_far() - before)
    return taken


@case("P19", "ours ≥ 0.95 × as fast as Spark's own write", records=100_000, rounds=2)
def object_store(records: int = 500_000, rounds: int = 5) -> Iterator[Table]:
    """Compare leases on an object store with Spark's own write."""
    with (
        tempfile.TemporaryDirectory(prefix="sharequeue-bench-") as folder,
        stack() as plain,
        store(log := Path(folder) / "requests") as conf,
    ):
        settings = plain.replace(output="s3a://bench/output", spark_master=f"local[{os.cpu_count()}]")
        optional_jars.ensure(settings, ["s3a"], print)
        with session(settings) as spark:
            configure(spark, conf)
            made = rows_of(spark, records)
            ours = "leased: written, acknowledged"
            sides: dict[str, Side] = {
                ours: partial(leased, settings, spark, made, records, False),
                "leased: written, read back, acknowledged": partial(
                    leased, settings, spark, made, records, True
                ),
                "Spark's own write, default committer": partial(
                    spark_writes, made, settings.output, SPARKS_OWN
                ),
                "Spark's own write, the same committer": partial(spark_writes, made, settings.output, OURS),
            }
            requests: dict[str, list[int]] = {name: [] for name in sides}
            counting = {name: partial(counted, side, log, requests[name]) for name, side in sides.items()}
            measured = in_turn(counting, rounds)
    rows = [(*row, f"{median(requests[row[0]]):.0f}") for row in side_rows(measured, base=ours)]
    headings = ("side", f"seconds, median of {rounds}", "range", f"× the time of: {ours}", "requests")
    yield Table(headings, rows, f"{records:,} rows to S3")
