"""Decode JSON; reject records that are not JSON.

A decimal is the one type whose parser may work without bound: `1e100000000` has twenty bytes, and a hundred million
digits. So a value that would be read as a decimal is refused before it is parsed if its exponent has four digits or
if it is longer than a number may be. Spark's parser itself limits the length of numbers and the depth of nesting
(1,000 each).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DecimalType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from sharequeue.spark.formats.decoded_column import DECODED, decided, of_registry, shown

_MALFORMED = "sharequeue_malformed"
_END = "sharequeue_end"
"""The text that must follow the object. Spark parses the first value of a text and ignores the rest."""

MOST_DIGITS = 1000
"""The longest number, as for numbers in JSON that are not in quotes."""
_LONG_EXPONENT = "[eE][-+]?0*[1-9][0-9]{3}"
# Java ignores commas in a decimal in quotes; \\u may hide any character of it. A text without a match needs no look.
_SUSPECT = rf"[eE][-+,]*[0-9][0-9,]{{3}}|\\u00|[-+0-9.,]{{{MOST_DIGITS}}}"
_LONG_NUMBER = rf"[:\[,]\s*-?[0-9]+(?:\.[0-9]+)?{_LONG_EXPONENT}[0-9]*\s*[,}}\]]"


def json(records: DataFrame, schema: str | StructType, *, column: str = "value") -> DataFrame:
    """Decode a column of JSON objects in place, as a struct of `schema`, a DDL string or a type.

    The rows get `outcome` and `error`: accept, or reject with the reason where the bytes are empty or not JSON, where
    a field has another type, or where the value is null. A number with an exponent of four digits, or more than 1,000
    characters, is refused if the schema has a decimal. A missing field is null. The five bytes that the serializer
    of a schema registry puts before JSON are skipped: JSON never begins with a zero byte.
    """
    wanted: Any = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    raw = fn.col(column)
    text = fn.when(of_registry(raw), fn.substring(raw, 6, 2**31 - 1)).otherwise(raw).cast("string")
    found, refused = fn.col(DECODED), _without_bound(text, wanted)
    whole = found["value"].isNotNull() & _is_whole(found) & fn.is_valid_utf8(text)
    error = fn.when(~fn.coalesce(whole, fn.lit(False)), _reason(raw, text, found["value"], wanted))
    parsed = _parsed(text, wanted)
    if refused is not None:
        parsed = fn.when(~fn.coalesce(refused, fn.lit(False)), parsed)
        too_long = fn.lit(
            f"a number with an exponent of four digits, or more than {MOST_DIGITS:,} characters"
        )
        error = fn.when(found.isNull() & raw.isNotNull(), too_long).otherwise(error)
    return decided(records.withColumn(DECODED, parsed), column, found["value"], error)


def _without_bound(text: Column, wanted: StructType) -> Column | None:
    """Return whether a text has a decimal that cannot be parsed in a bounded time; None if no part is a decimal."""
    texts = _as_texts(wanted)
    if texts == wanted:
        return None
    in_quotes = _any_decimal(_parsed(text, texts)["value"], wanted)
    # A condition, so that no other text is parsed twice.
    return fn.when(text.rlike(_SUSPECT), text.rlike(_LONG_NUMBER) | fn.coalesce(in_quotes, fn.lit(False)))


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


def _any_decimal(value: Column, kind: DataType) -> Column:
    """Return whether a value has a decimal, read as a text, that is too long or has too long an exponent."""
    if isinstance(kind, DecimalType):
        plain = fn.replace(value, fn.lit(","), fn.lit(""))
        return fn.coalesce((fn.length(value) > MOST_DIGITS) | plain.rlike(_LONG_EXPONENT), fn.lit(False))
    if isinstance(kind, ArrayType):
        return _any_part(value, kind.elementType)
    if isinstance(kind, MapType):
        return _any_part(fn.map_values(value), kind.valueType)
    if isinstance(kind, StructType):
        parts = [
            _any_decimal(value[each.name], each.dataType)
            for each in kind.fields
            if _has_decimal(each.dataType)
        ]
        return reduce(or_, parts, fn.lit(False))
    return fn.lit(False)


def _any_part(values: Column, kind: DataType) -> Column:
    if not _has_decimal(kind):
        return fn.lit(False)
    return fn.coalesce(fn.exists(values, lambda each: _any_decimal(each, kind)), fn.lit(False))


def _has_decimal(kind: DataType) -> bool:
    return _as_texts(kind) != kind


def _parsed(text: Column, kind: DataType) -> Column:
    """Return the JSON value of a text as this type, in `value`; `_is_whole` tells whether that is all of it."""
    return fn.from_json(
        fn.concat(fn.lit('{"value":'), text, fn.lit(f',"{_END}":true}}')),
        StructType(
            [
                StructField("value", kind),
                StructField(_END, BooleanType()),
                StructField(_MALFORMED, StringType()),
            ]
        ),
        {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _MALFORMED, "allowSingleQuotes": "false"},
    )


def _is_whole(parsed: Column) -> Column:
    return fn.coalesce(parsed[_END] & parsed[_MALFORMED].isNull(), fn.lit(False))


def _reason(raw: Column, text: Column, value: Column, wanted: StructType) -> Column:
    """Return why a text is not an object of the schema. Spark parses such a text twice more, and no other.

    Spark gives null for a field that does not fit. It does not tell which part of a field.
    """
    fields = _parsed(text, MapType(StringType(), StringType()))

    def named(chosen: Callable[[StructField], bool | Column]) -> Column:
        return fn.concat_ws(
            ", ",
            *(
                fn.when(
                    fields["value"][field.name].isNotNull() & chosen(field),
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
        .when(~_is_whole(_parsed(text, StringType())), fn.concat(fn.lit("not JSON: "), shown(raw)))
        .when(fields["value"].isNull() | ~_is_whole(fields), fn.lit("JSON, but not an object"))
        .when(unfit != "", fn.concat(fn.lit("a field of another type than the schema's: "), unfit))
        .otherwise(
            fn.concat(
                fn.lit("a part of another type than the schema's, in one of these fields: "), with_parts
            )
        )
    )
