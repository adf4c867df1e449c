"""Limit how long a heartbeat, or a step of the service, waits for a row lock.

The wait is short, because others wait meanwhile. Postgres also ends the transaction of a process that is stopped in
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, TextClause, text

from sharequeue.database import Database

LOCK_TIMEOUT_MS = 2_000
"""How long a member's heartbeat waits for a row that others have locked."""
STEP_LOCK_TIMEOUT_MS = 500
"""How long a replica waits for a row in its own tasks: other groups wait meanwhile."""


@contextmanager
def short_transaction(database: Database, lock_timeout_ms: int = LOCK_TIMEOUT_MS) -> Iterator[Connection]:
    """Open a transaction that waits for no row longer than `lock_timeout_ms`.

    Postgres ends the transaction if this process is stopped in it.
    """
    with database.transaction() as connection:
        connection.execute(text(_short_waits(lock_timeout_ms)))
        yield connection


def with_short_waits(statement: str, lock_timeout_ms: int = LOCK_TIMEOUT_MS) -> TextClause:
    """Return a statement with a short wait for locked rows. The setting costs no extra round trip."""
    return text(f"{_short_waits(lock_timeout_ms)}; {statement}")


def _short_waits(lock_timeout_ms: int) -> str:
    return (
        f"set local lock_timeout = {lock_timeout_ms};"
        f" set local idle_in_transaction_session_timeout = {LOCK_TIMEOUT_MS}"
    )
