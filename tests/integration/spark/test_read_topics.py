"""Topics of every kind in one group: many partitions, holes left by compaction, records of a mebibyte, both sorts of
timestamp. Transactions are in `test_gaps.py`, retention in `test_changing_logs.py`."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.topics import Topics
from sharequeue.outputs.manifest import read_manifest
from sharequeue.spark.job import ShareGroupJob
from sharequeue.spark.reading.options import ReaderOptions
from sharequeue.spark.reading.plan import Scan, Segment
from sharequeue.spark.reading.source import TopicSource
from sharequeue.state import State
from tests.fixtures.pipelines import Assigned, Produce, RunJob
from tests.fixtures.stack import MakeTopic
from tests.leases import lease_of
from tests.waiting import PATIENCE_S

MANY = 200
KEYS = 100
MEBIBYTE = 2**20
LONG_AGO_MS = 1_357_035_300_000


def described(records: DataFrame) -> DataFrame:
    """Accept everything, and keep what a record is known by."""
    return records.select(
        *("topic", "partition", "offset", "lease_id", "delivery_count", "timestamp", "timestamp_type"),
        fn.col("key").cast("string").alias("key"),
        fn.length("value").alias("length"),
        fn.md5("value").alias("md5"),
        fn.lit("accept").alias("outcome"),
    )


@pytest.mark.slow
@pytest.mark.deep
def test_one_run_processes_topics_of_every_kind(
    group: str,
    make_topic: MakeTopic,
    assigned: Assigned,
    run_job: RunJob,
    settings: Settings,
    state: State,
) -> None:
    """One run leases three topics: 200 partitions of which every other has a record, a compacted log with a hole at
    every other offset, and a log with its own timestamps and records of a mebibyte, one of them without key or value.
    Each record that is there is read once and whole; each that is not there is a gap; all is drained."""
    many, large = (
        make_topic(MANY),
        make_topic(1, message_timestamp_type="LogAppendTime", max_message_bytes="2097152"),
    )
    with quick_cleaner(settings):
        compacted = _compacted(settings, make_topic)
        producer = Producer(client_config(settings, message_max_bytes=2 * MEBIBYTE))
        for partition in range(0, MANY, 2):
            producer.produce(many, f"of {partition}".encode(), partition=partition, timestamp=LONG_AGO_MS)
        values = [bytes([number]) * MEBIBYTE for number in range(3)]
        for value in values:
            producer.produce(large, value, key=b"large", timestamp=LONG_AGO_MS)
        producer.produce(large, None, None, timestamp=LONG_AGO_MS)
        assert producer.flush(PATIENCE_S) == 0
        kept = _until_compacted(settings, compacted)
    topics = (many, compacted, large)
    job = ShareGroupJob(group, topics, described, f"sink-{group}", headers=False)
    report = run_job(job, assigned(*topics))

    assert report.drained
    assert (report.accepted, report.gaps, report.without_row, report.lost) == (
        MANY // 2 + len(kept) + 4,
        KEYS // 2,
        0,
        0,
    )
    statuses = state.figures.describe(group)
    assert len(statuses) == MANY + 2
    assert sum(status.lag + status.acquired for status in statuses) == 0
    rows = _output(state, group)
    places = Counter((row["topic"], row["partition"], row["offset"]) for row in rows)
    assert places == dict.fromkeys(
        [
            *((many, partition, 0) for partition in range(0, MANY, 2)),
            *((compacted, 0, offset) for offset in kept),
            *((large, 0, offset) for offset in range(4)),
        ],
        1,
    )
    of_large = sorted((row for row in rows if row["topic"] == large), key=lambda row: row["offset"])
    digests = [hashlib.md5(value, usedforsecurity=False).hexdigest() for value in values]
    assert [(row["length"], row["md5"]) for row in of_large] == [
        *((MEBIBYTE, digest) for digest in digests),
        (None, None),
    ]
    assert [row["key"] for row in of_large] == ["large"] * 3 + [None]
    # The broker's own time where the topic says so, the producer's elsewhere.
    assert {row["timestamp_type"] for row in of_large} == {1}
    assert all(time.time() - row["timestamp"].timestamp() < 3600 for row in of_large)
    created = [row for row in rows if row["topic"] == many]
    assert {(row["timestamp_type"], row["timestamp"].timestamp()) for row in created} == {
        (0, LONG_AGO_MS / 1000)
    }


def test_reader_options_do_not_apply_to_the_search_for_gaps(
    spark: SparkSession,
    settings: Settings,
    state: State,
    topics: Topics,
    make_topic: MakeTopic,
    produce: Produce,
) -> None:
    """A lease is read in as many tasks as the caller wants; the read that looks for missing offsets is ours."""
    topic = make_topic(1)
    produce(topic, 0, range(10))
    lease = lease_of(81, topic, 0, (1, OffsetSet.of((0, 10))))
    source = TopicSource(settings, state, topics, spark, ReaderOptions.of({"minPartitions": 5}))
    again = source.scanned(Scan((Segment(topic, 0, 0, 10),)), "read_committed")
    read = source.records([lease])
    assert (read.rdd.getNumPartitions(), again.rdd.getNumPartitions()) == (5, 1)
    assert (read.count(), again.count()) == (10, 10)


@contextmanager
def quick_cleaner(settings: Settings) -> Iterator[None]:
    """Have the broker look for logs to compact ten times a second, not every fifteen seconds."""
    admin = AdminClient(client_config(settings))

    def set_to(operation: AlterConfigOpType, value: str | None) -> None:
        entry = ConfigEntry("log.cleaner.backoff.ms", value, incremental_operation=operation)
        for broker in admin.list_topics(timeout=PATIENCE_S).brokers:
            resource = ConfigResource(ResourceType.BROKER, str(broker), incremental_configs=[entry])
            admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)

    set_to(AlterConfigOpType.SET, "100")
    try:
        yield
    finally:
        set_to(AlterConfigOpType.DELETE, None)


def _compacted(settings: Settings, make_topic: MakeTopic) -> str:
    """A log in which every other one of the first hundred records is superseded by a later one."""
    topic = make_topic(
        1,
        cleanup_policy="compact",
        segment_ms="100",
        min_cleanable_dirty_ratio="0.0",
        max_compaction_lag_ms="100",
    )
    producer = Producer(client_config(settings))
    for keys in (range(KEYS), range(0, KEYS, 2)):
        for key in keys:
            producer.produce(topic, b"value", key=str(key).encode())
        assert producer.flush(PATIENCE_S) == 0
    return topic


def _until_compacted(settings: Settings, topic: str) -> list[int]:
    """The offsets that are left; what is appended meanwhile rolls the segment, which is not compacted while it is
    the active one."""
    producer = Producer(client_config(settings))
    deadline = time.monotonic() + PATIENCE_S
    while True:
        left = _offsets(settings, topic)
        if not set(range(0, KEYS, 2)) & set(left):
            return left
        assert time.monotonic() < deadline, f"not compacted: {left}"
        producer.produce(topic, b"value", key=f"rolls-{time.monotonic_ns()}".encode())
        assert producer.flush(PATIENCE_S) == 0
        time.sleep(0.2)


def _offsets(settings: Settings, topic: str) -> list[int]:
    consumer = Consumer(client_config(settings, group_id="none", enable_partition_eof=True))
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[int] = []
        while (message := consumer.poll(PATIENCE_S)) is not None and message.error() is None:
            offset = message.offset()
            assert offset is not None
            found.append(offset)
        return found
    finally:
        consumer.close()


def _output(state: State, group: str) -> list[dict[str, Any]]:
    tables = [pq.read_table(folder) for folder in read_manifest(state, group, f"sink-{group}")]
    rows: list[dict[str, Any]] = pa.concat_tables(tables, promote_options="default").to_pylist()
    return rows
