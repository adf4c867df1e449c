"""What tasks seek is what a scan reads: the same records, column by column, and the same absences."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import Lease
from sharequeue.kafka.clients import client_config, portable_config
from sharequeue.kafka.headers import UNDECODABLE
from sharequeue.kafka.topics import Topics
from sharequeue.local.stack import StackInfo
from sharequeue.spark.reading import seeking
from sharequeue.spark.reading.frame import leased_records
from sharequeue.spark.reading.offset_reader import Seeker
from sharequeue.spark.reading.options import ISOLATION, SEEK
from sharequeue.spark.reading.plan import Segment
from tests.fixtures.logs import delete_before
from tests.fixtures.pipelines import Produce
from tests.fixtures.raw_records import NOT_UTF8, RawRecord, produce_raw
from tests.fixtures.stack import MakeTopic
from tests.leases import lease_of
from tests.waiting import PATIENCE_S, wait_until

LOG_START = 37
HEADERS: tuple[Any, ...] = (
    None,
    [],
    [("one", b"1")],
    [("b", b"first"), ("a", None), ("b", b""), ("é", bytes(range(256)))],
)


@pytest.fixture(scope="module")
def hostile(stack: StackInfo) -> Iterator[tuple[str, str]]:
    """Two topics with all that a log may have: transactions, of which some were aborted, their markers, nulls, empty
    keys and values, headers in order, large records, two kinds of timestamps, and a start past the first offset.
    """
    settings, names = Settings.load(stack.home), ("seek-created", "seek-appended")
    with Topics(settings) as topics:
        topics.create(names[0], 1, {"retention.ms": "-1"})
        topics.create(names[1], 1, {"message.timestamp.type": "LogAppendTime"})
    for name in names:
        chance = random.Random(name)  # noqa: S311 - repeatable
        producer = Producer(client_config(settings, transactional_id=f"seek-{name}") | {"log_level": 0})
        producer.init_transactions()
        for _ in range(12):
            producer.begin_transaction()
            for _ in range(chance.randrange(1, 60)):
                producer.produce(
                    name,
                    key=chance.choice((None, b"", b"key")),
                    value=chance.choice((None, b"", b"value", bytes(chance.randrange(20_000)))),
                    headers=chance.choice(HEADERS),
                    timestamp=chance.choice((0, 1, 1_700_000_000_123)),
                    partition=0,
                )
            producer.flush(PATIENCE_S)
            chance.choice((producer.commit_transaction, producer.abort_transaction))()
    admin = AdminClient(client_config(settings))
    for name in names:
        delete_before(settings, name, LOG_START)
    yield names
    for deleted in admin.delete_topics(list(names)).values():
        deleted.result(PATIENCE_S)


def leases_of(settings: Settings, names: tuple[str, str], chance: random.Random) -> list[Lease]:
    """Leases of offsets anywhere between the first and the last: singles, runs, some twice delivered."""
    leases = []
    with Topics(settings) as topics:
        ends = topics.offsets_of({name: [0] for name in names})
    for number, name in enumerate(names):
        end = ends[name, 0].log_end
        singles = OffsetSet.from_offsets(chance.sample(range(end), chance.randrange(1, 25)))
        first = chance.randrange(end)
        runs = OffsetSet.of((first, min(end, first + chance.randrange(1, 40))), (end - 1, end)) - singles
        pieces = ((2, singles), (1, runs)) if runs else ((2, singles),)
        leases.append(lease_of(number, name, 0, *pieces))
    return leases


def rows(
    spark: SparkSession, settings: Settings, leases: list[Lease], how: str, **options: object
) -> list[Any]:
    """All columns of all records, in order."""
    frame = leased_records(spark, settings, leases, options={SEEK: how}, **options)  # type: ignore[arg-type]
    return sorted((tuple(row) for row in frame.collect()), key=lambda row: row[:3])


@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
def test_a_seek_reads_what_a_scan_reads(
    spark: SparkSession,
    settings: Settings,
    hostile: tuple[str, str],
    isolation_level: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of any lease, at both isolation levels, with headers and without, whether a task seeks each or reads on."""
    chance = random.Random(isolation_level)  # noqa: S311 - repeatable
    for headers, read_over in ((True, 0), (False, 20)):
        monkeypatch.setattr(seeking, "READ_OVER", read_over)
        leases = [
            replace(lease, isolation_level=isolation_level) for lease in leases_of(settings, hostile, chance)
        ]
        scanned, sought = (rows(spark, settings, leases, how, headers=headers) for how in ("never", "always"))
        assert scanned == sought, leases
        assert scanned


def test_a_seek_passes_over_records_of_other_groups(
    spark: SparkSession, settings: Settings, hostile: tuple[str, str]
) -> None:
    """The headers say which these are, also where nobody asked for headers."""
    leases = leases_of(settings, hostile, random.Random(5))  # noqa: S311 - repeatable
    scanned, sought = (
        rows(spark, settings, leases, how, headers=False, pass_over=True) for how in ("never", "always")
    )
    assert scanned == sought


def test_a_seek_past_the_log_end_returns_nothing(
    spark: SparkSession, settings: Settings, make_topic: MakeTopic, produce: Produce
) -> None:
    """As after a topic was made again: what is not there has no row, and silence at the end is an error."""
    topic = make_topic(1)
    produce(topic, 0, (str(offset) for offset in range(10)))
    lease = lease_of(1, topic, 0, (1, OffsetSet.of((3, 4), (1000, 1001))))
    assert [row[2] for row in rows(spark, settings, [lease], "always")] == [3]
    at_the_end = replace(lease, deliveries=lease_of(1, topic, 0, (1, OffsetSet.of((10, 11)))).deliveries)
    options = {SEEK: "always", "kafkaConsumer.pollTimeoutMs": "500"}
    with pytest.raises(Exception, match="no record of"):
        leased_records(spark, settings, [at_the_end], options=options).collect()


def test_seeking_is_chosen_for_sparse_records(
    spark: SparkSession,
    settings: Settings,
    make_topic: MakeTopic,
    produce: Produce,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two far apart are sought. A run beside them, a choice, or an option for the connector's client keeps a scan."""
    topic = make_topic(2)
    for partition in (0, 1):
        produce(topic, partition, (f"{partition}-{offset}" for offset in range(1000)))
    monkeypatch.setattr(seeking, "NEAR", 0)
    monkeypatch.setattr(seeking, "SEEK_RECORDS", 200)
    batch = [100.0]
    monkeypatch.setattr(seeking, "batch_records", lambda *_: batch[0])
    sparse = lease_of(1, topic, 0, (1, OffsetSet.of((3, 4), (999, 1000))))
    dense = lease_of(2, topic, 1, (1, OffsetSet.of((0, 700), (800, 1000))))

    def reads(*leases: Lease, **options: str) -> tuple[bool, bool]:
        frame = leased_records(spark, settings, leases, options=options)
        assert frame.count() == sum(lease.offsets.count for lease in leases)
        plan = frame._jdf.queryExecution().toString()
        return "MapInArrow" in plan, "kafka" in plan.lower()

    assert reads(sparse) == (True, False)
    assert reads(sparse, dense) == (True, True)
    assert reads(dense) == (False, True)
    assert reads(sparse, **{SEEK: "never"}) == (False, True)
    assert reads(dense, **{SEEK: "always"}) == (True, False)
    assert reads(sparse, **{"kafka.client.id": "mine"}) == (False, True)
    batch[0] = 300.0
    assert reads(sparse) == (False, True)


def test_a_seek_measures_the_records_of_a_batch(settings: Settings, make_topic: MakeTopic) -> None:
    """By what comes with a wanted record; a topic that gives nothing is not sought in."""
    topic = make_topic(1)
    producer = Producer(client_config(settings, linger_ms=5_000) | {"batch.num.messages": 50})
    for number in range(2_000):
        producer.produce(topic, str(number), partition=0)
    producer.flush(PATIENCE_S)
    segment = Segment(topic, 0, 0, 2_000)
    wanted = OffsetSet.from_offsets(range(7, 2_000, 210))
    measured = seeking.batch_records(settings, "read_uncommitted", segment, wanted)
    assert 10 < measured < 110


def test_executors_need_no_package_of_ours() -> None:
    """What is sent to them is whole: it is made again where `sharequeue` cannot be imported."""
    wanted = pa.table(
        {"topic": ["t"], "partition": [0], "first": [1], "last": [2], "count": [1], "lease": [1]}
    )
    sent = cloudpickle.dumps(Seeker({"bootstrap.servers": "localhost:1"}, wanted, 1, pa.schema([])))  # type: ignore[no-untyped-call]
    program = (
        "import sys; sys.modules['sharequeue'] = None; from pyspark import cloudpickle;"
        "seeker = cloudpickle.loads(sys.stdin.buffer.read()); print(seeker.wanted.num_rows, list(seeker([])))"
    )
    done = subprocess.run([sys.executable, "-c", program], input=sent, capture_output=True, check=False)
    assert (done.stdout, done.returncode) == (b"1 []\n", 0), done.stderr.decode()


def test_a_seek_reads_a_header_whose_name_is_not_utf8(settings: Settings, make_topic: MakeTopic) -> None:
    """The record comes with the remark in place of its headers; its neighbours come as they are."""
    topic = make_topic(1)
    produce_raw(settings, topic, [RawRecord(b"bad", [NOT_UTF8]), RawRecord(b"good", [(b"kind", b"a")])])
    wanted = pa.table(
        {"topic": [topic], "partition": [0], "first": [0], "last": [1], "count": [1], "lease": [1]}
    )
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    schema = pa.schema(
        [
            *(("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())),
            *(("timestamp", pa.timestamp("us", "UTC")), ("timestamp_type", pa.int32())),
            *(("key", pa.binary()), ("value", pa.binary()), ("headers", pa.list_(header))),
            *(("delivery_count", pa.int32()), ("lease_id", pa.int64())),
        ]
    )
    seeker = Seeker(portable_config(settings), wanted, 1, schema)
    [batch] = seeker([pa.record_batch({"task": [0]})])
    assert [(each["value"], each["headers"]) for each in batch.to_pylist()] == [
        (b"bad", [{"key": UNDECODABLE, "value": b"true"}]),
        (b"good", [{"key": "kind", "value": b"a"}]),
    ]


def test_on_a_cluster_seeking_must_be_chosen(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors may lack confluent-kafka: without a choice, a cluster scans."""
    monkeypatch.setattr(seeking, "batch_records", lambda *_: 1.0)
    segment, wanted = Segment("t", 0, 0, 10**6), {("t", 0): OffsetSet.of((0, 1), (10**6 - 1, 10**6))}
    for master, options, sought in (
        ("local[2]", {}, [segment]),
        ("spark://there:7077", {}, []),
        ("spark://there:7077", {SEEK: "auto"}, [segment]),
    ):
        spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(master=master))
        given = {ISOLATION: "read_committed", **options}
        assert seeking.sought(spark, settings, [segment], wanted, given, {}) == sought


@pytest.mark.deep
def test_a_seek_skips_compacted_offsets(
    spark: SparkSession, settings: Settings, make_topic: MakeTopic
) -> None:
    """Offsets that compaction took have no record, in batches of which some are left, and in empty ones."""
    topic = make_topic(
        1,
        cleanup_policy="compact",
        segment_ms="100",
        min_cleanable_dirty_ratio="0.001",
        max_compaction_lag_ms="100",
    )
    producer = Producer(client_config(settings, linger_ms=0))
    for number in range(300):
        producer.produce(topic, str(number), key=str(number % 7 if number < 290 else number), partition=0)
        if number % 30 == 29:
            producer.flush(PATIENCE_S)
    lease = lease_of(1, topic, 0, (1, OffsetSet.of((0, 300))))

    def rolled_and_compacted() -> bool:
        # A segment is rolled by the next record.
        producer.produce(topic, "more", key="more", partition=0)
        producer.flush(PATIENCE_S)
        return len(rows(spark, settings, [lease], "never")) < 250

    wait_until(rolled_and_compacted)
    singles = lease_of(2, topic, 0, (1, OffsetSet.from_offsets(range(0, 300, 3))))
    for leases in ([lease], [singles]):
        assert rows(spark, settings, leases, "always") == rows(spark, settings, leases, "never")
