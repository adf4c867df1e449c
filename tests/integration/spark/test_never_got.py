"""Retention and other pipelines: what a run says of records that it never got."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from pyspark.sql import DataFrame, SparkSession

from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.spark import GroupTaken, lease
from sharequeue.state import State
from tests.fixtures.logs import delete_before
from tests.fixtures.pipelines import Assigned, Produce, RunJob, all_accepted, job_of
from tests.fixtures.stack import MakeTopic


def another(records: DataFrame) -> DataFrame:
    return all_accepted(records)


def test_records_removed_before_a_run_are_reported_once(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    settings: Settings,
    assigned: Assigned,
    run_job: RunJob,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """50 of 100: the report counts them and says so, and so does a warning; the next run has nothing to say, and
    names what was lost in between."""
    topic = make_topic(1)
    produce(topic, 0, range(100))
    holder, job = assigned(topic), job_of(group, topic, all_accepted)
    delete_before(settings, topic, 50)
    with caplog.at_level(logging.WARNING):
        report = run_job(job, holder)
    assert (report.leased, report.accepted, report.lost, report.drained) == (50, 50, 50, True)
    said = f"group {group} has lost 50 records: retention removed them before they were processed"
    assert said in str(report)
    assert said in caplog.text
    assert run_job(job, holder).lost == 0
    produce(topic, 0, range(30))
    limited = run_job(job, holder, max_rounds=1, max_records=10)
    assert (limited.lost, limited.drained) == (0, False)
    assert limited.remark == "the run ended at its limit with lag 20: the next run continues"
    delete_before(settings, topic, 115)
    last = run_job(job, holder)
    assert (last.leased, last.lost) == (15, 5)


def test_records_removed_during_a_run_are_counted_once(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    settings: Settings,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
) -> None:
    """Ten that were leased and not read, and forty that never were: each is counted once."""
    topic = make_topic(1)
    produce(topic, 0, range(100))

    def late(records: DataFrame) -> DataFrame:
        delete_before(settings, topic, 50)
        return all_accepted(records)

    report = run_job(job_of(group, topic, late), assigned(topic), max_records=10)
    assert (report.accepted, report.gaps, report.lost) == (50, 0, 50)
    (status,) = state.figures.describe(group)
    assert (status.accepted, status.lost_records, status.lag) == (50, 50, 0)


def test_a_lease_reports_lost_records(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    settings: Settings,
    assigned: Assigned,
    spark: SparkSession,
) -> None:
    """`lease` says what was lost when it opens."""
    topic = make_topic(1)
    produce(topic, 0, range(10))
    holder = assigned(topic)
    delete_before(settings, topic, 4)
    leased = lease(group, [topic], settings=settings, spark=spark, membership=holder).open()
    try:
        assert (leased.count, leased.lost) == (6, 4)
        assert "has lost 4 records" in str(leased)
        leased.write(all_accepted(leased.records), f"{settings.output}/{group}")
        leased.acknowledge()
    finally:
        leased.close()


def test_a_second_pipeline_on_a_group_is_refused(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    settings: Settings,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    spark: SparkSession,
) -> None:
    """With both names, before anything is leased; unless it says that it replaces the first one, which is refused
    from then on. Who leases without a pipeline is not asked."""
    topic = make_topic(1)
    produce(topic, 0, range(10))
    holder = assigned(topic)
    first = job_of(group, topic, all_accepted, name=None)
    second = replace(first, handler=another, sink=f"{first.sink}-2")
    ours, theirs = "tests.fixtures.pipelines:all_accepted", f"{__name__}:another"
    assert run_job(first, holder, max_records=5, max_rounds=1).accepted == 5
    with pytest.raises(
        GroupTaken, match=f"pipeline {ours} works on group {group}, and this is pipeline {theirs}"
    ):
        run_job(second, holder)
    (status,) = state.figures.describe(group)
    assert (status.spso, status.acquired) == (5, 0)
    with lease(group, [topic], max_records=1, settings=settings, spark=spark, membership=holder) as leased:
        leased.write(all_accepted(leased.records), f"{settings.output}/{group}")
        leased.acknowledge()
    assert run_job(second, holder, replaces=ours).accepted == 4
    assert run_job(second, holder, replaces=ours).accepted == 0
    with pytest.raises(GroupTaken, match=f"pipeline {theirs} works"):
        run_job(first, holder)
    assert run_job(replace(first, name=theirs), holder).drained


def test_a_pipeline_at_work_that_is_replaced_leases_no_more(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    database: Database,
) -> None:
    """Its round is acknowledged, the next one is not leased, whatever it says that it replaces itself. A round asks
    by one statement."""
    topic = make_topic(1)
    produce(topic, 0, range(30))
    holder = assigned(topic)
    asked: list[str] = []

    def note(*call: Any) -> None:
        if "claim_group" in call[2]:
            asked.append(call[2])

    sa.event.listen(database.engine, "before_cursor_execute", note)
    first = job_of(group, topic, all_accepted, name="first")
    assert run_job(first, holder, max_records=5, max_rounds=2, replaces="second").accepted == 10
    sa.event.remove(database.engine, "before_cursor_execute", note)
    assert len(asked) == 3  # the run, and each round

    def replaced(records: DataFrame) -> DataFrame:
        assert state.runs.claim(group, "second", "first") == "second"
        return all_accepted(records)

    with pytest.raises(GroupTaken, match=f"pipeline second has replaced pipeline first on group {group}"):
        run_job(replace(first, handler=replaced), holder, max_records=5, replaces="second")
    (status,) = state.figures.describe(group)
    assert (status.spso, status.acquired, status.lag) == (15, 0, 15)
    assert status.highest_delivery_count == 0
    second = replace(first, name="second")
    assert run_job(second, holder, replaces="first").accepted == 15
