"""Accepted rows that wait for the target of their sink: figures, remarks, metrics, an answer, and an asset check."""

from __future__ import annotations

from datetime import timedelta

import pytest

from sharequeue.dagster.position import state_of
from sharequeue.dagster.state_checks import STATE_CHECKS
from sharequeue.domain.values import AcknowledgeType, LeaseOutput, SharePartition, WaitingResults
from sharequeue.groups.descriptions import describe_group
from sharequeue.reports.read import read_figures
from sharequeue.reports.remarks import remarks_of, remarks_of_groups
from sharequeue.service.metrics.figures import Reader
from sharequeue.service.operations.groups import group_answer
from sharequeue.state import State
from tests import single
from tests.fixtures.dagster import share_group
from tests.waiting import pass_time

REASON = "there is no topic clean any more: create it again."


@pytest.fixture
def state(at: SharePartition, standing_clock: None, private_database) -> State:  # type: ignore[no-untyped-def]
    """Give a state with an acknowledged lease of two records, whose five rows wait for a topic."""
    state = State(private_database)
    lease = single.acquire(state, at, "m", None, 2)
    assert lease is not None
    output = LeaseOutput("results", "sink:pending:/folder", 5)
    single.acknowledge(state, lease, {AcknowledgeType.ACCEPT: lease.offsets}, outputs=[output])
    pass_time(state.database, 60)
    return state


def held(state: State) -> int:
    """Begin the transfer and hold it; return its number."""
    found = state.outputs.begin_transfer("g", "results", timedelta(seconds=30))
    assert found is not None
    assert state.outputs.hold_transfer("g", "results", found.number, REASON)
    return found.number


def test_what_waits_is_shown_until_it_has_arrived(state: State) -> None:
    """With the time since its acknowledgement; a reason is there only while a transfer is held."""
    (found,) = state.outputs.waiting_results(["g"])
    now = state.now()
    assert found == WaitingResults("g", "results", 5, now - timedelta(seconds=60), None, None, None)
    number = held(state)
    (found,) = state.outputs.waiting_results(["g", "other"])
    assert (found.number, found.held_reason, found.held_since) == (number, REASON, now)
    assert state.outputs.end_transfer("g", "results", number, "sink:kafka:clean") == 1
    assert state.outputs.waiting_results(["g"]) == []


def test_results_that_wait_are_figures_and_metrics(state: State) -> None:
    """Of the group: the rows, the age of the oldest, and the sinks that cannot be written."""
    held(state)
    figures = read_figures(state.database, "g")
    assert (figures.results_waiting, figures.results_oldest_seconds, figures.results_held) == (5, 60.0, 1)
    (row,) = Reader(state.database).read().groups
    names = ("results_waiting", "results_oldest_seconds", "results_held")
    assert [row[name] for name in names] == [5, 60.0, 1]


def test_results_that_are_held_are_a_remark_and_fail_the_check(state: State) -> None:
    """Both have the reason. Rows that only wait for the next run are in neither."""
    (check,) = [each for each in STATE_CHECKS if each.name == "results_reach_their_topic"]
    group, text = share_group("g"), f"5 accepted rows of sink results wait: {REASON}"
    waiting = check.judge(group, state_of(state.database, "g", None))
    assert waiting is not None
    assert (waiting.problem, waiting.right) == ("", "5 accepted rows wait for the next round or run")
    assert text not in {each.remark for each in remarks_of_groups(state.database, ["g"])}
    held(state)
    failed = check.judge(group, state_of(state.database, "g", None))
    assert failed is not None
    assert failed.problem == text
    assert failed.metadata == {
        "results_waiting_rows": 5,
        "results_oldest_seconds": 60.0,
        "results_held_sinks": 1,
    }
    assert text in {each.remark for each in remarks_of_groups(state.database, ["g"])}
    statuses = state.figures.describe("g")
    results = state.outputs.waiting_results(["g"])
    remarks = remarks_of(state.database, "g", statuses, results=results)
    assert remarks == remarks_of(state.database, "g", statuses)
    answer = group_answer(describe_group(state.database, "g"), statuses, results, remarks, {})
    assert text in answer["remarks"]
    assert answer["results"] == [
        {
            "sink": "results",
            "rows": 5,
            "oldest_at": (state.now() - timedelta(seconds=60)).isoformat(),
            "held_since": state.now().isoformat(),
            "held_reason": REASON,
        }
    ]
