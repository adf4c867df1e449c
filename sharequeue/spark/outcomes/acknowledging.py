"""Acknowledge leases: one call of the state takes all outcomes.

Released records wait for the back-off of the group, or until the time that their handler gave. If a handler gave too
many different times, they are rounded up further, so that no record is redelivered before the time its handler gave.
A sink that must commit together with the acknowledgement does its work in the same transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID, uuid4

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, OperationalError

from sharequeue.domain.errors import ShareError
from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.domain.results.runs import REPLIED
from sharequeue.domain.values import Acknowledged, KeptRecords, Lease, LeaseOutput
from sharequeue.spark.leasing.renewal import LeaseKeeper
from sharequeue.spark.outcomes.outcomes import Acknowledgement
from sharequeue.state import State
from sharequeue.state.calls import A_CALL, DELAYS, LeaseAcknowledgement, in_calls

STEPS_SECONDS = (1, 10, 60, 600, 3600, 86_400)
"""Steps in seconds to which times are rounded up: the first that leaves at most DELAYS different times is used.
"""

CALLS_AT_ONCE = 4
"""The number of parallel calls, fewer than the connections of the pool, so that renewals continue."""
FEW_LEASES, FEW_RANGES = 40, 10_000
"""So many leases, and ranges of offsets, are acknowledged in one call: further ones would each need a connection,
which takes longer to open than that.
"""

STOPPED_MS = 10_000
"""How long the transaction of an acknowledgement may be idle. It locks the share-partition. When the driver stops
inside it, Postgres ends it after this time, and other workers can continue.
"""


class RowsRefused(Exception):
    """A sink refuses records of a lease: the reasons by offset. Nothing of the lease was acknowledged or written.

    Without reasons it accepts all of them in another way, and its transaction is to be repeated.
    """

    def __init__(self, reasons: Mapping[int, str]) -> None:
        super().__init__(f"{len(reasons)} records refused")
        self.reasons = reasons


@contextmanager
def acknowledging_transaction(state: State) -> Iterator[tuple[sa.Connection, State]]:
    """Yield the connection of a transaction, and the state in it, to acknowledge a lease as the last statement."""
    with state.transaction() as (connection, joined):
        connection.execute(sa.text(f"set local idle_in_transaction_session_timeout = {STOPPED_MS}"))
        yield connection, joined


def acknowledge(
    state: State,
    given: LeaseAcknowledgement,
    transaction: Callable[[State], AbstractContextManager[State]] = nullcontext,
) -> Acknowledged:
    """Acknowledge a lease, all or nothing, in a transaction that may do more; the outputs count from its commit on.

    Raises the error of `State.acknowledge`, RowsRefused, and the errors of the transaction, which is then rolled
    back. One whose end is not known is repeated once: it must check whether the first one committed.
    """
    request_id = uuid4()

    def once() -> Acknowledged:
        with transaction(state) as joined:
            (result,) = joined.acknowledge([given], request_id=request_id)
            if isinstance(result, ShareError):
                raise result
        return result

    def known() -> Acknowledged:
        try:
            return once()
        except DBAPIError as error:
            if not (error.connection_invalidated or isinstance(error, OperationalError)):
                raise
            return once()

    try:
        return known()
    except RowsRefused as refused:
        if refused.reasons:
            raise
        return known()


def acknowledge_all(keeper: LeaseKeeper, given: Sequence[LeaseAcknowledgement]) -> list[Acknowledged]:
    """Acknowledge many leases, each whole or not at all, in a few parallel calls; the keeper then forgets them.

    Raises LockLost, and the first error after all other leases have been acknowledged.
    """
    return Sending(keeper).send(given)


@dataclass(slots=True)
class _AcknowledgeCall:
    """One call for some leases, by their ids. It has the same request id as long as its content is the same."""

    leases: frozenset[int]
    request_id: UUID = field(default_factory=uuid4)
    content: Sequence[LeaseAcknowledgement] = ()


class Sending:
    """The acknowledgement of some leases, in a few parallel calls. After an error it may be sent again.

    A lease that was acknowledged is not sent again. A call whose end is not known, because its reply was lost, is
    repeated with its request id: if it has committed, the state returns the same reply.
    """

    def __init__(self, keeper: LeaseKeeper) -> None:
        self._keeper = keeper
        self._calls: list[_AcknowledgeCall] = []
        self.done: dict[int, Acknowledged] = {}
        """The replies, by lease id."""

    def send(self, given: Sequence[LeaseAcknowledgement]) -> list[Acknowledged]:
        """Acknowledge these leases, the same ones each time, except those that are done; return the replies to all.

        Raises LockLost, and the first error after all other leases have been acknowledged.
        """
        self._calls = self._calls or _divided(given)
        left = {each.lease.lease_id: each for each in given if each.lease.lease_id not in self.done}
        work = [(call, [left[at] for at in left if at in call.leases]) for call in self._calls]
        work = [(call, some) for call, some in work if some]
        refusals: dict[int, ShareError] = {}
        if len(work) == 1:
            refusals |= self._in_one_call(*work[0])
        elif work:
            with ThreadPoolExecutor(CALLS_AT_ONCE) as pool:
                for refused in pool.map(self._in_one_call, *zip(*work, strict=True)):
                    refusals |= refused
        for at in left:
            if at in refusals:
                raise refusals[at]
        return [self.done[each.lease.lease_id] for each in given]

    def _in_one_call(
        self, call: _AcknowledgeCall, some: Sequence[LeaseAcknowledgement]
    ) -> dict[int, ShareError]:
        if call.content != some:
            call.content, call.request_id = some, uuid4()
        refusals: dict[int, ShareError] = {}
        for each, result in zip(some, self._keeper.acknowledge(some, call.request_id), strict=True):
            if isinstance(result, ShareError):
                refusals[each.lease.lease_id] = result
            else:
                self.done[each.lease.lease_id] = result
        return refusals


def _divided(given: Sequence[LeaseAcknowledgement]) -> list[_AcknowledgeCall]:
    """Divide leases among calls: one if they are few, otherwise evenly, so that the parallel calls end together."""
    few = len(given) <= FEW_LEASES and sum(each.range_count for each in given) <= FEW_RANGES
    calls = 1 if few else CALLS_AT_ONCE * -(-len(given) // (A_CALL * CALLS_AT_ONCE))
    size = -(-len(given) // calls) or 1
    return [
        _AcknowledgeCall(frozenset(each.lease.lease_id for each in some)) for some in in_calls(given, size)
    ]


def rounded(delays: Mapping[int, OffsetSet], most: int = DELAYS) -> dict[int, OffsetSet]:
    """Return offsets by the second from which they may be delivered, in at most `most` groups; no time becomes
    earlier.
    """
    for step in STEPS_SECONDS:
        groups: dict[int, OffsetSet] = {}
        for second, offsets in delays.items():
            at = -(-second // step) * step
            groups[at] = groups.get(at, EMPTY) | offsets
        if len(groups) <= most:
            break
    return groups


def to_send(
    lease: Lease,
    acknowledgement: Acknowledgement,
    outputs: Sequence[LeaseOutput] = (),
    kept: KeptRecords | None = None,
) -> LeaseAcknowledgement:
    """Return an acknowledgement as the state takes it, with the outputs that count with it, and the raw records that
    are kept of what it releases.
    """
    delays = {
        datetime.fromtimestamp(second, UTC): offsets
        for second, offsets in sorted(rounded(acknowledgement.delays).items())
    }
    return LeaseAcknowledgement(
        *(lease, acknowledgement.outcomes, outputs),
        backoff=True,
        delays=delays,
        holds=acknowledgement.held,
        keys=acknowledgement.keys,
        kept=kept,
    )


def counted(done: Sequence[Acknowledged], wanted: Collection[Acknowledgement]) -> dict[str, int]:
    """Return the sums of the state's replies to these acknowledgements, by the names of `Counts`."""
    return {
        **{name: sum(getattr(each, name) for each in done) for name in REPLIED},
        "held": sum(each.held.count for each in wanted),
        "without_row": sum(each.without_row for each in wanted),
        "lost": sum(each.lost.count for each in wanted),
    }
