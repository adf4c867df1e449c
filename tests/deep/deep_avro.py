"""Avro values with a schema registry: each record is read with the schema of its own id; one that does not decode is
a reject with its error; a registry that does not answer ends the run, and no record pays for it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.spark import pipeline
from sharequeue.spark.formats import Registry, avro
from sharequeue.spark.handler import HandlerError, RegistryNotAvailable
from sharequeue.spark.leased_records import lease
from sharequeue.spark.output.manifest import read_output
from sharequeue.state import State
from tests.fixtures.pipelines import Assigned, Produce, RunJob, job_of
from tests.fixtures.registry import RegistryServer, framed, number, text
from tests.fixtures.stack import MakeTopic

KEPT = ("topic", "partition", "offset", "lease_id")


def order(*fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [{"name": "id", "type": "string"}, *fields],
    }


AMOUNT = {"name": "amount", "type": "int"}
LONG_AMOUNT = {"name": "amount", "type": "long"}
COUNTRY = {"name": "country", "type": ["null", "string"], "default": None}
KIND = {
    "name": "kind",
    "type": {"type": "enum", "name": "Kind", "symbols": ["SALE", "GIFT"]},
    "default": "SALE",
}
FIRST, SECOND, THIRD = order(AMOUNT), order(LONG_AMOUNT, COUNTRY), order(COUNTRY, LONG_AMOUNT, KIND)

VALUES = (
    framed(1, text("a") + number(1)),
    framed(2, text("b") + number(2**40) + number(1) + text("fr")),
    framed(3, text("c") + number(0) + number(3) + number(1)),
    framed(1, text("d") + number(4)),
    framed(1, text("too short")[:3]),
    framed(99, text("e") + number(1)),
    framed(4, text("f")),
    framed(5, b"a message"),
    b'{"id": "g"}',
    b"\0\0",
    None,
)
DECODED = {
    0: ("a", 1, None, "SALE"), 1: ("b", 2**40, "fr", "SALE"), 2: ("c", 3, None, "GIFT"), 3: ("d", 4, None, "SALE"),
}  # fmt: skip
ERRORS = {
    4: "no Avro of schema 1, or not of the reader's: 8 bytes, beginning with 0x000000000112746f",
    5: "schema 99 is not in the registry",
    6: "no Avro of schema 4, or not of the reader's: 7 bytes, beginning with 0x00000000040266",
    7: "schema 5 is PROTOBUF: expected AVRO",
    8: "not in the registry's format (a zero byte, four of a schema id): 11 bytes, beginning with 0x7b226964223a2022",
    9: "not in the registry's format (a zero byte, four of a schema id): 2 bytes, beginning with 0x0000",
    10: "no value",
}


@pytest.fixture
def registry(registry_server: RegistryServer) -> Registry:
    """Give a registry with three versions of a subject, a schema that cannot become it, and one of Protobuf."""
    for schema_id, schema in ((1, FIRST), (2, SECOND), (4, order()), (3, THIRD)):
        registry_server.register("orders-value", schema, schema_id)
    registry_server.register("others-value", 'syntax = "proto3";', 5, "PROTOBUF")
    return Registry(registry_server.url, settings=Settings({}))


def test_records_of_several_schemas_are_decoded_in_one_lease(
    group: str,
    registry: Registry,
    registry_server: RegistryServer,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    output_settings: Settings,
    spark: SparkSession,
    state: State,
) -> None:
    """In a run, each record that decodes is in the output as the latest schema has it; each other one is a reject,
    whose error is among the exceptions. A replay decodes the same. The registry is asked once for each schema."""
    topic = make_topic(1)
    produce(topic, 0, VALUES)

    def orders(records: DataFrame) -> DataFrame:
        return avro(records, registry, subject="orders-value").select(*KEPT, "value.*", "outcome", "error")

    job = pipeline(group=group, topics=[topic], sink=f"sink-{group}", failed_share=None)(orders)
    report = run_job(job, assigned(topic))
    assert (report.accepted, report.rejected, report.released) == (len(DECODED), len(ERRORS), 0)
    accepted = (
        read_output(spark, state, group, job.sink)
        .select("offset", "id", "amount", "country", "kind")
        .collect()
    )
    assert {row["offset"]: tuple(row)[1:] for row in accepted} == DECODED
    exceptions = read_output(spark, state, group, job.exceptions_sink).collect()
    assert {row["offset"]: row["error"] for row in exceptions} == ERRORS
    asked = [path for path in registry_server.asked if path.startswith("/schemas/ids/")]
    assert sorted(asked) == [f"/schemas/ids/{each}" for each in (1, 2, 3, 4, 5, 99)]
    everything = {(topic, 0): OffsetSet.of((0, len(VALUES)))}
    replayed = job.replay(output_settings, offsets=everything, spark=spark, state=state)
    assert replayed.records == len(VALUES)


def test_a_lease_is_decoded_by_the_readers_own_schema(
    group: str,
    registry: Registry,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    spark: SparkSession,
    output_settings: Settings,
) -> None:
    """Less than was written is read; the key too, where it is Avro."""
    topic = make_topic(1)
    produce(topic, 0, VALUES[:4])
    holder = assigned(topic)
    with lease(group, [topic], settings=output_settings, spark=spark, membership=holder) as leased:
        decoded = avro(leased.records, registry, schema=json.dumps(order()))
        leased.write(decoded.select(*KEPT, "value.*", "outcome", "error"), str(output_settings.output))
        assert leased.acknowledge().accepted == 4
        assert {row[0] for row in decoded.select("value.id").collect()} == {"a", "b", "c", "d"}
        keys = avro(decoded, registry, schema='"string"', column="key").select("error").distinct().collect()
        assert {row[0].partition(" (")[0] for row in keys} == {"key: not in the registry's format"}


def test_a_record_of_nulls_is_decoded(spark: SparkSession, registry_server: RegistryServer) -> None:
    """Spark's `from_avro` gives the same for a record of nulls and for bytes that do not decode. Schemas that are no
    records work, too, with a registry and without."""
    note = {"type": "record", "name": "Note", "fields": [{"name": "text", "type": ["null", "string"]}]}
    registry_server.register("notes-value", note, 1)
    registry_server.register("words-value", ["null", "string"], 2)
    registry = Registry(registry_server.url, settings=Settings({}))
    columns = "offset long, value binary"
    rows = [(0, bytearray(framed(1, number(0)))), (1, bytearray(framed(1, b"\7")))]
    notes = (
        avro(spark.createDataFrame(rows, columns), registry, subject="notes-value")
        .orderBy("offset")
        .collect()
    )
    assert [(row["value"], row["outcome"]) for row in notes] == [((None,), "accept"), (None, "reject")]
    rows = [(0, bytearray(framed(2, number(0)))), (1, bytearray(framed(2, number(1) + text("a"))))]
    words = (
        avro(spark.createDataFrame(rows, columns), registry, subject="words-value")
        .orderBy("offset")
        .collect()
    )
    assert [(row["value"], row["outcome"]) for row in words] == [(None, "accept"), ("a", "accept")]
    bare = avro(
        spark.createDataFrame([(0, bytearray(text("a"))), (1, bytearray(b"\7"))], columns), schema='"string"'
    )
    assert [(row["value"], row["outcome"]) for row in bare.orderBy("offset").collect()] == [
        ("a", "accept"),
        (None, "reject"),
    ]


@pytest.mark.parametrize("kind", ["timestamp-nanos", "local-timestamp-nanos"])
def test_nanoseconds_are_whole_numbers(spark: SparkSession, kind: str) -> None:
    """Spark has no type for them: they come as a bigint, exactly."""
    schema = order({"name": "at", "type": {"type": "long", "logicalType": kind}})
    nanos = 1_704_067_200_123_456_789
    rows = [("orders", 0, 0, 7, bytearray(text("a") + number(nanos)))]
    records = spark.createDataFrame(
        rows, "topic string, partition int, offset long, lease_id long, value binary"
    )
    decoded = avro(records, schema=json.dumps(schema))
    assert decoded.schema["value"].dataType["at"].dataType.simpleString() == "bigint"  # type: ignore[index]
    assert [row[0] for row in decoded.select("value.at").collect()] == [nanos]


def test_a_registry_that_stops_costs_no_delivery(
    group: str,
    registry_server: RegistryServer,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
) -> None:
    """It answers when the handler is tried, and no more when the lease's schemas are looked for, by tasks that ran:
    nothing is acknowledged, and the records were never delivered. Later the same run ends well."""
    registry_server.register("orders-value", FIRST, 1)
    registry = Registry(registry_server.url, settings=Settings({}))
    topic = make_topic(1)
    produce(topic, 0, VALUES[:1] * 10)
    holder = assigned(topic)

    def orders(records: DataFrame) -> DataFrame:
        decoded = avro(records, registry, schema=json.dumps(FIRST))
        return decoded.select(*KEPT, "delivery_count", "value.*", "outcome", "error")

    registry_server.failures = 3
    with pytest.raises(RegistryNotAvailable, match="HTTP status code 503"):
        run_job(job_of(group, topic, orders), holder)
    assert [path for path in registry_server.asked if "ids" in path] == ["/schemas/ids/1"] * 3
    assert state.figures.describe(group)[0].lag == 10
    assert run_job(job_of(group, topic, orders), holder).accepted == 10


def test_an_invalid_schema_rejects_only_its_records(
    spark: SparkSession, registry_server: RegistryServer
) -> None:
    """What the registry has under an id may be anything; records of other ids are decoded."""
    registry = Registry(registry_server.url, settings=Settings({}))
    registry_server.register("orders-value", '"string"', 1)
    registry_server.register("orders-value", '"string"', 2)
    registry_server.schemas[2]["schema"] = "record Order"
    values = [(n, bytearray(framed(n, b"\x02a"))) for n in (1, 2)]
    records = spark.createDataFrame(values, "offset long, value binary")
    first, second = avro(records, registry, schema='"string"').orderBy("offset").collect()
    assert (first["value"], first["outcome"]) == ("a", "accept")
    assert (second["outcome"], "schema 2 is not an Avro schema" in second["error"]) == ("reject", True)


def test_a_schema_with_an_invalid_default_is_read(
    spark: SparkSession, registry_server: RegistryServer
) -> None:
    """Registries accept such schemas, and Spark's own decoder reads their records; also as the reader's schema. A
    record that would need the default does not decode."""
    registry = Registry(registry_server.url, settings=Settings({}))
    bad = {"name": "note", "type": "string", "default": None}
    registry_server.register("orders-value", order(), 1)
    registry_server.register("orders-value", order(bad), 2)
    values = [(1, bytearray(framed(1, text("a")))), (2, bytearray(framed(2, text("b") + text("x"))))]
    records = spark.createDataFrame(values, "offset long, value binary")
    first, second = avro(records, registry, subject="orders-value").orderBy("offset").collect()
    assert first["outcome"] == "reject"
    assert (tuple(second["value"]), second["outcome"]) == (("b", "x"), "accept")


def test_a_unit_that_has_changed_is_refused(spark: SparkSession, registry_server: RegistryServer) -> None:
    """Avro resolves the two schemas, and would make a time of 1970 of one of today."""
    registry = Registry(registry_server.url, settings=Settings({}))
    for schema_id, unit in ((1, "millis"), (2, "micros")):
        at = {"name": "at", "type": {"type": "long", "logicalType": f"timestamp-{unit}"}}
        registry_server.register(
            "orders-value", {"type": "record", "name": "Order", "fields": [at]}, schema_id
        )
    values = [(n, bytearray(framed(n, number(1_700_000_000_000)))) for n in (1, 2)]
    records = spark.createDataFrame(values, "offset long, value binary")
    found = avro(records, registry, subject="orders-value").orderBy("offset").collect()
    assert [row["outcome"] for row in found] == ["reject", "accept"]
    assert found[0]["error"] == (
        "schema 1 has other values than the reader's schema would read (at: timestamp-millis, and timestamp-micros)"
    )


def test_bytes_after_the_value_are_refused(spark: SparkSession, registry_server: RegistryServer) -> None:
    """Such bytes are of another schema, or have a header of another format, and their values are wrong."""
    registry = Registry(registry_server.url, settings=Settings({}))
    registry_server.register("orders-value", order(), 1)
    given = (
        framed(1, text("a")),
        framed(1, text("a") + b"b"),
        framed(1, text("abc")[:3]),
        framed(1, text("")),
    )
    records = spark.createDataFrame(
        [(n, bytearray(each)) for n, each in enumerate(given)], "offset long, value binary"
    )
    found = avro(records, registry, subject="orders-value").orderBy("offset").collect()
    assert [row["outcome"] for row in found] == ["accept", "reject", "reject", "accept"]
    assert (
        found[1]["error"] == "longer than its value of schema 1: 8 bytes, beginning with 0x0000000001026162"
    )
    plain = avro(records, schema=json.dumps(order())).collect()
    assert {row["outcome"] for row in plain} == {"reject"}


def test_invalid_arguments_of_a_decoder_are_refused(
    spark: SparkSession, registry_server: RegistryServer
) -> None:
    """No reader's schema, one that is none, one with types from elsewhere, values that are no registry's."""
    registry = Registry(registry_server.url, settings=Settings({}))
    records = spark.createDataFrame([(1, bytearray(b""))], "offset long, value binary")
    for given in ({}, {"schema": "{}", "subject": "orders-value"}):
        with pytest.raises(HandlerError, match="needs the reader's schema"):
            avro(records, registry, **given)
    with pytest.raises(HandlerError, match="has no subject orders-value"):
        avro(records, registry, subject="orders-value")
    with pytest.raises(HandlerError, match="is not an Avro schema"):
        avro(records, registry, schema="record Order")
    with pytest.raises(HandlerError, match="is not an Avro schema"):
        avro(records, registry, schema='{"type": "recrod"}')
    registry_server.register("orders-value", FIRST, 1)
    registry_server.schemas[1]["references"] = [{"name": "shop.Line", "subject": "lines", "version": 1}]
    with pytest.raises(HandlerError, match=r"takes shop\.Line from other subjects"):
        avro(records, registry, subject="orders-value")
    many = spark.range(2_000).select(
        fn.col("id").alias("offset"),
        fn.expr("unhex(concat('00', lpad(hex(id + 10), 8, '0')))").alias("value"),
    )
    with pytest.raises(HandlerError, match="more than 1,000 schema ids"):
        avro(many, registry, schema='"string"')


def test_a_length_that_a_record_claims_is_refused(spark: SparkSession) -> None:
    """A text and bytes of 2 GiB, and billions of items without bytes, are rejects; the next record is read."""
    fields = [
        {"name": "text", "type": "string"},
        {"name": "raw", "type": "bytes"},
        {"name": "nothing", "type": {"type": "array", "items": "null"}},
    ]
    schema = json.dumps({"type": "record", "name": "Claims", "fields": fields})
    claim = number(2**31 - 10)
    values = [
        claim,
        text("a") + claim,
        text("a") + number(0) + claim + number(0),
        text("a") + number(0) + number(0),
    ]
    records = spark.createDataFrame(
        [("t", 0, offset, 7, bytearray(value)) for offset, value in enumerate(values)],
        "topic string, partition int, offset long, lease_id long, value binary",
    )
    rows = avro(records, schema=schema).orderBy("offset").collect()
    assert [row["outcome"] for row in rows] == ["reject"] * 3 + ["accept"]
