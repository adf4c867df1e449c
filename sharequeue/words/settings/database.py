"""The address and the roles of Postgres."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

_DRIVER = "postgresql+psycopg2"


def normalise_database_url(url: str) -> str:
    """Add the driver to a bare Postgres URL, and write several hosts (libpq's `h1:5432,h2:5432`) in SQLAlchemy's
    form.

    SQLAlchemy 2.1 maps `postgresql://` to psycopg 3, under which dagster-postgres fails on every run.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    place, slash, tail = rest.partition("/")
    user, at, hosts = place.rpartition("@")
    if "," in hosts:
        name, _, query = tail.partition("?")
        listed = "&".join([*(f"host={host}" for host in hosts.split(",")), *filter(None, [query])])
        rest = f"{user}{at}{slash}{name}?{listed}"
    return f"{_DRIVER if scheme in ('postgresql', 'postgres') else scheme}://{rest}"


def sibling_database(database_url: str) -> str:
    """Return the URL of the database `dagster` on the same server."""
    if not database_url:
        return ""
    return urlunsplit(urlsplit(database_url)._replace(path="/dagster"))


@dataclass(frozen=True, slots=True)
class DatabaseOptions:
    """Options of connections to Postgres: `SHAREQUEUE_DATABASE_<NAME>`. Raises ValueError for invalid values."""

    pool_size: int = 5
    """Connections kept open; the same number again may be opened for a short time."""
    statement_timeout_ms: int = 60_000
    """The longest duration of one statement; 0 for no limit."""
    lock_timeout_ms: int = 30_000
    """The longest wait of a statement for a row lock; 0 for no limit."""
    pre_ping: bool = True
    """Test a connection that has been idle for a second before it is used."""

    def __post_init__(self) -> None:
        if self.pool_size < 1 or min(self.statement_timeout_ms, self.lock_timeout_ms) < 0:
            raise ValueError("the pool size must be at least 1, and timeouts must not be negative")


class RoleNames(NamedTuple):
    """The names of the group roles in Postgres: `SHAREQUEUE_DATABASE_<PURPOSE>_ROLE`."""

    owner: str = "sharequeue_owner"
    """Owns the schema and may do everything; migrations run as a member of it."""
    service: str = "sharequeue_service"
    """Runs the coordinator: keeps groups and members, and may act for other principals."""
    worker: str = "sharequeue_worker"
    """May call the functions of operations, and has no access to tables."""
    reader: str = "sharequeue_reader"
    """May read the views."""
