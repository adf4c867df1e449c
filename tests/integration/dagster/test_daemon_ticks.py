"""The sensors in Dagster's own daemon: loaded by a code server, ticked by the daemon's loop, kept in its Postgres."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pytest

# The daemon's own loop, one turn at a time: Dagster has no public way to it.
from dagster._daemon.sensor import execute_sensor_iteration

from sharequeue.dagster.names import GROUP_TAG
from sharequeue.database import Database
from sharequeue.groups.configs import alter_group_configs
from sharequeue.reports.history import Reports
from sharequeue.state import State
from sharequeue.words.values import AcknowledgeType, SharePartition
from tests import single
from tests.fixtures.dagster import code_location
from tests.waiting import wait_until

LOCATION = """
import dagster as dg
from sharequeue.dagster import ShareGroup, share_group_defs, share_group_resources

group = ShareGroup(
    group="{group}", topics=["t"], pipeline="pipelines.flights.pipeline:flight_delays",
    freshness={{"fail_window": "2h"}},
    automation={{
        "sensor": {{"enabled": True, "interval_seconds": 1}}, "observe": {{"enabled": True, "interval_seconds": 1}},
    }},
)
defs = dg.Definitions.merge(share_group_defs(group), share_group_resources())
"""
Turn = Callable[[], None]


@pytest.fixture
def turn(
    stack_instance: dg.DagsterInstance,
    private_database: Database,
    group: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Turn]:
    """Give a function that is one turn of the daemon's loop over the sensors of a code location with one queue."""
    url = private_database.engine.url.render_as_string(hide_password=False)
    monkeypatch.setenv("SHAREQUEUE_DATABASE_URL", url)
    with code_location(stack_instance, tmp_path, LOCATION.format(group=group)) as workspace:

        def take() -> None:
            for error in execute_sensor_iteration(workspace, logging.getLogger("daemon"), None, None):
                assert error is None, error

        yield take


def test_the_daemon_requests_one_run_and_observes(
    turn: Turn, stack_instance: dg.DagsterInstance, private_database: Database, group: str
) -> None:
    """Turn after turn: one run for one backlog, none for a drained group, a row of history and an observation a tick,
    and a report that is fresh; no tick fails."""
    state, reports, at = State(private_database), Reports(private_database), SharePartition(group, "t", 0)
    alter_group_configs(private_database, group, {})
    state.initialize(at, "id", 0, 1)
    single.observe(state, at, "id", 0, 100, 100)
    name = group.replace("-", "_")

    def ticks(sensor: str, after: int) -> bool:
        turn()
        return len(said(stack_instance, f"{name}_{sensor}")) > after

    wait_until(lambda: ticks("lag", 1), 200, lambda: said(stack_instance, f"{name}_lag"))
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
    wait_until(lambda: ticks("lag", seen), 200)
    assert said(stack_instance, f"{name}_lag")[-1] == "lag 0: nothing to do"
    key = dg.AssetKey([name, "spso_and_lag"])
    observed = stack_instance.fetch_observations(key, limit=100).records
    assert len(observed) == len(reports.history(group)) >= 2
    assert len(stack_instance.fetch_materializations(key, limit=100).records) == 1


def said(stack_instance: dg.DagsterInstance, sensor: str) -> list[str]:
    """What each tick of a sensor that has ended said, the first one first; none has failed."""
    found = []
    for state in stack_instance.all_instigator_state():
        if state.origin.instigator_name == sensor:
            for tick in stack_instance.get_ticks(state.instigator_origin_id, state.selector_id, limit=100):
                assert tick.error is None, tick.error
                if tick.end_timestamp is not None:
                    found.append(tick.skip_reason or "")
    return found[::-1]
