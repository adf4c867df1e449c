"""The circuit breaker: an outage downstream burns no attempts and fills no dead-letter topic."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import pytest
import sqlalchemy as sa

from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.domain.values import Acknowledged, AcknowledgeType, Lease, SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.state import State
from sharequeue.state.calls import LeaseAcknowledgement
from sharequeue.state.rows import Redelivery
from tests import single
from tests.integration.state.state_calls import journal_differs, take
from tests.waiting import pass_time

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
GAP = AcknowledgeType.GAP
BREAKER = {
    "sharequeue.circuit.breaker.failure.percent": 50,
    "sharequeue.circuit.breaker.min.records": 10,
    "sharequeue.circuit.breaker.window.records": 20,
    "sharequeue.circuit.breaker.probe.records": 3,
    "sharequeue.circuit.breaker.open.ms": 60_000,
}


@pytest.fixture
def at_configs() -> Mapping[str, str | int]:
    """A breaker at 50 % of the last 20."""
    return BREAKER


def counts(state: State, at: SharePartition) -> dict[int, int]:
    """The delivery count of every offset in flight that is not done with."""
    rows = state.database.rows(
        sa.text(
            "select delivery_count, offsets from sharequeue.in_flight_offsets"
            " join sharequeue.share_partitions sp using (share_partition_id)"
            " where sp.group_id = :group and state in (0, 1, 3)"
        ),
        group=at.group_id,
    )
    return {
        offset: row["delivery_count"]
        for row in rows
        for offset in OffsetSet.parse(row["offsets"]).iter_offsets()
    }


def trip(state: State, at: SharePartition) -> None:
    lease = take(state, at)
    single.acknowledge(state, lease, {RELEASE: lease.offsets})


def test_more_failures_than_the_set_share_stop_leasing(state: State, at: SharePartition) -> None:
    """Half of the last records may fail; one more opens the circuit, and describe says why and until when."""
    first = take(state, at)
    half = OffsetSet.of((0, 5))
    single.acknowledge(state, first, {ACCEPT: first.offsets - half, RELEASE: half})
    second = take(state, at)
    single.acknowledge(
        state, second, {RELEASE: OffsetSet.of((second.offsets.first, second.offsets.first + 1))}
    )
    assert single.acquire(state, at, "m", None, 10) is None
    reason = state.figures.describe("g")[0].paused_reason
    assert reason is not None
    assert reason.startswith(
        "circuit breaker open: 6 of the last 11 records failed, more than 50 %; a probe is due from"
    )
    assert state.figures.verify() == []


def test_what_is_leased_may_still_be_acknowledged(state: State, at: SharePartition) -> None:
    """An open circuit stops leasing, not acknowledging; old acknowledgements neither close it nor count as its
    probe."""
    other = take(state, at)
    trip(state, at)
    assert single.acknowledge(state, other, {ACCEPT: other.offsets}).accepted == 10
    assert single.acquire(state, at, "m", None, 10) is None


@pytest.mark.parametrize("redelivery", ["kafka", "fan_out"])
def test_a_good_probe_closes_the_circuit(state: State, at: SharePartition, redelivery: Redelivery) -> None:
    """After its time one small lease goes out, and no second; when it is accepted, leasing goes on."""
    trip(state, at)
    pass_time(state.database, 30)
    assert single.acquire(state, at, "m", None, 10, redelivery=redelivery) is None
    pass_time(state.database, 31)
    probe = take(state, at, 1000, redelivery)
    assert probe.offsets == OffsetSet.of((0, 3))
    assert single.acquire(state, at, "other", None, 10, redelivery=redelivery) is None
    assert "probing" in (state.figures.describe("g")[0].paused_reason or "")
    single.acknowledge(state, probe, {ACCEPT: OffsetSet.of((0, 1))})
    assert single.acquire(state, at, "other", None, 10, redelivery=redelivery) is None
    single.acknowledge(state, probe, {ACCEPT: OffsetSet.of((1, 3))})
    assert state.figures.describe("g")[0].paused_reason is None
    assert take(state, at, 1000, redelivery).offsets.first == 3
    assert state.figures.verify() == []


@pytest.mark.parametrize("redelivery", ["kafka", "fan_out"])
@pytest.mark.parametrize("how", ["release", "lapse", "release by the member"])
def test_an_outage_burns_no_attempts(
    state: State, at: SharePartition, redelivery: Redelivery, how: str
) -> None:
    """However long everything fails, each record has lost one delivery, that which opened the circuit."""
    lease = take(state, at, 10, redelivery)
    single.acknowledge(state, lease, {RELEASE: lease.offsets})
    probes = 0
    for _ in range(40):
        pass_time(state.database, 61)
        lease_or_none = single.acquire(state, at, "m", None, 1000, redelivery=redelivery)
        if lease_or_none is None:
            continue
        probes += 1
        assert lease_or_none.offsets.count <= 3
        if how == "release":
            single.acknowledge(state, lease_or_none, {RELEASE: lease_or_none.offsets})
        elif how == "lapse":
            pass_time(state.database, 31)
            state.sweep()
        else:
            state.release_member("g", "m")
        assert state.figures.verify() == []
    assert probes >= 20
    # Fresh records may have been probed too: they are as if they never were.
    assert {offset: count for offset, count in counts(state, at).items() if count} == dict.fromkeys(
        range(10), 1
    )
    assert state.dead_letters.open(at, 10) is None
    assert journal_differs(state) == []
    assert "of the probe failed" in (state.figures.describe("g")[0].paused_reason or "")


def test_a_bad_record_cannot_pass_for_an_outage(state: State, at: SharePartition) -> None:
    """What failed a probe sits out the next one: once the outage is over, a probe without it closes the circuit."""
    alter_group_configs(state.database, "g", {"sharequeue.circuit.breaker.probe.records": 1})
    trip(state, at)
    poison = 0
    for _ in range(3):
        pass_time(state.database, 61)
        lease = take(state, at)
        if poison in lease.offsets:
            single.acknowledge(state, lease, {RELEASE: lease.offsets})
        else:
            single.acknowledge(state, lease, {ACCEPT: lease.offsets})
            break
    assert state.figures.describe("g")[0].paused_reason is None


def test_rejected_records_of_a_probe_are_dead_letters(state: State, at: SharePartition) -> None:
    """A rejection by name stands, also in a probe: at most the probe's records a turn reach the topic."""
    lease = take(state, at)
    single.acknowledge(state, lease, {REJECT: lease.offsets})
    for _ in range(3):
        pass_time(state.database, 61)
        probe = take(state, at, 1000)
        assert single.acknowledge(state, probe, {REJECT: probe.offsets}).rejected == 3
        assert single.acquire(state, at, "m", None, 10) is None
    assert state.figures.describe("g")[0].archiving == 10 + 3 * 3


def test_the_window_forgets(state: State, at: SharePartition) -> None:
    """Only the last window counts: 100 accepted records do not hide 11 failures in the 20 that follow."""
    good = take(state, at, 100)
    single.acknowledge(state, good, {ACCEPT: good.offsets})
    for _ in range(2):
        lease = take(state, at, 10)
        single.acknowledge(state, lease, {REJECT: lease.offsets})
    assert single.acquire(state, at, "m", None, 10) is None


def test_few_records_do_not_open_it(state: State, at: SharePartition) -> None:
    """Below the least number of records nothing is judged."""
    lease = take(state, at, 9)
    single.acknowledge(state, lease, {RELEASE: lease.offsets})
    assert single.acquire(state, at, "m", None, 10) is not None


def test_a_lapsed_lock_is_a_failure_of_each_of_its_records(state: State, at: SharePartition) -> None:
    """A lease of twenty whose lock lapses opens the circuit at the next operation."""
    take(state, at, 20)
    pass_time(state.database, 31)
    assert single.acquire(state, at, "m", None, 10) is None
    assert "20 of the last 20 records failed" in (state.figures.describe("g")[0].paused_reason or "")


def test_by_hand_and_by_config_it_is_closed(state: State, at: SharePartition) -> None:
    """Resuming closes the circuit; without a share of failures there is none, and nothing is counted."""
    trip(state, at)
    assert state.administration.pause("g", None) == 1
    assert single.acquire(state, at, "m", None, 1) is not None
    trip(state, at)
    assert single.acquire(state, at, "m", None, 1) is None
    alter_group_configs(state.database, "g", {"sharequeue.circuit.breaker.failure.percent": 0})
    assert state.figures.describe("g")[0].paused_reason is None
    assert single.acquire(state, at, "m", None, 1) is not None


def test_a_probe_that_nobody_holds_is_given_again(state: State, at: SharePartition) -> None:
    """A probe released by hand is not waited for."""
    trip(state, at)
    pass_time(state.database, 61)
    probe = take(state, at)
    state.administration.force_release(at, probe.offsets, execute=True)
    assert take(state, at).offsets == probe.offsets


@pytest.mark.parametrize("kind", ["gap", "held"])
def test_a_probe_is_judged_by_what_succeeded_or_failed(state: State, at: SharePartition, kind: str) -> None:
    """Not by the marker of a transaction, nor by a record that waits for another one of its key: they do not keep the
    breaker open. If there is nothing else in it, the next probe is given at once."""
    alter_group_configs(state.database, at.group_id, {"sharequeue.order": "key"})

    def acknowledge(lease: Lease, silent: int, outcome: AcknowledgeType = ACCEPT) -> None:
        """All but the last records have this outcome."""
        offsets = list(lease.offsets.iter_offsets())
        told = len(offsets) - silent
        said, unsaid = OffsetSet.from_offsets(offsets[:told]), OffsetSet.from_offsets(offsets[told:])
        outcomes = {outcome: said, GAP: unsaid} if kind == "gap" else {outcome: said}
        holds = unsaid if kind == "held" else EMPTY
        named = holds | (said if outcome == RELEASE else EMPTY)
        keys: dict[UUID | None, OffsetSet] = {
            UUID(int=offset + 1): OffsetSet.of((offset, offset + 1)) for offset in named.iter_offsets()
        }
        (result,) = state.acknowledge([LeaseAcknowledgement(lease, outcomes, holds=holds, keys=keys)])
        assert isinstance(result, Acknowledged)

    acknowledge(take(state, at), 0, RELEASE)
    pass_time(state.database, 61)
    acknowledge(take(state, at), 3)
    assert state.figures.verify() == []
    probe = take(state, at)
    assert probe.offsets.count == 3
    acknowledge(probe, 1)
    assert take(state, at, 5).offsets.count == 5
    assert state.figures.verify() == []
    assert journal_differs(state) == []
