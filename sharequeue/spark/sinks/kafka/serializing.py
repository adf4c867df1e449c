"""Serialize keys and values of records in Spark's tasks, with the serializers of confluent-kafka.

This module runs in Python workers, which need confluent-kafka with its packages for a schema registry, and `fastavro`
or `jsonschema`. They send no request: the driver has read the schema (`schemas.py`), which is whole. The serializers
write some values in another form, so values are checked before (`avro_values.py`, `json_values.py`). A part that the
schema refuses has a fault in place of its bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.cloudpickle import register_pickle_by_value

from sharequeue.spark.row_values import python_values
from sharequeue.spark.sinks.kafka.avro_values import AvroValues
from sharequeue.spark.sinks.kafka.json_values import JsonValues, as_json

AVRO, JSON = "AVRO", "JSON"
"""The types of schemas, as a registry names them."""
_SERIALIZED = pa.struct([("data", pa.binary()), ("fault", pa.string())])
_MOST_SAID = 500
"""The most characters of a serializer's error in a fault."""

Write = Callable[[Any], bytes | None]
"""A function that returns the bytes of a value that is not null."""


@dataclass(frozen=True, slots=True)
class RecordSchema:
    """A schema of a registry, for the key or the value of records."""

    subject: str
    schema_id: int
    kind: str
    """AVRO or JSON."""
    text: str

    def __str__(self) -> str:
        return f"schema {self.schema_id} of subject {self.subject}"


class RowSerializer:
    """A function that serializes columns of batches. It replaces each of them by a struct of `data` and `fault`.

    A column for AVRO has the values, one for JSON has a text: an object whose field `value` is the value.
    """

    def __init__(self, topic: str, schemas: Mapping[str, tuple[str, RecordSchema]]) -> None:
        """`schemas` has, by column, the part of the record (`key` or `value`) and its schema."""
        self.topic = topic
        self.schemas = dict(schemas)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches with their columns serialized."""
        writers = {name: writer(schema, self.topic, part) for name, (part, schema) in self.schemas.items()}
        for batch in batches:
            columns = [
                self._serialized(writers[name](column.type), name, column) if name in writers else column
                for name, column in zip(batch.schema.names, batch.columns, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, names=batch.schema.names)

    def _serialized(self, write: Write, name: str, column: pa.Array) -> pa.Array:
        part, schema = self.schemas[name]
        made: list[dict[str, Any]] = []
        for value in _values(column):
            data, fault = None, None
            try:
                if isinstance(value, Exception):
                    raise value
                data = None if value is None else write(value)
            except Exception as error:
                fault = f"InvalidRecord: the {part} does not fit {schema}: {_reason(error)}"
            made.append({"data": data, "fault": fault})
        return pa.array(made, _SERIALIZED)


def writer(schema: RecordSchema, topic: str, part: str) -> Callable[[pa.DataType], Write]:
    """Return the function that makes the writer of values with a schema, by the type of their column. Raises an error
    of the serializer's package if the schema is invalid.
    """
    from confluent_kafka.serialization import MessageField, SerializationContext

    context = SerializationContext(topic, MessageField.KEY if part == "key" else MessageField.VALUE)
    return _avro(schema, context, part) if schema.kind == AVRO else _json(schema, context)


def _avro(schema: RecordSchema, context: Any, part: str) -> Callable[[pa.DataType], Write]:
    from confluent_kafka.schema_registry.avro import AvroSerializer

    values = AvroValues(schema.text)
    # As a text, in which the serializer takes the name of a type alone, too.
    serialize = AvroSerializer(_Known(schema), schema.text, conf=_conf(schema))

    def of_column(kind: pa.DataType) -> Write:
        convert = values.conversion(kind, f"the {part}")
        return lambda value: serialize(convert(value), context)

    return of_column


def _json(schema: RecordSchema, context: Any) -> Callable[[pa.DataType], Write]:
    from confluent_kafka.schema_registry.json_schema import JSONSerializer

    values = JsonValues(schema.text)
    # Its own check has numbers with a rounded fraction, another draft, and fetches what the schema refers to.
    serialize = JSONSerializer(
        _registered(schema).schema,
        _Known(schema),
        conf=_conf(schema) | {"validate": False},
        json_encode=as_json,
    )
    return lambda kind: lambda text: serialize(values.parsed(text), context)


class _Known:
    """A client of a registry that knows one schema and sends no request."""

    def __init__(self, schema: RecordSchema) -> None:
        self._schema = schema

    def lookup_schema(self, *asked: object, **how: object) -> Any:
        """Return the schema with its id."""
        return _registered(self._schema)

    def config(self) -> dict[str, object]:
        """Return no configuration."""
        return {}


def _registered(schema: RecordSchema) -> Any:
    from confluent_kafka.schema_registry import RegisteredSchema, Schema

    given = Schema(schema.text, schema_type=schema.kind)
    return RegisteredSchema(schema.subject, None, schema.schema_id, None, given)


def _conf(schema: RecordSchema) -> dict[str, Any]:
    return {"auto.register.schemas": False, "subject.name.strategy": lambda context, name: schema.subject}


def _values(column: pa.Array) -> Sequence[Any]:
    """Return the values of a column, with an exception in place of each one that Python cannot represent."""
    try:
        return python_values(column, counts=True)
    except Exception:
        return [_value(column.slice(at, 1)) for at in range(len(column))]


def _value(column: pa.Array) -> Any:
    try:
        return python_values(column, counts=True)[0]
    except Exception as error:
        return error


def _reason(error: Exception) -> str:
    """Return what the error says: the first part of the value that does not fit."""
    path = getattr(error, "json_path", None)
    text = str(error) if path is None else f"{path}: {error.message}"  # type: ignore[attr-defined]
    text = " ".join(text.split()) or type(error).__name__
    return text.encode("utf-8", "backslashreplace").decode()[:_MOST_SAID]


# The module is sent to the executors by value: they do not need this package.
register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
