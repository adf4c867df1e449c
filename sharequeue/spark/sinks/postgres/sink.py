"""The sink that writes every accepted record to a Postgres table exactly once.

The rows are moved in the transaction of the acknowledgement, so the table must be in the state's database. Spark's
executors copy a lease's rows into an unlogged staging table of that lease (`copy.py`). Then one transaction
on the driver moves them, `insert into target select … from staging`, and acknowledges in its last statement. Any
error rolls everything back. No row passes through the driver. The next run removes the staging tables of leases that
ended without an acknowledgement.

A row that the table refuses is the outcome of its own record: it is found by dividing the copy (`copy.py`)
or the insert (`move.py`). The lease is refused with the reasons, and comes back without it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import psycopg2
import sqlalchemy as sa
from psycopg2 import sql
from psycopg2.errors import InsufficientPrivilege
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, types
from pyspark.sql import functions as fn
from sqlalchemy.exc import SQLAlchemyError

from sharequeue.domain.errors import InvalidRequest
from sharequeue.domain.names import listed
from sharequeue.domain.results.runs import Stored
from sharequeue.domain.settings import Settings
from sharequeue.outputs.manifest import ELSEWHERE
from sharequeue.spark.leasing.crashes import reason_for_letters
from sharequeue.spark.outcomes.acknowledging import RowsRefused, acknowledging_transaction
from sharequeue.spark.output.files import literal
from sharequeue.spark.output.folders import SinkNames
from sharequeue.spark.signals import deferred
from sharequeue.spark.sinks.columns import in_table
from sharequeue.spark.sinks.interface import (
    AT,
    OPTIONAL,
    AcceptedRows,
    OpenSink,
    Refused,
    Replaced,
    Replacement,
    Sink,
    SinkContext,
    SinkRefused,
    SinkStep,
)
from sharequeue.spark.sinks.postgres.copy import ATTEMPT, LEASE, OFFSET, RECEIPT, Copier
from sharequeue.spark.sinks.postgres.definition import are_the_cause
from sharequeue.spark.sinks.postgres.exact import (
    NESTED,
    Witness,
    changed_rows,
    unwritable_key,
    why_not_held,
    witness,
)
from sharequeue.spark.sinks.postgres.move import (
    WHOLE,
    Piece,
    RowLeftOut,
    StagedRows,
    StagedTrial,
    StagingLost,
)
from sharequeue.spark.sinks.postgres.tables import (
    Target,
    altered,
    connection_of,
    cursor_of,
    dropped,
    find,
    retyped,
    same_database,
    staging_prefix,
    staging_tables,
    with_password,
)
from sharequeue.spark.sql_texts import quoted
from sharequeue.state import State

_log = logging.getLogger(__name__)

CLOSE_SECONDS = 10.0
"""How long the end of a run waits for cancelled tasks that still copy into staging tables."""

Step = Literal["staged", "copied", "locked", "inserted", "acknowledged", "committed", "dropped"]

_SIMPLE = (
    *(types.BooleanType, types.ByteType, types.ShortType, types.IntegerType, types.LongType),
    *(types.FloatType, types.DoubleType, types.StringType, types.DateType, types.TimestampType),
    types.TimestampNTZType,
)
_OF_THE_TABLE = (psycopg2.Error, SQLAlchemyError, PySparkException, Py4JError, RowLeftOut, StagingLost)
"""Errors of copying and moving that an alteration of the table may have caused."""
_AS_JSON = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    # By default, to_json cuts them to milliseconds.
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
NOBODYS_LEASE = 0
"""The number in the name of a replacement's staging table. No lease has this number, so a run leaves the table
to the publication that fills it. The next publication removes the table that a killed one leaves.
"""
_THE_SAME = (
    " {} t {} unnest(cast(%s as text[]), cast(%s as integer[]), cast(%s as bigint[]), cast(%s as bigint[]))"
    " as o (topic, partition, first, last) where t.topic = o.topic and t.partition = o.partition"
    ' and t."offset" between o.first and o.last'
)


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
            left = staging_tables(
                cursor, target.schema, staging_prefix(context.names.group, context.names.sink)
            )
            route = connection_of(self.url or context.settings.database_url)
            if self.url is not None:
                same_database(connection, route, self.table)
        # Read after the tables: a lease that is acquired in between has no table yet.
        held = {row.lease_id for row in context.state.figures.leases(context.names.group)} if left else ()
        for lease_id, name in left:
            if lease_id not in held and lease_id != NOBODYS_LEASE:
                dropped(context.state, target.schema, name)
        opened = OpenTable(self, context, target, route)
        try:
            yield opened
        finally:
            with deferred():
                opened.close()

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
            return Replaced(f"table {self.table}", opened.replace(replacement, execute=execute))


@dataclass(slots=True)
class OpenTable(OpenSink):
    """The table in one run. Spark copies the rows. Everything else runs on the driver, in a few statements
    for each lease.
    """

    sink: PostgresTable
    context: SinkContext
    target: Target
    route: Mapping[str, Any]
    columns: tuple[str, ...] = ()
    witnesses: tuple[Witness, ...] = ()
    """Of the columns that may change a value."""
    attempts: dict[int, dict[str, int]] = field(default_factory=dict)
    """By lease id and attempt: the number of copied rows."""
    refused: dict[int, dict[int, str]] = field(default_factory=dict)
    """By lease id and offset: why a row could not be copied."""
    pieces: dict[int, Sequence[Piece]] = field(default_factory=dict)
    """By lease id: the pieces that the table accepts one after the other, if it has refused all rows together."""
    staged: set[int] = field(default_factory=set)
    """Leases that have a staging table."""
    steps: ClassVar[tuple[SinkStep, ...]] = ("stage",)

    def fits(self, handled: DataFrame) -> DataFrame:
        """Return the rows unchanged. Raise SinkRefused if the table lacks one of their columns, or has it with
        another type.
        """
        self.match(handled.schema)
        return handled

    def match(self, columns: types.StructType) -> None:
        """Check columns, and select those to copy. Raise SinkRefused as `fits` does."""
        if filled := [
            name for name in columns.names if name in self.target.generated and name not in OPTIONAL
        ]:
            raise SinkRefused(
                f"table {self.sink.table} has {', '.join(filled)} as `generated always`, so only Postgres may give "
                "the values: drop it in the handler, or change it in the table to `generated by default`, or to an "
                "ordinary column."
            )
        self.columns = tuple(in_table(self.sink.table, self.target.columns, columns.names))
        if absent := [name for name in self.target.required if name not in self.columns]:
            raise SinkRefused(
                f"table {self.sink.table} has NOT NULL and no default on {', '.join(absent)}, which the handler's "
                "result does not have: add it in the handler, or give it a default there."
            )
        for name in self.columns:
            self._refuse_kind(name, columns[name].dataType, self.target.kinds[name])
        found = (
            witness(
                at, name, columns[name].dataType, self.target.kinds[name], self.target.unlimited.get(name)
            )
            for at, name in enumerate(self.columns)
        )
        self.witnesses = tuple(each for each in found if each is not None)

    def _refuse_kind(self, name: str, kind: types.DataType, there: str) -> None:
        """Raise SinkRefused for a type that Postgres would refuse in the copy, or read as another value."""
        if not isinstance(kind, (*_SIMPLE, *NESTED, types.BinaryType, types.DecimalType, types.NullType)):
            raise SinkRefused(
                f"column {name} is of type {kind.simpleString()}, which cannot be copied into Postgres: cast it in "
                "the handler, for instance to string"
            )
        if (reason := why_not_held(kind, there)) is not None:
            raise SinkRefused(
                f"column {name} is {kind.simpleString()} in the handler's result, but in table {self.sink.table} "
                f"{reason}"
            )
        if (key := unwritable_key(kind)) is not None:
            raise SinkRefused(
                f"column {name} has a map with keys of type {key.simpleString()}, which JSON cannot have: cast them "
                "to string in the handler"
            )

    def _copy(self, lease_ids: Iterable[int], rows: DataFrame) -> None:
        """Copy accepted rows into the staging tables of their leases, on the executors."""
        copier = self.copier(lease_ids)
        texts = as_texts(rows, self.columns, self.witnesses).coalesce(self.sink.connections)
        receipts = texts.mapInArrow(copier, RECEIPT).collect()
        self.take(receipts)

    def _refuse_changed(self) -> None:
        """Add the rows with a value that the table changes to the refused ones."""
        with self.context.state.transaction() as (connection, _):
            connection.execute(sa.text("set local statement_timeout = 0"))
            connection.execute(sa.text("set local timezone to 'UTC'"))
            cursor = cursor_of(connection)
            for lease_id, attempts in self.attempts.items():
                cursor.execute(changed_rows(self._staging(lease_id), self.witnesses, attempts))
                for offset, reason in cursor.fetchall():
                    self.refused.setdefault(lease_id, {})[offset] = reason

    def copier(self, lease_ids: Iterable[int]) -> Copier:
        """Create empty staging tables for these leases. Return the object that fills them, in any process."""
        statements: dict[int, str] = {}
        lease_ids = list(lease_ids)
        # Before they are created: an interrupt may come between the commit and this note.
        self.staged.update(lease_ids)
        with self.context.state.transaction() as (connection, _):
            cursor = cursor_of(connection)
            ours = sql.Identifier(ATTEMPT), sql.Identifier(OFFSET)
            columns = sql.SQL(", ").join(map(sql.Identifier, self.columns))
            witnesses = [
                sql.SQL(", cast(null as {}) as {}").format(sql.SQL(each.type), sql.Identifier(each.name))
                for each in self.witnesses
            ]
            every = sql.SQL(", ").join(
                map(sql.Identifier, (*self.columns, *(w.name for w in self.witnesses)))
            )
            for lease_id in lease_ids:
                staging = self._staging(lease_id)
                cursor.execute(sql.SQL("drop table if exists {}").format(staging))
                cursor.execute(
                    sql.SQL(
                        "create unlogged table {} as select cast(null as text) as {}, cast(null as bigint) as {}, {}"
                        "{} from {} with no data"
                    ).format(staging, *ours, columns, sql.Composed(witnesses), self._table())
                )
                copy = sql.SQL("copy {} ({}, {}, {}) from stdin with (format csv)")
                statements[lease_id] = copy.format(staging, *ours, every).as_string(cursor)
            self._refuse_retyped(cursor)
        self.sink.on_step("staged")
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
        if self.witnesses:
            self._refuse_changed()
        self.sink.on_step("copied")

    def stage(self, leases: Sequence[AcceptedRows]) -> Refused:
        """Copy the accepted rows of a round into staging tables. What is refused is known in `transaction`."""
        # A lease without its refused rows comes back, perhaps with none to copy.
        self.attempts.clear()
        self.refused.clear()
        self.pieces.clear()
        folders = {rows.lease.lease_id: rows.folder for rows in leases if rows.folder is not None}
        if folders:
            with self._alterations_are_named():
                self._copy(folders, self.context.spark.read.parquet(*map(literal, folders.values())))
        return {}

    def put(self, rows: AcceptedRows) -> str:
        """Return the table: the rows of the lease are moved there in its `transaction`."""
        return f"{ELSEWHERE}postgresql:{self.target.schema}.{self.target.name}"

    @contextmanager
    def transaction(self, state: State, rows: AcceptedRows) -> Iterator[State]:
        """Move a lease's rows into the table in the transaction of its acknowledgement: exactly once, even if the
        response to the commit is lost. Raise RowsRefused if the table refuses records. If it refuses them only
        together, the transaction is to be repeated.
        """
        lease_id, on_step = rows.lease.lease_id, self.sink.on_step
        with self._alterations_are_named():
            if lease_id in self.refused:
                raise RowsRefused(self._tried(lease_id).reasons)
            try:
                with acknowledging_transaction(state) as (connection, joined):
                    self._move(connection, rows)
                    on_step("inserted")
                    yield joined
                    on_step("acknowledged")
            except (psycopg2.Error, SQLAlchemyError, RowLeftOut) as error:
                if lease_id in self.pieces or self._rows(lease_id).refusal(error) is None:
                    raise
                trial = self._tried(lease_id)
                self.pieces[lease_id] = trial.pieces
                raise RowsRefused(trial.reasons) from error
            on_step("committed")
            self._drop(lease_id)
            on_step("dropped")

    def _move(self, connection: sa.Connection, rows: AcceptedRows) -> None:
        """Move a lease's rows into the table, unless an earlier transaction was committed."""
        lease_id = rows.lease.lease_id
        if self._counts_already(connection, lease_id):
            return
        cursor = cursor_of(connection)
        self._rows(lease_id).move(cursor, rows.count, self.pieces.get(lease_id, (WHOLE,)))
        self._refuse_retyped(cursor)

    def _tried(self, lease_id: int) -> StagedTrial:
        """Return what the table refuses of a lease. Nothing is changed. Raise SinkRefused if it refuses records after
        it was altered: no record is at fault then.
        """
        with self.context.state.transaction() as (connection, _):
            connection.execute(sa.text("set local statement_timeout = 0"))
            cursor = cursor_of(connection)
            trial = self._rows(lease_id).tried(cursor, self.refused.get(lease_id, {}))
            reasons = list(trial.reasons.values())
            if reasons and are_the_cause(found := altered(cursor, self.target), reasons):
                raise self._was_altered(found, reasons[0])
            connection.rollback()
        return trial

    def _refuse_retyped(self, cursor: Any) -> None:
        """Raise SinkRefused if a column has another type than when the run began, which may change values without an
        error. The transaction has a lock on the table.
        """
        if found := retyped(cursor, self.target, self.columns):
            raise self._was_altered(found)

    @contextmanager
    def _alterations_are_named(self) -> Iterator[None]:
        """Raise SinkRefused in place of an error of the block if the table was altered or dropped meanwhile."""
        try:
            yield
        except _OF_THE_TABLE as error:
            with suppress(psycopg2.Error, SQLAlchemyError):  # the first error has the reason
                with self.context.state.transaction() as (connection, _):
                    found = altered(cursor_of(connection), self.target)
                if found:
                    raise self._was_altered(found, reason_for_letters(error)) from error
            raise

    def _was_altered(self, found: Sequence[str], refusal: str | None = None) -> SinkRefused:
        refuses = f", and refuses rows since: {refusal.rstrip('.')}" if refusal else ""
        return SinkRefused(
            f"table {self.sink.table} was altered during the run ({listed(found)}){refuses}. No record is at fault: "
            "what was not acknowledged was given back, with its deliveries. Undo the alteration, or change the "
            "handler or the table so that they fit again; then start the run again."
        )

    def _rows(self, lease_id: int) -> StagedRows:
        attempts = self.attempts.get(lease_id, {})
        return StagedRows(self.target, self.staging_name(lease_id), self.columns, attempts)

    def close(self) -> None:
        """Drop the staging tables of leases that were not acknowledged. If tasks still copy after a while, or the
        database cannot be reached, leave the tables to the next run.
        """
        deadline = time.monotonic() + CLOSE_SECONDS
        while self.staged and time.monotonic() < deadline:
            try:
                for lease_id in sorted(self.staged):
                    if not self._drop(lease_id):
                        break  # its task is being cancelled; afterwards the other tables may be free, too
            except (psycopg2.Error, SQLAlchemyError) as error:
                _log.warning("staging tables could not be dropped: %s", error)
                break
        if self.staged:
            _log.warning("%d staging tables are left to the next run", len(self.staged))

    def _drop(self, lease_id: int) -> bool:
        if lease_id in self.staged and not dropped(
            self.context.state, self.target.schema, self.staging_name(lease_id)
        ):
            return False
        self.staged.discard(lease_id)
        return True

    def _counts_already(self, connection: sa.Connection, lease_id: int) -> bool:
        """Return whether an earlier transaction of this lease was committed.

        Take a lock that such a transaction also has, so as to wait for one that is just being committed.
        """
        # Moving the rows of a large lease takes longer than the limit for the queue's own statements.
        connection.execute(sa.text("set local statement_timeout = 0"))
        connection.execute(
            sa.text("select pg_advisory_xact_lock(hashtextextended(:name, 0))"),
            {"name": self.staging_name(lease_id)},
        )
        self.sink.on_step("locked")
        found = connection.execute(
            sa.text("select 1 from sharequeue.counted_outputs where lease_id = :lease_id and sink = :sink"),
            {"lease_id": lease_id, "sink": self.context.names.sink},
        )
        return found.first() is not None

    def replace(self, replacement: Replacement, *, execute: bool) -> int:
        """Replace the rows of some records. Return the number of removed rows. The new rows are copied like those of
        a lease.
        """
        if absent := [name for name in AT if name not in self.target.columns]:
            raise SinkRefused(
                f"table {self.sink.table} has no column {', '.join(absent)}: the rows to replace are found by topic, "
                "partition and offset. Add these columns, or publish with a program of your own."
            )
        rows = replacement.rows(self.context.spark)
        self.match(rows.schema)
        runs = [(*at, *run) for at, offsets in replacement.offsets.items() for run in offsets.runs()]
        given = [[run[at] for run in runs] for at in range(4)]
        if not execute:
            with self.context.state.transaction() as (connection, _):
                cursor = cursor_of(connection)
                cursor.execute(
                    sql.SQL("select count(*) from" + _THE_SAME).format(self._table(), sql.SQL("cross join")),
                    given,
                )
                return int(cursor.fetchone()[0])
        if replacement.accepted_rows:
            self._copy([NOBODYS_LEASE], rows.withColumn("lease_id", fn.lit(NOBODYS_LEASE).cast("long")))
        if refused := self.refused.get(NOBODYS_LEASE):
            offset, words = next(iter(sorted(refused.items())))
            raise self._refuses(f"{words} (offset {offset})")
        with self.context.state.transaction() as (connection, _):
            connection.execute(sa.text("set local statement_timeout = 0"))
            cursor = cursor_of(connection)
            try:
                cursor.execute(
                    sql.SQL("delete from" + _THE_SAME).format(self._table(), sql.SQL("using")), given
                )
            except InsufficientPrivilege as error:
                raise SinkRefused(
                    f"this role may not delete rows of {self.sink.table}: grant it DELETE, or publish with a role "
                    "that has it."
                ) from error
            hidden = int(cursor.rowcount)
            staged = self._rows(NOBODYS_LEASE)
            try:
                staged.move(cursor, replacement.accepted_rows)
                # Otherwise deferred ones are checked at the commit.
                cursor.execute("set constraints all immediate")
            except (psycopg2.Error, RowLeftOut) as error:
                if (reason := staged.refusal(error)) is None:
                    raise
                raise self._refuses(reason) from error
        return hidden

    def _refuses(self, words: str) -> SinkRefused:
        return SinkRefused(
            f"table {self.sink.table} refuses a row of the replay: {words}. Nothing was replaced. Correct the "
            "handler and replay again, or change the table."
        )

    def staging_name(self, lease_id: int) -> str:
        """Return the name of a lease's staging table."""
        return f"{staging_prefix(self.context.names.group, self.context.names.sink)}{lease_id}"

    def _staging(self, lease_id: int) -> sql.Identifier:
        return sql.Identifier(self.target.schema, self.staging_name(lease_id))

    def _table(self) -> sql.Identifier:
        return sql.Identifier(self.target.schema, self.target.name)


def as_texts(rows: DataFrame, columns: Sequence[str], witnesses: Sequence[Witness] = ()) -> DataFrame:
    """Return the columns to copy, in forms that CSV can hold: binary as Postgres's hex, nested types as JSON. Their
    witnesses follow.
    """

    schema = rows.schema

    def text(name: str) -> Column:
        kind, column = schema[name].dataType, fn.col(quoted(name))
        if isinstance(kind, types.BinaryType):
            return fn.concat(fn.lit("\\x"), fn.hex(column)).alias(name)
        if isinstance(kind, NESTED):
            return fn.to_json(column, _AS_JSON).alias(name)
        if isinstance(kind, (types.DecimalType, types.NullType)):
            return column.cast("string").alias(name)
        return column

    def beside(each: Witness) -> Column:
        of_json = isinstance(schema[each.column].dataType, NESTED)
        return (fn.expr(each.value(quoted(each.column))) if of_json else text(each.column)).alias(each.name)

    return rows.select(
        fn.col("lease_id").alias(LEASE),
        fn.col("offset").alias(OFFSET),
        *map(text, columns),
        *map(beside, witnesses),
    )
