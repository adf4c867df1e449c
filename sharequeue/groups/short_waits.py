"""How long may a heartbeat, or a step of the service, wait for a row that somebody else holds?

No longer than a moment: others wait meanwhile. And Postgres ends the transaction of a process that is stopped in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, TextClause, text

from sharequeue.database import Database

LOCK_TIMEOUT_MS = 2_000
"""How long a member's heartbeat waits for a row that others hold."""
STEP_LOCK_TIMEOUT_MS = 500
"""How long a replica waits for one in what it does by itself: other groups wait meanwhile."""


@contextmanager
def short_transaction(database: Database, lock_timeout_ms: int = LOCK_TIMEOUT_MS) -> Iterator[Connection]:
    """A transaction that waits for no row longer than a moment, and that Postgres ends when we are stopped in it."""
    with database.transaction() as connection:
        connection.execute(text(_short_waits(lock_timeout_ms)))
        yield connection


def with_short_waits(statement: str, lock_timeout_ms: int = LOCK_TIMEOUT_MS) -> TextClause:
    """Return a statement that waits for no row longer than a moment. The setting costs no round trip of its own."""
    return text(f"{_short_waits(lock_timeout_ms)}; {statement}")


def _short_waits(lock_timeout_ms: int) -> str:
    return (
        f"set local lock_timeout = {lock_timeout_ms};"
        f" set local idle_in_transaction_session_timeout = {LOCK_TIMEOUT_MS}"
    )
