"""How do we reach Postgres?

Connections, transactions, one retry rule for lost replies. Nothing here outlives a transaction on the server's
side, so that PgBouncer may use another server connection for every transaction: no startup options, no session
settings, no prepared statements; isolation level, time zone and timeouts are set by each transaction for
itself. How the schema gets there is in `migrations`; what the calls mean is in ``sharequeue.state`` and its
neighbours.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from psycopg2.extensions import ISOLATION_LEVEL_READ_COMMITTED
from sqlalchemy.exc import DBAPIError, DisconnectionError, OperationalError, ProgrammingError

from sharequeue import traces
from sharequeue.database.schema_files import SchemaOutdated, schema_mismatch
from sharequeue.errors import error_for
from sharequeue.settings import DatabaseOptions, Settings

__all__ = ["Database", "Joined"]

CONNECTION_DEFAULTS = {
    "application_name": "sharequeue",
    "connect_timeout": 10,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""libpq's parameters of a connection, where its URL does not say otherwise. A server that vanished without a word (a
cable, a firewall) is noticed after half a minute; the system's own defaults wait a quarter of an hour for a reply,
and two hours when idle. Seconds, the last one milliseconds.
"""

_IDLE_SECONDS = 1.0
"""A pooled connection idle for longer is tested before it is handed out. Testing every time cost each call one round
trip of two."""

_NOT_THERE = frozenset(("42883", "42P01", "42703", "42704", "3F000"))
"""SQLSTATEs for a function, table, column, type or schema that does not exist."""

_DEADLOCK = "40P01"
_DEADLOCKS = 2
"""How often one call is repeated for deadlocks. There are none among our own operations, which take their locks in
one order; a transaction of the user's own may take others."""

_ERROR_STATE = "SQ"
"""SQLSTATEs of our own begin so; Kafka's error number follows."""


class Database:
    """A pool of connections to one Postgres, directly or through PgBouncer in transaction mode.

    ``url`` is an SQLAlchemy URL for psycopg2. Every transaction runs at READ COMMITTED, which the state asks for,
    whatever the server's or the role's default is, with time zone UTC and with the statement and lock timeouts of
    ``options``; a connection that has been idle is tested before it is handed out, so that a
    restarted server costs one retry, not an error.

    A statement that asks for what the schema does not have raises SchemaOutdated, whose message names which of the
    two is older. A refusal that a function raises comes as the error of Kafka's name from ``sharequeue.errors``.
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
            # The one used last: it needs no test, and those that nobody needs stay idle.
            pool_use_lifo=True,
            connect_args=connection_defaults(url),
        )
        self._preamble = (
            "set transaction isolation level read committed; "
            f"set local statement_timeout = {options.statement_timeout_ms}; "
            f"set local lock_timeout = {options.lock_timeout_ms}; set local timezone = 'UTC'; "
        )
        sa.event.listen(self.engine, "begin", _begun)
        sa.event.listen(self.engine, "before_cursor_execute", self._prefixed, retval=True)
        if options.pre_ping:
            sa.event.listen(self.engine, "checkin", _returned)
            sa.event.listen(self.engine, "checkout", _tested)

    @classmethod
    def open(cls, settings: Settings, *, pool_size: int | None = None) -> Database:
        """The database that the settings point to. Raises SettingMissing when they point to none."""
        return cls(settings.database_url, pool_size=pool_size, options=settings.database)

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """One transaction: committed at the end of the block, rolled back by any exception."""
        with self._explained(), self.engine.begin() as connection:
            yield connection

    def rows(self, query: sa.TextClause, **parameters: Any) -> list[sa.RowMapping]:
        """The rows of one statement in a transaction of its own. For calls that are harmless to repeat or
        read only.

        Done again where Postgres ended it as one of several that waited for each other: it has done nothing then.
        """
        for _ in range(_DEADLOCKS):
            try:
                return self._rows(query, parameters)
            except DBAPIError as error:
                if getattr(error.orig, "pgcode", None) != _DEADLOCK:
                    raise
        return self._rows(query, parameters)

    def _rows(self, query: sa.TextClause, parameters: dict[str, Any]) -> list[sa.RowMapping]:
        # One round trip: sent outside a transaction, together with its settings, which makes the message one
        # transaction of its own. By the driver's own switch: SQLAlchemy's isolation level AUTOCOMMIT sends a SET for
        # the session each time it is given back.
        with self._explained(), self.engine.connect() as connection:
            driver: Any = connection.connection.dbapi_connection
            # Leaving autocommit with a level of its own would cost a round trip; the preamble sets it here.
            driver.isolation_level = None
            driver.autocommit = True
            try:
                return list(connection.execute(query, parameters).mappings())
            finally:
                if not driver.closed:
                    driver.autocommit = False

    def call(self, query: sa.TextClause, **parameters: Any) -> list[sa.RowMapping]:
        """As :meth:`rows`, for a call that may be repeated: done again, once, when its reply was lost on the way.

        The function behind it knows the call by its request id, or has the same effect done twice as once.
        """
        try:
            return self.rows(query, **parameters)
        except DBAPIError as error:
            if not (error.connection_invalidated or isinstance(error, OperationalError)):
                raise
            return self.rows(query, **parameters)

    def close(self) -> None:
        """Close every pooled connection."""
        self.engine.dispose()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn an error that Postgres has no better word for into ours."""
        try:
            yield
        except DBAPIError as error:
            state = getattr(error.orig, "pgcode", None) or ""
            if state.startswith(_ERROR_STATE):
                raise error_for(int(state[2:]), str(error.orig).splitlines()[0]) from error
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
        """Put the transaction's settings in front of its first statement, in the same message; and the trace in front
        of each."""
        traced = traces.comment() + statement
        if not connection.info.pop("begun", False):
            return traced, parameters
        if executemany:
            cursor.execute(self._preamble)
            return traced, parameters
        return traces.comment() + self._preamble + statement, parameters


def connection_defaults(url: str) -> dict[str, Any]:
    """Return the parameters of a connection that its URL leaves open."""
    given = sa.make_url(url).query
    return {name: value for name, value in CONNECTION_DEFAULTS.items() if name not in given}


class Joined(Database):
    """A transaction that somebody else has begun, as a database: every call is a part of it.

    Nothing is repeated here: a reply that was lost has taken the whole transaction with it.
    """

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """The same transaction: it ends where it was begun."""
        yield self._connection

    def rows(self, query: sa.TextClause, **parameters: Any) -> list[sa.RowMapping]:
        """The rows of one statement of the transaction."""
        return list(self._connection.execute(query, parameters).mappings())

    def call(self, query: sa.TextClause, **parameters: Any) -> list[sa.RowMapping]:
        """As :meth:`rows`."""
        return self.rows(query, **parameters)

    def close(self) -> None:
        """Nothing: the connection is its owner's."""


def _begun(connection: sa.Connection) -> None:
    connection.info["begun"] = True
    driver: Any = connection.connection.dbapi_connection
    if not driver.autocommit:
        # Of the driver's own BEGIN: whoever takes a cursor of the driver's sends no preamble.
        driver.isolation_level = ISOLATION_LEVEL_READ_COMMITTED


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
