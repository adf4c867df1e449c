"""Find the parts of an Avro schema that another schema would read as other values.

Avro's rules for two schemas ignore logical types: a decimal of scale 4 that is read with scale 2 becomes a hundred
times as large, and milliseconds that are read as microseconds become a time in January 1970.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Schema = Any
"""A schema as parsed from JSON: a name, an object, or a list for a union."""

_NAMED = ("record", "enum", "fixed")
_UNITS = ("-millis", "-micros", "-nanos")


def changed_unit(writer: Schema, reader: Schema) -> str | None:
    """Return the first part that the reader's schema reads as another value than the writer's, with both types, such
    as `amount: decimal of scale 4, and of scale 2`; None if there is none.
    """
    return next(
        _differences(writer, reader, dict(_names(writer)), dict(_names(reader)), "", frozenset()), None
    )


def _differences(
    writer: Schema,
    reader: Schema,
    written: Mapping[str, Schema],
    read: Mapping[str, Schema],
    at: str,
    inside: frozenset[tuple[int, int]],
) -> Iterator[str]:
    for one, other in _pairs(_branches(writer, written), _branches(reader, read)):
        if (id(one), id(other)) in inside:
            continue  # a type that contains itself
        deeper = inside | {(id(one), id(other))}
        units = _unit(one), _unit(other)
        if None not in units and units[0] != units[1]:
            yield f"{at or 'the value'}: {units[0]}, and {units[1]}"
        for name, before, after in _parts(one, other):
            yield from _differences(before, after, written, read, f"{at}.{name}".lstrip("."), deeper)


def _branches(schema: Schema, names: Mapping[str, Schema]) -> list[Mapping[str, Any]]:
    """Return the types that a value may have, each as an object."""
    found: list[Mapping[str, Any]] = []
    for each in schema if isinstance(schema, list) else [schema]:
        full = names.get(each, {"type": each}) if isinstance(each, str) else each
        nested = isinstance(full["type"], dict | list) and "logicalType" not in full
        found += _branches(full["type"], names) if nested else [full]
    return found


def _pairs(
    writers: list[Mapping[str, Any]], readers: list[Mapping[str, Any]]
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Yield the types that may be read as one another: of the same kind, in a union also of the same name."""
    for one in writers:
        same = [each for each in readers if each["type"] == one["type"]]
        named = [each for each in same if each.get("name") == one.get("name")]
        yield from ((one, each) for each in named or same)


def _parts(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[str, Schema, Schema]]:
    if one["type"] == "array":
        yield "element", one["items"], other["items"]
    elif one["type"] == "map":
        yield "value", one["values"], other["values"]
    elif one["type"] == "record":
        written = {each["name"]: each["type"] for each in one["fields"]}
        for field in other["fields"]:
            for name in (field["name"], *field.get("aliases", ())):
                if name in written:
                    yield field["name"], written[name], field["type"]
                    break


def _unit(schema: Mapping[str, Any]) -> str | None:
    logical = str(schema.get("logicalType", ""))
    if logical == "decimal":
        return f"decimal of scale {schema.get('scale', 0)}"
    return logical if logical.endswith(_UNITS) else None


def _names(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """Yield the named types inside a schema, by name, with and without the namespace."""
    if isinstance(schema, list):
        for each in schema:
            yield from _names(each)
    elif isinstance(schema, dict):
        if schema.get("type") in _NAMED:
            name = str(schema["name"])
            yield name, schema
            yield name.rpartition(".")[2], schema
            yield f"{schema.get('namespace', '')}.{name}".lstrip("."), schema
        for part in (schema.get("items"), schema.get("values"), schema.get("type")):
            yield from _names(part)
        for field in schema.get("fields", ()):
            yield from _names(field)
