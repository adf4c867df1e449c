"""Decode JSON; reject records that are not JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import ArrayType, BooleanType, DataType, MapType, StringType, StructField, StructType

from sharequeue.spark.formats.decoded_column import DECODED, decided, of_registry, shown

_MALFORMED = "sharequeue_malformed"
_END = "sharequeue_end"
"""The text that must follow the object. Spark parses the first value of a text and ignores the rest."""


def json(records: DataFrame, schema: str | StructType, *, column: str = "value") -> DataFrame:
    """Decode a column of JSON objects in place, as a struct of `schema`, a DDL string or a type.

    The rows get `outcome` and `error`: accept, or reject with the reason where the bytes are empty or not JSON, where
    a field has another type, or where the value is null. A missing field is null. The five bytes that the serializer
    of a schema registry puts before JSON are skipped: JSON never begins with a zero byte.
    """
    wanted: Any = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    raw = fn.col(column)
    text = fn.when(of_registry(raw), fn.substring(raw, 6, 2**31 - 1)).otherwise(raw).cast("string")
    found = fn.col(DECODED)
    whole = found["value"].isNotNull() & _is_whole(found) & fn.is_valid_utf8(text)
    error = fn.when(~fn.coalesce(whole, fn.lit(False)), _reason(raw, text, found["value"], wanted))
    return decided(records.withColumn(DECODED, _parsed(text, wanted)), column, found["value"], error)


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
