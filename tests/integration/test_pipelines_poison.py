"""A record that kills the Python worker that reads it goes to the dead letters alone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines.rows import by_row
from pipelines.write import read_output
from sharequeue.state import State
from tests.fix_pipelines import Assigned, Produce, RunJob, job_of
from tests.fix_stack import MakeTopic

pytestmark = pytest.mark.timeout(600)

RECORDS = 10_000
POISON = 4_321
DELIVERIES = 5


def fatal(record: dict[str, Any]) -> Mapping[str, Any]:
    """Take any record but one, which ends the process: no exception can be caught of that."""
    if record["offset"] == POISON:
        os._exit(86)
    return {"value": record["value"].decode()}


def test_a_record_that_kills_its_worker_takes_only_itself_along(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    spark: SparkSession,
    state: State,
) -> None:
    """Each run that it kills gives back its lease, which comes again in smaller parts: at the default limit of five
    deliveries the fifth holds it alone. The 9,999 others are accepted, each once."""
    topic = make_topic(1)
    produce(topic, 0, range(RECORDS))
    job = job_of(group, topic, by_row(fatal, "value string"))
    holder = assigned(topic, errors_deadletterqueue_topic_name=f"dlq.{topic}")
    reasons: list[str] = []
    while len(reasons) <= DELIVERIES:
        try:
            run_job(job, holder)
            break
        except Exception as error:
            reasons.append(str(error))
    assert ["Python worker exited unexpectedly" in reason for reason in reasons] == [True] * DELIVERIES
    (status,) = state.describe(group)
    assert (status.lag, status.spso) == (1, POISON)
    assert (status.archiving, status.acquired, status.available) == (1, 0, 0)
    batch = state.open_dead_letters(holder.assignment[0], 10)
    assert batch is not None
    (letter,) = batch.letters
    assert (letter.cause, letter.delivery_count) == ("exceeded", DELIVERIES)
    assert list(letter.offsets.iter_offsets()) == [POISON]
    offsets = [row["offset"] for row in read_output(spark, state, group, job.sink).select("offset").collect()]
    assert sorted(offsets) == [offset for offset in range(RECORDS) if offset != POISON]
    assert state.verify(group) == []
