"""The sensors and the schedule in Dagster's own daemon: loaded by a code server, ticked by the daemon's loops, kept
in its Postgres."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

# The daemon's own loop, one turn at a time: Dagster has no public way to it.
from dagster._core.workspace.context import IWorkspaceProcessContext
from dagster._daemon.sensor import execute_sensor_iteration
from dagster._scheduler.scheduler import ScheduleIterationTimes, launch_scheduled_runs

from sharequeue.dagster.names import GROUP_TAG
from sharequeue.database import Database
from sharequeue.domain.values import AcknowledgeType, SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.state import State
from tests import single
from tests.fixtures.dagster import code_location
from tests.reported import reported_lags
from tests.waiting import PATIENCE_S, wait_until

LOCATION = """
import dagster as dg
from sharequeue.dagster import ShareGroup, share_group_defs, share_group_resources

group = ShareGroup(
    group="{group}", topics=["t"], pipeline="pipelines.flights.pipeline:flight_delays",
    freshness={{"fail_window": "2h"}},
    automation={{
        "sensor": {{"enabled": True, "interval_seconds": 1}}, "observe": {{"enabled": True, "interval_seconds": 1}},
        "schedule": {{"cron": "*/5 * * * *", "enabled": True}},
    }},
)
defs = dg.Definitions.merge(share_group_defs(group), share_group_resources())
"""
Turn = Callable[[], None]
Workspace = IWorkspaceProcessContext[Any]


@pytest.fixture
def workspace(
    stack_instance: dg.DagsterInstance,
    private_database: Database,
    group: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Workspace]:
    """Give a code location with one queue, as the daemon loads it."""
    url = private_database.engine.url.render_as_string(hide_password=False)
    monkeypatch.setenv("SHAREQUEUE_DATABASE_URL", url)
    with code_location(stack_instance, tmp_path, LOCATION.format(group=group)) as loaded:
        yield loaded


@pytest.fixture
def turn(workspace: Workspace) -> Turn:
    """Give a function that is one turn of the daemon's loop over the sensors."""

    def take() -> None:
        for error in execute_sensor_iteration(workspace, logging.getLogger("daemon"), None, None):
            assert error is None, error

    return take


@pytest.fixture
def at_time(workspace: Workspace) -> Callable[[datetime], None]:
    """Give a function that is one turn of the daemon's loop over the schedules, at a time of the test's choice."""
    kept: dict[str, ScheduleIterationTimes] = {}

    def take(now: datetime) -> None:
        for error in launch_scheduled_runs(workspace, logging.getLogger("daemon"), now, kept):
            assert error is None, error

    return take


def test_the_daemon_requests_one_run_and_observes(
    turn: Turn, stack_instance: dg.DagsterInstance, private_database: Database, group: str
) -> None:
    """Turn after turn: one run for one backlog, none for a drained group, a row of history and an observation a tick,
    and a report that is fresh; no tick fails."""
    state, at = State(private_database), SharePartition(group, "t", 0)
    alter_group_configs(private_database, group, {})
    state.initialize(at, "id", 0, 1)
    single.observe(state, at, "id", 0, 100, 100)
    name = group.replace("-", "_")

    def ticks(sensor: str, after: int) -> bool:
        turn()
        return len(said(stack_instance, f"{name}_{sensor}")) > after

    wait_until(lambda: ticks("lag", 1), PATIENCE_S, lambda: said(stack_instance, f"{name}_lag"))
    (run,) = stack_instance.get_runs(dg.RunsFilter(job_name=name))
    assert (run.status, run.tags[GROUP_TAG]) == (dg.DagsterRunStatus.QUEUED, group)
    requested, *repeated = said(stack_instance, f"{name}_lag")
    assert requested == ""
    assert f"run {run.run_id} of {name} is queued" in repeated[0]
    stack_instance.report_run_canceled(run)
    lease = single.acquire(state, at, "member", None, 100)
    assert lease is not None
    single.acknowledge(state, lease, {AcknowledgeType.ACCEPT: lease.offsets})
    seen = len(said(stack_instance, f"{name}_lag"))
    wait_until(lambda: ticks("lag", seen))
    assert said(stack_instance, f"{name}_lag")[-1] == "lag 0: nothing to do"
    key = dg.AssetKey([name, "spso_and_lag"])
    observed = stack_instance.fetch_observations(key, limit=100).records
    assert len(observed) == len(reported_lags(private_database, group)) >= 2
    assert len(stack_instance.fetch_materializations(key, limit=100).records) == 1


def test_a_cron_schedule_ticks_and_its_runs_do_not_pile_up(
    at_time: Callable[[datetime], None], stack_instance: dg.DagsterInstance, group: str
) -> None:
    """Every five minutes, with a run that takes longer: the next tick is skipped with the run's id, whether the run
    is queued or started; when it is over, the tick after that requests the second run."""
    name = group.replace("-", "_")
    # Near the present: Dagster removes old ticks that were skipped.
    begun = datetime.now(UTC).replace(second=0)
    begun -= timedelta(minutes=begun.minute % 5 - 1)

    def runs() -> list[dg.DagsterRun]:
        return list(stack_instance.get_runs(dg.RunsFilter(job_name=name)))

    at_time(begun)
    assert runs() == []
    at_time(begun + timedelta(minutes=5))
    at_time(begun + timedelta(minutes=6))
    (first,) = runs()
    assert (first.status, first.tags[GROUP_TAG]) == (dg.DagsterRunStatus.QUEUED, group)
    at_time(begun + timedelta(minutes=10))
    stack_instance.report_dagster_event(
        dg.DagsterEvent("PIPELINE_START", name, message="started"), first.run_id, logging.INFO
    )
    at_time(begun + timedelta(minutes=15))
    assert [run.run_id for run in runs()] == [first.run_id]
    ended = stack_instance.get_run_by_id(first.run_id)
    assert ended is not None
    assert ended.status == dg.DagsterRunStatus.STARTED
    stack_instance.report_run_failed(ended)
    at_time(begun + timedelta(minutes=20))
    assert len(runs()) == 2
    assert said(stack_instance, f"{name}_schedule") == [
        "",
        f"run {first.run_id} of {name} is queued",
        f"run {first.run_id} of {name} is started",
        "",
    ]
    for run in runs():
        if not run.is_finished:
            stack_instance.report_run_canceled(run)


def said(stack_instance: dg.DagsterInstance, instigator: str) -> list[str]:
    """Return the reason of each tick of a sensor or schedule that has ended, the first one first; none has failed."""
    found = []
    for state in stack_instance.all_instigator_state():
        if state.origin.instigator_name == instigator:
            for tick in stack_instance.get_ticks(state.instigator_origin_id, state.selector_id, limit=100):
                assert tick.error is None, tick.error
                if tick.end_timestamp is not None:
                    found.append(tick.skip_reason or "")
    return found[::-1]
