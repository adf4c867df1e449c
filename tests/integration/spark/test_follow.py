"""A followed job works as records come, and costs nothing while none do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from sharequeue.cli import command
from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.groups.configs import alter_group_configs
from sharequeue.spark import Pipeline, RunReport, following, pipeline
from sharequeue.spark.progress import Progress
from sharequeue.state import State
from tests.fixtures.pipelines import Produce, all_accepted
from tests.fixtures.stack import MakeTopic
from tests.servers.ports import free_port


@pytest.fixture
def job(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    database: Database,
    service: str,
    settings: Settings,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Pipeline:
    """Give a pipeline over a topic with a record, whose group begins at the first."""
    topic = make_topic(2)
    produce(topic, 0, ["before"])
    alter_group_configs(database, group, {"share.auto.offset.reset": "earliest"})
    monkeypatch.setenv("SHAREQUEUE_HOME", str(settings.home))
    monkeypatch.setenv("SHAREQUEUE_OUTPUT", str(tmp_path / "output"))
    return pipeline(group=group, topics=topic, sink=f"sink-{group}")(all_accepted)


def test_a_follower_processes_a_new_record_on_notification(
    job: Pipeline, produce: Produce, spark: SparkSession, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run takes what is there; a record that comes later is acknowledged on news from the state, long
    before somebody would look. No Spark job runs meanwhile, and the member has left at the end."""
    (topic,) = job.topics
    monkeypatch.setattr(following, "LOOK_SECONDS", 3600.0)
    produced: list[int] = []
    reports: list[RunReport] = []
    jobs: list[int] = []
    context: Any = spark.sparkContext._jsc.sc()

    def jobs_so_far() -> int:
        return int(context.dagScheduler().nextJobId())

    def progress(told: Progress) -> None:
        if told.stage == "waiting":
            jobs.append(jobs_so_far())
            if len(produced) < 2:
                produced.append(1)
                produce(topic, len(produced) % 2, ["later"])
        elif jobs:
            assert jobs_so_far() == jobs.pop() or told.stage != "observe"

    done = job.follow(max_rounds=3, max_seconds=200, progress=progress, on_run=reports.append)
    assert (done.rounds, done.accepted) == (3, 3)
    assert [report.accepted for report in reports] == [1, 1, 1]
    assert job.output().count() == 3
    assert state.figures.describe(job.group)[0].lag == 0
    assert not state.figures.leases(job.group)


def test_a_follower_waits_for_a_service_that_has_not_started(
    job: Pipeline, settings: Settings, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a reboot, when everything starts at once: it ends at its limit, and not with an error."""
    monkeypatch.setattr(following, "JOIN_SECONDS", 0.1)
    away = settings.replace(service_url=f"http://127.0.0.1:{free_port()}")
    assert job.follow(away, spark=spark, max_seconds=1.0).rounds == 0


def test_the_command_follows_and_refuses_a_dry_run(
    job: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line of figures for each run that did something; `--dry-run` beside it is refused."""
    (tmp_path / "followed.py").write_text(
        "from sharequeue.spark import pipeline\nfrom tests.fixtures.pipelines import all_accepted\n\n"
        f"orders = pipeline(group={job.group!r}, topics={list(job.topics)!r}, sink={job.sink!r})(all_accepted)\n"
    )
    monkeypatch.chdir(tmp_path)
    refused = CliRunner().invoke(command, ["run", "followed:orders", "--follow", "--dry-run"])
    assert refused.exit_code == 2
    done = CliRunner().invoke(
        command, ["run", "followed:orders", "--follow", "--max-rounds", "1", "-o", "json"]
    )
    assert done.exit_code == 0, done.output
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["accepted"] == 1
    assert "round 1: 1 record done" in done.stderr
