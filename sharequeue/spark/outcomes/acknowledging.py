"""Acknowledge leases: one call of the state takes all outcomes.

Released records wait for the back-off of the group, or until the time that their handler gave. If a handler gave too
many different times, they are rounded up further, so that no record is redelivered before the time its handler gave.
A sink that must commit together with the acknowledgement does its work in the same transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID, uuid4

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, OperationalError

from sharequeue.spark.leasing.renewal import LeaseKeeper
from sharequeue.spark.outcomes.outcomes import Acknowledgement
from sharequeue.state import State
from sharequeue.state.calls import A_CALL, LeaseAcknowledgement, in_calls
from sharequeue.words.errors import ShareError
from sharequeue.words.offsets import EMPTY, OffsetSet
from sharequeue.words.values import Acknowledged, Lease, LeaseOutput

MOST_DELAYS = 100
"""The most different times of one lease; the state takes a hundred."""
STEPS_SECONDS = (1, 10, 60, 600, 3600, 86_400)
"""Steps in seconds to which times are rounded up: the first that leaves at most MOST_DELAYS different times is used.
"""

CALLS_AT_ONCE = 4
"""The number of parallel calls, fewer than the connections of the pool, so that renewals continue."""

STOPPED_MS = 10_000
"""How long the transaction of an acknowledgement may be idle. It locks the share-partition. When the driver stops
inside it, Postgres ends it after this time, and other workers can continue.
"""

Around = Callable[[sa.Connection, Callable[[], Acknowledged]], Acknowledged]
"""The work of a sink in the acknowledgement's transaction: its own statements first, then the call passed to it."""


def acknowledge(
    state: State,
    lease: Lease,
    acknowledgement: Acknowledgement,
    outputs: Sequence[LeaseOutput],
    around: Around | None = None,
) -> Acknowledged:
    """Acknowledge a lease, all or nothing, in one transaction with the work of `around`; the outputs count from this
    commit on.

    Raises the error of `State.acknowledge`; the work of `around` is then rolled back. A transaction whose end is not
    known is repeated once: `around` must check whether the first one committed.
    """
    wanted = to_send(lease, acknowledgement, outputs)
    if around is None:
        return _sent(state, wanted)
    request_id = uuid4()

    def once() -> Acknowledged:
        with state.transaction() as (connection, joined):
            connection.execute(sa.text(f"set local idle_in_transaction_session_timeout = {STOPPED_MS}"))
            return around(connection, lambda: _sent(joined, wanted, request_id))

    try:
        return once()
    except DBAPIError as error:
        if not (error.connection_invalidated or isinstance(error, OperationalError)):
            raise
        return once()


def _sent(
    state: State, acknowledgement: LeaseAcknowledgement, request_id: UUID | None = None
) -> Acknowledged:
    (result,) = state.acknowledge([acknowledgement], request_id=request_id)
    if isinstance(result, ShareError):
        raise result
    return result


def acknowledge_all(
    state: State, keeper: LeaseKeeper, given: Sequence[LeaseAcknowledgement]
) -> list[Acknowledged]:
    """Acknowledge many leases, each whole or not at all, in a few parallel calls; the keeper then drops them.

    Raises LockLost, and the first error after all other leases have been acknowledged.
    """
    if not given:
        return []
    # Divided evenly, so that the parallel calls end together.
    turns = -(-len(given) // (A_CALL * CALLS_AT_ONCE))
    size = -(-len(given) // (turns * CALLS_AT_ONCE))
    results: dict[int, Acknowledged | ShareError] = {}
    if len(given) <= size:
        results |= _in_one_call(state, keeper, given)
    else:
        with ThreadPoolExecutor(CALLS_AT_ONCE) as pool:
            for some in pool.map(lambda some: _in_one_call(state, keeper, some), in_calls(given, size)):
                results |= some
    acknowledged: list[Acknowledged] = []
    for each in given:
        result = results[each.lease.lease_id]
        if isinstance(result, ShareError):
            raise result
        acknowledged.append(result)
    return acknowledged


def _in_one_call(
    state: State, keeper: LeaseKeeper, given: Sequence[LeaseAcknowledgement]
) -> dict[int, Acknowledged | ShareError]:
    with keeper.acknowledging([each.lease for each in given]) as leases:
        wanted = [replace(each, lease=lease) for lease, each in zip(leases, given, strict=True)]
        results = dict(zip([lease.lease_id for lease in leases], state.acknowledge(wanted), strict=True))
        for lease in leases:
            if not isinstance(results[lease.lease_id], ShareError):
                keeper.drop(lease)
    return results


def rounded(delays: Mapping[int, OffsetSet], most: int = MOST_DELAYS) -> dict[int, OffsetSet]:
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
    lease: Lease, acknowledgement: Acknowledgement, outputs: Sequence[LeaseOutput] = ()
) -> LeaseAcknowledgement:
    """Return an acknowledgement as the state takes it, with the outputs that count with it."""
    delays = {
        datetime.fromtimestamp(second, UTC): offsets
        for second, offsets in sorted(rounded(acknowledgement.delays).items())
    }
    return LeaseAcknowledgement(lease, acknowledgement.outcomes, outputs, backoff=True, delays=delays)
