"""`job.run()`, `job.output()` and `job.sweep()` need nothing but settings."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.database import Database
from sharequeue.groups.configs import alter_group_configs
from sharequeue.settings import Settings
from sharequeue.spark import Pipeline, pipeline
from sharequeue.spark.output.folders import lease_folder
from sharequeue.state import State
from tests.fix_pipelines import Produce
from tests.fix_stack import MakeTopic


def by_value(records: DataFrame) -> DataFrame:
    """The outcome is what the value says."""
    return records.withColumn("outcome", fn.col("value").cast("string"))


@pytest.fixture
def job(group: str, make_topic: MakeTopic, produce: Produce, database: Database) -> Pipeline:
    """Give a pipeline over a topic with six records, whose group begins at the first."""
    topic = make_topic(2)
    produce(topic, 0, ["accept", "reject", "accept", "release"])
    produce(topic, 1, ["accept", "accept"])
    alter_group_configs(database, group, {"share.auto.offset.reset": "earliest"})
    return pipeline(group=group, topics=topic, sink=f"sink-{group}")(by_value)


@pytest.fixture
def surroundings(
    service: str, settings: Settings, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Settings:
    """Give the settings as the environment says them to whoever gives none."""
    monkeypatch.setenv("SHAREQUEUE_HOME", str(settings.home))
    monkeypatch.setenv("SHAREQUEUE_OUTPUT", str(tmp_path / "output"))
    return Settings.load()


def test_a_job_runs_with_nothing_but_settings(
    surroundings: Settings, job: Pipeline, spark: SparkSession, database: Database, state: State
) -> None:
    """It joins by itself and leaves again; its output is there, and a sweep removes what never counted."""
    report = job.run()
    assert (report.accepted, report.rejected, report.released, report.drained) == (4, 1, 1, True)
    assert str(report).startswith(f"run of group {job.group}: 6 records leased")
    members = sa.text("select member_id from sharequeue.group_members where group_id = :group_id")
    assert database.rows(members, group_id=job.group) == []
    assert state.figures.leases(job.group) == []

    assert sorted(row["offset"] for row in job.output().collect()) == [0, 0, 1, 2]
    assert job.output(surroundings, sink=job.exceptions_sink).count() == 2

    orphan = Path(lease_folder(surroundings, state, job.sink, 10**9))
    orphan.mkdir()
    would = job.sweep(dry_run=True)
    assert (would, orphan.exists()) == ([str(orphan)], True)
    assert job.sweep(surroundings) == [str(orphan)]
    assert not orphan.exists()
    assert spark.sql("select 1").count() == 1  # the session is the process's, and stays
