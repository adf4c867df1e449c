"""JSON and Protobuf become columns; a record that does not decode is a reject with its error, no other is affected.

Avro is in `tests/deep/deep_avro.py`: its jar is a set of its own.
"""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    timestamp_pb2,
    wrappers_pb2,
)
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as fn

from sharequeue.spark.by_row import by_row
from sharequeue.spark.formats import json, protobuf
from sharequeue.spark.handler import HandlerError, RegistryNotAvailable
from sharequeue.spark.lease import lease
from sharequeue.state import State
from tests import single
from tests.fixtures.pipelines import Assigned, Produce, RunJob, job_of
from tests.fixtures.registry import framed
from tests.fixtures.stack import MakeTopic

COLUMNS = "topic string, partition int, offset long, lease_id long, key binary, value binary"
MALFORMED = "not one JSON object of the schema: malformed, or a field of another type"


def records_of(spark: SparkSession, *values: bytes | None) -> DataFrame:
    rows = [
        ("orders", 0, n, 7, b"1", None if value is None else bytearray(value))
        for n, value in enumerate(values)
    ]
    return spark.createDataFrame(rows, COLUMNS)


def rows_of(decoded: DataFrame) -> list[Row]:
    return decoded.orderBy("offset").collect()


def test_json(spark: SparkSession) -> None:
    """What is no object of the schema is a reject with the reason, also when another column was decoded before; what
    a registry's serializer puts before JSON is passed over."""
    values = (
        b'{"id": "a", "amount": 2}',
        framed(7, b'{"id": "b"}'),
        b'{"id": "c", "amount": "much"}',
        b"{",
        b"",
        None,
    )
    decoded = json(records_of(spark, *values), "id string, amount int")
    assert decoded.columns == [*COLUMNS.replace(" ", ",").split(",")[0::3], "outcome", "error"]
    found = rows_of(decoded)
    assert [row["value"] and tuple(row["value"]) for row in found[:3]] == [("a", 2), ("b", None), None]
    assert [row["outcome"] for row in found] == ["accept", "accept", "reject", "reject", "reject", "reject"]
    assert [row["error"] for row in found] == [None, None, MALFORMED, MALFORMED, MALFORMED, "no value"]
    both = json(json(records_of(spark, b"{", b"{}"), "id string"), "id string", column="key")
    assert [row["error"] for row in rows_of(both)] == [MALFORMED, f"key: {MALFORMED}"]


def test_json_is_one_object_and_nothing_else(spark: SparkSession) -> None:
    """Spark reads the first value of a text and passes over the rest; here the rest is somebody's second order."""
    wrong = (
        b'{"id": "a"}{"id": "b"}',
        b'{"id": "a"}, {"id": "b"}',
        b'{"id": "a"} and more',
        b'{"id": "a"}]',
        b'{"id": "a"}}',
        b"{'id': 'a'}",
        b'[{"id": "a"}]',
        b"null",
        b'"a"',
        b'{"id": "\xff"}',
    )
    right = (b' {"id": "a", "more": [{}]}\n', '{"id": "\u00e9"}'.encode(), b"{}")
    found = rows_of(json(records_of(spark, *wrong, *right), "id string"))
    assert [row["outcome"] for row in found] == ["reject"] * len(wrong) + ["accept"] * len(right)
    assert [row["value"]["id"] for row in found[len(wrong) :]] == ["a", "\u00e9", None]


def test_a_time_is_cut_to_microseconds(spark: SparkSession) -> None:
    """In JSON as text, before 1970 too, and in Protobuf; as a `string` it stays. A number of JSON is seconds."""
    fine, old = "2024-01-01T00:00:00.123456789Z", "1969-12-31T23:59:59.999999999Z"
    values = [f'{{"at": "{fine}"}}'.encode(), f'{{"at": "{old}"}}'.encode(), b'{"at": 1700000000}']
    micros = fn.unix_micros("value.at")
    expected = [1_704_067_200_123_456, -1, 1_700_000_000_000_000]
    found = json(records_of(spark, *values), "at timestamp").orderBy("offset")
    assert [row[0] for row in found.select(micros).collect()] == expected
    texts = json(records_of(spark, *values), "at string").orderBy("offset")
    assert [row[0] for row in texts.select("value.at").collect()] == [fine, old, "1700000000"]
    orders = [_message_classes()["Order"]() for _ in range(2)]
    for order, text in zip(orders, (fine, old), strict=True):
        order.at.FromJsonString(text)
    messages = [order.SerializeToString() for order in orders]
    decoded = protobuf(records_of(spark, *messages), type(orders[0])).orderBy("offset")
    assert [row[0] for row in decoded.select(micros).collect()] == expected[:2]


def test_by_row_passes_over_what_was_not_decoded(spark: SparkSession) -> None:
    """The function gets decoded values alone, without the outcome; the others keep their error."""

    def double(record: dict[str, Any]) -> dict[str, Any]:
        assert "outcome" not in record
        return {"amount": 2 * record["value"]["amount"]}

    decoded = json(records_of(spark, b'{"amount": 2}', b"{", b"{}"), "amount int")
    found = [
        (row["amount"], row["outcome"], row["error"])
        for row in rows_of(by_row(double, "amount int")(decoded))
    ]
    assert found[:2] == [(4, "accept", None), (None, "reject", MALFORMED)]
    assert found[2][1] == "release"


def _message_classes() -> dict[str, Any]:
    """What `protoc` would make of a file with `Other`, `Order` with `Order.Line` inside, and `Tree`."""
    file = descriptor_pb2.FileDescriptorProto(name="orders.proto", package="shop", syntax="proto3")
    file.dependency.extend([timestamp_pb2.DESCRIPTOR.name, wrappers_pb2.DESCRIPTOR.name])
    file.message_type.add(name="Other").field.add(name="id", number=1, type=9, label=1)
    kind = file.enum_type.add(name="Kind")
    for number, name in enumerate(("UNKNOWN", "GIFT")):
        kind.value.add(name=name, number=number)
    order = file.message_type.add(name="Order")
    line = order.nested_type.add(name="Line")
    line.field.add(name="name", number=1, type=9, label=1)
    prices = order.nested_type.add(name="PricesEntry")
    prices.options.map_entry = True
    prices.field.add(name="key", number=1, type=9, label=1)
    prices.field.add(name="value", number=2, type=11, label=1, type_name=".shop.Order.Line")
    order.oneof_decl.add(name="_note")
    for number, (name, type_, label, type_name) in enumerate(
        (
            ("id", 9, 1, ""),
            ("amount", 5, 1, ""),
            ("big", 4, 1, ""),
            ("kind", 14, 1, ".shop.Kind"),
            ("lines", 11, 3, ".shop.Order.Line"),
            ("prices", 11, 3, ".shop.Order.PricesEntry"),
            ("at", 11, 1, ".google.protobuf.Timestamp"),
            ("weight", 11, 1, ".google.protobuf.DoubleValue"),
            ("raw", 12, 1, ""),
        ),
        1,
    ):
        order.field.add(name=name, number=number, type=type_, label=label, type_name=type_name or None)
    order.field.add(name="note", number=10, type=9, label=1, oneof_index=0, proto3_optional=True)
    file.message_type.add(name="Tree").field.add(
        name="left", number=1, type=11, label=1, type_name=".shop.Tree"
    )
    pool = descriptor_pool.DescriptorPool()
    for each in (timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(each.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    names = ("Other", "Order", "Order.Line", "Tree")
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"shop.{name}")) for name in names
    }


def test_protobuf(spark: SparkSession) -> None:
    """Each kind of field has its column; bare messages and those of a registry are told apart; another message of the
    file, and what is none, are rejects with the reason."""
    classes = _message_classes()
    order = classes["Order"]()
    order.id, order.amount, order.big, order.kind, order.raw = "a", -2, 2**64 - 1, 1, b"\0"
    order.lines.add(name="tea")
    order.prices["tea"].name = "two"
    order.at.FromDatetime(datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC))
    order.weight.value = 0.5
    bare = order.SerializeToString()
    values = (
        bare, framed(7, b"\2\2" + bare), b"", framed(7, b"\0" + bare), b"\xff\xff", framed(7, b"\2"), None,
    )  # fmt: skip
    found = rows_of(protobuf(records_of(spark, *values), classes["Order"]))
    assert found[0]["value"] == found[1]["value"]
    value = found[0]["value"].asDict(recursive=True)
    at = value.pop("at")
    assert value == {
        "id": "a", "amount": -2, "big": Decimal(2**64 - 1), "kind": "GIFT", "lines": [{"name": "tea"}],
        "prices": {"tea": {"name": "two"}}, "weight": 0.5, "raw": bytearray(b"\0"), "note": None,
    }  # fmt: skip
    assert at.astimezone(UTC) == datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    assert found[2]["value"].asDict() == {
        "id": "", "amount": 0, "big": 0, "kind": "UNKNOWN", "lines": [], "prices": {}, "at": None, "weight": None,
        "raw": bytearray(), "note": None,
    }  # fmt: skip
    assert [row["outcome"] for row in found] == [*["accept"] * 3, *["reject"] * 4]
    assert "it is message 0 of its file, expected 1" in found[3]["error"]
    assert found[4]["error"].startswith("no shop.Order: ")
    assert found[4]["error"].endswith("(2 bytes, beginning with 0xffff)")
    assert "in the header that a registry's serializer writes before a message" in found[5]["error"]
    assert found[6]["error"] == "no value"


def test_a_message_inside_another_one_and_one_that_contains_itself(spark: SparkSession) -> None:
    """The indexes of a nested message have two parts; what contains itself is refused when the handler is tried."""
    classes = _message_classes()
    line = framed(7, b"\4\2\0" + classes["Order.Line"](name="tea").SerializeToString())
    (found,) = rows_of(protobuf(records_of(spark, line), classes["Order.Line"]))
    assert found["value"]["name"] == "tea"
    with pytest.raises(HandlerError, match=r"contains itself \(shop.Tree → shop.Tree\)"):
        protobuf(records_of(spark), classes["Tree"])


def no_registry(records: DataFrame) -> DataFrame:
    """Read the records, as for the ids of their schemas, and find no registry that answers."""
    if records.select("offset").count():
        raise RegistryNotAvailable("the schema registry does not answer")
    return records.withColumn("outcome", fn.lit("accept"))


def test_a_registry_that_does_not_answer_costs_no_delivery(
    group: str, make_topic: MakeTopic, produce: Produce, assigned: Assigned, run_job: RunJob, state: State
) -> None:
    """The run ends with its error: nothing is acknowledged, and the records come again as never delivered."""
    topic = make_topic(1)
    produce(topic, 0, range(10))
    holder = assigned(topic)
    with pytest.raises(RegistryNotAvailable):
        run_job(job_of(group, topic, no_registry), holder)
    again = single.acquire(state, holder.assignment[0], holder.member_id, None, 10)
    assert again is not None
    assert [(each.delivery_count, each.offsets.count) for each in again.deliveries] == [(1, 10)]
    state.release([again], refund=True)


def test_a_lease_of_ones_own_too(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    spark: SparkSession,
    state: State,
    output_settings: Any,
) -> None:
    """Its block ends with the error, and the deliveries are given back."""
    topic = make_topic(1)
    produce(topic, 0, range(10))
    holder = assigned(topic)
    with (
        pytest.raises(RegistryNotAvailable),
        lease(group, [topic], settings=output_settings, spark=spark, membership=holder) as leased,
    ):
        no_registry(leased.records)
    again = single.acquire(state, holder.assignment[0], holder.member_id, None, 10)
    assert again is not None
    assert [(each.delivery_count, each.offsets.count) for each in again.deliveries] == [(1, 10)]
