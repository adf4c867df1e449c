"""Which leased offsets have no outcome, and why?

This is the one file where a record can be lost: an offset that is acknowledged as a gap never comes again. `run` and
`lease` both take their acknowledgements from `acknowledgements`, and from nowhere else. An offset without an outcome
was dropped by the handler, or taken by retention, or is a gap: a transaction marker, an aborted record, a hole left
by compaction. KIP-932 leaves the acknowledgement of gaps to the consumer (acknowledge type 0). What must hold:

- Outcomes come from durable files. The caller has compared the number of rows that Spark's tasks wrote with the
  number that was read back.
- Every leased offset is in exactly one set of the acknowledgement, or in `lost`; no other offset is.
- An offset without an outcome is a gap only if the log was read again and did not have it. It was read at the
  isolation level of its lease, with the reader's options.
- The topic is the same (by id) before the lease and after that reading, and has a leader. A reader of the lease's
  level may see the offset before that reading and after it: it lies before the log end, under read_committed before
  the last stable offset. Otherwise nothing is acknowledged.
- The log start is asked for after that reading. What is absent below it was taken by retention, and is no gap.
- A record that the log has gets the outcome `dropped`. Without one, nothing is acknowledged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sharequeue.kafka.topics import TopicInfo
from sharequeue.offsets import EMPTY, OffsetSet
from sharequeue.spark.contract import OUTCOMES, HandlerError
from sharequeue.spark.outcomes.offset_sets import offset_sets
from sharequeue.spark.outcomes.read_back import Seen
from sharequeue.spark.reading.plan import TopicPartition, plan_scans
from sharequeue.spark.reading.source import Source
from sharequeue.values import AcknowledgeType, Lease, SharePartition

MOST_NAMED = 5
"""Outcomes, partitions and runs of offsets that an error names."""


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """What is to be acknowledged for a lease. Dropped records are among the outcomes already, and `delays` among the
    released ones.
    """

    outcomes: Mapping[AcknowledgeType, OffsetSet]
    dropped: int
    lost: OffsetSet
    """Taken by retention between lease and read: there is nothing to acknowledge, and nothing to deliver again."""
    delays: Mapping[int, OffsetSet] = field(default_factory=dict)
    """Released offsets that have a time not before, by the second since 1970."""


def acknowledgements(
    source: Source,
    leases: Sequence[Lease],
    seen: Mapping[int, Seen],
    infos: Mapping[str, TopicInfo],
    dropped: str | None,
) -> dict[int, Acknowledgement]:
    """Return the acknowledgement of each lease, by lease id. The log is read again only for offsets
    without an outcome.

    `infos` are the topics as they were before the lease; `dropped` is the outcome of a record that the log has and
    that has none. Raises HandlerError for offsets that were not leased, for unknown outcomes, and for records without
    an outcome where `dropped` is None; UnknownTopicId for a topic that was made again, OffsetOutOfRange for a log
    that was truncated, BrokerNotAvailable for one without a leader: what is missing is then not known to be a gap.
    """
    missing = {lease.lease_id: without_outcome(lease, seen.get(lease.lease_id)) for lease in leases}
    present = dict.fromkeys(missing, EMPTY)
    starts: dict[SharePartition, int] = {}
    if incomplete := [(lease, missing[lease.lease_id]) for lease in leases if missing[lease.lease_id]]:
        # Before the log is read: it may be another one by now, and what a reader may see ends where it ends now.
        source.log_starts(incomplete, infos)
        present |= _present(source, leases, incomplete)
        # After the reading: what was absent because of retention lies below this log start.
        starts = source.log_starts(incomplete, infos)
    else:
        # A topic that was made again, and filled, has records at the same offsets.
        source.same_topics({lease.share_partition.topic for lease in leases}, infos)
    refuse_without_outcome(leases, seen, present if dropped is None else {})
    return {
        lease.lease_id: _acknowledgement(
            seen.get(lease.lease_id),
            missing[lease.lease_id],
            present[lease.lease_id],
            starts.get(lease.share_partition, 0),
            dropped,
        )
        for lease in leases
    }


def without_outcome(lease: Lease, seen: Seen | None) -> OffsetSet:
    """Return the leased offsets without an outcome. Raise HandlerError for outcomes of offsets not leased."""
    with_outcome = seen.offsets if seen else EMPTY
    invented = with_outcome - lease.offsets
    if invented:
        raise HandlerError(
            f"the handler's result has offset {invented.first} of {lease.share_partition}, which was not "
            "leased: it must pass on topic, partition, offset and lease_id as it got them"
        )
    return lease.offsets - with_outcome


def _present(
    source: Source, leases: Sequence[Lease], missing: Sequence[tuple[Lease, OffsetSet]]
) -> dict[int, OffsetSet]:
    """Return which of the missing offsets the log has, by lease id: they are read at the lease's isolation level.

    Records put back for another share group alone do not count as there.
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
            records = source.scanned(scan, level, only_for)
            for at, offsets, _ in offset_sets(records, "topic", "partition"):
                found[at] = found.get(at, EMPTY) | offsets
        present |= {lease.lease_id: offsets & found.get(_at(lease), EMPTY) for lease, offsets in of_level}
    return present


def _at(lease: Lease) -> TopicPartition:
    return lease.share_partition.topic, lease.share_partition.partition


def _acknowledgement(
    seen: Seen | None, missing: OffsetSet, present: OffsetSet, log_start: int, dropped: str | None
) -> Acknowledgement:
    """Return the acknowledgement of a lease, of whose `missing` offsets the log has `present` after all."""
    absent = missing - present
    lost = absent & OffsetSet.of((0, log_start)) if log_start > 0 else EMPTY
    outcomes = dict(seen.outcomes) if seen else {}
    if present and dropped is not None:
        kind = OUTCOMES[dropped]
        outcomes[kind] = outcomes.get(kind, EMPTY) | present
    if gaps := absent - lost:
        outcomes[AcknowledgeType.GAP] = gaps
    return Acknowledgement(outcomes, present.count, lost, seen.delays if seen else {})


def refuse_without_outcome(
    leases: Sequence[Lease], seen: Mapping[int, Seen], present: Mapping[int, OffsetSet]
) -> None:
    """Raise HandlerError when records have an unknown outcome or, being `present` in the log, none; name them."""
    reasons: list[str] = []
    unknown: dict[str, list[tuple[Lease, OffsetSet]]] = {}
    for lease in leases:
        of_lease = seen.get(lease.lease_id)
        for outcome, offsets in (of_lease.unknown if of_lease else {}).items():
            unknown.setdefault(outcome, []).append((lease, offsets))
    for outcome, where in sorted(unknown.items())[:MOST_NAMED]:
        reasons.append(f"{_named(where)} got the outcome {outcome!r}, which is none of {', '.join(OUTCOMES)}")
    left_out = [(lease, present[lease.lease_id]) for lease in leases if present.get(lease.lease_id)]
    if left_out:
        reasons.append(f"{_named(left_out)} got no outcome: there is no row of theirs")
    if reasons:
        raise HandlerError(
            f"{'; '.join(reasons)}. Nothing of this round was acknowledged. Mend the "
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
