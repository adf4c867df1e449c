"""Read the schemas of keys and values from the schema registry, and compare them with the columns of the rows.

Both are done on the driver, before anything is leased. A schema is read once a run. What can be known from the types
alone is refused there; a value that the schema refuses is found when it is serialized (`serializing.py`).
"""

from __future__ import annotations

import json

from pyspark.errors import PySparkException
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_type

from sharequeue.domain.extras import require
from sharequeue.domain.settings import SettingMissing, Settings
from sharequeue.spark.registry import Registry
from sharequeue.spark.sinks.interface import SinkRefused
from sharequeue.spark.sinks.kafka.avro_values import AvroValues, UnfitType
from sharequeue.spark.sinks.kafka.serializing import AVRO, JSON, RecordSchema, writer

_PACKAGES = {AVRO: "fastavro", JSON: "jsonschema"}
"""The package that the serializer of each type of schema imports."""


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
    """Return which fields a JSON schema requires that the rows do not have."""
    schema = json.loads(text)
    if not isinstance(kind, types.StructType) or not isinstance(schema, dict):
        return None
    missing = [each for each in schema.get("required", ()) if each not in kind.names]
    return f"it requires {', '.join(missing)}, and they have {', '.join(kind.names)}" if missing else None
