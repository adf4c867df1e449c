"""Which replica of the service does what only one should do at a time?

A row in Postgres with an expiry, taken for seconds and held on to while the work goes on: whoever is stopped loses
it, and is refused when it wakes and would write (`fenced`). No lock and no transaction is kept while the broker is
asked (``sql/functions/20_groups/service.sql``). Which tasks there are is the matter of `service.coordinator` and
`deadletters.drainer`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID, uuid4

from sqlalchemy import text

from sharequeue.database import Database
from sharequeue.database.pool import Joined
from sharequeue.groups.short_waits import STEP_LOCK_TIMEOUT_MS, short_transaction


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
