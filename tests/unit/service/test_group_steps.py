"""Turns of groups: bounded in time, going on where they stopped, what failed last."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import DBAPIError, OperationalError

from sharequeue.domain.errors import CoordinatorNotAvailable, NotCoordinator
from sharequeue.service.coordinator.group_steps import GroupSteps


class Held(Exception):
    """What the driver raises."""

    pgcode = "55P03"


def failing(steps: GroupSteps, kind: str, group: str, error: Exception) -> None:
    with steps.step(kind, group):
        raise error


def test_a_turn_without_time_goes_on_where_it_stopped() -> None:
    """With time for one group a turn, every group has its turn before one has its second."""
    steps = GroupSteps(turn_seconds=-1, stuck_seconds=-1)
    had = [group for _ in range(5) for group in steps.in_turn("expiry", ["c", "a", "b"])]
    assert had == ["a", "b", "c", "a", "b"]


def test_kinds_have_turns_of_their_own() -> None:
    """Where one kind of step stopped is nothing to another."""
    steps = GroupSteps(turn_seconds=-1, stuck_seconds=-1)
    assert list(steps.in_turn("expiry", ["a", "b"])) == ["a"]
    assert list(steps.in_turn("observation", ["a", "b"])) == ["a"]
    assert list(steps.in_turn("expiry", ["a", "b"])) == ["b"]


def test_what_failed_comes_last() -> None:
    """A group whose step failed comes after the others, until it succeeds or nothing is due any more."""
    steps = GroupSteps()
    failing(steps, "expiry", "a", CoordinatorNotAvailable("somebody holds it"))
    assert list(steps.in_turn("expiry", ["a", "b", "c"])) == ["b", "c", "a"]
    assert steps.stuck == {"a": "somebody holds it"}
    with steps.step("observation", "a"):
        pass
    assert "a" in steps.stuck
    with steps.step("expiry", "a"):
        pass
    assert steps.stuck == {}
    failing(steps, "expiry", "b", DBAPIError("", {}, Held("canceled")))
    assert steps.stuck == {"b": "canceled"}
    assert list(steps.in_turn("expiry", ["a"])) == ["a"]
    assert steps.stuck == {}


def test_any_error_of_one_group_is_its_own() -> None:
    """A fault in the program itself is noted too; what concerns all groups is raised."""
    steps = GroupSteps()
    failing(steps, "start", "a", ZeroDivisionError("by nothing"))
    failing(steps, "expiry", "a", CoordinatorNotAvailable("held"))
    assert steps.stuck == {"a": "ZeroDivisionError: by nothing; held"}
    for error in (NotCoordinator(), OperationalError("", {}, Exception("no server"))):
        with pytest.raises(type(error)):
            failing(steps, "start", "b", error)
    assert set(steps.stuck) == {"a"}


def test_one_call_for_all_groups() -> None:
    """What such a call says of groups is there until it says it no more."""
    steps = GroupSteps()
    steps.note("sweep", {"a": "x", "b": "y"})
    steps.note("sweep", {"b": "y"})
    assert steps.stuck == {"b": "y"}
