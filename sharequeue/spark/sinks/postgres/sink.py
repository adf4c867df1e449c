"""The sink that writes every accepted record to a Postgres table exactly once.

The rows are moved in the transaction of the acknowledgement, so the table must be in the state's database. Spark's
executors copy a lease's rows into an unlogged staging table of that lease (`staging.py`). Then one transaction
on the driver moves them, `insert into target select … from staging`, and acknowledges in its last statement. Any
error rolls everything back. No row passes through the driver. The next run removes the staging tables of leases that
ended without an acknowledgement.

A row that the table refuses is the outcome of its own record: it is found by dividing the copy (`copy.py`)
or the insert (`move.py`). The lease is refused with the reasons, and comes back without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import psycopg2
import sqlalchemy as sa
from pyspark.sql import DataFrame
from sqlalchemy.exc import SQLAlchemyError

from sharequeue.domain.errors import InvalidRequest
from sharequeue.domain.results.runs import Stored
from sharequeue.domain.settings import Settings
from sharequeue.outputs.manifest import ELSEWHERE
from sharequeue.spark.outcomes.acknowledging import RowsRefused, acknowledging_transaction
from sharequeue.spark.output.files import literal
from sharequeue.spark.output.folders import SinkNames
from sharequeue.spark.signals import deferred
from sharequeue.spark.sinks.interface import (
    AcceptedRows,
    OpenSink,
    Refused,
    Replaced,
    Replacement,
    Sink,
    SinkContext,
    SinkStep,
)
from sharequeue.spark.sinks.postgres.alterations import (
    alterations_are_named,
    altered,
    refuse_retyped,
    was_altered,
)
from sharequeue.spark.sinks.postgres.definition import are_the_cause
from sharequeue.spark.sinks.postgres.move import WHOLE, Piece, RowLeftOut, StagedTrial
from sharequeue.spark.sinks.postgres.replacing import replace_rows
from sharequeue.spark.sinks.postgres.staging import NOBODYS_LEASE, StagingTables
from sharequeue.spark.sinks.postgres.tables import (
    connection_of,
    cursor_of,
    dropped,
    find,
    same_database,
    staging_prefix,
    staging_tables,
)
from sharequeue.state import State

Step = Literal["staged", "copied", "locked", "inserted", "acknowledged", "committed", "dropped"]


@dataclass(frozen=True, slots=True)
class PostgresTable(Sink):
    """A table in the state's database, if people query the rows, and they fit there. It gets every accepted record
    exactly once, with its acknowledgement.

    `table` may contain the schema. The table must exist, and columns are matched by name: it must have every column
    of the handler's result, but `topic`, `partition`, `offset`, `lease_id` and `delivery_count` are left out if it
    has no such column. Binary columns are written to `bytea`; arrays, maps and structs to `json` or `jsonb`. The role
    of the run needs `insert` and `select` on the table, `create` on its schema (for staging tables), and the queue's
    roles of a worker and a reader.

    `url` is the address at which the executors reach the same database, if it differs from the driver's URL. A URL of
    another database is refused. `connections` is the maximum number of tasks that copy at the same time, each with
    its own connection; twice this number if Spark speculates. Raises ValueError if it is less than 1.
    """

    table: str
    url: str | None = None
    connections: int = 16
    on_step: Callable[[Step], None] = field(default=lambda step: None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.connections < 1:
            raise ValueError(f"connections is {self.connections}: expected 1 or more")

    @contextmanager
    def open(self, context: SinkContext) -> Iterator[OpenTable]:
        """Prepare a run, and drop the staging tables that killed runs left. Raises SinkRefused if the table does not
        exist, if the role may not write to it, or if `url` is the address of another database.
        """
        with context.state.transaction() as (connection, _):
            cursor = cursor_of(connection)
            target = find(cursor, self.table)
            prefix = staging_prefix(context.names.group, context.names.sink)
            left = staging_tables(cursor, target.schema, prefix)
            route = connection_of(self.url or context.settings.database_url)
            if self.url is not None:
                same_database(connection, route, self.table)
        # Read after the tables: a lease that is acquired in between has no table yet.
        held = {row.lease_id for row in context.state.figures.leases(context.names.group)} if left else ()
        for lease_id, name in left:
            if lease_id not in held and lease_id != NOBODYS_LEASE:
                dropped(context.state, target.schema, name)
        staging = StagingTables(
            *(self.table, target, prefix, context.state, route, self.connections), on_step=self.on_step
        )
        opened = OpenTable(self, context, staging)
        try:
            yield opened
        finally:
            with deferred():
                opened.staging.close()

    def stored(self, settings: Settings, names: SinkNames) -> Stored:
        """Return the table with its database, and the address of the server."""
        url = sa.make_url(settings.database_url)
        server = sa.URL.create("postgresql", host=url.host, port=url.port, database=url.database)
        table = f"{url.database}.{self.table}" if url.database else self.table
        return Stored("postgres", table, server.render_as_string())

    def replace(self, context: SinkContext, replacement: Replacement, *, execute: bool) -> Replaced:
        """Replace rows by topic, partition and offset, in one transaction. Raises SinkRefused if the table lacks a
        column or the role a privilege, and InvalidRequest if the job has summaries.
        """
        if replacement.summaries:
            raise InvalidRequest(
                f"The summaries of {context.names.sink} cannot be computed again, because its rows are in a table: "
                "compute them from the table."
            )
        with self.open(context) as opened:
            return Replaced(
                f"table {self.table}",
                replace_rows(opened.staging, context.spark, replacement, execute=execute),
            )


@dataclass(slots=True)
class OpenTable(OpenSink):
    """The table in one run. Spark copies the rows. Everything else runs on the driver, in a few statements
    for each lease.
    """

    sink: PostgresTable
    context: SinkContext
    staging: StagingTables
    pieces: dict[int, Sequence[Piece]] = field(default_factory=dict)
    """By lease id: the pieces that the table accepts one after the other, if it has refused all rows together."""
    steps: ClassVar[tuple[SinkStep, ...]] = ("stage",)

    def fits(self, handled: DataFrame) -> DataFrame:
        """Return the rows unchanged. Raise SinkRefused if the table lacks one of their columns, or has it with
        another type.
        """
        self.staging.match(handled.schema)
        return handled

    def stage(self, leases: Sequence[AcceptedRows]) -> Refused:
        """Copy the accepted rows of a round into staging tables. What is refused is known in `transaction`."""
        self.staging.forget()
        self.pieces.clear()
        folders = {rows.lease.lease_id: rows.folder for rows in leases if rows.folder is not None}
        if folders:
            with self._alterations_are_named():
                self.staging.copy(folders, self.context.spark.read.parquet(*map(literal, folders.values())))
        return {}

    def put(self, rows: AcceptedRows) -> str:
        """Return the table: the rows of the lease are moved there in its `transaction`."""
        return f"{ELSEWHERE}postgresql:{self.staging.target.schema}.{self.staging.target.name}"

    @contextmanager
    def transaction(self, state: State, rows: AcceptedRows) -> Iterator[State]:
        """Move a lease's rows into the table in the transaction of its acknowledgement: exactly once, even if the
        response to the commit is lost. Raise RowsRefused if the table refuses records. If it refuses them only
        together, the transaction is to be repeated.
        """
        lease_id, on_step = rows.lease.lease_id, self.sink.on_step
        with self._alterations_are_named():
            if lease_id in self.staging.refused:
                raise RowsRefused(self._tried(lease_id).reasons)
            try:
                with acknowledging_transaction(state) as (connection, joined):
                    self._move(connection, rows)
                    on_step("inserted")
                    yield joined
                    on_step("acknowledged")
            except (psycopg2.Error, SQLAlchemyError, RowLeftOut) as error:
                if lease_id in self.pieces or self.staging.rows(lease_id).refusal(error) is None:
                    raise
                trial = self._tried(lease_id)
                self.pieces[lease_id] = trial.pieces
                raise RowsRefused(trial.reasons) from error
            on_step("committed")
            self.staging.drop(lease_id)
            on_step("dropped")

    def _move(self, connection: sa.Connection, rows: AcceptedRows) -> None:
        """Move a lease's rows into the table, unless an earlier transaction was committed."""
        lease_id = rows.lease.lease_id
        if self._counts_already(connection, lease_id):
            return
        cursor = cursor_of(connection)
        self.staging.rows(lease_id).move(cursor, rows.count, self.pieces.get(lease_id, (WHOLE,)))
        refuse_retyped(cursor, self.sink.table, self.staging.target, self.staging.columns.names)

    def _tried(self, lease_id: int) -> StagedTrial:
        """Return what the table refuses of a lease. Nothing is changed. Raise SinkRefused if it refuses records after
        it was altered: no record is at fault then.
        """
        with self.context.state.transaction() as (connection, _):
            connection.execute(sa.text("set local statement_timeout = 0"))
            cursor = cursor_of(connection)
            trial = self.staging.rows(lease_id).tried(cursor, self.staging.refused.get(lease_id, {}))
            reasons = list(trial.reasons.values())
            if reasons and are_the_cause(found := altered(cursor, self.staging.target), reasons):
                raise was_altered(self.sink.table, found, reasons[0])
            connection.rollback()
        return trial

    def _alterations_are_named(self) -> AbstractContextManager[None]:
        return alterations_are_named(self.context.state, self.sink.table, self.staging.target)

    def _counts_already(self, connection: sa.Connection, lease_id: int) -> bool:
        """Return whether an earlier transaction of this lease was committed.

        Take a lock that such a transaction also has, so as to wait for one that is just being committed.
        """
        # Moving the rows of a large lease takes longer than the limit for the queue's own statements.
        connection.execute(sa.text("set local statement_timeout = 0"))
        connection.execute(
            sa.text("select pg_advisory_xact_lock(hashtextextended(:name, 0))"),
            {"name": self.staging.name(lease_id)},
        )
        self.sink.on_step("locked")
        found = connection.execute(
            sa.text("select 1 from sharequeue.counted_outputs where lease_id = :lease_id and sink = :sink"),
            {"lease_id": lease_id, "sink": self.context.names.sink},
        )
        return found.first() is not None
