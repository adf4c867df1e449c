"""Kafka, Postgres and Spark for a case, with filled topics, and jobs on the connector alone or under leases."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import sqlalchemy as sa
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from benchmarks.database import ALL_LOCKS, acknowledge, lease_all, note_version
from benchmarks.harness import MADE_OF, median, number, seconds
from sharequeue.database import Database
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.results.runs import STAGES
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import AcknowledgeType, Lease, SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.kafka.clients import client_config, spark_options
from sharequeue.kafka.topics import Topics
from sharequeue.local.stack import down, up
from sharequeue.spark.job import ShareGroupJob
from sharequeue.spark.reading.options import READER_OPTIONS
from sharequeue.spark.run import run_rounds
from sharequeue.spark.session import spark_session
from sharequeue.state import State

PARTITIONS = 4
RECORD_BYTES = 100
Ranges = Mapping[int, tuple[int, int]]
"""Partition, first offset and end offset (exclusive)."""
Stages = dict[str, list[float]]
"""Seconds of each stage of a leased run."""


@contextmanager
def stack(service: bool = False) -> Iterator[Settings]:
    """Run a stack, and remove it afterwards."""
    home = Path(tempfile.mkdtemp(prefix="sharequeue-bench-"))
    home.chmod(0o755)  # as root, Postgres runs as `nobody` and needs access
    try:
        os.environ["SHAREQUEUE_JARS"] = str(Settings.load().jars)
        up(home, lambda line: None, service=service, environment=dict(os.environ))
        settings = Settings.load(home)
        note_version(settings.database_url)
        kafka = next((settings.jars / "broker").glob("kafka-clients-*.jar"), None)
        MADE_OF["Kafka"] = kafka.stem.removeprefix("kafka-clients-") if kafka else "?"
        MADE_OF.update({name: version(name) for name in ("pyspark", "confluent-kafka")})
        yield settings
    finally:
        down(home, lambda line: None)
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def session(settings: Settings) -> Iterator[SparkSession]:
    """Yield the Spark session of a case."""
    spark = spark_session(settings, "benchmark")
    try:
        yield spark
    finally:
        spark.stop()


def fill(
    settings: Settings,
    topic: str,
    records: int,
    record_bytes: int = RECORD_BYTES,
    partitions: int = PARTITIONS,
    batch_bytes: int = 1_000_000,
) -> None:
    """Create a topic with the given number of records, spread evenly, in log batches of a maximum size in bytes."""
    with Topics(settings, timeout=60) as topics:
        topics.create(topic, partitions, {"retention.ms": "-1"})
    producer = Producer(
        client_config(settings, linger_ms=50, queue_buffering_max_messages=200_000, enable_idempotence=True)
        | {"batch.size": batch_bytes, "delivery.report.only.error": True, "log_level": 3}
    )
    value = os.urandom(record_bytes)
    for at in range(records):
        while True:
            try:
                producer.produce(topic, value, partition=at % partitions)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0


def new_group(database: Database) -> str:
    """Create a group whose leases may have any size."""
    group = f"bench-{uuid.uuid4().hex[:10]}"
    with database.transaction() as connection:
        connection.execute(
            sa.text("insert into sharequeue.share_groups (group_id) values (:group)"), {"group": group}
        )
    alter_group_configs(database, group, {"share.partition.max.record.locks": ALL_LOCKS})
    return group


class Holder:
    """A holder of leases that is not a member of the group."""

    def __init__(self, assignment: list[SharePartition]) -> None:
        self.assignment = assignment
        self.member_id = "bench"
        self.member_epoch = None
        self.lost = threading.Event()

    @property
    def group(self) -> str:
        """Return the group's id."""
        return self.assignment[0].group_id


def group_on(settings: Settings, topic: str) -> Holder:
    """Create a group at the first offsets of a topic, and a holder of its leases. Not measured."""
    with Database.open(settings) as database, Topics(settings) as topics:
        group, info = new_group(database), topics.describe([topic])[topic]
        assignment = [SharePartition(group, topic, at) for at in range(info.partitions)]
        for share_partition in assignment:
            State(database).initialize(share_partition, info.topic_id, 0, 1)
    return Holder(assignment)


def second_leases(
    settings: Settings, topic: str, records: int, failed: Callable[[int], OffsetSet]
) -> list[Lease]:
    """Lease a topic for a new group, release the failed records, accept the others; lease the released ones."""
    leases, each = [], records // PARTITIONS
    with Database.open(settings) as database, Topics(settings) as topics:
        state, info = State(database), topics.describe([topic])[topic]
        for at in group_on(settings, topic).assignment:
            lease, again = lease_all(state, at, info.topic_id, each), failed(each)
            acknowledge(
                state, lease, {AcknowledgeType.ACCEPT: lease.offsets - again, AcknowledgeType.RELEASE: again}
            )
            leases.append(lease_all(state, at, info.topic_id, each))
            assert leases[-1].offsets == again
    return leases


def connector(
    settings: Settings,
    spark: SparkSession,
    topic: str,
    ranges: Ranges | None = None,
    options: Mapping[str, str] = READER_OPTIONS,
) -> DataFrame:
    """Return a topic, or ranges of it, read by Spark's connector with the reader options of leased reads."""
    given = {**spark_options(settings), **options}
    if ranges is None:
        given["subscribe"] = topic
    else:
        given["assign"] = json.dumps({topic: list(ranges)})
        given["startingOffsets"] = json.dumps({topic: {str(at): first for at, (first, _) in ranges.items()}})
        given["endingOffsets"] = json.dumps({topic: {str(at): end for at, (_, end) in ranges.items()}})
    return spark.read.format("kafka").options(**given).load()


def total(records: DataFrame) -> tuple[int, int]:
    """Read every value; return the bytes and the number of records."""
    row = records.agg(fn.sum(fn.length("value")), fn.count("*")).first()
    assert row is not None
    return int(row[0]), int(row[1])


class Jobs:
    """Jobs that write to one folder with a handler: on the connector alone, or under leases."""

    def __init__(self, settings: Settings, spark: SparkSession, folder: Path) -> None:
        self.settings = settings
        self.spark = spark
        self.folder = folder

    def empty(self) -> None:
        """Remove the output: a full disk would slow the next side."""
        for path in self.folder.iterdir():
            shutil.rmtree(path)

    @contextmanager
    def servers(self) -> Iterator[tuple[State, Topics]]:
        """Yield the state and the topics, with connections of their own."""
        with Database.open(self.settings) as database, Topics(self.settings) as topics:
            yield State(database), topics

    def plain(
        self,
        handler: Callable[[DataFrame], DataFrame],
        topic: str,
        ranges: Ranges | None = None,
        options: Mapping[str, str] = READER_OPTIONS,
    ) -> None:
        """Handle records of the connector and write them by outcome, without protection against loss and
        duplicates."""
        records = connector(self.settings, self.spark, topic, ranges, options)
        records = records.withColumnRenamed("timestampType", "timestamp_type").withColumns(
            {"delivery_count": fn.lit(1), "lease_id": fn.lit(0).cast("long")}
        )
        handler(records).write.partitionBy("outcome").parquet(f"{self.folder}/{uuid.uuid4()}")

    def leased(
        self,
        job: ShareGroupJob,
        topic: str,
        records: int,
        expected: int,
        stages: Stages,
        rounds: int = 1,
        prepare: Callable[[Holder], None] = lambda holder: None,
        holder: Holder | None = None,
        servers: tuple[State, Topics] | None = None,
    ) -> float:
        """Return the seconds of rounds of so many records for a group, without a `holder` a new one, which `prepare`
        gets before; every record is acknowledged, `expected` of them with an outcome. `servers` are those of a
        program that has run before; without them, new connections are opened."""
        holder = holder or group_on(self.settings, topic)
        settings = self.settings.replace(output=self.folder)
        prepare(holder)
        job = replace(job, group=holder.group, topics=(topic,), sink=holder.group, summaries=())
        reports = []
        with self.servers() if servers is None else nullcontext(servers) as (state, topics):
            state.figures.describe(job.group)  # connect first, as a job does before its first lease
            taken = seconds(
                lambda: reports.append(
                    run_rounds(
                        settings,
                        job,
                        membership=holder,
                        state=state,
                        topics=topics,
                        spark=self.spark,
                        max_rounds=rounds,
                        max_records=records,
                    )
                )
            )
        (done,) = reports
        assert len(done.rounds) == rounds, done
        assert done.accepted + done.released + done.rejected == expected <= done.leased, done
        for stage, spent in done.stage_seconds.items():
            stages.setdefault(stage, []).append(spent / rounds)
        return taken


@contextmanager
def jobs(settings: Settings) -> Iterator[Jobs]:
    """Yield jobs with a Spark session and a folder for output, which is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="sharequeue-bench-output-") as folder, session(settings) as spark:
        yield Jobs(settings, spark, Path(folder))


def stage_medians(stages: Stages) -> dict[str, float]:
    """Return the median seconds of each stage, in the order of a run; the first run is a warm-up."""
    return {stage: median(stages[stage][1:]) for stage in STAGES if stage in stages}


def spent_note(stages: Stages) -> str:
    """Return a note with the seconds of a leased round by stage."""
    return "seconds of a leased round: " + ", ".join(
        f"{stage} {number(taken)}" for stage, taken in stage_medians(stages).items()
    )
