"""A clock that was an hour ahead and is corrected: what was stored before counts as now, and the step is named."""

from __future__ import annotations

from datetime import timedelta

import pytest
import sqlalchemy as sa

from sharequeue.domain.values import AcknowledgementBatch, AcknowledgeType, LeaseOutput, SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.groups.heartbeats import HeartbeatRequest, due_groups, expire_members_of, heartbeat
from sharequeue.reports.waiting_work import work_of
from sharequeue.service.coordinator.service_leases import ServiceLease
from sharequeue.service.health.faults import recorded_faults
from sharequeue.state import State
from sharequeue.state.replicas import hear_replica, read_replicas
from tests import single
from tests.integration.state.state_calls import journal_differs, take
from tests.integration.state.test_circuit_breaker import BREAKER, trip
from tests.waiting import pass_time, set_clock

HOUR = timedelta(hours=1)
ALIVE = timedelta(seconds=10)


@pytest.fixture
def state(state: State) -> State:
    """Give a state whose clock is an hour ahead, until a test corrects it."""
    set_clock(state.database, HOUR)
    return state


def correct(state: State) -> None:
    set_clock(state.database, timedelta(0))


def seconds_left(state: State) -> list[float]:
    return sorted(row.seconds_left for row in state.figures.leases("g"))


def stored_seconds(state: State) -> list[float]:
    """By how much the stored expiries are ahead of the clock."""
    rows = state.database.rows(
        sa.text("select extract(epoch from expires_at - sharequeue.clock()) as left from sharequeue.leases")
    )
    return sorted(float(row["left"]) for row in rows)


def test_a_lock_from_the_future_counts_as_taken_now(state: State, at: SharePartition) -> None:
    """The corrected clock shows no lock of an hour, and the records of a dead holder come back after one lock."""
    take(state, at)
    correct(state)
    assert seconds_left(state) == [30]
    assert [row.held_seconds for row in state.figures.leases("g")] == [0]
    # The next member's call notices it; no service is needed.
    assert take(state, at).offsets.first == 10
    assert stored_seconds(state) == [30, 30]
    pass_time(state.database, 31)
    assert take(state, at).deliveries[0].delivery_count == 2
    assert journal_differs(state) == []


def test_the_sweep_corrects_locks_from_the_future(state: State, at: SharePartition) -> None:
    """Renewed whole or in part before the correction: the service's sweep gives each its own duration from now."""
    lease = take(state, at)
    single.renew(state, lease)
    pass_time(state.database, 5)
    state.fetches.acknowledge_batches(at, "m", [AcknowledgementBatch.of(3, 4, AcknowledgeType.RENEW)])
    correct(state)
    assert state.sweep().leases == 0
    assert stored_seconds(state) == [30, 30]
    assert state.figures.verify() == []
    assert journal_differs(state) == []
    pass_time(state.database, 31)
    assert state.sweep().records == 10


def test_a_lock_that_an_operator_extended_stays(state: State, at: SharePartition) -> None:
    """A lock may end later than its duration; only one that was taken in the future is corrected."""
    correct(state)
    take(state, at)
    state.administration.extend_locks(HOUR)
    state.sweep()
    take(state, at)
    assert max(stored_seconds(state)) > 3600


def test_a_member_that_joins_gets_its_share_partitions(state: State, at: SharePartition) -> None:
    """An assignment in the future does not delay the next one, and a session in the future ends in its own time."""
    database = state.database
    joined = heartbeat(database, HeartbeatRequest("g", "one", 0, subscribed_topic_names=("t",)))
    assert joined.assignment
    correct(state)
    second = heartbeat(database, HeartbeatRequest("g", "two", 0, subscribed_topic_names=("t",)))
    assert (second.error_code, second.member_epoch) == (0, joined.member_epoch + 1)
    assert due_groups(database).overdue == ("g",)
    assert expire_members_of(database, "g") == []
    pass_time(database, 60)
    assert expire_members_of(database, "g") == ["one", "two"]


def test_a_dead_service_does_not_count_as_alive(state: State, at: SharePartition) -> None:
    """What it stored in the future proves nothing: not that it is active, writes letters, or has a task."""
    database = state.database
    hear_replica(database, "dead", writes_letters=True)
    assert ServiceLease(database, "watch", "dead", 10).take()
    assert state.dead_letters.service_writes_letters()
    correct(state)
    assert not state.dead_letters.service_writes_letters()
    assert read_replicas(database).alive == 0
    assert work_of(database, "g").service_silent_for() == HOUR
    assert ServiceLease(database, "watch", "alive", 10).take()
    # A live one corrects the time of the dead one, so that it cannot hide a later silence.
    hear_replica(database, "alive")
    heartbeat(database, HeartbeatRequest("g", "one", 0, subscribed_topic_names=("t",)))
    pass_time(database, 1800)
    unheard = hear_replica(database, "next", ALIVE)
    assert unheard is not None
    assert unheard >= timedelta(minutes=30)
    assert expire_members_of(database, "g") == []


def test_a_clock_that_was_set_back_is_a_fault(state: State, at: SharePartition) -> None:
    """The service's next beat finds the step; it is in its faults until the old time is reached again."""
    database = state.database
    hear_replica(database, "one")
    state.administration.beat()
    assert recorded_faults(read_replicas(database), []) == []
    correct(state)
    assert state.administration.beat(ALIVE) is None
    (fault,) = recorded_faults(read_replicas(database), [])
    assert fault.kind == "clock"
    assert fault.reason.startswith("The database's clock was set back by 3600 s.")
    pass_time(database, 3601)
    hear_replica(database, "one")
    assert recorded_faults(read_replicas(database), []) == []


def test_an_outage_in_the_future_extends_no_lock(state: State, at: SharePartition) -> None:
    """A period without beats that was recorded by the wrong clock is forgotten when the clock is corrected."""
    state.administration.beat()
    pass_time(state.database, 600)
    assert state.administration.beat(ALIVE) is not None
    correct(state)
    state.administration.beat(ALIVE)
    pass_time(state.database, 3590)
    state.administration.beat()
    take(state, at)
    for _ in range(4):
        pass_time(state.database, 8)
        state.administration.beat()
    assert state.sweep().leases == 1


def test_an_open_breaker_in_the_future_gives_a_probe(state: State, at: SharePartition) -> None:
    """A probe that would be due in an hour is due now, and no reason says otherwise."""
    alter_group_configs(state.database, "g", BREAKER)
    trip(state, at)
    assert single.acquire(state, at, "m", None, 10) is None
    correct(state)
    assert state.figures.describe("g")[0].blocked_by is None
    assert take(state, at).offsets.count == 3


def test_a_claim_of_the_future_does_not_hold_a_transfer(state: State, at: SharePartition) -> None:
    """A transfer that was claimed for 30 s is not busy for an hour."""
    lease = take(state, at)
    output = LeaseOutput("lake", "sink:pending:file:/a", 10)
    single.acknowledge(state, lease, {AcknowledgeType.ACCEPT: lease.offsets}, outputs=[output])
    claim = timedelta(seconds=30)
    first = state.outputs.begin_transfer("g", "lake", claim)
    correct(state)
    again = state.outputs.begin_transfer("g", "lake", claim)
    assert first is not None
    assert again is not None
    assert (again.number, again.busy) == (first.number, False)


def test_an_observation_in_the_future_is_replaced(state: State, at: SharePartition) -> None:
    """The next look at an unchanged log writes the present time, so that old figures do not look new."""
    single.observe(state, at, "id", 0, 1000, 1000)
    correct(state)
    single.observe(state, at, "id", 0, 1000, 1000)
    seen = state.figures.describe("g")[0].observed_at
    assert seen is not None
    assert seen <= state.now()


def test_a_topic_that_was_gone_in_the_future_is_not_removed(state: State, at: SharePartition) -> None:
    """How long the broker has reported a topic as gone is counted again from the corrected time on."""

    def note() -> None:
        state.database.rows(sa.text("select sharequeue.note_topics(array['t'], array[cast(null as text)])"))

    note()
    pass_time(state.database, 30)
    note()
    correct(state)
    minute = timedelta(minutes=1)
    assert state.administration.remove_deleted_topics(minute, execute=False) == []
    note()
    pass_time(state.database, 40)
    note()
    assert state.administration.remove_deleted_topics(minute, execute=False) == []
    pass_time(state.database, 40)
    note()
    assert len(state.administration.remove_deleted_topics(minute, execute=False)) == 1
