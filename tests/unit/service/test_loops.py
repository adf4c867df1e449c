"""The loops of the service go on after any error, and one that has ended is a fault."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from sqlalchemy.exc import SQLAlchemyError

from sharequeue.database import Database
from sharequeue.domain.values import SharePartition
from sharequeue.groups.configs import ServiceConfigs
from sharequeue.groups.heartbeats import HeartbeatRequest
from sharequeue.service.coordinator import Coordinator, coordinator
from sharequeue.service.coordinator.dead_letter_turns import DeadLetterTurns
from sharequeue.service.health.faults import Faults
from sharequeue.service.keep_alives import KeepAlives, Responses
from tests.waiting import PATIENCE_S, wait_until

NOWHERE = "postgresql+psycopg2://u:p@127.0.0.1:1/d"


@pytest.fixture
def idle() -> Coordinator:
    """Give a coordinator that does nothing yet, without servers."""
    return Coordinator(Database(NOWHERE), cast("Any", None), watch_interval=0.01)


@pytest.mark.parametrize(("work", "turn"), [("journal", "keep"), ("watch", "watch"), ("sweep", "settle")])
def test_a_loop_goes_on_after_an_error_without_a_text(
    idle: Coordinator, work: str, turn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MemoryError and TimeoutError have none: the fault has the error's name, and the next turn ends it."""
    stop, noted = threading.Event(), []
    errors: list[Exception] = [MemoryError(), TimeoutError(), TimeoutError("\n")]

    def once(*_: Any) -> None:
        noted.append(idle.faults.get(work))  # type: ignore[call-overload]
        if errors:
            raise errors.pop(0)
        idle.watcher.turns += 1
        stop.set()
        idle.wake()

    monkeypatch.setattr(coordinator, "KEEP_INTERVAL_SECONDS", 0.01)
    monkeypatch.setattr(idle, "_interval", 0.01)
    monkeypatch.setattr(idle, "_take_up", lambda _: None)
    monkeypatch.setattr(idle._state, "now", lambda: None)
    for other in {"keep", "watch", "settle"} - {turn}:
        monkeypatch.setattr(idle, other, lambda *_: stop.wait(PATIENCE_S))
    if turn == "watch":
        monkeypatch.setattr(idle.watcher, "look", once)
        idle.watcher.quiet = True
    else:
        monkeypatch.setattr(idle, turn, once)
    idle.run(stop)
    wait_until(lambda: idle.faults == {})
    assert noted == [None, "MemoryError", "TimeoutError", "TimeoutError"]


def test_a_turn_without_the_task_ends_no_fault(idle: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two replicas and a broker that hangs, each has the task in turn: the fault stays until a turn succeeds."""
    turns: list[Callable[[], None]] = []

    def fails() -> None:
        raise TimeoutError("the broker hangs")

    def succeeds() -> None:
        idle.watcher.turns += 1

    monkeypatch.setattr(idle.watcher, "look", lambda: turns.pop(0)())
    idle.watcher.quiet = True
    seen = []
    for turn in (fails, lambda: None, lambda: None, fails, lambda: None, succeeds, lambda: None):
        turns.append(turn)
        with idle._reporting("watch"):
            idle.watch()
        seen.append("watch" in idle.faults)
    assert seen == [True, True, True, True, True, False, False]


def test_a_loop_that_has_ended_is_a_fault(idle: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ended it: the fault names the work and the error, and stays."""
    monkeypatch.setattr(threading, "excepthook", lambda _: None)

    def ends() -> None:
        raise SystemExit

    idle._started("journal", ends).join(PATIENCE_S)
    faults = Faults(idle)
    for _ in range(2):
        faults.look()
        (fault,) = faults.of_this_replica()
        assert (fault.kind, fault.reason) == (
            "journal",
            "this replica has stopped this work, restart it: SystemExit: SystemExit",
        )


def test_an_error_that_only_a_probe_saw_ends_without_another_probe(idle: Coordinator) -> None:
    """It lasts while probes see it, and a minute longer. A probe that succeeds ends it at once."""
    now = [0.0]
    faults = Faults(idle, monotonic=lambda: now[0])

    def ages() -> list[float]:
        faults.look()
        return [fault.age_seconds for fault in faults.of_this_replica()]

    for now[0] in (0.0, 50.0, 100.0):
        faults.note("broker", "Kafka does not answer")
    now[0] = 150.0
    assert ages() == [150.0]
    now[0] = 161.0
    assert ages() == []
    faults.note("broker", "Kafka does not answer")
    assert ages() == [0.0]
    faults.note("broker", None)
    assert ages() == []


def test_a_turn_that_fails_without_a_text_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has the error's name, and the share-partition is tried again."""
    turns = DeadLetterTurns(cast("Any", None), Database(NOWHERE), "replica")

    def failing(_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(turns, "write", failing)
    at = SharePartition("g", "t", 0)
    with caplog.at_level(logging.WARNING):
        turns._turn([at])
    assert "dead letters of group g cannot be written: TimeoutError" in caplog.text
    assert list(turns._pauses) == [at]


def test_keep_alives_that_fail_without_a_text_are_processed_one_by_one() -> None:
    """None of them waits for ever."""

    async def fails(_: Callable[[], Responses]) -> Responses:
        raise SQLAlchemyError

    gathered = KeepAlives(
        Database(NOWHERE),
        ServiceConfigs.of({}),
        cast("Callable[[Callable[[], Responses]], Awaitable[Responses]]", fails),
        lambda: True,
    )

    async def response() -> object:
        return await asyncio.wait_for(gathered.response(HeartbeatRequest("g", "m", 1), "User:a"), 60)

    assert asyncio.run(response()) is None
