"""Handle records one by one in Python; a record whose function raises is released or rejected alone.

No other record is affected. `by_row` makes a handler from a function that gets one record at a time, as a dict. An
exception of the function is caught and becomes the outcome of that record, with its class and message as `error`.
Records travel in Arrow batches between Spark and Python, not one by one. A function that kills its whole process
cannot be caught here; the queue's own redelivery isolates it (`sql/functions/30_state/take_fan_out.sql`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import DataFrame
from pyspark.sql import types as sql

from sharequeue.spark.arrow_types import arrow_schema
from sharequeue.spark.handler import (
    ACCEPT,
    HOLD,
    KEY_HASH,
    OUTCOMES,
    RAW,
    REJECT,
    RELEASE,
    TRACE,
    Handler,
    kept_columns,
)
from sharequeue.spark.ordering.frames import in_key_order
from sharequeue.spark.raw_records import PART, RawParts
from sharequeue.spark.row_values import exact_array, python_values

__all__ = ["Reject", "Release", "RowFunction", "by_row"]

RowFunction = Callable[[dict[str, Any]], Mapping[str, Any] | None]

RESULT_COLUMNS = {"outcome": sql.StringType(), "error": sql.StringType(), "not_before": sql.TimestampType()}
"""The columns that follow the function's own columns in every result."""
ARROW_RESULT_COLUMNS = (pa.string(), pa.string(), pa.timestamp("us", tz="UTC"))
"""The Arrow types of these columns."""

_Key = tuple[int, str]
"""A lease id and the hash of a key in it."""
_HELD: tuple[str, None, None, Mapping[str, Any]] = (HOLD, None, None, {})
"""The outcome of a record behind one of its key that was not accepted."""

MOST_ERROR_CHARACTERS = 2_000
"""Limit of an error's length: an exception may have the whole record in its message, and a column of such messages
would be larger than the sink.
"""


class Reject(Exception):
    """Raised by a row's function for a record that can never be processed. It goes to the dead-letter topic."""

    outcome = REJECT


class Release(Exception):
    """Raised by a row's function for a record to be retried later. It is redelivered until its deliveries are used
    up.

    With `not_before`, a datetime with a time zone, it is not redelivered earlier (for example because of a rate
    limit). Raises ValueError when it has no time zone, because the executor's own zone would then apply.
    """

    outcome = RELEASE

    def __init__(self, *args: object, not_before: datetime | None = None) -> None:
        super().__init__(*args)
        if not_before is not None and not_before.utcoffset() is None:
            raise ValueError(
                f"not_before={not_before} has no time zone: expected such as datetime.now(UTC) + …"
            )
        self.not_before = not_before


def by_row(function: RowFunction, columns: str | sql.StructType, *, on_error: str = RELEASE) -> Handler:
    """Make a handler of `function`, which gets a record and returns the row to write.

    The record is a dict of the columns that a handler gets (`topic, partition, offset, timestamp, timestamp_type,
    key, value, headers, delivery_count, lease_id`), timestamps in UTC; a date or time outside the years 1 to 9999 is
    an int, the days or microseconds since 1970. The function returns a dict with names in `columns` (a DDL string or
    a schema); a missing name becomes null, and a datetime without a time zone is UTC. A record for which the function
    returns None has no row, as if it were filtered out: the job's `without_row` decides its outcome. `Reject` and
    `Release` give the outcomes reject and release. Any other exception gives `on_error`, and so does a value that its
    column cannot hold exactly (1.5 for an int), a result that is not a dict, and a record that Python cannot
    represent (invalid UTF-8 in a text). A record that already has an outcome other than accept, because its value was
    not decoded (`formats`), keeps its outcome and error, and is not passed to the function.

    If the group orders its records by key, the records of a key are passed in the order of their offsets. Behind one
    that is not accepted, the function is not called for the later ones of its key: they wait, without a delivery. If
    its result does not fit the columns, the function may have been called for some later ones: their results do not
    count.

    Raises ValueError when `on_error` is not an outcome. The handler raises it when `columns` names a column that
    every result has.
    """
    if on_error not in OUTCOMES:
        raise ValueError(f"on_error={on_error!r} is not an outcome: expected one of {', '.join(OUTCOMES)}")

    def handler(records: DataFrame) -> DataFrame:
        given = records.schema
        names = (*kept_columns(records), *([TRACE] if TRACE in given.names else []))
        declared = _declared(columns, names)
        raw = RawParts.of(given) if RAW in given.names else None
        if raw is not None:
            records = raw.apart(records)
        if KEY_HASH in names:
            records = in_key_order(records)
        kept = [given[name] for name in names]
        results = [sql.StructField(name, kind) for name, kind in RESULT_COLUMNS.items()]
        sources = () if raw is None else raw.sources
        worker = _Worker(function, arrow_schema(declared), on_error, names, sources)
        fields = [*kept, *declared.fields, *results, *([] if raw is None else [raw.field])]
        handled = records.mapInArrow(worker, sql.StructType(fields))
        return handled if raw is None else raw.together(handled)

    # A pipeline without a sink is named after the user's function, not after this one.
    handler.__name__ = str(getattr(function, "__name__", "<callable>"))
    handler.__qualname__ = str(getattr(function, "__qualname__", type(function).__qualname__))
    handler.__module__ = str(function.__module__)
    return handler


def _declared(columns: str | sql.StructType, kept: Sequence[str]) -> sql.StructType:
    """Return the function's own columns, all nullable, because they are null in the row of a failed record."""
    given = sql.StructType.fromDDL(columns) if isinstance(columns, str) else columns
    if not isinstance(given, sql.StructType):
        raise ValueError(
            f"{columns!r} does not name columns: expected a DDL string such as 'name string, amount int'"
        )
    if taken := {*kept, *RESULT_COLUMNS} & set(given.names):
        raise ValueError(
            f"{', '.join(sorted(taken))} cannot be declared: every handler's result has them anyway"
        )
    return sql.StructType(
        [sql.StructField(field.name, field.dataType, True, field.metadata) for field in given.fields]
    )


class _Worker:
    """A function on Arrow batches that runs in the Python workers of Spark's executors."""

    def __init__(
        self,
        function: RowFunction,
        columns: pa.Schema,
        on_error: str,
        kept: Sequence[str],
        raw: Sequence[str] = (),
    ) -> None:
        self.kept = list(kept)
        self.raw = list(raw)
        """The columns of which the raw record of a released row is made."""
        self.hidden = [name for name in (*self.raw, *kept) if name.startswith(PART) or name == TRACE]
        """The columns that the function does not get."""
        self.function = function
        self.columns = columns
        self.names = frozenset(columns.names)
        self.on_error = on_error

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        stopped: set[_Key] = set()
        for batch in batches:
            yield self._handled(batch, stopped)

    def _handled(self, batch: pa.RecordBatch, stopped: set[_Key]) -> pa.RecordBatch:
        """Return the rows for a batch. `stopped` are the keys of which a record was not accepted."""
        keys = self._keys(batch)
        kept: list[int] = []
        rows: list[Mapping[str, Any]] = []
        outcomes: list[str] = []
        errors: list[str | None] = []
        waits: list[datetime | None] = []
        for row_number, record in enumerate(_records(batch.drop_columns(self.hidden))):
            key = keys[row_number]
            outcome, error, wait, row = _HELD if key in stopped else self._outcome(record)
            if outcome != ACCEPT and key is not None:
                stopped.add(key)
            if row is not None:
                kept.append(row_number)
                rows.append(row)
                outcomes.append(outcome)
                errors.append(error)
                waits.append(wait)
        here = batch.select(self.kept).take(pa.array(kept, pa.int64()))
        made = [self._column(field, rows, outcomes, errors) for field in self.columns]
        if KEY_HASH in self.kept:
            _hold_behind([keys[row_number] for row_number in kept], outcomes, errors, waits, stopped)
        # A failed row has null in all of the function's columns, even when only one value did not fit.
        failed = pa.array([outcome != ACCEPT for outcome in outcomes], pa.bool_())
        made = [pc.if_else(failed, pa.scalar(None, column.type), column) for column in made]
        results = [
            pa.array(values, kind)
            for values, kind in zip((outcomes, errors, waits), ARROW_RESULT_COLUMNS, strict=True)
        ]
        arrays = [*here.columns, *made, *results]
        names = [*self.kept, *self.columns.names, *RESULT_COLUMNS]
        if self.raw:
            arrays.append(self._raw_of(batch, kept, outcomes))
            names.append(RAW)
        return pa.RecordBatch.from_arrays(arrays, names=names)

    def _raw_of(self, batch: pa.RecordBatch, kept: Sequence[int], outcomes: Sequence[str]) -> pa.Array:
        """Return the parts of the raw record of each released row, null for the others: only these go back."""
        parts = pa.StructArray.from_arrays([batch[name] for name in self.raw], names=self.raw)
        rows = zip(kept, outcomes, strict=True)
        return parts.take(pa.array([at if outcome == RELEASE else None for at, outcome in rows], pa.int64()))

    def _keys(self, batch: pa.RecordBatch) -> list[_Key | None]:
        """Return the key of each record, None if no record waits for it."""
        if KEY_HASH not in self.kept:
            return [None] * batch.num_rows
        pairs = zip(batch["lease_id"].to_pylist(), batch[KEY_HASH].to_pylist(), strict=True)
        return [(lease_id, key) if key else None for lease_id, key in pairs]

    def _outcome(
        self, record: dict[str, Any] | Exception
    ) -> tuple[str, str | None, datetime | None, Mapping[str, Any] | None]:
        try:
            if isinstance(record, Exception):
                raise record  # it cannot be passed to the function
            before, error = record.pop("outcome", ACCEPT), record.pop("error", None)
            if before != ACCEPT:
                return before, error, None, {}  # its value was not decoded
            row = self.function(record)
            if row is None:
                return ACCEPT, None, None, None
            if not isinstance(row, (dict, Mapping)):
                raise TypeError(f"the function returned a {type(row).__name__}: expected a dict, or None")
            row = dict(row)
            if strange := row.keys() - self.names:
                raise KeyError(f"{', '.join(sorted(map(str, strange)))} not declared among the columns")
        except (Exception, SystemExit) as error:  # `sys.exit` in the function ends no worker
            # Check by attribute: the worker may have one `Reject` from here and another from its own import.
            asked = getattr(error, "outcome", None)
            outcome = asked if asked in (REJECT, RELEASE) else self.on_error
            # The attribute `not_before` of other exceptions may mean something else.
            wait = getattr(error, "not_before", None) if asked == RELEASE else None
            timed = isinstance(wait, datetime) and wait.utcoffset() is not None
            return outcome, _error_text(error), wait if timed else None, {}
        return ACCEPT, None, None, row

    def _column(
        self,
        field: pa.Field,
        rows: list[Mapping[str, Any]],
        outcomes: list[str],
        errors: list[str | None],
    ) -> pa.Array:
        """Return one column of the result; rows whose value does not fit it get `on_error`."""
        values = [row.get(field.name) for row in rows]
        try:
            return exact_array(values, field)
        except Exception:
            for at, value in enumerate(values):
                try:
                    exact_array([value], field)
                except Exception as error:
                    values[at] = None
                    outcomes[at] = self.on_error
                    errors[at] = f"column {field.name}: {_error_text(error)}"[:MOST_ERROR_CHARACTERS]
            return exact_array(values, field)


def _hold_behind(
    keys: Sequence[_Key | None],
    outcomes: list[str],
    errors: list[str | None],
    waits: list[datetime | None],
    stopped: set[_Key],
) -> None:
    """Hold the rows behind one that was not accepted because its values did not fit its columns."""
    here: set[_Key] = set()
    for at, key in enumerate(keys):
        if key is None:
            continue
        if key in here:
            outcomes[at], errors[at], waits[at], _ = _HELD
        elif outcomes[at] != ACCEPT:
            here.add(key)
    stopped |= here


def _records(batch: pa.RecordBatch) -> list[dict[str, Any] | Exception]:
    """Return the records of a batch, with an exception in place of each one that Python cannot represent (invalid
    UTF-8).
    """
    try:
        columns = [python_values(column) for column in batch.columns]
    except Exception:
        return [_record(batch.slice(at, 1)) for at in range(batch.num_rows)]
    names = batch.schema.names  # made anew by each call
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _record(batch: pa.RecordBatch) -> dict[str, Any] | Exception:
    record: dict[str, Any] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            (record[name],) = python_values(column)
        except Exception as error:
            return ValueError(f"column {name}: {_error_text(error)}")
    return record


def _error_text(error: BaseException) -> str:
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:
        text = type(error).__name__
    # A lone surrogate cannot be encoded as UTF-8.
    return text[:MOST_ERROR_CHARACTERS].encode("utf-8", "backslashreplace").decode()[:MOST_ERROR_CHARACTERS]


# The module is sent to the executors by value: they need PyArrow, but not this package.
register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
