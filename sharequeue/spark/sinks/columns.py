"""Match the columns of rows with those of a lakehouse table, and reject rows that the table would refuse.

An accepted row is transferred after its acknowledgement: if the table refused it then, the queue would stop. So the
limits of the table (NOT NULL, `char(n)`, `varchar(n)`, and those that `delta.py` and `iceberg.py` add) are applied to
a handler's result before it is written: a record with a row that does not fit is rejected with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window, types
from pyspark.sql import functions as fn

from sharequeue.spark.handler import ACCEPT, REJECT
from sharequeue.spark.output.parquet import nullable, wider
from sharequeue.spark.sinks.interface import NEVER, OPTIONAL, SinkRefused
from sharequeue.spark.sql_texts import quoted

_ROW, _FAULT = "sharequeue_row", "sharequeue_fault"
_LENGTHS = "__CHAR_VARCHAR_TYPE_STRING"
"""The key in a column's metadata where Spark stores `varchar(n)`; the column's type is string."""
_FOLDER_BYTES = 255
"""The longest name of a folder on a disk or on HDFS."""

Limit = tuple[str, str]
"""A condition, in SQL on the table's columns, under which the table would refuse or change a row; and the reason."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The rows that a table currently accepts."""

    columns: types.StructType
    exact: bool = False
    """Whether names are case-sensitive."""
    limits: tuple[Limit, ...] = ()
    """Limits in addition to those of the columns' types."""


def in_table(
    table: str, there: Collection[str], columns: Iterable[str], key: Callable[[str], str] = str
) -> list[str]:
    """Return the columns of the rows that a table has; names are equal if their keys are. Raise SinkRefused if the
    table lacks a column that it must have, or has none of them.
    """
    known = {key(name) for name in there}
    wanted = [name for name in columns if name not in NEVER]
    absent = [name for name in wanted if key(name) not in known and name not in OPTIONAL]
    if absent:
        raise SinkRefused(
            f"table {table} has no column {', '.join(absent)}, which the handler's result has: add it to the table, "
            f"or drop it in the handler. The table has {', '.join(there)}."
        )
    found = [name for name in wanted if key(name) in known]
    if not found:
        raise SinkRefused(
            f"table {table} has no column in common with the handler's result: it has {', '.join(there)}, the "
            f"result {', '.join(wanted)}."
        )
    return found


def by_name(table: str, there: Shape, columns: types.StructType) -> dict[str, str]:
    """Return the name of the source column for each column of the table; the table's other columns get null.

    Raise SinkRefused unless the table has exactly one column for each written column, which can hold all its values,
    and the rows have each column that must not be null.
    """
    known: dict[str, list[types.StructField]] = {}
    for each in there.columns.fields:
        known.setdefault(_key(each.name, there), []).append(each)
    ours = nullable(columns)
    pairs: dict[str, str] = {}
    for wanted in in_table(table, there.columns.names, columns.names, lambda name: _key(name, there)):
        each, found = ours[wanted], known[_key(wanted, there)]
        (name, *others) = [column.name for column in found]
        if others or name in pairs:
            raise SinkRefused(
                f"columns {', '.join([name, *others])} of table {table} and {pairs.get(name, each.name)}, "
                f"{each.name} of the handler's result differ only in case, which is ignored here: rename them"
            )
        kind = nullable(types.StructType(found)).fields[0].dataType
        if wider(each.dataType, kind) != kind:
            raise SinkRefused(
                f"column {each.name} is {each.dataType.simpleString()} in the handler's result and "
                f"{kind.simpleString()} in table {table}, which cannot hold all of it: alter the column there, or "
                "cast it in the handler"
            )
        pairs[name] = each.name
    strict = [each.name for each in there.columns.fields if not each.nullable and each.name not in pairs]
    if strict:
        raise SinkRefused(
            f"table {table} has NOT NULL on {', '.join(strict)}, which the handler's result does not have: add it in "
            "the handler, or drop NOT NULL there."
        )
    return pairs


def as_table(there: Shape, pairs: Mapping[str, str]) -> list[Column]:
    """Return the columns of a table, from rows whose columns were matched with them."""
    return [
        (fn.col(quoted(pairs[each.name])) if each.name in pairs else fn.lit(None))
        .cast(each.dataType)
        .alias(each.name)
        for each in nullable(there.columns).fields
    ]


def unfit_rejected(handled: DataFrame, there: Shape, pairs: Mapping[str, str]) -> DataFrame:
    """Return a handler's result, with a reject in place of each accepted record that has a row beyond the limits."""
    limits: list[Limit] = []
    for each in there.columns.fields:
        limits += _limits(quoted(each.name), each.name, each.dataType, _declared(each), each.nullable)
    limits += there.limits
    if not limits:
        return handled
    names = handled.schema.names

    def of_row(name: str) -> Column:
        return fn.col(f"{_ROW}.{quoted(name)}")

    fault = fn.coalesce(*(fn.when(fn.expr(condition), fn.lit(reason)) for condition, reason in limits))
    # All rows of a record must agree on its outcome.
    record = Window.partitionBy(of_row("topic"), of_row("partition"), of_row("offset"))
    faults = fn.max(fn.when(of_row("outcome") == ACCEPT, fn.col(_FAULT))).over(record)
    rejected = (of_row("outcome") == ACCEPT) & fn.col(_FAULT).isNotNull()
    changed = {
        "outcome": fn.when(rejected, fn.lit(REJECT)).otherwise(of_row("outcome")),
        "error": fn.when(rejected, fn.col(_FAULT)).otherwise(of_row("error")),
    }
    row = fn.struct(*(fn.col(quoted(name)) for name in names)).alias(_ROW)
    return (
        handled.select(row, *as_table(there, pairs))
        .select(_ROW, fault.alias(_FAULT))
        .withColumn(_FAULT, faults)
        .select(*(changed.get(name, of_row(name)).alias(name) for name in names))
    )


def folder_limits(name: str, kind: types.DataType, escaped: str) -> list[Limit]:
    """Return the limits of a text that becomes a folder's name; `escaped` is the expression for its escaped form."""
    if not isinstance(kind, types.StringType):
        return []
    most = _FOLDER_BYTES - len(f"{name}=".encode())
    return [(f"octet_length({escaped}) > {most}", f"{name} is too long for the name of a partition's folder")]


def _key(name: str, there: Shape) -> str:
    return name if there.exact else name.lower()


def _declared(column: types.StructField) -> types.DataType:
    text = (column.metadata or {}).get(_LENGTHS)
    if not text:
        return column.dataType
    declared = types.StructType.fromDDL(f"declared {text}")
    assert isinstance(declared, types.StructType)  # noqa: S101 - it has a name and a type
    return declared.fields[0].dataType


def _limits(
    at: str, name: str, kind: types.DataType, declared: types.DataType, may_be_null: bool
) -> Iterator[Limit]:
    """Yield the limits of a value: `kind` defines which parts may be null, `declared` the lengths."""
    if not may_be_null:
        yield f"{at} is null", f"{name} is null, and the table has NOT NULL on it"
    if isinstance(declared, types.CharType | types.VarcharType):
        yield f"char_length({at}) > {declared.length}", f"{name} is longer than {declared.simpleString()}"
    if isinstance(kind, types.StructType) and isinstance(declared, types.StructType):
        for each, of in zip(kind.fields, declared.fields, strict=True):
            parts = _limits(
                f"{at}.{quoted(each.name)}", f"{name}.{each.name}", each.dataType, of.dataType, each.nullable
            )
            for condition, reason in parts:
                yield f"({at} is not null and {condition})", reason
    elif isinstance(kind, types.ArrayType) and isinstance(declared, types.ArrayType):
        yield from _of_each(at, f"{name}.element", kind.elementType, declared.elementType, kind.containsNull)
    elif isinstance(kind, types.MapType) and isinstance(declared, types.MapType):
        yield from _of_each(f"map_keys({at})", f"{name}.key", kind.keyType, declared.keyType, True)
        yield from _of_each(
            f"map_values({at})", f"{name}.value", kind.valueType, declared.valueType, kind.valueContainsNull
        )


def _of_each(
    at: str, name: str, kind: types.DataType, declared: types.DataType, may_be_null: bool
) -> Iterator[Limit]:
    each = f"each_{name.count('.')}"
    for condition, reason in _limits(each, name, kind, declared, may_be_null):
        yield f"exists({at}, {each} -> {condition})", reason
