"""Read the schemas of keys and values from the schema registry, and compare them with the columns of the rows.

Both are done on the driver, before anything is leased. A schema is read once a run. What can be known from the types
alone is refused there; a value that the schema refuses is found when it is serialized (`serializing.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_type

from sharequeue.domain.extras import require
from sharequeue.domain.settings import SettingMissing, Settings
from sharequeue.spark.registry import Registry
from sharequeue.spark.sinks.interface import SinkRefused
from sharequeue.spark.sinks.kafka.avro_values import AvroValues, UnfitType
from sharequeue.spark.sinks.kafka.json_values import JsonValues
from sharequeue.spark.sinks.kafka.serializing import AVRO, JSON, RecordSchema, writer

_PACKAGES = {AVRO: "fastavro", JSON: "jsonschema"}
"""The package that the serializer of each type of schema imports."""

_OF_JSON: Mapping[type[types.DataType], tuple[str, ...]] = {
    types.BooleanType: ("boolean",),
    types.IntegralType: ("integer", "number"),
    types.FractionalType: ("number", "integer"),
    types.StructType: ("object",),
    types.MapType: ("object",),
    types.ArrayType: ("array",),
    types.StringType: ("string",),
    types.BinaryType: ("string",),
    types.DatetimeType: ("string",),
}
"""The types of JSON for the values of a type of Spark."""


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
    problem = _unfit_avro if schema.kind == AVRO else _unfit_json
    if (found := problem(schema.text, kind, f"the {part}")) is not None:
        raise SinkRefused(f"the rows do not fit {schema}: {found}. Change the handler, or register a schema.")


def _unfit_avro(text: str, kind: types.DataType, at: str) -> str | None:
    try:
        AvroValues(text).conversion(to_arrow_type(kind), at)
    except UnfitType as error:
        return str(error)
    except PySparkException:
        return f"{at} is {kind.simpleString()}, which has values that Python does not get"
    return None


def _unfit_json(text: str, kind: types.DataType, at: str) -> str | None:
    values = JsonValues(text)
    return _of_json(values, values.schema, kind, at)


def _of_json(values: JsonValues, schema: Any, kind: types.DataType, at: str) -> str | None:
    """Return why no value of a type fits a JSON schema; None if it may. What only `anyOf` and the like, or a rule for
    values, decide is left to the value.
    """
    if schema is False:
        return f"the schema does not allow {at}"
    problems = (
        find(values, part, kind, at) for part in values.parts(schema) for find in (_of_type, _of_parts)
    )
    return next((each for each in problems if each is not None), None)


def _of_type(values: JsonValues, part: Mapping[str, Any], kind: types.DataType, at: str) -> str | None:
    expected = part.get("type")
    allowed = [expected] if isinstance(expected, str) else expected
    given = next((named for each, named in _OF_JSON.items() if isinstance(kind, each)), None)
    if not allowed or given is None or set(given) & set(allowed):
        return None
    return f"{at} is {kind.simpleString()}, and the schema has {' or '.join(allowed)}"


def _of_parts(values: JsonValues, part: Mapping[str, Any], kind: types.DataType, at: str) -> str | None:
    if isinstance(kind, types.StructType):
        return _of_fields(values, part, kind, at)
    if isinstance(kind, types.ArrayType) and isinstance(part.get("items"), dict):
        return _of_json(values, part["items"], kind.elementType, at)
    if isinstance(kind, types.MapType) and not {"properties", "patternProperties"} & part.keys():
        return _of_json(values, part.get("additionalProperties", True), kind.valueType, at)
    return None


def _of_fields(values: JsonValues, part: Mapping[str, Any], kind: types.StructType, at: str) -> str | None:
    if missing := [each for each in part.get("required", ()) if each not in kind.names]:
        return f"{at} has no column {', '.join(missing)}, which the schema requires"
    named = part.get("properties", {})
    others = True if "patternProperties" in part else part.get("additionalProperties", True)
    if others is False and (strange := [each for each in kind.names if each not in named]):
        return f"the schema has no field {', '.join(strange)} of {at}, and allows no others"
    fields = ((each, named.get(each.name, others)) for each in kind.fields)
    problems = (_of_json(values, schema, each.dataType, f"{at}.{each.name}") for each, schema in fields)
    return next((each for each in problems if each is not None), None)
