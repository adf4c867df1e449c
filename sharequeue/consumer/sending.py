"""What is on its way to the database: the acknowledgements of one call of the program's, and what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from math import inf
from uuid import UUID, uuid4, uuid5

from sharequeue.consumer.failures import Failures
from sharequeue.consumer.holdings import Holding, Taken, lock_clock, offset_of
from sharequeue.consumer.reader import Key
from sharequeue.errors import RequestTimedOut, ShareError
from sharequeue.offsets import EMPTY, OffsetSet
from sharequeue.state import State
from sharequeue.state.many import LeaseAcknowledgement, in_calls
from sharequeue.values import AcknowledgementBatch, AcknowledgeType, Lease, LeaseOutput

Result = ShareError | None


@dataclass(slots=True, eq=False)
class Sending:
    """Acknowledgements on their way: of several leases, each with a result of its own. All are repeated with one
    request id until they have their results: what was done before is not done again."""

    taken: Sequence[tuple[Holding, Taken]]
    request_id: UUID = field(default_factory=uuid4)
    results: list[Result] | None = None
    """One for each lease, once they have come."""
    _outputs: list[LeaseOutput | None] | None = None

    @classmethod
    def of_all(cls, sendings: Sequence[Sending]) -> Sending:
        """Several as one, a lease once: what has come together is sent together."""
        if len(sendings) == 1:
            return cls(sendings[0].taken)
        together: dict[Holding, Taken] = {}
        for holding, each in (pair for sending in sendings for pair in sending.taken):
            together.setdefault(holding, Taken({})).add(each)
        return cls(list(together.items()))

    def results_of(self, sending: Sending, results: Sequence[Result]) -> list[Result]:
        """Of the results of this one those of a sending that is in it."""
        by_holding = {holding: each for (holding, _), each in zip(self.taken, results, strict=True)}
        return [by_holding[holding] for holding, _ in sending.taken]

    @property
    def deadline(self) -> float:
        """When the last of the locks lapses, by ``lock_clock``; until then it is worth trying again."""
        return max(holding.deadline for holding, _ in self.taken)

    @property
    def releases(self) -> bool:
        """Whether something is given back."""
        return any(AcknowledgeType.RELEASE in each.outcomes for _, each in self.taken)

    def carry_out(
        self, state: State, failures: Failures | None, lock_duration_ms: float = inf
    ) -> tuple[list[Result], list[Holding]]:
        """Send all of it; return the result of each lease, and the leases of records whose locks were renewed.

        Errors go to ``failures``, where there is one. A renewed lock is relied on for ``lock_duration_ms`` at most,
        what the group's locks last now.

        Raises what the database raises: then carry it out again, or give it up.
        """
        if self._outputs is None:
            self._outputs = [
                failures.output(holding, each.errors) if failures else None for holding, each in self.taken
            ]
        now = state.now() if any(each.delayed for _, each in self.taken) else None
        acknowledgements: list[tuple[int, LeaseAcknowledgement]] = []
        for number, ((holding, each), output) in enumerate(zip(self.taken, self._outputs, strict=True)):
            lease = anyone(holding.lease)
            for outcomes, not_before in _by_time(each, now):
                outputs = () if output is None else (output,)
                acknowledgements.append((number, LeaseAcknowledgement(lease, outcomes, outputs, not_before)))
                output = None
        results: list[Result] = [None] * len(self.taken)
        for call, part in enumerate(in_calls(acknowledgements)):
            # A request's id stands for its member and share-partitions, which two calls may have in common.
            request_id = uuid5(self.request_id, str(call))
            done = state.many.acknowledge([each for _, each in part], request_id=request_id)
            for (number, _), result in zip(part, done, strict=True):
                if isinstance(result, ShareError):
                    results[number] = results[number] or result
        renewed: list[Holding] = []
        for number, (holding, each) in enumerate(self.taken):
            if each.renewed:
                try:
                    renewed.append(_renew(state, holding, each, lock_duration_ms))
                except ShareError as error:
                    results[number] = results[number] or error
        return results, renewed

    def by_partition(self) -> dict[Key, tuple[OffsetSet, Result]]:
        """What was acknowledged of each partition, and the first error; timed out where there are no results yet."""
        found: dict[Key, tuple[OffsetSet, Result]] = {}
        results = self.results or [RequestTimedOut() for _ in self.taken]
        for (holding, each), error in zip(self.taken, results, strict=True):
            offsets, before = found.get(holding.key, (EMPTY, None))
            renewed = OffsetSet.from_offsets(map(offset_of, each.renewed))
            found[holding.key] = OffsetSet.union([offsets, renewed, *each.outcomes.values()]), before or error
        return found


def _by_time(
    taken: Taken, now: datetime | None
) -> list[tuple[dict[AcknowledgeType, OffsetSet], datetime | None]]:
    """The outcomes, those apart that are delivered again only after a time."""
    if now is None or not taken.delayed:
        return [(taken.outcomes, None)] if taken.outcomes else []
    later = {seconds: OffsetSet.from_offsets(offsets) for seconds, offsets in taken.delayed.items()}
    at_once = dict(taken.outcomes)
    at_once[AcknowledgeType.RELEASE] -= OffsetSet.union(later.values())
    found: list[tuple[dict[AcknowledgeType, OffsetSet], datetime | None]] = []
    if any(at_once.values()):
        found.append(({kind: offsets for kind, offsets in at_once.items() if offsets}, None))
    for seconds, offsets in later.items():
        found.append(({AcknowledgeType.RELEASE: offsets}, now + timedelta(seconds=seconds)))
    return found


def _renew(state: State, holding: Holding, taken: Taken, lock_duration_ms: float) -> Holding:
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
    return Holding(
        holding.lease,
        asked_at + min(lease.lock_duration_ms, lock_duration_ms) / 1000,
        EMPTY,
        ready=list(taken.renewed),
        seen=True,
        renewed=True,
        errors_at=holding.errors_at,
    )


def give_back(state: State, waiting: Sequence[Holding], in_hand: Sequence[Holding]) -> None:
    """Give back leases of which something waits: what nobody has seen gets its delivery back, the rest does not."""
    waiting = [each for each in waiting if not each.lapsed]
    tokens = {each.lease.token for each in waiting}
    polled = []
    for each in dict.fromkeys((*in_hand, *waiting)):
        again = list(map(offset_of, each.ready[each.next :])) if each.renewed else []
        if each.lease.token in tokens and (each.handed or again):
            seen = OffsetSet.from_offsets([*each.handed, *again])
            polled.append(LeaseAcknowledgement(anyone(each.lease), {AcknowledgeType.RELEASE: seen}))
    for part in in_calls(polled):
        state.many.acknowledge(part)
    for some in in_calls([anyone(each.lease) for each in waiting]):
        state.many.release(some, refund=True)


def anyone(lease: Lease) -> Lease:
    """The lease without its member epoch: its token is proof enough, also when the member has left (2.20, line 6)."""
    return replace(lease, member_epoch=None)
