"""Call a handler; check that its result has the columns that are needed, and none that no file can hold."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from pyspark.errors import (
    AnalysisException,
    PySparkAttributeError,
    PySparkTypeError,
    PySparkValueError,
)
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructType,
    TimestampType,
)

from sharequeue.errors import first_line
from sharequeue.spark.contract import KEPT_COLUMNS, OUTCOMES, HandlerError
from sharequeue.spark.output.folders import LEASE

_TYPES: Mapping[str, DataType] = {
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "lease_id": LongType(),
    "outcome": StringType(),
}


_NOT_PLANNED = (AnalysisException, PySparkAttributeError, PySparkTypeError, PySparkValueError)
_LOGS_OF_SPARK = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""They write each error of a plan to stderr, with the stack of the JVM as JSON."""
_thread = threading.local()


def call_handler(
    handler: Callable[[DataFrame], DataFrame], records: DataFrame, unknown: str | None = None
) -> DataFrame:
    """Return what the handler makes of these records, as `with_outcomes` does. Raises HandlerError too where Spark
    cannot plan it: for a column or a function that there is not."""
    with _told_in_one_line():
        try:
            return with_outcomes(handler(records), unknown)
        except _NOT_PLANNED as error:
            reason = first_line(error).rstrip(";")
            raise HandlerError(f"Spark cannot plan what the handler does: {reason}") from error


@contextmanager
def _told_in_one_line() -> Iterator[None]:
    """Let Spark write no error of a plan to stderr in the block; in this thread."""
    for name in _LOGS_OF_SPARK:
        PySparkLogger.getLogger(name).addFilter(_is_of_others)
    _thread.calls_handler = True
    try:
        yield
    finally:
        _thread.calls_handler = False


def _is_of_others(record: logging.LogRecord) -> bool:
    return not getattr(_thread, "calls_handler", False)


def with_outcomes(handled: DataFrame, unknown: str | None = None) -> DataFrame:
    """Return a handler's result with checked columns `outcome` and `error`.

    An unknown outcome, or null, becomes `unknown`, and `error` says so. Where `unknown` is None it stays as it is, as
    text, and `missing.acknowledgements` refuses it. Raises HandlerError when the result is no DataFrame, when
    `outcome` or a column that identifies the record is missing or of another type, when `not_before` is no
    timestamp, and for columns that cannot be written to files.
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
    _refuse_unwritable(handled.schema)
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


def _refuse_unwritable(schema: StructType) -> None:
    """Raise HandlerError for columns that Parquet cannot have: before a lease, not in the middle of its write."""
    seen: dict[str, str] = {}
    for each in schema.fields:
        if (other := seen.get(each.name.lower())) is not None:
            raise HandlerError(
                f"the handler's result has the columns `{other}` and `{each.name}`: expected one column of a name, "
                "whatever the case of its letters; rename one of them, or leave it out"
            )
        seen[each.name.lower()] = each.name
        if each.name.lower() == LEASE:
            raise HandlerError(
                f"the handler's result has a column `{each.name}`, the name of the folders of leases: rename it"
            )
        # `error` is cast to a text, whatever it is.
        if each.name != "error" and (kind := _unwritable(each.dataType)) is not None:
            raise HandlerError(
                f"the handler's `{each.name}` has a part of type {kind.simpleString()}, which no file can hold: cast "
                'it to another type, such as `fn.lit(None).cast("string")`, or leave it out'
            )


def _unwritable(kind: DataType) -> DataType | None:
    """Return the part of a type that no Parquet file can hold; None where it has none."""
    if isinstance(kind, NullType | CalendarIntervalType) or kind == StructType([]):
        return kind
    parts: list[DataType] = []
    if isinstance(kind, StructType):
        parts = [each.dataType for each in kind.fields]
    elif isinstance(kind, ArrayType):
        parts = [kind.elementType]
    elif isinstance(kind, MapType):
        parts = [kind.keyType, kind.valueType]
    return next((found for part in parts if (found := _unwritable(part)) is not None), None)
