"""Which outcome does every offset of a lease have, according to the files that were durably written?

Outcomes are read back from the sink and its exceptions as sets of offsets (`offset_sets.py`). Single offsets are
never collected. Nothing is taken from memory: what is not in the files did not happen. A handler may not change which
record a row comes from: rows of another partition than their lease's are refused. `missing.py` finds the offsets
without an outcome.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.offsets import EMPTY, OffsetSet
from sharequeue.spark.contract import KEPT_AS_GIVEN, OUTCOMES, HandlerError
from sharequeue.spark.outcomes.offset_sets import OffsetGroup, offset_sets, offset_sets_in
from sharequeue.spark.output.files import Files, literal
from sharequeue.values import AcknowledgeType, Lease

_BY = ("lease_id", "outcome", "topic", "partition")
_READ_BACK = "lease_id long, outcome string, topic string, partition int, offset long"
# The session may read "timestamp" as one without a zone.
_DELAYED = f"{_READ_BACK}, not_before timestamp_ltz"
# The second from which a released record may be delivered again, rounded up; null without a time.
_SECOND = "case when outcome = 'release' then (unix_micros(not_before) + 999999) div 1000000 end"


@dataclass(frozen=True, slots=True)
class Seen:
    """The outcomes that the files have for one lease, and how many rows were accepted.

    `delays` are the released offsets that have a time not before, by the second since 1970.
    """

    outcomes: Mapping[AcknowledgeType, OffsetSet]
    accepted_rows: int
    offsets: OffsetSet
    """Every offset that has an outcome."""
    rows: int
    """All rows in the files, of any outcome."""
    delays: Mapping[int, OffsetSet] = field(default_factory=dict)
    unknown: Mapping[str, OffsetSet] = field(default_factory=dict)
    """Offsets by the unknown outcome that their rows have, or `null`."""
    partitions: frozenset[tuple[str | None, int | None]] = frozenset()
    """The topics and partitions that the rows say they are of."""

    @property
    def exceptions(self) -> int:
        """How many records were released or rejected."""
        return sum(
            offsets.count for kind, offsets in self.outcomes.items() if kind is not AcknowledgeType.ACCEPT
        )


def read_back(
    spark: SparkSession, folders: Sequence[str], *, delays: bool = True, files: Files | None = None
) -> dict[int, Seen]:
    """Return what the Parquet files of these folders have, by lease id. Raises HandlerError when they contradict
    themselves.

    Without `delays` the times not before are not read: for handlers that give none. `files` is the file system that
    holds the folders, where the caller has it.
    """
    if not folders:
        return {}
    if delays:
        return seen_in(spark.read.schema(_DELAYED).parquet(*map(literal, folders)))
    here = (files or Files(spark, folders[0])).here(*folders)
    if here is None:
        return seen_in(spark.read.schema(_READ_BACK).parquet(*map(literal, folders)))
    return _seen(offset_sets_in(here, *_BY))


def refuse_other_partitions(leases: Sequence[Lease], seen: Mapping[int, Seen]) -> None:
    """Raise HandlerError where rows of a lease say that they are of another topic or partition than its own."""
    for lease in leases:
        of_lease, at = seen.get(lease.lease_id), lease.share_partition
        if of_lease is None or of_lease.partitions <= {(at.topic, at.partition)}:
            continue
        topic, partition = next(iter(of_lease.partitions - {(at.topic, at.partition)}))
        raise HandlerError(
            f"rows of lease {lease.lease_id}, which is of {at.topic}-{at.partition}, have topic {topic!r} and "
            f"partition {partition}: {KEPT_AS_GIVEN}; put what you make of them into columns of other names"
        )


def seen_in(written: DataFrame) -> dict[int, Seen]:
    """Return what these rows (`lease_id, outcome, topic, partition, offset` and perhaps `not_before`) have, by lease
    id. Raises HandlerError as `read_back` does.
    """
    if "not_before" in written.columns:
        return _seen(offset_sets(written.withColumn("second", fn.expr(_SECOND)), *_BY, "second"))
    return _seen(offset_sets(written, *_BY))


def _seen(groups: Sequence[OffsetGroup]) -> dict[int, Seen]:
    parts: dict[int, list[OffsetGroup]] = {}
    for group in groups:
        parts.setdefault(group[0][0], []).append(group)
    return {lease_id: _seen_of(lease_id, of_lease) for lease_id, of_lease in parts.items()}


def _seen_of(lease_id: int, groups: Sequence[OffsetGroup]) -> Seen:
    sets: dict[AcknowledgeType, list[OffsetSet]] = {}
    times: dict[int, OffsetSet] = {}
    unknown: dict[str, OffsetSet] = {}
    accepted = 0
    for (_, outcome, _, _, *second), offsets, rows in groups:
        kind = OUTCOMES.get(outcome)
        if kind is None:
            unknown[outcome] = unknown.get(outcome, EMPTY) | offsets
            continue
        sets.setdefault(kind, []).append(offsets)
        accepted += rows if kind is AcknowledgeType.ACCEPT else 0
        if second and second[0] is not None:
            times[second[0]] = times.get(second[0], EMPTY) | offsets
    seen = OffsetSet.union(offsets for _, offsets, _ in groups)
    if seen.count < sum(offsets.count for _, offsets, _ in groups):
        raise _contradiction(lease_id, groups)
    rows = sum(rows for *_, rows in groups)
    outcomes = {kind: OffsetSet.union(some) for kind, some in sets.items()}
    partitions = frozenset((topic, partition) for (_, _, topic, partition, *_), *_ in groups)
    return Seen(outcomes, accepted, seen, rows, times, unknown, partitions)


def _contradiction(lease_id: int, groups: Sequence[OffsetGroup]) -> HandlerError:
    """Return the error for rows that do not agree on a record; it names the first such offset."""
    for (one, some, _), (other, others, _) in combinations(groups, 2):
        if both := some & others:
            kinds = ("outcome", "topic", "partition", "time not before")
            what = next(kind for kind, a, b in zip(kinds, one[1:], other[1:], strict=False) if a != b)
            return HandlerError(
                f"the handler gave offset {both.first} (lease {lease_id}) more than one {what}: rows made "
                "from one record must agree on it"
            )
    raise AssertionError("sets that do not overlap have as many offsets as their union")
