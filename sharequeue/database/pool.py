"""The pool of connections to Postgres.

Connections, transactions, one retry rule for lost replies. No server-side state outlives a transaction,
so that PgBouncer may use another server connection for every transaction: no startup options, no session
settings, no prepared statements; each transaction sets its own role, formats, isolation level and timeouts.
A session whose state makes calls fail is ended: the pool would hand it out for ever. A process that was forked opens
its own connections.
The schema is applied by `migrations`; the calls are defined in ``sharequeue.state`` and similar
packages.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakSet

import sqlalchemy as sa
from psycopg2.extensions import ISOLATION_LEVEL_READ_COMMITTED
from sqlalchemy.exc import DBAPIError, DisconnectionError, OperationalError, ProgrammingError

from sharequeue.database import refusals
from sharequeue.database.schema_files import SchemaOutdated, schema_mismatch
from sharequeue.database.sqlstates import (
    DEADLOCK,
    READ_ONLY,
    ReadOnlyDatabase,
    is_of_the_session,
    may_be_of_the_session,
    sqlstate,
)
from sharequeue.domain import traces
from sharequeue.domain.errors import error_for, first_line
from sharequeue.domain.settings import DatabaseOptions, Settings

__all__ = ["Database", "Joined"]

_ENCODING = "utf8"
"""The only encoding that has all texts; a default of the database, the role or PGCLIENTENCODING may be another."""

CONNECTION_DEFAULTS = {
    "application_name": "sharequeue",
    "connect_timeout": 10,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "client_encoding": _ENCODING,
}
"""libpq's connection parameters, unless the URL sets them; the encoding in any case. A server that vanished without
closing its connections (a cable, a firewall) is noticed after half a minute; with the system's defaults after a
quarter of an hour for a reply, and two hours when idle. Seconds, the last one milliseconds.
"""

TEXT_SETTINGS = (
    "set local datestyle to 'ISO'; set local intervalstyle to 'postgres'; set local timezone to 'UTC'; "
    "set local array_nulls to on; "
)
"""Statements for the beginning of a transaction: the settings that change how Postgres reads and writes texts, which
may be set for a server, database or role, or by another program. Of each, the value for which all texts are written.
"""

_SESSION = "set local role to default; set local search_path to default; " + TEXT_SETTINGS
"""What the session's state could change in a transaction. A pooler in transaction mode may hand over a session in
which another program has set any of these. They cost 6 microseconds of a call's 40."""

_CAN_WRITE = sa.text(
    "do $$ begin if cast(current_setting('transaction_read_only') as boolean) then"
    " raise read_only_sql_transaction using message = 'cannot write in a read-only transaction';"
    " end if; end $$"
)

_TRANSACTION_TIMEOUT_SINCE = 170_000
"""The first version of Postgres with that setting."""

_OF_MESSAGES = ("client_encoding", "standard_conforming_strings")

_END_POOLED = "select pg_terminate_backend(pg_backend_pid()) where pg_backend_pid() <> %s"
"""Behind a pooler, whose process ids are not the server's, closing our connection leaves the server's session."""

_IDLE_SECONDS = 1.0
"""A pooled connection idle for longer is tested before use. Testing every time made two round trips of each
call's one."""

_NOT_THERE = frozenset(("42883", "42P01", "42703", "42704", "3F000"))
"""SQLSTATEs for a function, table, column, type or schema that does not exist."""

_DEADLOCKS = 2
"""How often one call is repeated after deadlocks. Our own operations cause none, because they take their locks in
one order; a transaction of the user's own may take others."""

_ERROR_STATE = "SQ"
"""SQLSTATEs of our own begin with this; Kafka's error number follows."""


class Database:
    """A pool of connections to one Postgres, directly or through PgBouncer in transaction mode.

    ``url`` is an SQLAlchemy URL for psycopg2. Every transaction runs at READ COMMITTED, which the state requires,
    whatever the default of the server or role is, with time zone UTC and with the statement and lock timeouts of
    ``options``. A connection that has been idle is tested before use, so that a
    restarted server costs one retry, not an error. A session that is read-only, has an aborted transaction, or has
    lost a prepared statement is ended with all other idle ones, and a single statement is repeated on a new one: a
    database that was read-only for a while, or an address that led to a standby, costs one retry, too. A database
    that is read-only raises OperationalError, as one that does not respond.

    A statement that uses objects missing in the schema raises SchemaOutdated, whose message names the
    older of the two. A refusal by a function is raised as the error of Kafka's name from `domain.errors`.
    """

    def __init__(
        self, url: str, *, pool_size: int | None = None, options: DatabaseOptions | None = None
    ) -> None:
        options = options or DatabaseOptions()
        size = pool_size or options.pool_size
        self.lock_timeout_ms = options.lock_timeout_ms
        self.engine = sa.create_engine(
            url,
            pool_size=size,
            max_overflow=size,
            # The connection used last: it needs no test, and surplus ones stay idle.
            pool_use_lifo=True,
            connect_args=connection_defaults(url),
        )
        self._preamble = (
            # Without JIT: it compiles queries on views for seconds, because of estimates that are far too high.
            "set transaction isolation level read committed; set local jit = off; "
            f"set local statement_timeout = {options.statement_timeout_ms}; "
            f"set local lock_timeout = {options.lock_timeout_ms}; {_SESSION}"
        )
        sa.event.listen(self.engine, "do_connect", _connect)
        sa.event.listen(self.engine, "begin", _begun)
        sa.event.listen(self.engine, "before_cursor_execute", self._prefixed, retval=True)
        sa.event.listen(self.engine, "connect", _connected)
        sa.event.listen(self.engine, "handle_error", _failed)
        sa.event.listen(self.engine, "checkout", _ended)
        if options.pre_ping:
            sa.event.listen(self.engine, "checkin", _returned)
            sa.event.listen(self.engine, "checkout", _tested)
        _OPEN.add(self)

    @classmethod
    def open(cls, settings: Settings, *, pool_size: int | None = None) -> Database:
        """Open the database of the settings. Raises SettingMissing if they have none."""
        return cls(settings.database_url, pool_size=pool_size, options=settings.database)

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """Open a transaction: committed at the end of the block, rolled back by any exception."""
        with self._explained(), self.engine.begin() as connection:
            yield connection

    def rows(self, query: sa.TextClause, **parameters: Any) -> list[sa.RowMapping]:
        """Return the rows of one statement in a transaction of its own. It must be idempotent or read only.

        The statement is repeated if Postgres ended it because of a deadlock, and on another session if its session
        may have been the cause: it has had no effect then.
        """
        for _ in range(_DEADLOCKS):
            try:
                return self._rows(query, parameters)
            except DBAPIError as error:
                if sqlstate(error) == DEADLOCK:
                    continue
                if not may_be_of_the_session(error):
                    raise
                break
        return self._rows(query, parameters)

    def _rows(self, query: sa.TextClause, parameters: dict[str, Any]) -> list[sa.RowMapping]:
        # One round trip: sent outside a transaction, together with its settings, which makes the message one
        # transaction. With the driver's own switch: SQLAlchemy's isolation level AUTOCOMMIT sends a SET for
        # the session each time the connection is returned.
        with self._explained(), self.engine.connect() as connection:
            driver: Any = connection.connection.dbapi_connection
            # Leaving autocommit with another isolation level would cost a round trip; the preamble sets it here.
            driver.isolation_level = None
            driver.autocommit = True
            try:
                return list(connection.execute(query, parameters).mappings())
            finally:
                if not driver.closed:
                    driver.autocommit = False

    def call(self, query: sa.TextClause, **parameters: Any) -> list[sa.RowMapping]:
        """Return rows as :meth:`rows`, and repeat the call once if its reply was lost.

        The function must be idempotent, or recognise the call by its request id.
        """
        try:
            return self.rows(query, **parameters)
        except DBAPIError as error:
            if not (error.connection_invalidated or isinstance(error, OperationalError)):
                raise
            return self.rows(query, **parameters)

    def require_writable(self) -> None:
        """Return if the database can be written. Raises OperationalError, with the reason, if it cannot."""
        for last in (False, True):
            try:
                with self.transaction() as connection:
                    connection.execute(_CAN_WRITE)
                return
            except OperationalError as error:
                # The first attempt may have had a session from before the database could be written again.
                if last or sqlstate(error) != READ_ONLY:
                    raise

    def close(self) -> None:
        """Close every pooled connection."""
        self.engine.dispose()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Translate Postgres's errors into ours."""
        try:
            yield
        except DBAPIError as error:
            state = sqlstate(error) or ""
            if state.startswith(_ERROR_STATE):
                raise error_for(int(state[2:]), first_line(error.orig or error)) from error
            if state == READ_ONLY and not isinstance(error, OperationalError):
                raise OperationalError(
                    error.statement, error.params, ReadOnlyDatabase(), connection_invalidated=True
                ) from error
            if isinstance(error, ProgrammingError) and state in _NOT_THERE:
                with self.engine.connect() as connection:
                    mismatch = schema_mismatch(connection)
                if mismatch is not None:
                    raise SchemaOutdated(mismatch) from error
            raise

    def _prefixed(
        self,
        connection: sa.Connection,
        cursor: Any,
        statement: str,
        parameters: Any,
        context: Any,
        executemany: bool,
    ) -> tuple[str, Any]:
        """Add the transaction's settings before its first statement, in the same message, and the trace before
        each statement."""
        traced = traces.comment() + statement
        if not connection.info.pop("begun", False):
            return traced, parameters
        preamble = self._preamble
        if cursor.connection.server_version >= _TRANSACTION_TIMEOUT_SINCE:
            # A role's limit would end the session, and the driver drops the reason; statements have their own limit.
            preamble += "set local transaction_timeout = 0; "
        if executemany:
            cursor.execute(preamble)
            return traced, parameters
        return traces.comment() + preamble + statement, parameters


_OPEN: WeakSet[Database] = WeakSet()


def _forked() -> None:
    """Forget the connections of the process that this one was forked from, without closing them: two processes on one
    connection read each other's replies, and one that closes it ends the other's session."""
    for each in _OPEN:
        each.engine.dispose(close=False)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def connection_defaults(url: str) -> dict[str, Any]:
    """Return the default parameters of a connection that its URL does not set, and the encoding, which it cannot."""
    given = sa.make_url(url).query.keys() - {"client_encoding"}
    return {name: value for name, value in CONNECTION_DEFAULTS.items() if name not in given}


class Joined(Database):
    """An open transaction of a caller, as a database: every call is a part of it.

    Nothing is repeated here: a lost reply means that the whole transaction is lost.
    """

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """Yield the same transaction: its caller ends it."""
        yield self._connection

    def rows(self, query: sa.TextClause, **parameters: Any) -> list[sa.RowMapping]:
        """Return the rows of one statement of the transaction."""
        return list(self._connection.execute(query, parameters).mappings())

    def call(self, query: sa.TextClause, **parameters: Any) -> list[sa.RowMapping]:
        """As :meth:`rows`."""
        return self.rows(query, **parameters)

    def close(self) -> None:
        """Do nothing: the connection belongs to the caller."""


def _connect(_dialect: Any, _record: Any, arguments: Any, route: dict[str, Any]) -> Any:
    return refusals.connect(*arguments, **route)


def _begun(connection: sa.Connection) -> None:
    connection.info["begun"] = True
    driver: Any = connection.connection.dbapi_connection
    if not driver.autocommit:
        # With the driver's own BEGIN: code that uses the driver's cursor sends no preamble.
        driver.isolation_level = ISOLATION_LEVEL_READ_COMMITTED


def _failed(context: sa.engine.ExceptionContext) -> None:
    """End the session of a failed statement if the session is, or may be, the cause."""
    error, connection = context.sqlalchemy_exception, context.connection
    if not isinstance(error, DBAPIError) or connection is None or connection.invalidated:
        return
    if is_of_the_session(error):
        if sqlstate(error) == READ_ONLY:
            _end_pooled(connection.connection.dbapi_connection)
        context.is_disconnect = True  # ends this session, and the idle ones before their next use
    elif may_be_of_the_session(error):
        connection.info["suspect"] = True


def _end_pooled(driver: Any) -> None:
    """End a read-only session that a pooler would hand out again."""
    with suppress(driver.Error):
        driver.rollback()
        with driver.cursor() as cursor:
            cursor.execute(_END_POOLED, (driver.info.backend_pid,))


def _connected(connection: Any, record: Any) -> None:
    record.info["reading"] = _reading(connection)
    # Behind a pooler, a session may listen for another program: the driver would keep its notifications for ever.
    connection.notifies = deque(maxlen=0)


def _ended(connection: Any, record: Any, _: Any) -> None:
    """End a session that is not fit for the next call. Costs no round trip."""
    if record.info.pop("suspect", False):
        raise DisconnectionError("a call failed for a reason that this session's state may have caused")
    # The server reads a whole message before it executes any of its statements, so these cannot be set in it.
    if _reading(connection) != record.info["reading"]:
        raise DisconnectionError("the encoding of this session, or the form of its literals, was changed")


def _reading(connection: Any) -> list[str | None]:
    """Return the settings by which the server reads a message, and by which the driver writes literals. The server
    has reported them, so this costs no round trip.
    """
    return [connection.info.parameter_status(each) for each in _OF_MESSAGES]


def _returned(_: Any, record: Any) -> None:
    record.info["returned_at"] = time.monotonic()


def _tested(connection: Any, record: Any, _: Any) -> None:
    if time.monotonic() - record.info.get("returned_at", time.monotonic()) < _IDLE_SECONDS:
        return
    try:
        with connection.cursor() as cursor:
            cursor.execute("select 1")
        connection.rollback()
    except connection.Error as error:
        raise DisconnectionError(str(error)) from error
