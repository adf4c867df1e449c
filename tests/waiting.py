"""Time in the tests: a condition is waited for, the database's clock is moved on, a coordinator at work meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

import sqlalchemy as sa

if TYPE_CHECKING:
    from sharequeue.database import Database
    from sharequeue.service.coordinator import Coordinator

PATIENCE_S = 240.0
"""The longest wait for what must happen, in seconds. It costs nothing when that comes. Nothing that tests wait for
takes a minute on two idle cores; a machine at work with other things may need four times as long."""


def wait_until(
    condition: Callable[[], bool],
    seconds: float = PATIENCE_S,
    otherwise: str | Callable[[], object] = "the condition did not come",
) -> None:
    """Wait for a condition; after so many seconds it fails with what is said, or asked for, then."""
    deadline = time.monotonic() + seconds
    while not condition():
        late = time.monotonic() > deadline
        assert not late, f"after {seconds:g} s: {otherwise() if callable(otherwise) else otherwise}"
        time.sleep(0.02)


def wait_for_locks(database: Database, connections: int = 1) -> None:
    """Wait until so many connections to this database wait for a lock."""
    waiting = sa.text(
        "select count(*) as waiting from pg_stat_activity"
        " where datname = current_database() and wait_event_type = 'Lock' and state = 'active'"
    )
    wait_until(
        lambda: database.rows(waiting)[0]["waiting"] >= connections,
        otherwise=f"{connections} connections should wait for a lock",
    )


def set_clock(database: Database, ahead: timedelta) -> None:
    """Set the database's clock so far ahead of real time."""
    database.rows(sa.text("select sharequeue.set_clock_offset(:ahead)"), ahead=ahead)


def pass_time(database: Database, seconds: float) -> None:
    """Move the database's clock on from where it is."""
    database.rows(
        sa.text(
            "select sharequeue.set_clock_offset("
            "coalesce((select amount from sharequeue.clock_offset), interval '0') + :more)"
        ),
        more=timedelta(seconds=seconds),
    )


def _one_day(now: datetime) -> datetime:
    """Return a time that is followed by ten minutes of the same day, in UTC."""
    midnight = datetime.combine(now.astimezone(UTC).date() + timedelta(days=1), datetime.min.time(), UTC)
    return midnight if midnight - now < timedelta(minutes=10) else now


@contextmanager
def clock_stands(database: Database) -> Iterator[None]:
    """Have the database's clock stand in a block: only `set_clock` and `pass_time` move it.

    What is compared with the clock is then exact, however slow the machine. Where midnight is near, in UTC, it stands
    behind it: what follows happens on one day.
    """
    with database.transaction() as connection:
        made = connection.exec_driver_sql(
            "select pg_get_functiondef('sharequeue.clock()'::regprocedure)"
        ).scalar_one()
        now = _one_day(connection.exec_driver_sql("select pg_catalog.clock_timestamp()").scalar_one())
        going, standing = "pg_catalog.clock_timestamp()", f"pg_catalog.timestamptz '{now.isoformat()}'"
        assert going in made
        connection.exec_driver_sql(made.replace(going, standing))
    try:
        yield
    finally:
        with database.transaction() as connection:
            connection.exec_driver_sql(made)


class Round(NamedTuple):
    """What one round of a coordinator did."""

    expired: int
    swept_leases: int
    initialized: int
    observed: int


def one_round(coordinator: Coordinator) -> Round:
    """Have a coordinator do one round of all work, in this thread. Raises the errors of database and broker."""
    return Round(*coordinator.settle(), *coordinator.watch())


@contextmanager
def running(coordinator: Coordinator) -> Iterator[None]:
    """Have a coordinator at work, in a thread of its own."""
    stop = threading.Event()
    thread = threading.Thread(target=coordinator.run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(PATIENCE_S)
