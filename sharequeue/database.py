"""How do we reach Postgres, and is the schema there as the code expects it?

Connections, transactions, one retry rule for lost replies, and the migrations: tables by numbered files
that only go forward, functions and views by files that are applied again whenever their text changed. What
the calls mean is in ``sharequeue.state`` and its neighbours.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, OperationalError

from sharequeue.settings import Settings

_MIGRATION_LOCK = 7_264_519_032_117
"""Key of the advisory lock under which one process at a time migrates; any constant does."""

_STATEMENT_TIMEOUT_MS = 60_000
_LOCK_TIMEOUT_MS = 30_000


class SchemaOutdated(Exception):
    """The database's schema is not the one this code was written for. Run ``sharequeue migrate``."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One SQL file: a numbered one is applied once, a repeatable one whenever its text changed."""

    name: str
    text: str
    repeatable: bool

    @property
    def checksum(self) -> str:
        """What tells one text of the file from another."""
        return hashlib.sha256(self.text.encode()).hexdigest()


class Database:
    """A pool of connections to one Postgres.

    ``url`` is an SQLAlchemy URL for psycopg2; the time zone of every session is UTC, statement and lock
    timeouts are set, and a connection is tested before it is handed out, so that a restarted server costs
    one retry, not an error.
    """

    def __init__(self, url: str, *, pool_size: int = 5) -> None:
        self.engine = sa.create_engine(
            url,
            pool_size=pool_size,
            max_overflow=pool_size,
            pool_pre_ping=True,
            connect_args={
                "application_name": "sharequeue",
                "connect_timeout": 10,
                "options": f"-c timezone=UTC -c statement_timeout={_STATEMENT_TIMEOUT_MS} "
                f"-c lock_timeout={_LOCK_TIMEOUT_MS}",
            },
        )

    @classmethod
    def open(cls, settings: Settings, *, pool_size: int = 5) -> Database:
        """The database that the settings point to. Raises SettingMissing when they point to none."""
        return cls(settings.database_url, pool_size=pool_size)

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """One transaction: committed at the end of the block, rolled back by any exception."""
        with self.engine.begin() as connection:
            yield connection

    def rows(self, query: sa.TextClause, **parameters: Any) -> list[sa.RowMapping]:
        """The rows of one statement in a transaction of its own. For calls that are harmless to repeat or
        read only."""
        with self.transaction() as connection:
            return list(connection.execute(query, parameters).mappings())

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
        """Closes every pooled connection."""
        self.engine.dispose()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def sql_root() -> Path:
    """The folder of the SQL files: beside the package in a checkout, inside it in an installed wheel."""
    package = Path(__file__).resolve().parent
    for root in (package.parent / "sql", package / "_sql"):
        if (root / "migrations").is_dir():
            return root
    raise FileNotFoundError(
        f"no SQL files beside or inside {package}: the installation is incomplete, install it again"
    )


def migrations() -> list[Migration]:
    """Every SQL file in the order of application: numbered ones, then functions, views, and the rest of
    functions.

    A view may use functions below 20; functions from 20 on may use views.
    """
    root = sql_root()
    functions = sorted((root / "functions").glob("*.sql"))
    early = [f for f in functions if f.name < "20"]
    late = [f for f in functions if f.name >= "20"]
    files = [
        *sorted((root / "migrations").glob("*.sql")),
        *early,
        *sorted((root / "views").glob("*.sql")),
        *late,
    ]
    return [
        Migration(f"{f.parent.name}/{f.name}", f.read_text(), f.parent.name != "migrations") for f in files
    ]


def pending(database: Database) -> list[str]:
    """The names of the files that :func:`migrate` would apply, in order. Raises SchemaOutdated as it does."""
    with database.transaction() as connection:
        return [migration.name for migration in _pending(connection)]


def migrate(database: Database, *, dry_run: bool = False) -> list[str]:
    """Brings the schema up to date, all in one transaction; answers with the names of the files applied.

    With ``dry_run`` nothing changes and the names say what would be applied. Raises SchemaOutdated when an
    applied numbered migration has another text now, or the database has one that this code does not know (a
    newer release).
    """
    with database.transaction() as connection:
        connection.execute(sa.text("select pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
        todo = _pending(connection)
        if not dry_run and todo:
            connection.exec_driver_sql("create schema if not exists sharequeue")
            connection.exec_driver_sql(
                "create table if not exists sharequeue.schema_migrations ("
                " name text constraint schema_migrations_pkey primary key, checksum text not null,"
                " applied_at timestamptz not null default clock_timestamp())"
            )
            for migration in todo:
                _apply(connection, migration)
        return [migration.name for migration in todo]


def _pending(connection: sa.Connection) -> list[Migration]:
    applied = _applied(connection)
    files = migrations()
    unknown = sorted(
        name for name in applied.keys() - {f.name for f in files} if name.startswith("migrations/")
    )
    if unknown:
        raise SchemaOutdated(
            f"the database has {unknown[-1]}, which this version does not know: it was migrated by a newer release. "
            "Upgrade sharequeue here."
        )
    for f in files:
        if not f.repeatable and applied.get(f.name, f.checksum) != f.checksum:
            raise SchemaOutdated(
                f"{f.name} was applied with another text than it has now. Numbered migrations never change once "
                "applied: restore the file and write a new one."
            )
    first_changed = next((i for i, f in enumerate(files) if applied.get(f.name) != f.checksum), len(files))
    # A repeatable file may use any that stands before it: from the first change on, all of them are applied
    # again.
    return [f for i, f in enumerate(files) if i >= first_changed and (f.repeatable or f.name not in applied)]


def _applied(connection: sa.Connection) -> Mapping[str, str]:
    if connection.scalar(sa.text("select to_regclass('sharequeue.schema_migrations')")) is None:
        return {}
    rows = connection.execute(sa.text("select name, checksum from sharequeue.schema_migrations"))
    return {row.name: row.checksum for row in rows}


def _apply(connection: sa.Connection, migration: Migration) -> None:
    cursor = connection.connection.cursor()
    try:
        # Straight to the driver, without parameters, so that a percent sign or a colon in a file is just
        # text.
        cursor.execute(migration.text)
    finally:
        cursor.close()
    connection.execute(
        sa.text(
            "insert into sharequeue.schema_migrations (name, checksum) values (:name, :checksum)"
            " on conflict (name) do update set checksum = excluded.checksum, applied_at = clock_timestamp()"
        ),
        {"name": migration.name, "checksum": migration.checksum},
    )
