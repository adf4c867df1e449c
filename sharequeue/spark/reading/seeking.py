"""Choose the leased offsets that are sought one by one instead of scanned.

A broker sends whole log batches. A scan reads all of them, a seek only the one that has the offset. So if less than
one record in one or two log batches is wanted, seeking reads less. A seek also costs a request, about the time in
which a Spark task reads SEEK_RECORDS small records. This decision is made only here. Both ways read the same records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.kafka.clients import portable_config
from sharequeue.kafka.reading import SEEKING, RecordReader
from sharequeue.spark.arrow_types import arrow_schema
from sharequeue.spark.reading.offset_reader import Seeker
from sharequeue.spark.reading.options import ISOLATION, SEEK
from sharequeue.spark.reading.plan import NEAR, Segment, TopicPartition

SEEK_RECORDS = 2_000
"""Records that a task scans in the time of one seek."""
SAMPLES = 5
"""The number of wanted offsets whose log batches are measured."""
SAMPLE_SECONDS = 5.0
RANGES_A_TASK = 20
"""The fewest seeks that justify a separate task and its consumer."""
READ_OVER = 500
"""The most offsets between two wanted ones that a task reads over, because a seek takes longer."""


def sought(
    spark: SparkSession,
    settings: Settings,
    segments: Sequence[Segment],
    wanted: Mapping[TopicPartition, OffsetSet],
    options: Mapping[str, str],
    ours: Mapping[str, str],
) -> list[Segment]:
    """Return the segments to seek in. `options` are all options of the reader, `ours` those that the user did not
    set.

    Without a choice by the user, a seek counts as SEEK_RECORDS records, or as two log batches if these are larger.
    The batches are measured in the longest segment, and only if a scan would be slower at SEEK_RECORDS. Nothing is
    sought with options of the Kafka client that only the connector understands, nor on a cluster, unless the user
    chooses `auto` there: its executors may lack confluent-kafka.
    """
    local = str(spark.sparkContext.master).startswith("local")
    choice = options.get(SEEK, "auto" if local else "never")
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
    return [segment for segment in found if sparse(segment, max(SEEK_RECORDS, 2 * batch))]


def batch_records(settings: Settings, isolation_level: str, segment: Segment, wanted: OffsetSet) -> float:
    """Return the approximate number of records in a log batch, measured at some wanted records.

    Return infinity if nothing is received: the scan then reports the error.
    """
    firsts = wanted.bounds[:: max(1, wanted.range_count // SAMPLES), 0][:SAMPLES].tolist()
    config = {name.replace(".", "_"): value for name, value in SEEKING.items()}
    counts = []
    with RecordReader(settings, isolation_level, **config) as reader:
        for first in firsts:
            found = reader.sample(segment.topic, segment.partition, first, 100_000, SAMPLE_SECONDS)
            if not found:
                break
            counts.append(len(found))
    # The wanted record may be anywhere in its batch: on average half of the batch follows it.
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
    """Return the records of a table of ranges, which the tasks seek. `options` are the connector's."""
    wanted = runs.sort_by([("r_topic", "ascending"), ("r_partition", "ascending"), ("r_first", "ascending")])
    tasks = max(1, min(spark.sparkContext.defaultParallelism, -(-wanted.num_rows // RANGES_A_TASK)))
    config: dict[str, Any] = {**portable_config(settings), "isolation.level": options[ISOLATION]}
    seconds = int(options["kafkaConsumer.pollTimeoutMs"]) / 1000
    columns = arrow_schema(cast("StructType", StructType.fromDDL(schema)))
    seeker = Seeker(config, wanted, tasks, columns, headers=headers, near=READ_OVER, seconds=seconds)
    return spark.range(0, tasks, 1, tasks).mapInArrow(seeker, schema)
