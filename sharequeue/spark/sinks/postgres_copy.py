"""Copy accepted rows from Spark's executors into Postgres.

This module runs in Python workers. Each task copies its rows into the staging tables of their leases, with its own
connection and transaction, and returns the id of its attempt. A task that is repeated, or runs twice by speculation,
has another attempt id; the driver uses only the attempts that Spark counted. The rows are Arrow batches and CSV,
never Python objects, and never pass through the driver.
"""

from __future__ import annotations

import io
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import psycopg2
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv
from pyspark.cloudpickle import register_pickle_by_value

ATTEMPT = "sharequeue_attempt"
"""The column with the attempt's id; only staging tables have it."""
LEASE = "sharequeue_lease"
"""The column with the lease of a row; only batches have it."""

RECEIPT = "attempt string, lease_id long, rows long"
_RECEIPT = pa.schema([("attempt", pa.string()), ("lease_id", pa.int64()), ("rows", pa.int64())])


class Copier:
    """A function that copies batches, by their column LEASE, into staging tables, and yields a receipt for each
    lease.

    `connection` has the arguments of psycopg2's `connect`, `statements` the COPY statement of each lease id. The
    other columns are in the order of the statements, and are text, numbers, booleans, dates or timestamps.
    """

    def __init__(self, connection: Mapping[str, Any], statements: Mapping[int, str]) -> None:
        self.connection = dict(connection)
        self.statements = dict(statements)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Copy all batches, commit, and only then yield the receipts."""
        attempt, rows = str(uuid.uuid4()), dict[int, int]()
        connection = psycopg2.connect(**self.connection)
        try:
            with connection, connection.cursor() as cursor:
                for batch in batches:
                    for lease_id in pc.unique(batch[LEASE]).to_pylist():
                        part = batch.filter(pc.equal(batch[LEASE], lease_id))
                        cursor.copy_expert(self.statements[lease_id], as_csv(part, attempt))
                        rows[lease_id] = rows.get(lease_id, 0) + part.num_rows
        finally:
            connection.close()
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([attempt] * len(rows), pa.string()),
                pa.array(list(rows), pa.int64()),
                pa.array(list(rows.values()), pa.int64()),
            ],
            schema=_RECEIPT,
        )


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
