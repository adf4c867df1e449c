"""The in-memory engine behind the methods of ``State``, as pipelines and dead-letter writers call them."""

from __future__ import annotations

import inspect
from datetime import timedelta
from uuid import UUID

import pytest

from sharequeue.errors import InvalidRecordState, InvalidRequest
from sharequeue.offsets import OffsetSet
from sharequeue.state import State
from sharequeue.state.dead_letters import DeadLetters
from sharequeue.state.figures import Figures
from sharequeue.testing import InMemoryShareGroups, InMemoryState
from sharequeue.values import LeaseOutput
from tests.conformance.drawing import ACCEPT, REJECT, RELEASE, RENEW, T0
from tests.fixtures.stack import LOCK_BOUNDS


@pytest.fixture
def state() -> InMemoryState:
    """A share-partition of 100 records, in a group with a DLQ."""
    fresh = InMemoryState()
    fresh.groups.configure("g", {"errors.deadletterqueue.topic.name": "dlq.q"})
    assert fresh.initialize(T0, "id", 0, 1)
    assert fresh.observe(T0, "id", 0, 100, 100) == "active"
    return fresh


def test_it_has_every_method_of_state(state: InMemoryState) -> None:
    """Code that was written for `State` finds all it calls; Kafka's batches, and what else an operator does, are
    `groups`'s. A transaction with the caller's own tables, and the compaction of files, need the database; calls for
    many share-partitions save round trips, of which there are none here."""
    parts = ((State, state), (DeadLetters, state.dead_letters), (Figures, state.figures))
    missing = {
        name
        for real, memory in parts
        for name, _ in inspect.getmembers(real, inspect.isfunction)
        if not name.startswith("_") and not hasattr(memory, name)
    }
    assert missing == {"transaction"}


def test_a_lease_from_acquire_to_dead_letter(state: InMemoryState) -> None:
    """Acknowledgements by set, outputs that count with the acknowledgement, two-phase dead letters, and the
    figures."""
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
    made = [LeaseOutput("files", "lease=1", 7), LeaseOutput("files-exceptions", "failed/lease=1", 3)]
    for _ in range(2):  # the second is a retry after a lost reply
        done = state.acknowledge(lease, outcomes, outputs=made, request_id=UUID(int=7))
        assert (done.accepted, done.rejected, done.released, done.spso) == (7, 1, 2, 5)
    assert [row.location for row in state.outputs.counted("g", "files")] == ["lease=1"]
    with pytest.raises(InvalidRecordState, match="output"):  # the lease is over: it has no further output
        state.acknowledge(lease, {ACCEPT: OffsetSet.of((0, 5))}, outputs=made)
    batch = state.dead_letters.open(T0, 10)
    assert batch is not None
    (attempt,) = state.dead_letters.attempts(T0, batch.sequence)
    assert (attempt.member_id, attempt.exceptions) == ("run", "failed/lease=1")
    assert attempt.offsets == OffsetSet.of((5, 6))
    state.dead_letters.hold(T0, "no such topic")
    (held,) = state.dead_letters.held()
    assert (held.share_partition, held.records, held.reason) == (T0, 1, "no such topic")
    assert state.dead_letters.close(T0, batch.sequence) == 1
    assert state.dead_letters.held("g") == []
    assert [(run.cause, run.offsets) for run in state.dead_letters.written("g")] == [
        ("rejected", OffsetSet.of((5, 6)))
    ]
    (status,) = state.figures.describe()
    assert (status.spso, status.speo, status.lag, status.available) == (8, 10, 92, 2)
    counted = {(row.outcome, row.delivery_count): row.records for row in state.figures.delivery_counts("g")}
    assert counted == {("accepted", 1): 7, ("rejected", 1): 1}
    assert state.figures.verify() == []


def test_a_lapsed_lease_is_refused(state: InMemoryState) -> None:
    """Who holds what until when; after that, neither renewing nor acknowledging is possible."""
    lease = state.acquire(T0, "run", None, 10, lock_duration_ms=15_000)
    assert lease is not None
    (row,) = state.figures.leases("g")
    assert (row.member_id, row.records, row.seconds_left) == ("run", 10, 15.0)
    state.groups.advance(14)
    assert state.renew(lease) > lease.expires_at
    state.groups.advance(15)
    with pytest.raises(InvalidRecordState):
        state.renew(lease)
    with pytest.raises(InvalidRecordState):
        state.acknowledge(lease, {ACCEPT: lease.offsets})
    (status,) = state.figures.describe("g")
    assert (status.acquired, status.available, status.leases) == (0, 10, 0)


def test_the_bounds_of_locks() -> None:
    """15 and 60 s where the service says nothing else: an acquire outside is refused, a group's own is clamped."""
    state = InMemoryState()
    for least, most in ((15_000, 60_000), (1000, 3_600_000)):
        state.groups.configure("g", {"share.record.lock.duration.ms": least - 1})
        assert state.initialize(T0, "id", 0, 1)
        assert state.observe(T0, "id", 0, 100, 100) == "active"
        for outside in (least - 1, most + 1):
            with pytest.raises(InvalidRequest, match=f"{least} to {most} ms"):
                state.acquire(T0, "run", None, 1, lock_duration_ms=outside)
        for inside, lasts in ((least, least), (most, most), (None, least)):
            lease = state.acquire(T0, "run", None, 1, lock_duration_ms=inside)
            assert lease is not None
            assert lease.lock_duration_ms == lasts
        state = InMemoryState(InMemoryShareGroups(service_configs=LOCK_BOUNDS))


def test_what_goes_beyond_kafka(state: InMemoryState) -> None:
    """Not-before, pause, refund, moves by hand, longer locks and the figures of all that, under `State`'s names."""
    lease = state.acquire(T0, "run", None, 10)
    assert lease is not None
    due = state.now() + timedelta(seconds=59.5)
    state.acknowledge(lease, {RELEASE: OffsetSet.of((0, 5))}, not_before=due)
    assert state.figures.describe("g")[0].waiting == 5
    assert state.administration.pause("g", "the warehouse is closed") == 1
    assert state.acquire(T0, "run", None, 10) is None
    assert state.figures.describe("g")[0].paused_reason == "the warehouse is closed"
    assert state.administration.pause("g", None) == 1
    state.groups.configure("g", {"sharequeue.cancelled.run.refund.enable": True})
    assert state.release("g", "run", cancelled=True) == 5
    again = state.acquire(T0, "run", None, 4)
    assert again is not None
    assert [(d.delivery_count, str(d.offsets)) for d in again.deliveries] == [(1, "{[5,9)}")]
    assert state.administration.extend_locks(timedelta(seconds=60)) == 1
    state.groups.advance(60)
    (first,) = state.administration.force_release(T0, OffsetSet.of((5, 7)), execute=True)
    assert (first.act, first.member_id, str(first.offsets)) == ("release", "run", "{[5,7)}")
    with pytest.raises(InvalidRecordState):
        state.acknowledge(again, {ACCEPT: again.offsets})
    (given_up,) = state.administration.force_dead_letter(T0, OffsetSet.of((0, 1)), execute=True)
    assert (given_up.act, state.figures.describe("g")[0].archiving) == ("dead_letter", 1)
    assert state.administration.raise_state_epochs() == 1
    assert state.figures.verify() == []


def test_an_outage_burns_no_attempts(state: InMemoryState) -> None:
    """Everything fails: the circuit opens, each probe is small and gives its delivery back, resuming closes it."""
    breaker = {"failure.percent": 50, "min.records": 10, "probe.records": 3, "open.ms": 60_000}
    state.groups.configure(
        "g", {f"sharequeue.circuit.breaker.{name}": value for name, value in breaker.items()}
    )
    lease = state.acquire(T0, "run", None, 10)
    assert lease is not None
    state.acknowledge(lease, {RELEASE: lease.offsets})
    for _ in range(20):
        assert state.acquire(T0, "run", None, 10) is None
        state.groups.advance(61)
        probe = state.acquire(T0, "run", None, 10)
        assert probe is not None
        assert probe.offsets.count <= 3
        state.acknowledge(probe, {RELEASE: probe.offsets})
    assert state.figures.describe("g")[0].highest_delivery_count == 1
    assert "of the probe failed" in (state.figures.describe("g")[0].paused_reason or "")
    state.administration.pause("g", None)
    assert state.acquire(T0, "run", None, 10) is not None
    assert state.figures.verify() == []


def test_an_output_is_of_the_live_holder_and_one_for_each_sink(state: InMemoryState) -> None:
    """As in Postgres: a late holder's is refused although SPSO has passed its records, and so is a second one."""
    late = state.acquire(T0, "late", None, 10)
    assert late is not None
    state.administration.force_release(T0, late.offsets, execute=True)
    lease = state.acquire(T0, "run", None, 10)
    assert lease is not None
    made = [LeaseOutput("files", "lease=2", 5)]
    state.acknowledge(lease, {ACCEPT: OffsetSet.of((0, 5))}, outputs=made)
    with pytest.raises(InvalidRequest, match="sink files"):
        state.acknowledge(lease, {ACCEPT: OffsetSet.of((5, 10))}, outputs=made)
    state.acknowledge(lease, {ACCEPT: OffsetSet.of((5, 10))}, request_id=UUID(int=1))
    with pytest.raises(InvalidRecordState, match="output"):
        state.acknowledge(late, {ACCEPT: late.offsets}, outputs=made, request_id=UUID(int=1))
    assert state.acknowledge(late, {ACCEPT: late.offsets}).accepted == 0
    assert [row.records for row in state.outputs.counted("g", "files")] == [5]
