"""The contract of a handler: the columns it may write, and the errors for anything else.

It holds the names of outcomes, the columns that identify the record of a row, and the check of a handler's result:
the required columns are there, and every column can be written to a file. Every other module of `sharequeue.spark`
may import this one; it imports only `signals` and `nested_parts`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from pyspark.errors import (
    AnalysisException,
    PySparkAttributeError,
    PySparkTypeError,
    PySparkValueError,
)
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame
from pyspark.sql.types import (
    CalendarIntervalType,
    DataType,
    IntegerType,
    LongType,
    NullType,
    StringType,
    StructType,
    TimestampType,
)

from sharequeue.domain.errors import PipelineError, first_line
from sharequeue.domain.values import AcknowledgeType
from sharequeue.spark.nested_parts import parts_of
from sharequeue.spark.signals import Terminated
from sharequeue.spark.sql_texts import quoted, select_texts

ACCEPT = "accept"
RELEASE = "release"
REJECT = "reject"

OUTCOMES: Mapping[str, AcknowledgeType] = {
    ACCEPT: AcknowledgeType.ACCEPT,
    RELEASE: AcknowledgeType.RELEASE,
    REJECT: AcknowledgeType.REJECT,
}
"""The values a handler may write into the column `outcome`, and their meaning to the queue."""

RECORD_COLUMNS = ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers")
"""The columns of a topic's record."""

KEPT_COLUMNS = ("topic", "partition", "offset", "lease_id")
"""Columns a handler must pass on unchanged: they identify the record that a row comes from."""

KEY_HASH = "key_hash"
"""The further column that a handler must pass on if its group orders its records by key: the MD5 hash of the key, as
32 hexadecimal digits; empty for a record without a key, so that a null is a handler's mistake.
"""
NO_KEY_HASH = "without key_hash"
"""The outcome of a row whose `key_hash` is null, or no hash. It is refused as an unknown one."""
HOLD = "hold"
"""The outcome of a record that waits for an earlier one of its key. Only `ordering` and `by_row` give it."""

RESULT_NAMES = ("outcome", "error", "not_before")
"""Columns of a handler's result that are for the queue and are not values of a record."""
RAW = "sharequeue_raw"
"""The column with the raw record, in a group that keeps the records that it releases (`raw_records.py`): a released
record whose row has it is read from files when it is delivered again.
"""
TRACE = "sharequeue_trace"
"""The column with the trace of the record, for a sink that passes it on (`trace_headers.py`)."""
LEASE = "sharequeue_lease"
"""The column by which Spark divides what it writes: the lease's id, negative for what was not accepted. Spark finds a
number among its open files faster than a text.
"""
KEPT_AS_GIVEN = "every row must pass on topic, partition, offset and lease_id of its record as it got them"
"""The expectation that errors name for rows that break the contract."""

Handler = Callable[[DataFrame], DataFrame]


class HandlerError(PipelineError):
    """Error of a handler that broke its contract; the message has what it did and what was expected."""


def check_without_row(without_row: str | None) -> None:
    """Raise ValueError when `without_row` is neither an outcome nor None."""
    if without_row is not None and without_row not in OUTCOMES:
        raise ValueError(
            f"without_row={without_row!r} is not an outcome: expected one of {', '.join(OUTCOMES)}, or None"
        )


class MostFailed(PipelineError):
    """Error for a round of which most records failed, or all Spark jobs with the same error. Nothing of it was
    acknowledged, and its deliveries were given back; the message has the most frequent error and an example.
    """


class RegistryNotAvailable(PipelineError):
    """The schema registry does not respond, or refuses the login; the message has the reason. No record is the cause:
    nothing was acknowledged, and the leases were given back, with their deliveries.
    """

    retriable = True


_TYPES: Mapping[str, DataType] = {
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "lease_id": LongType(),
    KEY_HASH: StringType(),
    "outcome": StringType(),
}


# The state takes a hundred years by its own clock, which may differ from that of Spark; times are rounded up.
MOST_YEARS = 99
_TOO_LATE = f"coalesce(not_before > current_timestamp() + make_ym_interval({MOST_YEARS}), false)"
_WHY_TOO_LATE = (
    "concat('not_before is ', cast(not_before as string), ': expected a time at most "
    f"{MOST_YEARS} years ahead (not milliseconds that are read as seconds); reject a record to stop its delivery')"
)

_TIMES = "spark.sql.parquet.outputTimestampType"

_NOT_PLANNED = (AnalysisException, PySparkAttributeError, PySparkTypeError, PySparkValueError)
_LOGS_OF_SPARK = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""Loggers that write each error of a query to stderr."""


def call_handler(handler: Handler, records: DataFrame) -> DataFrame:
    """Return the handler's result for these records, checked by `with_outcomes`. Raises HandlerError also if Spark
    cannot plan it, for example for an unknown column or function, and if it calls `sys.exit`.
    """
    try:
        with unlogged():
            return with_outcomes(handler(records), kept_columns(records))
    except _NOT_PLANNED as error:
        reason = first_line(error).rstrip(";")
        raise HandlerError(f"Spark cannot plan what the handler does: {reason}") from error
    except Terminated:
        raise
    except SystemExit as error:
        # It would end the program as if the run had succeeded.
        raise HandlerError(
            f"the handler ended the program with exit code {error.code!r}: expected a DataFrame; remove `sys.exit`, "
            "and raise an error if the records cannot be processed"
        ) from error


@contextmanager
def unlogged() -> Iterator[None]:
    """Keep Spark from writing the errors of its queries to stderr, with the stack of the JVM as JSON: they are raised
    as well.
    """
    loggers = [PySparkLogger.getLogger(name) for name in _LOGS_OF_SPARK]

    def nothing(record: logging.LogRecord) -> bool:
        return False

    for each in loggers:
        each.addFilter(nothing)
    try:
        yield
    finally:
        for each in loggers:
            each.removeFilter(nothing)


def kept_columns(records: DataFrame) -> tuple[str, ...]:
    """Return the columns that a handler of these records must pass on."""
    return (*KEPT_COLUMNS, KEY_HASH) if KEY_HASH in records.columns else KEPT_COLUMNS


def with_outcomes(handled: DataFrame, kept: Sequence[str] = KEPT_COLUMNS) -> DataFrame:
    """Return a handler's result with checked columns `outcome` and `error`.

    An unknown outcome is kept, null as text: `outcomes.acknowledgements` refuses both. Texts that are not UTF-8 are
    made so, because Python could not read them. A record that would have to wait longer than the state allows is
    rejected, with the reason. Raises HandlerError when the result is not a DataFrame, when `outcome` or a column that
    identifies the record (`kept`) is missing or of another type, when `not_before` is not a timestamp, and for
    columns that cannot be written to files, or not without a change.
    """
    if not isinstance(handled, DataFrame):
        raise HandlerError(
            f"the handler returned a value of type {type(handled).__name__}: expected the DataFrame that it got, "
            "transformed, with the column `outcome` (a handler neither collects nor writes)"
        )
    # Read once: `columns` makes one JVM call for each column.
    columns = handled.schema.names
    absent = [name for name in (*kept, "outcome") if name not in columns]
    if absent:
        ordered = f" ({KEY_HASH} because the group has sharequeue.order=key)" if KEY_HASH in absent else ""
        raise HandlerError(
            f"the handler's result lacks {', '.join(absent)}: it must pass on {', '.join(kept)} "
            f"as it got them{ordered} and add `outcome`, one of {', '.join(OUTCOMES)}"
        )
    for name in (*kept, "outcome"):
        wanted = _TYPES[name]
        if not isinstance(kind := handled.schema[name].dataType, type(wanted)):
            raise HandlerError(
                f"the handler's `{name}` is of type {kind.simpleString()}: expected {wanted.simpleString()}; pass on "
                f"{', '.join(kept)} as they were read, and name the outcome: {', '.join(OUTCOMES)}"
            )
    # Spark ignores the case of names: `Error` is the same column.
    own = {name.lower(): name for name in columns}
    if (delayed := own.get("not_before")) is not None:
        kind = handled.schema[delayed].dataType
        if not isinstance(kind, TimestampType):
            raise HandlerError(
                f"the handler's `not_before` is of type {kind.simpleString()}: expected timestamp (timestamp_ltz), "
                "the time before which a released record is not delivered again, or null"
            )
    _refuse_unwritable(handled.schema)
    _refuse_cut_times(handled)
    given = quoted(own["error"]) if "error" in own else "null"
    outcome, error = "coalesce(make_valid_utf8(outcome), 'null')", f"make_valid_utf8(cast({given} as string))"
    more = {}
    if delayed is not None:
        never = f"(outcome = '{RELEASE}' and {_TOO_LATE})"
        outcome = f"if({never}, '{REJECT}', {outcome})"
        error = f"if({never}, concat_ws('; ', {_WHY_TOO_LATE}, {error}), {error})"
        # Python could not read it from the files.
        more["not_before"] = f"if({never}, null, {quoted(delayed)})"
    if KEY_HASH in kept:
        is_hash = f"coalesce(length({KEY_HASH}) in (0, 32) and unhex({KEY_HASH}) is not null, false)"
        outcome = f"if({is_hash}, {outcome}, '{NO_KEY_HASH}')"
    made = {"outcome": outcome, "error": error, **more}
    texts = {name.lower(): quoted(name) for name in columns}
    texts |= {name: f"{text} as {name}" for name, text in made.items()}
    return select_texts(handled, *texts.values())


def _refuse_unwritable(schema: StructType) -> None:
    """Raise HandlerError for columns that Parquet cannot store, before a lease and not during its write."""
    seen: dict[str, str] = {}
    for each in schema.fields:
        if (other := seen.get(each.name.lower())) is not None:
            raise HandlerError(
                f"the handler's result has the columns `{other}` and `{each.name}`: expected names that differ not "
                "only in case; rename one of them, or leave it out"
            )
        seen[each.name.lower()] = each.name
        if each.name.lower() == LEASE:
            raise HandlerError(
                f"the handler's result has a column `{each.name}`, the name of the folders of leases: rename it"
            )
        # `error` is cast to a text, whatever its type.
        if each.name != "error" and (kind := _unwritable(each.dataType)) is not None:
            raise HandlerError(
                f"the handler's `{each.name}` contains type {kind.simpleString()}, which Parquet cannot store: cast "
                'it to another type, such as `fn.lit(None).cast("string")`, or leave it out'
            )


def _unwritable(kind: DataType) -> DataType | None:
    """Return the part of a type that a Parquet file cannot hold; None if it can hold all."""
    return next(
        (
            part
            for part in parts_of(kind)
            if isinstance(part, NullType | CalendarIntervalType) or part == StructType([])
        ),
        None,
    )


def _refuse_cut_times(handled: DataFrame) -> None:
    """Raise HandlerError if the session writes times to files in milliseconds, and there are times."""
    times = (
        each.name
        for each in handled.schema.fields
        if each.name != RAW and any(isinstance(part, TimestampType) for part in parts_of(each.dataType))
    )
    if (name := next(times, None)) is None:
        return
    if str(handled.sparkSession.conf.get(_TIMES)).upper() == "TIMESTAMP_MILLIS":
        raise HandlerError(
            f"the session writes times in milliseconds ({_TIMES}=TIMESTAMP_MILLIS), which would change the handler's "
            f"`{name}`: expected TIMESTAMP_MICROS or INT96; change this setting of the session"
        )
