"""SIGKILL of the run and of each server in the middle of the main job: the same outputs, dead letters, SPSO, lag.

Delivery counts may be higher afterwards, and nothing else may be different. Nobody waits for a lock here: when the
demo says that it waits for what a dead run holds, the database's clock is moved on.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import psutil
import pytest
from sqlalchemy.exc import DBAPIError

from pipelines.flights.producer import extra
from sharequeue.local import processes
from sharequeue.local.home import Home
from sharequeue.state import State
from tests.fixtures.demo import GROUP, DemoProcess, DemoStack, assert_drained
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.slow]

Follow = Callable[[DemoProcess, Callable[[str], None]], threading.Thread]

LONGER_THAN_ANY_LOCK_SECONDS = 60
FLIGHTS = 900
"""One day of flights and a little more: the cancelled ones stand at the end of their day."""
SERVERS = ("service", "kafka", "postgres")
SMALL = ("--records", str(FLIGHTS))


def until_leased(
    stack: DemoStack, demo: DemoProcess, records: int = 1, after: int = 0, lag: int = 10 * FLIGHTS
) -> int:
    """Wait until runs hold so many records under leases later than `after`, and no more than `lag` is left to do;
    return the number of the last lease."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        assert demo.process.poll() is None, demo.text
        if any(line.startswith("run 1") for line in demo.lines):
            with suppress(DBAPIError), stack.database() as database:
                figures = State(database).figures
                leases = [lease for lease in figures.leases(GROUP) if lease.lease_id > after]
                left = sum(status.lag for status in figures.describe(GROUP))
                if left <= lag and sum(lease.records for lease in leases) >= records:
                    return max(lease.lease_id for lease in leases)
        time.sleep(0.05)
    raise AssertionError(f"the run leased less than {records}: {demo.text}")


def run_process(demo: DemoProcess) -> psutil.Process:
    """The process of the run that the demo launched."""
    children = psutil.Process(demo.process.pid).children()
    alive = [child for child in children if child.status() != psutil.STATUS_ZOMBIE]
    (run,) = [child for child in alive if "orchestration.demo.run" in child.cmdline()]
    return run


def impatient(stack: DemoStack) -> Callable[[str], None]:
    """A listener that makes the locks of dead runs lapse as soon as the demo waits for them."""

    def on_line(line: str) -> None:
        if line.startswith("waiting") and "its place in the group" in line:
            stack.forward(LONGER_THAN_ANY_LOCK_SECONDS)

    return on_line


@pytest.mark.deep
def test_killed_runs_and_a_killed_demo_are_carried_on(demo_stack: DemoStack, follow_demo: Follow) -> None:
    """A demo whose run is killed with all records says who holds what, and launches the next; that run and the demo
    itself are killed near the end, and the next demo finds the dead run, says so, and drains the group."""
    first = demo_stack.start(*SMALL)
    reading = follow_demo(first, impatient(demo_stack))
    last = until_leased(demo_stack, first, FLIGHTS)
    run_process(first).send_signal(signal.SIGKILL)
    # Late: what is killed twice comes again in many more parts.
    until_leased(demo_stack, first, after=last, lag=FLIGHTS // 10)
    assert "it was killed by SIGKILL" in first.text
    assert sum("holds" in line and line.startswith("waiting") for line in first.lines) == 4
    run = run_process(first)
    first.process.kill()
    run.send_signal(signal.SIGKILL)
    reading.join()
    assert set(demo_stack.run_statuses()) == {"FAILURE", "STARTED"}

    second = demo_stack.start(*SMALL)
    follow_demo(second, impatient(demo_stack)).join()
    assert second.process.returncode == 0, second.text
    assert "of an earlier demo was killed" in second.text
    fate = assert_drained(demo_stack)
    assert len(fate.accepted) + len(fate.dead) == FLIGHTS
    assert demo_stack.run_statuses()[:3] == ["FAILURE", "FAILURE", "SUCCESS"]
    assert "Nothing left to do" in demo_stack.run(*SMALL)


def process_of(stack: DemoStack, server: str) -> int:
    found = processes.find(Home.at(stack.home), server)
    assert found is not None
    return found.pid


def kill(stack: DemoStack, server: str) -> int:
    pid = process_of(stack, server)
    os.kill(pid, signal.SIGKILL)
    return pid


def test_servers_killed_together_change_nothing(demo_stack: DemoStack, follow_demo: Follow) -> None:
    """Service, Kafka and Postgres are killed at once while a run holds records: the demo starts them again, and each
    record still ends once and where it belongs."""
    demo = demo_stack.start(*SMALL)
    reading = follow_demo(demo, impatient(demo_stack))
    until_leased(demo_stack, demo, 200)
    killed = {server: kill(demo_stack, server) for server in SERVERS}
    reading.join()
    assert demo.process.returncode == 0, demo.text
    assert " died: starting again what is not running" in demo.text
    # Not the names in that line: a large process takes a moment to end, and the demo may have looked in that moment.
    assert all(process_of(demo_stack, server) != pid for server, pid in killed.items()), demo.text
    assert_drained(demo_stack)


@pytest.mark.deep
def test_servers_killed_one_after_the_other_change_nothing(
    demo_stack: DemoStack, follow_demo: Follow
) -> None:
    """Each server is killed by itself in one demo, always while a run holds records."""
    demo = demo_stack.start(*SMALL, "--more", "400")
    reading = follow_demo(demo, impatient(demo_stack))
    last = until_leased(demo_stack, demo, 200)
    for server in SERVERS:
        # What keeps the runs at work until the next one is killed.
        more = server != SERVERS[-1] and extra(demo_stack.settings, 400)
        kill(demo_stack, server)
        if more:
            last = until_leased(demo_stack, demo, 200, after=last)
    reading.join()
    assert demo.process.returncode == 0, demo.text
    assert all(any(f"{server} died" in line for line in demo.lines) for server in SERVERS), demo.text
    assert_drained(demo_stack)
