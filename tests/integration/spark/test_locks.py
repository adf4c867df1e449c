"""Locks are renewed while Spark works; a lost one, a failed handler or a killed run acknowledges nothing."""

from __future__ import annotations

import textwrap
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import pytest
import sqlalchemy as sa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.database import Database
from sharequeue.domain.errors import InvalidRecordState, ShareError
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import Acknowledged, AcknowledgeType, LeaseOutput, SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.kafka.topics import Topics
from sharequeue.outputs.manifest import read_manifest
from sharequeue.spark.handler import LEASE
from sharequeue.spark.leasing.renewal import LockLost
from sharequeue.spark.output.folders import new_folder
from sharequeue.spark.output.manifest import read_output
from sharequeue.spark.progress import Progress
from sharequeue.spark.sweep import sweep_outputs
from sharequeue.state import State, locks
from sharequeue.state.calls import LeaseAcknowledgement
from tests import single
from tests.fixtures.pipelines import Assigned, Holder, Produce, RunJob, all_accepted, job_of
from tests.fixtures.stack import MakeTopic
from tests.killed import run_killed
from tests.servers.cutting_proxy import CuttingProxy
from tests.waiting import pass_time, wait_until

LOCK_SECONDS = 60


@pytest.fixture
def filled(make_topic: MakeTopic, produce: Produce) -> str:
    """A topic of two partitions with twenty records each."""
    topic = make_topic(2)
    for partition in range(2):
        produce(topic, partition, range(20))
    return topic


@pytest.fixture
def aside(private_database: Database, topics: Topics, group: str, filled: str) -> Holder:
    """Start the group on that topic in a database of this test alone, whose clock it may move."""
    configs = {"share.record.lock.duration.ms": str(1000 * LOCK_SECONDS)}
    alter_group_configs(private_database, group, {"share.auto.offset.reset": "earliest", **configs})
    holder = Holder([SharePartition(group, filled, partition) for partition in range(2)])
    for at in holder.assignment:
        State(private_database).initialize(at, topics.info(filled).topic_id, 0, 1)
    return holder


@pytest.fixture
def renewed_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renew a lock of a minute twice a second: a lost one is seen at once, and none lapses on a busy machine."""
    monkeypatch.setattr(locks, "RENEWALS_PER_LOCK", 120)


def given_back(state: State, group: str) -> None:
    """Nothing was acknowledged, nothing is held any more: everything is there to be delivered again, at
    once."""
    statuses = state.figures.describe(group)
    assert sum(status.acquired for status in statuses) == 0
    assert sum(status.available for status in statuses) == 40
    assert state.figures.leases(group) == []
    assert read_manifest(state, group, f"sink-{group}") == ()
    assert state.figures.verify(group) == []


@pytest.mark.usefixtures("renewed_often")
def test_a_round_longer_than_its_locks_keeps_them(
    group: str, filled: str, aside: Holder, run_job: RunJob, private_database: Database
) -> None:
    """Three times the lock duration passes while the handler works: the locks are renewed meanwhile, and the answers
    are taken."""
    state = State(private_database)

    def seconds_left() -> float:
        return (min(row.expires_at for row in state.figures.leases(group)) - state.now()).total_seconds()

    def slow(records: DataFrame) -> DataFrame:
        for _ in range(6):
            pass_time(private_database, LOCK_SECONDS / 2)
            wait_until(lambda: seconds_left() > LOCK_SECONDS / 2 + 1, otherwise="the locks are not renewed")
        return all_accepted(records)

    job = job_of(group, filled, slow)
    report = run_job(job, aside, state=state)
    assert report.accepted == 40
    assert report.drained


@pytest.mark.usefixtures("renewed_often")
def test_a_lost_lock_stops_spark_before_anything_is_acknowledged(
    group: str, filled: str, assigned: Assigned, run_job: RunJob, state: State, spark: SparkSession
) -> None:
    """A lease that was taken away is noticed at the next renewal: the Spark job is cancelled, not waited for."""
    holder = assigned(filled, share_record_lock_duration_ms=str(1000 * LOCK_SECONDS))

    def endless(records: DataFrame) -> DataFrame:
        # Twenty seconds by record, for twenty records on each of two cores: longer than a test may take.
        return all_accepted(records).withColumn(
            "nap", fn.expr("java_method('java.lang.Thread', 'sleep', 20000L)")
        )

    def at_work() -> bool:
        tracker = spark.sparkContext.statusTracker()
        stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
        return any(stage.numActiveTasks for stage in stages if stage)

    def rob() -> None:
        wait_until(at_work)
        state.release_member(group, holder.member_id)

    robber = threading.Thread(target=rob)
    robber.start()
    with pytest.raises(LockLost, match="no longer held"):
        run_job(job_of(group, filled, endless), holder)
    robber.join()
    given_back(state, group)


def test_a_lost_membership_stops_the_run(
    group: str, filled: str, assigned: Assigned, run_job: RunJob, state: State
) -> None:
    """Out of the group, a run writes nothing more, and what it still held is free."""
    holder = assigned(filled)

    def expelled(records: DataFrame) -> DataFrame:
        holder.lost.set()
        return all_accepted(records)

    with pytest.raises(LockLost, match="no longer knows member holder"):
        run_job(job_of(group, filled, expelled), holder)
    given_back(state, group)


def test_a_handler_that_fails_on_the_driver_gives_everything_back(
    group: str, filled: str, assigned: Assigned, run_job: RunJob, state: State
) -> None:
    """The handler's own exception reaches the caller, and the locks do not have to lapse first."""

    def broken(records: DataFrame) -> DataFrame:
        raise LookupError("no such table")

    with pytest.raises(LookupError, match="no such table"):
        run_job(job_of(group, filled, broken), assigned(filled))
    given_back(state, group)


def test_a_handler_that_fails_in_spark_gives_everything_back(
    group: str, filled: str, assigned: Assigned, run_job: RunJob, state: State
) -> None:
    """The same for an exception of a task; part of the output was written, and none of it counts."""

    def poisoned(records: DataFrame) -> DataFrame:
        failing = fn.when(fn.col("offset") == 7, fn.raise_error(fn.lit("poison"))).otherwise(fn.lit("accept"))
        return records.withColumn("outcome", failing.cast("string"))

    with pytest.raises(Exception, match="poison"):
        run_job(job_of(group, filled, poisoned), assigned(filled))
    given_back(state, group)


def test_a_run_that_somebody_stops_leaves_no_suspects(
    group: str, filled: str, assigned: Assigned, run_job: RunJob, state: State
) -> None:
    """An interrupt gives everything back at once, and it comes again together: nothing of it had failed."""

    def stopped(records: DataFrame) -> DataFrame:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_job(job_of(group, filled, stopped), assigned(filled))
    given_back(state, group)
    again = run_job(
        job_of(group, filled, all_accepted),
        Holder([s.share_partition for s in state.figures.describe(group)]),
    )
    assert (len(again.rounds), again.accepted) == (1, 40)


class _RefusingSecond(State):
    """It is asked to acknowledge two leases in one call, and loses the second one just before."""

    def acknowledge(
        self, acknowledgements: Sequence[LeaseAcknowledgement], *, request_id: UUID | None = None
    ) -> list[Acknowledged | ShareError]:
        (_, second) = acknowledgements
        self.release([second.lease])
        return super().acknowledge(acknowledgements, request_id=request_id)


def test_each_lease_counts_by_itself(
    group: str,
    filled: str,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    spark: SparkSession,
    database: Database,
) -> None:
    """One lease acknowledged, the next one refused: readers see the first one's output and not the
    second's, and the next run brings the rest, each record once."""
    holder = assigned(filled)
    job = job_of(group, filled, all_accepted)
    refusing = _RefusingSecond(database)
    with pytest.raises(InvalidRecordState):
        run_job(job, holder, state=refusing)
    assert read_output(spark, state, group, job.sink).count() == 20
    assert run_job(job, holder).accepted == 20
    rows = read_output(spark, state, group, job.sink).select("partition", "offset").collect()
    assert Counter((row[0], row[1]) for row in rows) == {(p, n): 1 for p in range(2) for n in range(20)}


def test_a_lost_reply_neither_leases_nor_counts_twice(
    group: str,
    filled: str,
    assigned: Assigned,
    run_job: RunJob,
    settings: Settings,
    state: State,
    spark: SparkSession,
) -> None:
    """The replies to an acquire and to an acknowledgement that have committed never arrive: the run asks again, is
    answered as at first, and its output and figures are those of a quiet day."""
    holder = assigned(filled)
    url = sa.make_url(settings.database_url)
    with CuttingProxy(str(url.host), int(url.port or 0)) as proxy:
        through = url.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)

        def cut(progress: Progress) -> None:
            if progress.stage in ("acquire", "acknowledge") and progress.round == 1:
                proxy.arm(f"sharequeue.{progress.stage}_many(", 0)

        with Database(through) as database:
            job = job_of(group, filled, all_accepted)
            report = run_job(job, holder, state=State(database), progress=cut)
        assert (proxy.cuts, proxy.armed) == (2, False)
    assert (report.leased, report.accepted, len(report.rounds[0].lease_ids)) == (40, 40, 2)
    assert read_output(spark, state, group, job.sink).count() == 40
    assert [(status.spso, status.lag) for status in state.figures.describe(group)] == [(20, 0)] * 2
    assert state.figures.leases(group) == []
    assert state.figures.verify(group) == []


KILLED = textwrap.dedent(
    """
    import os, sys
    from pyspark.sql import functions as fn
    from sharequeue.spark import spark_session
    from sharequeue.spark.run import run_rounds
    from sharequeue.spark.job import ShareGroupJob
    from sharequeue.database import Database
    from sharequeue.domain.settings import Settings
    from sharequeue.domain.values import SharePartition
    from sharequeue.state import State
    from sharequeue.kafka.topics import Topics
    from tests.fixtures.pipelines import Holder

    home, output, url, group, topic = sys.argv[1:]
    settings = Settings.load(home, output=output, database_url=url)

    class Killed(State):
        def acknowledge(self, *arguments, **named):
            os.kill(os.getpid(), 9)

    def handler(records):
        kept = records.select("topic", "partition", "offset", "lease_id")
        return kept.withColumn("outcome", fn.lit("accept"))

    job = ShareGroupJob(group, (topic,), handler, f"sink-{group}", name=f"pipeline-{group}")
    holder = Holder([SharePartition(group, topic, partition) for partition in range(2)], "killed")
    database, spark = Database.open(settings), spark_session(settings, "killed")
    state = Killed(database)
    run_rounds(settings, job, membership=holder, state=state, topics=Topics(settings), spark=spark)
    """
)


@pytest.mark.slow
def test_files_of_a_run_killed_before_its_acknowledgement_do_not_count(
    group: str,
    filled: str,
    aside: Holder,
    run_job: RunJob,
    spark: SparkSession,
    private_database: Database,
    output_settings: Settings,
) -> None:
    """A run killed once its files are in place: nobody sees them, its locks lapse, the next run brings each
    record once, and the sweep removes what the killed run left, and nothing else."""
    state, url = State(private_database), private_database.engine.url.render_as_string(hide_password=False)
    run_killed(KILLED, output_settings.home, output_settings.output, url, group, filled)
    job = job_of(group, filled, all_accepted)
    folders = sorted(str(path) for path in (output_settings.local_output / job.sink).glob("leases=*"))
    assert len(folders) == 1
    assert read_manifest(state, group, job.sink) == ()

    assert sum(row.records for row in state.figures.leases(group)) == 40
    pass_time(private_database, LOCK_SECONDS)
    state.sweep()
    assert state.figures.leases(group) == []
    assert sorted(sweep_outputs(spark, output_settings, state, job, dry_run=True)) == folders
    assert run_job(job, aside, state=state).accepted == 40
    assert read_output(spark, state, group, job.sink).count() == 40
    assert sorted(sweep_outputs(spark, output_settings, state, job)) == folders
    assert sweep_outputs(spark, output_settings, state, job) == []
    rows = read_output(spark, state, group, job.sink).select("partition", "offset").collect()
    assert Counter((row[0], row[1]) for row in rows) == {(p, n): 1 for p in range(2) for n in range(20)}
    assert state.figures.verify(group) == []


def test_the_sweep_leaves_the_folders_of_held_leases(
    group: str, filled: str, assigned: Assigned, state: State, spark: SparkSession, output_settings: Settings
) -> None:
    """The folder of a write whose lease is still at work is not swept. Without the lease it is, but for what the
    lease counts."""
    holder = assigned(filled)
    job = job_of(group, filled, all_accepted)
    (status, _) = state.figures.describe(group)
    single.observe(state, holder.assignment[0], status.topic_id, 0, 20, 20)
    lease = single.acquire(state, holder.assignment[0], "holder", None, 10)
    assert lease is not None
    root = output_settings.local_output / job.sink
    counted, stale = (
        Path(new_folder(output_settings, state, job.sink, [lease.lease_id, lease.lease_id + number]))
        for number in (0, 10**9)
    )
    names = (f"{LEASE}={lease.lease_id}", f"{LEASE}=-{lease.lease_id}")
    for file in (*(counted / name / "a" for name in names), stale / "_temporary" / "a"):
        file.parent.mkdir(parents=True)
        file.touch()
    assert sweep_outputs(spark, output_settings, state, job) == []
    single.acknowledge(
        state, lease, {AcknowledgeType.ACCEPT: lease.offsets}, outputs=[LeaseOutput(job.sink, str(root), 10)]
    )
    left = sorted([f"{counted}/{LEASE}=-{lease.lease_id}", str(stale)])
    assert sorted(sweep_outputs(spark, output_settings, state, job)) == left
    assert [path.name for path in counted.iterdir()] == [f"{LEASE}={lease.lease_id}"]
    assert not stale.exists()
