"""P9: dead letters written exactly once, compared with Spark's plain Kafka sink.

Our writer writes the dead letters of four share-partitions, first rejected in Postgres: numbered batches, one Kafka
transaction each, markers, both phases of every batch in Postgres. Spark's sink, which may write a record twice,
writes the same headers to the same broker from a generated table. The letters of both are read back and must be
equal in number and bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from benchmarks.database import acknowledge, lease_all
from benchmarks.harness import Table, case, in_turn, median, number, seconds, side_table, spread
from benchmarks.stack import PARTITIONS, connector, session, stack
from sharequeue.database import Database
from sharequeue.deadletters.topic import GROUP_ENABLE
from sharequeue.deadletters.writer import DeadLetterWriter
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import AcknowledgeType, SharePartition
from sharequeue.groups.configs import GroupConfigs, alter_group_configs
from sharequeue.kafka.clients import spark_options
from sharequeue.kafka.topics import Topics
from sharequeue.state import State

SOURCE = "flights"
HEADERS = {
    "__dlq.errors.topic": f"'{SOURCE}'",
    "__dlq.errors.partition": "string(partition)",
    "__dlq.errors.offset": "string(offset)",
    "__dlq.errors.group": "group",
    "__dlq.errors.delivery.count": "'1'",
    "__dlq.errors.message": "'Offset rejected by client.'",
    "sharequeue.dead.letter.sequence": "'1'",
    "sharequeue.dead.letter.batch": "repeat('0', 32)",
    "sharequeue.source.topic.id": "repeat('i', 22)",
    "sharequeue.attempt.first": "repeat('1', 13)",
    "sharequeue.attempt.last": "repeat('1', 13)",
    "sharequeue.run.id": "'member'",
    "sharequeue.member.id": "'member'",
}
"""The headers of the plain side, as SQL."""


class Letters:
    """Both sides over one stack; each round writes a topic of its own."""

    def __init__(self, settings: Settings, database: Database, spark: SparkSession, letters: int) -> None:
        self.settings = settings
        self.database = database
        self.spark = spark
        self.letters = letters
        self.topics = Topics(settings)
        self.source_id = self.topics.create(SOURCE, PARTITIONS).topic_id
        self.written: dict[str, tuple[int, int]] = {}
        self.numbers = count()
        self.last = ("", "")

    def ours(self) -> float:
        """Return the seconds of writing the letters of freshly rejected records."""
        number = next(self.numbers)
        group, topic = f"bench-{number:03}", f"dlq.bench-{number:03}"
        self.last = (group, topic)
        self.topics.create(topic, PARTITIONS, {GROUP_ENABLE: "true"})
        configs = {
            "errors.deadletterqueue.topic.name": topic,
            "share.partition.max.record.locks": "2000000",
            "share.auto.offset.reset": "earliest",
        }
        alter_group_configs(self.database, group, configs)
        state = State(self.database)
        for partition in range(PARTITIONS):
            at = SharePartition(group, SOURCE, partition)
            state.initialize(at, self.source_id, 0, 1)
            lease = lease_all(state, at, self.source_id, self.letters // PARTITIONS)
            acknowledge(state, lease, {AcknowledgeType.REJECT: lease.offsets})
        writer = DeadLetterWriter(self.settings, state, group, GroupConfigs.load(self.database, group))

        def write() -> None:
            report = writer.write()
            assert report.written == self.letters, report
            assert report.held == ()

        taken = seconds(write)
        self._check("ours", topic)
        return taken

    def plain(self) -> float:
        """Return the seconds of Spark's sink with letters like the last ones."""
        topic = f"plain-{next(self.numbers):03}"
        self.topics.create(topic, PARTITIONS, {GROUP_ENABLE: "true"})
        letters, options = self._table(self.last[0], topic), spark_options(self.settings)
        taken = seconds(lambda: letters.write.format("kafka").options(**options).save())
        self._check("plain", topic)
        return taken

    def _table(self, group: str, topic: str) -> DataFrame:
        each = self.letters // PARTITIONS
        ids = self.spark.range(0, self.letters, numPartitions=PARTITIONS)
        at = (f"int(floor(id / {each})) as partition", f"id % {each} as offset", f"'{group}' as group")
        header = "struct('{}' as key, encode({}, 'UTF-8') as value)"
        headers = ", ".join(header.format(name, value) for name, value in HEADERS.items())
        nothing = ("cast(null as binary) as key", "cast(null as binary) as value")
        return ids.selectExpr(*at).selectExpr(
            f"'{topic}' as topic", "partition", *nothing, f"array({headers}) as headers"
        )

    def _check(self, side: str, topic: str) -> None:
        """Check letters and bytes of headers, without the batch's number, whose length differs; delete the topic."""
        if side not in self.written:
            options = {"includeHeaders": "true", "kafka.isolation.level": "read_committed"}
            letters = connector(self.settings, self.spark, topic, options=options)
            size = "length(h.key) + if(h.key like '%sequence', 0, length(h.value))"
            of_letter = fn.expr(f"aggregate(headers, 0, (total, h) -> int(total + {size}))")
            row = letters.agg(fn.count("*"), fn.sum(of_letter)).first()
            assert row is not None
            self.written[side] = (int(row[0]), int(row[1]))
            assert len(set(self.written.values())) == 1, self.written
        self.topics.delete(topic)


@case("P9", "ratio ≥ 0.7 of Spark's sink, which may write a letter twice", letters=100_000, rounds=3)
def dead_letters(letters: int = 1_000_000, rounds: int = 5) -> Iterator[Table]:
    """Compare dead letters written exactly once with Spark's sink."""
    ours, plain = "our writer, exactly once", "Spark's sink, at least once"
    with stack() as settings, Database.open(settings) as database, session(settings) as spark:
        both = Letters(settings, database, spark, letters)
        measured = in_turn({ours: both.ours, plain: both.plain}, rounds)
    ratios = [sink / own for own, sink in zip(measured[ours], measured[plain], strict=True)]
    written, size = both.written["ours"]
    yield side_table(
        measured,
        base=ours,
        records=letters,
        title=f"{written:,} letters of {size / written:.0f} bytes in 12 headers, {PARTITIONS} partitions",
        notes=[f"ratio, median of the rounds' own: {number(median(ratios))} ({spread(ratios)})"],
    )
