"""What do the benchmarks of leased Spark jobs need?

A stack of their own (Postgres and Kafka), one Spark session, topics filled once, groups that begin at the first
offset, and the peers: the broker's own share groups, read by confluent-kafka and by the Java client. Both have
their group set to begin at the first offset and nothing else changed; they are timed from their first record to
their last, so joining the group costs them nothing, while our side pays for everything but the start of Spark.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from confluent_kafka import Producer, ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from pyspark.sql import SparkSession
from rig import seconds

from sharequeue.database import Database
from sharequeue.groups.configs import alter_group_configs
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.topics import Topics
from sharequeue.local.stack import down, up
from sharequeue.settings import Settings
from sharequeue.spark import run_rounds
from sharequeue.spark.job import ShareGroupJob
from sharequeue.spark.report import RunReport
from sharequeue.spark.session import spark_session
from sharequeue.state import State
from sharequeue.values import SharePartition

PARTITIONS = 4
RECORD_BYTES = 100
JAVA_PEER = Path(__file__).parent / "ShareConsumers.java"
ALL_LOCKS = 2**31 - 1


class Holder:
    """One who holds leases without being a member of the group."""

    def __init__(self, assignment: list[SharePartition]) -> None:
        import threading

        self.assignment = assignment
        self.member_id = "bench"
        self.member_epoch = None
        self.lost = threading.Event()


@contextmanager
def stack(service: bool = False) -> Iterator[Settings]:
    """A stack of its own, ended and removed afterwards."""
    home = Path(tempfile.mkdtemp(prefix="sharequeue-bench-"))
    home.chmod(0o755)  # as root, Postgres runs as `nobody` and must get in
    try:
        environment = {**os.environ, "SHAREQUEUE_JARS": str(Settings.load().jars)}
        os.environ["SHAREQUEUE_JARS"] = environment["SHAREQUEUE_JARS"]
        up(home, lambda line: None, service=service, environment=environment)
        yield Settings.load(home)
    finally:
        down(home, lambda line: None)
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def session(settings: Settings) -> Iterator[SparkSession]:
    """The Spark session of the benchmark."""
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
    """A topic with so many records, spread evenly over its partitions, in log batches of at most so many bytes."""
    with Topics(settings, timeout=60) as topics:
        topics.create(topic, partitions, {"retention.ms": "-1"})
    producer = Producer(
        client_config(settings, linger_ms=50, queue_buffering_max_messages=200_000, enable_idempotence=True)
        | {"batch.size": batch_bytes, "delivery.report.only.error": True, "log_level": 3}
    )
    value = os.urandom(record_bytes)
    for number in range(records):
        while True:
            try:
                producer.produce(topic, value, partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0


def group_on(settings: Settings, topic: str) -> Holder:
    """A new group that stands at the first offset of a topic, and one who holds its leases. Not measured."""
    group = f"bench-{uuid.uuid4().hex[:10]}"
    with Database.open(settings) as database, Topics(settings) as topics:
        with database.transaction() as connection:
            connection.execute(
                sa.text("insert into sharequeue.share_groups (group_id) values (:group)"), {"group": group}
            )
        alter_group_configs(database, group, {"share.partition.max.record.locks": str(ALL_LOCKS)})
        info = topics.describe([topic])[topic]
        assignment = [SharePartition(group, topic, number) for number in range(info.partitions)]
        for share_partition in assignment:
            State(database).initialize(share_partition, info.topic_id, 0, 1)
    return Holder(assignment)


def leased_rounds(
    settings: Settings,
    spark: SparkSession,
    job: ShareGroupJob,
    holder: Holder,
    records: int,
    stages: dict[str, list[float]],
    rounds: int = 1,
) -> tuple[float, RunReport]:
    """Seconds of rounds of a job, and their report; where they went is put into `stages`."""
    reports: list[RunReport] = []
    with Database.open(settings) as database, Topics(settings) as topics:
        state = State(database)
        state.figures.describe(job.group)  # connected: a job's connection is there before its first lease
        taken = seconds(
            lambda: reports.append(
                run_rounds(
                    settings,
                    job,
                    membership=holder,
                    state=state,
                    topics=topics,
                    spark=spark,
                    max_rounds=rounds,
                    max_records=records,
                )
            )
        )
    (done,) = reports
    for stage, spent in done.stage_seconds.items():
        stages.setdefault(stage, []).append(spent)
    return taken, done


def broker_group(settings: Settings) -> str:
    """A new share group of the broker's own, configured to begin at the first offset."""
    group = f"broker-{uuid.uuid4().hex[:10]}"
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    admin = AdminClient(client_config(settings, log_level=3))
    admin.incremental_alter_configs([resource])[resource].result(30)
    return group


Work = Callable[[Any], None]
"""What a process of the peer does with the messages of a poll."""


def confluent_seconds(
    settings: Settings,
    topic: str,
    records: int,
    processes: int,
    work: Work | None = None,
    explicit: bool = False,
) -> float:
    """Seconds that so many processes of confluent-kafka's ShareConsumer take together, from the first record to the
    last that is acknowledged."""
    context = get_context("spawn")
    group, done = broker_group(settings), context.Value("q", 0)
    reported: Any = context.Queue()
    config = client_config(settings, group_id=group, log_level=3)
    config["share.acknowledgement.mode"] = "explicit" if explicit else "implicit"
    workers = [
        context.Process(target=_consume, args=(config, topic, records, done, reported, work, explicit))
        for _ in range(processes)
    ]
    for worker in workers:
        worker.start()
    spans = [reported.get(timeout=1800) for _ in workers]
    for worker in workers:
        worker.join()
    assert done.value >= records, f"{done.value} of {records} records"
    begun = [span for span in spans if span is not None]
    return float(max(end for _, end in begun) - min(begin for begin, _ in begun))


def _consume(
    config: dict[str, Any],
    topic: str,
    records: int,
    done: Any,
    reported: Any,
    work: Work | None,
    explicit: bool,
) -> None:
    consumer = ShareConsumer(config)
    consumer.subscribe([topic])
    begun = ended = None
    while done.value < records:
        messages = [message for message in consumer.poll(0.5) or [] if message.error() is None]
        if not messages:
            continue
        begun = begun or time.time()
        if work is not None:
            work(messages)
        if explicit:
            for message in messages:
                consumer.acknowledge(message)
        consumer.commit_async()
        ended = time.time()
        with done.get_lock():
            done.value += len(messages)
    if work is not None:
        work([])
        ended = time.time()
    consumer.commit_sync()
    consumer.close()
    reported.put(None if begun is None else (begun, ended))


def java_seconds(settings: Settings, topic: str, records: int, consumers: int) -> float:
    """The same by so many of Kafka's Java share consumers, a thread each, of one process."""
    jars = str(settings.jars / "broker" / "*")
    group = broker_group(settings)
    said = subprocess.run(
        [
            *("java", "-Xmx1g", "-cp", jars, str(JAVA_PEER), settings.bootstrap_servers, group),
            *(topic, str(records), str(consumers)),
        ],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    if said.returncode != 0:
        raise RuntimeError(f"the Java share consumers failed: {said.stderr[-2000:]}")
    return float(said.stdout.split()[-1])


def java_runs_sources() -> bool:
    """Whether this Java can run a source file: it is a JDK."""
    modules = subprocess.run(["java", "--list-modules"], capture_output=True, text=True, check=False)
    return "jdk.compiler@" in modules.stdout


def versions() -> str:
    """What the sides are made of."""
    from importlib.metadata import version

    kafka = next((Settings.load().jars / "broker").glob("kafka-clients-*.jar"), None)
    broker = kafka.stem.removeprefix("kafka-clients-") if kafka else "?"
    return f"PySpark {version('pyspark')}, confluent-kafka {version('confluent-kafka')}, Kafka {broker}"


def say(line: str) -> None:
    """What is being done, on the side."""
    print(line, file=sys.stderr, flush=True)
