"""A partition without a leader is left out, and costs nobody a delivery. A broker that dies is in
`tests/deep/deep_leaderless.py`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.domain.errors import BrokerNotAvailable
from sharequeue.domain.settings import Settings
from sharequeue.kafka.topics import Topics, TopicsFound
from sharequeue.spark.leased_records import lease
from sharequeue.state import State
from tests.fixtures.pipelines import Assigned, Produce, RunJob, all_accepted, job_of
from tests.fixtures.stack import MakeTopic


class Brokers:
    """What brokers say of the partitions 1: the tests' own broker always leads them."""

    up = True


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Brokers]:
    """Give a switch that takes the leader of each partition 1 away."""
    switch, ask = Brokers(), Topics.ask

    def asked(topics: Topics, names: object) -> TopicsFound:
        found = ask(topics, names)  # type: ignore[arg-type]
        away = frozenset() if switch.up else frozenset({1})
        known = {name: replace(info, leaderless=away) for name, info in found.known.items()}
        return TopicsFound(known, found.refused)

    monkeypatch.setattr(Topics, "ask", asked)
    yield switch
    switch.up = True


@pytest.fixture
def filled(make_topic: MakeTopic, produce: Produce) -> str:
    """Give a topic of two partitions with five records each."""
    topic = make_topic(2)
    for partition in range(2):
        produce(topic, partition, range(5))
    return topic


def in_flight(state: State, group: str) -> list[tuple[int, int, int]]:
    """Return SPSO, available records and their highest delivery count, by partition."""
    return [(s.spso, s.available, s.highest_delivery_count) for s in state.figures.describe(group)]


def test_a_partition_without_a_leader_is_left_out_of_the_lease(
    group: str, filled: str, brokers: Brokers, assigned: Assigned, run_job: RunJob, state: State
) -> None:
    """The others are processed, and the report names it: it is neither drained, nor is its lag known. When it has a
    leader again, the next run takes its records at their first delivery."""
    holder, brokers.up = assigned(filled), False
    report = run_job(job_of(group, filled, all_accepted), holder)
    assert (report.accepted, report.drained, report.leaderless) == (5, False, (f"{filled}-1",))
    assert report.remark is not None
    assert f"{filled}-1 has no leader" in report.remark
    # A service that has seen its log end before makes it 5.
    assert re.search(r"lag [05] or more", str(report))
    assert in_flight(state, group) == [(5, 0, 0), (0, 0, 0)]
    brokers.up = True
    report = run_job(job_of(group, filled, all_accepted), holder)
    assert (report.accepted, report.drained, report.leaderless) == (5, True, ())


def test_a_partition_that_the_group_has_not_started_is_named(
    group: str, filled: str, brokers: Brokers, assigned: Assigned, run_job: RunJob
) -> None:
    """A fresh group has no share-partition of one without a leader: nothing is known of its lag."""
    holder, brokers.up = assigned(filled), False
    del holder.assignment[1]
    report = run_job(job_of(group, filled, all_accepted), holder)
    assert (report.drained, report.leaderless) == (False, (f"{filled}-1",))


def failing(records: DataFrame) -> DataFrame:
    """Fail at the first record of a partition 1, as a task does that cannot read it."""
    fails = fn.when(fn.col("partition") == 1, fn.raise_error(fn.lit("no answer"))).otherwise(fn.lit("accept"))
    return all_accepted(records).withColumn("outcome", fails)


@pytest.mark.parametrize("parts", [1, 2])
def test_a_leader_lost_in_a_round_costs_no_delivery(
    parts: int,
    group: str,
    filled: str,
    brokers: Brokers,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
) -> None:
    """All records of the job are given back; the run goes on with the partitions that can be read. Suspects, each
    part with a job of its own, lose no delivery either."""
    holder = assigned(filled)
    if parts == 2:
        with pytest.raises(PySparkException):
            run_job(job_of(group, filled, failing), holder)
    before = in_flight(state, group)

    def losing(records: DataFrame) -> DataFrame:
        brokers.up = False
        return failing(records)

    report = run_job(job_of(group, filled, losing), holder)
    assert (report.accepted, report.drained, report.leaderless) == (5, False, (f"{filled}-1",))
    assert report.rounds[0].unacknowledged >= 5
    assert in_flight(state, group)[0] == (5, 0, 0)
    assert in_flight(state, group)[1] == (0, 5, before[1][2])


def test_missing_offsets_of_a_partition_without_a_leader_are_no_gaps(
    group: str, filled: str, brokers: Brokers, assigned: Assigned, run_job: RunJob, state: State
) -> None:
    """Whether the log has the records cannot be found out: they are given back, and the others count."""

    def losing(records: DataFrame) -> DataFrame:
        brokers.up = False
        return all_accepted(records).where("partition = 0")

    holder = assigned(filled)
    report = run_job(job_of(group, filled, losing, without_row="reject"), holder)
    (only,) = report.rounds
    assert (only.accepted, only.unacknowledged, report.gaps, report.without_row) == (5, 5, 0, 0)
    assert report.leaderless == (f"{filled}-1",)
    assert in_flight(state, group) == [(5, 0, 0), (0, 5, 0)]


def test_a_lease_whose_leader_is_lost_costs_no_delivery(
    group: str,
    filled: str,
    brokers: Brokers,
    assigned: Assigned,
    state: State,
    settings: Settings,
    spark: SparkSession,
) -> None:
    """The error of the block says which partition it is, in place of Spark's."""
    holder = assigned(filled)

    def work() -> None:
        with lease(group, [filled], membership=holder, settings=settings, spark=spark) as leased:
            brokers.up = False
            failing(leased.records).collect()

    with pytest.raises(BrokerNotAvailable, match=f"{filled}-1 has no leader"):
        work()
    assert in_flight(state, group) == [(0, 5, 0), (0, 5, 0)]
