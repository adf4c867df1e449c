"""How is Postgres reached, and what are its roles called?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

_DRIVER = "postgresql+psycopg2"


def normalise_database_url(url: str) -> str:
    """Name the driver in a bare Postgres URL, and write several hosts (`h1:5432,h2:5432`, as libpq takes them) as
    SQLAlchemy does.

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
    """How connections to Postgres are kept: `SHAREQUEUE_DATABASE_<NAME>`. Raises ValueError for what cannot be."""

    pool_size: int = 5
    """Connections kept open; as many again may be opened for a moment."""
    statement_timeout_ms: int = 60_000
    """Longest that one statement may take; 0 for no bound."""
    lock_timeout_ms: int = 30_000
    """Longest that a statement waits for a row lock; 0 for no bound."""
    pre_ping: bool = True
    """Test a connection that has been idle for a second before it is used."""

    def __post_init__(self) -> None:
        if self.pool_size < 1 or min(self.statement_timeout_ms, self.lock_timeout_ms) < 0:
            raise ValueError("the pool holds at least one connection, and timeouts are not negative")


class RoleNames(NamedTuple):
    """What the group roles in Postgres are called: `SHAREQUEUE_DATABASE_<PURPOSE>_ROLE`."""

    owner: str = "sharequeue_owner"
    """Owns the schema and may do everything; who migrates is a member."""
    service: str = "sharequeue_service"
    """Runs the coordinator: keeps groups and members, and may speak for other principals."""
    worker: str = "sharequeue_worker"
    """May call the functions of operations and touches no table."""
    reader: str = "sharequeue_reader"
    """Sees the views."""
