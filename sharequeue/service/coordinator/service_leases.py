"""Leases by which only one replica of the service does a task at a time.

A lease is a row in Postgres with an expiry. It lasts for seconds and is extended while the work continues. A replica
that is stopped loses it, and is refused if it wakes and tries to write (`fenced`). No lock and no transaction is held
while the broker is asked (``sql/functions/20_groups/service.sql``). The tasks are in `watch` and `dead_letter_turns`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID, uuid4

from sqlalchemy import text

from sharequeue.database import Database
from sharequeue.database.lock_timeouts import STEP_LOCK_TIMEOUT_MS, short_transaction
from sharequeue.database.pool import Joined


class ServiceLease:
    """A lease of a task by one replica; `seconds` is how long it lasts after each `take`.

    Only one thread may take and end it; any thread may write under it.
    """

    def __init__(self, database: Database, task: str, holder: str, seconds: float) -> None:
        self._database = database
        self._task = task
        self._holder = holder
        self._seconds = seconds
        self._token: UUID = uuid4()

    def take(self) -> bool:
        """Take the lease, or extend it; False if another replica has it."""
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
        """Give the lease back. A later `take` is a new lease."""
        token, self._token = self._token, uuid4()
        self._database.rows(
            text("select sharequeue.end_service_lease(:task, cast(:token as uuid))"),
            task=self._task,
            token=str(token),
        )

    @contextmanager
    def fenced(self) -> Iterator[Database]:
        """Open a transaction during which this replica keeps the lease. Keep it short, and ask no broker in it.

        Raises `NotCoordinator` if another replica has taken over the task.
        """
        with short_transaction(self._database, STEP_LOCK_TIMEOUT_MS) as connection:
            connection.execute(
                text("select sharequeue.hold_service_lease(:task, cast(:token as uuid))"),
                {"task": self._task, "token": str(self._token)},
            )
            yield Joined(connection)
