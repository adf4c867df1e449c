"""The staging tables of a run, one for each lease: they are created, filled by Spark's executors, and dropped.

A staging table is unlogged, and in the schema of the target. It has the columns to copy, and their witnesses. The
receipts of the tasks show how many rows each attempt copied, and which rows were refused. `move.py` moves the rows
from there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import psycopg2
import sqlalchemy as sa
from psycopg2 import sql
from pyspark.sql import DataFrame, types
from sqlalchemy.exc import SQLAlchemyError

from sharequeue.spark.sinks.postgres.alterations import refuse_retyped
from sharequeue.spark.sinks.postgres.columns import CopiedColumns, copied_columns
from sharequeue.spark.sinks.postgres.copy import ATTEMPT, OFFSET, RECEIPT, Copier
from sharequeue.spark.sinks.postgres.exact import changed_rows
from sharequeue.spark.sinks.postgres.move import StagedRows
from sharequeue.spark.sinks.postgres.tables import Target, cursor_of, dropped, with_password
from sharequeue.state import State

_log = logging.getLogger(__name__)

CLOSE_SECONDS = 10.0
"""How long the end of a run waits for cancelled tasks that still copy into staging tables."""

NOBODYS_LEASE = 0
"""The number in the name of a replacement's staging table. No lease has this number, so a run leaves the table
to the publication that fills it. The next publication removes the table that a killed one leaves.
"""


@dataclass(slots=True)
class StagingTables:
    """The staging tables of one run, by lease id, and what was copied into them."""

    table: str
    """The target, as the job names it."""
    target: Target
    prefix: str
    """Of their names. The lease id follows it."""
    state: State
    route: Mapping[str, Any]
    """The arguments with which the executors connect."""
    connections: int
    """The maximum number of tasks that copy at the same time."""
    on_step: Callable[[Literal["staged", "copied"]], None]
    columns: CopiedColumns = field(default_factory=CopiedColumns)
    attempts: dict[int, dict[str, int]] = field(default_factory=dict)
    """By lease id and attempt: the number of copied rows."""
    refused: dict[int, dict[int, str]] = field(default_factory=dict)
    """By lease id and offset: why a row could not be copied, or would be changed."""
    existing: set[int] = field(default_factory=set)
    """Leases that have a staging table."""

    def match(self, columns: types.StructType) -> None:
        """Check columns, and select those to copy. Raise SinkRefused if the table lacks one of them, or has it with
        another type.
        """
        self.columns = copied_columns(self.table, self.target, columns)

    def copy(self, lease_ids: Iterable[int], rows: DataFrame) -> None:
        """Copy accepted rows into the staging tables of their leases, on the executors."""
        copier = self.copier(lease_ids)
        texts = self.columns.as_texts(rows).coalesce(self.connections)
        receipts = texts.mapInArrow(copier, RECEIPT).collect()
        self.take(receipts)

    def copier(self, lease_ids: Iterable[int]) -> Copier:
        """Create empty staging tables for these leases. Return the object that fills them, in any process."""
        statements: dict[int, str] = {}
        lease_ids = list(lease_ids)
        # Before they are created: an interrupt may come between the commit and this note.
        self.existing.update(lease_ids)
        names, witnesses = self.columns.names, self.columns.witnesses
        with self.state.transaction() as (connection, _):
            cursor = cursor_of(connection)
            ours = sql.Identifier(ATTEMPT), sql.Identifier(OFFSET)
            columns = sql.SQL(", ").join(map(sql.Identifier, names))
            typed = [
                sql.SQL(", cast(null as {}) as {}").format(sql.SQL(each.type), sql.Identifier(each.name))
                for each in witnesses
            ]
            every = sql.SQL(", ").join(map(sql.Identifier, (*names, *(each.name for each in witnesses))))
            for lease_id in lease_ids:
                staging = self._identifier(lease_id)
                cursor.execute(sql.SQL("drop table if exists {}").format(staging))
                cursor.execute(
                    sql.SQL(
                        "create unlogged table {} as select cast(null as text) as {}, cast(null as bigint) as {}, {}"
                        "{} from {} with no data"
                    ).format(staging, *ours, columns, sql.Composed(typed), self.target.identifier)
                )
                copy = sql.SQL("copy {} ({}, {}, {}) from stdin with (format csv)")
                statements[lease_id] = copy.format(staging, *ours, every).as_string(cursor)
            refuse_retyped(cursor, self.table, self.target, names)
        self.on_step("staged")
        return Copier(with_password(self.route), statements)

    def take(self, receipts: Iterable[Sequence[Any]]) -> None:
        """Note how many rows each attempt copied for each lease, and which were refused, or would be changed. Only
        the rows of these attempts are moved.
        """
        for attempt, lease_id, rows, offset, refusal in receipts:
            if refusal is None:
                self.attempts.setdefault(lease_id, {})[attempt] = rows
            else:
                self.refused.setdefault(lease_id, {})[offset] = refusal
        if self.columns.witnesses:
            self._refuse_changed()
        self.on_step("copied")

    def rows(self, lease_id: int) -> StagedRows:
        """Return the rows of a lease, as far as they were copied."""
        attempts = self.attempts.get(lease_id, {})
        return StagedRows(self.target, self.name(lease_id), self.columns.names, attempts)

    def name(self, lease_id: int) -> str:
        """Return the name of a lease's staging table."""
        return f"{self.prefix}{lease_id}"

    def forget(self) -> None:
        """Forget what was copied and refused: a lease without its refused rows comes back, perhaps with none to
        copy.
        """
        self.attempts.clear()
        self.refused.clear()

    def drop(self, lease_id: int) -> bool:
        """Drop a lease's staging table. Return False if an abandoned copy still writes to it."""
        if lease_id in self.existing and not dropped(self.state, self.target.schema, self.name(lease_id)):
            return False
        self.existing.discard(lease_id)
        return True

    def close(self) -> None:
        """Drop the staging tables of leases that were not acknowledged. If tasks still copy after a while, or the
        database cannot be reached, leave the tables to the next run.
        """
        deadline = time.monotonic() + CLOSE_SECONDS
        while self.existing and time.monotonic() < deadline:
            try:
                for lease_id in sorted(self.existing):
                    if not self.drop(lease_id):
                        break  # its task is being cancelled; afterwards the other tables may be free, too
            except (psycopg2.Error, SQLAlchemyError) as error:
                _log.warning("staging tables could not be dropped: %s", error)
                break
        if self.existing:
            _log.warning("%d staging tables are left to the next run", len(self.existing))

    def _refuse_changed(self) -> None:
        """Add the rows with a value that the table changes to the refused ones."""
        with self.state.transaction() as (connection, _):
            connection.execute(sa.text("set local statement_timeout = 0"))
            connection.execute(sa.text("set local timezone to 'UTC'"))
            cursor = cursor_of(connection)
            for lease_id, attempts in self.attempts.items():
                cursor.execute(changed_rows(self._identifier(lease_id), self.columns.witnesses, attempts))
                for offset, reason in cursor.fetchall():
                    self.refused.setdefault(lease_id, {})[offset] = reason

    def _identifier(self, lease_id: int) -> sql.Identifier:
        return sql.Identifier(self.target.schema, self.name(lease_id))
