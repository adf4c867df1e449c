"""Read the schemas of keys and values from the schema registry, and compare them with the columns of the rows.

Both are done on the driver, before anything is leased. A schema is read once a run. What can be known from the types
alone is refused there; a value that the schema refuses is found when it is serialized (`serializing.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import types

from sharequeue.domain.extras import require
from sharequeue.domain.settings import SettingMissing, Settings
from sharequeue.spark.registry import Registry
from sharequeue.spark.sinks.interface import SinkRefused
from sharequeue.spark.sinks.kafka.serializing import AVRO, JSON, RecordSchema, writer

_PACKAGES = {AVRO: "fastavro", JSON: "jsonschema"}
"""The package that the serializer of each type of schema imports."""

_WHOLE = (types.IntegralType,)
_FITTING: Mapping[str, tuple[type[types.DataType], ...]] = {
    "string": (types.StringType,),
    "enum": (types.StringType,),
    "bytes": (types.BinaryType,),
    "fixed": (types.BinaryType,),
    "boolean": (types.BooleanType,),
    "int": _WHOLE,
    "long": _WHOLE,
    "float": (*_WHOLE, types.FloatType, types.DoubleType),
    "double": (*_WHOLE, types.FloatType, types.DoubleType),
    "decimal": (types.DecimalType,),
    "date": (types.DateType, *_WHOLE),
    "timestamp-millis": (types.TimestampType, *_WHOLE),
    "timestamp-micros": (types.TimestampType, *_WHOLE),
    "local-timestamp-millis": (types.TimestampNTZType, *_WHOLE),
    "local-timestamp-micros": (types.TimestampNTZType, *_WHOLE),
}
"""The types of Spark whose values a type of Avro takes."""


def read_schema(settings: Settings, subject: str, topic: str, part: str) -> RecordSchema:
    """Return the latest schema of a subject, for the `key` or the `value` of records.

    Raises SinkRefused if there is no such subject, or if records cannot be serialized with its schema,
    RegistryNotAvailable, and ExtraMissing without the packages.
    """
    try:
        registry = Registry(settings=settings)
    except SettingMissing as missing:
        raise SinkRefused(str(missing)) from missing
    found = registry.registered(subject)
    if found is None:
        raise SinkRefused(
            f"{registry!r} has no subject {subject}: register the schema of the {part} first, or name another "
            "subject."
        )
    given = found.schema
    schema = RecordSchema(subject, found.schema_id, given.schema_type or AVRO, str(given.schema_str))
    if schema.kind not in _PACKAGES:
        raise SinkRefused(f"{schema} is {schema.kind}: expected AVRO or JSON.")
    if given.references:
        raise SinkRefused(
            f"{schema} takes {', '.join(each.name for each in given.references)} from other subjects, which is not "
            "supported: register it with these types included."
        )
    if given.rule_set is not None:
        raise SinkRefused(f"{schema} has rules, which are not supported: name a subject without rules.")
    require("avro", _PACKAGES[schema.kind])
    try:
        writer(schema, topic, part)
    except Exception as error:
        raise SinkRefused(f"{schema} is not a valid {schema.kind} schema: {error}") from error
    return schema


def refuse_unfit(schema: RecordSchema, kind: types.DataType, part: str) -> None:
    """Raise SinkRefused if no value of this type fits the schema."""
    parsed = json.loads(schema.text)
    problem = _Avro().problem(parsed, kind, part) if schema.kind == AVRO else _missing(parsed, kind)
    if problem is not None:
        raise SinkRefused(
            f"the rows do not fit {schema}: {problem}. Change the handler, or register a schema."
        )


def _missing(schema: Any, kind: types.DataType) -> str | None:
    """Return which fields a JSON schema requires that the rows do not have."""
    if not isinstance(kind, types.StructType) or not isinstance(schema, dict):
        return None
    missing = [each for each in schema.get("required", ()) if each not in kind.names]
    return f"it requires {', '.join(missing)}, and they have {', '.join(kind.names)}" if missing else None


class _Avro:
    """The comparison of an Avro schema with a type of Spark."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}

    def problem(self, schema: Any, kind: types.DataType, at: str) -> str | None:
        """Return why no value of a type fits; None if it may. `at` is the name of the value."""
        if isinstance(schema, list):
            some = [each for each in schema if each != "null"]
            problems = [self.problem(each, kind, at) for each in some]
            if None in problems:
                return None
            return (
                problems[0]
                if len(some) == 1
                else f"{at} is {kind.simpleString()}, and no type of the union is"
            )
        if isinstance(schema, str) and schema in self._named:
            schema = self._named[schema]
        if isinstance(schema, dict) and isinstance(schema.get("type"), dict | list):
            return self.problem(schema["type"], kind, at)
        given: Mapping[str, Any] = schema if isinstance(schema, dict) else {"type": schema}
        name = str(given["type"])
        if name in ("record", "error", "enum", "fixed"):
            self._named[str(given["name"])] = given
            self._named[f"{given.get('namespace', '')}.{given['name']}"] = given
        if name in ("record", "error"):
            return self._fields(given, kind, at)
        if name == "array":
            return self._part(given["items"], kind, types.ArrayType, "elementType", at)
        if name == "map":
            return self._part(given["values"], kind, types.MapType, "valueType", at)
        logical = given.get("logicalType")
        fitting = _FITTING.get(str(logical)) or _FITTING.get(name)
        # A type of another namespace, for example, is left to the serializer.
        if fitting is None or isinstance(kind, (*fitting, types.NullType)):
            return None
        return f"{at} is {kind.simpleString()}, and the schema has {logical or name}"

    def _fields(self, schema: Mapping[str, Any], kind: types.DataType, at: str) -> str | None:
        if not isinstance(kind, types.StructType):
            return f"{at} is {kind.simpleString()}, and the schema has the record {schema['name']}"
        fields = {each["name"]: each for each in schema["fields"]}
        if strange := [name for name in kind.names if name not in fields]:
            return f"the schema has no field {', '.join(strange)} of the {at}"
        if missing := [n for n, each in fields.items() if n not in kind.names and "default" not in each]:
            return f"the {at} has no column {', '.join(missing)}, for which the schema has no default"
        problems = (self.problem(fields[each.name]["type"], each.dataType, each.name) for each in kind.fields)
        return next((each for each in problems if each is not None), None)

    def _part(
        self, schema: Any, kind: types.DataType, expected: type[types.DataType], part: str, at: str
    ) -> str | None:
        if not isinstance(kind, expected):
            return f"{at} is {kind.simpleString()}, and the schema has an {expected.typeName()}"
        return self.problem(schema, getattr(kind, part), at)
