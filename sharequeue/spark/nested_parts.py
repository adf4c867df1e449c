"""Look at the parts of a value of Spark: find types in a type, and build conditions on the parts of a column."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from operator import or_

from pyspark.sql import Column
from pyspark.sql import functions as fn
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

Chosen = Callable[[DataType], bool]
Condition = Callable[[Column, DataType], Column]


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


def any_part(value: Column, kind: DataType, chosen: Chosen, condition: Condition) -> Column:
    """Return whether a value, or a part of it at any depth, is of a `chosen` type and meets the condition: true or
    false, never null.
    """
    if not any(map(chosen, parts_of(kind))):
        return fn.lit(False)
    if chosen(kind):
        return fn.coalesce(condition(value, kind), fn.lit(False))
    if isinstance(kind, ArrayType):
        of_element = kind.elementType
        found = fn.exists(value, lambda each: any_part(each, of_element, chosen, condition))
        return fn.coalesce(found, fn.lit(False))
    if isinstance(kind, MapType):
        keys = any_part(fn.map_keys(value), ArrayType(kind.keyType), chosen, condition)
        return keys | any_part(fn.map_values(value), ArrayType(kind.valueType), chosen, condition)
    assert isinstance(kind, StructType)  # noqa: S101 - no other type has parts
    return reduce(or_, (any_part(value[each.name], each.dataType, chosen, condition) for each in kind.fields))
