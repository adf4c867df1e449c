"""Decode JSON; reject records that are not JSON.

Spark parses the first value of a text and ignores the rest, so a text is also read as the first of two items of an
array. The second item has a random text: a record that closes the array itself does not know it.

A decimal is the one type whose parser may work without bound: `1e100000000` has twenty bytes, and a hundred million
digits. So a value that would be read as a decimal is refused before it is parsed if its exponent has four digits or
if it is longer than a number may be. Spark's parser itself limits the length of numbers and the depth of nesting
(1,000 each).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from sharequeue.spark.formats.decoded_column import DECODED, decided, of_registry, shown
from sharequeue.spark.nested_parts import any_part, parts_of

_MALFORMED = "sharequeue_malformed"
_END = "sharequeue_end"
_OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _MALFORMED,
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
}

MOST_DIGITS = 1000
"""The longest number, as for numbers in JSON that are not in quotes."""
_LONG_EXPONENT = "[eE][-+]?0*[1-9][0-9]{3}"
# Java ignores commas in a decimal in quotes; \\u may hide any character of it. A text without a match needs no look.
_SUSPECT = rf"[eE][-+,]*[0-9][0-9,]{{3}}|\\u00|[-+0-9.,]{{{MOST_DIGITS}}}"
_LONG_NUMBER = rf"[:\[,]\s*-?[0-9]+(?:\.[0-9]+)?{_LONG_EXPONENT}[0-9]*\s*[,}}\]]"


_ONE_BRACE = r"\A[^}]*\}\s*\z"
"""An object without objects inside it, and without braces in its texts: it ends where the text ends."""
_HIGH, _LOW = r"\\u[dD][89aAbB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_LONE = f"{_HIGH}(?!{_LOW})|(?<!{_HIGH}){_LOW}"
_HUGE = "[0-9][eE][+]?[0-9]{3}|[0-9]{309}"
_AS_SPARK_WRITES = r"\A-?[0-9]+\.[0-9]+(E-?[0-9]+)?\z"
_DIGITS_OF_A_DOUBLE = 17
_LOST_DIGITS = "a number with more digits than Spark keeps in a string: read it as a decimal"
_AS_SPARK_WRITES_HUGE = ('"Infinity"', '"-Infinity"')


def json(records: DataFrame, schema: str | StructType, *, column: str = "value") -> DataFrame:
    """Decode a column of JSON objects in place, as a struct of `schema`, a DDL string or a type.

    The rows get `outcome` and `error`: accept, or reject with the reason where the bytes are empty or not JSON, where
    a field has another type, or where the value is null. `NaN` and `Infinity` are not JSON; a number that is infinite
    in its type (1e400), and half a surrogate pair (`"\\ud800"`), are refused. So is a number with an exponent of four
    digits, or more than 1,000 characters, if the schema has a decimal. A missing field is null. The five bytes that
    the serializer of a schema registry puts before JSON are skipped: JSON never begins with a zero byte.
    """
    wanted: Any = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    raw = fn.col(column)
    text = fn.when(of_registry(raw), fn.substring(raw, 6, 2**31 - 1)).otherwise(raw).cast("string")
    found, refused = fn.col(DECODED), _without_bound(text, wanted)
    value = found.dropFields(_MALFORMED)
    whole = (
        (found.isNotNull() & found[_MALFORMED].isNull())
        & (text.rlike(r"\A\s*\{") & fn.is_valid_utf8(text) & ~_has_lone_surrogate(text))
        & (text.rlike(_ONE_BRACE) | _is_one_value(text, StructType([StructField(_END, StringType())])))
    )
    error = fn.when(~fn.coalesce(whole, fn.lit(False)), _reason(raw, text, value, wanted)).when(
        _is_infinite(value, wanted, text), fn.lit("a number that is too large for its type")
    )
    error = error.when(_has_lost_digits(value, wanted, text), fn.lit(_LOST_DIGITS))
    parsed = _parsed(text, wanted)
    if refused is not None:
        parsed = fn.when(~refused, parsed)
        too_long = fn.lit(
            f"a number with an exponent of four digits, or more than {MOST_DIGITS:,} characters"
        )
        error = fn.when(found.isNull() & refused, too_long).otherwise(error)
    return decided(records.withColumn(DECODED, parsed), column, value, error)


def _without_bound(text: Column, wanted: StructType) -> Column | None:
    """Return whether a text has a decimal that cannot be parsed in a bounded time; None if no part is a decimal."""
    if not any(isinstance(each, DecimalType) for each in parts_of(wanted)):
        return None

    def too_long(part: Column, _: DataType) -> Column:
        plain = fn.replace(part, fn.lit(","), fn.lit(""))
        return (fn.length(part) > MOST_DIGITS) | plain.rlike(_LONG_EXPONENT)

    as_texts: Any = _as_texts(wanted)
    in_quotes = any_part(
        _parsed(text, as_texts), wanted, lambda kind: isinstance(kind, DecimalType), too_long
    )
    # A condition, so that no other text is parsed twice.
    long = fn.when(text.rlike(_SUSPECT), text.rlike(_LONG_NUMBER) | in_quotes)
    return fn.coalesce(long, fn.lit(False))


def _as_texts(kind: DataType) -> DataType:
    """Return a type with texts in place of its decimals."""
    if isinstance(kind, DecimalType):
        return StringType()
    if isinstance(kind, ArrayType):
        return ArrayType(_as_texts(kind.elementType), kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(kind.keyType, _as_texts(kind.valueType), kind.valueContainsNull)
    if isinstance(kind, StructType):
        return StructType(
            [StructField(each.name, _as_texts(each.dataType), each.nullable) for each in kind.fields]
        )
    return kind


def _parsed(text: Column, kind: StructType) -> Column:
    """Return the object at the beginning of a text, and `_MALFORMED`, which is null if it could be read."""
    return fn.from_json(text, StructType([*kind.fields, StructField(_MALFORMED, StringType())]), _OPTIONS)


def _is_one_value(text: Column, kind: DataType) -> Column:
    """Return whether a text is one JSON value and nothing else: of any kind if it is read as a text, otherwise an
    object.
    """
    secret = secrets.token_hex(16)
    end = f'{{"{_END}":"{secret}"}}'
    both = fn.from_json(fn.concat(fn.lit("["), text, fn.lit(f",{end}]")), ArrayType(kind), _OPTIONS)
    last = fn.get(both, fn.lit(1))
    ends = last == end if isinstance(kind, StringType) else last[_END] == secret
    return fn.coalesce((fn.size(both) == 2) & ends, fn.lit(False))


def _has_lone_surrogate(text: Column) -> Column:
    """Return whether a text in a text is not Unicode. Spark would read a question mark."""
    without_backslashes = fn.regexp_replace(text, r"\\\\", "")
    return text.rlike(f"{_HIGH}|{_LOW}") & without_backslashes.rlike(_LONE)


def _is_infinite(value: Column, wanted: StructType, text: Column) -> Column:
    """Return whether a number was too large for its type, or for the text that Spark makes of a number."""

    def special(part: Column, kind: DataType) -> Column:
        if isinstance(kind, StringType):
            return part.isin(*_AS_SPARK_WRITES_HUGE) & text.rlike(_HUGE)
        return fn.abs(part) == float("inf")

    kinds = (DoubleType, FloatType, StringType)
    return any_part(value, wanted, lambda kind: isinstance(kind, kinds), special)


def _has_lost_digits(value: Column, wanted: StructType, text: Column) -> Column:
    """Return whether a number was read as a text with other digits: Spark writes one with a fraction as a double."""

    def lost(part: Column, _: DataType) -> Column:
        return (fn.length(part) >= _DIGITS_OF_A_DOUBLE) & part.rlike(_AS_SPARK_WRITES) & ~text.contains(part)

    return any_part(value, wanted, lambda kind: isinstance(kind, StringType), lost)


def _reason(raw: Column, text: Column, value: Column, wanted: StructType) -> Column:
    """Return why a text is not an object of the schema. Spark parses such a text twice more, and no other.

    Spark gives null for a field that does not fit. It does not tell which part of a field.
    """
    fields = fn.from_json(text, "map<string, string>", _OPTIONS)

    def named(chosen: Callable[[StructField], bool | Column]) -> Column:
        return fn.concat_ws(
            ", ",
            *(
                fn.when(
                    fields[field.name].isNotNull() & chosen(field),
                    fn.lit(f"{field.name} ({field.dataType.typeName()})"),
                )
                for field in wanted.fields
            ),
        )

    unfit = named(lambda field: value[field.name].isNull())
    with_parts = named(lambda field: isinstance(field.dataType, (StructType, ArrayType, MapType)))
    return (
        fn.when(text.rlike(r"\A\s*\z"), fn.lit("empty: expected a JSON object"))
        .when(~fn.is_valid_utf8(text), fn.concat(fn.lit("not UTF-8: "), shown(raw)))
        .when(~_is_one_value(text, StringType()), fn.concat(fn.lit("not JSON: "), shown(raw)))
        .when(_has_lone_surrogate(text), fn.lit("not Unicode: half of a surrogate pair"))
        .when(~text.rlike(r"\A\s*\{"), fn.lit("JSON, but not an object"))
        .when(unfit != "", fn.concat(fn.lit("a field of another type than the schema's: "), unfit))
        .otherwise(
            fn.concat(
                fn.lit("a part of another type than the schema's, in one of these fields: "), with_parts
            )
        )
    )
