"""lease → records → acknowledge: what was written is answered, and nothing else; what is not answered goes back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.domain.settings import Settings
from sharequeue.spark import LeasedRecords, lease
from sharequeue.spark.handler import HandlerError
from sharequeue.spark.leased_records import Unacknowledged
from sharequeue.spark.leasing.renewal import LockLost
from sharequeue.state import State, locks
from tests.fixtures.logs import delete_before
from tests.fixtures.pipelines import Assigned, Holder, Produce, others_released
from tests.fixtures.stack import MakeTopic
from tests.waiting import wait_until

Leasing = Callable[..., AbstractContextManager[LeasedRecords]]


@pytest.fixture
def leasing(settings: Settings, spark: SparkSession, state: State, group: str) -> Leasing:
    """Give `lease` with this test's group, session and state: `leasing([topic], membership=holder)`."""
    return partial(lease, group, settings=settings, spark=spark, state=state)


def by_value(records: DataFrame) -> DataFrame:
    """The outcome is what the value says."""
    return records.withColumn("outcome", fn.col("value").cast("string"))


def given_back(state: State, group: str, available: int) -> None:
    """Nothing was answered, nothing is held, everything can be leased again."""
    statuses = state.figures.describe(group)
    assert state.figures.leases(group) == []
    assert sum(status.available for status in statuses) == available
    assert [status.spso for status in statuses] == [0] * len(statuses)
    assert state.figures.verify(group) == []


def test_a_lease_is_acknowledged_by_its_written_outcomes(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    leasing: Leasing,
    state: State,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    """Each outcome is taken from the files: of two partitions, without a lease id, in a format of the user's. What
    they leave out is released and counted; what waits until a time is not delivered before. In a folder that is
    appended to, a block answers for its own rows."""
    topic = make_topic(2)
    produce(topic, 0, ["accept", "reject", "release", "accept", "dropped"])
    produce(topic, 1, ["accept", "Accept"])
    holder = assigned(topic)
    with leasing([topic], membership=holder, without_row="release") as leased:
        assert leased
        assert leased.count == 7
        kept = by_value(leased.records).where("outcome <> 'dropped'")
        later = fn.when(fn.col("outcome") == "release", fn.expr("current_timestamp() + interval 1 hour"))
        kept = others_released(kept.withColumn("not_before", later))
        kept.select("topic", "partition", "offset", "outcome", "not_before").write.json(f"{tmp_path}/json")
        done = leased.acknowledge(spark.read.json(f"{tmp_path}/json"))
        with pytest.raises(HandlerError, match="already"):
            leased.acknowledge(f"{tmp_path}/json")
    assert (done.leased, done.accepted, done.rejected, done.without_row) == (7, 3, 1, 1)
    # One by its outcome, one by an outcome that is none, one that was left out.
    assert (done.released, done.gaps, done.lost, done.exhausted) == (3, 0, 0, 0)
    assert done.lag == 3  # a group without a dead-letter topic is done with what it rejects

    folder = tmp_path / "parquet"
    for _ in range(2):
        with leasing([topic], membership=holder, max_records=2, without_row="release") as leased:
            others_released(by_value(leased.records)).write.mode("append").parquet(str(folder))
            done = leased.acknowledge(folder)
        assert done.leased == done.released == 2
    rows = spark.read.parquet(str(folder)).select("partition", "offset", "delivery_count").collect()
    own = tmp_path / "own"
    with leasing([topic], membership=holder, max_records=2, without_row="release") as leased:
        with pytest.raises(HandlerError, match="nothing was written"):
            leased.acknowledge()
        leased.write(leased.records.withColumn("outcome", fn.lit("reject")), own)
        # What was written last counts, and is alone.
        leased.write(others_released(by_value(leased.records)), own)
        done = leased.acknowledge()
        with pytest.raises(HandlerError, match="already"):
            leased.write(by_value(leased.records), own)
    assert (done.leased, done.released, done.without_row) == (2, 2, 0)
    assert spark.read.parquet(str(own)).count() == 2
    # Twice more, and not what is to wait an hour.
    assert sorted(map(tuple, rows)) == [(0, 4, 2), (0, 4, 3), (1, 1, 2), (1, 1, 3)]
    assert state.figures.leases(group) == []
    assert state.figures.verify(group) == []


def test_outcomes_that_are_not_read_from_storage_are_refused(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    leasing: Leasing,
    state: State,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    """Computed anew from the topic, in memory, of other partitions, without a column, or not there at all: nothing of
    it is answered, and all of it goes back when the block ends."""
    topic = make_topic(1)
    produce(topic, 0, ["accept"] * 3)
    with leasing([topic], membership=assigned(topic)) as leased:
        outcomes = by_value(leased.records)
        with pytest.raises(HandlerError, match="computed from the topic"):
            leased.acknowledge(outcomes)
        computed = spark.range(3).selectExpr("'accept' outcome", "id offset")
        with pytest.raises(HandlerError, match="in memory"):
            leased.acknowledge(computed)
        computed.write.parquet(f"{tmp_path}/a part")
        with pytest.raises(HandlerError, match="in memory only, or a part of them is"):
            leased.acknowledge(spark.read.parquet(f"{tmp_path}/a part").union(computed))
        with pytest.raises(HandlerError, match="no folder"):
            leased.acknowledge(tmp_path / "nowhere")
        elsewhere = outcomes.select(
            "topic", (fn.col("partition") + 1).alias("partition"), "offset", "outcome"
        )
        elsewhere.write.parquet(f"{tmp_path}/elsewhere")
        with pytest.raises(HandlerError, match="3 offsets, such as 0, of partitions that were not leased"):
            leased.acknowledge(f"{tmp_path}/elsewhere")
        outcomes.drop("outcome").write.parquet(f"{tmp_path}/lacking")
        with pytest.raises(HandlerError, match="lack outcome"):
            leased.acknowledge(f"{tmp_path}/lacking")
    given_back(state, group, 3)


def test_nothing_to_lease_is_an_empty_block(
    make_topic: MakeTopic, assigned: Assigned, leasing: Leasing, tmp_path: Path
) -> None:
    """Without records the same lines run and answer nothing."""
    topic = make_topic(1)
    with leasing([topic], membership=assigned(topic)) as leased:
        assert not leased
        by_value(leased.records).write.parquet(f"{tmp_path}/out")
        assert leased.acknowledge(f"{tmp_path}/out").leased == 0


def test_invalid_arguments_of_a_lease_are_refused_at_once(leasing: Leasing) -> None:
    """Before a session is made or anything is asked for."""
    with pytest.raises(ValueError, match="not an outcome"), leasing(["t"], without_row="ignore"):
        pass
    with pytest.raises(ValueError, match="at least one topic"), leasing([]):
        pass
    with pytest.raises(
        TypeError, match="max_records is '10', of type str: expected a whole number, 1 or more"
    ):
        leasing(["t"], max_records="10")
    with pytest.raises(ValueError, match="1 or more"), leasing(["t"], max_records=0):
        pass


def test_a_block_that_fails_gives_back_at_once(
    group: str, make_topic: MakeTopic, produce: Produce, assigned: Assigned, leasing: Leasing, state: State
) -> None:
    """After an exception the records are suspects and come again in parts; after an interrupt, which is somebody's
    will, they come again together."""
    topic = make_topic(1)
    produce(topic, 0, range(100))
    holder = assigned(topic)
    with pytest.raises(KeyboardInterrupt), leasing([topic], membership=holder) as leased:
        raise KeyboardInterrupt
    given_back(state, group, 100)
    with pytest.raises(LookupError, match="100"), leasing([topic], membership=holder) as leased:
        raise LookupError(leased.count)
    given_back(state, group, 100)
    with pytest.warns(Unacknowledged), leasing([topic], membership=holder) as leased:
        assert leased.count < 100


def test_locks_are_kept_and_a_lost_one_stops_the_block(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    leasing: Leasing,
    state: State,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lock is renewed long before it lapses. Taken away, it cancels the Spark job that is at work, refuses what was
    written, and the block ends in LockLost, whatever Spark said to the cancellation."""
    topic = make_topic(1)
    produce(topic, 0, ["accept"] * 20)
    holder = assigned(topic, share_record_lock_duration_ms="60000")
    folder = str(tmp_path / "out")
    # Twice a second, of a lock that does not lapse on a busy machine.
    monkeypatch.setattr(locks, "RENEWALS_PER_LOCK", 120)

    def block() -> None:
        with leasing([topic], membership=holder) as leased:
            first = leased.leases[0].expires_at
            wait_until(lambda: _expiry(state, group) > first)
            by_value(leased.records).write.parquet(folder)
            robber = threading.Thread(target=_rob, args=(spark, state, group, holder))
            robber.start()
            with pytest.raises(Exception, match="cancelled"):
                # Twenty seconds a record: longer than a test may take, unless it is cancelled.
                leased.records.where("java_method('java.lang.Thread', 'sleep', 20000L) is null").count()
            robber.join()
            for refused in (leased.check, lambda: leased.records, lambda: leased.acknowledge(folder)):
                with pytest.raises(LockLost):
                    refused()
            raise LookupError("what Spark said to the cancellation")

    with pytest.raises(LockLost, match="no longer held"):
        block()
    given_back(state, group, 20)


def test_retention_that_overtakes_a_lease_is_counted(
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    leasing: Leasing,
    settings: Settings,
    state: State,
    group: str,
    tmp_path: Path,
) -> None:
    """Deleted between lease and read: neither gaps nor without a row, but lost, and the block ends well."""
    topic = make_topic(1)
    produce(topic, 0, ["accept"] * 20)
    with leasing([topic], membership=assigned(topic)) as leased:
        delete_before(settings, topic, 8)
        by_value(leased.records).write.parquet(f"{tmp_path}/out")
        done = leased.acknowledge(f"{tmp_path}/out")
    assert (done.accepted, done.lost, done.gaps, done.without_row) == (12, 8, 0, 0)
    (status,) = state.figures.describe(group)
    assert (status.spso, status.lag, status.leases) == (20, 0, 0)


def _expiry(state: State, group: str) -> datetime:
    (row,) = state.figures.leases(group)
    return row.expires_at


def _rob(spark: SparkSession, state: State, group: str, holder: Holder) -> None:
    """Take the lease away once Spark is at work."""
    tracker = spark.sparkContext.statusTracker()
    wait_until(
        lambda: any(
            stage.numActiveTasks for stage in map(tracker.getStageInfo, tracker.getActiveStageIds()) if stage
        )
    )
    state.release_member(group, holder.member_id)
