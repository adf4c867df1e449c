"""Convert values of columns to values that fastavro writes with a schema: exactly, or not at all.

fastavro takes what Python has, and changes some values without an error: a number that is too large for a `float`, a
decimal of another scale in a `fixed`, a time that it does not know as one, a struct in a union with a smaller record.
So a schema is compared with the type of a column once. It gives the function that converts a value or raises, with
the branch of each union. The driver compares, too, and refuses types of which no value fits (`schemas.py`).
"""

from __future__ import annotations

import json
import re
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
from pyspark.cloudpickle import register_pickle_by_value

__all__ = ["AvroValues", "Convert", "UnfitType"]

Convert = Callable[[Any], Any]
"""A function that returns what fastavro writes for a value. Raises ValueError if the value does not fit."""

_NAMED = ("record", "error", "enum", "fixed")
_BITS = {"int": 32, "long": 64}
_FLOAT_BITS = {"float": 24, "double": 53}
"""The bits of the whole numbers that a type of Avro has exactly."""
_MICROSECONDS = {"millis": 1000, "micros": 1}
_DAY_END: Mapping[tuple[str, str | None], int] = {
    ("int", "time-millis"): 86_400_000,
    ("long", "time-micros"): 86_400_000_000,
}
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_OF_DEFAULT: Mapping[str, Any] = {
    "null": type(None),
    "boolean": bool,
    "int": int,
    "long": int,
    "float": (int, float, str),
    "double": (int, float, str),
    "array": list,
    "map": dict,
    "record": dict,
    "error": dict,
}
"""The types of Python of a default in JSON. Of all other types of Avro, it is a text."""
_NOT_NUMBERS = ("NaN", "Infinity", "-Infinity")


class UnfitType(Exception):
    """No value of the column's type fits the schema, or a default of the schema cannot be written."""


class AvroValues:
    """The conversions to the values of a schema."""

    def __init__(self, text: str) -> None:
        """Read the text of a schema. Raises an error of fastavro if it is invalid."""
        from fastavro import parse_schema

        self._named: dict[str, Any] = {}
        # Afterwards all names are full ones, so types of one name in two namespaces are not mixed up.
        self._schema = parse_schema(json.loads(text), self._named)

    def conversion(self, kind: pa.DataType, at: str) -> Convert:
        """Return the function for values of a type that are not null. Raises UnfitType. `at` names the value."""
        schema = self._whole(self._schema)
        if not isinstance(schema, list) and schema["type"] == "bytes" and _is_decimal(schema):
            raise UnfitType(
                f"{at} is a decimal of bytes alone, which readers take for bytes: put it into a record"
            )
        return self._conversion(schema, kind, at)

    def _whole(self, schema: Any) -> Any:
        """Return a union as a list, and every other schema as a dict."""
        return schema if isinstance(schema, dict | list) else self._named.get(schema, {"type": schema})

    def _conversion(self, schema: Any, kind: pa.DataType, at: str) -> Convert:
        schema = self._whole(schema)
        if isinstance(schema, list):
            return self._of_union(schema, kind, at)
        name = schema["type"]
        convert: Convert | None
        if name == "null" and pa.types.is_null(kind):
            return lambda value: value
        if pa.types.is_null(kind):
            # There is no value, as in an empty array; `_of_column` refuses a null that is not allowed.
            convert = None
        elif name in ("record", "error"):
            convert = self._of_record(schema, kind, at)
        elif name == "array" and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
            convert = _each(self._conversion(schema["items"], kind.value_type, at))
        elif name == "map" and pa.types.is_map(kind):
            convert = self._of_map(schema, kind, at)
        else:
            convert = _of_value(schema, kind, at)
        return _given(convert, at, schema.get("name", name))

    def _of_record(self, schema: Mapping[str, Any], kind: pa.DataType, at: str) -> Convert:
        if not pa.types.is_struct(kind):
            raise UnfitType(f"{at} is {_shown(kind)}, and the schema has the record {schema['name']}")
        columns = {kind.field(each).name: kind.field(each).type for each in range(kind.num_fields)}
        fields = {each["name"]: each for each in schema["fields"]}
        if strange := [name for name in columns if name not in fields]:
            raise UnfitType(f"the schema has no field {', '.join(strange)} of {at}")
        left_out = [name for name in fields if name not in columns]
        if missing := [name for name in left_out if "default" not in fields[name]]:
            raise UnfitType(f"{at} has no column {', '.join(missing)}, for which the schema has no default")
        paths = {name: f"{schema['name']}.{name}" for name in fields}
        converts = {n: self._of_column(fields[n]["type"], column, paths[n]) for n, column in columns.items()}
        written = {n: self._default(fields[n]["type"], fields[n]["default"], paths[n]) for n in left_out}
        return lambda value: written | {name: convert(value[name]) for name, convert in converts.items()}

    def _of_column(self, schema: Any, kind: pa.DataType, at: str) -> Convert:
        convert = self._conversion(schema, kind, at)
        if pa.types.is_null(kind):
            try:
                convert(None)
            except ValueError as error:
                raise UnfitType(str(error)) from error
        return convert

    def _of_map(self, schema: Mapping[str, Any], kind: pa.DataType, at: str) -> Convert:
        if not _is_text(kind.key_type):
            raise UnfitType(f"{at} is {_shown(kind)}, and the keys of a map are texts in Avro")
        convert = self._conversion(schema["values"], kind.item_type, at)
        return lambda value: {key: convert(each) for key, each in value.items()}

    def _of_union(self, branches: Sequence[Any], kind: pa.DataType, at: str) -> Convert:
        """Return the conversion to the first branch that takes a value: one of the column's own type, if there is.
        fastavro gets the branch by its name; of itself, it would take a smaller record, or cut off a time.
        """
        names = [_branch(each) for each in map(self._whole, branches)]
        if len(set(names)) < len(names):
            raise UnfitType(f"the union of {at} has two types of one name, which Avro does not allow")
        fitting: list[tuple[bool, str, Convert]] = []
        problems: list[UnfitType] = []
        given = [each for each in map(self._whole, branches) if each["type"] != "null"]
        for branch in given:
            try:
                convert = self._conversion(branch, kind, at)
            except UnfitType as problem:
                problems.append(problem)
            else:
                fitting.append((_widens(branch, kind), _branch(branch), convert))
        if not fitting and not pa.types.is_null(kind):
            no_type = UnfitType(f"{at} is {_shown(kind)}, and no type of the union is")
            raise problems[0] if len(given) == 1 else no_type
        in_order = [(name, convert) for _, name, convert in sorted(fitting, key=lambda each: each[0])]
        null = ("null", None) if len(given) < len(branches) else None
        return _first(in_order, null, at)

    def _default(self, schema: Any, default: Any, at: str) -> Any:
        """Return a default of a schema, which is JSON, as fastavro writes it."""
        schema = self._whole(schema)
        if isinstance(schema, list):
            return self._default_of_union(schema, default, at)
        name = schema["type"]
        try:
            if not isinstance(default, _OF_DEFAULT.get(name, str)):
                raise ValueError(default)
            if name == "array":
                return [self._default(schema["items"], each, at) for each in default]
            if name == "map":
                return {key: self._default(schema["values"], each, at) for key, each in default.items()}
            if name in ("record", "error"):
                fields = {each["name"]: {"default": None} | each for each in schema["fields"]}
                return {
                    n: self._default(each["type"], default.get(n, each["default"]), at)
                    for n, each in fields.items()
                }
            return _of_json(schema, default, at)
        except ValueError as error:
            raise UnfitType(f"the default of {at} is {json.dumps(default)}: expected {name}") from error

    def _default_of_union(self, branches: Sequence[Any], default: Any, at: str) -> tuple[str, Any]:
        # Of the first branch, and since Avro 1.12 of any.
        for branch in map(self._whole, branches):
            try:
                return _branch(branch), self._default(branch, default, at)
            except UnfitType:
                continue
        raise UnfitType(f"the default of {at} is {json.dumps(default)}: expected a type of the union")


def _branch(schema: Mapping[str, Any]) -> str:
    """Return the name by which fastavro finds a branch of a union."""
    return str(schema["name"] if schema["type"] in _NAMED else schema["type"])


def _widens(schema: Mapping[str, Any], kind: pa.DataType) -> bool:
    """Return whether a value becomes one of another kind in this branch, though a fitting one."""
    if pa.types.is_integer(kind):
        return schema["type"] not in _BITS or "logicalType" in schema
    return bool(pa.types.is_float64(kind)) and schema["type"] == "float"


def _first(in_order: Sequence[tuple[str, Convert]], null: Any, at: str) -> Convert:
    def convert(value: Any) -> Any:
        if value is None:
            if null is None:
                raise ValueError(f"{at} is null: expected {' or '.join(name for name, _ in in_order)}")
            return null
        problems = []
        for name, to_branch in in_order:
            try:
                return name, to_branch(value)
            except ValueError as problem:
                problems.append(problem)
        raise problems[0]

    return convert


def _given(convert: Convert | None, at: str, expected: str) -> Convert:
    """Return a conversion that refuses null. None is one that changes nothing."""

    def checked(value: Any) -> Any:
        if value is None:
            raise ValueError(f"{at} is null: expected {expected}")
        return value if convert is None else convert(value)

    return checked


def _each(convert: Convert) -> Convert:
    return lambda values: [convert(value) for value in values]


def _of_value(schema: Mapping[str, Any], kind: pa.DataType, at: str) -> Convert | None:
    """Return the conversion to a type without parts; None if all values of the column fit as they are."""
    name, logical = schema["type"], schema.get("logicalType")
    if name == "boolean" and pa.types.is_boolean(kind):
        return None
    if name == "string" and _is_text(kind):
        return _only(_UUID.fullmatch, at, "a UUID") if logical == "uuid" else None
    if name == "enum" and _is_text(kind):
        return _of_enum(schema, at)
    if name in ("bytes", "fixed") and _is_decimal(schema):
        if pa.types.is_decimal(kind):
            return _of_decimal(schema, at)
    elif name in ("bytes", "fixed") and (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        return _of_fixed(schema, at) if name == "fixed" else None
    if name in _BITS:
        if pa.types.is_integer(kind):
            fits = kind.bit_width <= _BITS[name] and (name, logical) not in _DAY_END
            return None if fits else _of_integer(schema, at)
        if (name, logical) == ("int", "date") and pa.types.is_date(kind):
            return None
        if name == "long" and pa.types.is_timestamp(kind) and (unit := _unit(logical, kind)):
            return _in_units(unit)
    if name in _FLOAT_BITS and pa.types.is_integer(kind):
        return None if kind.bit_width <= _FLOAT_BITS[name] else _of_number(name, at)
    if name in _FLOAT_BITS and pa.types.is_floating(kind):
        return None if name == "double" or pa.types.is_float32(kind) else _of_number(name, at)
    expected = logical if (name, logical) in _LOGICAL else name
    raise UnfitType(f"{at} is {_shown(kind)}, and the schema has {expected}")


_LOGICAL = {
    ("bytes", "decimal"),
    ("fixed", "decimal"),
    ("int", "date"),
    *_DAY_END,
    *(
        ("long", f"{zone}timestamp-{unit}")
        for zone in ("", "local-")
        for unit in ("millis", "micros", "nanos")
    ),
}
"""The logical types that name what a column must be, with the types that they may annotate."""


def _unit(logical: Any, kind: pa.DataType) -> int | None:
    """Return how many microseconds the unit of a logical type has; None if it is not for timestamps of this kind."""
    zone, _, unit = str(logical).rpartition("timestamp-")
    return _MICROSECONDS.get(unit) if zone == ("local-" if kind.tz is None else "") else None


def _in_units(unit: int) -> Convert:
    # Towards the past, as Spark and Java do.
    return lambda microseconds: microseconds // unit


def _of_enum(schema: Mapping[str, Any], at: str) -> Convert:
    symbols = frozenset(schema["symbols"])
    return _only(symbols.__contains__, at, f"one of {', '.join(schema['symbols'])}")


def _of_fixed(schema: Mapping[str, Any], at: str) -> Convert:
    size = schema["size"]
    return _only(lambda value: len(value) == size, at, f"{size} bytes")


def _of_integer(schema: Mapping[str, Any], at: str) -> Convert:
    name, logical = schema["type"], schema.get("logicalType")
    if end := _DAY_END.get((name, logical)):
        return _only(lambda value: 0 <= value < end, at, f"{logical}, from 0 to {end - 1}")
    end = 2 ** (_BITS[name] - 1)
    return _only(lambda value: -end <= value < end, at, name)


def _of_number(name: str, at: str) -> Convert:
    """Return the conversion to the nearest number. A whole number must be exact, as in a handler's `float` column,
    and no number becomes 0 or infinite.
    """
    form = "<f" if name == "float" else "<d"

    def fits(value: float) -> bool:
        try:
            (held,) = struct.unpack(form, struct.pack(form, value))
        except OverflowError:
            return False
        return bool(held == value if isinstance(value, int) else (held == 0) == (value == 0))

    return _only(fits, at, name)


def _of_decimal(schema: Mapping[str, Any], at: str) -> Convert:
    """Return the conversion to the bytes of a decimal. Not by fastavro, which checks the digits before it adds those
    of the scale, and then keeps the last bytes of a negative number.
    """
    precision, scale = schema["precision"], schema.get("scale", 0)
    enough = Context(prec=1000)
    expected = f"a decimal({precision},{scale}), by its precision and scale"

    def convert(value: Decimal) -> bytes:
        shifted = value.scaleb(scale, enough)
        unscaled = int(shifted)
        if unscaled != shifted or abs(unscaled) >= 10**precision:
            raise ValueError(f"{at} is {_value(value)}: expected {expected}")
        # Java's shortest form: -128 is one byte.
        size = schema.get("size") or (unscaled + (unscaled < 0)).bit_length() // 8 + 1
        return unscaled.to_bytes(size, "big", signed=True)

    return convert


def _is_decimal(schema: Mapping[str, Any]) -> bool:
    """Return whether a schema is of decimals. Avro ignores a logical type that is not complete."""
    return schema.get("logicalType") == "decimal" and (schema.get("precision") or 0) > 0


def _only(fits: Callable[[Any], object], at: str, expected: str) -> Convert:
    def convert(value: Any) -> Any:
        if fits(value):
            return value
        raise ValueError(f"{at} is {_value(value)}: expected {expected}")

    return convert


def _of_json(schema: Mapping[str, Any], default: Any, at: str) -> Any:
    """Return the default of a type without parts. Raises ValueError if it does not fit."""
    name = schema["type"]
    if name in ("bytes", "fixed"):
        found = default.encode("latin-1")
        return found if name == "bytes" else _of_fixed(schema, at)(found)
    if name == "enum":
        return _of_enum(schema, at)(default)
    if name not in _BITS and name not in _FLOAT_BITS:
        return default
    if isinstance(default, bool) or (isinstance(default, str) and default not in _NOT_NUMBERS):
        raise ValueError(default)
    if name in _BITS:
        return _of_integer(schema, at)(default)
    return _of_number(name, at)(float(default) if isinstance(default, str) else default)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _shown(kind: pa.DataType) -> str:
    """Return the name that Spark has for a type."""
    from pyspark.sql.pandas.types import from_arrow_type

    try:
        return str(from_arrow_type(kind, prefer_timestamp_ntz=True).simpleString())
    except Exception:  # a type that only newer versions of Spark have
        return str(kind)


def _value(value: Any) -> str:
    return f"<{value}>" if not isinstance(value, bytes) else f"<{value!r}>"


# The module is sent to the executors by value: they do not need this package.
register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
