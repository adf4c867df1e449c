"""The in-memory engine behind the methods of ``State``, as pipelines and dead-letter writers call them."""

from __future__ import annotations

import inspect
from uuid import UUID

import pytest

from sharequeue.errors import InvalidRecordState
from sharequeue.leases import LeaseOutput
from sharequeue.offsets import OffsetSet
from sharequeue.state import State
from sharequeue.state_administration import StateAdministration
from sharequeue.state_fetches import StateFetches
from sharequeue.testing import InMemoryState
from tests.conformance.drawing import ACCEPT, REJECT, RELEASE, RENEW, T0


@pytest.fixture
def state() -> InMemoryState:
    """A share-partition of 100 records, in a group with a DLQ."""
    fresh = InMemoryState()
    fresh.groups.configure("g", {"errors.deadletterqueue.topic.name": "dlq.q"})
    assert fresh.initialize(T0, "id", 0, 1)
    assert fresh.observe(T0, "id", 0, 100, 100) == "active"
    return fresh


def test_it_has_every_method_of_state() -> None:
    """Code that was written for `State` finds all it calls; operators' acts and Kafka's batches are `groups`'s."""
    elsewhere = {*vars(StateAdministration), *vars(StateFetches)}
    methods = [name for name, _ in inspect.getmembers(State, inspect.isfunction) if not name.startswith("_")]
    assert [name for name in methods if not hasattr(InMemoryState, name) and name not in elsewhere] == []


def test_a_lease_from_acquire_to_dead_letter(state: InMemoryState) -> None:
    """Answers by set, outputs that count with the acknowledgement, two-phase dead letters, and the figures."""
    lease = state.acquire(T0, "run", None, 10)
    assert lease is not None
    assert lease.offsets == OffsetSet.of((0, 10))
    with pytest.raises(ValueError, match="renew"):
        state.acknowledge(lease, {RENEW: lease.offsets})
    outcomes = {
        ACCEPT: OffsetSet.of((0, 5), (6, 8)),
        REJECT: OffsetSet.of((5, 6)),
        RELEASE: OffsetSet.of((8, 10)),
    }
    made = [LeaseOutput("files", "lease=1", 7)]
    for _ in range(2):  # the second is a retry after a lost reply
        done = state.acknowledge(lease, outcomes, outputs=made, request_id=UUID(int=7))
        assert (done.accepted, done.rejected, done.released, done.spso) == (7, 1, 2, 5)
    assert [row.location for row in state.outputs("g", "files")] == ["lease=1"]
    batch = state.open_dead_letters(T0, 10)
    assert batch is not None
    assert state.close_dead_letters(T0, batch.sequence) == 1
    assert [(run.cause, run.offsets) for run in state.dead_letters("g")] == [
        ("rejected", OffsetSet.of((5, 6)))
    ]
    (status,) = state.describe()
    assert (status.spso, status.speo, status.lag, status.available) == (8, 10, 92, 2)
    counted = {(row.outcome, row.delivery_count): row.records for row in state.delivery_counts("g")}
    assert counted == {("accepted", 1): 7, ("rejected", 1): 1}
    assert state.verify() == []


def test_a_lapsed_lease_is_told_so(state: InMemoryState) -> None:
    """Who holds what until when; after that, neither renewing nor answering is possible."""
    lease = state.acquire(T0, "run", None, 10, lock_duration_ms=5000)
    assert lease is not None
    (row,) = state.leases("g")
    assert (row.member_id, row.records, row.seconds_left) == ("run", 10, 5.0)
    state.groups.advance(4)
    assert state.renew(lease) > lease.expires_at
    state.groups.advance(5)
    with pytest.raises(InvalidRecordState):
        state.renew(lease)
    with pytest.raises(InvalidRecordState):
        state.acknowledge(lease, {ACCEPT: lease.offsets})
    (status,) = state.describe("g")
    assert (status.acquired, status.available, status.leases) == (0, 10, 0)
