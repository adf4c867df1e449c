"""What does a record look like whose value was decoded, or could not be?

The decoded value stands in the place of the bytes, and beside it `outcome` and `error`. It is one form for every
format, so that a handler does not care which one it was.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from sharequeue.spark.contract import ACCEPT, REJECT

DECODED = "sharequeue_decoded"
"""The column in which a format leaves what it made of the bytes, until `decided` puts it into its place."""
NOTHING = "no value"


def of_registry(raw: Column) -> Column:
    """Return whether bytes begin as a registry's serializers begin them: a zero byte, four of a schema id."""
    return (fn.length(raw) >= 5) & (fn.substring(raw, 1, 1) == fn.lit(b"\0"))


def shown(raw: Column) -> Column:
    """Return how many bytes there are, and how they begin: for the error of a record."""
    beginning = fn.when(fn.length(raw) == 0, fn.lit("")).otherwise(
        fn.concat(fn.lit(", beginning with 0x"), fn.lower(fn.hex(fn.substring(raw, 1, 8))))
    )
    return fn.concat(fn.length(raw).cast("string"), fn.lit(" bytes"), beginning)


def decided(records: DataFrame, column: str, value: Column, error: Column) -> DataFrame:
    """Put `value` in the place of `column`, null where `error` is not, and the outcome of that beside it.

    `records` has what the format has made in `DECODED`, which is dropped. Bytes that are null are an error, too.
    Where `records` has an outcome already, because another column of it was decoded, an earlier failure stays.
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
