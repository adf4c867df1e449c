"""A million suspects after one record killed its worker: all others are through in minutes, in one run."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from sharequeue.state import State
from tests.fixtures.pipelines import Assigned, Produce, RunJob
from tests.fixtures.stack import MakeTopic
from tests.integration.spark.test_poison import KILLED, WORKER_EXITED, one_record_takes_only_itself_along

SUSPECTS = 1_000_000
MOST_SECONDS = 600
"""That is minutes, on two cores that others use too."""


@pytest.mark.timeout(0)
def test_a_million_suspects_are_through_in_minutes(
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    spark: SparkSession,
    state: State,
    caplog: pytest.LogCaptureFixture,
    told: list[str],
) -> None:
    """As in the ordinary run, which has six hundred."""
    topic = make_topic(2)
    produce(topic, 0, range(SUSPECTS))
    produce(topic, 1, range(16))
    holder = assigned(topic, errors_deadletterqueue_topic_name=f"dlq.{topic}")
    report = one_record_takes_only_itself_along(
        topic, SUSPECTS, KILLED, WORKER_EXITED, holder, run_job, spark, state, caplog
    )
    assert report.seconds < MOST_SECONDS
    told.append(
        f"{SUSPECTS:,} suspects after a crash: through in {report.seconds:,.0f} s and {len(report.rounds)} rounds,"
        " one of them a dead letter"
    )
