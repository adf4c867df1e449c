"""Drivers killed in each stage with two rounds in flight: nothing is lost, and each record counts once."""

from __future__ import annotations

import os
import random
import textwrap
import time
from collections import Counter

import pytest
from pyspark.sql import SparkSession

from sharequeue.domain.settings import Settings
from sharequeue.spark.output.manifest import read_output
from sharequeue.spark.sweep import sweep_outputs
from sharequeue.state import State
from tests.fixtures.pipelines import Assigned, Produce, RunJob, all_accepted, job_of
from tests.fixtures.stack import MakeTopic
from tests.killed import run_killed

RECORDS, A_ROUND = 60, 10
SEED = int(os.environ.get("SHAREQUEUE_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)

KILLED = textwrap.dedent(
    """
    import os, sys, threading, time
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

    home, output, group, topic, number, stage, delay_ms, a_round = sys.argv[1:]
    settings = Settings.load(home, output=output)

    def handler(records):
        kept = records.select("topic", "partition", "offset", "lease_id")
        slept = fn.expr("java_method('java.lang.Thread', 'sleep', 40L)")
        return kept.withColumns({"outcome": fn.lit("accept"), "slept": slept})

    def die():
        time.sleep(int(delay_ms) / 1000)
        os.kill(os.getpid(), 9)

    def told(progress):
        if (progress.round, progress.stage) == (int(number), stage):
            threading.Thread(target=die).start()

    job = ShareGroupJob(group, (topic,), handler, f"sink-{group}", name=f"pipeline-{group}")
    holder = Holder([SharePartition(group, topic, 0)], "killed")
    database, spark = Database.open(settings), spark_session(settings, "killed")
    run_rounds(
        settings, job, membership=holder, state=State(database), topics=Topics(settings), spark=spark,
        max_records=int(a_round), progress=told,
    )
    """
)


@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("number", "stage"),
    [
        (2, "acquire"),
        (2, "plan"),
        (1, "read back"),
        (1, "acknowledge"),
        (2, "write"),
        (1, "done"),
        (3, "acquire"),
    ],
)
def test_a_driver_killed_with_two_rounds_loses_no_record(
    number: int,
    stage: str,
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    spark: SparkSession,
    output_settings: Settings,
) -> None:
    """Up to 0.2 s after that stage began. What was acknowledged counts once and comes no more; all else comes again
    once its locks have lapsed, and the sweep removes what was written of it."""
    delay_ms = random.Random(f"{SEED} {number} {stage}").randint(0, 200)  # noqa: S311
    print(f"seed {SEED}: killed {delay_ms} ms into {stage} of round {number}")
    topic = make_topic(1)
    produce(topic, 0, range(RECORDS))
    holder = assigned(topic, share_record_lock_duration_ms="5000")
    told = (output_settings.home, output_settings.output, group, topic, number, stage, delay_ms, A_ROUND)
    run_killed(KILLED, *told)
    assert len({lease.lease_id for lease in state.figures.leases(group)}) <= 2
    deadline = time.monotonic() + 30
    while state.figures.leases(group):
        assert time.monotonic() < deadline
        state.sweep()
    left = sum(status.lag for status in state.figures.describe(group))
    job = job_of(group, topic, all_accepted)
    report = run_job(job, holder)
    assert (report.accepted, report.drained, report.lag) == (left, True, 0)
    sweep_outputs(spark, output_settings, state, job)
    rows = read_output(spark, state, group, job.sink).select("offset").collect()
    assert Counter(row["offset"] for row in rows) == dict.fromkeys(range(RECORDS), 1)
    assert state.figures.verify(group) == []
