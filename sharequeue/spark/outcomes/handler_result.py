"""Does the result of a handler have the columns that are needed, and an outcome in every row?"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import DataType, IntegerType, LongType, StringType, TimestampType

from sharequeue.spark.contract import KEPT_COLUMNS, OUTCOMES, HandlerError

_TYPES: Mapping[str, DataType] = {
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "lease_id": LongType(),
    "outcome": StringType(),
}


def with_outcomes(handled: DataFrame, unknown: str | None = None) -> DataFrame:
    """Return a handler's result with checked columns `outcome` and `error`.

    An unknown outcome, or null, becomes `unknown`, and `error` says so. Where `unknown` is None it stays as it is, as
    text, and `missing.acknowledgements` refuses it. Raises HandlerError when the result is no DataFrame, when
    `outcome` or a column that identifies the record is missing or of another type, and when `not_before` is no
    timestamp.
    """
    if not isinstance(handled, DataFrame):
        raise HandlerError(
            f"the handler returned a value of type {type(handled).__name__}: expected the DataFrame that it got, "
            "transformed, with the column `outcome` (a handler neither collects nor writes)"
        )
    # Asked for once: `columns` is a call of the JVM for each of them.
    columns = handled.schema.names
    absent = [name for name in (*KEPT_COLUMNS, "outcome") if name not in columns]
    if absent:
        raise HandlerError(
            f"the handler's result lacks {', '.join(absent)}: it must pass on {', '.join(KEPT_COLUMNS)} "
            f"as it got them and add `outcome`, one of {', '.join(OUTCOMES)}"
        )
    for name, wanted in _TYPES.items():
        if not isinstance(kind := handled.schema[name].dataType, type(wanted)):
            raise HandlerError(
                f"the handler's `{name}` is of type {kind.simpleString()}: expected {wanted.simpleString()}; pass on "
                f"{', '.join(KEPT_COLUMNS)} as they were read, and name the outcome: {', '.join(OUTCOMES)}"
            )
    if "not_before" in columns:
        kind = handled.schema["not_before"].dataType
        if not isinstance(kind, TimestampType):
            raise HandlerError(
                f"the handler's `not_before` is of type {kind.simpleString()}: expected timestamp (timestamp_ltz), "
                "the time before which a released record is not delivered again, or null"
            )
    # In SQL: one call of the JVM for each column instead of a dozen.
    known = f"coalesce(outcome in ({', '.join(map(repr, OUTCOMES))}), false)"
    as_text = "coalesce(cast(outcome as string), 'null')"
    otherwise = as_text if unknown is None else repr(unknown)
    remark = f"concat('unknown outcome: ', {as_text})"
    given = "cast(error as string)" if "error" in columns else "cast(null as string)"
    return handled.withColumns(
        {
            "outcome": fn.expr(f"if({known}, outcome, {otherwise})"),
            "error": fn.expr(f"if({known}, {given}, coalesce({given}, {remark}))"),
        }
    )
