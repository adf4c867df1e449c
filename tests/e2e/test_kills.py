"""SIGKILL of the run and of each server in the middle of the main job: the same outputs, dead letters, SPSO, lag.

Delivery counts may be higher afterwards, and nothing else may be different. Nobody waits for a lock here: when the
demo says that it waits for what a dead run holds, the database's clock is moved on.
"""

from __future__ import annotations

import signal

import pytest

from pipelines.flights.producer import extra
from tests.e2e.kills import FLIGHTS, SERVERS, Follow, impatient, kill, run_process, until_leased
from tests.fixtures.demo import DemoStack, assert_drained

pytestmark = [pytest.mark.slow, pytest.mark.deep]

SMALL = ("--records", str(FLIGHTS))


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
