"""Read exactly the records of leases into one DataFrame.

Spark's own connector reads the scans that `plan.py` chose. Offsets that a scan reads without a lease are filtered out
here. Records that the connector cannot represent are read by `by_offset.py` instead. Each record gets its delivery
count and lease id (`labels.py`). A retried or speculative task reads the same records, because the ranges are fixed
in the leases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import StructType

from sharequeue.deadletters.redrive.selection import REDRIVE_GROUP
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import Lease
from sharequeue.kafka.clients import spark_options
from sharequeue.spark.arrow_types import arrow_schema
from sharequeue.spark.reading.by_offset import records_by_offset
from sharequeue.spark.reading.labels import Leased, covered, labelled_alike, ranges_in
from sharequeue.spark.reading.options import (
    FETCH_BYTES,
    ISOLATION,
    READER_OPTIONS,
    SMALL_FETCH_BYTES,
    SMALL_SCAN,
)
from sharequeue.spark.reading.plan import Scan, plan_scans
from sharequeue.spark.sql_texts import select_texts

RECORD_SCHEMA = (
    "topic string, partition int, offset long, timestamp timestamp_ltz, timestamp_type int, key binary, value binary,"
    " headers array<struct<key:string,value:binary>>, delivery_count int, lease_id long"
)
"""The columns of a DataFrame of leased records, in DDL."""

_YEAR = "(year(timestamp) - if(month(timestamp) < 3, 1, 0))"
"""The year, from March to February: a leap day is its last one."""
_AS_WRITTEN = (
    "if(timestamp >= timestamp'1582-10-15 00:00:00Z', timestamp, timestamp + "
    f"make_dt_interval(cast(floor({_YEAR} / 100) - floor({_YEAR} / 400) - 2 as int)))"
)
"""The timestamp that the record has. Spark's connector reads one before 1582 as a day of the Julian calendar: year 1
becomes two days later.
"""


def no_records(spark: SparkSession) -> DataFrame:
    """Return an empty DataFrame with the columns of leased records."""
    schema = cast("StructType", StructType.fromDDL(RECORD_SCHEMA))
    return spark.createDataFrame(arrow_schema(schema).empty_table(), schema)


def leased_records(
    spark: SparkSession,
    settings: Settings,
    leases: Sequence[Lease],
    *,
    options: Mapping[str, str] | None = None,
    headers: bool = True,
    pass_over: bool = False,
    by_offset: bool = False,
) -> DataFrame:
    """Return the records of the leases: `topic, partition, offset, timestamp, timestamp_type, key, value, headers,
    delivery_count, lease_id`.

    Nothing is read before an action. Offsets that are not in the log have no row. Each lease is read at its own
    isolation level. `options` are the connector's; they override our own. With `pass_over`, records redriven for
    another share group only are left out. With `by_offset` nothing is scanned. Raises ValueError without a lease.
    """
    frames = []
    for level in sorted({lease.isolation_level for lease in leases}):
        some = [lease for lease in leases if lease.isolation_level == level]
        given = {
            "includeHeaders": str(headers or pass_over).lower(),
            **(options or {}),
            ISOLATION: level,
        }
        frames += _records(spark, settings, some, given, headers, pass_over, by_offset)
    if not frames:
        raise ValueError("there is nothing to read: no lease, or leases without offsets")
    return reduce(DataFrame.unionByName, frames)


def _records(
    spark: SparkSession,
    settings: Settings,
    leases: Sequence[Lease],
    given: Mapping[str, str],
    headers: bool,
    pass_over: bool,
    by_offset: bool,
) -> list[DataFrame]:
    """Return the records of leases with the same isolation level, a DataFrame for scans that are labelled alike."""
    pieces = [
        Leased(
            lease.share_partition.topic,
            lease.share_partition.partition,
            lease.lease_id,
            delivery.delivery_count,
            delivery.offsets,
        )
        for lease in leases
        for delivery in lease.deliveries
    ]
    scans = plan_scans(covered(pieces))
    group = leases[0].share_partition.group_id
    if by_offset and scans:
        segments = [segment for scan in scans for segment in scan.segments]
        read = _by_offset(spark, settings, ranges_in(segments, pieces), given, headers=headers or pass_over)
        records = not_for_others(read, group) if pass_over else read
        given_columns = _columns("timestamp", "timestamp_type", headers)
        return [select_texts(records, *given_columns, "delivery_count", "lease_id")]
    frames = []
    for alike, labels in labelled_alike(scans, pieces):
        records = scan_records(spark, settings, alike, given)
        records = not_for_others(records, group) if pass_over else records
        columns = _columns(f"{_AS_WRITTEN} as timestamp", "timestampType as timestamp_type", headers)
        frames.append(labels.on(records, columns))
    return frames


def scan_records(
    spark: SparkSession, settings: Settings, scans: Sequence[Scan], options: Mapping[str, str]
) -> DataFrame:
    """Return the rows that the connector reads for some scans, as it reads them. `options` override our own.

    The caller must find data loss by comparing the log start with what was read: the connector's own check fails the
    whole job when retention has taken one record.
    """
    given = {"failOnDataLoss": "false", **spark_options(settings), **READER_OPTIONS, **options}
    reader = spark.read.format("kafka").options(**given)

    def load(scan: Scan) -> DataFrame:
        largest = max(segment.records for segment in scan.segments)
        small = largest <= SMALL_SCAN and FETCH_BYTES not in options
        fetched = SMALL_FETCH_BYTES if small else given[FETCH_BYTES]
        return reader.options(**scan.options(), **{FETCH_BYTES: fetched}).load()

    return reduce(DataFrame.union, map(load, scans))


def segments_by_offset(
    spark: SparkSession, settings: Settings, scan: Scan, options: Mapping[str, str], *, headers: bool
) -> DataFrame:
    """Return the records of a scan's segments, read by offset: for those that the connector cannot represent."""
    pieces = [
        Leased(each.topic, each.partition, 0, 0, OffsetSet.of((each.first, each.end)))
        for each in scan.segments
    ]
    return _by_offset(spark, settings, ranges_in(scan.segments, pieces), options, headers=headers)


def _by_offset(
    spark: SparkSession, settings: Settings, ranges: pa.Table, options: Mapping[str, str], *, headers: bool
) -> DataFrame:
    return records_by_offset(spark, settings, ranges, options, headers=headers, schema=RECORD_SCHEMA)


def not_for_others(records: DataFrame, group: str) -> DataFrame:
    """Filter out records that a redrive sent for another share group only. Needs the headers."""
    wanted = fn.lit(group).cast("binary")
    other = fn.exists("headers", lambda h: (h["key"] == REDRIVE_GROUP) & (h["value"] != wanted))
    return records.filter(~fn.coalesce(other, fn.lit(False)))


def _columns(timestamp: str, kind: str, headers: bool) -> tuple[str, ...]:
    """Return the columns of records before their labels, in SQL: one call to the JVM instead of a dozen."""
    # The column also exists without headers, so that a handler's plan does not depend on the switch.
    empty = "cast(null as array<struct<key:string,value:binary>>) as headers"
    return ("topic", "partition", "offset", timestamp, kind, "key", "value", "headers" if headers else empty)
