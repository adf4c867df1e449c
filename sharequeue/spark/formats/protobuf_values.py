"""Decode Protobuf; reject records that do not decode.

Spark's own decoder is not available as a complete package. So the messages are decoded in Python, in Arrow batches
between Spark and the workers. A message class is sent to the executors as its descriptor: they need `protobuf`, but
not the user's module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn
from pyspark.sql import types as sql

from sharequeue.spark.arrow_types import arrow_type
from sharequeue.spark.formats.decoded_column import DECODED, decided
from sharequeue.spark.handler import HandlerError

if TYPE_CHECKING:
    from google.protobuf.descriptor import (  # type: ignore[import-untyped]
        Descriptor,
        FieldDescriptor,
        FileDescriptor,
    )
    from google.protobuf.message import Message  # type: ignore[import-untyped]

_ERROR = "sharequeue_decode_error"
_TYPES: dict[int, sql.DataType] = {
    1: sql.DoubleType(),  # double
    2: sql.FloatType(),  # float
    3: sql.LongType(),  # int64
    4: sql.DecimalType(20, 0),  # uint64
    5: sql.IntegerType(),  # int32
    6: sql.DecimalType(20, 0),  # fixed64
    7: sql.LongType(),  # fixed32
    8: sql.BooleanType(),  # bool
    9: sql.StringType(),  # string
    12: sql.BinaryType(),  # bytes
    13: sql.LongType(),  # uint32
    14: sql.StringType(),  # enum
    15: sql.IntegerType(),  # sfixed32
    16: sql.LongType(),  # sfixed64
    17: sql.IntegerType(),  # sint32
    18: sql.LongType(),  # sint64
}
"""The Spark types, by the number of a field's type, `FieldDescriptor.TYPE_…`."""
_ENUM = 14
_TIMESTAMP = "google.protobuf.Timestamp"
_WRAPPERS = ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
_WRAPPED = frozenset(f"google.protobuf.{name}Value" for name in _WRAPPERS)


def protobuf(records: DataFrame, message: type[Message], *, column: str = "value") -> DataFrame:
    """Decode a column of Protobuf messages in place, as a struct of the fields of `message`, a generated class.

    The bytes are the message, or the message after the header of a schema registry's serializer: a zero byte, four
    bytes of schema id, the indexes of the message in its file. A message never begins with a zero byte. The registry
    is not used: the class defines the format. Indexes of another message are an error of the record.

    The rows get `outcome` and `error`: accept, or reject with the reason. A field without a value is null if the
    message has field presence for it, else the default of its type. Enums become their names, timestamps and wrappers
    become Spark values, unsigned 32-bit numbers `bigint`, and those of 64 bits `decimal(20,0)`. Raises HandlerError
    for a message that contains itself.
    """
    descriptor = message.DESCRIPTOR
    kind = _struct(descriptor, ())
    worker = _Worker(
        _files(descriptor.file, {}), descriptor.full_name, _indexes(descriptor), column, arrow_type(kind)
    )
    made = [sql.StructField(DECODED, kind), sql.StructField(_ERROR, sql.StringType())]
    decoded = records.mapInArrow(worker, sql.StructType([*records.schema.fields, *made]))
    return decided(decoded, column, fn.col(DECODED), fn.col(_ERROR)).drop(_ERROR)


def _struct(descriptor: Descriptor, inside: tuple[str, ...]) -> sql.StructType:
    if descriptor.full_name in inside:
        raise HandlerError(
            f"the message {descriptor.full_name} contains itself ({' → '.join((*inside, descriptor.full_name))}), "
            "which a Spark column cannot represent: decode it with `by_row`"
        )
    within = (*inside, descriptor.full_name)
    return sql.StructType([sql.StructField(each.name, _type(each, within)) for each in descriptor.fields])


def _type(field: FieldDescriptor, inside: tuple[str, ...]) -> sql.DataType:
    if _is_map(field):
        entry = field.message_type.fields_by_name
        return sql.MapType(_element(entry["key"], inside), _element(entry["value"], inside))
    return sql.ArrayType(_element(field, inside)) if _is_repeated(field) else _element(field, inside)


def _element(field: FieldDescriptor, inside: tuple[str, ...]) -> sql.DataType:
    if (message := field.message_type) is None:
        return _TYPES[field.type]
    if message.full_name == _TIMESTAMP:
        return sql.TimestampType()
    if message.full_name in _WRAPPED:
        return _TYPES[message.fields_by_name["value"].type]
    return _struct(message, inside)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _is_repeated(field: FieldDescriptor) -> bool:
    # Older versions of `protobuf` have only the label, later ones no label.
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == 3)


def _files(file: FileDescriptor, found: dict[str, bytes]) -> list[bytes]:
    """Return the descriptors of a file and of all its imports, the imports first."""
    for each in file.dependencies:
        if each.name not in found:
            _files(each, found)
    found[file.name] = file.serialized_pb
    return list(found.values())


def _indexes(descriptor: Descriptor) -> tuple[int, ...]:
    """Return the indexes of a message in its file: (0) for the first, (1, 0) for the first inside the second."""
    above = descriptor.containing_type
    if above is None:
        return (list(descriptor.file.message_types_by_name).index(descriptor.name),)
    return (*_indexes(above), [each.name for each in above.nested_types].index(descriptor.name))


class _Worker:
    """A function that adds two columns to Arrow batches. It runs in the Python workers of Spark's executors."""

    def __init__(
        self, files: list[bytes], name: str, indexes: tuple[int, ...], column: str, kind: pa.DataType
    ) -> None:
        self.files = files
        self.name = name
        self.indexes = indexes
        self.column = column
        self.kind = kind

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from google.protobuf import descriptor_pool, message_factory  # type: ignore[import-untyped]

        pool = descriptor_pool.DescriptorPool()
        for file in self.files:
            pool.AddSerializedFile(file)
        descriptor = pool.FindMessageTypeByName(self.name)
        message, convert = message_factory.GetMessageClass(descriptor), _converter(descriptor)
        for batch in batches:
            rows: list[dict[str, Any] | None] = []
            errors: list[str | None] = []
            for value in batch.column(self.column):
                row, error = self._decoded(value.as_py(), message, convert)
                rows.append(row)
                errors.append(error)
            made = self._array(rows, errors)
            arrays = [*batch.columns, made, pa.array(errors, pa.string())]
            yield pa.RecordBatch.from_arrays(arrays, names=[*batch.schema.names, DECODED, _ERROR])

    def _decoded(
        self, value: bytes | None, message: type[Message], convert: Callable[[Any], dict[str, Any]]
    ) -> tuple[dict[str, Any] | None, str | None]:
        if value is None:
            return None, None
        try:
            found = message.FromString(value if value[:1] != b"\0" else self._without_head(value))
            if not found.IsInitialized():
                return (
                    None,
                    f"without {', '.join(found.FindInitializationErrors())}, which {self.name} requires",
                )
            return convert(found), None
        except Exception as error:
            return None, f"no {self.name}: {error} ({len(value)} bytes, beginning with 0x{value[:8].hex()})"

    def _without_head(self, value: bytes) -> bytes:
        """Return the message after a registry's zero byte, schema id and indexes."""
        count, at = _varint(value, 5)
        indexes = []
        for _ in range(count):
            index, at = _varint(value, at)
            indexes.append(index)
        # One zero means the first message.
        if (tuple(indexes) or (0,)) != self.indexes:
            expected = ", ".join(map(str, self.indexes))
            raise ValueError(
                f"it is message {', '.join(map(str, indexes)) or 0} of its file, expected {expected}"
            )
        return value[at:]

    def _array(self, rows: list[dict[str, Any] | None], errors: list[str | None]) -> pa.Array:
        try:
            return pa.array(rows, self.kind)
        except Exception:
            for at, row in enumerate(rows):
                try:
                    pa.array([row], self.kind)
                except Exception as error:
                    rows[at], errors[at] = None, f"a value that its column cannot hold: {error}"[:2_000]
            return pa.array(rows, self.kind)


def _varint(value: bytes, at: int) -> tuple[int, int]:
    """Return the zigzag number that begins at `at`, and where it ends. Raises ValueError if it has no end."""
    number = shift = 0
    while at < len(value) and shift < 35:
        byte = value[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
    raise ValueError(
        "it ends, or is invalid, in the header that a registry's serializer writes before a message"
    )


def _converter(descriptor: Descriptor) -> Callable[[Any], dict[str, Any]]:
    """Return a function from a message to a dict of its fields."""
    fields = [(each.name, each.has_presence, _reader(each)) for each in descriptor.fields]

    def convert(message: Any) -> dict[str, Any]:
        return {
            name: None if optional and not message.HasField(name) else read(getattr(message, name))
            for name, optional, read in fields
        }

    return convert


def _reader(field: FieldDescriptor) -> Callable[[Any], Any]:
    if _is_map(field):
        read = _element_reader(field.message_type.fields_by_name["value"])
        return lambda found: [(key, read(found[key])) for key in found]
    read = _element_reader(field)
    return (lambda found: [read(each) for each in found]) if _is_repeated(field) else read


def _element_reader(field: FieldDescriptor) -> Callable[[Any], Any]:
    message = field.message_type
    if message is None:
        if field.type != _ENUM:
            return lambda found: found
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda found: names.get(found, str(found))
    if message.full_name == _TIMESTAMP:
        return lambda found: found.seconds * 1_000_000 + found.nanos // 1_000
    if message.full_name in _WRAPPED:
        return lambda found: found.value
    return _converter(message)


# The module is sent to the executors by value: they need PyArrow and Protobuf, but not this package.
register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
