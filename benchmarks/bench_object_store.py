"""P19: what does a lease cost on an object store, beside Spark's own write of the same rows to it?

The store is a server that speaks S3 (moto's, in Python, on this machine); the client is Hadoop's own, S3A. The rows
are in Spark's memory, so that only the store is measured. The leased side writes them by lease, reads the outcomes
back and acknowledges; the first line leaves out the seconds of the reading. Spark's own side is `DataFrame.write` of
the same rows, divided by outcome as a user would, once with Spark's default committer, which copies each file on the
store, and once with the committer of the leased side. The requests are counted at the server: they do not depend on
what else the machine does.

    .venv/bin/python benchmarks/bench_object_store.py [--records 500000] [--rounds 5]
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import boto3  # type: ignore[import-untyped]
import sqlalchemy as sa
from leased_rig import ALL_LOCKS, session, stack, versions
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from rig import Side, in_turn, median, report, seconds, spread

from sharequeue.database import Database
from sharequeue.groups.configs import alter_group_configs
from sharequeue.local import optional_jars
from sharequeue.offsets import OffsetSet
from sharequeue.settings import Settings
from sharequeue.spark.job import ShareGroupJob
from sharequeue.spark.outcomes.read_back import read_back
from sharequeue.spark.output.files import Files
from sharequeue.spark.output.lease_files import durable, write_leases
from sharequeue.spark.output.shared_folder import all_read_back
from sharequeue.spark.session import ON_S3
from sharequeue.state import State
from sharequeue.values import AcknowledgeType, Lease, LeaseOutput, SharePartition

PARTITIONS = 2
_DEFAULT = "org.apache.spark.sql.execution.datasources.SQLHadoopMapReduceCommitProtocol"
SPARKS_OWN = {
    "spark.sql.sources.commitProtocolClass": _DEFAULT,
    "spark.sql.parquet.output.committer.class": "org.apache.parquet.hadoop.ParquetOutputCommitter",
}
OURS = {name: ON_S3[name] for name in SPARKS_OWN}


@contextmanager
def store(log: Path) -> Iterator[dict[str, str]]:
    """A server that speaks S3, with the bucket `bench`, and writes a line for each request; Hadoop's settings for it
    are given."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(port)]
    with log.open("w") as lines:
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=lines)
    try:
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.1)
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


def rows(spark: SparkSession, records: int) -> DataFrame:
    """Rows as a handler makes them, of two partitions, in memory: a hundredth is rejected."""
    made = spark.range(records, numPartitions=PARTITIONS).select(
        fn.lit("bench").alias("topic"),
        # A task has one partition, as a read of a topic has them.
        fn.expr(f"cast(id div {records // PARTITIONS} as int)").alias("partition"),
        fn.expr(f"id % {records // PARTITIONS}").alias("offset"),
        fn.md5(fn.col("id").cast("string")).alias("note"),
        fn.when(fn.col("id") % 100 == 99, "reject").otherwise("accept").alias("outcome"),
        fn.lit(None).cast("string").alias("error"),
    )
    kept = made.persist()
    kept.count()
    return kept


def spark_writes(made: DataFrame, output: str, conf: dict[str, str]) -> float:
    """Seconds of Spark's own write."""
    for name, value in conf.items():
        made.sparkSession.conf.set(name, value)
    return seconds(lambda: made.write.partitionBy("outcome").parquet(f"{output}/plain/{uuid.uuid4()}"))


def leased(settings: Settings, spark: SparkSession, made: DataFrame, records: int, whole: bool) -> float:
    """Seconds of the write and the acknowledgement of a lease for each partition; of the reading back too, or not."""
    for name, value in OURS.items():
        spark.conf.set(name, value)
    group = f"bench-{uuid.uuid4().hex[:10]}"
    job = ShareGroupJob(group, ("bench",), lambda records: records, f"sink-{group}")
    with Database.open(settings) as database:
        state = State(database)
        with database.transaction() as connection:
            connection.execute(
                sa.text("insert into sharequeue.share_groups (group_id) values (:group)"), {"group": group}
            )
        alter_group_configs(database, group, {"share.partition.max.record.locks": str(ALL_LOCKS)})
        leases: list[Lease] = []
        for number in range(PARTITIONS):
            share_partition = SharePartition(group, "bench", number)
            state.initialize(share_partition, "id", 0, 1)
            state.observe(share_partition, "id", 0, records // PARTITIONS, records // PARTITIONS)
            lease = state.acquire(share_partition, "bench", None, records)
            assert lease is not None
            leases.append(lease)
        lease_id = fn.when(fn.col("partition") == 0, leases[0].lease_id).otherwise(leases[1].lease_id)

        read_back_seconds: list[float] = []
        files = Files(spark, settings.output)

        def run() -> None:
            given = made.withColumn("lease_id", lease_id.cast("long"))
            written = write_leases(files, settings, state, job.names, given, leases)
            read_from = time.perf_counter()
            with durable(files, written):
                seen = read_back(spark, written.folders, delays=False)
            all_read_back(job.sink, written.rows, sum(each.rows for each in seen.values()))
            read_back_seconds.append(time.perf_counter() - read_from)
            for lease in leases:
                of_lease = seen[lease.lease_id]
                outputs = [LeaseOutput(job.sink, written.accepted[lease.lease_id], of_lease.accepted_rows)]
                outcomes: dict[AcknowledgeType, OffsetSet] = dict(of_lease.outcomes)
                state.acknowledge(lease, outcomes, outputs=outputs)

        taken = seconds(run)
        return taken if whole else taken - read_back_seconds[0]


def counted(side: Side, log: Path, requests: list[int]) -> float:
    """Seconds of a side; how many requests it made is put into `requests`."""
    before = log.read_text(errors="replace").count(" HTTP/1.1")
    taken = side()
    requests.append(log.read_text(errors="replace").count(" HTTP/1.1") - before)
    return taken


def main() -> None:
    """Measure the sides in turn and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=500_000, help="rows of a round")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds of each side")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="sharequeue-bench-") as folder,
        stack() as plain,
        store(log := Path(folder) / "requests") as conf,
    ):
        settings = plain.replace(output="s3a://bench/output", spark_master=f"local[{os.cpu_count()}]")
        optional_jars.ensure(settings, ["s3a"], print)
        with session(settings) as spark:
            for name, value in conf.items():
                spark.conf.set(name, value)
            made = rows(spark, given.records)
            names = (
                "leased: written, acknowledged",
                "leased: written, read back, acknowledged",
                "Spark's own write, default committer",
                "Spark's own write, the same committer",
            )
            sides = (
                partial(leased, settings, spark, made, given.records, False),
                partial(leased, settings, spark, made, given.records, True),
                partial(spark_writes, made, settings.output, SPARKS_OWN),
                partial(spark_writes, made, settings.output, OURS),
            )
            requests: list[list[int]] = [[] for _ in sides]
            measured = in_turn(
                [partial(counted, side, log, some) for side, some in zip(sides, requests, strict=True)],
                given.rounds,
            )
        ours = median(measured[0])
        report(
            settings.database_url,
            f"P19: {given.records:,} rows to S3, median of {given.rounds}",
            ("side", "seconds", "range", "leased is × as fast", "requests"),
            [
                (
                    name,
                    f"{median(figures):,.2f}",
                    spread(figures),
                    f"{median(figures) / ours:,.2f}",
                    f"{median(some):.0f}",
                )
                for name, figures, some in zip(names, measured, requests, strict=True)
            ],
        )
        print(versions())


if __name__ == "__main__":
    main()
