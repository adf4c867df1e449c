"""Copy accepted rows from Spark's executors into Postgres.

This module runs in Python workers. Each task copies its rows into the staging tables of their leases, with its own
connection and transaction, and returns the id of its attempt. A task that is repeated, or runs twice by speculation,
has another attempt id; the driver uses only the attempts that Spark counted. The rows are Arrow batches and CSV,
never Python objects, and never pass through the driver.

A batch with a row that Postgres refuses is divided until the row is alone: the others are copied, and the receipt has
the reason of this one.
"""

from __future__ import annotations

import io
import re
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import psycopg2
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv
from pyspark.cloudpickle import register_pickle_by_value

from sharequeue.database.pool import TEXT_SETTINGS

ATTEMPT = "sharequeue_attempt"
"""The column with the attempt's id; only staging tables have it."""
LEASE = "sharequeue_lease"
"""The column with the lease of a row; only batches have it."""

OFFSET = "sharequeue_offset"
"""The column with the offset of a row's record; batches and staging tables have it."""

RECEIPT = "attempt string, lease_id long, rows long, offset long, refusal string"
_RECEIPT = pa.schema(
    [
        ("attempt", pa.string()),
        ("lease_id", pa.int64()),
        ("rows", pa.int64()),
        ("offset", pa.int64()),
        ("refusal", pa.string()),
    ]
)

_NOT_THE_ROW = (
    *("08", "22P04", "25", "26", "28", "2D", "34", "3D", "3F", "40", "42"),
    *("53", "55", "57", "58", "72", "F0", "HV", "XX"),
)
"""Beginnings of SQLSTATEs that do not depend on the values of a row: connection, transaction, rights and names,
resources, locks, operators. All others are of the row, also those that a trigger raises, which may be any.
"""
_ROW_SECURITY = "42501"
_NAMES_VALUES = ("23503", "23505", "23P01")
"""SQLSTATEs whose detail has the reason: the key that exists already, or does not exist."""
MOST_CHARACTERS = 2_000
_COLUMN = re.compile(r", column (.+?)(?:: |$)", re.MULTILINE)


def row_refusal(error: BaseException, *, row_security: bool = False) -> str | None:
    """Return Postgres's words if it refused a row because of its values, as `Class: message`; None for other errors.

    With `row_security` the table has policies, and a refusal for lack of a right is one of them.
    """
    given = getattr(error, "orig", None) or error
    code = getattr(given, "pgcode", None)
    if not isinstance(given, psycopg2.Error) or not code:
        return None
    if code.startswith(_NOT_THE_ROW) and not (row_security and code == _ROW_SECURITY):
        return None
    about = given.diag
    # COPY names the column only in the context.
    found = _COLUMN.search((about.context or "").partition("\n")[0])
    column = about.column_name or (found[1] if found else None)
    words = f"{type(given).__name__}: {about.message_primary}"
    if column and column not in words:
        words += f" (column {column})"
    if code in _NAMES_VALUES and about.message_detail:
        words += f". {about.message_detail}"
    return words[:MOST_CHARACTERS]


class Copier:
    """A function that copies batches, by their column LEASE, into staging tables, and yields a receipt for each
    lease, and one for each row that Postgres refused.

    `connection` has the arguments of psycopg2's `connect`, `statements` the COPY statement of each lease id. The
    other columns are in the order of the statements, OFFSET first, and are text, numbers, booleans, dates or
    timestamps.
    """

    def __init__(self, connection: Mapping[str, Any], statements: Mapping[int, str]) -> None:
        self.connection = dict(connection)
        self.statements = dict(statements)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Copy all batches, commit, and only then yield the receipts."""
        attempt, rows = str(uuid.uuid4()), dict[int, int]()
        refused: list[tuple[int, int, str]] = []
        connection = psycopg2.connect(**self.connection)
        try:
            with connection, connection.cursor() as cursor:
                cursor.execute(TEXT_SETTINGS)  # also for texts with a time without a zone
                for batch in batches:
                    for lease_id in pc.unique(batch[LEASE]).to_pylist():
                        part = batch.filter(pc.equal(batch[LEASE], lease_id))
                        found = self._copied(cursor, self.statements[lease_id], part, attempt)
                        rows[lease_id] = rows.get(lease_id, 0) + part.num_rows - len(found)
                        refused += ((lease_id, *each) for each in found)
        finally:
            connection.close()
        receipts: list[tuple[object, ...]] = [
            (attempt, lease_id, count, None, None) for lease_id, count in rows.items()
        ]
        receipts += [(attempt, lease_id, 0, offset, words) for lease_id, offset, words in refused]
        columns = list(zip(*receipts, strict=True)) or [()] * len(_RECEIPT)
        yield pa.RecordBatch.from_arrays(
            [pa.array(values, each.type) for values, each in zip(columns, _RECEIPT, strict=True)],
            schema=_RECEIPT,
        )

    def _copied(
        self, cursor: Any, statement: str, part: pa.RecordBatch, attempt: str
    ) -> list[tuple[int, str]]:
        """Copy these rows of a lease; return the offsets of those that were refused, with the reasons."""
        cursor.execute("savepoint sharequeue_rows")
        try:
            cursor.copy_expert(statement, as_csv(part, attempt))
        except psycopg2.Error as error:
            words = row_refusal(error)
            if words is None:
                raise
            cursor.execute("rollback to savepoint sharequeue_rows")
            if part.num_rows == 1:
                return [(part[OFFSET][0].as_py(), words)]
            half = part.num_rows // 2
            return [
                *self._copied(cursor, statement, part.slice(0, half), attempt),
                *self._copied(cursor, statement, part.slice(half), attempt),
            ]
        cursor.execute("release savepoint sharequeue_rows")
        return []


def as_csv(rows: pa.RecordBatch, attempt: str) -> io.BytesIO:
    """Return the rows as CSV for Postgres. Texts are quoted, so that an empty text is not read as null."""
    names = [name for name in rows.schema.names if name != LEASE]
    columns = [pa.repeat(pa.scalar(attempt), rows.num_rows), *(_in_utc(rows[name]) for name in names)]
    text = io.BytesIO()
    csv.write_csv(
        pa.RecordBatch.from_arrays(columns, names=[ATTEMPT, *names]),
        text,
        csv.WriteOptions(include_header=False),
    )
    text.seek(0)
    return text


def _in_utc(column: pa.Array) -> pa.Array:
    """Return timestamps in UTC: Arrow may not know the session's time zone."""
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        return column.cast(pa.timestamp(column.type.unit, "UTC"))
    return column


# The module is sent to the executors by value, so that they need PyArrow and psycopg2, but not this package.
register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
