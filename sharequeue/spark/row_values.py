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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from math import inf
from numbers import Number
from typing import Any

import pyarrow as pa
from pyarrow import lib
from pyspark.cloudpickle import register_pickle_by_value

__all__ = ["exact_array", "python_values"]

_Check = Callable[[Sequence[Any], pa.DataType], Sequence[Any]]
_NOTHING = type(None)
_EPOCH = datetime(1970, 1, 1)
_MICROSECOND, _DAY = timedelta(microseconds=1), timedelta(days=1)
_MOST_SHOWN = 200


def exact_array(values: Sequence[Any], field: pa.Field) -> pa.Array:
    """Return the values as an Arrow array. Raises TypeError, ValueError, OverflowError and Arrow's errors if the
    field's type cannot hold one of them exactly.

    A number in a `float` column becomes the nearest one that it has, because almost no decimal fraction has an exact
    one. A datetime without a time zone is UTC.
    """
    return pa.array(_exact(values, field), field.type)


def _exact(values: Sequence[Any], field: pa.Field) -> Sequence[Any]:
    """Return the values of a column, as Arrow stores them exactly. A part of nested values is checked as one column,
    too: a check for each value took half the time of a record."""
    check = _CHECKS.get(field.type.id)
    kinds = set(map(type, values))
    if _NOTHING in kinds and not field.nullable:
        # Spark would read a zero or an empty text.
        raise ValueError(f"null in {field.name}, which the column's type does not allow")
    if check is None or kinds <= _plain(field.type):
        return values
    if _NOTHING not in kinds:
        return check(values, field.type)
    checked = iter(check([value for value in values if value is not None], field.type))
    return [None if value is None else next(checked) for value in values]


def _plain(kind: pa.DataType) -> set[type]:
    """Return the types of Python whose values need no check: Arrow stores them exactly or raises."""
    if pa.types.is_integer(kind):
        return {int, _NOTHING}
    if pa.types.is_float64(kind):
        return {float, int, _NOTHING}
    if pa.types.is_date(kind):
        return {date, _NOTHING}
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return {datetime, _NOTHING}
    if pa.types.is_duration(kind):
        return {timedelta, _NOTHING}
    return {_NOTHING}


def _each(check: Callable[[Any, pa.DataType], Any]) -> _Check:
    """Return the check of a column from that of a value."""
    return lambda values, kind: [check(value, kind) for value in values]


def _whole(value: Any, kind: pa.DataType) -> int:
    if not _is_number(value) or value != value or abs(value) == inf or int(value) != value:
        raise _unfit(value, kind)
    return int(value)


def _floats(values: Sequence[Any], kind: pa.DataType) -> list[Any]:
    for value in values:
        if not _is_number(value) or (value == value and float(value) != value):
            raise _unfit(value, kind)
    # Arrow raises for a whole number that has too many digits.
    found = [value if isinstance(value, int) else float(value) for value in values]
    if not pa.types.is_float64(kind):
        for value, held in zip(found, pa.array(found, kind).to_pylist(), strict=True):
            if (held == 0) != (value == 0) or (abs(held) == inf) != (abs(value) == inf):
                raise _unfit(value, kind)
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, Number)) and not isinstance(value, (bool, complex))


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


def _lists(values: Sequence[Any], kind: pa.DataType) -> list[list[Any]]:
    lists = [value if type(value) is list else _as_list(value, kind) for value in values]
    parts = list(itertools.chain.from_iterable(lists))
    return _divided(_exact(parts, kind.value_field), map(len, lists))


def _as_list(value: Any, kind: pa.DataType) -> list[Any]:
    if isinstance(value, (str, bytes, bytearray, memoryview)) or not (
        isinstance(value, Sequence) or hasattr(value, "__array__")
    ):
        raise _unfit(value, kind, "a list")
    return list(value)


def _pairs(values: Sequence[Any], kind: pa.DataType) -> list[list[tuple[Any, Any]]]:
    given = [_pairs_of(value, kind) for value in values]
    keys = _exact([key for some in given for key, _ in some], kind.key_field)
    items = _exact([item for some in given for _, item in some], kind.item_field)
    found = _divided(list(zip(keys, items, strict=True)), map(len, given))
    for value, some in zip(values, found, strict=True):
        if _twice([key for key, _ in some]):
            raise ValueError(f"{_shown(value)} has a key twice")
    return found


def _pairs_of(value: Any, kind: pa.DataType) -> list[tuple[Any, Any]]:
    if not isinstance(value, (dict, list, tuple, Mapping)):
        raise _unfit(value, kind, "a dict")
    return list(value.items() if isinstance(value, (dict, Mapping)) else value)


def _twice(keys: Sequence[Any]) -> bool:
    try:
        return len(set(keys)) < len(keys)
    except TypeError:  # lists or dicts
        return any(key in keys[:at] for at, key in enumerate(keys))


def _structs(values: Sequence[Any], kind: pa.DataType) -> list[dict[str, Any]]:
    fields = [kind.field(at) for at in range(kind.num_fields)]
    names = [field.name for field in fields]
    given = [_named(value, kind, names) for value in values]
    return _rows(
        names, [_exact([value.get(field.name) for value in given], field) for field in fields], len(given)
    )


def _named(value: Any, kind: pa.DataType, names: Sequence[str]) -> Mapping[str, Any]:
    if isinstance(value, tuple):
        given = getattr(value, "__fields__", None) or getattr(value, "_fields", None) or names
        if len(given) != len(value):
            raise _unfit(value, kind, f"{len(names)} values")
        value = dict(zip(given, value, strict=True))
    if not isinstance(value, (dict, Mapping)):
        raise _unfit(value, kind, "a dict")
    if strange := [name for name in value if name not in names]:
        raise KeyError(f"{', '.join(map(str, strange))} not among the fields {', '.join(names)}")
    return value


def _rows(names: Sequence[str], columns: Sequence[Sequence[Any]], count: int) -> list[dict[str, Any]]:
    """Return columns as rows; there may be no column."""
    rows = zip(*columns, strict=True) if columns else itertools.repeat((), count)
    return [dict(zip(names, row, strict=True)) for row in rows]


def _divided(parts: Sequence[Any], sizes: Iterable[int]) -> list[list[Any]]:
    """Divide the parts of all lists among these lists."""
    rest = iter(parts)
    return [list(itertools.islice(rest, size)) for size in sizes]


def _nested(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


_CHECKS: Mapping[int, _Check] = {
    lib.Type_INT8: _each(_whole),
    lib.Type_INT16: _each(_whole),
    lib.Type_INT32: _each(_whole),
    lib.Type_INT64: _each(_whole),
    lib.Type_HALF_FLOAT: _floats,
    lib.Type_FLOAT: _floats,
    lib.Type_DOUBLE: _floats,
    lib.Type_DATE32: _each(_date),
    lib.Type_TIMESTAMP: _each(_moment),
    lib.Type_DURATION: _each(_duration),
    lib.Type_TIME32: _each(_time_of_day),
    lib.Type_TIME64: _each(_time_of_day),
    lib.Type_LIST: _lists,
    lib.Type_LARGE_LIST: _lists,
    lib.Type_MAP: _pairs,
    lib.Type_STRUCT: _structs,
}
"""By the id of a type: the check of a column's values. Arrow stores values of other types exactly, or raises."""


def _unfit(value: Any, kind: pa.DataType, expected: str = "") -> Exception:
    wanted = f": expected {expected}" if expected else ""
    return ValueError(f"{_shown(value)} ({type(value).__name__}) is not exactly a value of {kind}{wanted}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def python_values(array: pa.Array, *, counts: bool = False) -> list[Any]:
    """Return the values of an array: times with a zone in UTC, maps as dicts, and a date or time outside the years 1
    to 9999 as an int, the days or microseconds since 1970. With `counts`, every date and time is such an int. Raises
    UnicodeDecodeError for a text that is not UTF-8.

    A map whose keys are structs, lists or maps is a list of pairs, because these cannot be keys of a dict.
    """
    kind = array.type
    if pa.types.is_timestamp(kind):
        # Not by Arrow, which asks for the time zone for each value; and Python may not know the session's.
        since = _EPOCH if kind.tz is None else _EPOCH.replace(tzinfo=UTC)
        found = array.cast(pa.timestamp("us", kind.tz)).view(pa.int64()).to_pylist()
        return list(found) if counts else _times(found, since, _MICROSECOND)
    if pa.types.is_date(kind):
        found = array.cast(pa.date32()).view(pa.int32()).to_pylist()
        return list(found) if counts else _times(found, _EPOCH.date(), _DAY)
    if pa.types.is_struct(kind):
        names = [kind.field(at).name for at in range(kind.num_fields)]
        columns = [python_values(part, counts=counts) for part in array.flatten()]
        return _where_valid(array, _rows(names, columns, len(array)))
    if pa.types.is_map(kind):
        return _maps(array, counts=counts)
    if _is_list(kind):
        parts = python_values(_used(array, array.values), counts=counts)
        return _where_valid(array, _divided(parts, _sizes(array)))
    return list(array.to_pylist())


def _times(counts: Sequence[int | None], since: date, unit: timedelta) -> list[Any]:
    try:
        return [None if value is None else since + value * unit for value in counts]
    except OverflowError:
        return [_time(value, since, unit) for value in counts]


def _time(value: int | None, since: date, unit: timedelta) -> date | int | None:
    try:
        return None if value is None else since + value * unit
    except OverflowError:
        return value


def _maps(array: pa.Array, *, counts: bool) -> list[Any]:
    keys = python_values(_used(array, array.keys), counts=counts)
    items = python_values(_used(array, array.items), counts=counts)
    divided = _divided(list(zip(keys, items, strict=True)), _sizes(array))
    if _nested(array.type.key_type):
        return _where_valid(array, divided)
    if any(_twice([key for key, _ in some]) for some in divided):
        raise ValueError("a map has a key twice")
    return _where_valid(array, [dict(some) for some in divided])


def _used(array: pa.Array, parts: pa.Array) -> pa.Array:
    """Return the parts that belong to the lists or maps of an array, which may be a slice."""
    first, end = (array.offsets[at].as_py() for at in (0, -1))
    return parts.slice(first, end - first)


def _sizes(array: pa.Array) -> Iterator[int]:
    return (end - first for first, end in itertools.pairwise(array.offsets.to_pylist()))


def _where_valid(array: pa.Array, values: Sequence[Any]) -> list[Any]:
    if not array.null_count:
        return list(values)
    return [
        value if valid else None for value, valid in zip(values, array.is_valid().to_pylist(), strict=True)
    ]


# The module is sent to the executors by value, as `by_row` is.
register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
