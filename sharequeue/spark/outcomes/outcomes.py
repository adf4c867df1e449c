"""What happened to every offset of a lease, as the files say that were durably written?

Outcomes are read back from the sink and its exceptions as sets of offsets (`offset_sets.py`), and met on the
driver with what was leased. No single offset is collected, and nothing is taken from memory: what the files
do not say did not happen. Offsets without an outcome were either not in the log (a transaction marker, an
aborted record, a hole left by compaction: a gap), or taken by retention, or dropped by the handler; `missing`
scans are read once more to tell which. KIP-932 leaves the acknowledgement of gaps to the consumer
(acknowledge type 0), and so do we.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import DataType, IntegerType, LongType, StringType, TimestampType

from sharequeue.offsets import EMPTY, OffsetSet
from sharequeue.settings import Settings
from sharequeue.spark.job import KEPT_COLUMNS, OUTCOMES, HandlerError
from sharequeue.spark.outcomes.offset_sets import Told, offset_sets, offset_sets_in
from sharequeue.spark.output.files import Files, literal
from sharequeue.spark.reading.frame import READER_OPTIONS, not_for_others, scan_records
from sharequeue.spark.reading.plan import TopicPartition, plan_scans
from sharequeue.values import AcknowledgeType, Lease

_READ_BACK = "lease_id long, outcome string, offset long"
# The session may read "timestamp" as one without a zone.
_DELAYED = f"{_READ_BACK}, not_before timestamp_ltz"
_TYPES: Mapping[str, DataType] = {
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "lease_id": LongType(),
    "outcome": StringType(),
}
# From which second on it may be delivered again, rounded up; for what is released with a time.
_SECOND = "case when outcome = 'release' then (unix_micros(not_before) + 999999) div 1000000 end"

MOST_NAMED = 5
"""Outcomes, partitions and runs of offsets that an error names."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the files say of one lease: which offsets have which outcome, and how many rows were accepted.

    `delays` are those of the released offsets that have a time not before, by the second since 1970.
    """

    outcomes: Mapping[AcknowledgeType, OffsetSet]
    accepted_rows: int
    offsets: OffsetSet
    """Every offset that has an outcome."""
    rows: int
    """In the files, of whatever outcome."""
    delays: Mapping[int, OffsetSet] = field(default_factory=dict)
    unknown: Mapping[str, OffsetSet] = field(default_factory=dict)
    """Offsets by what is none of our outcomes, or `null`."""

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


def with_outcomes(handled: DataFrame, unknown: str | None = None) -> DataFrame:
    """A handler's result with `outcome` and `error` in order.

    An outcome that is none of ours, or null, becomes `unknown` and says so in `error`; without one it stays what it
    is, as text, for `Source.answers` to refuse. Raises HandlerError when a column that says which record a row is, or
    the outcome, is missing or of another type, when `not_before` is no timestamp, and for what is no DataFrame.
    """
    if not isinstance(handled, DataFrame):
        raise HandlerError(
            f"the handler returned a value of type {type(handled).__name__}: expected the DataFrame that it got, "
            "transformed, with the column `outcome` (a handler neither collects nor writes)"
        )
    absent = [name for name in (*KEPT_COLUMNS, "outcome") if name not in handled.columns]
    if absent:
        raise HandlerError(
            f"the handler's result lacks {', '.join(absent)}: it must pass on {', '.join(KEPT_COLUMNS)} "
            f"as it got them and add `outcome`, one of {', '.join(OUTCOMES)}"
        )
    for name, wanted in _TYPES.items():
        if not isinstance(kind := handled.schema[name].dataType, type(wanted)):
            raise HandlerError(
                f"the handler's `{name}` is of type {kind.simpleString()}: expected {wanted.simpleString()}; pass on "
                f"{', '.join(KEPT_COLUMNS)} as they were read, and name the outcome: {', '.join(OUTCOMES)}"
            )
    if "not_before" in handled.columns:
        kind = handled.schema["not_before"].dataType
        if not isinstance(kind, TimestampType):
            raise HandlerError(
                f"the handler's `not_before` is of type {kind.simpleString()}: expected timestamp (timestamp_ltz), "
                "the time before which a released record is not delivered again, or null"
            )
    known = fn.coalesce(fn.col("outcome").isin(*OUTCOMES), fn.lit(False))
    strange = fn.coalesce(fn.col("outcome").cast("string"), fn.lit("null"))
    remark = fn.concat(fn.lit("unknown outcome: "), strange)
    given: Column = (
        fn.col("error").cast("string") if "error" in handled.columns else fn.lit(None).cast("string")
    )
    return handled.withColumns(
        {
            "outcome": fn.when(known, fn.col("outcome")).otherwise(
                strange if unknown is None else fn.lit(unknown)
            ),
            "error": fn.when(known, given).otherwise(fn.coalesce(given, remark)),
        }
    )


def read_back(spark: SparkSession, folders: Sequence[str], *, delays: bool = True) -> dict[int, Seen]:
    """What the Parquet files of these folders say, by lease id. Raises HandlerError when they contradict
    themselves.

    Without `delays` the times not before are not read: for handlers that give none.
    """
    if not folders:
        return {}
    if delays:
        return seen_in(spark.read.schema(_DELAYED).parquet(*map(literal, folders)))
    files = Files(spark, folders[0]).here(*folders)
    if files is None:
        return seen_in(spark.read.schema(_READ_BACK).parquet(*map(literal, folders)))
    return _seen(offset_sets_in(files, "lease_id", "outcome"))


def seen_in(written: DataFrame) -> dict[int, Seen]:
    """What these rows (`lease_id, outcome, offset` and perhaps `not_before`) say, by lease id. Raises HandlerError
    as `read_back`.
    """
    if "not_before" in written.columns:
        return _seen(
            offset_sets(written.withColumn("second", fn.expr(_SECOND)), "lease_id", "outcome", "second")
        )
    return _seen(offset_sets(written, "lease_id", "outcome"))


def _seen(told: Sequence[Told]) -> dict[int, Seen]:
    parts: dict[int, list[Told]] = {}
    for part in told:
        parts.setdefault(part[0][0], []).append(part)
    return {lease_id: _seen_of(lease_id, of_lease) for lease_id, of_lease in parts.items()}


def _seen_of(lease_id: int, told: Sequence[Told]) -> Seen:
    sets: dict[AcknowledgeType, list[OffsetSet]] = {}
    times: dict[int, OffsetSet] = {}
    unknown: dict[str, OffsetSet] = {}
    accepted = 0
    for (_, outcome, *second), offsets, rows in told:
        kind = OUTCOMES.get(outcome)
        if kind is None:
            unknown[outcome] = offsets
            continue
        sets.setdefault(kind, []).append(offsets)
        accepted += rows if kind is AcknowledgeType.ACCEPT else 0
        if second and second[0] is not None:
            times[second[0]] = offsets
    seen = OffsetSet.union(offsets for _, offsets, _ in told)
    if seen.count < sum(offsets.count for _, offsets, _ in told):
        raise _contradiction(lease_id, told)
    rows = sum(rows for *_, rows in told)
    outcomes = {kind: OffsetSet.union(some) for kind, some in sets.items()}
    return Seen(outcomes, accepted, seen, rows, times, unknown)


def present(
    spark: SparkSession,
    settings: Settings,
    wanted: Mapping[TopicPartition, OffsetSet],
    *,
    isolation_level: str,
    options: Mapping[str, str] | None = None,
    not_for_others_than: str | None = None,
) -> dict[TopicPartition, OffsetSet]:
    """Which of these offsets the log has, by reading them.

    With `not_for_others_than`, a share group, records put back for another group alone do not count as there.
    """
    held: dict[TopicPartition, OffsetSet] = {}
    given = {**READER_OPTIONS, "kafka.isolation.level": isolation_level, **(options or {})}
    if not_for_others_than is not None:
        given["includeHeaders"] = "true"
    for scan in plan_scans(wanted):
        records = scan_records(spark, settings, scan, given)
        if not_for_others_than is not None:
            records = not_for_others(records, not_for_others_than)
        for at, offsets, _ in offset_sets(records, "topic", "partition"):
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


def answer(lease: Lease, seen: Seen | None, in_log: OffsetSet, log_start: int, dropped: str | None) -> Answer:
    """Every offset of a lease answered.

    `in_log` are the missing offsets that the log has after all: the handler dropped them, and they get the
    outcome `dropped`, or none where that is None. Of the others, those below `log_start` were taken by retention,
    and the rest are gaps.
    """
    silent = missing(lease, seen)
    absent = silent - in_log
    lost = absent & OffsetSet.of((0, log_start)) if log_start > 0 else EMPTY
    outcomes = dict(seen.outcomes) if seen else {}
    left_out = silent & in_log
    if left_out and dropped is not None:
        kind = OUTCOMES[dropped]
        outcomes[kind] = outcomes.get(kind, EMPTY) | left_out
    if gaps := absent - lost:
        outcomes[AcknowledgeType.GAP] = gaps
    return Answer(outcomes, left_out.count, lost, seen.delays if seen else {})


def refuse_unanswered(
    leases: Sequence[Lease], seen: Mapping[int, Seen], dropped: Mapping[int, OffsetSet]
) -> None:
    """Raise HandlerError when records have no outcome, or one that is unknown, and name them."""
    said: list[str] = []
    strange: dict[str, list[tuple[Lease, OffsetSet]]] = {}
    for lease in leases:
        of_lease = seen.get(lease.lease_id)
        for outcome, offsets in (of_lease.unknown if of_lease else {}).items():
            strange.setdefault(outcome, []).append((lease, offsets))
    for outcome, where in sorted(strange.items())[:MOST_NAMED]:
        said.append(f"{_named(where)} got the outcome {outcome!r}, which is none of {', '.join(OUTCOMES)}")
    left_out = [(lease, dropped[lease.lease_id]) for lease in leases if dropped.get(lease.lease_id)]
    if left_out:
        said.append(f"{_named(left_out)} got no outcome: there is no row of theirs")
    if said:
        raise HandlerError(
            f"{'; '.join(said)}. Nothing of this round was acknowledged. Mend the "
            "handler, or say what is meant: dropped= is the outcome of a record without a row, unknown= that of a "
            "record with another outcome or null"
        )


def _named(where: Sequence[tuple[Lease, OffsetSet]]) -> str:
    """Such as: 1,200 records (orders-0 0-599, 700 …; orders-1 3)."""
    parts = []
    for lease, offsets in where[:MOST_NAMED]:
        runs = [str(first) if first == last else f"{first}-{last}" for first, last in offsets.runs()]
        more = " …" if len(runs) > MOST_NAMED else ""
        parts.append(f"{lease.share_partition} {', '.join(runs[:MOST_NAMED])}{more}")
    more = "; …" if len(where) > MOST_NAMED else ""
    count = sum(offsets.count for _, offsets in where)
    return f"{count:,} record{'s' if count > 1 else ''} ({'; '.join(parts)}{more})"


def _contradiction(lease_id: int, told: Sequence[Told]) -> HandlerError:
    """Of rows that do not agree on a record: names the first that is found."""
    for ((_, one, *_), some, _), ((_, other, *_), others, _) in combinations(told, 2):
        if both := some & others:
            what = "time not before" if one == other else "outcome"
            return HandlerError(
                f"the handler gave offset {both.first} (lease {lease_id}) more than one {what}: rows made "
                "from one record must agree on it"
            )
    raise AssertionError("sets that do not overlap have as many offsets as their union")
