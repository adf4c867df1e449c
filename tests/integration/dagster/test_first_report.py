"""The report of a group's first run is of the queue that the run found."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.dagster import share_group_defs, share_group_resources
from sharequeue.domain.settings import Settings
from sharequeue.kafka.clients import client_config
from tests.fixtures.dagster import share_group
from tests.fixtures.deadletters import GivenUp
from tests.reported import reported_lags
from tests.waiting import PATIENCE_S

RECORDS = 60


def by_value(records: DataFrame) -> DataFrame:
    """The outcome is what the value says."""
    return records.withColumn("outcome", fn.col("value").cast("string"))


@pytest.mark.slow
def test_a_first_run_reports_the_queue_that_it_drained(
    given_up: Callable[..., GivenUp],
    settings: Settings,
    service: str,
    spark: SparkSession,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The highest lag is that before its first lease, and its throughput is known. The lag of `accepted` is that of
    the report, although dead letters were still to be written."""
    for name, value in (("HOME", settings.home), ("SERVICE_URL", service), ("OUTPUT", tmp_path)):
        monkeypatch.setenv(f"SHAREQUEUE_{name}", str(value))
    case = given_up()
    producer = Producer(client_config(settings))
    for at in range(RECORDS):
        outcome = b"reject" if at % 6 == 0 else b"accept"
        producer.produce(case.topic, outcome, partition=0, timestamp=int((time.time() - 420) * 1000))
    assert producer.flush(PATIENCE_S) == 0
    queue = share_group(case.group, topics=[case.topic], pipeline=f"{__name__}:by_value")
    defs = dg.Definitions.merge(share_group_defs(queue), share_group_resources())
    with dg.DagsterInstance.ephemeral() as instance:
        done = defs.resolve_job_def(queue.name).execute_in_process(instance=instance, raise_on_error=False)
    assert done.success, [event.message for event in done.all_events if event.is_failure]
    made: dict[str, dict[str, Any]] = {
        event.asset_key.path[-1]: {
            name: value.value for name, value in event.materialization.metadata.items()
        }
        for event in done.get_asset_materialization_events()
        if event.asset_key
    }
    accepted, report = made["accepted"], made["spso_and_lag"]
    assert accepted["accepted_records"] == RECORDS * 5 // 6
    assert accepted["lag_records"] == report["lag_records"] == 0
    assert accepted["archiving_records"] + made["dead_letters"]["new_records"] >= 10
    assert f"highest {RECORDS} records" in report["lag_over_time"]
    assert "records a second" in report["throughput_over_time"]
    assert "highest 0 " not in report["throughput_over_time"]
    assert report["throughput_records_per_second"] > 0
    first, *_, last = reported_lags(case.database, case.group)
    assert (first, last) == (RECORDS, 0)
