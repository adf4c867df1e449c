"""What tests of the Spark side share: a group with share-partitions of its own, a member of it, records in
a topic."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from confluent_kafka import Producer

from sharequeue.database import Database
from sharequeue.groups.configs import alter_group_configs
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.topics import Topics
from sharequeue.settings import Settings
from sharequeue.state import State
from sharequeue.values import SharePartition, SharePartitionStatus

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sharequeue.spark.contract import Handler
    from sharequeue.spark.job import ShareGroupJob
    from sharequeue.spark.report import RunReport


@dataclass
class Holder:
    """One who holds leases without being a member of the group: the state takes it at its word."""

    assignment: list[SharePartition]
    member_id: str = "holder"
    member_epoch: int | None = None
    lost: threading.Event = field(default_factory=threading.Event)


def standing(state: State, group: str) -> list[SharePartitionStatus]:
    """Return every figure of a group, but for the time at which the service last looked at its logs: it goes on."""
    return [replace(status, observed_at=None) for status in state.figures.describe(group)]


def all_accepted(records: DataFrame) -> DataFrame:
    """Accept everything: the shortest handler there is."""
    from pyspark.sql import functions as fn

    return records.select("topic", "partition", "offset", "lease_id").withColumn("outcome", fn.lit("accept"))


def job_of(group: str, topic: str, handler: Handler, **changes: object) -> ShareGroupJob:
    """A job of a group on one topic, with a sink of its own, `sink-<group>`."""
    from sharequeue.spark.job import ShareGroupJob

    return ShareGroupJob(group=group, topics=(topic,), handler=handler, sink=f"sink-{group}", **changes)  # type: ignore[arg-type]


Produce = Callable[[str, int, Iterable[object]], None]
Assigned = Callable[..., Holder]
RunJob = Callable[..., "RunReport"]
MakeTable = Callable[[str], str]


@pytest.fixture
def produce(settings: Settings) -> Produce:
    """Give a function that puts values (text, bytes, None) into a partition of a topic and waits for the
    broker."""
    producer = Producer(client_config(settings, enable_idempotence=True) | {"log_level": 0})

    def send(topic: str, partition: int, values: Iterable[object]) -> None:
        for value in values:
            if len(producer) >= 50_000:
                producer.flush(30)  # a hundred thousand fill its queue
            data = value if value is None or isinstance(value, bytes) else str(value).encode()
            producer.produce(topic, data, key=f"key-{value}".encode(), partition=partition)
        assert producer.flush(30) == 0

    return send


@pytest.fixture
def assigned(database: Database, state: State, topics: Topics, group: str) -> Assigned:
    """Give a function that starts the group on topics from their first offset: `assigned(*topics,
    **configs)`."""

    def start(*names: str, **configs: str) -> Holder:
        with database.transaction() as connection:
            connection.execute(
                sa.text("insert into sharequeue.share_groups (group_id) values (:group)"), {"group": group}
            )
        given = {"share.partition.max.record.locks": str(2**31 - 1), "sharequeue.retry.backoff.ms": "0"}
        given |= {name.replace("_", "."): value for name, value in configs.items()}
        alter_group_configs(database, group, given)
        share_partitions = []
        for name, info in topics.describe(names).items():
            for partition in range(info.partitions):
                share_partition = SharePartition(group, name, partition)
                state.initialize(share_partition, info.topic_id, 0, 1)
                share_partitions.append(share_partition)
        return Holder(share_partitions)

    return start


@pytest.fixture
def make_table(database: Database, group: str) -> Iterator[MakeTable]:
    """Give a function that makes a table `accepted` of some columns, in a schema of this test alone."""
    schema = group.replace("-", "_")

    def make(columns: str) -> str:
        with database.transaction() as connection:
            connection.execute(sa.text(f"create schema {schema}"))
            connection.execute(sa.text(f"create table {schema}.accepted ({columns})"))
        return f"{schema}.accepted"

    yield make
    with database.transaction() as connection:
        connection.execute(sa.text(f"drop schema if exists {schema} cascade"))


@pytest.fixture
def output_settings(settings: Settings, tmp_path: Path) -> Settings:
    """Give the settings of the stack, with an output folder of this test alone."""
    return settings.replace(output=tmp_path / "output")


@pytest.fixture
def run_job(output_settings: Settings, state: State, topics: Topics, spark: SparkSession) -> RunJob:
    """Give a function that runs a job's rounds for a holder: `run_job(job, holder, **arguments of
    run_rounds)`."""
    from sharequeue.spark.run import run_rounds

    def run(job: ShareGroupJob, holder: Holder, **arguments: object) -> RunReport:
        given: dict[str, object] = {"state": state, "topics": topics, "spark": spark, **arguments}
        return run_rounds(output_settings, job, membership=holder, **given)  # type: ignore[arg-type]

    return run
