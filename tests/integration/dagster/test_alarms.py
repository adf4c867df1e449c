"""A queue whose runs fail: the daemon's ticks judge it, although nothing succeeds."""

from __future__ import annotations

import logging
import runpy
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from confluent_kafka import Producer

# The daemon's own loops, one turn at a time: Dagster has no public way to them.
from dagster._core.test_utils import freeze_time
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._daemon.freshness import FreshnessDaemon
from dagster._daemon.sensor import execute_sensor_iteration

from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.topics import Topics
from sharequeue.state import State
from tests import single
from tests.fixtures.dagster import code_location
from tests.fixtures.stack import MakeTopic
from tests.waiting import PATIENCE_S, pass_time, wait_until

LOCATION = """
import dagster as dg
from sharequeue.dagster import ShareGroup, share_group_defs, share_group_resources

group = ShareGroup(
    group="{group}", topics=["{topic}"], pipeline="pipelines.flights.pipeline:flight_delays",
    freshness={{"fail_window": "20m"}},
    checks={{"max_lag": 50, "max_age": "15m"}},
    automation={{"observe": {{"enabled": True, "interval_seconds": 1}}}},
)

def fails(run):
    raise RuntimeError("the output is away")

defs = dg.Definitions.merge(share_group_defs(group, execute=fails), share_group_resources())
"""


def test_three_failed_runs_turn_lag_age_and_freshness_red(
    stack_instance: dg.DagsterInstance,
    private_database: Database,
    group: str,
    make_topic: MakeTopic,
    topics: Topics,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the queue is empty it is fresh. Then a hundred records wait for half an hour, and no run succeeds."""
    url = private_database.engine.url.render_as_string(hide_password=False)
    monkeypatch.setenv("SHAREQUEUE_DATABASE_URL", url)
    monkeypatch.setenv("SHAREQUEUE_HOME", str(settings.home))
    topic, name = make_topic(1), group.replace("-", "_")
    state, at = State(private_database), SharePartition(group, topic, 0)
    alter_group_configs(private_database, group, {})
    topic_id = topics.info(topic).topic_id
    state.initialize(at, topic_id, 0, 1)
    single.observe(state, at, topic_id, 0, 0, 0)
    report, accepted = dg.AssetKey([name, "spso_and_lag"]), dg.AssetKey([name, "accepted"])

    def verdict(check: str) -> bool | None:
        key = dg.AssetCheckKey(report, check)
        found = stack_instance.get_latest_asset_check_evaluation_record(key)
        event = found.event.dagster_event if found and found.event else None
        if event is None or event.event_type != dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            return None
        return event.asset_check_evaluation_data.passed

    def turned(workspace: WorkspaceProcessContext, passed: bool) -> bool:
        for error in execute_sensor_iteration(workspace, logging.getLogger("daemon"), None, None):
            assert error is None, error
        return verdict("lag_bounded") is verdict("oldest_record_bounded") is passed

    def fresh(workspace: WorkspaceProcessContext, later: timedelta) -> str:
        with freeze_time(datetime.now(UTC) + later):
            list(FreshnessDaemon().run_iteration(workspace))
            state = stack_instance.get_freshness_state_records([accepted])[accepted].freshness_state
        return str(state.value)

    source = LOCATION.format(group=group, topic=topic)
    with code_location(stack_instance, tmp_path, source) as workspace:
        wait_until(lambda: turned(workspace, passed=True))
        assert fresh(workspace, timedelta()) == "PASS"

        producer = Producer(client_config(settings))
        for _ in range(100):
            producer.produce(topic, b"x", partition=0)
        assert producer.flush(PATIENCE_S) == 0
        single.observe(state, at, topic_id, 0, 100, 100)
        job = runpy.run_path(str(tmp_path / "location.py"))["defs"].resolve_job_def(name)
        for _ in range(3):
            assert not job.execute_in_process(instance=stack_instance, raise_on_error=False).success
            pass_time(private_database, 600)
        assert verdict("lag_bounded") is None, "the failed runs have planned their checks, and not made them"

        wait_until(lambda: turned(workspace, passed=False))
        assert verdict("state_verified") is True
        assert fresh(workspace, timedelta(minutes=30)) == "FAIL"
        assert len(stack_instance.fetch_materializations(accepted, limit=10).records) == 1
