"""A run whose topic is not there says so at once, and what it may be called."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.dagster import share_group_defs, share_group_resources
from sharequeue.domain.settings import Settings
from sharequeue.spark import full_runs
from tests.fixtures.dagster import share_group
from tests.fixtures.stack import MakeTopic


def accept_all(records: DataFrame) -> DataFrame:
    """The simplest handler."""
    return records.withColumn("outcome", fn.lit("accept"))


def test_a_run_without_its_topic_fails_soon(
    group: str,
    make_topic: MakeTopic,
    settings: Settings,
    service: str,
    spark: SparkSession,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a member it would wait for the assignment of a topic that nobody has made."""
    monkeypatch.setattr(full_runs, "FIRST_LOOK_S", 0.1)
    for name, value in (("HOME", settings.home), ("SERVICE_URL", service), ("OUTPUT", tmp_path)):
        monkeypatch.setenv(f"SHAREQUEUE_{name}", str(value))
    topic = make_topic(1)
    queue = share_group(group, topics=[f"{topic}s"], pipeline=f"{__name__}:accept_all")
    defs = dg.Definitions.merge(share_group_defs(queue), share_group_resources())
    with dg.DagsterInstance.ephemeral() as instance:
        done = defs.resolve_job_def(queue.name).execute_in_process(instance=instance, raise_on_error=False)
    assert not done.success
    [failed] = [event for event in done.all_events if event.is_step_failure]
    error = failed.step_failure_data.error
    assert error is not None
    assert f"There is no topic '{topic}s'" in str(error.cause or error)
    assert topic in str(error.cause or error)
