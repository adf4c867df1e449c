"""Operations beyond Kafka's, in SQL and through State: not-before, refunds, forced moves, pauses, who is refused."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from sharequeue.domain.errors import (
    GroupIdNotFound,
    InvalidRecordState,
    InvalidRequest,
    UnknownTopicOrPartition,
)
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import Acknowledged, AcknowledgeType, Lease, SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.state import State
from sharequeue.state.calls import DELAYS, LeaseAcknowledgement
from sharequeue.state.rows import Redelivery
from tests import single
from tests.integration.state.state_calls import audited, in_flight, journal_differs, take
from tests.waiting import pass_time

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
BOTH: tuple[Redelivery, Redelivery] = ("kafka", "fan_out")
REFUND = {"sharequeue.cancelled.run.refund.enable": True}


@pytest.fixture
def at_configs() -> Mapping[str, str | int]:
    """100 of the records may be in flight."""
    return {"share.partition.max.record.locks": 100}


# Not before --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("redelivery", BOTH)
def test_released_records_wait_for_their_time(
    state: State, at: SharePartition, redelivery: Redelivery
) -> None:
    """What is released with a time is not delivered before it, and delivered after, rounded up to seconds."""
    lease = take(state, at, 10, redelivery)
    due = state.now().replace(microsecond=1) + timedelta(seconds=60)
    single.acknowledge(state, lease, {RELEASE: lease.offsets}, not_before=due)
    assert state.figures.describe("g")[0].waiting == 10
    rows = state.database.rows(sa.text("select distinct not_before from sharequeue.in_flight_offsets"))
    assert [row["not_before"] for row in rows] == [due.replace(microsecond=0) + timedelta(seconds=1)]
    fresh = take(state, at, 5, redelivery)
    assert fresh.offsets == OffsetSet.of((10, 15))
    single.acknowledge(state, fresh, {ACCEPT: fresh.offsets})
    pass_time(state.database, 62)
    again = take(state, at, 10, redelivery)
    assert [(d.delivery_count, d.offsets) for d in again.deliveries][:1] == [(2, OffsetSet.of((0, 10)))]
    assert (state.figures.verify(), journal_differs(state)) == ([], [])


@pytest.mark.parametrize("redelivery", BOTH)
def test_waiting_records_do_not_hold_up_the_window(
    state: State, at: SharePartition, redelivery: Redelivery
) -> None:
    """With 100 allowed in flight and 100 waiting, 100 fresh ones can be leased; once due, they count again."""
    for _ in range(3):
        lease = take(state, at, 100, redelivery)
        assert lease.offsets.count == 100
        single.acknowledge(
            state, lease, {RELEASE: lease.offsets}, not_before=state.now() + timedelta(seconds=60)
        )
    lease = take(state, at, 100, redelivery)
    assert lease.offsets == OffsetSet.of((300, 400))
    assert single.acquire(state, at, "m", None, 1, redelivery=redelivery) is None
    single.acknowledge(state, lease, {ACCEPT: lease.offsets})
    pass_time(state.database, 62)
    while (lease_or_none := single.acquire(state, at, "m", None, 100, redelivery=redelivery)) is not None:
        assert lease_or_none.offsets.end <= 300
        single.acknowledge(state, lease_or_none, {ACCEPT: lease_or_none.offsets})
        if state.figures.describe("g")[0].spso == 400:
            break
    assert (state.figures.verify(), journal_differs(state)) == ([], [])


# Cancelled runs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("refund", [False, True])
@pytest.mark.parametrize("redelivery", BOTH)
def test_a_cancelled_run_by_policy(
    state: State, at: SharePartition, redelivery: Redelivery, refund: bool
) -> None:
    """With refunds a cancelled run's records come back as if never delivered; without, the count stays (Kafka).

    Either way they are no suspects: all come back in one lease.
    """
    alter_group_configs(state.database, "g", {"sharequeue.cancelled.run.refund.enable": refund})
    take(state, at, 50, redelivery)
    assert state.release_member("g", "m", cancelled=True) == 50
    again = take(state, at, 50, redelivery)
    assert [(d.delivery_count, d.offsets) for d in again.deliveries] == [
        (1 if refund else 2, OffsetSet.of((0, 50)))
    ]
    assert (state.figures.verify(), journal_differs(state)) == ([], [])


def test_ten_cancelled_runs_cost_no_attempt(state: State, at: SharePartition) -> None:
    """With refunds, pre-emption however often repeated never exhausts a record; one lease at a time too."""
    alter_group_configs(state.database, "g", REFUND)
    for _ in range(10):
        lease = take(state, at)
        assert lease.deliveries[0].delivery_count == 1
        assert single.release(state, lease, cancelled=True) == 10
    assert in_flight(state) == [(0, 0, "{[0,10)}")]


@pytest.mark.parametrize("redelivery", BOTH)
@pytest.mark.parametrize("records", [1, 2])
def test_a_cancelled_run_gives_nothing_up(
    state: State, at: SharePartition, redelivery: Redelivery, records: int
) -> None:
    """Without refunds a cancelled run costs a delivery, but never the last one: nobody makes dead letters by stopping
    a run."""
    alter_group_configs(state.database, "g", {"share.delivery.count.limit": 2})
    for _ in range(4):
        take(state, at, records, redelivery)
        assert state.release_member("g", "m", cancelled=True) == records
    assert in_flight(state) == [(0, 1, f"{{[0,{records})}}")]
    assert (state.figures.verify(), journal_differs(state)) == ([], [])


def test_a_refund_in_any_case(state: State, at: SharePartition) -> None:
    """A run in which no record was at fault gives its deliveries back, whatever the group says of cancelled runs."""
    lease = take(state, at, 10)
    assert single.release(state, lease, refund=True) == 10
    assert in_flight(state) == [(0, 0, "{[0,10)}")]
    take(state, at, 10)
    assert state.release_member("g", "m", refund=True) == 10
    assert in_flight(state) == [(0, 0, "{[0,10)}")]
    assert (state.figures.verify(), journal_differs(state)) == ([], [])


def _waits(state: State) -> dict[str, int]:
    """How many seconds released records wait, by their offsets."""
    rows = state.database.rows(
        sa.text(
            "select sharequeue_internal.offsets_of(first_offset, last_offset, offsets)::text as offsets,"
            " extract(epoch from not_before - sharequeue.clock())::float as seconds"
            " from sharequeue.in_flight_batches where state = 0 and not_before is not null"
        )
    )
    return {row["offsets"]: round(row["seconds"]) for row in rows}


def test_released_records_wait_for_the_backoff_of_the_group(state: State, at: SharePartition) -> None:
    """It doubles with each delivery up to its maximum, and is up to a fifth longer; a time of its own goes before."""
    configs = {"sharequeue.retry.backoff.ms": 100_000, "sharequeue.retry.backoff.max.ms": 150_000}
    alter_group_configs(state.database, "g", configs)
    lease = take(state, at, 10)
    single.acknowledge(state, lease, {RELEASE: OffsetSet.of((0, 5))})
    again, own = take(state, at, 5), OffsetSet.of((8, 9))
    outcomes = {ACCEPT: OffsetSet.of((5, 6)), RELEASE: OffsetSet.of((6, 10))}
    for held, wanted, delays in (
        (again, {RELEASE: again.offsets}, {}),
        (lease, outcomes, {state.now() + timedelta(seconds=5): own}),
    ):
        (done,) = state.acknowledge([LeaseAcknowledgement(held, wanted, backoff=True, delays=delays)])
        assert isinstance(done, Acknowledged)
    waits = _waits(state)
    assert waits.keys() == {"{[0,5)}", "{[6,8),[9,10)}", str(own)}
    assert 148 <= waits["{[0,5)}"] <= 182
    assert 98 <= waits["{[6,8),[9,10)}"] <= 122
    assert 3 <= waits[str(own)] <= 6
    assert (state.figures.verify(), journal_differs(state)) == ([], [])


def test_times_of_released_records_are_of_released_records(state: State, at: SharePartition) -> None:
    """A time for what is not released, and two times for a record, are refused, and nothing has changed."""
    lease, now = take(state, at, 10), state.now()
    later = now + timedelta(seconds=9)
    for delays in (
        {later: OffsetSet.of((4, 6))},
        {later: OffsetSet.of((0, 3)), now: OffsetSet.of((2, 5))},
        {later + timedelta(seconds=n): OffsetSet.of((n, n + 1)) for n in range(DELAYS + 1)},
    ):
        wanted = LeaseAcknowledgement(lease, {RELEASE: OffsetSet.of((0, 5))}, delays=delays)
        (refused,) = state.acknowledge([wanted])
        assert isinstance(refused, InvalidRequest)
    assert f"at most {DELAYS}" in str(refused)
    assert state.figures.describe("g")[0].acquired == 10


def test_an_acquire_leaves_out_what_it_is_given(state: State, at: SharePartition) -> None:
    """What one caller does not want again is there for the next; fresh records come instead."""
    lease = take(state, at, 10)
    single.acknowledge(state, lease, {AcknowledgeType.RELEASE: lease.offsets})
    others = single.acquire(state, at, "m", None, 6, leave_out=OffsetSet.of((0, 4), (5, 10)))
    assert others is not None
    assert [(d.delivery_count, d.offsets) for d in others.deliveries] == [
        (1, OffsetSet.of((10, 15))),
        (2, OffsetSet.of((4, 5))),
    ]
    rest = single.acquire(state, at, "n", None, 6)
    assert rest is not None
    assert rest.offsets == OffsetSet.of((0, 4), (5, 7))
    assert (state.figures.verify(), journal_differs(state)) == ([], [])


def test_what_is_left_out_does_not_decide_what_comes_next(state: State, at: SharePartition) -> None:
    """The lowest record that may be delivered is a suspect: suspects come, and no released record before them."""
    lease = take(state, at, 10)
    single.acknowledge(state, lease, {RELEASE: OffsetSet.of((0, 1), (6, 8))})
    single.release(state, lease)
    next_one = single.acquire(state, at, "m", None, 1, leave_out=OffsetSet.of((0, 1)))
    assert next_one is not None
    assert next_one.offsets == OffsetSet.of((1, 2))


def test_a_failed_run_is_not_refunded(state: State, at: SharePartition) -> None:
    """Only a cancelled run gives its deliveries back; what a failed one held is suspect and has lost one."""
    alter_group_configs(state.database, "g", REFUND)
    take(state, at, 16)
    state.release_member("g", "m")
    again = take(state, at, 16)
    assert again.deliveries[0].delivery_count == 2
    assert again.offsets.count < 16


# Moved by hand -----------------------------------------------------------------------------------------------------


def prepared(state: State, at: SharePartition) -> Lease:
    """0–9 accepted but for 0, which waits for an hour; 10–19 leased; 20–24 rejected, 25–29 available."""
    first, held, third = take(state, at), take(state, at), take(state, at)
    single.acknowledge(
        state,
        first,
        {ACCEPT: OffsetSet.of((1, 10)), RELEASE: OffsetSet.of((0, 1))},
        not_before=state.now() + timedelta(hours=1),
    )
    single.acknowledge(state, third, {REJECT: OffsetSet.of((20, 25)), RELEASE: OffsetSet.of((25, 30))})
    return held


def test_a_forced_release_says_first_what_it_would_do(state: State, at: SharePartition) -> None:
    """A dry run names act, holder and reason of every offset asked for, and changes nothing."""
    prepared(state, at)
    before = in_flight(state)
    plan = state.administration.force_release(at, OffsetSet.of((0, 40)))
    assert [(run.act, str(run.offsets), run.member_id, run.reason) for run in plan] == [
        ("release", "{[0,1)}", None, None),
        ("refuse", "{[1,10)}", None, "finished: acknowledged"),
        ("release", "{[10,20)}", "m", None),
        ("refuse", "{[20,25)}", None, "being written to the dead-letter topic"),
        ("none", "{[25,30)}", None, "already available"),
        ("refuse", "{[30,40)}", None, "never delivered: SPEO is 30"),
    ]
    assert in_flight(state) == before
    assert "force_release" not in audited(state)


def test_a_forced_release_fences_the_holder(state: State, at: SharePartition) -> None:
    """Offsets taken from a lease are available at once; their holder's acknowledgement gets INVALID_RECORD_STATE."""
    held = prepared(state, at)
    state.administration.force_release(at, OffsetSet.of((0, 1), (10, 15)), execute=True)
    with pytest.raises(InvalidRecordState):
        single.acknowledge(state, held, {ACCEPT: held.offsets})
    assert single.acknowledge(state, held, {ACCEPT: OffsetSet.of((15, 20))}).accepted == 5
    assert take(state, at, 6).offsets == OffsetSet.of((0, 1), (10, 15))
    assert (state.figures.verify(), journal_differs(state)) == ([], [])
    assert audited(state)[-1] == "force_release"


def test_a_lease_that_lost_everything_is_gone(state: State, at: SharePartition) -> None:
    """When all of a lease was taken by hand nobody holds anything, and its renewal is refused."""
    lease = take(state, at)
    state.administration.force_release(at, lease.offsets, execute=True)
    assert state.figures.leases("g") == []
    with pytest.raises(InvalidRecordState):
        single.renew(state, lease)


def test_a_forced_dead_letter(state: State, at: SharePartition) -> None:
    """Leased and available offsets go to the dead-letter topic as rejected; SPSO waits for them."""
    held = prepared(state, at)
    done = state.administration.force_dead_letter(at, OffsetSet.of((0, 1), (12, 14), (26, 27)), execute=True)
    assert {run.act for run in done} == {"dead_letter"}
    with pytest.raises(InvalidRecordState):
        single.acknowledge(state, held, {ACCEPT: held.offsets})
    batch = state.dead_letters.open(at, 100)
    assert batch is not None
    assert [(run.cause, str(run.offsets)) for run in batch.letters] == [
        ("rejected", "{[0,1),[12,14),[20,25),[26,27)}")
    ]
    state.dead_letters.close(batch)
    assert state.figures.describe("g")[0].spso == 10
    assert (state.figures.verify(), journal_differs(state)) == ([], [])


def test_without_a_dead_letter_topic_it_is_archived(state: State, at: SharePartition) -> None:
    """A group without a dead-letter topic archives at once, and SPSO passes."""
    alter_group_configs(state.database, "g", {"errors.deadletterqueue.topic.name": None})
    take(state, at)
    assert [
        run.act for run in state.administration.force_dead_letter(at, OffsetSet.of((0, 10)), execute=True)
    ] == ["archive"]
    assert (state.figures.describe("g")[0].spso, state.figures.leases("g"), state.figures.verify()) == (
        10,
        [],
        [],
    )


def test_a_forced_release_after_the_last_delivery(state: State, at: SharePartition) -> None:
    """A record whose deliveries are used up gets the last one back, so that it is delivered once more."""
    alter_group_configs(state.database, "g", {"share.delivery.count.limit": 2})
    single.acknowledge(state, take(state, at, 1), {RELEASE: OffsetSet.of((0, 1))})
    take(state, at, 1)
    plan = state.administration.force_release(at, OffsetSet.of((0, 1)), execute=True)
    assert plan[0].reason == "no delivery was left: it gets the last one back"
    assert take(state, at, 1).deliveries[0].delivery_count == 2


# Pause and resume --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [(), ("t",), ("t", 0)])
def test_pause_and_resume(state: State, at: SharePartition, where: tuple[Any, ...]) -> None:
    """Group, topic or share-partition: nothing is leased, what is leased may be acknowledged, describe shows why."""
    lease = take(state, at)
    other = SharePartition("g", "t2", 0)
    state.initialize(other, "id2", 0, 1)
    single.observe(state, other, "id2", 0, 10, 10)
    state.administration.pause("g", "the warehouse is closed", *where)
    assert single.acquire(state, at, "m", None, 1) is None
    assert (single.acquire(state, other, "m", None, 1) is None) == (where == ())
    assert state.figures.describe("g")[0].paused_reason == "the warehouse is closed"
    assert single.acknowledge(state, lease, {ACCEPT: lease.offsets}).spso == 10
    assert single.acquire(state, at, "m", None, 10) is None
    state.administration.pause("g", None, *where)
    assert state.figures.describe("g")[0].paused_reason is None
    assert single.acquire(state, at, "m", None, 1) is not None
    assert audited(state) == ["pause", "resume"]


def test_a_pause_of_what_is_not_there(state: State, at: SharePartition) -> None:
    """An unknown group, an unknown partition, an empty reason and a partition without topic are refused."""
    with pytest.raises(GroupIdNotFound):
        state.administration.pause("nobody", "x")
    with pytest.raises(UnknownTopicOrPartition):
        state.administration.pause("g", "x", "t", 7)
    with pytest.raises(InvalidRequest):
        state.administration.pause("g", "")
    with pytest.raises(InvalidRequest):
        state.administration.pause("g", "x", None, 0)
    assert audited(state) == []
