"""Acknowledgements, and when they are refused.

Kafka's order of checks and Kafka's names for what fails (R-AK), all or nothing for one share-partition, but
for locks that were renewed before the run that failed: these stay renewed (R-AK-14).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from sharequeue.domain.errors import InvalidRecordState, InvalidRequest
from sharequeue.domain.offsets import EMPTY, MAX_OFFSET, OffsetSet
from sharequeue.domain.values import Acknowledged, AcknowledgementBatch, AcknowledgeType
from tests.oracle import kept as keeping
from tests.oracle import order
from tests.oracle.records import InFlightBatch, Policy, Record, RecordState
from tests.oracle.share_partition import InMemorySharePartition

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
GAP, RENEW = AcknowledgeType.GAP, AcknowledgeType.RENEW


def validate(batches: Sequence[AcknowledgementBatch], *, renew_allowed: bool = True) -> None:
    """Raise InvalidRequest for a list of runs that is malformed in itself (R-AK-3), whatever the state."""
    previous = -1
    for batch in batches:
        if not 0 <= batch.first <= batch.last <= MAX_OFFSET:
            raise InvalidRequest(f"run {batch.first}-{batch.last} is reversed, or no run of offsets")
        if batch.first < previous:  # beginning where the last one ended passes, as in Kafka
            raise InvalidRequest(f"run {batch.first}-{batch.last} begins before offset {previous}")
        if not batch.types:
            raise InvalidRequest(f"run {batch.first}-{batch.last} has no type")
        if len(batch.types) > 1 and len(batch.types) != batch.last - batch.first + 1:
            raise InvalidRequest(
                f"run {batch.first}-{batch.last} has {len(batch.types)} types: expected one, or one an offset"
            )
        for kind in batch.types:
            if not GAP <= kind <= RENEW:
                raise InvalidRequest(f"{kind} is no type of acknowledgement: expected 0 to 4")
            if kind == RENEW and not renew_allowed:
                raise InvalidRequest("the request has a renewal, but IsRenewAck is not set")
        previous = batch.last


class Acknowledgement:
    """One acknowledgement of one share-partition under way: first all of it is judged, then it takes effect.

    ``not_before`` is for what is released, in seconds of the engine's clock; None or past: at once.
    """

    def __init__(
        self,
        at: InMemorySharePartition,
        member_id: str,
        policy: Policy,
        now: float,
        token: UUID | None = None,
        not_before: float | None = None,
    ) -> None:
        self.at = at
        self.member_id = member_id
        self.policy = policy
        self.now = now
        self.token = token
        self.not_before = not_before
        self.outcomes: dict[int, AcknowledgeType] = {}
        self.renewals: set[int] = set()
        self.did: dict[str, int] = dict.fromkeys(("accepted", "released", "rejected", "gaps", "exhausted"), 0)

    def apply(
        self,
        batches: Sequence[AcknowledgementBatch],
        holds: OffsetSet = EMPTY,
        keys: Mapping[UUID | None, OffsetSet] | None = None,
        kept: OffsetSet | None = None,
    ) -> Acknowledged:
        """All runs in order, or none. Raises InvalidRecordState or InvalidRequest by R-AK-6 to R-AK-13.

        ``holds`` were not given to a handler, because an earlier record of their key is open; ``keys`` are those of
        all that is not accepted; ``kept`` what the lease keeps of what is released.
        """
        if kept is not None:
            keeping.check(self.at, self.member_id, self.token, batches)
        before: set[int] = set()  # renewed by the runs before the one that fails
        try:
            for batch in batches:
                before = set(self.renewals)
                self._judge_run(batch)
        except (InvalidRecordState, InvalidRequest):
            self._renew(before)
            raise
        held = self._judge_holds(holds)
        if kept is not None and self.token is not None:
            keeping.keep(self.at, self.token, kept)
        self._count_in_circuit(held)
        for offset, kind in self.outcomes.items():
            self._answer(self.at.records[offset], kind)
        for offset in held.iter_offsets():
            order.hold(self.at, offset)
        released = {o for o, kind in self.outcomes.items() if kind is RELEASE}
        order.report(self.at, (keys or {}) if self.policy.order else {}, released)
        self._renew(self.renewals - self.outcomes.keys())
        self._let_go_overtaken(batches)
        order.hold_and_free(self.at, self.now)
        self.at.forget_ended_leases()
        self.at.advance_spso()
        return Acknowledged(spso=self.at.spso, lag=self.at.lag, **self.did)

    def _count_in_circuit(self, held: OffsetSet) -> None:
        """The circuit breaker hears of it before it takes effect; a gap is no record, a renewal no outcome."""
        counts = {
            kind: [o for o, k in self.outcomes.items() if k is kind]
            for kind in (ACCEPT, RELEASE, REJECT, GAP)
        }
        failed = counts[RELEASE] + counts[REJECT]
        wait = self.at.count_in_circuit(
            *(counts[ACCEPT] + failed, failed, counts[RELEASE], [*counts[GAP], *held.iter_offsets()]),
            *(self.policy, self.now),
        )
        latest = max((t for t in (wait, self.not_before) if t is not None), default=self.now)
        self.not_before = latest if latest > self.now else None

    def _let_go_overtaken(self, batches: Sequence[AcknowledgementBatch]) -> None:
        """A holder that names its lease has no use any more for what the log start has overtaken. What it accepts of
        that was processed in time, and is lost no longer."""
        if self.token is None:
            return
        for offset in self.at.held(self.member_id, self.token):
            if offset < self.at.spso:
                record = self.at.records[offset]
                if any(b.first <= offset <= b.last and type_at(b, offset) is ACCEPT for b in batches):
                    self._count("accepted", "accepted", record)
                    self.at.lost_records -= 1
                    self.at.move(record, RecordState.ACKNOWLEDGED)
                else:
                    self.at.move(record, RecordState.ARCHIVED)

    def _judge_holds(self, holds: OffsetSet) -> OffsetSet:
        """What is held must be leased like all else; below SPSO it is done with already."""
        there = OffsetSet.from_offsets([o for o in holds.iter_offsets() if o >= self.at.spso])
        for offset in there.iter_offsets():
            if offset not in self.at.records:
                raise InvalidRecordState(f"offset {offset} is not in flight")
            self._check(offset, self.at.records[offset])
        return there

    def _judge_run(self, batch: AcknowledgementBatch) -> None:
        if batch.last < self.at.spso:
            return  # R-AK-6: done with already, for anyone
        for in_flight in self._covering(batch):
            for offset in in_flight.offsets():
                if max(batch.first, self.at.spso) <= offset <= batch.last:
                    self._judge(offset, type_at(batch, offset))

    def _covering(self, batch: AcknowledgementBatch) -> list[InFlightBatch]:
        """The in-flight batches of a run (R-AK-7, R-AK-8)."""
        floor = self.at.floor_batch(batch.first)
        if floor is None and batch.first < self.at.spso <= batch.last:
            floor = self.at.floor_batch(self.at.spso)
        if floor is None:
            raise InvalidRecordState(f"offsets {batch.first}-{batch.last} are not in flight")
        covering = self.at.batches_between(floor.first, batch.last)
        if batch.first > covering[-1].last:
            raise InvalidRequest(
                f"the first offset of {batch.first}-{batch.last} is past the acquired records"
            )
        if batch.last > covering[-1].last:
            raise InvalidRequest(
                f"the last offset of {batch.first}-{batch.last} is past the acquired records"
            )
        return covering

    def _judge(self, offset: int, kind: AcknowledgeType) -> None:
        self._check(offset, self.at.records[offset])
        if kind is not RENEW:
            self.outcomes[offset] = kind
        elif self.policy.renewal:
            self.renewals.add(offset)
        else:
            raise InvalidRecordState("Renewing acquisition locks is not enabled for the group.")

    def _check(self, offset: int, record: Record) -> None:
        """R-AK-9, R-AK-11: held, by this member, under this lease where one is named, and not acknowledged before."""
        if offset in self.outcomes:
            raise InvalidRecordState(f"offset {offset} is acknowledged twice")
        if record.state is not RecordState.ACQUIRED or record.lease_id is None:
            raise InvalidRecordState(
                f"offset {offset} is {record.state.name}, not held: its lock lapsed, or it was acknowledged"
            )
        lease = self.at.leases[record.lease_id]
        if lease.member_id != self.member_id:
            raise InvalidRecordState(f"offset {offset} is held by another member")
        if self.token not in (None, lease.token):
            raise InvalidRecordState(f"offset {offset} is held under another lease")

    def _answer(self, record: Record, kind: AcknowledgeType) -> None:
        if kind is ACCEPT:
            self.at.move(record, RecordState.ACKNOWLEDGED)
            self._count("accepted", "accepted", record)
        elif kind is GAP:
            self.at.move(record, RecordState.ARCHIVED)
            self._count("gaps", "gap", record)
        elif kind is REJECT:
            self.at.give_up(record, "rejected", self.policy)
            self.did["rejected"] += 1
        else:
            self.at.give_back(record, self.policy, self.not_before)
            self.did["released" if record.state is RecordState.AVAILABLE else "exhausted"] += 1

    def _renew(self, offsets: Collection[int]) -> None:
        """A full lock duration from now; the count stays (R-RN-1)."""
        for record in [self.at.records[offset] for offset in offsets]:
            own = self.at.leases[record.lease_id].lock_seconds if record.lease_id is not None else None
            record.locked_at = self.now
            record.expires_at = self.now + (self.policy.lock_seconds if own is None else own)
        self.at.split_leases(offsets)

    def _count(self, did: str, outcome: str, record: Record) -> None:
        self.did[did] += 1
        self.at.outcomes[outcome, record.delivery_count] += 1


def type_at(batch: AcknowledgementBatch, offset: int) -> AcknowledgeType:
    """Return the acknowledgement type of one offset of a run."""
    return AcknowledgeType(batch.types[offset - batch.first] if len(batch.types) > 1 else batch.types[0])
