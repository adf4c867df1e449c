"""Derive the outcome of every offset of a lease from the durable files, and build its acknowledgement.

This is the only module where a record could be lost: an offset that is acknowledged as a gap is never delivered
again. `run` and `lease` both take their acknowledgements from `acknowledgements` only.

Outcomes are read back from the sink and its exceptions as sets of offsets (`offset_sets.py`). Single offsets are
never collected. Nothing is taken from memory: only the files count. A handler may not change which record a row comes
from: rows of another partition than their lease's are refused.

An offset without an outcome was left out by the handler, or taken by retention, or is a gap: a transaction marker, an
aborted record, a hole left by compaction. KIP-932 leaves the acknowledgement of gaps to the consumer (acknowledge
type 0). The invariants:

- Outcomes come from durable files. The caller has compared the number of rows that Spark's tasks wrote with the
  number that was read back.
- Every leased offset is in exactly one set of the acknowledgement, or in `lost`; no other offset is.
- An offset without an outcome is a gap only if the log was read again and did not have it. It is read at the
  isolation level of its lease, with the reader's options.
- The topic is the same (by id) before the lease and after that read, and has a leader. A reader at the lease's level
  can see the offset before that read and after it: it lies before the log end, under read_committed before the last
  stable offset. Otherwise nothing is acknowledged.
- The log start is requested after that read. An absent offset below it was removed by retention and is not a gap.
- A record that is in the log without an outcome gets the outcome `without_row`. If `without_row` is None, nothing is
  acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from typing import Protocol
from uuid import UUID

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.domain.names import plural
from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.domain.values import AcknowledgeType, Lease, SharePartition
from sharequeue.kafka.topics import TopicInfo
from sharequeue.spark.handler import KEPT_AS_GIVEN, NO_KEY_HASH, OUTCOMES, HandlerError
from sharequeue.spark.outcomes.offset_sets import OffsetGroup, offset_sets_of_folders, reduce_to_offset_sets
from sharequeue.spark.output.files import Files, literal
from sharequeue.spark.reading.plan import Scan, TopicPartition, plan_scans
from sharequeue.spark.reading.source import by_scan_or_offset

_BY = ("lease_id", "outcome", "topic", "partition")
_READ_BACK = "lease_id long, outcome string, topic string, partition int, offset long"
# The session may read "timestamp" as a type without a zone.
_DELAYED = f"{_READ_BACK}, not_before timestamp_ltz"
# The second from which a released record may be delivered again, rounded up; null without a time. 0 stands for all
# times in the past, because Python has no year before 1. `with_outcomes` rejects records with a time too far ahead.
_SECOND = (
    "case when outcome = 'release' then if(not_before < timestamp_seconds(0), 0L, "
    "(unix_micros(not_before) + 999999) div 1000000) end"
)


@dataclass(frozen=True, slots=True)
class SeenOutcomes:
    """The outcomes that the files have for one lease, and the number of accepted rows.

    `delays` are the released offsets with a `not_before`, by the second since 1970.
    """

    outcomes: Mapping[AcknowledgeType, OffsetSet]
    accepted_rows: int
    offsets: OffsetSet
    """Every offset that has an outcome."""
    rows: int
    """The number of rows in the files, of any outcome."""
    delays: Mapping[int, OffsetSet] = field(default_factory=dict)
    unknown: Mapping[str, OffsetSet] = field(default_factory=dict)
    """Offsets by the unknown outcome of their rows, or `null`."""
    partitions: frozenset[tuple[str | None, int | None]] = frozenset()
    """The topics and partitions named in the rows."""
    exceptions: int = 0
    """The number of records with a row that were not accepted."""
    held: OffsetSet = EMPTY
    """The records that wait for an earlier one of their key, with a row or without."""
    keys: Mapping[UUID | None, OffsetSet] = field(default_factory=dict)
    """All records that were not accepted, by the hash of their key, if the group orders them by key."""


UNSEEN = SeenOutcomes({}, 0, EMPTY, 0)
"""The outcomes of a lease for which the files have no rows."""


def read_back(
    spark: SparkSession, folders: Sequence[str], *, delays: bool = True, files: Files | None = None
) -> dict[int, SeenOutcomes]:
    """Return the outcomes in the Parquet files of these folders, by lease id. Raises HandlerError when they
    contradict each other.

    Without `delays`, `not_before` is not read: for handlers that do not set it. `files` is the file system of the
    folders, if the caller has it.
    """
    if not folders:
        return {}
    if delays:
        return seen_in(spark.read.schema(_DELAYED).parquet(*map(literal, folders)))
    read = spark.read.schema(_READ_BACK)
    there = files or Files(spark, folders[0])
    return _seen(offset_sets_of_folders(there, folders, lambda: read.parquet(*map(literal, folders)), *_BY))


def refuse_other_partitions(leases: Sequence[Lease], seen: Mapping[int, SeenOutcomes]) -> None:
    """Raise HandlerError if rows of a lease name another topic or partition than its own."""
    for lease in leases:
        of_lease, at = seen.get(lease.lease_id, UNSEEN), lease.share_partition
        if of_lease.partitions <= {(at.topic, at.partition)}:
            continue
        topic, partition = next(iter(of_lease.partitions - {(at.topic, at.partition)}))
        raise HandlerError(
            f"rows of lease {lease.lease_id}, which is of {at.topic}-{at.partition}, have topic {topic!r} and "
            f"partition {partition}: {KEPT_AS_GIVEN}; write changed values to columns with other names"
        )


def seen_in(written: DataFrame) -> dict[int, SeenOutcomes]:
    """Return the outcomes of these rows (`lease_id, outcome, topic, partition, offset` and perhaps `not_before`), by
    lease id. Raises HandlerError as `read_back` does.
    """
    if "not_before" in written.columns:
        return _seen(reduce_to_offset_sets(written.withColumn("second", fn.expr(_SECOND)), *_BY, "second"))
    return _seen(reduce_to_offset_sets(written, *_BY))


def seen_of(handled: DataFrame, leases: Sequence[Lease]) -> dict[int, SeenOutcomes]:
    """Return the outcomes that a handler gave to records of these leases, from rows in memory.

    Raises HandlerError for rows of another lease or partition, like a run, which reads them from files.
    """
    names = [name for name in (*_BY, "offset", "not_before") if name in handled.columns]
    seen = seen_in(handled.select(*names))
    if others := seen.keys() - {lease.lease_id for lease in leases}:
        raise HandlerError(
            f"the result has rows with lease_id {others.pop()}, which was not given: {KEPT_AS_GIVEN}"
        )
    refuse_other_partitions(leases, seen)
    return seen


def _seen(groups: Sequence[OffsetGroup]) -> dict[int, SeenOutcomes]:
    parts: dict[int, list[OffsetGroup]] = {}
    for group in groups:
        parts.setdefault(group[0][0], []).append(group)
    return {lease_id: _seen_of(lease_id, of_lease) for lease_id, of_lease in parts.items()}


def _seen_of(lease_id: int, groups: Sequence[OffsetGroup]) -> SeenOutcomes:
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
    exceptions = sum(
        offsets.count for kind, offsets in outcomes.items() if kind is not AcknowledgeType.ACCEPT
    )
    return SeenOutcomes(outcomes, accepted, seen, rows, times, unknown, partitions, exceptions)


def _contradiction(lease_id: int, groups: Sequence[OffsetGroup]) -> HandlerError:
    """Return the error for rows with different outcomes for one record; it names the first such offset."""
    for (one, some, _), (other, others, _) in combinations(groups, 2):
        if both := some & others:
            kinds = ("outcome", "topic", "partition", "time not before")
            what = next(kind for kind, a, b in zip(kinds, one[1:], other[1:], strict=False) if a != b)
            return HandlerError(
                f"the handler gave offset {both.first} (lease {lease_id}) more than one {what}: rows made "
                "from one record must agree on it"
            )
    raise AssertionError("sets that do not overlap have as many offsets as their union")


MOST_NAMED = 5
"""The most outcomes, partitions and ranges of offsets that an error names."""


class LogQueries(Protocol):
    """The queries to the logs that were leased from. `reading.source.TopicSource` sends them to the broker."""

    def log_starts(
        self, missing: Iterable[tuple[Lease, OffsetSet]], infos: Mapping[str, TopicInfo]
    ) -> dict[SharePartition, int]:
        """Return the current log starts of the partitions with missing offsets."""
        ...

    def same_topics(self, names: Iterable[str], infos: Mapping[str, TopicInfo]) -> object:
        """Raise UnknownTopicId for a topic that is not the one in `infos`."""
        ...

    def passes_over(self, leases: Sequence[Lease]) -> bool:
        """Return whether some records of these leases were redriven for another share group only."""
        ...

    def scanned(
        self, scan: Scan, isolation_level: str, only_for: str | None = None, *, by_offset: bool = False
    ) -> DataFrame:
        """Return the records of a scan that are in the log. With `by_offset` they are not scanned."""
        ...


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """The acknowledgement to send for a lease. The outcomes already include records without a row, and the released
    ones include `delays`.
    """

    outcomes: Mapping[AcknowledgeType, OffsetSet]
    without_row: int
    lost: OffsetSet
    """Offsets removed by retention between lease and read: there is nothing to acknowledge or to redeliver."""
    delays: Mapping[int, OffsetSet] = field(default_factory=dict)
    """Released offsets with a `not_before`, by the second since 1970."""
    held: OffsetSet = EMPTY
    """Offsets that wait for an earlier one of their key: they are given back without a delivery."""
    keys: Mapping[UUID | None, OffsetSet] = field(default_factory=dict)
    """The offsets that were not accepted, by the hash of their key, if the group orders them by key."""


def acknowledgements(
    source: LogQueries,
    leases: Sequence[Lease],
    seen: Mapping[int, SeenOutcomes],
    infos: Mapping[str, TopicInfo],
    without_row: str | None,
) -> dict[int, Acknowledgement]:
    """Return the acknowledgement of each lease, by lease id. The log is read again only for offsets
    without an outcome.

    `infos` are the topics as they were before the lease; `without_row` is the outcome of a record that is in the log
    and has none. Raises HandlerError for offsets that were not leased, for unknown outcomes, and for records without
    an outcome where `without_row` is None; UnknownTopicId for a recreated topic, OffsetOutOfRange for a truncated
    log, BrokerNotAvailable for one without a leader: then it is not known whether a missing offset is a gap.
    """
    missing = {lease.lease_id: without_outcome(lease, seen.get(lease.lease_id)) for lease in leases}
    present = dict.fromkeys(missing, EMPTY)
    starts: dict[SharePartition, int] = {}
    if incomplete := [(lease, missing[lease.lease_id]) for lease in leases if missing[lease.lease_id]]:
        # Before the log is read: the topic may have been recreated, and a reader sees records only up to the current
        # end.
        source.log_starts(incomplete, infos)
        present |= _present(source, leases, incomplete)
        # After the read: offsets that retention removed lie below this log start.
        starts = source.log_starts(incomplete, infos)
    else:
        # A recreated topic may have records at the same offsets.
        source.same_topics({lease.share_partition.topic for lease in leases}, infos)
    refuse_without_outcome(leases, seen, present if without_row is None else {})
    return {
        lease.lease_id: _acknowledgement(
            seen.get(lease.lease_id, UNSEEN),
            missing[lease.lease_id],
            present[lease.lease_id],
            starts.get(lease.share_partition, 0),
            without_row,
        )
        for lease in leases
    }


def without_outcome(lease: Lease, seen: SeenOutcomes | None) -> OffsetSet:
    """Return the leased offsets without an outcome. Raise HandlerError for outcomes of offsets not leased."""
    with_outcome = (seen or UNSEEN).offsets
    invented = with_outcome - lease.offsets
    if invented:
        raise HandlerError(
            f"the handler's result has offset {invented.first} of {lease.share_partition}, which was not "
            "leased: it must pass on topic, partition, offset and lease_id as it got them"
        )
    return lease.offsets - with_outcome


def _present(
    source: LogQueries, leases: Sequence[Lease], missing: Sequence[tuple[Lease, OffsetSet]]
) -> dict[int, OffsetSet]:
    """Return which of the missing offsets are in the log, by lease id. They are read at the lease's isolation level.

    Records redriven for another share group only do not count.
    """
    only_for = leases[0].share_partition.group_id if source.passes_over(leases) else None
    present: dict[int, OffsetSet] = {}
    for level in sorted({lease.isolation_level for lease, _ in missing}):
        of_level = [(lease, offsets) for lease, offsets in missing if lease.isolation_level == level]
        wanted: dict[TopicPartition, OffsetSet] = {}
        for lease, offsets in of_level:
            wanted[_at(lease)] = wanted.get(_at(lease), EMPTY) | offsets
        found: dict[TopicPartition, OffsetSet] = {}
        for scan in plan_scans(wanted):
            read = partial(_offsets_of, source, scan, level, only_for)
            for at, offsets, _ in by_scan_or_offset(read):
                found[at] = found.get(at, EMPTY) | offsets
        present |= {lease.lease_id: offsets & found.get(_at(lease), EMPTY) for lease, offsets in of_level}
    return present


def _offsets_of(
    source: LogQueries, scan: Scan, level: str, only_for: str | None, by_offset: bool
) -> Sequence[OffsetGroup]:
    records = source.scanned(scan, level, only_for, by_offset=by_offset)
    return reduce_to_offset_sets(records, "topic", "partition")


def _at(lease: Lease) -> TopicPartition:
    return lease.share_partition.topic, lease.share_partition.partition


def _acknowledgement(
    seen: SeenOutcomes, missing: OffsetSet, present: OffsetSet, log_start: int, without_row: str | None
) -> Acknowledgement:
    """Return the acknowledgement of a lease; of its `missing` offsets, `present` are in the log."""
    absent = missing - present
    lost = absent & OffsetSet.of((0, log_start)) if log_start > 0 else EMPTY
    outcomes = dict(seen.outcomes)
    if present and without_row is not None:
        kind = OUTCOMES[without_row]
        outcomes[kind] = outcomes.get(kind, EMPTY) | present
    if gaps := absent - lost:
        outcomes[AcknowledgeType.GAP] = gaps
    return Acknowledgement(outcomes, present.count, lost, seen.delays, seen.held, seen.keys)


def refuse_without_outcome(
    leases: Sequence[Lease], seen: Mapping[int, SeenOutcomes], present: Mapping[int, OffsetSet]
) -> None:
    """Raise HandlerError when records have an unknown outcome or, being `present` in the log, none; name them."""
    reasons: list[str] = []
    unknown: dict[str, list[tuple[Lease, OffsetSet]]] = {}
    for lease in leases:
        for outcome, offsets in seen.get(lease.lease_id, UNSEEN).unknown.items():
            unknown.setdefault(outcome, []).append((lease, offsets))
    if where := unknown.pop(NO_KEY_HASH, None):
        reasons.append(
            f"{_named(where)} got a key_hash that is null or no hash: expected the value that was read"
        )
    for outcome, where in sorted(unknown.items())[:MOST_NAMED]:
        reasons.append(
            f"{_named(where)} got the outcome {outcome!r}, which is not one of {', '.join(OUTCOMES)}"
        )
    left_out = [(lease, present[lease.lease_id]) for lease in leases if present.get(lease.lease_id)]
    if left_out:
        reasons.append(f"{_named(left_out)} got no outcome: they have no row")
    if reasons:
        hint = "; without_row= is the outcome of a record without a row" if left_out else ""
        raise HandlerError(
            f"{'; '.join(reasons)}. Nothing of this round was acknowledged. Correct the handler{hint}"
        )


def _named(where: Sequence[tuple[Lease, OffsetSet]]) -> str:
    """Return a text such as: 1,200 records (orders-0 0-599, 700 …; orders-1 3)."""
    parts = []
    for lease, offsets in where[:MOST_NAMED]:
        runs = [str(first) if first == last else f"{first}-{last}" for first, last in offsets.runs()]
        more = " …" if len(runs) > MOST_NAMED else ""
        parts.append(f"{lease.share_partition} {', '.join(runs[:MOST_NAMED])}{more}")
    more = "; …" if len(where) > MOST_NAMED else ""
    count = sum(offsets.count for _, offsets in where)
    return f"{plural(count, 'record')} ({'; '.join(parts)}{more})"
