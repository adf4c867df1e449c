"""Order by key in the state: one open lease, what an acknowledgement reports of keys, and what is leased after it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from hashlib import md5
from uuid import UUID

import pytest
import sqlalchemy as sa

from sharequeue.domain.errors import ShareError
from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.domain.values import Acknowledged, AcknowledgeType, Lease, SharePartition
from sharequeue.state import State
from sharequeue.state.calls import LeaseAcknowledgement
from tests import single
from tests.integration.state.state_calls import in_flight, journal_differs
from tests.waiting import pass_time

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
BACKOFF = timedelta(seconds=30)


@pytest.fixture
def at_configs() -> dict[str, str]:
    return {
        "sharequeue.order": "key",
        "errors.deadletterqueue.topic.name": "dlq.letters",
        "share.partition.max.record.locks": "100000",
    }


def key(name: str) -> UUID:
    return UUID(md5(name.encode(), usedforsecurity=False).hexdigest())


K, L = key("k"), key("l")


def some(*offsets: int) -> OffsetSet:
    return OffsetSet.of(*((offset, offset + 1) for offset in offsets))


def take(state: State, at: SharePartition, most: int = 10) -> Lease | None:
    return single.acquire(state, at, "m", None, most)


def acknowledge(
    state: State,
    lease: Lease,
    *,
    accept: OffsetSet = EMPTY,
    release: OffsetSet = EMPTY,
    reject: OffsetSet = EMPTY,
    hold: OffsetSet = EMPTY,
    keys: Mapping[UUID | None, OffsetSet] | None = None,
    wait: timedelta | None = BACKOFF,
) -> Acknowledged | ShareError:
    (result,) = state.acknowledge(
        [
            LeaseAcknowledgement(
                lease,
                {ACCEPT: accept, RELEASE: release, REJECT: reject},
                not_before=None if wait is None else state.now() + wait,
                holds=hold,
                keys=keys or {},
            )
        ]
    )
    return result


def sound(state: State) -> None:
    """The invariants hold, and a replay of the journal gives the present state."""
    assert state.database.rows(sa.text("select violation from sharequeue.verify()")) == []
    assert journal_differs(state) == []


def test_one_lease_is_open_at_a_time(state: State, at: SharePartition) -> None:
    """Nothing is leased from a share-partition of an ordered group that has a lease, whoever asks."""
    lease = take(state, at)
    assert lease is not None
    assert take(state, at) is None
    acknowledge(state, lease, accept=lease.offsets)
    second = take(state, at)
    assert second is not None
    assert second.offsets == OffsetSet.of((10, 20))


def test_held_records_come_back_with_the_first_of_their_key(state: State, at: SharePartition) -> None:
    """A hold gives the delivery back, and waits as long as the release of its key; other keys go on."""
    lease = take(state, at)
    assert lease is not None
    result = acknowledge(
        state,
        lease,
        accept=OffsetSet.of((0, 5), (6, 8), (9, 10)),
        release=some(5),
        hold=some(8),
        keys={K: some(5, 8)},
    )
    assert isinstance(result, Acknowledged)
    assert [part for part in in_flight(state) if part[0] == 0] == [(0, 1, "{[5,6)}"), (0, 0, "{[8,9)}")]
    fresh = take(state, at)
    assert fresh is not None
    assert fresh.offsets == OffsetSet.of((10, 20))
    blocked = state.blocked_keys(at.group_id, [fresh.token])[fresh.token]
    assert (list(blocked.hashes), list(blocked.first_offsets)) == ([K], [5])
    assert blocked.untils[0] is not None
    acknowledge(state, fresh, accept=OffsetSet.of((11, 20)), hold=some(10), keys={K: some(10)})
    pass_time(state.database, BACKOFF.total_seconds() + 1)
    again = take(state, at, 100)
    assert again is not None
    assert again.offsets == OffsetSet.of((5, 6), (8, 9), (10, 11), (20, 117))
    assert list(state.blocked_keys(at.group_id, [again.token])[again.token].hashes) == []
    acknowledge(state, again, accept=again.offsets)
    assert state.database.rows(sa.text("select * from sharequeue.open_key_records")) == []
    sound(state)
