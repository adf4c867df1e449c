"""The way of a few records through everything, on whatever broker the settings lead to.

The service's watch, a Spark job that accepts, releases and rejects, dead letters, redrive, the consumer, resets of
offsets. Each step asserts what came of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer

from sharequeue.cli import command
from sharequeue.database import Database
from sharequeue.deadletters.letters import read_dead_letters
from sharequeue.deadletters.redrive.redrive import Redrive
from sharequeue.deadletters.redrive.selection import Selection
from sharequeue.deadletters.topic import create_dead_letter_topic
from sharequeue.deadletters.writer import DeadLetterWriter
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import SharePartition
from sharequeue.groups.configs import GroupConfigs, alter_group_configs
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.topics import Topics
from sharequeue.local.doctor import OK, examine_servers
from sharequeue.state import State
from tests.fixtures.deadletters import execute
from tests.fixtures.pipelines import Holder, job_of
from tests.fixtures.results import results_in
from tests.integration.consumer.share_group import Work, wait_until, work_on

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sharequeue.domain.results.runs import RunReport
    from sharequeue.spark.sinks.transfers import Step

VALUES = ("accept", "release", "reject", "accept")


def by_value(records: DataFrame) -> DataFrame:
    """The outcome is what the value says."""
    from pyspark.sql import functions as fn

    return records.withColumn("outcome", fn.col("value").cast("string"))


def walk(settings: Settings, database: Database, spark: SparkSession) -> None:
    """Go the whole way. The environment leads the command to the same servers as `settings`."""
    group, topic = f"group-{uuid4().hex[:8]}", f"topic-{uuid4().hex[:8]}"
    letters = f"dlq.{topic}"
    with Topics(settings) as topics:
        topics.create(topic, 2)
        create_dead_letter_topic(topics, letters, 2)
    configs = {
        "errors.deadletterqueue.topic.name": letters,
        "errors.deadletterqueue.copy.record.enable": "true",
        # For a broker that does not know the topic's own config; others go by that.
        "sharequeue.dead.letter.topic.enable": "true",
        "share.delivery.count.limit": "2",
        "sharequeue.retry.backoff.ms": "0",
    }
    before = datetime.now(UTC)
    produce(settings, topic, VALUES)
    named = {name.replace(".", "_"): value for name, value in configs.items()}
    with work_on(settings, database, group, **named) as work:
        report = run(work, topic, spark)
        assert (report.accepted, report.drained) == (4, True), report
        # No service writes them here, so that the run does at its end. A second writer finds nothing left.
        assert report.dead_letters is not None
        assert report.dead_letters.written == 4
        configs_now = GroupConfigs.load(database, group)
        again = DeadLetterWriter(settings, State(database), group, configs_now).write()
        assert (again.written, again.held) == (0, ())
        assert letters_of(work, letters) == [
            (partition, offset, cause)
            for partition in range(2)
            for offset, cause in ((1, "exhausted"), (2, "rejected"))
        ]
        redriven = execute(Redrive(settings, database, letters, Selection()))
        assert (redriven.sent, redriven.gone) == (4, 0)
        assert execute(Redrive(settings, database, letters, Selection())).sent == 0
        with work.consumer(topic, explicit=True) as consumer:
            taken: set[tuple[int | None, int | None]] = set()

            def consumed() -> bool:
                for message in consumer.poll(0.2):
                    consumer.acknowledge(message)
                    taken.add((message.partition(), message.offset()))
                assert set(consumer.commit_sync().values()) <= {None}
                # The transactions' markers are leased too, and end as gaps.
                return len(taken) == 4 and work.done()

            wait_until(consumed, 30)
        reset_offsets(work, topic, before)
    broker = next(found for found in examine_servers(settings) if found.subject == "broker")
    assert broker.level == OK, broker


def produce(settings: Settings, topic: str, values: tuple[str, ...]) -> None:
    """Put these into both partitions, each in a transaction, which leaves a marker behind them."""
    producer = Producer(client_config(settings, transactional_id=f"tests-{topic}"))
    producer.init_transactions(30)
    producer.begin_transaction()
    for partition in range(2):
        for value in values:
            producer.produce(topic, value.encode(), partition=partition)
    producer.commit_transaction(30)


def run(work: Work, topic: str, spark: SparkSession) -> RunReport:
    """Have the service initialise the topic, then run a Spark job on it until nothing is left."""
    from sharequeue.spark.run import run_rounds

    parts = [SharePartition(work.group, topic, partition) for partition in range(2)]
    with work.consumer(topic, max_poll_records=1) as consumer:
        # A member makes the service look at the topic; it leaves before it is given anything.
        wait_until(lambda: len(work.status()) == 2, 30, work.status)
        consumer.unsubscribe()
    with Topics(work.settings) as topics:
        return run_rounds(
            work.settings,
            job_of(work.group, topic, by_value, deliveries_per_run=2),
            membership=Holder(parts),
            state=State(work.database),
            topics=topics,
            spark=spark,
        )


def letters_of(work: Work, topic: str) -> list[tuple[int | None, int | None, str | None]]:
    """Each letter of the topic, read committed, by where its record was."""
    found = read_dead_letters(work.settings, topic)
    return sorted(
        (letter.source_partition, letter.source_offset, letter.cause)
        for letter in found
        if letter.group == work.group
    )


def reset_offsets(work: Work, topic: str, before: datetime) -> None:
    """To the log's ends, to a time, and where a consumer group stands."""

    def starts(*how: str) -> list[int]:
        done = invoke("offsets", "reset", "--group", work.group, "--all-topics", *how, "--execute", "--yes")
        assert done.exit_code == 0, done.output + repr(done.exception)
        return [row.spso for row in work.status()]

    with Topics(work.settings) as topics:
        ends = [log.log_end for log in topics.offsets(topic).values()]
    assert starts("--to-earliest") == [0, 0]
    assert starts("--to-latest") == ends
    assert starts("--to-datetime", before.isoformat(timespec="milliseconds")) == [0, 0]
    later = datetime.fromtimestamp(time.time() + 60, UTC).isoformat(timespec="milliseconds")
    assert starts("--to-datetime", later) == ends


def invoke(*words: str) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(command, list(words))


def walk_to_topic(settings: Settings, database: Database, spark: SparkSession) -> None:
    """Send the results of a run that was ended after its acknowledgement: each once, committed, in order."""
    from sharequeue.spark import KafkaTopic
    from sharequeue.spark.run import run_rounds

    group, topic, target = (f"{name}-{uuid4().hex[:8]}" for name in ("group", "topic", "results"))
    configs = {"sharequeue.retry.backoff.ms": "0", "share.record.lock.duration.ms": "60000"}
    alter_group_configs(database, group, configs)
    state, parts = State(database), [SharePartition(group, topic, at) for at in range(2)]
    producer = Producer(client_config(settings, enable_idempotence=True))
    with Topics(settings) as topics:
        topics.create(topic, 2)
        topics.create(target, 3)
        for number in range(40):
            producer.produce(topic, b"%d" % number, key=b"k%d" % (number % 7), partition=number % 2)
        assert producer.flush(60) == 0
        for at in parts:
            state.initialize(at, topics.info(topic).topic_id, 0, 1)

        def run(on_step: Callable[[Step], None] = lambda step: None) -> RunReport:
            sink = KafkaTopic(target, key="k", on_step=on_step)
            job = job_of(group, topic, two_rows, destination=sink, failed_share=None)
            holder = Holder(parts)
            return run_rounds(
                settings, job, membership=holder, state=state, topics=topics, spark=spark, max_records=25
            )

        def ended(step: Step) -> None:
            if step == "begun":
                raise RuntimeError("ended")

        with pytest.raises(RuntimeError, match="ended"):
            run(ended)
        run()
    found = results_in(settings, target)
    accepted = [
        (source, offset) for source in range(2) for offset in range(20) if offset % 5 != 4 for _ in range(2)
    ]
    assert sorted((each.source["partition"], each.source["offset"]) for each in found) == accepted
    for source in range(2):
        for to in range(3):
            mine = [
                each.source["offset"]
                for each in found
                if (each.source["partition"], each.partition) == (source, to)
            ]
            assert mine == sorted(mine)
    assert not state.outputs.waiting(group, f"sink-{group}")


def two_rows(records: DataFrame) -> DataFrame:
    """Two rows of each record; every fifth offset is rejected."""
    return records.selectExpr(
        *(
            "topic",
            "partition",
            "offset",
            "lease_id",
            "cast(key as string) as k",
            "cast(value as string) as note",
        ),
        "explode(array(0, 1)) as row",
        "if(offset % 5 = 4, 'reject', 'accept') as outcome",
    )
