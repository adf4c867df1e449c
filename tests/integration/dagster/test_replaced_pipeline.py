"""A group remembers its pipeline; a `defs.yaml` says which one a new pipeline replaces."""

from __future__ import annotations

import json
from pathlib import Path

import dagster as dg
import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.dagster import ShareGroup, share_group_defs, share_group_resources
from sharequeue.domain.settings import Settings
from sharequeue.kafka.clients import client_config
from sharequeue.state import State
from tests.fixtures.stack import MakeTopic
from tests.waiting import PATIENCE_S


def first(records: DataFrame) -> DataFrame:
    """The pipeline that the group remembers."""
    return records.withColumn("outcome", fn.lit("accept"))


def second(records: DataFrame) -> DataFrame:
    """The one that takes its place."""
    return first(records)


def test_a_pipeline_is_replaced_by_the_yaml_that_names_it(
    group: str,
    make_topic: MakeTopic,
    settings: Settings,
    service: str,
    state: State,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without `run: {replaces: …}`, or with another name, the run fails before anything is leased and names both;
    with it, the run takes what is left."""
    for name, value in (("HOME", settings.home), ("SERVICE_URL", service), ("OUTPUT", tmp_path)):
        monkeypatch.setenv(f"SHAREQUEUE_{name}", str(value))
    topic = make_topic(1)
    producer = Producer(client_config(settings))
    for at in range(20):
        producer.produce(topic, json.dumps(at), partition=0)
    assert producer.flush(PATIENCE_S) == 0

    def run(pipeline: str, *lines: str, **config: int) -> dg.ExecuteInProcessResult:
        queue = ShareGroup.resolve_from_yaml(
            "\n".join(
                (
                    f"group: {group}",
                    f"topics: [{topic}]",
                    f"pipeline: {__name__}:{pipeline}",
                    "configs: {share.auto.offset.reset: earliest}",
                    *lines,
                )
            )
        )
        defs = dg.Definitions.merge(share_group_defs(queue), share_group_resources())
        with dg.DagsterInstance.ephemeral() as instance:
            return defs.resolve_job_def(queue.name).execute_in_process(
                run_config={"ops": {f"{queue.name}_accepted": {"config": config}}},
                instance=instance,
                raise_on_error=False,
            )

    assert run("first", max_records=5, max_rounds=1).success
    for lines in ((), ("run: {replaces: 'somebody:else'}",)):
        failed = [event for event in run("second", *lines).all_events if event.is_step_failure]
        error = failed[0].step_failure_data.error
        assert (
            f"pipeline {__name__}:first works on group {group}, and this is pipeline {__name__}:second"
            in str(error and (error.cause or error))
        )
        (status,) = state.figures.describe(group)
        assert (status.spso, status.acquired, status.accepted) == (5, 0, 5)
    assert run("second", f"run: {{replaces: '{__name__}:first'}}").success
    (status,) = state.figures.describe(group)
    assert (status.spso, status.accepted) == (20, 20)
    assert not run("first").success
