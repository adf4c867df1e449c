"""The DataFrame of some leases holds those records, all of those, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, DataFrameReader, SparkSession

from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import Lease
from sharequeue.kafka.clients import client_config
from sharequeue.spark.reading import frame as read
from sharequeue.spark.reading import labels
from sharequeue.spark.reading.frame import leased_records, scan_records
from sharequeue.spark.reading.options import FETCH_BYTES
from sharequeue.spark.reading.plan import Scan, Segment, plan_scans
from sharequeue.spark.session import SparkNotReady, connector_jars
from tests.fixtures.pipelines import Produce
from tests.fixtures.stack import MakeTopic
from tests.leases import lease_of
from tests.waiting import PATIENCE_S

Expected = set[tuple[str, int, int, int, int]]


def expected(*leases: Lease) -> Expected:
    return {
        (
            lease.share_partition.topic,
            lease.share_partition.partition,
            offset,
            delivery.delivery_count,
            lease.lease_id,
        )
        for lease in leases
        for delivery in lease.deliveries
        for offset in delivery.offsets.iter_offsets()
    }


def rows_of(spark: SparkSession, settings: Settings, *leases: Lease) -> list[tuple[object, ...]]:
    records = leased_records(spark, settings, leases)
    columns = records.select(
        "topic", "partition", "offset", "delivery_count", "lease_id", records["value"].cast("string")
    )
    return [tuple(row) for row in columns.collect()]


def check(spark: SparkSession, settings: Settings, *leases: Lease) -> None:
    """Exactly what was leased came, each record once, with its own value."""
    rows = rows_of(spark, settings, *leases)
    assert len(rows) == len(expected(*leases))
    assert {row[:5] for row in rows} == expected(*leases)
    assert all(row[5] == f"{row[1]}-{row[2]}" for row in rows)


@pytest.fixture
def filled(make_topic: MakeTopic, produce: Produce) -> str:
    """A topic of three partitions with a thousand records each, whose value is `<partition>-<offset>`."""
    topic = make_topic(3)
    for partition in range(3):
        produce(topic, partition, (f"{partition}-{offset}" for offset in range(1000)))
    return topic


def test_whole_ranges_are_read_to_the_offset(spark: SparkSession, settings: Settings, filled: str) -> None:
    """A range's first and last offset are in, their neighbours are not; no join is needed to say whose they
    are."""
    leases = [
        lease_of(11, filled, 0, (1, OffsetSet.of((10, 20)))),
        lease_of(12, filled, 1, (1, OffsetSet.of((0, 1000)))),
        lease_of(13, filled, 2, (3, OffsetSet.of((999, 1000)))),
    ]
    check(spark, settings, *leases)
    plan = leased_records(spark, settings, leases)._jdf.queryExecution().toString()
    assert "Join" not in plan


def test_scattered_offsets_come_with_their_own_count_and_lease(
    spark: SparkSession, settings: Settings, filled: str
) -> None:
    """Singles, ranges, several delivery counts in a lease, and two leases of one partition, in one
    DataFrame."""
    check(
        spark,
        settings,
        lease_of(
            21,
            filled,
            0,
            (2, OffsetSet.of((3, 4), (50, 60), (998, 999))),
            (1, OffsetSet.of((4, 5), (700, 800))),
        ),
        lease_of(22, filled, 0, (1, OffsetSet.of((5, 50), (999, 1000)))),
        lease_of(23, filled, 2, (5, OffsetSet.of((0, 1000)))),
    )


def test_few_offsets_are_read_without_a_join(
    spark: SparkSession, settings: Settings, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a round leases of released records comes without a join; with more of them it is joined."""
    leases = [
        lease_of(24, filled, 0, (2, OffsetSet.of((3, 4), (998, 999))), (1, OffsetSet.of((4, 6)))),
        lease_of(25, filled, 0, (1, OffsetSet.of((7, 8)))),
        lease_of(26, filled, 2, (5, OffsetSet.of((0, 1), (7, 8), (999, 1000)))),
    ]
    assert "Join" not in leased_records(spark, settings, leases)._jdf.queryExecution().toString()
    check(spark, settings, *leases)
    monkeypatch.setattr(labels, "FEW_RECORDS", 10)
    assert "Join" in leased_records(spark, settings, leases)._jdf.queryExecution().toString()
    check(spark, settings, *leases)


@pytest.fixture
def generated_code(spark: SparkSession) -> Iterator[None]:
    """Have Spark make code of its plans, as it does for users."""
    usual = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
    before = {name: spark.conf.get(name) for name in usual}
    for name, value in usual.items():
        spark.conf.set(name, value)
    yield
    for name, kept in before.items():
        assert kept is not None
        spark.conf.set(name, kept)


@pytest.mark.parametrize("offsets", [((0, 100),), ((3, 4), (50, 52), (90, 91))])
def test_spark_compiles_a_stage_once_for_all_rounds(
    spark: SparkSession,
    settings: Settings,
    filled: str,
    generated_code: None,
    offsets: tuple[tuple[int, int], ...],
) -> None:
    """Spark compiles a stage once for all rounds, whatever lease ids and offsets they have."""
    jvm: Any = spark._jvm
    compiled = jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()

    def leases(number: int) -> list[Lease]:
        moved = OffsetSet.of(*((first + number, end + number) for first, end in offsets))
        return [lease_of(1000 * number + p, filled, p, (1, moved)) for p in range(2)]

    unused = compiled.getCount()
    spark.range(2).selectExpr(f"id + {id(compiled)}").collect()  # no other query has this number
    assert compiled.getCount() > unused
    check(spark, settings, *leases(1))
    before = compiled.getCount()
    for number in range(2, 5):
        check(spark, settings, *leases(number))
    assert compiled.getCount() == before


def test_ranges_far_apart_are_read_by_several_scans(
    spark: SparkSession, settings: Settings, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three ranges in at most two scans: each record once, whichever scan it is in."""
    monkeypatch.setattr(read, "plan_scans", partial(plan_scans, near=0))
    lease = lease_of(31, filled, 1, (1, OffsetSet.of((0, 5), (10, 15), (900, 950))))
    check(spark, settings, lease)


@pytest.mark.parametrize("most_buckets", [1, 100, 200_000])
def test_every_seventh_record_is_found_in_buckets_of_any_width(
    spark: SparkSession, settings: Settings, filled: str, monkeypatch: pytest.MonkeyPatch, most_buckets: int
) -> None:
    """However wide the buckets of the join are, it finds the leased offsets and no neighbour of theirs."""
    monkeypatch.setattr(labels, "MOST_BUCKETS", most_buckets)
    singles = OffsetSet.of(*((offset, offset + 1) for offset in range(0, 700, 7)), (800, 1000))
    check(spark, settings, lease_of(41, filled, 0, (2, singles)), lease_of(42, filled, 1, (1, singles)))


def test_several_topics_are_kept_apart(
    spark: SparkSession, settings: Settings, filled: str, make_topic: MakeTopic, produce: Produce
) -> None:
    """The same partition and offset of another topic is another record, with and without a join."""
    other = make_topic(1)
    produce(other, 0, (f"0-{offset}" for offset in range(100)))
    check(
        spark,
        settings,
        lease_of(51, filled, 0, (1, OffsetSet.of((0, 9)))),
        lease_of(52, other, 0, (1, OffsetSet.of((5, 9)))),
    )
    check(
        spark,
        settings,
        lease_of(53, filled, 0, (1, OffsetSet.of((0, 9), (50, 51)))),
        lease_of(54, other, 0, (2, OffsetSet.of((8, 9), (60, 61)))),
    )


def test_leases_of_many_partitions_come_from_a_join(
    spark: SparkSession, settings: Settings, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond a number of partitions their leases come from the join, with the same result."""
    monkeypatch.setattr(labels, "MOST_CONSTANTS", 2)
    check(spark, settings, *(lease_of(61 + p, filled, p, (1, OffsetSet.of((p, 500)))) for p in range(3)))


@pytest.mark.parametrize(
    ("options", "fetches"), [({}, [str(2**20), str(8 * 2**20)]), ({FETCH_BYTES: "5"}, ["5", "5"])]
)
def test_scans_of_few_offsets_have_smaller_fetches(
    spark: SparkSession,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str],
    fetches: list[str],
) -> None:
    """Each scan by its largest segment; a user's own option is that of all."""
    given: dict[str, str] = {}
    loaded: list[str] = []
    rows = spark.range(1).selectExpr("timestamp'2026-01-01' as timestamp")

    def set_options(reader: DataFrameReader, **more: str) -> DataFrameReader:
        given.update(more)
        return reader

    def load(reader: DataFrameReader) -> DataFrame:
        loaded.append(given[FETCH_BYTES])
        return rows

    monkeypatch.setattr(DataFrameReader, "options", set_options)
    monkeypatch.setattr(DataFrameReader, "load", load)
    scans = [Scan((Segment("t", 0, 0, 10_000),)), Scan((Segment("t", 0, 10**6, 10**6 + 10_001),))]
    scan_records(spark, settings, scans, options)
    assert loaded == fetches


def test_a_record_is_read_completely(spark: SparkSession, settings: Settings, make_topic: MakeTopic) -> None:
    """Key, value, timestamp with its type, and headers with doubled names, nulls included."""
    topic = make_topic(1)
    producer = Producer(client_config(settings))
    producer.produce(topic, None, None, timestamp=1_357_035_300_000, headers=[("h", b"1"), ("h", None)])
    producer.flush(PATIENCE_S)
    lease = lease_of(71, topic, 0, (1, OffsetSet.of((0, 1))))
    row = leased_records(spark, settings, [lease]).first()
    assert row is not None
    assert (row["key"], row["value"]) == (None, None)
    assert row["timestamp_type"] == 0
    assert row["timestamp"].timestamp() == 1_357_035_300
    assert [(h["key"], h["value"]) for h in row["headers"]] == [("h", b"1"), ("h", None)]
    without = leased_records(spark, settings, [lease], headers=False)
    assert without.columns == leased_records(spark, settings, [lease]).columns


def test_an_empty_list_of_leases_is_refused(spark: SparkSession, settings: Settings) -> None:
    with pytest.raises(ValueError, match="nothing to read"):
        leased_records(spark, settings, [])


def test_without_the_connector_the_message_says_what_to_do(
    settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with pytest.raises(SparkNotReady, match="sharequeue up"):
        connector_jars(settings.replace(jars=tmp_path_factory.mktemp("no-jars")))
