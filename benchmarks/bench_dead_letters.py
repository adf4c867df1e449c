"""What does it cost that every dead letter is written exactly once?

Dead letters of four share-partitions, first rejected in Postgres, through our writer: numbered batches, one Kafka
transaction each, markers, both phases of every batch in Postgres. Against Spark's plain Kafka sink, which may write
a record twice, putting the same headers into the same broker from a generated table. What both have written is read
back and must be the same number of letters and of bytes.

    .venv/bin/python benchmarks/bench_dead_letters.py [--full]
"""

from __future__ import annotations

from itertools import count

from confluent_kafka import Consumer, KafkaError, TopicPartition
from leased_rig import PARTITIONS, session, stack
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from rig import FULL, in_turn, median, report, seconds, spread

from sharequeue.database import Database
from sharequeue.deadletters.topic import GROUP_ENABLE
from sharequeue.deadletters.writer import DeadLetterWriter
from sharequeue.groups.configs import GroupConfigs, alter_group_configs
from sharequeue.kafka.clients import client_config, spark_options
from sharequeue.kafka.topics import Topics
from sharequeue.settings import Settings
from sharequeue.state import State
from sharequeue.values import AcknowledgeType, SharePartition

LETTERS = 1_000_000 if FULL else 100_000
ROUNDS = 5 if FULL else 3
SOURCE = "flights"
_rounds = count()


class Bench:
    """Both sides over one stack; each round writes a topic of its own."""

    def __init__(self, settings: Settings, database: Database, spark: SparkSession) -> None:
        self.settings = settings
        self.database = database
        self.spark = spark
        self.topics = Topics(settings)
        self.source_id = self.topics.create(SOURCE, PARTITIONS).topic_id
        self.written: dict[str, tuple[int, int]] = {}
        self.last = ("", "")

    def ours(self) -> float:
        """Seconds of a drain of freshly rejected records."""
        number = next(_rounds)
        group, topic = f"bench-{number:03}", f"dlq.bench-{number:03}"
        self._topic(topic)
        configs = {
            "errors.deadletterqueue.topic.name": topic,
            "share.partition.max.record.locks": "2000000",
            "share.auto.offset.reset": "earliest",
        }
        alter_group_configs(self.database, group, configs)
        state = State(self.database)
        each = LETTERS // PARTITIONS
        for partition in range(PARTITIONS):
            at = SharePartition(group, SOURCE, partition)
            state.initialize(at, self.source_id, 0, 1)
            state.observe(at, self.source_id, 0, each, each)
            lease = state.acquire(at, "member", None, each)
            assert lease is not None
            state.acknowledge(lease, {AcknowledgeType.REJECT: lease.offsets})
        writer = DeadLetterWriter(self.settings, state, group, GroupConfigs.load(self.database, group))
        taken = seconds(lambda: self._drained(writer))
        self.last = (group, topic)
        self._count("ours", topic)
        return taken

    def _drained(self, writer: DeadLetterWriter) -> None:
        report = writer.drain()
        assert report.written == LETTERS, report
        assert report.held == ()

    def plain(self) -> float:
        """Seconds of Spark's sink with letters like the last drain's."""
        group, _ = self.last
        topic = f"plain-{next(_rounds):03}"
        self._topic(topic)
        letters = self._letters(group, topic)
        options = spark_options(self.settings)
        taken = seconds(lambda: letters.write.format("kafka").options(**options).save())
        self._count("plain", topic)
        return taken

    def _letters(self, group: str, topic: str) -> DataFrame:
        each = LETTERS // PARTITIONS
        partition = fn.floor(fn.col("id") / each).cast("int")
        offset = fn.col("id") % each
        said: list[tuple[str, object]] = [
            ("__dlq.errors.topic", SOURCE),
            ("__dlq.errors.partition", partition.cast("string")),
            ("__dlq.errors.offset", offset.cast("string")),
            ("__dlq.errors.group", group),
            ("__dlq.errors.delivery.count", "1"),
            ("__dlq.errors.message", "Offset rejected by client."),
            ("sharequeue.dead.letter.sequence", "1"),
            ("sharequeue.dead.letter.batch", "0" * 32),
            ("sharequeue.attempt.first", "1" * 13),
            ("sharequeue.attempt.last", "1" * 13),
            ("sharequeue.run.id", "member"),
            ("sharequeue.member.id", "member"),
        ]
        headers = [
            fn.struct(
                fn.lit(name).alias("key"),
                fn.encode(fn.lit(value) if isinstance(value, str) else value, "UTF-8").alias("value"),
            )
            for name, value in said
        ]
        return self.spark.range(0, LETTERS, numPartitions=PARTITIONS).select(
            fn.lit(topic).alias("topic"),
            partition.alias("partition"),
            fn.lit(None).cast("binary").alias("key"),
            fn.lit(None).cast("binary").alias("value"),
            fn.array(*headers).alias("headers"),
        )

    def _topic(self, name: str) -> None:
        self.topics.create(name, PARTITIONS, {GROUP_ENABLE: "true"})

    def _count(self, side: str, topic: str) -> None:
        """Letters, and bytes of headers without the batch's number, whose length differs; then the topic goes."""
        if side not in self.written:
            self.written[side] = _letters_and_bytes(self.settings, topic)
            assert len(set(self.written.values())) == 1, self.written
        self.topics.delete(topic)


def _letters_and_bytes(settings: Settings, topic: str) -> tuple[int, int]:
    consumer = Consumer(
        client_config(
            settings,
            group_id="bench",
            enable_auto_commit=False,
            enable_partition_eof=True,
            isolation_level="read_committed",
        )
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    letters = size = ended = 0
    while ended < PARTITIONS:
        for message in consumer.consume(10_000, 1.0):
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended += 1
                continue
            letters += 1
            for name, value in message.headers() or ():
                size += len(name) + (0 if name.endswith("sequence") else len(value or b""))
    consumer.close()
    return letters, size


def main() -> None:
    """Measure both sides in turn and print the table."""
    with stack() as settings:
        with Database.open(settings) as database, session(settings) as spark:
            bench = Bench(settings, database, spark)
            ours, plain = in_turn([bench.ours, bench.plain], ROUNDS)
        rows = [
            (name, f"{LETTERS / median(figures):,.0f}", f"{median(figures):.2f}", spread(figures))
            for name, figures in (("our writer, exactly once", ours), ("Spark's sink, at least once", plain))
        ]
        ratios = [theirs / mine for mine, theirs in zip(ours, plain, strict=True)]
        rows.append(("ratio", f"{median(ratios):.2f}", "", spread(ratios)))
        letters, size = bench.written["ours"]
        title = f"P9: {letters:,} dead letters of {size / letters:.0f} bytes in 12 headers, {PARTITIONS} partitions"
        headings = ("side", "letters/s", f"seconds, median of {ROUNDS}", "range")
        report(settings.database_url, title, headings, rows)


if __name__ == "__main__":
    main()
