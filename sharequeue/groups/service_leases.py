"""Which replica of the service does what only one should do at a time, and are there any at all?

A row in Postgres with an expiry, taken for seconds and held on to while the work goes on: whoever is stopped loses
it, and is refused when it wakes and would write (`fenced`). No lock and no transaction is kept while the broker is
asked (``sql/functions/20_groups/service.sql``). Which tasks there are is the matter of `service.coordinator` and
`deadletters.drainer`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from uuid import UUID, uuid4

from sqlalchemy import Connection, TextClause, text

from sharequeue.database import Database
from sharequeue.database.pool import Joined

LOCK_TIMEOUT_MS = 2_000
"""How long a member's heartbeat waits for a row that others hold."""
STEP_LOCK_TIMEOUT_MS = 500
"""How long a replica waits for one in what it does by itself: other groups wait meanwhile."""


class ServiceLease:
    """One taking of a task by one replica; `seconds` is how long it lasts from each `take` on.

    Not safe to share between threads that take and end it; any of them may write under it.
    """

    def __init__(self, database: Database, task: str, holder: str, seconds: float) -> None:
        self._database = database
        self._task = task
        self._holder = holder
        self._seconds = seconds
        self._token: UUID = uuid4()

    def take(self) -> bool:
        """Take the task, or hold on to it for another while; False when another replica has it."""
        rows = self._database.rows(
            text(
                "select sharequeue.take_service_lease(:task, :holder, cast(:token as uuid), :seconds) as taken"
            ),
            task=self._task,
            holder=self._holder,
            token=str(self._token),
            seconds=self._seconds,
        )
        return bool(rows[0]["taken"])

    def end(self) -> None:
        """Give the task back. What is held after this is another taking."""
        token, self._token = self._token, uuid4()
        self._database.rows(
            text("select sharequeue.end_service_lease(:task, cast(:token as uuid))"),
            task=self._task,
            token=str(token),
        )

    @contextmanager
    def fenced(self) -> Iterator[Database]:
        """A transaction in which this replica has the task to its end. Keep it short, and ask no broker in it.

        Raises `NotCoordinator` when another one has taken the task over.
        """
        with short_transaction(self._database, STEP_LOCK_TIMEOUT_MS) as connection:
            connection.execute(
                text("select sharequeue.hold_service_lease(:task, cast(:token as uuid))"),
                {"task": self._task, "token": str(self._token)},
            )
            yield Joined(connection)


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


def replica_name() -> str:
    """What this process calls itself among the replicas: its host, its pid, and a part that no other has."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"


def hear_replica(
    database: Database, name: str, silence: timedelta | None = None, *, drains: bool = False
) -> timedelta | None:
    """Write down that this replica is at work, and whether it writes dead letters by itself.

    With `silence`: if no replica was heard for longer than that, sessions go on with the time that they had left when
    the last one was. Gives how long nobody was heard then.
    """
    rows = database.call(
        text("select sharequeue.hear_replica(:name, cast(:silence as interval), :drains) as unheard"),
        name=name,
        silence=silence,
        drains=drains,
    )
    unheard: timedelta | None = rows[0]["unheard"]
    return unheard


def beat_and_hear(database: Database, name: str, silence: timedelta | None, *, drains: bool) -> None:
    """Write down in one call that the service is alive, as ``Administration.beat``, and that this replica is."""
    database.call(
        text(
            "select sharequeue.beat(cast(:silence as interval)), sharequeue.hear_replica(:name, null, :drains)"
        ),
        name=name,
        silence=silence,
        drains=drains,
    )
