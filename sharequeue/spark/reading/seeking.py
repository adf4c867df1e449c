"""Which leased offsets are sought one by one, instead of being scanned for?

A broker gives out whole log batches. A scan reads all of them, a seek the one that has the offset. So where less than
one record in a log batch or two is wanted, seeking reads less. What a seek costs besides is a request, about the time
in which a task of Spark reads SEEK_RECORDS small records. This is the one place where that is decided. What is read
is the same either way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from sharequeue.kafka.clients import portable_config
from sharequeue.offsets import OffsetSet
from sharequeue.settings import Settings
from sharequeue.spark.reading.levels import ISOLATION
from sharequeue.spark.reading.plan import NEAR, Segment, TopicPartition
from sharequeue.spark.reading.seeker import CONSUMER, Probe, Seeker

SEEK_RECORDS = 2_000
"""Records that a task scans in the time of one seek."""
SAMPLES = 5
"""Wanted offsets whose log batches are measured."""
SAMPLE_SECONDS = 5.0
RANGES_A_TASK = 20
"""Fewer are not worth a task, and its consumer, of their own."""
SEEK = "sharequeue.seek"
"""The reader's option that forces or forbids seeking."""
CHOICES = ("auto", "always", "never")
READ_OVER = 500
"""Offsets between two wanted ones that a task reads over: a seek takes longer."""
PROBE_SECONDS = 5.0
_ABLE: dict[tuple[str, str], bool] = {}
"""What the executors of an application have answered, for the brokers of these addresses."""


def check_choice(options: Mapping[str, str]) -> None:
    """Raise ValueError where the options have a choice that is none."""
    if (choice := options.get(SEEK, "auto")) not in CHOICES:
        raise ValueError(f"{SEEK} is {choice!r}: expected one of {', '.join(CHOICES)}")


def sought(
    spark: SparkSession,
    settings: Settings,
    segments: Sequence[Segment],
    wanted: Mapping[TopicPartition, OffsetSet],
    options: Mapping[str, str],
    ours: Mapping[str, str],
) -> list[Segment]:
    """Return the segments to seek in. `options` are all that the reader gets, `ours` those that are no user's.

    Where nobody chose, a seek counts as SEEK_RECORDS records, or as two log batches where these are larger. They are
    measured in the longest segment, and only where a scan would lose at SEEK_RECORDS. Then nothing is sought on a
    cluster whose executors cannot, and nothing with options of the Kafka client that only the connector understands.
    """
    choice = options.get(SEEK, "auto")
    if choice != "auto":
        return list(segments) if choice == "always" else []
    known = (*ours, ISOLATION)
    if any(name.startswith("kafka.") and name not in known for name in options):
        return []

    def inside(segment: Segment) -> OffsetSet:
        return wanted[segment.topic, segment.partition] & OffsetSet.of((segment.first, segment.end))

    def sparse(segment: Segment, a_seek: float) -> bool:
        offsets = inside(segment)
        return NEAR + offsets.range_count * a_seek + offsets.count < segment.end - segment.first

    found = [segment for segment in segments if sparse(segment, SEEK_RECORDS)]
    if not found:
        return []
    longest = max(found, key=lambda segment: segment.end - segment.first)
    batch = batch_records(settings, options[ISOLATION], longest, inside(longest))
    found = [segment for segment in found if sparse(segment, max(SEEK_RECORDS, 2 * batch))]
    return found if found and tasks_can_seek(spark, settings, longest.topic) else []


def tasks_can_seek(spark: SparkSession, settings: Settings, topic: str) -> bool:
    """Return whether Spark's tasks can seek, as far as one knows.

    On this machine they can what the driver can. The executors of a cluster are asked, once for each application, by
    as many tasks as there are cores; those that come later are taken to be like them. Where Python cannot be started
    there at all, the answer is no.
    """
    if str(spark.sparkContext.master).startswith("local"):
        return True
    asked = spark.sparkContext.applicationId, settings.bootstrap_servers
    if asked not in _ABLE:
        tasks = spark.sparkContext.defaultParallelism
        probe = Probe(portable_config(settings), topic, PROBE_SECONDS)
        try:
            _ABLE[asked] = all(spark.sparkContext.parallelize(range(tasks), tasks).map(probe).collect())
        except (Py4JJavaError, PySparkException):
            _ABLE[asked] = False
    return _ABLE[asked]


def batch_records(settings: Settings, isolation_level: str, segment: Segment, wanted: OffsetSet) -> float:
    """Return about how many records a log batch has, by what comes with some wanted records.

    Infinitely many where nothing comes: the scan then says what is wrong.
    """
    firsts = wanted.bounds[:: max(1, wanted.range_count // SAMPLES), 0][:SAMPLES].tolist()
    consumer = Consumer({**portable_config(settings), **CONSUMER, "isolation.level": isolation_level})
    try:
        counts = []
        for first in firsts:
            consumer.assign([Place(segment.topic, segment.partition, first)])
            if consumer.poll(SAMPLE_SECONDS) is None:
                break
            counts.append(1 + len(consumer.consume(100_000, timeout=0)))
    finally:
        consumer.close()
    # The wanted record lies anywhere in its batch: what comes is half of it on average.
    return 2 * float(np.mean(counts)) if counts else math.inf


def seek_records(
    spark: SparkSession,
    settings: Settings,
    runs: pa.Table,
    options: Mapping[str, str],
    *,
    headers: bool,
    schema: str,
) -> DataFrame:
    """Return the records of some ranges, a row of a table each, which tasks seek. `options` are the connector's."""
    wanted = runs.sort_by([("r_topic", "ascending"), ("r_partition", "ascending"), ("r_first", "ascending")])
    tasks = max(1, min(spark.sparkContext.defaultParallelism, -(-wanted.num_rows // RANGES_A_TASK)))
    config: dict[str, Any] = {**portable_config(settings), "isolation.level": options[ISOLATION]}
    seconds = int(options["kafkaConsumer.pollTimeoutMs"]) / 1000
    seeker = Seeker(config, wanted, tasks, headers=headers, near=READ_OVER, seconds=seconds)
    return spark.range(0, tasks, 1, tasks).mapInArrow(seeker, schema)
