"""A run's tags lead to its leases, also where the run fails: somebody wants to know what it had."""

from __future__ import annotations

import json
from typing import Any

import dagster as dg
import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.dagster import share_group_defs, share_group_resources
from sharequeue.dagster.names import LEASES_TAG, lease_tag_value
from sharequeue.domain.settings import Settings
from sharequeue.kafka.clients import client_config
from sharequeue.state import State
from tests.fixtures.dagster import share_group
from tests.fixtures.stack import MakeTopic
from tests.waiting import PATIENCE_S

_rounds: list[int] = []


def fails_in_the_second_round(records: DataFrame) -> DataFrame:
    """The first call is the trial on no records."""
    _rounds.append(len(_rounds))
    if len(_rounds) > 2:
        raise ValueError("the second round")
    return records.withColumn("outcome", fn.lit("accept"))


def test_a_failed_run_names_what_it_had_leased(
    group: str,
    make_topic: MakeTopic,
    settings: Settings,
    service: str,
    state: State,
    spark: SparkSession,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The leases of the round that worked, and of the one that did not."""
    _rounds.clear()
    for name, value in (("HOME", settings.home), ("SERVICE_URL", service), ("OUTPUT", tmp_path)):
        monkeypatch.setenv(f"SHAREQUEUE_{name}", str(value))
    topic = make_topic(1)
    producer = Producer(client_config(settings))
    for at in range(20):
        producer.produce(topic, json.dumps(at), partition=0)
    assert producer.flush(PATIENCE_S) == 0
    queue = share_group(
        group,
        topics=[topic],
        pipeline=f"{__name__}:fails_in_the_second_round",
        configs={"share.auto.offset.reset": "earliest"},
    )
    defs = dg.Definitions.merge(share_group_defs(queue), share_group_resources())
    config = {"ops": {f"{queue.name}_accepted": {"config": {"max_records": 10}}}}
    with dg.DagsterInstance.ephemeral() as instance:
        done = defs.resolve_job_def(queue.name).execute_in_process(
            run_config=config, instance=instance, raise_on_error=False
        )
        run = instance.get_run_by_id(done.run_id)
    assert run is not None
    assert not done.success
    leases = [row.lease_id for row in state.outputs.counted(group, queue.name)]
    assert len(leases) == 1
    first, _, last = run.tags[LEASES_TAG].replace(",", "-").rpartition("-")
    assert first.split("-")[0] == lease_tag_value(leases)
    assert int(last) > leases[0]
