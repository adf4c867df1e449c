"""What tasks read by offset is what a scan reads: the same records, column by column, and the same absences."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
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
from sharequeue.spark.reading import by_offset
from sharequeue.spark.reading.frame import leased_records
from sharequeue.spark.reading.offset_reader import OffsetReader
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
    settings, names = Settings.load(stack.home), ("by-offset-created", "by-offset-appended")
    with Topics(settings) as topics:
        topics.create(names[0], 1, {"retention.ms": "-1"})
        topics.create(names[1], 1, {"message.timestamp.type": "LogAppendTime"})
    for name in names:
        chance = random.Random(name)  # noqa: S311 - repeatable
        producer = Producer(client_config(settings, transactional_id=name) | {"log_level": 0})
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


def rows(spark: SparkSession, settings: Settings, leases: list[Lease], **options: Any) -> list[Any]:
    """All columns of all records, in order."""
    frame = leased_records(spark, settings, leases, **options)
    return sorted((tuple(row) for row in frame.collect()), key=lambda row: row[:3])


@pytest.mark.parametrize(
    "levels",
    [
        ("read_uncommitted", "read_uncommitted"),
        ("read_committed", "read_committed"),
        ("read_committed", "read_uncommitted"),
    ],
)
def test_what_is_read_by_offset_is_what_a_scan_reads(
    spark: SparkSession,
    settings: Settings,
    hostile: tuple[str, str],
    levels: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of any lease, at both isolation levels, with headers and without, whether gaps are skipped or read over."""
    chance = random.Random("-".join(levels))  # noqa: S311 - repeatable
    for headers, read_over in ((True, 0), (False, 20)):
        monkeypatch.setattr(by_offset, "OffsetReader", partial(OffsetReader, near=read_over))
        leases = [
            replace(lease, isolation_level=level)
            for lease, level in zip(leases_of(settings, hostile, chance), levels, strict=True)
        ]
        scanned, read = (
            rows(spark, settings, leases, headers=headers, by_offset=by_offset) for by_offset in (False, True)
        )
        assert scanned == read, leases
        assert scanned


def test_records_of_other_groups_are_passed_over(
    spark: SparkSession, settings: Settings, hostile: tuple[str, str]
) -> None:
    """The headers say which these are, also where nobody asked for headers."""
    leases = leases_of(settings, hostile, random.Random(5))  # noqa: S311 - repeatable
    scanned, read = (
        rows(spark, settings, leases, headers=False, pass_over=True, by_offset=by_offset)
        for by_offset in (False, True)
    )
    assert scanned == read


def test_past_the_log_end_there_is_nothing(
    spark: SparkSession, settings: Settings, make_topic: MakeTopic, produce: Produce
) -> None:
    """As after a topic was made again: what is not there has no row, and silence at the end is an error."""
    topic = make_topic(1)
    produce(topic, 0, (str(offset) for offset in range(10)))
    lease = lease_of(1, topic, 0, (1, OffsetSet.of((3, 4), (1000, 1001))))
    assert [row[2] for row in rows(spark, settings, [lease], by_offset=True)] == [3]
    at_the_end = replace(lease, deliveries=lease_of(1, topic, 0, (1, OffsetSet.of((10, 11)))).deliveries)
    options = {"kafkaConsumer.pollTimeoutMs": "500"}
    with pytest.raises(Exception, match="no record of"):
        leased_records(spark, settings, [at_the_end], options=options, by_offset=True).collect()


def test_executors_need_no_package_of_ours() -> None:
    """What is sent to them is whole: it is made again where `sharequeue` cannot be imported."""
    wanted = pa.table(
        {"topic": ["t"], "partition": [0], "first": [1], "last": [2], "count": [1], "lease": [1]}
    )
    sent = cloudpickle.dumps(OffsetReader({"bootstrap.servers": "localhost:1"}, wanted, 1, pa.schema([])))  # type: ignore[no-untyped-call]
    program = (
        "import sys; sys.modules['sharequeue'] = None; from pyspark import cloudpickle;"
        "reader = cloudpickle.loads(sys.stdin.buffer.read()); print(reader.wanted.num_rows, list(reader([])))"
    )
    done = subprocess.run([sys.executable, "-c", program], input=sent, capture_output=True, check=False)
    assert (done.stdout, done.returncode) == (b"1 []\n", 0), done.stderr.decode()


def test_a_header_whose_name_is_not_utf8_is_a_remark(settings: Settings, make_topic: MakeTopic) -> None:
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
    reader = OffsetReader(portable_config(settings), wanted, 1, schema)
    [batch] = reader([pa.record_batch({"task": [0]})])
    assert [(each["value"], each["headers"]) for each in batch.to_pylist()] == [
        (b"bad", [{"key": UNDECODABLE, "value": b"true"}]),
        (b"good", [{"key": "kind", "value": b"a"}]),
    ]


@pytest.mark.deep
def test_compacted_offsets_have_no_record(
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
        return len(rows(spark, settings, [lease])) < 250

    wait_until(rolled_and_compacted)
    singles = lease_of(2, topic, 0, (1, OffsetSet.from_offsets(range(0, 300, 3))))
    for leases in ([lease], [singles]):
        assert rows(spark, settings, leases, by_offset=True) == rows(spark, settings, leases)
