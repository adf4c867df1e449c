"""Which columns of Postgres hold the values of a column of Spark unchanged, and which single values they change.

Postgres changes some values without an error: 1.2345 in a `numeric(10,2)` becomes 1.23, a time in a `timestamptz(0)`
may become the next day. A type that changes values of another type is refused before a lease. Where it depends on the
value, the value is staged a second time, beside the column, in a type that does not change it (a witness): the row
is refused if the two differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from psycopg2 import sql
from pyspark.sql import types

from sharequeue.spark.nested_parts import any_part, parts_of
from sharequeue.spark.sinks.postgres.copy import ATTEMPT, OFFSET

NESTED = (types.ArrayType, types.MapType, types.StructType)
_WITNESS = "sharequeue_witness_"
_TEXTS = frozenset({"text", "varchar", "bpchar", "citext"})
_JSON = frozenset({"json", "jsonb"})
_WHOLE = frozenset({"numeric", *_TEXTS, *_JSON})
_HELD: Mapping[type[types.DataType], frozenset[str]] = {
    types.BooleanType: frozenset({"bool", *_TEXTS, *_JSON}),
    types.ByteType: frozenset({"int2", "int4", "int8", "float4", "float8", *_WHOLE}),
    types.ShortType: frozenset({"int2", "int4", "int8", "float4", "float8", *_WHOLE}),
    types.IntegerType: frozenset({"int4", "int8", "float8", *_WHOLE}),
    types.LongType: frozenset({"int8", *_WHOLE}),
    types.FloatType: frozenset({"float4", "float8", *_WHOLE}),
    types.DoubleType: frozenset({"float8", *_WHOLE}),
    types.DecimalType: _WHOLE,
    types.DateType: frozenset({"date", "timestamp", *_TEXTS}),
    types.TimestampType: frozenset({"timestamptz", "timestamp", *_TEXTS}),
    types.TimestampNTZType: frozenset({"timestamp", *_TEXTS}),
    types.BinaryType: frozenset({"bytea"}),
    **dict.fromkeys(NESTED, _TEXTS | _JSON),
}
"""By Spark type: the types of Postgres that hold its values. A string goes to any type that reads a text, and a
column of nulls to all.
"""
_ROUNDS = "money"
"""It rounds to cents, and reads numbers by the locale of the server."""
_WITHOUT_ZONE = (types.DateType, types.TimestampNTZType)
_KEYS = (
    *(types.StringType, types.BooleanType, types.DecimalType),
    *(types.ByteType, types.ShortType, types.IntegerType, types.LongType),
)
"""The types of a map's keys that JSON can have."""
_FLOATS = (types.FloatType, types.DoubleType)


def why_not_held(kind: types.DataType, there: str) -> str | None:
    """Return why a type of Postgres does not hold the values of a Spark type, after "in table …"; None if it does."""
    if isinstance(kind, types.NullType):
        return None
    if isinstance(kind, types.StringType):
        return f"it is {there}, which rounds: change it to numeric there" if there == _ROUNDS else None
    if isinstance(kind, NESTED) and there not in _TEXTS | _JSON:
        name = "an array" if there == "[]" else there
        return f"it is {name}, and such a column is copied as JSON: change it to json or jsonb there"
    if isinstance(kind, _WITHOUT_ZONE) and there in ("timestamptz", "timetz"):
        return "it has a time zone, and the handler's has none: set it with `cast(… as timestamp_ltz)`"
    if there not in _HELD[type(kind)]:
        return (
            f"it is {there}, which cannot hold all of it: alter the column there, or cast it in the handler"
        )
    return None


def unwritable_key(kind: types.DataType) -> types.DataType | None:
    """Return the type of a map's keys, at any depth, that JSON has no form for; None if there is none."""
    maps = (each for each in parts_of(kind) if isinstance(each, types.MapType))
    return next((each.keyType for each in maps if not isinstance(each.keyType, _KEYS)), None)


@dataclass(frozen=True, slots=True)
class Witness:
    """The second copy of a column in the staging table."""

    column: str
    name: str
    type: str
    """Its type in Postgres, as the catalog writes it."""
    changed: str
    """The condition under which the column does not have the value, on `{column}` and `{witness}`."""
    reason: str
    """With `{column}` and `{witness}`, as an expression."""
    value: Callable[[str], str] = str
    """The value that is copied into it, as an expression in Spark's SQL of the column's quoted name."""

    def of(self, text: str) -> sql.Composable:
        """Return an expression with the names of both columns."""
        return sql.SQL(text).format(column=sql.Identifier(self.column), witness=sql.Identifier(self.name))


_DIFFERENT = "{column} is distinct from {witness}"
_BOTH = "left(cast({witness} as text), 200) || ' would become ' || left(cast({column} as text), 200)"


def witness(
    number: int, column: str, kind: types.DataType, there: str, unlimited: str | None
) -> Witness | None:
    """Return the witness of a column: `there` is its type in Postgres, and `unlimited` the same without a length,
    precision or scale if it has one. None if the column changes no value.
    """
    name = f"{_WITNESS}{number}"
    if isinstance(kind, NESTED):
        if not any(isinstance(each, _FLOATS) for each in parts_of(kind)):
            return None
        said = "'a part of it is NaN or infinite, which JSON cannot have'"
        return Witness(column, name, "boolean", "not {witness}", said, lambda value: _finite(value, kind))
    if isinstance(kind, types.StringType) and there in ("date", "timestamp"):
        # A time zone, or the time of a date, in a text is ignored. The session's time zone is UTC.
        changed = "cast({column} as timestamptz) is distinct from {witness}"
        return Witness(column, name, "timestamptz", changed, _BOTH)
    if isinstance(kind, types.StringType) and there == "time":
        changed = "cast({column} as timetz) is distinct from {witness}"
        return Witness(column, name, "timetz", changed, _BOTH)
    if isinstance(kind, types.StringType) and there in ("name", "char"):
        return Witness(column, name, "text", "cast({column} as text) is distinct from {witness}", _BOTH)
    return Witness(column, name, unlimited, _DIFFERENT, _BOTH) if unlimited else None


def _finite(value: str, kind: types.DataType) -> str:
    def special(part: str, _: types.DataType) -> str:
        return f"(isnan({part}) or abs({part}) = double('Infinity'))"

    return "not " + any_part(value, kind, lambda part: isinstance(part, _FLOATS), special)


def changed_rows(
    staging: sql.Composable, witnesses: Iterable[Witness], attempts: Iterable[str]
) -> sql.Composable:
    """Return a query for the offsets whose staged values are changed, each with the reason."""
    given = list(witnesses)
    cases = sql.SQL(" ").join(
        sql.SQL("when {} then {} || {}").format(
            each.of(each.changed), sql.Literal(f"ValueChanged: column {each.column}: "), each.of(each.reason)
        )
        for each in given
    )
    return sql.SQL(
        "select {offset}, case {cases} end from {staging}"
        " where {attempt} = any (cast({attempts} as text[])) and ({changed})"
    ).format(
        offset=sql.Identifier(OFFSET),
        cases=cases,
        staging=staging,
        attempt=sql.Identifier(ATTEMPT),
        attempts=sql.Literal(list(attempts)),
        changed=sql.SQL(" or ").join(each.of(each.changed) for each in given),
    )
