"""What happened to every offset of a lease, as the files say that were durably written?

Outcomes are read back from the sink and its exceptions, as bitmaps made where the data are, and met on the
driver with what was leased. No single offset is collected, and nothing is taken from memory: what the files
do not say did not happen. Offsets without an outcome were either not in the log (a transaction marker, an
aborted record, a hole left by compaction: a gap), or taken by retention, or dropped by the handler; `missing`
scans are read once more to tell which. KIP-932 leaves the acknowledgement of gaps to the consumer
(acknowledge type 0), and so do we.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import TimestampType

from pipelines.job import KEPT_COLUMNS, OUTCOMES, RELEASE
from pipelines.plan import TopicPartition, plan_scans
from pipelines.read import READER_OPTIONS, scan_records
from sharequeue.offsets import EMPTY, OffsetSet
from sharequeue.settings import Settings
from sharequeue.state import AcknowledgeType, Lease

BITMAP_OFFSETS = 32_768
"""Offsets in one of Spark's bitmaps, of 4 KiB."""
MOST_BITMAPS = 16_384
"""Bitmaps that are collected, 64 MiB; where there are more the slower way is taken, which sorts the offsets."""

_READ_BACK = "lease_id long, outcome string, offset long"
# From which second on it may be delivered again, rounded up; for what is released with a time.
_SECOND = "case when outcome = 'release' then (unix_micros(not_before) + 999999) div 1000000 end"


class HandlerError(Exception):
    """A handler broke its contract; the message says what it did and what is expected."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the files say of one lease: which offsets have which outcome, and how many rows were accepted.

    `delays` are those of the released offsets that have a time not before, by the second since 1970.
    """

    outcomes: Mapping[AcknowledgeType, OffsetSet]
    accepted_rows: int
    delays: Mapping[int, OffsetSet] = field(default_factory=dict)

    @property
    def offsets(self) -> OffsetSet:
        """Every offset that has an outcome."""
        return reduce(OffsetSet.__or__, self.outcomes.values(), EMPTY)

    @property
    def exceptions(self) -> int:
        """How many records were released or rejected."""
        return sum(
            offsets.count for kind, offsets in self.outcomes.items() if kind is not AcknowledgeType.ACCEPT
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """What is to be acknowledged for a lease; dropped records are among the outcomes already, `delays` among the
    released ones.
    """

    outcomes: Mapping[AcknowledgeType, OffsetSet]
    dropped: int
    lost: OffsetSet
    """Taken by retention between lease and read: there is nothing to acknowledge, and nothing to deliver
    again.
    """
    delays: Mapping[int, OffsetSet] = field(default_factory=dict)


def with_outcomes(handled: DataFrame) -> DataFrame:
    """A handler's result with `outcome` and `error` in order.

    An outcome that is none of ours releases its record and says so in `error`. Raises HandlerError when a
    column that says which record a row is, or the outcome, is missing, and when `not_before` is no timestamp.
    """
    absent = [name for name in (*KEPT_COLUMNS, "outcome") if name not in handled.columns]
    if absent:
        raise HandlerError(
            f"the handler's result lacks {', '.join(absent)}: it must pass on {', '.join(KEPT_COLUMNS)} "
            f"as it got them and add `outcome`, one of {', '.join(OUTCOMES)}"
        )
    if "not_before" in handled.columns:
        kind = handled.schema["not_before"].dataType
        if not isinstance(kind, TimestampType):
            raise HandlerError(
                f"the handler's `not_before` is of type {kind.simpleString()}: expected timestamp, the time before "
                "which a released record is not delivered again, or null"
            )
    known = fn.coalesce(fn.col("outcome").isin(*OUTCOMES), fn.lit(False))
    unknown = fn.concat(
        fn.lit("unknown outcome: "), fn.coalesce(fn.col("outcome").cast("string"), fn.lit("null"))
    )
    given: Column = (
        fn.col("error").cast("string") if "error" in handled.columns else fn.lit(None).cast("string")
    )
    return handled.withColumns(
        {
            "outcome": fn.when(known, fn.col("outcome")).otherwise(fn.lit(RELEASE)),
            "error": fn.when(known, given).otherwise(fn.coalesce(given, unknown)),
        }
    )


def read_back(spark: SparkSession, folders: Sequence[str], *, delays: bool = True) -> dict[int, Seen]:
    """What the Parquet files of these folders say, by lease id. Raises HandlerError when they contradict
    themselves.

    Without `delays` the times not before are not read: for handlers that give none.
    """
    if not folders:
        return {}
    schema = f"{_READ_BACK}, not_before timestamp" if delays else _READ_BACK
    return seen_in(spark.read.schema(schema).parquet(*folders))


def seen_in(written: DataFrame) -> dict[int, Seen]:
    """What these rows (`lease_id, outcome, offset` and perhaps `not_before`) say, by lease id. Raises HandlerError
    as `read_back`.
    """
    found: dict[int, dict[AcknowledgeType, OffsetSet]] = {}
    accepted: dict[int, int] = {}
    times: dict[int, dict[int, OffsetSet]] = {}
    by = ["lease_id", "outcome"]
    if "not_before" in written.columns:
        by = [*by, "second"]
        written = written.withColumn("second", fn.expr(_SECOND))
    for (lease_id, outcome, *second), offsets, rows in _offset_sets(written, *by):
        kind = OUTCOMES[outcome]
        outcomes = found.setdefault(lease_id, {})
        _refuse_contradictions(lease_id, outcomes, kind, offsets)
        outcomes[kind] = outcomes.get(kind, EMPTY) | offsets
        if kind is AcknowledgeType.ACCEPT:
            accepted[lease_id] = rows
        if second and second[0] is not None:
            times.setdefault(lease_id, {})[second[0]] = offsets
    return {
        lease_id: Seen(outcomes, accepted.get(lease_id, 0), times.get(lease_id, {}))
        for lease_id, outcomes in found.items()
    }


def present(
    spark: SparkSession,
    settings: Settings,
    wanted: Mapping[TopicPartition, OffsetSet],
    *,
    isolation_level: str,
    options: Mapping[str, str] | None = None,
) -> dict[TopicPartition, OffsetSet]:
    """Which of these offsets the log has, by reading them."""
    held: dict[TopicPartition, OffsetSet] = {}
    given = {**READER_OPTIONS, "kafka.isolation.level": isolation_level, **(options or {})}
    for scan in plan_scans(wanted):
        records = scan_records(spark, settings, scan, given)
        for at, offsets, _ in _offset_sets(records, "topic", "partition"):
            held[at] = held.get(at, EMPTY) | (offsets & wanted[at])
    return held


def missing(lease: Lease, seen: Seen | None) -> OffsetSet:
    """The leased offsets without an outcome. Raises HandlerError for outcomes of offsets that were not
    leased.
    """
    answered = seen.offsets if seen else EMPTY
    invented = answered - lease.offsets
    if invented:
        raise HandlerError(
            f"the handler's result has offset {invented.first} of {lease.share_partition}, which was not "
            "leased: it must pass on topic, partition, offset and lease_id as it got them"
        )
    return lease.offsets - answered


def answer(lease: Lease, seen: Seen | None, in_log: OffsetSet, log_start: int, dropped: str) -> Answer:
    """Every offset of a lease answered.

    `in_log` are the missing offsets that the log has after all: the handler dropped them, and they get the
    outcome `dropped`. Of the others, those below `log_start` were taken by retention, and the rest are gaps.
    """
    silent = missing(lease, seen)
    absent = silent - in_log
    lost = absent & OffsetSet.of((0, log_start)) if log_start > 0 else EMPTY
    outcomes = dict(seen.outcomes) if seen else {}
    kind = OUTCOMES[dropped]
    left_out = silent & in_log
    if left_out:
        outcomes[kind] = outcomes.get(kind, EMPTY) | left_out
    if gaps := absent - lost:
        outcomes[AcknowledgeType.GAP] = gaps
    return Answer(outcomes, left_out.count, lost, seen.delays if seen else {})


def _refuse_contradictions(
    lease_id: int,
    outcomes: Mapping[AcknowledgeType, OffsetSet],
    kind: AcknowledgeType,
    offsets: OffsetSet,
) -> None:
    for other, others in outcomes.items():
        if both := others & offsets:
            what = "time not before" if other is kind else "outcome"
            raise HandlerError(
                f"the handler gave offset {both.first} (lease {lease_id}) more than one {what}: rows made "
                "from one record must agree on it"
            )


def _offset_sets(records: DataFrame, *by: str) -> list[tuple[tuple[Any, ...], OffsetSet, int]]:
    """The offsets of each combination of values in the columns `by`, as (values, offsets, rows).

    As bitmaps, a bit for each offset, made where the data are: in any order, doubled or not, and neither sorted nor
    sent one by one. Where the offsets lie so far apart that there would be more than MOST_BITMAPS, they are made
    distinct and sorted instead, and sent as runs.
    """
    bitmaps = _bitmaps(records, by).limit(MOST_BITMAPS + 1).toArrow()
    if bitmaps.num_rows > MOST_BITMAPS:
        return _sorted_runs(records, by)
    ranges: dict[tuple[Any, ...], list[tuple[int, int]]] = {}
    rows: dict[tuple[Any, ...], int] = {}
    # The bits stay where Arrow has put them.
    bits = bitmaps.column("bits")
    *keys, buckets, counts = (column.to_pylist() for column in bitmaps.drop_columns("bits").columns)
    if None in buckets:
        raise HandlerError(
            "a row has no offset: every row must pass on topic, partition, offset and lease_id of its record"
        )
    for key, bucket, some, count in zip(zip(*keys, strict=True), buckets, bits, counts, strict=True):
        first = (bucket - 1) * BITMAP_OFFSETS
        whole = [(first, first + BITMAP_OFFSETS)]
        ranges.setdefault(key, []).extend(_ones(some.as_buffer(), first) if some.is_valid else whole)
        rows[key] = rows.get(key, 0) + count
    return [(key, OffsetSet.of(*found), rows[key]) for key, found in ranges.items()]


def _bitmaps(records: DataFrame, by: Sequence[str]) -> DataFrame:
    """Columns `by`, then bucket, bits (null when all are set) and rows. Spark counts from 1, offsets from 0."""
    placed = records.select(
        *by,
        fn.expr("bitmap_bucket_number(offset + 1)").alias("bucket"),
        fn.expr("bitmap_bit_position(offset + 1)").alias("bit"),
    )
    made = placed.groupBy(*by, "bucket").agg(
        fn.expr("bitmap_construct_agg(bit)").alias("bits"), fn.count("*").alias("rows")
    )
    some = fn.expr(f"if(bitmap_count(bits) = {BITMAP_OFFSETS}, null, bits)").alias("bits")
    return made.select(*by, "bucket", some, "rows")


def _ones(bits: pa.Buffer, first: int) -> list[tuple[int, int]]:
    """The ranges of a bitmap whose first bit is that offset."""
    padded = np.zeros(BITMAP_OFFSETS + 2, np.int8)
    padded[1:-1] = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
    ends: list[list[int]] = (np.flatnonzero(np.diff(padded)).reshape(-1, 2) + first).tolist()
    return [(start, end) for start, end in ends]


def _sorted_runs(records: DataFrame, by: Sequence[str]) -> list[tuple[tuple[Any, ...], OffsetSet, int]]:
    rows = {tuple(row[:-1]): row[-1] for row in records.groupBy(*by).count().collect()}
    distinct = records.select(*by, "offset").distinct()
    ordered = distinct.repartitionByRange(*by, "offset").sortWithinPartitions(*by, "offset")
    # In order and distinct, an offset minus the number of its row is the same throughout a run.
    run = (fn.col("offset") - fn.monotonically_increasing_id()).alias("run")
    runs = (
        ordered.select(*by, "offset", run)
        .groupBy(*by, "run")
        .agg(fn.min("offset").alias("first"), (fn.max("offset") + 1).alias("past"))
        .drop("run")
        .toArrow()
    )
    ranges: dict[tuple[Any, ...], list[tuple[int, int]]] = {}
    *keys, firsts, pasts = (column.to_pylist() for column in runs.columns)
    for key, first, past in zip(zip(*keys, strict=True), firsts, pasts, strict=True):
        ranges.setdefault(key, []).append((first, past))
    return [(key, OffsetSet.of(*found), rows[key]) for key, found in ranges.items()]
