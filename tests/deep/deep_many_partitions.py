"""A topic of 300 partitions: by three consumers that join one after the other, and by a run."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest
from confluent_kafka import Message
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue import AcknowledgeType, Database, Settings, State
from sharequeue.deadletters.writer import DeadLetterWriter
from sharequeue.groups.configs import GroupConfigs, alter_group_configs
from sharequeue.spark import pipeline
from tests.fixtures.stack import MakeTopic
from tests.integration.consumer.share_group import Work, wait_until, work_on

PARTITIONS = 300
PER_PARTITION = 6
RECORDS = PARTITIONS * PER_PARTITION
LETTERS = RECORDS // 3
OUTCOME = "if(delivery_count = 1, 'release', if(offset % 3 = 0, 'reject', 'accept'))"


@pytest.fixture
def topic(make_topic: MakeTopic, database: Database, group: str) -> str:
    """Give a topic of many partitions, whose group has dead letters and delivers again at once."""
    letters = make_topic(4, f"dlq.{group}", errors_deadletterqueue_group_enable="true")
    configs: dict[str, str | int | bool | None] = {
        "share.auto.offset.reset": "earliest",
        "errors.deadletterqueue.topic.name": letters,
        "sharequeue.retry.backoff.ms": 0,
    }
    alter_group_configs(database, group, configs)
    return make_topic(PARTITIONS)


def produce(work: Work, topic: str) -> None:
    for partition in range(PARTITIONS):
        work.produce(topic, PER_PARTITION, partition)


@pytest.mark.timeout(0)
def test_three_consumers_finish_each_record_at_its_second_delivery(
    settings: Settings, database: Database, group: str, topic: str, told: list[str]
) -> None:
    """Each record is released once and then accepted or rejected, while the partitions move from one member to three:
    nothing is delivered a third time, and no acknowledgement is refused."""
    counts: Counter[int | None] = Counter()
    refused: list[object] = []
    ended = threading.Event()
    lock = threading.Lock()

    def consume(work: Work) -> None:
        def callback(_: object, error: object) -> None:
            if error is not None:
                refused.append(error)

        def decide(message: Message) -> AcknowledgeType:
            if message.delivery_count() == 1:
                return AcknowledgeType.RELEASE
            return AcknowledgeType.ACCEPT if (message.offset() or 0) % 3 else AcknowledgeType.REJECT

        with work.consumer(topic, explicit=True) as consumer:
            consumer.set_acknowledgement_commit_callback(callback)
            while not ended.is_set():
                messages = consumer.poll(0.5)
                for message in messages:
                    consumer.acknowledge(message, decide(message))
                with lock:
                    counts.update(message.delivery_count() for message in messages)

    with work_on(settings, database, group) as work:
        produce(work, topic)
        began = time.monotonic()
        threads = []
        for number in (1, 2, 3):
            threads.append(threading.Thread(target=consume, args=(work,)))
            threads[-1].start()
            wait_until(lambda wanted=number: counts.total() >= wanted * RECORDS // 4, 300)  # type: ignore[misc]
        wait_until(lambda: sum(each.accepted + each.archiving for each in work.status()) == RECORDS, 300)
        told.append(f"{RECORDS} records of {PARTITIONS} partitions twice: {time.monotonic() - began:.1f} s")
        ended.set()
        for thread in threads:
            thread.join(120)
    assert refused == []
    assert counts == {1: RECORDS, 2: RECORDS}
    drained = DeadLetterWriter(settings, State(database), group, GroupConfigs.load(database, group)).write()
    assert drained.written == LETTERS
    assert sum(each.lag for each in work.status()) == 0


@pytest.mark.timeout(0)
def test_two_runs_finish_each_record_at_its_second_delivery(
    settings: Settings,
    database: Database,
    service: str,
    group: str,
    topic: str,
    spark: SparkSession,
    told: list[str],
) -> None:
    """Two runs do the same: the first releases all, the second accepts or rejects."""
    produce(Work(settings, database, group), topic)

    @pipeline(group=group, topics=[topic], sink=f"sink-{group}", failed_share=None)
    def job(records: DataFrame) -> DataFrame:
        kept = records.select("topic", "partition", "offset", "lease_id", "delivery_count")
        return kept.withColumn("outcome", fn.expr(OUTCOME)).withColumn("error", fn.lit("no"))

    for wanted in ((0, RECORDS, 0), (RECORDS - LETTERS, 0, LETTERS)):
        began = time.monotonic()
        done = job.run(settings, spark=spark, progress=False)
        assert (done.accepted, done.released, done.rejected) == wanted
        told.append(f"a run over {PARTITIONS} partitions: {time.monotonic() - began:.1f} s")
    assert done.dead_letters is not None
    assert (done.dead_letters.written, done.lag) == (LETTERS, 0)
