"""A record that kills its process among 60,000, among a million, and on a cluster: all others are through in minutes,
in one run."""

from __future__ import annotations

import re

import pytest
from pyspark.sql import SparkSession

from sharequeue.deadletters.letters import read_dead_letters
from sharequeue.domain.settings import Settings
from sharequeue.local.stack import StackInfo
from sharequeue.state import State
from tests.fixtures.cluster import RECORDS, cluster_on
from tests.fixtures.pipelines import Assigned, Produce, RunJob
from tests.fixtures.stack import MakeTopic
from tests.integration.spark.test_poison import (
    KILLED,
    POISON,
    WORKER_EXITED,
    one_record_takes_only_itself_along,
)

MOST_SECONDS = 600
"""That is minutes, on two cores that others use too."""


@pytest.mark.timeout(0)
@pytest.mark.parametrize("suspects", [60_000, 1_000_000])
def test_all_records_but_the_killer_are_accepted_in_minutes(
    suspects: int,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    spark: SparkSession,
    state: State,
    settings: Settings,
    caplog: pytest.LogCaptureFixture,
    told: list[str],
) -> None:
    """As in the ordinary run, which has 81."""
    topic = make_topic(2)
    produce(topic, 0, range(suspects))
    produce(topic, 1, range(16))
    holder = assigned(topic, errors_deadletterqueue_topic_name=f"dlq.{topic}")
    report = one_record_takes_only_itself_along(
        topic, suspects, KILLED, WORKER_EXITED, holder, run_job, spark, state, settings, caplog
    )
    assert report.seconds < MOST_SECONDS
    told.append(
        f"{suspects:,} suspects after a crash: through in {report.seconds:,.0f} s and {len(report.rounds)} rounds,"
        " one of them a dead letter"
    )


@pytest.mark.timeout(0)
@pytest.mark.parametrize(("kills", "said"), [("worker", WORKER_EXITED), ("executor", "ExecutorLostFailure")])
def test_a_record_that_kills_workers_on_a_cluster_is_isolated(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    stack: StackInfo,
    state: State,
    settings: Settings,
    kills: str,
    said: str,
) -> None:
    """Each task is tried twice, so each of its deliveries kills two workers or two executors: one run, one letter."""
    topic = make_topic(2)
    for partition in range(2):
        produce(topic, partition, range(RECORDS))
    assigned(topic, errors_deadletterqueue_topic_name=f"dlq.{topic}")
    with cluster_on(stack, conf={"spark.task.maxFailures": "2"}) as cluster:
        (cluster.begin(group, topic, kills=kills) / "go").touch()
        report = cluster.end()
    assert "error" not in report, report
    assert (report["accepted"], report["lag"]) == (2 * RECORDS - 1, 0)
    (letter,) = read_dead_letters(settings, f"dlq.{topic}")
    assert (letter.source_offset, letter.delivery_count) == (POISON, 5)
    assert re.match(f"ProcessKilled: killed its process: {said}", letter.error or "")
    assert state.figures.verify(group) == []
