"""A pipeline for tests that disturb its runs, its records, and what is to be in its output."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.groups.configs import alter_group_configs
from sharequeue.kafka.clients import client_config
from sharequeue.outputs.manifest import read_manifest
from sharequeue.state import State

RECORDS, PARTITIONS = 600, 2
PIPELINE = """
from pyspark.sql import functions as fn
from sharequeue.spark import pipeline

@pipeline(group="{name}", topics=["{name}"], sink="{name}")
def work(records):
    nap = fn.expr("java_method('java.lang.Thread', 'sleep', 20L)")
    named = records.select("topic", "partition", "offset", "lease_id")
    return named.withColumn("nap", nap.cast("string")).withColumn("outcome", fn.lit("accept"))
"""
"""Each record takes a while."""


def fill(settings: Settings, name: str) -> None:
    """Make a topic with records, and a group that begins at the first."""
    client = client_config(settings)
    admin = AdminClient(client)
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(60)
    producer = Producer(client | {"log_level": 0})
    for number in range(RECORDS):
        producer.produce(name, b"x", partition=number % PARTITIONS)
    assert producer.flush(60) == 0
    with Database.open(settings) as database:
        alter_group_configs(
            database, name, {"share.auto.offset.reset": "earliest", "sharequeue.retry.backoff.ms": 0}
        )


def drained(start: Callable[[], subprocess.Popen[bytes]], log: Path) -> int:
    """Run again until nothing is left; return how often. Who could not leave its group keeps its share-partitions
    until its session ends: what is in these is left to a later run, which the run says (exit code 3)."""
    for runs in range(1, 20):
        code = start().wait(240)
        if code == 0:
            return runs
        said = log.read_text()
        assert code == 3, said[-4000:]
        assert "assigned to other members" in said or "leased by other members" in said, said[-4000:]
    raise AssertionError(log.read_text()[-4000:])


def rows_of(folder: Path) -> Counter[tuple[int, int]]:
    """How often each record, by partition and offset, is in the files of a folder."""
    found: Counter[tuple[int, int]] = Counter()
    for file in folder.rglob("*.parquet"):
        table: Any = pq.read_table(file, columns=["partition", "offset"])
        found.update(zip(*(column.to_pylist() for column in table.columns), strict=True))
    return found


def rows_by_manifest(database: Database, name: str) -> Counter[tuple[int, int]]:
    """How often each record is in the files that count."""
    found: Counter[tuple[int, int]] = Counter()
    for folder in read_manifest(State(database), name, name):
        found.update(rows_of(Path(folder.removeprefix("file://"))))
    return found


def all_once() -> Counter[tuple[int, int]]:
    """Every record, once."""
    return Counter((n % PARTITIONS, n // PARTITIONS) for n in range(RECORDS))
