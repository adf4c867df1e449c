"""Keys and values with a schema: confluent-kafka's deserializers read them, and what does not fit is a fault."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import types

from sharequeue.domain.settings import Settings
from sharequeue.spark.handler import RegistryNotAvailable
from sharequeue.spark.registry import _DEFAULTS
from sharequeue.spark.sinks.interface import SinkRefused
from sharequeue.spark.sinks.kafka.schemas import read_schema, refuse_unfit
from sharequeue.spark.sinks.kafka.serializing import RecordSchema, RowSerializer
from tests.fixtures.registry import RegistryServer

SUBJECT = "clean-value"
CONTEXT = SerializationContext("clean", MessageField.VALUE)


def settings_of(registry: RegistryServer) -> Settings:
    return Settings({"registry": {"url": registry.url}})


def written(
    registry: RegistryServer, schema: object, values: pa.Array, kind: str = "AVRO"
) -> list[tuple[bytes | None, str | None]]:
    """Register a schema; return the bytes and the fault of each value."""
    registry.register(SUBJECT, schema, 7, kind)
    read = read_schema(settings_of(registry), SUBJECT, "clean", "value")
    asked = len(registry.asked)
    rows = pa.RecordBatch.from_arrays([values], names=["made"])
    [made] = RowSerializer("clean", {"made": ("value", read)})([rows])
    assert len(registry.asked) == asked  # a task sends no request
    return [(each["data"], each["fault"]) for each in made["made"].to_pylist()]


def field(name: str, kind: object, **more: object) -> dict[str, object]:
    return {"name": name, "type": kind} | more


def record(*fields: object) -> dict[str, object]:
    return {"type": "record", "name": "Order", "namespace": "shop", "fields": list(fields)}


def test_avro_is_read_by_the_deserializer_of_confluent_kafka(registry_server: RegistryServer) -> None:
    """Values of each kind, with the id of the schema; a null stays one, and a field with a default may be absent."""
    price = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    schema = record(
        field("id", "string"),
        field("amount", "int"),
        field("price", price),
        field("at", {"type": "long", "logicalType": "timestamp-micros"}),
        field("day", ["null", {"type": "int", "logicalType": "date"}]),
        field("lines", {"type": "array", "items": record(field("n", "long")) | {"name": "Line"}}),
        field("tags", {"type": "map", "values": "string"}),
        field("raw", ["null", "bytes"]),
        field("absent", "string", default="none"),
    )
    row = {
        "id": "a",
        "amount": 3,
        "price": Decimal("1.20"),
        "at": datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
        "day": date(2026, 1, 2),
        "lines": [{"n": 1}, {"n": 2**40}],
        "tags": {"x": "y"},
        "raw": b"\0",
    }
    kind = pa.struct(
        [
            ("id", pa.string()),
            ("amount", pa.int32()),
            ("price", pa.decimal128(9, 2)),
            ("at", pa.timestamp("us", "Europe/Berlin")),
            ("day", pa.date32()),
            ("lines", pa.list_(pa.struct([("n", pa.int64())]))),
            ("tags", pa.map_(pa.string(), pa.string())),
            ("raw", pa.binary()),
        ]
    )
    [(data, fault), nothing] = written(registry_server, schema, pa.array([row, None], kind))
    assert (nothing, fault) == ((None, None), None)
    assert data is not None
    assert data[:5] == b"\0\0\0\0\x07"
    client = SchemaRegistryClient({"url": registry_server.url})
    assert AvroDeserializer(client)(data, CONTEXT) == row | {"absent": "none"}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ('"string"', "a"),
        ('"bytes"', b"\0a"),
        ({"type": "string"}, "a"),
        (["null", "long", "string"], "a"),
        ({"type": "map", "values": ["null", "int"]}, {"a": 1}),
        ({"type": "enum", "name": "E", "symbols": ["a", "b"]}, "b"),
    ],
)
def test_a_value_that_is_no_record_is_read_by_the_deserializer(
    registry_server: RegistryServer, schema: object, value: object
) -> None:
    """Most keys have the schema `"string"`, the name of a type alone."""
    kind = pa.map_(pa.string(), pa.int32()) if isinstance(value, dict) else None
    [(data, fault)] = written(registry_server, schema, pa.array([value], kind))
    assert fault is None
    client = SchemaRegistryClient({"url": registry_server.url})
    assert AvroDeserializer(client)(data, CONTEXT) == value


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        ({"type": "int"}, pa.array([1, 2**31]), "is <2147483648>"),
        ({"type": "enum", "name": "E", "symbols": ["a"]}, pa.array(["a", "b"]), "'b'|<b>"),
        ({"type": "fixed", "name": "F", "size": 2}, pa.array([b"ab", b"abc"]), "abc"),
        (
            record(field("id", "string")),
            pa.array([{"id": "a"}, {"id": None}]),
            "shop.Order.id is null: expected string",
        ),
        (["null", "string"], pa.array([b"a", b"\xff"]).view(pa.string()), "can't decode byte 0xff"),
        (
            record(field("p", {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1})),
            pa.array([{"p": Decimal("1.5")}, {"p": Decimal("9999.5")}]),
            "precision",
        ),
    ],
)
def test_a_value_that_avro_refuses_is_a_fault_of_its_row(
    registry_server: RegistryServer, kind: object, values: pa.Array, expected: str
) -> None:
    """The first value of each column fits, the second one does not, and is not written in another form."""
    [first, (data, fault)] = written(registry_server, kind, values)
    assert first[1] is None
    assert data is None
    assert str(fault).startswith(f"InvalidRecord: the value does not fit schema 7 of subject {SUBJECT}: ")
    assert any(each in str(fault) for each in expected.split("|")), fault


ORDER = {
    "$ref": "#/definitions/Order",
    "definitions": {
        "Order": {
            "type": "object",
            "required": ["id", "code"],
            "properties": {
                "id": {"type": "string"},
                "code": {"type": ["string", "null"]},
                "amount": {"type": "integer", "minimum": 1},
                "price": {"type": "number"},
                "lines": {"type": "array", "items": {"properties": {"n": {"type": "integer"}}}},
            },
        }
    },
}


def as_text(*values: object) -> pa.Array:
    return pa.array([None if each is None else json.dumps({"value": each}) for each in values], pa.string())


def test_json_is_read_by_the_deserializer_of_confluent_kafka(registry_server: RegistryServer) -> None:
    """With the schema's id. A null field that the schema names and does not require is left out; a decimal keeps its
    digits."""
    long = (
        '{"value": {"id": "ä", "code": null, "amount": null, "price": 0.12345678901234567890, '
        '"lines": [{"n": null}]}}'
    )
    [(data, fault), nothing] = written(registry_server, ORDER, pa.array([long, None]), "JSON")
    assert (nothing, fault) == ((None, None), None)
    assert data == b"\0\0\0\0\x07" + (
        '{"id":"ä","code":null,"price":0.12345678901234567890,"lines":[{}]}'.encode()
    )
    client = SchemaRegistryClient({"url": registry_server.url})
    read = JSONDeserializer(json.dumps(ORDER), schema_registry_client=client)(data, CONTEXT)
    assert (read["id"], read["code"], read["lines"]) == ("ä", None, [{}])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"id": "a", "code": None, "amount": 0}, "$.amount: 0 is less than the minimum of 1"),
        ({"id": None, "code": None}, "$.id: None is not of type 'string'"),
        ({"id": "a"}, "$: 'code' is a required property"),
        ([], "$: [] is not of type 'object'"),
    ],
)
def test_a_value_that_a_json_schema_refuses_is_a_fault_of_its_row(
    registry_server: RegistryServer, value: object, expected: str
) -> None:
    """The reason names the part."""
    [(_, fault), (data, _)] = written(
        registry_server, ORDER, as_text(value, {"id": "a", "code": "b"}), "JSON"
    )
    assert fault == f"InvalidRecord: the value does not fit schema 7 of subject {SUBJECT}: {expected}"
    assert data is not None


@pytest.mark.parametrize(
    ("schema", "kind", "expected"),
    [
        ({"type": "nonsense"}, "AVRO", "is not a valid AVRO schema"),
        ({"type": 1}, "JSON", "is not a valid JSON schema"),
        ("syntax = 'proto3';", "PROTOBUF", "is PROTOBUF: expected AVRO or JSON"),
        (
            {"$ref": "https://example.com/a.json"},
            "JSON",
            "is not a valid JSON schema: it refers to https://example.com/a.json, which is not in it: include it",
        ),
        (
            {"$schema": "http://json-schema.org/draft-03/schema#"},
            "JSON",
            "is not a valid JSON schema: it is of draft 3",
        ),
        ({"items": {"$ref": "other.json"}}, "JSON", "is not a valid JSON schema: it refers to other.json"),
        (
            {"$ref": "#/definitions/nothing"},
            "JSON",
            "is not a valid JSON schema: it refers to #/definitions/",
        ),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(
    registry_server: RegistryServer, schema: object, kind: str, expected: str
) -> None:
    """Before anything is leased."""
    registry_server.register(SUBJECT, schema, 7, kind)
    with pytest.raises(SinkRefused, match=f"schema 7 of subject {SUBJECT} {expected}"):
        read_schema(settings_of(registry_server), SUBJECT, "clean", "value")


def test_schemas_with_references_or_rules_are_refused(registry_server: RegistryServer) -> None:
    """A task could not resolve or apply them without the registry."""
    registry_server.register(SUBJECT, '"string"', 7)
    registry_server.schemas[7]["references"] = [{"name": "shop.Line", "subject": "line", "version": 1}]
    with pytest.raises(SinkRefused, match=r"takes shop\.Line from other subjects"):
        read_schema(settings_of(registry_server), SUBJECT, "clean", "value")
    registry_server.schemas[7] = {
        "schema": '"string"',
        "ruleSet": {"domainRules": [{"name": "r", "kind": "CONDITION", "mode": "WRITE", "type": "CEL"}]},
    }
    with pytest.raises(SinkRefused, match="has rules, which are not supported"):
        read_schema(settings_of(registry_server), SUBJECT, "clean", "value")


def test_a_missing_subject_or_registry_is_refused(
    registry_server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without an address; a registry that does not respond may do so later."""
    monkeypatch.setitem(_DEFAULTS, "retries.wait.ms", 1)
    with pytest.raises(
        SinkRefused, match=f"has no subject {SUBJECT}: register the schema of the value first"
    ):
        read_schema(settings_of(registry_server), SUBJECT, "clean", "value")
    with pytest.raises(SinkRefused, match="set SHAREQUEUE_REGISTRY_URL"):
        read_schema(Settings({"registry": {}}), SUBJECT, "clean", "value")
    registry_server.failures = 9
    with pytest.raises(RegistryNotAvailable, match="does not return schemas"):
        read_schema(settings_of(registry_server), SUBJECT, "clean", "value")


TEXT, INT = types.StringType(), types.IntegerType()
OF_N = types.StructType().add("n", INT)


def columns_of(**kinds: types.DataType) -> types.StructType:
    return types.StructType([types.StructField(name, kind) for name, kind in kinds.items()])


LINE = {"type": "record", "name": "Line", "fields": [field("n", "long")]}


@pytest.mark.parametrize(
    ("schema", "columns", "expected"),
    [
        (
            record(field("id", "string"), field("n", "int")),
            columns_of(id=TEXT),
            "has no column n, for which the schema",
        ),
        (record(field("id", "string")), columns_of(id=TEXT, n=INT), "the schema has no field n of the value"),
        (record(field("id", "string")), columns_of(id=INT), "id is int, and the schema has string"),
        (
            record(field("id", ["null", "string", "int"])),
            columns_of(id=types.DoubleType()),
            "id is double, and no type of the union is",
        ),
        (
            record(field("at", {"type": "long", "logicalType": "timestamp-millis"})),
            columns_of(at=types.TimestampNTZType()),
            "at is timestamp_ntz, and the schema has timestamp-millis",
        ),
        (
            record(field("at", {"type": "int", "logicalType": "date"})),
            columns_of(at=types.TimestampType()),
            "at is timestamp, and the schema has date",
        ),
        (
            record(field("l", {"type": "array", "items": LINE})),
            columns_of(l=types.ArrayType(types.StructType().add("m", INT))),
            "no field m of shop.Order.l",
        ),
        (
            record(field("first", LINE), field("last", ["null", "Line"])),
            columns_of(first=OF_N, last=TEXT),
            "last is string, and the schema has the record shop.Line",
        ),
        (
            record(field("l", {"type": "map", "values": "int"})),
            columns_of(l=INT),
            "l is int, and the schema has map",
        ),
        (
            record(field("l", {"type": "map", "values": "string"})),
            columns_of(l=types.MapType(INT, TEXT)),
            "l is map<int,string>, and the keys of a map are texts in Avro",
        ),
    ],
)
def test_rows_that_can_never_fit_an_avro_schema_are_refused(
    schema: object, columns: types.StructType, expected: str
) -> None:
    """By their types alone: no column is dropped in silence, and no time changes its meaning."""
    read = RecordSchema(SUBJECT, 7, "AVRO", json.dumps(schema))
    with pytest.raises(SinkRefused, match=f"the rows do not fit schema 7 of subject {SUBJECT}: .*{expected}"):
        refuse_unfit(read, columns, "value")


def test_rows_without_a_field_that_a_json_schema_requires_are_refused() -> None:
    """A null is one, too, but of a single row."""
    read = RecordSchema(SUBJECT, 7, "JSON", json.dumps(ORDER["definitions"]["Order"]))  # type: ignore[index]
    with pytest.raises(SinkRefused, match="the value has no column code, which the schema requires"):
        refuse_unfit(read, columns_of(id=TEXT), "value")


@pytest.mark.parametrize(
    ("kinds", "columns"),
    [
        (["long", ["null", "string"], "bytes"], columns_of(a=INT, b=TEXT, c=types.BinaryType())),
        (
            [{"type": "long", "logicalType": "timestamp-micros"}, "double", LINE],
            columns_of(a=types.TimestampType(), b=INT, c=OF_N),
        ),
        (
            [{"type": "string", "logicalType": "uuid"}, LINE, ["null", "Line"]],
            columns_of(a=TEXT, b=OF_N, c=OF_N),
        ),
    ],
)
def test_rows_whose_types_fit_are_not_refused(kinds: Sequence[object], columns: types.StructType) -> None:
    """Whole numbers fit wherever a number may be one: the value decides."""
    names: Any = zip("abc", kinds, strict=True)
    schema = record(*(field(name, kind) for name, kind in names))
    refuse_unfit(RecordSchema(SUBJECT, 7, "AVRO", json.dumps(schema)), columns, "value")
