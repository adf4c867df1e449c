"""Decode JSON; reject records that are not JSON."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import BooleanType, StringType, StructField, StructType

from sharequeue.spark.formats.decoded_column import DECODED, decided, of_registry

_MALFORMED = "sharequeue_malformed"
_END = "sharequeue_end"
"""The text that must follow the object. Spark parses the first value of a text and ignores the rest."""


def json(records: DataFrame, schema: str | StructType, *, column: str = "value") -> DataFrame:
    """Decode a column of JSON objects in place, as a struct of `schema`, a DDL string or a type.

    The rows get `outcome` and `error`: accept, or reject with the reason where the bytes are not JSON, where a field
    has another type, or where the value is null. A missing field is null. The five bytes that the serializer of a
    schema registry puts before JSON are skipped: JSON never begins with a zero byte.
    """
    wanted: Any = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    raw = fn.col(column)
    text = fn.when(of_registry(raw), fn.substring(raw, 6, 2**31 - 1)).otherwise(raw).cast("string")
    parsed = fn.from_json(
        fn.concat(fn.lit('{"value":'), text, fn.lit(f',"{_END}":true}}')),
        StructType(
            [
                StructField("value", wanted),
                StructField(_END, BooleanType()),
                StructField(_MALFORMED, StringType()),
            ]
        ),
        {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _MALFORMED, "allowSingleQuotes": "false"},
    )
    found = fn.col(DECODED)
    whole = found["value"].isNotNull() & found[_END] & found[_MALFORMED].isNull() & fn.is_valid_utf8(text)
    error = fn.when(
        ~fn.coalesce(whole, fn.lit(False)),
        fn.lit("not one JSON object of the schema: malformed, or a field of another type"),
    )
    return decided(records.withColumn(DECODED, parsed), column, found["value"], error)
