"""Replace the rows of some records in the table with those of a replay, in one transaction.

The old rows are found by topic, partition and offset. The new ones are staged like those of a lease, and moved after
the old ones were deleted.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg2
import sqlalchemy as sa
from psycopg2 import sql
from psycopg2.errors import InsufficientPrivilege
from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

from sharequeue.spark.sinks.interface import AT, Replacement, SinkRefused
from sharequeue.spark.sinks.postgres.move import RowLeftOut
from sharequeue.spark.sinks.postgres.staging import NOBODYS_LEASE, StagingTables
from sharequeue.spark.sinks.postgres.tables import cursor_of

_THE_SAME = (
    " {} t {} unnest(cast(%s as text[]), cast(%s as integer[]), cast(%s as bigint[]), cast(%s as bigint[]))"
    " as o (topic, partition, first, last) where t.topic = o.topic and t.partition = o.partition"
    ' and t."offset" between o.first and o.last'
)


def replace_rows(
    staging: StagingTables, spark: SparkSession, replacement: Replacement, *, execute: bool
) -> int:
    """Replace the rows of some records; without `execute` only count them. Return the number of rows that are, or
    would be, removed. Raises SinkRefused if the table lacks a column or the role a privilege, or if the table refuses
    a row.
    """
    if absent := [name for name in AT if name not in staging.target.columns]:
        raise SinkRefused(
            f"table {staging.table} has no column {', '.join(absent)}: the rows to replace are found by topic, "
            "partition and offset. Add these columns, or publish with a program of your own."
        )
    rows = replacement.rows(spark)
    staging.match(rows.schema)
    runs = [(*at, *run) for at, offsets in replacement.offsets.items() for run in offsets.runs()]
    given = [[run[at] for run in runs] for at in range(4)]
    if not execute:
        return _count(staging, given)
    if replacement.accepted_rows:
        staging.copy([NOBODYS_LEASE], rows.withColumn("lease_id", fn.lit(NOBODYS_LEASE).cast("long")))
    if refused := staging.refused.get(NOBODYS_LEASE):
        offset, words = next(iter(sorted(refused.items())))
        raise _refuses(staging.table, f"{words} (offset {offset})")
    with staging.state.transaction() as (connection, _):
        connection.execute(sa.text("set local statement_timeout = 0"))
        return _moved(staging, connection, given, replacement.accepted_rows)


def _count(staging: StagingTables, given: Sequence[Sequence[object]]) -> int:
    with staging.state.transaction() as (connection, _):
        cursor = cursor_of(connection)
        cursor.execute(
            sql.SQL("select count(*) from" + _THE_SAME).format(
                staging.target.identifier, sql.SQL("cross join")
            ),
            given,
        )
        return int(cursor.fetchone()[0])


def _moved(
    staging: StagingTables, connection: sa.Connection, given: Sequence[Sequence[object]], rows: int
) -> int:
    """Delete the old rows and move the new ones; return the number of old ones."""
    cursor = cursor_of(connection)
    try:
        cursor.execute(
            sql.SQL("delete from" + _THE_SAME).format(staging.target.identifier, sql.SQL("using")), given
        )
    except InsufficientPrivilege as error:
        raise SinkRefused(
            f"this role may not delete rows of {staging.table}: grant it DELETE, or publish with a role "
            "that has it."
        ) from error
    hidden = int(cursor.rowcount)
    staged = staging.rows(NOBODYS_LEASE)
    try:
        staged.move(cursor, rows)
        # Otherwise deferred ones are checked at the commit.
        cursor.execute("set constraints all immediate")
    except (psycopg2.Error, RowLeftOut) as error:
        if (reason := staged.refusal(error)) is None:
            raise
        raise _refuses(staging.table, reason) from error
    return hidden


def _refuses(table: str, words: str) -> SinkRefused:
    return SinkRefused(
        f"table {table} refuses a row of the replay: {words}. Nothing was replaced. Correct the "
        "handler and replay again, or change the table."
    )
