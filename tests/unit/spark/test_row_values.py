"""A value that a row's function returns is stored as it is, or raises; a record's values are those of the record."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row

from sharequeue.spark.row_values import exact_array, python_values

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
PLUS_TWO = datetime(2024, 1, 1, 14, tzinfo=timezone(timedelta(hours=2)))
NAIVE = datetime(2024, 1, 1, 12)
NANOSECOND = pd.Timestamp("2024-01-01 12:00:00.000000001", tz="UTC")

KEPT: dict[str, tuple[tuple[Any, Any], ...]] = {
    "tinyint": ((127, 127), (-128, -128), (1.0, 1), (np.int64(5), 5)),
    "smallint": ((Decimal(2), 2), (Fraction(4, 2), 2)),
    "int": ((2**31 - 1, 2**31 - 1), (np.float32(3), 3)),
    "bigint": ((-(2**63), -(2**63)), (None, None)),
    "float": ((0.1, float(np.float32(0.1))), (2**24, 2.0**24), (float("inf"), float("inf"))),
    "double": ((0.1, 0.1), (2**53, 2.0**53), (np.float32(0.5), 0.5), (Fraction(1, 2), 0.5)),
    "decimal(10,2)": ((Decimal("1.2"), Decimal("1.20")), (7, Decimal("7.00"))),
    "boolean": ((True, True), (np.bool_(False), False)),
    "string": (("a", "a"), (b"a", "a"), ("", "")),
    "binary": ((b"\xff", b"\xff"), (bytearray(b"a"), b"a"), ("a", b"a")),
    "date": ((date(1, 1, 1), date(1, 1, 1)), (datetime(2024, 1, 1), date(2024, 1, 1))),
    "timestamp": ((NOON, NOON), (PLUS_TWO, NOON), (NAIVE, NOON), (pd.Timestamp(NOON), NOON)),
    "timestamp_ntz": ((NAIVE, NAIVE), (date(2024, 1, 1), datetime(2024, 1, 1))),
    "interval day to second": ((timedelta(microseconds=1), timedelta(microseconds=1)),),
    "array<int>": (([1, None], [1, None]), ((1,), [1]), (np.array([1, 2]), [1, 2]), (range(2), [0, 1])),
    "map<string,int>": (({"a": 1}, {"a": 1}), ([("a", None)], {"a": None}), ({}, {})),
    "struct<x:int,y:string>": (
        ({"x": 1}, {"x": 1, "y": None}),
        ((1, "a"), {"x": 1, "y": "a"}),
        (Row(y="a", x=1), {"x": 1, "y": "a"}),
    ),
    "array<struct<m:map<string,array<int>>>>": (([{"m": {"a": [1]}}], [{"m": {"a": [1]}}]),),
}
REFUSED: dict[str, tuple[Any, ...]] = {
    "tinyint": (128, -129, 1.5, True, "1", b"1"),
    "smallint": (32768, np.bool_(True)),
    "int": (1.5, np.float64(1.5), Decimal("1.5"), Fraction(3, 2), 2**31, float("nan"), float("inf"), 1 + 0j),
    "bigint": (2**63, 1e19, "12", pd.NA, pd.NaT, NOON),
    "float": (1e300, 1e-300, 2**24 + 1, True, "1.5", 10**400),
    "double": (2**53 + 1, True, Fraction(1, 3), Decimal("1.00000000000000000001"), "1.5", np.bool_(True)),
    "decimal(10,2)": (Decimal("1.2345"), Decimal("1e9"), 1.5, True, "1.5", Decimal("NaN")),
    "boolean": (1, "true", 0.0),
    "string": (5, b"\xff", "\ud800", ["a"], float("nan"), pd.NA),
    "binary": (5, [1, 2]),
    "date": (NAIVE, NOON, pd.NaT, 5, "2024-01-01"),
    "timestamp": (date(2024, 1, 1), 5, 1.7e9, "2024-01-01", pd.NaT, NANOSECOND, np.datetime64("NaT", "us")),
    "timestamp_ntz": (NOON, PLUS_TWO, pd.NaT, 5, np.datetime64("2024-01-01", "ns")),
    "interval day to second": (1.5, 1, pd.Timedelta(1, "ns"), pd.NaT),
    "array<int>": ("red", b"red", [1.5], np.array([1.5]), {1, 2}, {1: 2}, 5, ["1"]),
    "array<string>": ("red", [1], {"a"}),
    "map<string,int>": ({"a": 1.5}, {None: 1}, [("a", 1), ("a", 2)], "a", [("a", 1, 2)], 5, {1: 1}),
    "struct<x:int,y:string>": ({"x": 1.5}, {"z": 1}, (1,), [1, "a"], "ab", {"y": ["a"]}),
    "array<struct<m:map<string,array<int>>>>": ([{"m": {"a": [1, 1.5]}}], [{"m": {"a": "12"}}]),
}


NESTED = pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.int32())))])
KINDS = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "decimal(10,2)": pa.decimal128(10, 2),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "interval day to second": pa.duration("us"),
    "array<int>": pa.list_(pa.int32()),
    "array<string>": pa.list_(pa.string()),
    "map<string,int>": pa.map_(pa.string(), pa.int32()),
    "struct<x:int,y:string>": pa.struct([("x", pa.int32()), ("y", pa.string())]),
    "array<struct<m:map<string,array<int>>>>": pa.list_(NESTED),
}
"""The types of Spark, as `arrow_schema` converts them."""


def field_of(kind: str) -> pa.Field:
    return pa.field("a", KINDS[kind])


@pytest.mark.parametrize("kind", KEPT)
def test_a_value_that_its_column_can_hold_is_stored_as_it_is(kind: str) -> None:
    """Also several at once, and read again as the record of another row."""
    given, wanted = zip(*KEPT[kind], (None, None), strict=True)
    found = exact_array(list(given), field_of(kind))
    assert python_values(found) == list(wanted)
    found.validate(full=True)


@pytest.mark.parametrize("kind", REFUSED)
def test_a_value_that_its_column_cannot_hold_raises(kind: str) -> None:
    """Whatever Arrow would make of it."""
    for value in REFUSED[kind]:
        with pytest.raises((TypeError, ValueError, OverflowError, KeyError, pa.ArrowException)):
            pytest.fail(f"{value!r} became {exact_array([value], field_of(kind))!r}")


def test_a_time_of_day_is_stored_as_it_is_or_raises() -> None:
    """A type of Spark since 4.1, in nanoseconds in Arrow."""
    field = pa.field("a", pa.time64("ns"))
    assert exact_array([time(1, 2, 3, 4)], field).to_pylist() == [time(1, 2, 3, 4)]
    for value in (time(1, tzinfo=UTC), NAIVE, 5):
        with pytest.raises(ValueError, match="expected a time without a time zone"):
            exact_array([value], field)


def test_null_in_a_part_that_must_not_be_null_raises() -> None:
    """Spark would read a zero."""
    part = pa.field("element", pa.int32(), nullable=False)
    with pytest.raises(ValueError, match="null in element"):
        exact_array([[1, None]], pa.field("a", pa.list_(part)))


def test_the_error_names_value_type_and_expectation() -> None:
    """In a length that a dead letter can hold."""
    with pytest.raises(
        ValueError, match=r"^'red' \(str\) is not exactly a value of list<.*>: expected a list$"
    ):
        exact_array(["red"], field_of("array<string>"))
    with pytest.raises(ValueError, match=r"^1\.5 \(float\) is not exactly a value of int32$"):
        exact_array([1.5], field_of("int"))
    with pytest.raises(ValueError, match="…") as raised:
        exact_array(["a" * 1_000_000], field_of("int"))
    assert len(str(raised.value)) < 500


def test_times_are_in_utc_wherever_they_are_in_a_value() -> None:
    """Also in a session whose time zone only Java knows, such as GMT+8 or PST, and in a part of a batch."""
    moment = pa.timestamp("us", "GMT+8")
    kinds = (moment, pa.list_(moment), pa.map_(pa.string(), moment), pa.struct([("at", moment)]))
    values: tuple[Any, ...] = (0, [0, None], [("a", 0)], {"at": 0})
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    wanted: tuple[Any, ...] = (epoch, [epoch, None], {"a": epoch}, {"at": epoch})
    for kind, value, expected in zip(kinds, values, wanted, strict=True):
        array = pa.array([value, None, value, None], kind)
        assert python_values(array) == [expected, None, expected, None]
        assert python_values(array.slice(1, 2)) == [None, expected]
    assert python_values(pa.array([], kinds[1])) == []


def test_a_map_is_a_dict_wherever_it_is_in_a_value() -> None:
    """Unless its keys cannot be the keys of one; a key that is there twice raises."""
    kind = pa.map_(pa.string(), pa.map_(pa.int32(), pa.string()))
    assert python_values(pa.array([[("a", [(1, "b")])], []], kind)) == [{"a": {1: "b"}}, {}]
    of_lists = pa.map_(pa.list_(pa.int32()), pa.int32())
    assert python_values(pa.array([[([1], 2)]], of_lists)) == [[([1], 2)]]
    with pytest.raises(ValueError, match="a key twice"):
        python_values(pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int32())))


def test_a_time_that_python_cannot_represent_is_an_int() -> None:
    """Microseconds, or days, since 1970; its neighbours are times."""
    far = 1_700_000_000_000_000_000
    assert python_values(pa.array([far, 0, None], pa.timestamp("us", "UTC"))) == [
        far,
        datetime(1970, 1, 1, tzinfo=UTC),
        None,
    ]
    assert python_values(pa.array([[5_000_000]], pa.list_(pa.date32()))) == [[5_000_000]]


def test_every_date_and_time_is_an_int_where_counts_are_asked_for() -> None:
    """So that a time that Python cannot represent is no exception, at any depth and whatever its unit in Arrow."""
    kinds = (pa.timestamp("us"), pa.timestamp("ms", "GMT+8"), pa.date32())
    for kind, expected in zip(kinds, (1, 1000, 1), strict=True):
        assert python_values(pa.array([1, None], kind), counts=True) == [expected, None]
        nested = pa.map_(pa.string(), pa.list_(pa.struct([("at", kind)])))
        assert python_values(pa.array([[("k", [{"at": 1}])]], nested), counts=True) == [
            {"k": [{"at": expected}]}
        ]
