"""What goes on from files into a table: together, under one number, the same for whoever repeats it."""

from __future__ import annotations

from datetime import timedelta

import pytest
import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.domain.errors import InvalidRequest
from sharequeue.domain.values import AcknowledgeType, LeaseOutput, SharePartition, Transfer
from sharequeue.groups.heartbeats import ensure_group
from sharequeue.state import State
from tests import single
from tests.waiting import pass_time

AT = SharePartition("g", "t", 0)
CLAIM = timedelta(seconds=30)


@pytest.fixture
def state(private_database: Database) -> State:
    """Give a state with a thousand records for group `g`."""
    state = State(private_database)
    ensure_group(private_database, "g")
    private_database.rows(
        sa.text("select sharequeue.set_clock_offset(cast(:none as interval))"), none=timedelta(0)
    )
    state.initialize(AT, "id", 0, 1)
    single.observe(state, AT, "id", 0, 1000, 1000)
    return state


def acknowledge(state: State, location: str, records: int = 10) -> None:
    lease = single.acquire(state, AT, "m", None, 10)
    assert lease is not None
    output = LeaseOutput("lake", location, records)
    single.acknowledge(state, lease, {AcknowledgeType.ACCEPT: lease.offsets}, outputs=[output])


def where(state: State) -> list[str]:
    return [row.location for row in state.outputs.counted("g", "lake")]


def begin(state: State) -> Transfer:
    """Begin a transfer of what waits."""
    found = state.outputs.begin_transfer("g", "lake", CLAIM)
    assert found is not None
    return found


def test_a_transfer_has_all_that_is_pending(state: State) -> None:
    """Nothing waits at first; then only what the sink has yet to take is in it, in the order of its leases."""
    assert state.outputs.begin_transfer("g", "lake", CLAIM) is None
    for location in ("sink:pending:/a", "sink:pending:/b", "/plain", "sink:delta:/none"):
        acknowledge(state, location)
    transfer = begin(state)
    assert tuple(transfer.sources) == ("sink:pending:/a", "sink:pending:/b")
    assert (transfer.records, transfer.busy) == (20, False)
    assert {*transfer.sources.values()} == {("t", 0)}


def test_a_topic_that_was_made_again_has_a_transfer_of_its_own(state: State) -> None:
    """Its offsets begin at 0 again: rows of the old topic go first, alone."""
    for location in ("sink:pending:/old", "sink:pending:/new"):
        acknowledge(state, location)
    state.database.call(
        sa.text("update sharequeue.lease_outputs set topic_id = 'x' where location like '%/new' returning 1")
    )
    first = begin(state)
    assert (tuple(first.sources), first.records) == (("sink:pending:/old",), 10)
    state.outputs.end_transfer("g", "lake", first.number, "sink:delta:/t")
    assert tuple(begin(state).sources) == ("sink:pending:/new",)


def test_the_claim_of_a_long_transfer_is_extended(state: State) -> None:
    """Others find it busy for as long as its process extends the claim; a transfer that has ended has no claim."""
    acknowledge(state, "sink:pending:/a")
    first = begin(state)
    pass_time(state.database, CLAIM.total_seconds() - 1)
    assert state.outputs.renew_transfer("g", "lake", first.number, CLAIM)
    assert not state.outputs.renew_transfer("g", "lake", first.number + 1, CLAIM)
    pass_time(state.database, CLAIM.total_seconds() - 1)
    assert begin(state).busy
    state.outputs.end_transfer("g", "lake", first.number, "sink:delta:/t")
    assert not state.outputs.renew_transfer("g", "lake", first.number, CLAIM)


def held(state: State) -> list[tuple[str | None, bool]]:
    rows = state.database.rows(
        sa.text("select held_reason, held_since is not null as since from sharequeue.transfers")
    )
    return [(row["held_reason"], row["since"]) for row in rows]


def test_a_transfer_that_is_held_has_a_reason_until_it_ends(state: State) -> None:
    """Another process may repeat it at once; the reason goes with its end, or when it is taken back."""
    hold = state.outputs.hold_transfer
    acknowledge(state, "sink:pending:/a")
    first = begin(state)
    assert not hold("g", "lake", first.number + 1, "another one's")
    assert hold("g", "lake", first.number, "the topic is gone")
    assert held(state) == [("the topic is gone", True)]
    assert not begin(state).busy
    assert hold("g", "lake", first.number, None)
    assert held(state) == [(None, False)]
    assert hold("g", "lake", first.number, "the topic is gone")
    state.outputs.end_transfer("g", "lake", first.number, "sink:delta:/t")
    assert held(state) == [(None, False)]


def test_a_claimed_transfer_is_left_alone(state: State) -> None:
    """Another run learns that it is busy; once the claim has passed it gets the very same, whatever came since."""
    acknowledge(state, "sink:pending:/a")
    first = begin(state)
    acknowledge(state, "sink:pending:/b")
    other = begin(state)
    assert (other.number, other.busy) == (first.number, True)
    pass_time(state.database, CLAIM.total_seconds())
    assert begin(state) == first


def test_a_transfer_ends_once(state: State) -> None:
    """Its locations become the table's, for everybody; another number, or the same one again, changes nothing."""
    acknowledge(state, "sink:pending:/a")
    acknowledge(state, "/plain")
    transfer = begin(state)
    end = state.outputs.end_transfer
    assert end("g", "lake", transfer.number - 1, "sink:delta:/t") == 0
    assert end("g", "lake", transfer.number, "sink:delta:/t") == 1
    assert end("g", "lake", transfer.number, "sink:delta:/other") == 0
    assert where(state) == ["sink:delta:/t", "/plain"]


def test_what_came_meanwhile_is_in_the_next_transfer(state: State) -> None:
    """Under a higher number; after that one nothing waits."""
    acknowledge(state, "sink:pending:/a")
    first = begin(state)
    acknowledge(state, "sink:pending:/b")
    state.outputs.end_transfer("g", "lake", first.number, "sink:delta:/t")
    second = begin(state)
    assert second.number > first.number
    assert tuple(second.sources) == ("sink:pending:/b",)
    state.outputs.end_transfer("g", "lake", second.number, "sink:delta:/t")
    assert state.outputs.begin_transfer("g", "lake", CLAIM) is None


def test_a_restored_database_uses_no_number_again(state: State) -> None:
    """The table has taken numbers that a copy of the database, made before, does not know."""
    acknowledge(state, "sink:pending:/a")
    first = begin(state)
    state.database.call(sa.text("update sharequeue.transfers set number = 0, locations = '{}' returning 1"))
    pass_time(state.database, 1)
    assert begin(state).number > first.number


def test_columns_are_changed_only_from_their_latest_version(state: State) -> None:
    """Of two runs that add columns at once, the second learns of the first one's."""
    keep = state.outputs.keep_columns
    assert keep("g", "files") is None
    assert keep("g", "files", None, "one") == "one"
    assert keep("g", "files", None, "two") == "one"
    assert keep("g", "files", "one", "one, two") == "one, two"
    assert keep("g", "files") == "one, two"
    assert keep("g", "other") is None
    with pytest.raises(InvalidRequest, match="the sink has 0 characters"):
        keep("g", "", None, "one")


def test_only_a_held_transfer_is_decided_about(state: State) -> None:
    """Under its number, as the caller has seen it; otherwise nothing changes, and the audit log has nothing."""
    outputs = state.outputs
    acknowledge(state, "sink:pending:/a")
    number = begin(state).number
    for asked in (number, number + 1):
        with pytest.raises(InvalidRequest, match="No results of sink 'lake' of group g are held"):
            outputs.resume_results("g", "lake", asked, "sink:kafka:t")
        assert outputs.hold_transfer("g", "lake", number, "the topic is gone")
    assert outputs.resume_results("g", "lake", number, "sink:kafka:t") == 1
    assert where(state) == ["sink:kafka:t"]
    (act,) = state.database.rows(
        sa.text("select before, after from sharequeue.audit_log where act = 'resume_results'")
    )
    assert act["before"] == {"sink": "lake", "number": number, "rows": 10, "reason": "the topic is gone"}
    assert act["after"] == {"decision": "count as written", "location": "sink:kafka:t"}
