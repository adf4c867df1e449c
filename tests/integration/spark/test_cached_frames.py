"""What a handler caches of the records is removed from the cache at the end of the round (docs/howto/lease.md,
"In your own Spark session"), however the round ends and whichever of two rounds it belongs to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from sharequeue.domain.errors import InvalidRecordState
from sharequeue.spark.job import ShareGroupJob
from sharequeue.spark.leasing.renewal import LockLost
from sharequeue.spark.progress import Progress
from sharequeue.state import State
from tests.fixtures.pipelines import Assigned, Produce, RunJob, all_accepted, by_value, job_of
from tests.fixtures.stack import MakeTopic

RECORDS, A_ROUND = 30, 10


def cached(spark: SparkSession) -> set[int]:
    """Return what is in Spark's cache."""
    context: Any = spark.sparkContext._jsc
    return set(context.getPersistentRDDs().keySet())


@pytest.mark.parametrize("failing", [0, 2])
def test_cached_frames_are_removed_even_if_the_handler_raises(
    failing: int,
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    spark: SparkSession,
) -> None:
    """The handler caches, counts, and raises on the driver in its n-th call (0: never)."""
    topic = make_topic(1)
    produce(topic, 0, range(RECORDS))
    holder = assigned(topic)
    calls: list[int] = []

    def handler(records: DataFrame) -> DataFrame:
        kept = records.cache()
        calls.append(kept.count())
        if len(calls) == failing:
            raise LookupError("no such table")
        return all_accepted(kept)

    before = cached(spark)
    job = job_of(group, topic, handler)
    if failing:
        with pytest.raises(LookupError):
            run_job(job, holder, max_records=A_ROUND)
    else:
        assert run_job(job, holder, max_records=A_ROUND).accepted == RECORDS
    assert cached(spark) - before == set()


@pytest.mark.parametrize("stage", ["plan", "read back"])
def test_cached_frames_are_removed_when_a_lock_is_lost(
    stage: str,
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    spark: SparkSession,
    state: State,
) -> None:
    """Both rounds in flight end together: what the handler cached for either is removed."""
    topic = make_topic(1)
    produce(topic, 0, range(RECORDS))
    holder = assigned(topic)

    def handler(records: DataFrame) -> DataFrame:
        kept = records.cache()
        kept.count()
        return all_accepted(kept)

    def disturb(progress: Progress) -> None:
        if (progress.round, progress.stage) == (2 if stage == "plan" else 1, stage):
            state.release_member(group, holder.member_id)

    before = cached(spark)
    job = job_of(group, topic, handler)
    with pytest.raises((LockLost, InvalidRecordState)):
        run_job(job, holder, max_records=A_ROUND, progress=disturb)
    assert state.figures.leases(group) == []
    assert cached(spark) - before == set()


def test_cached_frames_are_removed_after_each_round(
    job: ShareGroupJob, produce: Produce, assigned: Assigned, run_job: RunJob, spark: SparkSession
) -> None:
    """What it has cached of other data stays."""
    (topic,) = job.topics
    produce(topic, 0, ["accept a", "accept b"])
    before = cached(spark)
    table = spark.range(3).cache()

    def caching(records: DataFrame) -> DataFrame:
        kept = records.where("offset < 100").cache()
        assert kept.join(table, kept["offset"] == table["id"]).count() <= 1
        return by_value(kept)

    try:
        assert run_job(replace(job, handler=caching), assigned(topic), max_records=1).accepted == 2
        assert table.storageLevel.useMemory
        assert len(cached(spark) - before) == 1
    finally:
        table.unpersist()
