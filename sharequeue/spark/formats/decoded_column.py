"""Put a decoded value and its outcome into a record.

The decoded value replaces the bytes; `outcome` and `error` are added. The form is the same for every format, so that
a handler does not depend on the format.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from sharequeue.spark.handler import ACCEPT, REJECT

DECODED = "sharequeue_decoded"
"""The column in which a format stores the decoded value, until `decided` moves it to its final column."""
NOTHING = "no value"


def of_registry(raw: Column) -> Column:
    """Return whether bytes begin like those of a registry's serializer: a zero byte, then four bytes of schema id."""
    return (fn.length(raw) >= 5) & (fn.substring(raw, 1, 1) == fn.lit(b"\0"))


def shown(raw: Column) -> Column:
    """Return the number of bytes and the first of them, for the error of a record."""
    beginning = fn.when(fn.length(raw) == 0, fn.lit("")).otherwise(
        fn.concat(fn.lit(", beginning with 0x"), fn.lower(fn.hex(fn.substring(raw, 1, 8))))
    )
    return fn.concat(fn.length(raw).cast("string"), fn.lit(" bytes"), beginning)


def decided(records: DataFrame, column: str, value: Column, error: Column) -> DataFrame:
    """Replace `column` by `value`, or by null where `error` is not null, and add the outcome.

    `records` has the format's result in `DECODED`, which is dropped. Null bytes are an error, too. If `records`
    already has an outcome, because another column was decoded, an earlier failure is kept.
    """
    error = fn.when(fn.col(column).isNull(), fn.lit(NOTHING)).otherwise(error)
    if column != "value":
        error = fn.concat(fn.lit(f"{column}: "), error)
    outcome = fn.when(error.isNotNull(), fn.lit(REJECT)).otherwise(fn.lit(ACCEPT))
    if "error" in records.columns:
        error = fn.coalesce(fn.col("error"), error)
    if "outcome" in records.columns:
        outcome = fn.when(fn.col("outcome") != ACCEPT, fn.col("outcome")).otherwise(outcome)
    failed = records.withColumns({"outcome": outcome, "error": error})
    return failed.withColumn(column, fn.when(fn.col("error").isNull(), value)).drop(DECODED)
