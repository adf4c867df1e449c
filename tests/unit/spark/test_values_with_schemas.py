"""Types of columns and schemas: a value is written exactly or is a fault, and a type that never fits is refused."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_reader
from pyspark.sql import types

from sharequeue.spark.sinks.interface import SinkRefused
from sharequeue.spark.sinks.kafka.schemas import refuse_unfit
from sharequeue.spark.sinks.kafka.serializing import RecordSchema, RowSerializer

UTC = pa.timestamp("us", "UTC")
LOCAL = pa.timestamp("us")
YEAR_0 = -62_135_600_400_000_000  # 0001-01-01 00:00:00 in Zurich, an hour before Python's first year
YEAR_10000 = 253_402_318_799_999_999  # 9999-12-31 23:59:59.999999 in New York
NOON = 1_767_268_800_000_001


class Fault(str):
    """What the fault of a value says."""


def record(*fields: tuple[str, object], name: str = "R", **more: object) -> dict[str, object]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields]} | more


def logical(base: object, annotation: str, **more: object) -> dict[str, object]:
    return {"type": base, "logicalType": annotation} | more


def decimal(precision: int, scale: int, size: int | None = None) -> dict[str, object]:
    more = {"precision": precision, "scale": scale}
    if size is None:
        return logical("bytes", "decimal", **more)
    return logical("fixed", "decimal", name=f"D{precision}_{scale}", size=size, **more)


def serialized(kind: str, schema: object, column: pa.Array) -> list[tuple[bytes | None, str | None]]:
    read = RecordSchema("s", 7, kind, json.dumps(schema))
    [made] = RowSerializer("t", {"made": ("value", read)})([pa.RecordBatch.from_arrays([column], ["made"])])
    return [(each["data"], each["fault"]) for each in made["made"].to_pylist()]


def plain(schema: Any) -> Any:
    """Return a schema without its logical types, so that what was written is read as it is."""
    if isinstance(schema, list):
        return [plain(each) for each in schema]
    if isinstance(schema, dict):
        return {name: plain(each) for name, each in schema.items() if name != "logicalType"}
    return schema


def outcomes(schema: Any, values: pa.Array) -> list[Any]:
    """Return, for each value of a column `v` of a record, what was written, or its fault."""
    whole = record(("v", schema))
    found: list[Any] = []
    for data, fault in serialized("AVRO", whole, pa.StructArray.from_arrays([values], ["v"])):
        assert (data is None) == (fault is not None)
        if data is None:
            found.append(Fault(fault))
        else:
            left = io.BytesIO(data[5:])
            read: Any = schemaless_reader(left, parse_schema(plain(whole)), None, return_record_name=True)
            found.append(read["v"])
            assert not left.read()
    return found


A = record(("x", "int"), name="A")
B = record(("x", "int"), ("y", "long"), name="B")
XY = pa.struct([("x", pa.int32()), ("y", pa.int64())])
DECIMALS = [decimal(4, 1), decimal(6, 3, size=4)]
TIMES = [logical("int", "date"), logical("long", "timestamp-micros")]


@pytest.mark.parametrize(
    ("schema", "values", "expected"),
    [
        # Times: also those that Python does not have.
        (logical("long", "timestamp-millis"), pa.array([YEAR_0, YEAR_10000, NOON], UTC), "millis"),
        (logical("long", "local-timestamp-millis"), pa.array([YEAR_0, YEAR_10000, NOON], LOCAL), "millis"),
        (logical("long", "timestamp-micros"), pa.array([YEAR_0, YEAR_10000, NOON], UTC), "micros"),
        (logical("long", "local-timestamp-micros"), pa.array([YEAR_0, YEAR_10000, NOON], LOCAL), "micros"),
        (logical("long", "timestamp-millis"), pa.array([-1, 1, -1001], UTC), "millis"),
        (["long", "null", "string"], pa.array([5, None, -6]), [5, None, -6]),
        (["null", logical("long", "timestamp-millis")], pa.array([YEAR_0, NOON], UTC), "millis"),
        (logical("int", "date"), pa.array([-800_000, 0, 5_000_000], pa.date32()), [-800_000, 0, 5_000_000]),
        (TIMES, pa.array([NOON], UTC), [NOON]),
        (TIMES, pa.array([20_000], pa.date32()), [20_000]),
        (TIMES, pa.array([2**40]), [2**40]),
        (
            logical("int", "time-millis"),
            pa.array([0, 86_399_999, 86_400_000]),
            [0, 86_399_999, Fault("time-m")],
        ),
        (
            logical("long", "time-micros"),
            pa.array([86_399_999_999, -1]),
            [86_399_999_999, Fault("time-micros")],
        ),
        # Whole numbers.
        ("int", pa.array([2**31 - 1, 2**31, -(2**31)]), [2**31 - 1, Fault("<2147483648>"), -(2**31)]),
        ("long", pa.array([2**63 - 1, -(2**63)]), [2**63 - 1, -(2**63)]),
        (["int", "string", "long"], pa.array([1, 2**40]), [1, 2**40]),
        (["float", "long"], pa.array([2**53 + 1]), [2**53 + 1]),
        (logical("int", "nonsense"), pa.array([1]), [1]),
        (logical("long", "timestamp-micros"), pa.array([1]), [1]),
        # Numbers.
        ("float", pa.array([0.5, 0.1, 1e300]), [0.5, 0.10000000149011612, Fault("<1e+300>: expected float")]),
        ("float", pa.array([1e-300, 0.0, float("inf")]), [Fault("<1e-300>"), 0.0, float("inf")]),
        ("float", pa.array([2**24, 2**24 + 1]), [2.0**24, Fault("<16777217>: expected float")]),
        ("double", pa.array([2**53, 2**53 + 1]), [2.0**53, Fault("<9007199254740993>: expected double")]),
        (["float", "double"], pa.array([1e300, 0.1]), [1e300, 0.1]),
        (["double", "float"], pa.array([0.5], pa.float32()), [0.5]),
        # Decimals: the value decides, whatever the scale of its column.
        (decimal(4, 3, size=2), pa.array([Decimal(1), Decimal(-1234)]), [b"\x03\xe8", Fault("decimal(4,3)")]),
        (decimal(4, 3), pa.array([Decimal("9.999"), Decimal(-1234)]), [b"\x27\x0f", Fault("decimal(4,3)")]),
        (decimal(9, 2), pa.array([Decimal("1.500"), Decimal("1.505")]), [b"\x00\x96", Fault("<1.505>")]),
        (decimal(4, 1, size=4), pa.array([Decimal("-0.1")]), [b"\xff\xff\xff\xff"]),
        (decimal(4, 0), pa.array(map(Decimal, (-128, 128, 0))), [b"\x80", b"\x00\x80", b"\x00"]),
        (decimal(38, 0), pa.array([Decimal(10**38 - 1)]), [(10**38 - 1).to_bytes(16, "big")]),
        (DECIMALS, pa.array([Decimal("1.5"), Decimal("1.125")]), [b"\x0f", b"\x00\x00\x04\x65"]),
        (logical("bytes", "decimal"), pa.array([b"ab"]), [b"ab"]),
        # Texts and bytes.
        (
            {"type": "enum", "name": "E", "symbols": ["a", "b"]},
            pa.array(["a", "c"]),
            ["a", Fault("one of a, b")],
        ),
        ([{"type": "enum", "name": "E", "symbols": ["a"]}, "string"], pa.array(["a", "c"]), ["a", "c"]),
        ([logical("int", "date"), "string"], pa.array(["2026-01-01", "x"]), ["2026-01-01", "x"]),
        (logical("string", "timestamp-millis"), pa.array(["x"], pa.large_string()), ["x"]),
        (
            logical("string", "uuid"),
            pa.array([f"{7:032x}", "0" * 8 + "-0000" * 3 + "-" + "a" * 12]),
            "a UUID",
        ),
        (
            logical("fixed", "uuid", name="U", size=16),
            pa.array([b"u" * 16, b"u"]),
            [b"u" * 16, Fault("16 bytes")],
        ),
        (logical("fixed", "duration", name="P", size=12), pa.array([b"d" * 12]), [b"d" * 12]),
        ([{"type": "fixed", "name": "F", "size": 1}, "bytes"], pa.array([b"a", b"ab"]), [b"a", b"ab"]),
        # Parts, and unions in them.
        ([A, B], pa.array([{"x": 1, "y": 2**40}], XY), [("B", {"x": 1, "y": 2**40})]),
        ([A, B], pa.array([{"x": 1}]), [("A", {"x": 1})]),
        (
            {"type": "map", "values": ["null", A, B]},
            pa.array([[("k", {"x": 1, "y": 2}), ("n", None)]], pa.map_(pa.string(), XY)),
            [{"k": ("B", {"x": 1, "y": 2}), "n": None}],
        ),
        (
            {"type": "array", "items": ["null", {"type": "array", "items": ["string", "long"]}]},
            pa.array([[[1, 2], None]]),
            [[[1, 2], None]],
        ),
        (
            {"type": "array", "items": "int"},
            pa.array([[1, None], []]),
            [Fault("R.v is null: expected int"), []],
        ),
        ({"type": "array", "items": "int"}, pa.array([[]], pa.list_(pa.null())), [[]]),
        (
            {"type": "map", "values": logical("long", "timestamp-millis")},
            pa.array([[("k", YEAR_0)]], pa.map_(pa.string(), UTC)),
            [{"k": YEAR_0 // 1000}],
        ),
        ("string", pa.array(["a", None]), ["a", Fault("R.v is null: expected string")]),
        (["string", "long"], pa.array(["a", None]), ["a", Fault("R.v is null: expected string")]),
        ("null", pa.array([None], pa.null()), [None]),
    ],
)
def test_a_value_is_written_exactly_or_is_a_fault(schema: Any, values: pa.Array, expected: Any) -> None:
    """By Avro, as its bytes say; a `float` rounds, and milliseconds cut off microseconds towards the past."""
    counts = values.view(pa.int64()).to_pylist() if expected in ("millis", "micros") else []
    if expected in ("millis", "micros"):
        expected = [each // 1000 if expected == "millis" else each for each in counts]
    if expected == "a UUID":
        expected = [Fault("expected a UUID"), values[1].as_py()]
    for found, wanted in zip(outcomes(schema, values), expected, strict=True):
        assert isinstance(found, Fault) == isinstance(wanted, Fault), found
        assert wanted in found if isinstance(wanted, Fault) else found == wanted


def refused(kind: str, schema: object, columns: types.DataType) -> str | None:
    """Return why rows of these types are refused before anything is leased."""
    try:
        refuse_unfit(RecordSchema("s", 7, kind, json.dumps(schema)), columns, "value")
    except SinkRefused as error:
        return str(error)
    return None


KINDS: dict[str, types.DataType] = {
    "string": types.StringType(),
    "binary": types.BinaryType(),
    "boolean": types.BooleanType(),
    "int": types.IntegerType(),
    "bigint": types.LongType(),
    "double": types.DoubleType(),
    "decimal": types.DecimalType(4, 0),
    "date": types.DateType(),
    "timestamp": types.TimestampType(),
    "timestamp_ntz": types.TimestampNTZType(),
    "interval": types.DayTimeIntervalType(),
    "void": types.NullType(),
    "strings": types.ArrayType(types.StringType()),
    "map": types.MapType(types.StringType(), types.IntegerType()),
    "map-by-int": types.MapType(types.IntegerType(), types.StringType()),
    "x": types.StructType().add("x", types.IntegerType()),
    "xy": types.StructType().add("x", types.IntegerType()).add("y", types.IntegerType()),
}


def rows_of(columns: str) -> types.StructType:
    """Return the type of rows with these columns, each `name kind`."""
    given = (each.split() for each in columns.split(", "))
    return types.StructType([types.StructField(name, KINDS[kind]) for name, kind in given])


FITTING: Sequence[tuple[object, str]] = [
    ("string", "string"),
    (logical("string", "uuid"), "string"),
    ({"type": "enum", "name": "E", "symbols": ["a"]}, "string"),
    ("bytes", "binary"),
    (logical("fixed", "duration", name="P", size=12), "binary"),
    (logical("fixed", "uuid", name="U", size=16), "binary"),
    ("boolean", "boolean"),
    ("int", "int bigint"),
    ("long", "int bigint"),
    ("float", "int bigint double"),
    ("double", "int bigint double"),
    (decimal(4, 3), "decimal"),
    (decimal(4, 3, size=2), "decimal"),
    (logical("int", "date"), "date int bigint"),
    (logical("int", "time-millis"), "int bigint"),
    (logical("long", "time-micros"), "int bigint"),
    (logical("long", "timestamp-millis"), "timestamp int bigint"),
    (logical("long", "timestamp-micros"), "timestamp int bigint"),
    (logical("long", "timestamp-nanos"), "int bigint"),
    (logical("long", "local-timestamp-millis"), "timestamp_ntz int bigint"),
    (logical("long", "local-timestamp-micros"), "timestamp_ntz int bigint"),
    (logical("int", "timestamp-micros"), "int bigint"),
    ({"type": "array", "items": "string"}, "strings"),
    ({"type": "array", "items": "int"}, ""),
    ({"type": "map", "values": "int"}, "map"),
    ({"type": "map", "values": "string"}, ""),
    (A, "x"),
    (B, "xy"),
    ([A, B], "x xy"),
    (["null", "string", "double"], "string int bigint double void"),
    ("null", "void"),
]


@pytest.mark.parametrize(("schema", "fitting"), FITTING)
def test_a_type_of_which_no_value_fits_is_refused_before_anything_is_leased(
    schema: object, fitting: str
) -> None:
    """By Avro, for each type of a column; the rest is left to the value."""
    whole = record(("v", schema))
    accepted = {each for each in KINDS if refused("AVRO", whole, rows_of(f"v {each}")) is None}
    assert accepted == set(fitting.split())


@pytest.mark.parametrize(
    ("schema", "default", "expected"),
    [
        ("bytes", "", b""),
        ("bytes", "\u00ff", b"\xff"),
        (decimal(4, 2), "\u0096", b"\x96"),
        ({"type": "fixed", "name": "F", "size": 2}, "ab", b"ab"),
        ({"type": "enum", "name": "E", "symbols": ["a", "b"]}, "b", "b"),
        (["null", "bytes"], None, None),
        (["bytes", "null"], "a", b"a"),
        (["null", "bytes"], "a", b"a"),
        ("double", "NaN", None),
        ("float", 1, 1.0),
        (logical("long", "timestamp-millis"), 0, 0),
        ({"type": "array", "items": "bytes"}, ["a"], [b"a"]),
        ({"type": "map", "values": ["null", "bytes"]}, {"k": None}, {"k": None}),
        (record(("b", "bytes"), name="N"), {"b": "a"}, {"b": b"a"}),
        (
            {"type": "record", "name": "N", "fields": [{"name": "b", "type": "bytes", "default": "a"}]},
            {},
            {"b": b"a"},
        ),
    ],
)
def test_a_field_without_a_column_gets_its_default(schema: object, default: object, expected: object) -> None:
    """A default is JSON: bytes are a text in it."""
    whole: Any = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "string"}]}
    whole["fields"].append({"name": "v", "type": schema, "default": default})
    assert refused("AVRO", whole, rows_of("id string")) is None
    [(data, fault)] = serialized("AVRO", whole, pa.array([{"id": "a"}]))
    assert fault is None
    assert data is not None
    found: Any = schemaless_reader(io.BytesIO(data[5:]), parse_schema(plain(whole)), None)
    assert found["v"] == expected or (default == "NaN" and found["v"] != found["v"])


def test_a_field_of_a_part_without_a_column_gets_its_default() -> None:
    """In each struct of an array in a map."""
    part: Any = record(("x", "int"), name="N")
    part["fields"].append({"name": "b", "type": ["null", "bytes"], "default": None})
    part["fields"].append({"name": "c", "type": "bytes", "default": "c"})
    schema = {"type": "map", "values": {"type": "array", "items": part}}
    values = pa.array(
        [[("k", [{"x": 1}, {"x": 2}])]], pa.map_(pa.string(), pa.list_(pa.struct([("x", pa.int32())])))
    )
    assert outcomes(schema, values) == [{"k": [{"x": x, "b": None, "c": b"c"} for x in (1, 2)]}]


@pytest.mark.parametrize(
    ("schema", "default"),
    [
        ("bytes", "\u20ac"),
        ({"type": "fixed", "name": "F", "size": 2}, "a"),
        ({"type": "enum", "name": "E", "symbols": ["a"]}, "b"),
        ("int", 2**31),
        ({"type": "array", "items": "int"}, ["a"]),
        (record(("b", "bytes"), name="N"), {}),
    ],
)
def test_a_default_that_cannot_be_written_is_refused_before_anything_is_leased(
    schema: object, default: object
) -> None:
    """Not for each record."""
    whole: Any = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "string"}]}
    whole["fields"].append({"name": "v", "type": schema, "default": default})
    assert "the default of R.v is " in str(refused("AVRO", whole, rows_of("id string")))


def test_types_of_one_name_in_two_namespaces_are_not_mixed_up() -> None:
    """A short name is of the namespace that it is in."""
    of_a = record(("x", "int"), name="Line", namespace="a")
    of_b = record(("y", "int"), name="Line", namespace="b")
    whole = record(("p", of_a), ("q", of_b), ("v", "Line"), namespace="a")
    columns = types.StructType().add("p", rows_of("x int")).add("q", rows_of("y int"))
    assert refused("AVRO", whole, columns.add("v", rows_of("x int"))) is None
    of_union = record(("p", of_a), ("q", of_b), ("v", ["Line", "b.Line"]), namespace="a")
    row = {"p": {"x": 1}, "q": {"y": 2}, "v": {"y": 3}}
    assert serialized("AVRO", of_union, pa.array([row])) == [(b"\0\0\0\0\x07\x02\x04\x02\x06", None)]


def test_a_union_with_two_types_of_one_name_is_refused() -> None:
    """fastavro takes such a schema, and would write the first one."""
    whole = record(("v", ["int", logical("int", "date")]))
    assert "has two types of one name" in str(refused("AVRO", whole, rows_of("v date")))


def test_a_decimal_of_bytes_alone_is_refused() -> None:
    """Its bytes would have no length, and readers take them for bytes; a `fixed` has its length in the schema."""
    assert "a decimal of bytes alone" in str(refused("AVRO", decimal(4, 0), types.DecimalType(4, 0)))
    assert refused("AVRO", decimal(4, 0, size=2), types.DecimalType(4, 0)) is None


def in_json(value: str) -> pa.Array:
    return pa.array([f'{{"value": {value}}}'])


@pytest.mark.parametrize(
    ("schema", "value", "fault"),
    [
        ({"type": "number", "multipleOf": 0.01}, "19.99", None),
        ({"type": "number", "multipleOf": 0.01}, "4.02", None),
        ({"type": "number", "multipleOf": 0.01}, "99999999999999999999999999999999999.99", None),
        ({"type": "number", "multipleOf": 0.01}, "19.995", "$: 19.995 is not a multiple of 0.01"),
        ({"type": "number", "multipleOf": 1e-300}, "1E-300", None),
        ({"type": "number", "multipleOf": 3}, "9.0", None),
        ({"type": "number", "minimum": 0.1}, "0.1", None),
        ({"type": "number", "maximum": 0.1}, "0.10000000000000000001", "greater than the maximum of 0.1"),
        ({"enum": [0.1, 1]}, "0.10", None),
        ({"const": 1.5}, "1.50000000000000000001", "1.5 was expected"),
        ({"type": "integer"}, "5.00", None),
        ({"type": "integer"}, "12345678901234567.50", "12345678901234567.50 is not of type 'integer'"),
        ({"type": "integer"}, "9007199254740993", None),
        ({"type": "integer", "maximum": 2**53}, "9007199254740993", "greater than the maximum"),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer"}, "5.0", "'integer'"),
        ({"uniqueItems": True}, "[0.12345678901234567890, 0.12345678901234567891]", None),
        ({"uniqueItems": True}, "[1, 1.0]", "non-unique"),
        ({"type": "number"}, '"NaN"', "'NaN' is not of type 'number'"),
        ({"format": "date-time"}, '"yesterday"', None),
        ({"type": "array", "items": [{"type": "string"}, {"type": "integer"}]}, '["a", 1]', None),
        ({"type": "array", "items": [{"type": "string"}]}, "[1]", "$[0]: 1 is not of type 'string'"),
        ({"$ref": "http://json-schema.org/draft-07/schema#"}, '{"type": 1}', "$.type: 1 is not valid"),
        ({"$ref": "https://json-schema.org/draft/2020-12/schema"}, '{"type": 1}', "$.type: 1 is not valid"),
    ],
)
def test_a_json_schema_checks_exact_numbers(schema: object, value: str, fault: str | None) -> None:
    """With the digits of the value and of the schema; without `$schema`, by the rules of draft 7."""
    [(data, found)] = serialized("JSON", schema, in_json(value))
    if fault is None:
        assert (data, found) == (b"\0\0\0\0\x07" + value.replace(", ", ",").encode(), None)
    else:
        assert fault in str(found)


ITEM = {
    "type": "object",
    "properties": {"n": {"type": "integer", "multipleOf": 1}},
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ({"type": "array", "items": [ITEM, ITEM]}, '[{"n":null}]', "[{}]"),
        ({"type": "object", "additionalProperties": ITEM}, '{"k":{"n":null}}', '{"k":{}}'),
        ({"anyOf": [{"type": "null"}, ITEM]}, '{"n":null}', "{}"),
        ({"allOf": [{"$ref": "#/definitions/a~1b"}], "definitions": {"a/b": ITEM}}, '{"n":null}', "{}"),
        ({"$ref": "#item", "definitions": {"i": {"$id": "#item"} | ITEM}}, '{"n":null}', "{}"),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#"}
            | {"properties": {"of": {"$ref": "#"}, "n": {"type": "integer", "multipleOf": 0.1}}},
            '{"of":{"of":null,"n":1.0}}',
            '{"of":{"n":1.0}}',
        ),
        (
            {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "prefixItems": [ITEM],
                "items": False,
            },
            '[{"n":null}]',
            "[{}]",
        ),
    ],
)
def test_an_optional_null_is_left_out_at_any_depth(schema: object, value: str, expected: str) -> None:
    """In arrays, in maps of records, and where another part of the schema names the field."""
    assert serialized("JSON", schema, in_json(value)) == [(b"\0\0\0\0\x07" + expected.encode(), None)]


@pytest.mark.parametrize(
    ("schema", "fitting"),
    [
        ({"type": "string"}, "string binary date timestamp timestamp_ntz"),
        ({"type": ["boolean", "null"]}, "boolean"),
        ({"type": "integer"}, "int bigint double decimal"),
        ({"type": "number"}, "int bigint double decimal"),
        ({"type": "array"}, "strings"),
        ({"type": "array", "items": {"type": "integer"}}, ""),
        ({"type": "object"}, "map map-by-int x xy"),
        ({"type": "object", "additionalProperties": {"type": "string"}}, "map-by-int"),
        (
            {"type": "object", "properties": {"x": {"type": "integer"}}, "additionalProperties": False},
            "map map-by-int x",
        ),
        (
            {"$ref": "#/definitions/y", "definitions": {"y": {"required": ["y"], "type": "object"}}},
            "map map-by-int xy",
        ),
        ({"allOf": [{"type": "number"}, {"type": "integer"}]}, "int bigint double decimal"),
        ({"anyOf": [{"type": "string"}, {"required": ["y"]}]}, " ".join(KINDS)),
        (True, " ".join(KINDS)),
        (False, ""),
    ],
)
def test_a_type_of_which_no_value_fits_a_json_schema_is_refused(schema: object, fitting: str) -> None:
    """As far as types decide; an interval and `void` are left to the value."""
    whole = {"type": "object", "properties": {"v": schema}}
    if isinstance(schema, dict):
        whole |= {"definitions": schema.get("definitions", {})}
    accepted = {each for each in KINDS if refused("JSON", whole, rows_of(f"v {each}")) is None}
    undecided = {"interval", "void"} if schema is not False else set()
    assert accepted == set(fitting.split()) | undecided
