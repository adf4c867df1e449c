"""Records are read at the isolation level at which they were leased, whoever says otherwise, and when.

A stricter reader would make gaps of the records of an open transaction; a looser one would deliver those of an
aborted one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.database import Database
from sharequeue.domain.errors import OffsetOutOfRange
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import READ_COMMITTED, READ_UNCOMMITTED, Lease, LogSeen, SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.topics import Topics
from sharequeue.spark import lease
from sharequeue.state import State
from sharequeue.state.calls import AcquiredLeases
from tests.fixtures.pipelines import Assigned, Produce, RunJob, all_accepted, job_of
from tests.fixtures.stack import MakeTopic
from tests.waiting import PATIENCE_S

SetLevel = Callable[[str], object]


@pytest.fixture
def set_level(database: Database, group: str) -> SetLevel:
    """Give a function that sets the isolation level of this test's group."""
    return lambda level: alter_group_configs(database, group, {"share.isolation.level": level})


@contextmanager
def transaction(settings: Settings, topic: str, *partitions: int) -> Iterator[Producer]:
    """Give the producer of an open transaction with five records in each of these partitions."""
    # On a slow machine a minute is not enough, and the broker would abort it.
    given = {"transactional_id": f"level-{topic}", "transaction_timeout_ms": 600_000}
    producer = Producer(client_config(settings, **given) | {"log_level": 0})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    for partition in partitions or (0,):
        for number in range(5):
            producer.produce(topic, f"open {number}".encode(), partition=partition)
    assert producer.flush(PATIENCE_S) == 0
    yield producer


@pytest.mark.rule("R-IL-1")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kafka.isolation.level", READ_COMMITTED),
        ("kafka.Isolation.Level", READ_COMMITTED),
        ("endingTimestamp", "1"),
    ],
)
def test_a_readers_option_is_refused_before_anything_is_leased(
    name: str,
    value: str,
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    settings: Settings,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    spark: SparkSession,
) -> None:
    """Of a run and of a lease: with less than the leased records read, the others would count as gaps."""
    topic = make_topic(1)
    produce(topic, 0, range(5))
    holder, options = assigned(topic), {name: value}
    with pytest.raises(ValueError, match=f"the reader's option {name} is not supported"):
        run_job(job_of(group, topic, all_accepted, reader_options=options), holder)
    with (
        pytest.raises(ValueError, match=f"the reader's option {name} is not supported"),
        lease(group, [topic], reader_options=options, membership=holder, settings=settings, spark=spark),
    ):
        pass
    assert state.figures.describe(group)[0].speo == 0


@pytest.mark.rule("R-IL-1")
def test_a_changed_isolation_level_counts_from_the_next_lease_on(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    settings: Settings,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    set_level: SetLevel,
) -> None:
    """A run that began as read_committed leases the records of an open transaction once the group is
    read_uncommitted, and reads them: they are accepted, and no gaps."""
    topic = make_topic(1)
    produce(topic, 0, range(5))

    def changing(records: DataFrame) -> DataFrame:
        set_level(READ_UNCOMMITTED)
        return all_accepted(records)

    with transaction(settings, topic):
        holder = assigned(topic, share_isolation_level=READ_COMMITTED)
        report = run_job(job_of(group, topic, changing), holder, max_records=5)
    assert (report.accepted, report.gaps, len(report.rounds)) == (10, 0, 2)
    assert [status.spso for status in state.figures.describe(group)] == [10]


@pytest.mark.rule("R-IL-1")
@pytest.mark.parametrize(
    ("leased", "after", "accepted", "gaps"),
    [(READ_UNCOMMITTED, READ_COMMITTED, 10, 0), (READ_COMMITTED, READ_UNCOMMITTED, 5, 0)],
)
def test_a_lease_is_read_at_the_isolation_level_of_its_acquire(
    leased: str,
    after: str,
    accepted: int,
    gaps: int,
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    settings: Settings,
    assigned: Assigned,
    run_job: RunJob,
    set_level: SetLevel,
    state: State,
) -> None:
    """What was leased with an open transaction is read with it, what was leased without it is read without it."""
    topic = make_topic(1)
    produce(topic, 0, range(5))

    def too_late(records: DataFrame) -> DataFrame:
        set_level(after)
        return all_accepted(records)

    with transaction(settings, topic):
        job = job_of(group, topic, too_late)
        report = run_job(job, assigned(topic, share_isolation_level=leased), max_rounds=1)
        assert (report.accepted, report.gaps) == (accepted, gaps)
        assert [status.spso for status in state.figures.describe(group)] == [accepted]


@pytest.mark.rule("R-IL-1")
@pytest.mark.parametrize(("leased", "accepted", "gaps"), [(READ_COMMITTED, 5, 6), (READ_UNCOMMITTED, 10, 1)])
def test_aborted_records_come_to_leases_that_are_read_uncommitted_alone(
    leased: str,
    accepted: int,
    gaps: int,
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    settings: Settings,
    assigned: Assigned,
    run_job: RunJob,
    set_level: SetLevel,
) -> None:
    """Also where the group's level is the other one by the time when they are read, and when what is missing is read
    again."""
    topic = make_topic(1)
    produce(topic, 0, range(5))
    with transaction(settings, topic) as producer:
        producer.abort_transaction(PATIENCE_S)

    def too_late(records: DataFrame) -> DataFrame:
        set_level(READ_UNCOMMITTED if leased == READ_COMMITTED else READ_COMMITTED)
        return all_accepted(records)

    holder = assigned(topic, share_isolation_level=leased)
    report = run_job(job_of(group, topic, too_late), holder, max_rounds=1)
    assert (report.accepted, report.gaps, report.without_row) == (accepted, gaps, 0)


class _Changing(State):
    """A state that changes the group's level after each share-partition it has leased."""

    def __init__(self, database: Database, set_level: SetLevel) -> None:
        super().__init__(database)
        self._set_level = set_level

    def acquire(self, share_partitions, *who, leave_outs, **rest):  # type: ignore[no-untyped-def,override]
        leases: list[Lease] = []
        levels = (READ_COMMITTED, READ_UNCOMMITTED)
        for number, (at, left_out) in enumerate(zip(share_partitions, leave_outs, strict=True)):
            self._set_level(levels[number % 2])
            leases += super().acquire([at], *who, leave_outs=[left_out], **rest).leases
        self._set_level(levels[0])
        return AcquiredLeases(tuple(leases), {})


@pytest.mark.rule("R-IL-1")
def test_a_round_of_both_levels_reads_each_lease_at_its_own(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    settings: Settings,
    database: Database,
    assigned: Assigned,
    spark: SparkSession,
    set_level: SetLevel,
    state: State,
    tmp_path: Path,
) -> None:
    """The config was changed between two acquires of one round: aborted records come from the share-partitions that
    were leased read_uncommitted, and are gaps of the others, also where they are read again because no row names
    them."""
    topic = make_topic(4)
    for partition in range(4):
        produce(topic, partition, range(5))
    with transaction(settings, topic, *range(4)) as producer:
        producer.abort_transaction(PATIENCE_S)
    holder, mixed = assigned(topic), _Changing(database, set_level)
    given: dict[str, Any] = {
        "membership": holder,
        "settings": settings,
        "spark": spark,
        "state": mixed,
        "without_row": "reject",
    }
    with lease(group, [topic], **given) as leased:
        levels = {each.share_partition.partition: each.isolation_level for each in leased.leases}
        assert sorted(levels.values()) == [READ_COMMITTED] * 2 + [READ_UNCOMMITTED] * 2
        counted = {
            row["partition"]: row["count"] for row in leased.records.groupBy("partition").count().collect()
        }
        assert counted == {at: 5 if level == READ_COMMITTED else 10 for at, level in levels.items()}
        # Of the last records of each share-partition no row tells.
        kept = leased.records.where("offset < 3").withColumn("outcome", fn.lit("accept"))
        leased.write(kept, tmp_path / "outcomes")
        done = leased.acknowledge()
    assert (done.accepted, done.rejected, done.gaps) == (12, 2 * 2 + 2 * 7, 2 * 6 + 2 * 1)
    assert state.figures.verify(group) == []


class _Ahead(State):
    """A state that a stranger has told that there is no open transaction, after the run has looked."""

    def __init__(self, database: Database, seen: Callable[[], LogSeen]) -> None:
        super().__init__(database)
        self._seen = seen

    def acquire(self, *asked, **rest):  # type: ignore[no-untyped-def]
        # In one transaction: a service that looks at the log meanwhile knows better.
        with State(self.database).transaction() as (_, state):
            state.observe([self._seen()])
            return state.acquire(*asked, **rest)


@pytest.mark.rule("R-IL-2")
def test_offsets_past_the_last_stable_offset_are_no_gaps(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    settings: Settings,
    database: Database,
    assigned: Assigned,
    run_job: RunJob,
    topics: Topics,
    state: State,
) -> None:
    """Leased although the reader cannot see it: the run says so, acknowledges nothing, and uses up no delivery. Once
    the transaction has ended every record is there."""
    topic = make_topic(1)
    produce(topic, 0, range(5))
    holder = assigned(topic, share_isolation_level=READ_COMMITTED, share_delivery_count_limit="2")
    at, topic_id = SharePartition(group, topic, 0), topics.describe([topic])[topic].topic_id
    wrong = _Ahead(database, lambda: LogSeen(at, topic_id, 0, 10, 10))
    # The connector waits so long for what it cannot see, and then passes over it.
    job = job_of(group, topic, all_accepted, reader_options={"kafkaConsumer.pollTimeoutMs": "1000"})
    with transaction(settings, topic) as producer:
        for _ in range(3):  # one more than the delivery limit
            with pytest.raises(OffsetOutOfRange, match="last stable offset, 5"):
                run_job(job, holder, state=wrong)
        (status,) = state.figures.describe(group)
        assert (status.spso, status.acquired, status.archiving, status.exhausted) == (0, 0, 0, 0)
        assert run_job(job, holder).accepted == 5
        producer.commit_transaction(PATIENCE_S)
    report = run_job(job, holder)
    assert (report.accepted, report.gaps, report.lag) == (5, 1, 0)
