"""How does the acknowledgement of a lease reach the state, in one transaction?

One call of the state releases with one time not before, or with none. Where a handler gave several times, they become
several calls in one transaction: all of them commit, or none does. Times are rounded up to the second, as the state
rounds them, and further where there are too many of them. So no record comes sooner than its handler asked for. A
sink that must commit together with the acknowledgement does its work in the same transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import uuid4, uuid5

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, OperationalError

from sharequeue.errors import ShareError
from sharequeue.offsets import EMPTY, OffsetSet
from sharequeue.spark.leasing.renewal import LeaseKeeper
from sharequeue.spark.outcomes.missing import Acknowledgement
from sharequeue.state import State
from sharequeue.state.many import A_CALL, LeaseAcknowledgement, in_calls
from sharequeue.values import Acknowledged, AcknowledgeType, Lease, LeaseOutput

MOST_DELAYS = 100
"""Different times of one lease at most: each is a call of its own."""
STEPS_SECONDS = (1, 10, 60, 600, 3600, 86_400)
"""Steps to which times are rounded up: the first that leaves no more than MOST_DELAYS of them."""

CALLS_AT_ONCE = 4
"""Fewer than the pool of connections has, so that renewals go on meanwhile."""

STOPPED_MS = 10_000
"""How long the transaction of an acknowledgement may be idle. It locks the share-partition. When the driver stops
inside it, Postgres ends it after this time, and other workers go on.
"""

Around = Callable[[sa.Connection, Callable[[], Acknowledged]], Acknowledged]
"""What a sink does in the acknowledgement's transaction: its own statements first, then the call that it is given."""


def acknowledge(
    state: State,
    lease: Lease,
    acknowledgement: Acknowledgement,
    outputs: Sequence[LeaseOutput],
    around: Around | None = None,
) -> Acknowledged:
    """Acknowledge a lease, all or nothing, together with what `around` does; the outputs count from this commit on.

    Raises what `State.acknowledge` raises; nothing of `around` has then happened. A transaction whose end is not
    known is repeated once: `around` must find out by itself whether the first one committed.
    """
    calls = _calls(acknowledgement)
    if around is None and len(calls) == 1:
        ((outcomes, not_before),) = calls
        if not_before is None:
            return state.acknowledge(lease, outcomes, outputs=outputs)
        return state.acknowledge(lease, outcomes, outputs=outputs, not_before=not_before)
    request_id = uuid4()

    def once() -> Acknowledged:
        with state.transaction() as (connection, joined):
            connection.execute(sa.text(f"set local idle_in_transaction_session_timeout = {STOPPED_MS}"))

            def send() -> Acknowledged:
                return _together(
                    [
                        joined.acknowledge(
                            lease,
                            outcomes,
                            outputs=() if at else outputs,
                            request_id=uuid5(request_id, str(at)),
                            not_before=not_before,
                        )
                        for at, (outcomes, not_before) in enumerate(calls)
                    ]
                )

            return send() if around is None else around(connection, send)

    try:
        return once()
    except DBAPIError as error:
        if not (error.connection_invalidated or isinstance(error, OperationalError)):
            raise
        return once()


@dataclass(frozen=True, slots=True)
class ToAcknowledge:
    """A lease, its acknowledgement, and the outputs that count with it."""

    lease: Lease
    acknowledgement: Acknowledgement
    outputs: Sequence[LeaseOutput] = ()


def acknowledge_all(state: State, keeper: LeaseKeeper, given: Sequence[ToAcknowledge]) -> list[Acknowledged]:
    """Acknowledge many leases, each whole or not at all, in a few calls side by side; the keeper then drops them.

    A lease with several times not before is a transaction of its own. Raises LockLost, and the first refusal after
    all the other leases have been acknowledged.
    """
    if not given:
        return []
    plain = [each for each in given if len(_calls(each.acknowledgement)) == 1]
    others = [each for each in given if len(_calls(each.acknowledgement)) > 1]
    # As many calls for each of those at once, so that they end together.
    turns = -(-len(plain) // (A_CALL * CALLS_AT_ONCE)) or 1
    size = -(-len(plain) // (turns * CALLS_AT_ONCE)) or 1
    results: dict[int, Acknowledged | ShareError] = {}
    if len(plain) <= size:
        results |= _in_one_call(state, keeper, plain)
    else:
        with ThreadPoolExecutor(CALLS_AT_ONCE) as pool:
            for some in pool.map(lambda some: _in_one_call(state, keeper, some), in_calls(plain, size)):
                results |= some
    for each in others:
        with keeper.acknowledging(each.lease) as kept:
            results[each.lease.lease_id] = acknowledge(state, kept, each.acknowledgement, each.outputs)
    acknowledged: list[Acknowledged] = []
    for each in given:
        result = results[each.lease.lease_id]
        if isinstance(result, ShareError):
            raise result
        acknowledged.append(result)
    return acknowledged


def _in_one_call(
    state: State, keeper: LeaseKeeper, given: Sequence[ToAcknowledge]
) -> dict[int, Acknowledged | ShareError]:
    with keeper.acknowledging_many([each.lease for each in given]) as leases:
        wanted = []
        for lease, each in zip(leases, given, strict=True):
            ((outcomes, not_before),) = _calls(each.acknowledgement)
            wanted.append(LeaseAcknowledgement(lease, outcomes, each.outputs, not_before))
        results = dict(zip([lease.lease_id for lease in leases], state.many.acknowledge(wanted), strict=True))
        for lease in leases:
            if not isinstance(results[lease.lease_id], ShareError):
                keeper.drop(lease)
    return results


def rounded(delays: Mapping[int, OffsetSet], most: int = MOST_DELAYS) -> dict[int, OffsetSet]:
    """Return offsets by the second from which they may be delivered, in at most `most` groups, none sooner."""
    for step in STEPS_SECONDS:
        groups: dict[int, OffsetSet] = {}
        for second, offsets in delays.items():
            at = -(-second // step) * step
            groups[at] = groups.get(at, EMPTY) | offsets
        if len(groups) <= most:
            break
    return groups


def _calls(
    acknowledgement: Acknowledgement,
) -> list[tuple[dict[AcknowledgeType, OffsetSet], datetime | None]]:
    """Return the calls that an acknowledgement takes. What is accepted comes first, with the outputs: the first call
    lets go of what retention took from the lease meanwhile.
    """
    delayed: list[tuple[dict[AcknowledgeType, OffsetSet], datetime | None]] = []
    rest = dict(acknowledgement.outcomes)
    for second, offsets in sorted(rounded(acknowledgement.delays).items()):
        delayed.append(({AcknowledgeType.RELEASE: offsets}, datetime.fromtimestamp(second, UTC)))
        rest[AcknowledgeType.RELEASE] -= offsets
    rest = {kind: offsets for kind, offsets in rest.items() if offsets}
    return [(rest, None), *delayed] if rest or not delayed else delayed


def _together(parts: Sequence[Acknowledged]) -> Acknowledged:
    """Return the sums; SPSO and lag are those after the last call."""
    return Acknowledged(
        spso=parts[-1].spso,
        lag=parts[-1].lag,
        accepted=sum(part.accepted for part in parts),
        released=sum(part.released for part in parts),
        rejected=sum(part.rejected for part in parts),
        gaps=sum(part.gaps for part in parts),
        exhausted=sum(part.exhausted for part in parts),
    )
