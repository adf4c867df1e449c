"""How does a replay take the place of rows in a table of Postgres?

By topic, partition and offset, so the table must have these columns. Spark's executors copy the replay's rows into a
staging table, as for a lease; then one transaction deletes the rows of the same records and moves these in.
"""

from __future__ import annotations

import sqlalchemy as sa
from psycopg2 import sql
from psycopg2.errors import InsufficientPrivilege
from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

from sharequeue.settings import Settings
from sharequeue.spark.job import ShareGroupJob
from sharequeue.spark.output.files import literal
from sharequeue.spark.replays.report import ReplayReport
from sharequeue.spark.sinks.interface import SinkContext, SinkRefused
from sharequeue.spark.sinks.postgres import OpenTable, PostgresTable, as_texts
from sharequeue.spark.sinks.postgres_copy import LEASE, RECEIPT
from sharequeue.spark.sinks.postgres_tables import cursor_of, dropped
from sharequeue.state import State

NOBODYS_LEASE = 0
"""In the name of the staging table: no lease has it, so that a sweep removes what a killed process leaves."""
_NEEDED = ("topic", "partition", "offset")
_THE_SAME = (
    " {} t {} unnest(cast(%s as text[]), cast(%s as integer[]), cast(%s as bigint[]), cast(%s as bigint[]))"
    " as o (topic, partition, first, last) where t.topic = o.topic and t.partition = o.partition"
    ' and t."offset" between o.first and o.last'
)


def replace_in_table(
    job: ShareGroupJob,
    sink: PostgresTable,
    settings: Settings,
    state: State,
    spark: SparkSession,
    report: ReplayReport,
    execute: bool,
) -> tuple[int, int]:
    """Replace the rows of a replay's records by those of the replay; return how many went and how many came.

    Without `execute` they are only counted. Raises SinkRefused when the table lacks a column, or the role a right.
    """
    opened = sink.open(SinkContext(settings, state, spark, job.names))
    assert isinstance(opened, OpenTable)  # noqa: S101 - what a PostgresTable opens
    if absent := [name for name in _NEEDED if name not in opened.target.columns]:
        raise SinkRefused(
            f"table {sink.table} has no column {', '.join(absent)}: which of its rows a replay takes the place of is "
            "known by topic, partition and offset. Add these columns, or publish by a program of your own."
        )
    rows = spark.read.parquet(literal(str(report.accepted_path)))
    opened.match(rows.schema)
    runs = [(each.topic, each.partition, *run) for each in report.partitions for run in each.offsets.runs()]
    given = [[run[at] for run in runs] for at in range(4)]
    table = sql.Identifier(opened.target.schema, opened.target.name)
    if not execute:
        with state.transaction() as (connection, _):
            cursor = cursor_of(connection)
            cursor.execute(
                sql.SQL("select count(*) from" + _THE_SAME).format(table, sql.SQL("cross join")), given
            )
            return int(cursor.fetchone()[0]), report.accepted_rows
    if report.accepted_rows:
        copier = opened.copier([NOBODYS_LEASE])
        texts = as_texts(rows, opened.columns).withColumn(LEASE, fn.lit(NOBODYS_LEASE).cast("long"))
        texts = texts.coalesce(sink.connections)
        receipts = texts.mapInArrow(copier, RECEIPT).collect()
        opened.take((row["attempt"], row["lease_id"], row["rows"]) for row in receipts)
    with state.transaction() as (connection, _):
        connection.execute(sa.text("set local statement_timeout = 0"))
        cursor = cursor_of(connection)
        try:
            cursor.execute(sql.SQL("delete from" + _THE_SAME).format(table, sql.SQL("using")), given)
        except InsufficientPrivilege as error:
            raise SinkRefused(
                f"this role may not remove rows of {sink.table}: grant DELETE, or publish as a role that has it."
            ) from error
        hidden = int(cursor.rowcount)
        opened.move(cursor, NOBODYS_LEASE, report.accepted_rows)
    if report.accepted_rows:
        dropped(state, opened.target.schema, opened.staging_name(NOBODYS_LEASE))
    return hidden, report.accepted_rows
