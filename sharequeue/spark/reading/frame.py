"""Read exactly the records of leases into one DataFrame.

Spark's own connector reads the scans that `plan.py` chose. Offsets that a scan reads without a lease are filtered out
here. Records that the connector cannot represent are read by `by_offset.py` instead. Each record gets its delivery
count and lease id. If a whole scan is leased, or only few offsets of it, these are looked up in a constant map.
Otherwise they come from a broadcast join with the leased ranges. The ranges are cut into buckets of offsets, which
makes it an equi-join: single offsets far apart are found as fast as one range. A retried or speculative task reads
the same records, because the ranges are fixed in the leases.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import StructType

from sharequeue.deadletters.redrive.selection import REDRIVE_GROUP
from sharequeue.domain.offsets import OffsetSet, RangeBounds
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import Lease
from sharequeue.kafka.clients import spark_options
from sharequeue.spark.arrow_types import arrow_schema
from sharequeue.spark.reading.by_offset import records_by_offset
from sharequeue.spark.reading.options import ISOLATION, READER_OPTIONS
from sharequeue.spark.reading.plan import Scan, Segment, TopicPartition, plan_scans

MOST_CONSTANTS = 32
"""The most topic-partitions, or offsets, that are looked up in a map, one after the other; more use the join."""
FEW_RECORDS = 100_000
"""The most offsets of a scan that looks up by offset: beyond that the join is faster for each record."""
MOST_BUCKETS = 200_000
"""The target number of broadcast rows; with more ranges than that, each takes two."""

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
_BEFORE, _AFTER = ("topic", "partition", "offset", "timestamp"), ("key", "value")


@dataclass(frozen=True, slots=True)
class Leased:
    """Offsets of one topic-partition with the same lease and delivery count."""

    topic: str
    partition: int
    lease_id: int
    delivery_count: int
    offsets: OffsetSet


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
    isolation level. `options` are the connector's; they override READER_OPTIONS. With `pass_over`, records redriven
    for another share group only are left out. With `by_offset` nothing is scanned. Raises ValueError without a lease.
    """
    frames = []
    for level in sorted({lease.isolation_level for lease in leases}):
        some = [lease for lease in leases if lease.isolation_level == level]
        given = {
            **READER_OPTIONS,
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
    """Return the records of leases with the same isolation level, from one DataFrame for each scan."""
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
        read = _by_offset(spark, settings, _runs(segments, pieces), given, headers=headers or pass_over)
        records = not_for_others(read, group) if pass_over else read
        return [_typed(records, headers, "timestamp_type", "delivery_count", "lease_id")]
    frames = []
    for alike in _alike(scans, pieces):
        records = scan_records(spark, settings, alike, given)
        records = not_for_others(records, group) if pass_over else records
        some = [segment for scan in alike for segment in scan.segments]
        frames.append(_labelled(spark, _typed(records, headers), some, pieces))
    return frames


def scan_records(
    spark: SparkSession, settings: Settings, scans: Sequence[Scan], options: Mapping[str, str]
) -> DataFrame:
    """Return the rows that the connector reads for some scans, with the connector's column names.

    The caller must find data loss by comparing the log start with what was read: the connector's own check fails the
    whole job when retention has taken one record.
    """
    reader = spark.read.format("kafka").option("failOnDataLoss", "false")
    reader = reader.options(**{**spark_options(settings), **options})
    records = reduce(DataFrame.union, [reader.options(**scan.options()).load() for scan in scans])
    return records.withColumn("timestamp", fn.expr(_AS_WRITTEN))


def segments_by_offset(
    spark: SparkSession, settings: Settings, scan: Scan, options: Mapping[str, str], *, headers: bool
) -> DataFrame:
    """Return the records of a scan's segments, read by offset: for those that the connector cannot represent."""
    pieces = [
        Leased(each.topic, each.partition, 0, 0, OffsetSet.of((each.first, each.end)))
        for each in scan.segments
    ]
    return _by_offset(spark, settings, _runs(scan.segments, pieces), options, headers=headers)


def _by_offset(
    spark: SparkSession, settings: Settings, runs: pa.Table, options: Mapping[str, str], *, headers: bool
) -> DataFrame:
    return records_by_offset(spark, settings, runs, options, headers=headers, schema=RECORD_SCHEMA)


def not_for_others(records: DataFrame, group: str) -> DataFrame:
    """Filter out records that a redrive sent for another share group only. Needs the headers."""
    wanted = fn.lit(group).cast("binary")
    other = fn.exists("headers", lambda h: (h["key"] == REDRIVE_GROUP) & (h["value"] != wanted))
    return records.filter(~fn.coalesce(other, fn.lit(False)))


def covered(pieces: Iterable[Leased]) -> dict[TopicPartition, OffsetSet]:
    """Return the leased offsets of each topic-partition, over all leases and delivery counts."""
    return {
        at: OffsetSet.union(piece.offsets for piece in some) for at, some in _by_partition(pieces).items()
    }


def _by_partition(pieces: Iterable[Leased]) -> dict[TopicPartition, list[Leased]]:
    found: dict[TopicPartition, list[Leased]] = {}
    for piece in pieces:
        if piece.offsets:
            found.setdefault((piece.topic, piece.partition), []).append(piece)
    return found


def _typed(
    records: DataFrame, headers: bool, kind: str = "timestampType as timestamp_type", *more: str
) -> DataFrame:
    # The column also exists without headers, so that a handler's plan does not depend on the switch. In SQL, here and
    # below: one JVM call instead of a dozen.
    empty = "cast(null as array<struct<key:string,value:binary>>) as headers"
    return records.selectExpr(*_BEFORE, kind, *_AFTER, "headers" if headers else empty, *more)


def _alike(scans: Sequence[Scan], pieces: Sequence[Leased]) -> list[list[Scan]]:
    """Group the scans whose records are labelled in the same way: each further column of each scan costs the driver
    more than the scan.
    """

    def way(some: Sequence[Scan]) -> str:
        segments = [segment for scan in some for segment in scan.segments]
        if _sole_owners(segments, pieces) is not None:
            return "by owner"
        return "by join" if _few(segments, pieces) is None else "by offset"

    groups: list[list[Scan]] = []
    for scan in scans:
        ways = ((group, way(group)) for group in groups)
        same = (group for group, found in ways if found == way([scan]) == way([*group, scan]))
        if (group := next(same, None)) is None:
            groups.append([scan])
        else:
            group.append(scan)
    return groups


def _labelled(
    spark: SparkSession, records: DataFrame, segments: Sequence[Segment], pieces: Sequence[Leased]
) -> DataFrame:
    owners = _sole_owners(segments, pieces)
    if owners is not None:
        counts = {at: piece.delivery_count for at, piece in owners.items()}
        ids = {at: piece.lease_id for at, piece in owners.items()}
        labels = f"{_by_topic(counts, 'int')} as delivery_count", f"{_by_topic(ids, 'bigint')} as lease_id"
        return records.selectExpr("*", *labels)
    few = _few(segments, pieces)
    return _joined(spark, records, segments, pieces) if few is None else _looked_up(records, few)


def _sole_owners(
    segments: Sequence[Segment], pieces: Sequence[Leased]
) -> dict[TopicPartition, Leased] | None:
    """Return the single lease and delivery count of each topic-partition; None if one has several, or if a segment
    has holes.
    """
    if len({(segment.topic, segment.partition) for segment in segments}) > MOST_CONSTANTS:
        return None
    there = _by_partition(pieces)
    owners: dict[TopicPartition, Leased] = {}
    for segment in segments:
        whole = OffsetSet.of((segment.first, segment.end))
        at = (segment.topic, segment.partition)
        owner = next((piece for piece in there.get(at, ()) if not whole - piece.offsets), None)
        if owner is None or owners.setdefault(at, owner) is not owner:
            return None
    return owners


def _by_topic(values: Mapping[TopicPartition, int], kind: str) -> str:
    """Return an SQL expression for a value by topic and partition."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), value in values.items():
        topics.setdefault(topic, {})[str(partition)] = value
    if len(topics) == 1:
        return mapped(topics.popitem()[1], "partition", kind)
    cases = (
        f"when '{topic}' then {mapped(of_topic, 'partition', kind)}" for topic, of_topic in topics.items()
    )
    return f"case topic {' '.join(cases)} end"


def mapped(values: Mapping[str, int], key: str, kind: str, suffix: str = "") -> str:
    """Return an SQL expression for the value of a key, null for other keys; `suffix` is that of the keys' literals.

    A number in an expression becomes part of the code that Spark generates, and each round has other lease ids, so
    Spark would compile every stage again in every round. A map is passed to the generated code, which stays the same.
    """
    entries = ", ".join(f"{each}{suffix}, cast({value} as {kind})" for each, value in values.items())
    return f"map({entries})[{key}]"


def _few(segments: Sequence[Segment], pieces: Sequence[Leased]) -> dict[tuple[int, int], Leased] | None:
    """Return the leased partitions and offsets of a small scan of one topic; None if there are many."""
    if (
        len({segment.topic for segment in segments}) > 1
        or sum(segment.records for segment in segments) > FEW_RECORDS
    ):
        return None
    there = _by_partition(pieces)
    found: dict[tuple[int, int], Leased] = {}
    for segment in segments:
        whole = OffsetSet.of((segment.first, segment.end))
        for piece in there.get((segment.topic, segment.partition), ()):
            inside = piece.offsets & whole
            if len(found) + inside.count > MOST_CONSTANTS:
                return None
            for first, end in inside.ranges:
                found |= {(segment.partition, offset): piece for offset in range(first, end)}
    return found


def _looked_up(records: DataFrame, few: Mapping[tuple[int, int], Leased]) -> DataFrame:
    key = _bucket_key("offset", "partition")
    keys = {at: _bucket_key(f"{at[1]}L", str(at[0])) for at in few}
    counts = mapped({keys[at]: piece.delivery_count for at, piece in few.items()}, key, "int")
    ids = mapped({keys[at]: piece.lease_id for at, piece in few.items()}, key, "bigint")
    labelled = records.selectExpr("*", f"{counts} as delivery_count", f"{ids} as lease_id")
    return labelled.filter("lease_id is not null")


def _joined(
    spark: SparkSession, records: DataFrame, segments: Sequence[Segment], pieces: Sequence[Leased]
) -> DataFrame:
    more = ["topic = r_topic"] if len({each.topic for each in segments}) > 1 else []
    joined = in_runs(spark, records, _runs(segments, pieces), "partition", *more)
    return joined.selectExpr(*records.columns, "r_delivery_count as delivery_count", "r_lease_id as lease_id")


def in_runs(spark: SparkSession, records: DataFrame, runs: pa.Table, key: str, *more: str) -> DataFrame:
    """Return the records at the offsets of ranges that have the same `key`, a whole number, with the ranges' columns.

    The ranges have `r_first, r_last` and the key with the prefix `r_`; `more` are further conditions.
    """
    width = _bucket_exponent(runs)
    within = f"explode(sequence(shiftright(r_first, {width}), shiftright(r_last, {width}))) as bucket"
    buckets = (
        spark.createDataFrame(runs)
        .selectExpr("*", within)
        .selectExpr("*", f"{_bucket_key('bucket', f'r_{key}')} as r_key")
    )
    matches = [
        f"{_bucket_key(f'shiftright(offset, {width})', key)} = r_key",
        f"{key} = r_{key}",
        "offset between r_first and r_last",
        *more,
    ]
    return records.join(fn.broadcast(buckets), fn.expr(" and ".join(matches)), "inner")


def _bucket_key(bucket: str, partition: str) -> str:
    # The fastest hash relation takes one long. Collisions are harmless: the rest of the condition decides.
    return f"{bucket} ^ shiftleft(cast({partition} as bigint), 48)"


def _runs(segments: Sequence[Segment], pieces: Sequence[Leased]) -> pa.Table:
    """Return the leased ranges inside some segments, one row each."""
    there = _by_partition(pieces)
    owners: list[Leased] = []
    bounds: list[RangeBounds] = []
    counts: list[int] = []
    for segment in segments:
        whole = OffsetSet.of((segment.first, segment.end))
        for piece in there.get((segment.topic, segment.partition), ()):
            inside = segment.first <= piece.offsets.first and piece.offsets.end <= segment.end
            ranges = (piece.offsets if inside else piece.offsets & whole).bounds
            owners.append(piece)
            bounds.append(ranges)
            counts.append(len(ranges))

    def of_owners(values: list[int], kind: type[np.signedinteger[Any]]) -> pa.Array:
        return pa.array(np.repeat(np.array(values, kind), counts))

    topics = pa.array([each.topic for each in owners], pa.string())
    ends = np.concatenate(bounds)
    return pa.table(
        {
            "r_topic": topics.take(of_owners(list(range(len(owners))), np.int64)),
            "r_partition": of_owners([each.partition for each in owners], np.int32),
            "r_first": pa.array(ends[:, 0]),
            "r_last": pa.array(ends[:, 1] - 1),
            "r_delivery_count": of_owners([each.delivery_count for each in owners], np.int32),
            "r_lease_id": of_owners([each.lease_id for each in owners], np.int64),
        }
    )


def _bucket_exponent(runs: pa.Table) -> int:
    """Return the exponent of the narrowest bucket width (a power of two) with which the ranges fall into about
    MOST_BUCKETS buckets.
    """
    lengths = pc.subtract(runs["r_last"], runs["r_first"]).to_numpy()
    most = max(MOST_BUCKETS, 2 * len(lengths))
    exponent = 0
    while int((lengths >> exponent).sum()) + len(lengths) > most:
        exponent += 1
    return exponent
