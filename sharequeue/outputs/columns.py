"""The columns of Parquet files that Spark wrote, as Arrow types, and those of several files together.

The rules are those of Spark's readers (`sharequeue.spark.output.parquet`): a column may be missing in some files, a
number may be wider in others, and everything else is a different column.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from sharequeue.outputs.errors import changed

_WHOLE = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_WIDER: dict[tuple[pa.DataType, pa.DataType], pa.DataType] = {
    **{(narrow, wide): wide for at, narrow in enumerate(_WHOLE) for wide in _WHOLE[at + 1 :]},
    **{(narrow, pa.float64()): pa.float64() for narrow in (*_WHOLE[:3], pa.float32())},
    (pa.date32(), pa.timestamp("us")): pa.timestamp("us"),
}
_MOST_DIGITS = 38


def read_footer(store: fs.FileSystem, file: str) -> tuple[pa.Schema, int]:
    """Return the columns of a Parquet file, with their names and types only, and its number of rows."""
    with store.open_input_file(file) as opened:
        found = pq.ParquetFile(opened)
        columns = pa.schema([(field.name, _read_as(field.type)) for field in found.schema_arrow])
        return columns, found.metadata.num_rows


def _read_as(kind: pa.DataType) -> pa.DataType:
    """Return the type as which a column is read. Spark writes a point in time as INT96, which Arrow takes for
    nanoseconds without a time zone; a time without a zone, and a point in time as INT64, are microseconds.
    """
    if kind == pa.timestamp("ns"):
        return pa.timestamp("us", "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _read_as(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_read_as(kind.value_type))
    # A map that is always empty has no type of its keys, and Arrow makes no such type itself.
    if pa.types.is_map(kind) and not pa.types.is_null(kind.key_type):
        return pa.map_(_read_as(kind.key_type), _read_as(kind.item_type))
    return kind


def together(shapes: Sequence[pa.Schema]) -> pa.Schema:
    """Return all columns of these, each with the type that can hold all values. Raises ColumnChanged."""
    kinds: dict[str, pa.DataType] = {}
    for shape in dict.fromkeys(shapes):
        for field in shape:
            one = kinds.get(field.name, field.type)
            held = wider(one, field.type)
            if held is None:
                raise changed(field.name, str(one), str(field.type))
            kinds[field.name] = held
    return pa.schema(kinds.items())


def wider(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type that can hold both; None when there is none."""
    if one == other:
        return one
    if pa.types.is_decimal(one) and pa.types.is_decimal(other):
        scale = max(one.scale, other.scale)
        digits = max(one.precision - one.scale, other.precision - other.scale)
        return pa.decimal128(digits + scale, scale) if digits + scale <= _MOST_DIGITS else None
    if pa.types.is_null(one) or pa.types.is_null(other):
        return other if pa.types.is_null(one) else one
    if pa.types.is_nested(one) or pa.types.is_nested(other):
        return _nested(one, other)
    return _WIDER.get((one, other)) or _WIDER.get((other, one))


def _nested(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type of both: a field may have been added to a struct, wherever it is, but nothing in it widened."""
    if one == other:
        return one
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        fields = {field.name: field.type for field in one}
        for field in other:
            inner = _nested(fields.setdefault(field.name, field.type), field.type)
            if inner is None:
                return None
            fields[field.name] = inner
        return pa.struct(fields.items())
    if pa.types.is_list(one) and pa.types.is_list(other):
        inner = _nested(one.value_type, other.value_type)
        return None if inner is None else pa.list_(inner)
    if pa.types.is_map(one) and pa.types.is_map(other):
        key, inner = _nested(one.key_type, other.key_type), _nested(one.item_type, other.item_type)
        return None if key is None or inner is None else pa.map_(key, inner)
    return None
