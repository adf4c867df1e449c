"""Convert the values of a record between Arrow and Python without changing them.

Arrow's own conversion changes values without an error: 1.5 becomes 1 in a whole number, a text becomes the list of
its letters, a key that a struct does not have disappears. So `exact_array` checks each value against its column's
type first: a value is stored as it is, or raises. In the other direction, `python_values` returns maps as dicts, and
a time that Python cannot represent as an int, so that it costs its record nothing unless the record's function uses
it.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from math import inf
from numbers import Number
from typing import Any

import pyarrow as pa
from pyarrow import lib
from pyspark.cloudpickle import register_pickle_by_value

__all__ = ["exact_array", "python_values"]

_Check = Callable[[Any, pa.DataType], Any]
_MOST_SHOWN = 200


def exact_array(values: Sequence[Any], field: pa.Field) -> pa.Array:
    """Return the values as an Arrow array. Raises TypeError, ValueError, OverflowError and Arrow's errors if the
    field's type cannot hold one of them exactly.

    A number in a `float` column becomes the nearest one that it has, because almost no decimal fraction has an exact
    one. A datetime without a time zone is UTC.
    """
    return pa.array(_all_checked(values, field), field.type)


def _all_checked(values: Any, field: pa.Field) -> list[Any]:
    checked = _CHECKS.get(field.type.id)
    kinds = set(map(type, values))
    if type(None) in kinds and not field.nullable:
        # Spark would read a zero or an empty text.
        raise ValueError(f"null in {field.name}, which the column's type does not allow")
    if checked is None or kinds <= _plain(field.type):
        return list(values)
    return [None if value is None else checked(value, field.type) for value in values]


def _plain(kind: pa.DataType) -> set[type]:
    """Return the types of Python whose values need no check: Arrow stores them exactly or raises."""
    nothing = type(None)
    if pa.types.is_integer(kind):
        return {int, nothing}
    if pa.types.is_float64(kind):
        return {float, int, nothing}
    if pa.types.is_date(kind):
        return {date, nothing}
    return {nothing}


def _whole(value: Any, kind: pa.DataType) -> int:
    if not _is_number(value) or value != value or abs(value) == inf or int(value) != value:
        raise _unfit(value, kind)
    return int(value)


def _float(value: Any, kind: pa.DataType) -> Any:
    if not _is_number(value) or (value == value and float(value) != value):
        raise _unfit(value, kind)
    if isinstance(value, int):
        return value  # Arrow raises if it has too many digits
    found = float(value)
    if not pa.types.is_float64(kind):
        held = pa.scalar(found, kind).as_py()
        if (held == 0) != (found == 0) or (abs(held) == inf) != (abs(found) == inf):
            raise _unfit(value, kind)
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, Number) and not isinstance(value, (bool, complex))


def _date(value: Any, kind: pa.DataType) -> date:
    if not isinstance(value, date) or value != value:
        raise _unfit(value, kind, "a date")
    if not isinstance(value, datetime):
        return value
    if value.tzinfo is not None or value.time() != time() or getattr(value, "nanosecond", False):
        raise _unfit(value, kind, "a date without a time")
    return value.date()


def _moment(value: Any, kind: pa.DataType) -> datetime:
    if kind.tz is None and isinstance(value, date) and not isinstance(value, datetime):
        return datetime(value.year, value.month, value.day)
    if not isinstance(value, datetime) or value != value:
        raise _unfit(value, kind, "a datetime")
    if getattr(value, "nanosecond", False):
        raise _unfit(value, kind, "a time in whole microseconds")
    if kind.tz is None and value.tzinfo is not None:
        raise _unfit(value, kind, "a datetime without a time zone")
    return value


def _time_of_day(value: Any, kind: pa.DataType) -> time:
    if not isinstance(value, time) or value.tzinfo is not None:
        raise _unfit(value, kind, "a time without a time zone")
    return value


def _duration(value: Any, kind: pa.DataType) -> timedelta:
    if not isinstance(value, timedelta) or value != value or getattr(value, "nanoseconds", False):
        raise _unfit(value, kind, "a timedelta in whole microseconds")
    return value


def _list(value: Any, kind: pa.DataType) -> list[Any]:
    if isinstance(value, (str, bytes, bytearray, memoryview)) or not (
        isinstance(value, Sequence) or hasattr(value, "__array__")
    ):
        raise _unfit(value, kind, "a list")
    return _all_checked(value, kind.value_field)


def _map(value: Any, kind: pa.DataType) -> list[tuple[Any, Any]]:
    pairs = value.items() if isinstance(value, Mapping) else value
    if not isinstance(value, (Mapping, list, tuple)):
        raise _unfit(value, kind, "a dict")
    keys, items = zip(*pairs, strict=True) if pairs else ((), ())
    found = _all_checked(keys, kind.key_field)
    if _twice(found):
        raise ValueError(f"{_shown(value)} has a key twice")
    return list(zip(found, _all_checked(items, kind.item_field), strict=True))


def _twice(keys: Sequence[Any]) -> bool:
    try:
        return len(set(keys)) < len(keys)
    except TypeError:  # lists or dicts
        return any(key in keys[:at] for at, key in enumerate(keys))


def _struct(value: Any, kind: pa.DataType) -> dict[str, Any]:
    fields = [kind.field(at) for at in range(kind.num_fields)]
    names = [field.name for field in fields]
    if isinstance(value, tuple):
        given = getattr(value, "__fields__", None) or getattr(value, "_fields", None) or names
        if len(given) != len(value):
            raise _unfit(value, kind, f"{len(names)} values")
        value = dict(zip(given, value, strict=True))
    if not isinstance(value, Mapping):
        raise _unfit(value, kind, "a dict")
    if strange := [name for name in value if name not in names]:
        raise KeyError(f"{', '.join(map(str, strange))} not among the fields {', '.join(names)}")
    return {field.name: _all_checked([value.get(field.name)], field)[0] for field in fields}


def _nested(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


_CHECKS: Mapping[int, _Check] = {
    lib.Type_INT8: _whole,
    lib.Type_INT16: _whole,
    lib.Type_INT32: _whole,
    lib.Type_INT64: _whole,
    lib.Type_HALF_FLOAT: _float,
    lib.Type_FLOAT: _float,
    lib.Type_DOUBLE: _float,
    lib.Type_DATE32: _date,
    lib.Type_TIMESTAMP: _moment,
    lib.Type_DURATION: _duration,
    lib.Type_TIME32: _time_of_day,
    lib.Type_TIME64: _time_of_day,
    lib.Type_LIST: _list,
    lib.Type_LARGE_LIST: _list,
    lib.Type_MAP: _map,
    lib.Type_STRUCT: _struct,
}
"""By the id of a type: the check of its values. Arrow stores values of other types exactly, or raises."""


def _unfit(value: Any, kind: pa.DataType, expected: str = "") -> Exception:
    wanted = f": expected {expected}" if expected else ""
    return ValueError(f"{_shown(value)} ({type(value).__name__}) is not exactly a value of {kind}{wanted}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def python_values(array: pa.Array) -> list[Any]:
    """Return the values of an array: times with a zone in UTC, maps as dicts, and a date or time outside the years 1
    to 9999 as an int, the days or microseconds since 1970. Raises UnicodeDecodeError for a text that is not UTF-8.

    A map whose keys are structs, lists or maps is a list of pairs, because these cannot be keys of a dict.
    """
    kind = array.type
    if pa.types.is_timestamp(kind):
        # Python may not know the session's time zone.
        return _times(array if kind.tz is None else array.cast(pa.timestamp(kind.unit, "UTC")))
    if pa.types.is_date(kind):
        return _times(array)
    if pa.types.is_struct(kind):
        names = [kind.field(at).name for at in range(kind.num_fields)]
        rows: Iterator[Any] = zip(*map(python_values, array.flatten()), strict=True)
        return _where_valid(array, [dict(zip(names, row, strict=True)) for row in rows])
    if pa.types.is_map(kind):
        return _maps(array)
    if _is_list(kind):
        return _where_valid(array, _divided(array, python_values(_used(array, array.values))))
    return list(array.to_pylist())


def _times(array: pa.Array) -> list[Any]:
    try:
        return list(array.to_pylist())
    except (ValueError, OverflowError):
        return [_time(each) for each in array]


def _time(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        return scalar.value


def _maps(array: pa.Array) -> list[Any]:
    pairs = list(
        zip(
            python_values(_used(array, array.keys)),
            python_values(_used(array, array.items)),
            strict=True,
        )
    )
    divided = _divided(array, pairs)
    if _nested(array.type.key_type):
        return _where_valid(array, divided)
    if any(_twice([key for key, _ in some]) for some in divided):
        raise ValueError("a map has a key twice")
    return _where_valid(array, [dict(some) for some in divided])


def _used(array: pa.Array, parts: pa.Array) -> pa.Array:
    """Return the parts that belong to the lists or maps of an array, which may be a slice."""
    first, end = (array.offsets[at].as_py() for at in (0, -1))
    return parts.slice(first, end - first)


def _divided(array: pa.Array, parts: Sequence[Any]) -> list[list[Any]]:
    ends = array.offsets.to_pylist()
    return [list(parts[a - ends[0] : b - ends[0]]) for a, b in itertools.pairwise(ends)]


def _where_valid(array: pa.Array, values: Sequence[Any]) -> list[Any]:
    if not array.null_count:
        return list(values)
    return [
        value if valid else None for value, valid in zip(values, array.is_valid().to_pylist(), strict=True)
    ]


# The module is sent to the executors by value, as `by_row` is.
register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
