"""Find types in a type of Spark, and build conditions in SQL on the parts of a value."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from sharequeue.spark.sql_texts import quoted

Chosen = Callable[[DataType], bool]
Condition = Callable[[str, DataType], str]


def parts_of(kind: DataType) -> Iterator[DataType]:
    """Yield a type and all types inside it."""
    yield kind
    inside: list[DataType] = []
    if isinstance(kind, StructType):
        inside = [each.dataType for each in kind.fields]
    elif isinstance(kind, ArrayType):
        inside = [kind.elementType]
    elif isinstance(kind, MapType):
        inside = [kind.keyType, kind.valueType]
    for each in inside:
        yield from parts_of(each)


def any_part(value: str, kind: DataType, chosen: Chosen, condition: Condition, depth: int = 0) -> str:
    """Return whether a value, or a part of it at any depth, is of a `chosen` type and meets the condition: true or
    false, never null. Values and conditions are expressions in SQL; `depth` counts the functions around this one.
    """
    if not any(map(chosen, parts_of(kind))):
        return "false"
    if chosen(kind):
        return f"coalesce({condition(value, kind)}, false)"
    if isinstance(kind, ArrayType):
        each = f"part_{depth}"
        found = any_part(each, kind.elementType, chosen, condition, depth + 1)
        return f"coalesce(exists({value}, {each} -> {found}), false)"
    if isinstance(kind, MapType):
        keys = any_part(f"map_keys({value})", ArrayType(kind.keyType), chosen, condition, depth)
        values = any_part(f"map_values({value})", ArrayType(kind.valueType), chosen, condition, depth)
        return f"({keys} or {values})"
    assert isinstance(kind, StructType)  # noqa: S101 - no other type has parts
    parts = (
        any_part(f"{value}.{quoted(each.name)}", each.dataType, chosen, condition, depth)
        for each in kind.fields
    )
    return f"({' or '.join(parts)})"
