"""Runs by whatever path they come, on a real webserver and daemon: one process each, the same tags, under one limit.

The stack is one for the module, and each test takes up what the one before it left.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa

from orchestration.demo.queue import NAME, QUEUE
from orchestration.demo.runs import open_instance
from pipelines.flights.producer import produce
from sharequeue.dagster.names import GROUP_TAG, LEASES_TAG, MEMBER_TAG
from sharequeue.local import processes
from sharequeue.local.home import Home
from sharequeue.state import State
from tests.fixtures.demo import GROUP, DemoStack, assert_drained
from tests.fixtures.stack import REPOSITORY
from tests.servers.webserver import Webserver
from tests.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.deep]

FLIGHTS = 900
"""One day of flights and a little more: the cancelled ones stand at the end of their day."""
ASSETS = ("accepted", "delays", "dead_letters", "spso_and_lag", "delivery_counts")
until = partial(wait_until, seconds=PATIENCE_S)


@dataclass(frozen=True)
class Served:
    """A stack with webserver and daemon, and the instance that they share."""

    demo: DemoStack
    ui: Webserver
    instance: dg.DagsterInstance

    def events(self, run: str, kind: dg.DagsterEventType | None = None) -> list[dg.DagsterEvent]:
        """The events of a run, or those of one kind."""
        found = [entry.dagster_event for entry in self.instance.all_logs(run)]
        return [event for event in found if event and kind in (None, event.event_type)]

    def steps(self, run: str, kind: dg.DagsterEventType) -> set[str]:
        """Which steps have such an event, without the group's name."""
        return {str(event.step_key).removeprefix(f"{NAME}_") for event in self.events(run, kind)}

    def process_of(self, run: str) -> int:
        """The one process in which all steps of a run were executed."""
        started = self.events(run, dg.DagsterEventType.STEP_START)
        (pid,) = {event.pid for event in started}
        assert pid is not None
        return pid


@pytest.fixture(scope="module")
def served(demo_stack: DemoStack) -> Iterator[Served]:
    """Give a stack with the flights, whose group is configured."""
    command = [sys.executable, "-m", "sharequeue.cli", "up", "--ui", "-o", "json", "--home"]
    up = subprocess.run(
        [*command, str(demo_stack.home)], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert up.returncode == 0, up.stdout + up.stderr
    produce(demo_stack.settings, limit=FLIGHTS)
    with demo_stack.database() as database:
        QUEUE.configure(database)
    with open_instance(demo_stack.settings) as instance:
        yield Served(demo_stack, Webserver(json.loads(up.stdout)["dagster"]), instance)


def test_a_run_whose_process_is_killed_is_retried(served: Served) -> None:
    """A killed process: the run has failed within seconds, and the daemon retries it; the retry finds what the dead
    process held, as its locks have lapsed."""
    ui, demo = served.ui, served.demo
    run = ui.launch(NAME, tags={"dagster/max_retries": "1"})
    with demo.database() as database:
        state = State(database)
        until(lambda: bool(state.figures.leases(GROUP)), otherwise=lambda: ui.run(run))
    os.kill(served.process_of(run), signal.SIGKILL)
    assert ui.ends(run) == "FAILURE"
    demo.forward(60)
    until(lambda: any(each["parentRunId"] == run for each in ui.runs()))
    (retry,) = [each["runId"] for each in ui.runs() if each["parentRunId"] == run]
    assert ui.ends(retry) == "SUCCESS"
    assert ui.run(retry)["tags"]["dagster/retry_number"] == "1"
    assert_drained(demo)


def test_concurrent_runs_of_one_group_share_its_records(served: Served) -> None:
    """A click on "Materialize" and the job at the same time: each is one process, has the group's tags and does its
    part; a third run waits in the queue. The summary of both fails, and all else is made; what failed is executed
    again."""
    ui, demo = served.ui, served.demo
    produce(demo.settings, limit=2 * FLIGHTS)
    summary = demo.settings.local_output / NAME / "delays.parquet"
    summary.unlink()
    (summary / "in the way").mkdir(parents=True)
    config: dict[str, Any] = {"ops": {f"{NAME}_accepted": {"config": {"max_records": 100}}}}
    broker = processes.find(Home.at(demo.home), "kafka")
    assert broker is not None
    os.kill(broker.pid, signal.SIGSTOP)
    no_retry = {"dagster/max_retries": "0"}
    try:
        materialized = ui.launch("__ASSET_JOB", config, no_retry, [(NAME, asset) for asset in ASSETS])
        by_job = ui.launch(NAME, config, no_retry)
        runs = (materialized, by_job)
        until(lambda: {ui.status(run) for run in runs} == {"STARTED"}, otherwise=ui.runs)
        third = ui.launch(NAME)
        with demo.database() as database:
            members = sa.text("select member_id from sharequeue.group_members")
            until(lambda: len(database.rows(members)) == 2, otherwise=ui.runs)
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    accepted = dg.AssetKey([NAME, "accepted"])
    done = dg.DagsterEventType.ASSET_MATERIALIZATION
    until(
        lambda: all(any(event.asset_key == accepted for event in served.events(run, done)) for run in runs),
        otherwise=ui.runs,
    )
    assert ui.status(third) == "QUEUED"
    ui.terminate(third)
    assert ui.ends(third) == "CANCELED"

    assert [ui.ends(run) for run in runs] == ["FAILURE", "FAILURE"]
    assert served.process_of(materialized) != served.process_of(by_job)
    tags = [ui.run(run)["tags"] for run in runs]
    assert [each[GROUP_TAG] for each in tags] == [GROUP, GROUP]
    assert len({each[MEMBER_TAG] for each in tags}) == len({each[LEASES_TAG] for each in tags}) == 2
    for run in runs:
        assert served.steps(run, dg.DagsterEventType.STEP_FAILURE) == {"delays"}
        made = {event.asset_key.path[-1] for event in served.events(run, done) if event.asset_key}
        assert made == set(ASSETS) - {"delays"}
    assert_drained(demo)

    (summary / "in the way").rmdir()
    summary.rmdir()
    again = ui.again(by_job, "FROM_FAILURE")
    assert ui.ends(again) == "SUCCESS"
    assert served.steps(again, dg.DagsterEventType.STEP_START) == {"delays"}
    assert summary.is_file()
