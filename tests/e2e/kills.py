"""Kills in the middle of the main job: when, and of what."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import psutil
from sqlalchemy.exc import DBAPIError

from sharequeue.local import processes
from sharequeue.local.home import Home
from sharequeue.state import State
from tests.fixtures.demo import GROUP, DemoProcess, DemoStack
from tests.waiting import PATIENCE_S

Follow = Callable[[DemoProcess, Callable[[str], None]], threading.Thread]

LONGER_THAN_ANY_LOCK_SECONDS = 60
FLIGHTS = 900
"""One day of flights and a little more: the cancelled ones stand at the end of their day."""
SERVERS = ("service", "kafka", "postgres")


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


def process_of(stack: DemoStack, server: str) -> int:
    found = processes.find(Home.at(stack.home), server)
    assert found is not None
    return found.pid


def kill(stack: DemoStack, server: str) -> int:
    pid = process_of(stack, server)
    os.kill(pid, signal.SIGKILL)
    return pid
