"""Which leased offsets have no outcome, and why?

This is the one file where a record can be lost: an offset that is acknowledged as a gap never comes again. `run` and
`lease` both take their acknowledgements from `acknowledgements`, and from nowhere else. An offset without an outcome
was dropped by the handler, or taken by retention, or is a gap: a transaction marker, an aborted record, a hole left
by compaction. KIP-932 leaves the acknowledgement of gaps to the consumer (acknowledge type 0). What must hold:

- Outcomes come from durable files. The caller has compared the number of rows that Spark's tasks wrote with the
  number that was read back.
- Every leased offset is in exactly one set of the acknowledgement, or in `lost`; no other offset is.
- An offset without an outcome is a gap only if the log was read again and did not have it. It was read at the
  isolation level and with the reader's options of the lease.
- The topic is the same (by id) before the lease and after that reading, has a leader, and its log reaches the offset.
  Otherwise nothing is acknowledged.
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
from sharequeue.values import AcknowledgeType, Lease

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
    wanted: dict[TopicPartition, OffsetSet] = {}
    for lease in leases:
        if offsets := missing[lease.lease_id]:
            at = lease.share_partition.topic, lease.share_partition.partition
            wanted[at] = wanted.get(at, EMPTY) | offsets
    in_log: dict[TopicPartition, OffsetSet] = {}
    starts: dict[TopicPartition, int] = {}
    if wanted:
        # Before the log is read: it may be another one by now, and the reading would wait for offsets past its end.
        source.log_starts(wanted, leases, infos)
        in_log = _in_log(source, leases, wanted)
        # After the reading: what was absent because of retention lies below this log start.
        starts = source.log_starts(wanted, leases, infos)
    else:
        # A topic that was made again, and filled, has records at the same offsets.
        source.same_topics({lease.share_partition.topic for lease in leases}, infos)
    present = {
        lease.lease_id: missing[lease.lease_id]
        & in_log.get((lease.share_partition.topic, lease.share_partition.partition), EMPTY)
        for lease in leases
    }
    refuse_without_outcome(leases, seen, present if dropped is None else {})
    return {
        lease.lease_id: _acknowledgement(
            seen.get(lease.lease_id),
            missing[lease.lease_id],
            present[lease.lease_id],
            starts.get((lease.share_partition.topic, lease.share_partition.partition), 0),
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


def _in_log(
    source: Source, leases: Sequence[Lease], wanted: Mapping[TopicPartition, OffsetSet]
) -> dict[TopicPartition, OffsetSet]:
    """Return which of the wanted offsets the log has, by reading them.

    Records put back for another share group alone do not count as there.
    """
    passes_over = source.passes_over(leases)
    found: dict[TopicPartition, OffsetSet] = {}
    for scan in plan_scans(wanted):
        for at, offsets, _ in offset_sets(source.scanned(scan, leases, passes_over), "topic", "partition"):
            found[at] = found.get(at, EMPTY) | (offsets & wanted[at])
    return found


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
