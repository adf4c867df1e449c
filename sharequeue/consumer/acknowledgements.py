"""The acknowledgements that one call of the program sends to the database, and their results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from math import inf
from uuid import UUID, uuid4, uuid5

from sharequeue.consumer.failures import Failures
from sharequeue.consumer.held_leases import HeldLease, LeaseOutcomes
from sharequeue.consumer.key_order import offset_of
from sharequeue.consumer.reader import Key
from sharequeue.domain.errors import InvalidRecordState, RequestTimedOut, ShareError
from sharequeue.domain.offsets import EMPTY, OffsetSet, sets_of
from sharequeue.domain.values import AcknowledgementBatch, AcknowledgeType, Lease, LeaseOutput
from sharequeue.state import State
from sharequeue.state.calls import DELAYS, LeaseAcknowledgement, in_calls
from sharequeue.state.locks import Lock, lock_clock

Result = ShareError | None

_LOST = (
    "an earlier acknowledgement of the same lease was refused, and its records may still be open: in order by key, "
    "the records are delivered again"
)


@dataclass(slots=True, eq=False)
class Acknowledgements:
    """Acknowledgements of several leases, each lease with its own result.

    They are repeated with the same request id until they have results, so that nothing is done twice.
    """

    taken: Sequence[tuple[HeldLease, LeaseOutcomes]]
    request_id: UUID = field(default_factory=uuid4)
    results: list[Result] | None = None
    """One for each lease, once they have arrived."""
    _outputs: list[LeaseOutput | None] | None = None
    _renewals: dict[int, HeldLease | ShareError] = field(default_factory=dict)
    """The results of renewals, by the place of the lease: a lease of the renewed records, or the refusal."""

    @classmethod
    def of_all(cls, sendings: Sequence[Acknowledgements]) -> Acknowledgements:
        """Combine several sendings into one that has each lease once."""
        if len(sendings) == 1:
            return cls(sendings[0].taken)
        together: dict[HeldLease, LeaseOutcomes] = {}
        for holding, each in (pair for sending in sendings for pair in sending.taken):
            together.setdefault(holding, LeaseOutcomes({})).add(each)
        return cls(list(together.items()))

    def results_of(self, sending: Acknowledgements, results: Sequence[Result]) -> list[Result]:
        """Return the results of one of the sendings that were combined into this one."""
        by_holding = {holding: each for (holding, _), each in zip(self.taken, results, strict=True)}
        return [by_holding[holding] for holding, _ in sending.taken]

    @property
    def deadline(self) -> float:
        """When the last of the locks lapses, by ``lock_clock``; until then a retry can succeed."""
        return max(holding.lock.deadline for holding, _ in self.taken)

    @property
    def renews(self) -> bool:
        """Whether any lock is renewed."""
        return any(each.renewed for _, each in self.taken)

    @property
    def has_errors(self) -> bool:
        """Whether any record has an error."""
        return any(each.errors for _, each in self.taken)

    @property
    def releases(self) -> bool:
        """Whether any record is released or given back."""
        return any(AcknowledgeType.RELEASE in each.outcomes or each.holds for _, each in self.taken)

    def carry_out(
        self, state: State, failures: Failures | None, lock_duration_ms: float = inf
    ) -> tuple[list[Result], list[HeldLease]]:
        """Send all of it; return the result of each lease, and the leases of records whose locks were renewed.

        Errors of records are written to ``failures``, if it is given. A renewed lock is relied on for at most
        ``lock_duration_ms``, the current lock duration of the group. Locks are renewed first: where that is refused,
        nothing else is sent for the lease, as a broker applies all acknowledgements of a partition or none. Nothing
        is sent for a lease that is ordered by key and had an acknowledgement refused: the records of that one may
        still be open.

        Raises the errors of the database: then call it again, or give up.
        """
        if self._outputs is None:
            self._outputs = [
                failures.output(holding, each.errors) if failures else None for holding, each in self.taken
            ]
        for number, (holding, each) in enumerate(self.taken):
            if each.renewed and not holding.lost and number not in self._renewals:
                try:
                    self._renewals[number] = _renew(state, holding, each, lock_duration_ms)
                except ShareError as error:
                    self._renewals[number] = error
        refused = {at: found for at, found in self._renewals.items() if isinstance(found, ShareError)}
        now = state.now() if any(each.delayed for _, each in self.taken) else None
        acknowledgements = [
            (
                number,
                LeaseAcknowledgement(
                    anyone(holding.lease),
                    each.outcomes,
                    () if output is None else (output,),
                    delays={} if now is None else _times(each.delayed, now),
                    holds=each.holds,
                    keys=sets_of(each.keys),
                ),
            )
            for number, ((holding, each), output) in enumerate(zip(self.taken, self._outputs, strict=True))
            if (each.outcomes or each.holds) and not holding.lost and number not in refused
        ]
        results: list[Result] = [
            InvalidRecordState(_LOST) if holding.lost else refused.get(number)
            for number, (holding, _) in enumerate(self.taken)
        ]
        for call, part in enumerate(in_calls(acknowledgements)):
            # Each call has its own request id: two calls may have the same member and share-partitions.
            request_id = uuid5(self.request_id, str(call))
            done = state.acknowledge([each for _, each in part], request_id=request_id)
            for (number, _), result in zip(part, done, strict=True):
                results[number] = result if isinstance(result, ShareError) else None
        # Only now: a repeated call must send the same.
        lose(
            holding
            for (holding, each), error in zip(self.taken, results, strict=True)
            if error is not None and (each.outcomes or each.holds)
        )
        return results, [found for found in self._renewals.values() if isinstance(found, HeldLease)]

    def by_partition(self) -> dict[Key, tuple[OffsetSet, Result]]:
        """Return the acknowledged offsets of each partition and its first error: a timeout without results."""
        found: dict[Key, tuple[OffsetSet, Result]] = {}
        results = self.results or [RequestTimedOut() for _ in self.taken]
        for (holding, each), error in zip(self.taken, results, strict=True):
            if not (each.outcomes or each.renewed):
                continue  # the program has not seen the records that were given back
            offsets, before = found.get(holding.key, (EMPTY, None))
            renewed = OffsetSet.from_offsets(map(offset_of, each.renewed))
            found[holding.key] = OffsetSet.union([offsets, renewed, *each.outcomes.values()]), before or error
        return found


def _times(delayed: Mapping[float, Sequence[int]], now: datetime) -> dict[datetime, OffsetSet]:
    """Return the released offsets with a delay, by time; of more than `DELAYS`, neighbours share one."""
    delays = sorted(delayed.items())
    return {
        now + timedelta(seconds=part[-1][0]): OffsetSet.from_offsets(
            at for _, offsets in part for at in offsets
        )
        for part in in_calls(delays, -(-len(delays) // DELAYS) or 1)
    }


def _renew(state: State, holding: HeldLease, taken: LeaseOutcomes, lock_duration_ms: float) -> HeldLease:
    """Renew the locks of some records of a lease; return them as a lease of their own, whose lock lapses later."""
    lease = anyone(holding.lease)
    offsets = OffsetSet.from_offsets(map(offset_of, taken.renewed))
    asked_at = lock_clock()
    state.fetches.acknowledge_batches(
        lease.share_partition,
        lease.member_id,
        [AcknowledgementBatch.of(first, last, AcknowledgeType.RENEW) for first, last in offsets.runs()],
        token=lease.token,
        state_epoch=lease.state_epoch,
    )
    holding.split = True
    return HeldLease(
        holding.lease,
        Lock(asked_at, min(lease.lock_duration_ms, lock_duration_ms)),
        EMPTY,
        holding.order,
        ready=list(taken.renewed),
        seen=True,
        renewed=True,
        errors_at=holding.errors_at,
    )


def give_back(state: State, waiting: Sequence[HeldLease], in_hand: Sequence[HeldLease]) -> None:
    """Give back leases with waiting records: unseen records get their delivery back, others do not."""
    waiting = [each for each in waiting if not each.lapsed]
    tokens = {each.lease.token for each in waiting}
    polled = []
    for each in dict.fromkeys((*in_hand, *waiting)):
        again = list(map(offset_of, each.ready[each.next :])) if each.renewed else []
        if each.lease.token in tokens and (each.handed or again):
            seen = OffsetSet.from_offsets([*each.handed, *again])
            keys = {} if each.order is None else sets_of(each.order.keys_of(seen.iter_offsets()))
            polled.append(
                LeaseAcknowledgement(anyone(each.lease), {AcknowledgeType.RELEASE: seen}, keys=keys)
            )
    for part in in_calls(polled):
        state.acknowledge(part)
    for some in in_calls([anyone(each.lease) for each in waiting]):
        state.release(some, refund=True)


def lose(holdings: Iterable[HeldLease]) -> None:
    """Have nothing more of these leases acknowledged, where they are ordered by key."""
    for holding in holdings:
        if holding.order is not None:
            holding.order.lost = True


def anyone(lease: Lease) -> Lease:
    """Return the lease without its member epoch.

    The token is enough proof, even after the member has left.
    """
    return replace(lease, member_epoch=None)
