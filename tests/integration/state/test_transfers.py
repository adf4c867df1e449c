"""What goes on from files into a table: together, under one number, the same for whoever repeats it."""

from __future__ import annotations

from datetime import timedelta

import pytest
import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.errors import InvalidRequest
from sharequeue.groups.heartbeats import ensure_group
from sharequeue.state import State
from sharequeue.values import AcknowledgeType, LeaseOutput, SharePartition
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
    state.observe(AT, "id", 0, 1000, 1000)
    return state


def acknowledge(state: State, location: str, records: int = 10) -> None:
    lease = state.acquire(AT, "m", None, 10)
    assert lease is not None
    output = LeaseOutput("lake", location, records)
    state.acknowledge(lease, {AcknowledgeType.ACCEPT: lease.offsets}, outputs=[output])


def where(state: State) -> list[str]:
    return [row.location for row in state.outputs.counted("g", "lake")]


def test_a_transfer_stays_the_same_until_it_has_ended(state: State) -> None:
    """What is acknowledged meanwhile waits for the next. Others leave it alone while it is claimed, and get the very
    same then. Once ended, it is ended for everybody; numbers only rise."""
    assert state.outputs.begin_transfer("g", "lake", CLAIM) is None
    for location in ("sink:pending:/a", "sink:pending:/b", "/plain", "sink:delta:/none"):
        acknowledge(state, location)
    first = state.outputs.begin_transfer("g", "lake", CLAIM)
    assert first is not None
    assert (first.locations, first.records, first.busy) == (("sink:pending:/a", "sink:pending:/b"), 20, False)
    acknowledge(state, "sink:pending:/c")
    busy = state.outputs.begin_transfer("g", "lake", CLAIM)
    assert busy is not None
    assert (busy.number, busy.busy) == (first.number, True)
    pass_time(state.database, CLAIM.total_seconds())
    assert state.outputs.begin_transfer("g", "lake", CLAIM) == first
    assert state.outputs.end_transfer("g", "lake", first.number - 1, "sink:delta:/t") == 0
    assert state.outputs.end_transfer("g", "lake", first.number, "sink:delta:/t") == 2
    assert state.outputs.end_transfer("g", "lake", first.number, "sink:delta:/other") == 0
    assert where(state) == ["sink:delta:/t"] * 2 + ["/plain", "sink:delta:/none", "sink:pending:/c"]
    second = state.outputs.begin_transfer("g", "lake", CLAIM)
    assert second is not None
    assert second.number > first.number
    assert second.locations == ("sink:pending:/c",)
    assert state.outputs.end_transfer("g", "lake", second.number, "sink:delta:/t") == 1
    assert state.outputs.begin_transfer("g", "lake", CLAIM) is None


def test_a_restored_database_uses_no_number_again(state: State) -> None:
    """The table has taken numbers that a copy of the database, made before, does not know."""
    acknowledge(state, "sink:pending:/a")
    first = state.outputs.begin_transfer("g", "lake", CLAIM)
    assert first is not None
    state.database.call(sa.text("update sharequeue.transfers set number = 0, locations = '{}' returning 1"))
    pass_time(state.database, 1)
    again = state.outputs.begin_transfer("g", "lake", CLAIM)
    assert again is not None
    assert again.number > first.number


def test_columns_are_changed_by_who_knows_the_last_ones(state: State) -> None:
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
