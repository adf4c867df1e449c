"""Whether the target was altered since it was found, and the errors that say so.

No record is at fault then. An error of copying or moving is replaced by one that names the alteration; a column with
another type, which may change values without an error, is looked for before the rows count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg2
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from sqlalchemy.exc import SQLAlchemyError

from sharequeue.domain.names import listed
from sharequeue.spark.leasing.crashes import reason_for_letters
from sharequeue.spark.sinks.interface import SinkRefused
from sharequeue.spark.sinks.postgres.definition import changes, column_part
from sharequeue.spark.sinks.postgres.move import RowLeftOut, StagingLost
from sharequeue.spark.sinks.postgres.tables import Target, cursor_of, find
from sharequeue.state import State

_OF_THE_TABLE = (psycopg2.Error, SQLAlchemyError, PySparkException, Py4JError, RowLeftOut, StagingLost)
"""Errors of copying and moving that an alteration of the table may have caused."""


def altered(cursor: Any, target: Target) -> list[str]:
    """Return how the table was altered since it was found, as far as it may refuse other rows now, in words."""
    try:
        return changes(target.definition, find(cursor, target.identifier.as_string(cursor)).definition)
    except SinkRefused as error:
        return [str(error).rstrip(".")]


@contextmanager
def alterations_are_named(state: State, table: str, target: Target) -> Iterator[None]:
    """Raise SinkRefused in place of an error of the block if the target, which the job names `table`, was altered or
    dropped meanwhile.
    """
    try:
        yield
    except _OF_THE_TABLE as error:
        with suppress(psycopg2.Error, SQLAlchemyError):  # the first error has the reason
            with state.transaction() as (connection, _):
                found = altered(cursor_of(connection), target)
            if found:
                raise was_altered(table, found, reason_for_letters(error)) from error
        raise


def refuse_retyped(cursor: Any, table: str, target: Target, columns: Collection[str]) -> None:
    """Raise SinkRefused if one of these columns has another type than when the table was found, which may change
    values without an error. The transaction has a lock on the table.
    """
    if found := _retyped(cursor, target, columns):
        raise was_altered(table, found)


def was_altered(table: str, found: Sequence[str], refusal: str | None = None) -> SinkRefused:
    """Return the error for these alterations, and for a refusal of rows since."""
    refuses = f", and refuses rows since: {refusal.rstrip('.')}" if refusal else ""
    return SinkRefused(
        f"table {table} was altered during the run ({listed(found)}){refuses}. No record is at fault: "
        "what was not acknowledged was given back, with its deliveries. Undo the alteration, or change the "
        "handler or the table so that they fit again; then start the run again."
    )


def _retyped(cursor: Any, target: Target, columns: Collection[str]) -> list[str]:
    """Return which of these columns have another type now, in words."""
    cursor.execute(
        "select a.attname, format_type(a.atttypid, a.atttypmod) from pg_attribute a"
        " join pg_class c on c.oid = a.attrelid join pg_namespace n on n.oid = c.relnamespace"
        " where n.nspname = %s and c.relname = %s and a.attnum > 0 and not a.attisdropped",
        (target.schema, target.name),
    )
    wanted = {
        name: target.definition[name] for name in map(column_part, columns) if name in target.definition
    }
    now = {column_part(name): text for name, text in cursor.fetchall()}
    return changes(wanted, {name: now[name] for name in wanted if name in now})
