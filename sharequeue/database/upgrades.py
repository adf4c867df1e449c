"""Upgrade the schema without blocking sessions at work.

New text of functions takes no lock that a worker could wait for. Triggers, views and tables do, so they are changed
only if they differ. Before the first such change all tables of the schema are locked in one statement; later
statements then wait for nothing, and so cannot deadlock. The lock statement waits a fraction of a second, because
new sessions queue behind it. If it fails, the whole transaction is rolled back and tried again a little later,
until the time limit; the error then names the blocking session. The files and their order are in
``sharequeue.database.schema_files``.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from sharequeue.database.pool import Database
from sharequeue.database.sqlstates import DEADLOCK, LOCK_NOT_AVAILABLE

__all__ = ["SchemaBusy", "Upgrade", "patiently"]

_WAIT_MS = 200
"""The longest wait for one lock. Workers may queue behind it for that time."""

_ALL_WAIT_MS = 400
"""The same for all locks together; well below Postgres's ``deadlock_timeout`` of a second, after which Postgres ends
one of two sessions that wait for each other, and it could be a worker."""

_PAUSE_SECONDS = (0.1, 0.5)
"""The pause between two attempts, in which queued sessions continue; random, so that two upgrades do not coincide."""

_MADE_WAY = frozenset((LOCK_NOT_AVAILABLE, DEADLOCK))
"""SQLSTATEs of a lock that was not available in time, and of a deadlock."""

_Answer = TypeVar("_Answer")


class SchemaBusy(Exception):
    """The schema cannot be changed while others have locked it. Nothing was changed; end them, or try again later."""


class _TookTooLong(Exception):
    """Not all locks were available in time."""


def patiently(database: Database, work: Callable[[Upgrade], _Answer]) -> _Answer:
    """Do ``work`` in one transaction; repeat it from the beginning while another transaction blocks it.

    Raises SchemaBusy after the database's lock timeout (0: never).
    """
    began = time.monotonic()
    while True:
        try:
            with database.engine.begin() as connection:
                return work(Upgrade(connection))
        except Exception as error:
            if not _made_way(error):
                raise
            waited = time.monotonic() - began
            if 0 < database.lock_timeout_ms <= waited * 1000:
                raise SchemaBusy(
                    f"The schema was not changed: for {waited:.0f} s another session held locks that it needs. "
                    f"{_blocking_session(database)}"
                ) from error
        time.sleep(random.uniform(*_PAUSE_SECONDS))  # noqa: S311


class Upgrade:
    """One transaction that changes the schema."""

    def __init__(self, connection: sa.Connection) -> None:
        self.connection = connection
        self._locked = False

    def lock(self) -> None:
        """Lock all tables of the schema exclusively, unless they are locked already."""
        if self._locked:
            return
        names = self.connection.scalars(_LOCKABLE).all()
        if names:
            self.connection.exec_driver_sql(
                f"set local lock_timeout = {_WAIT_MS}; set local statement_timeout = {_ALL_WAIT_MS}"
            )
            try:
                self.connection.exec_driver_sql(f"lock table {', '.join(names)} in access exclusive mode")
            except OperationalError as error:
                raise _TookTooLong from error
            self.connection.exec_driver_sql("set local statement_timeout = 0")
        self._locked = True

    def run(self, text: str, *, repeatable: bool) -> None:
        """Apply a file. If it is repeatable, skip triggers and views that exist in the same form."""
        if not repeatable:
            self.lock()
        # The timeout also applies to row locks.
        self.connection.exec_driver_sql(f"set local lock_timeout = {_WAIT_MS}")
        done = 0
        for found in _TRIGGER_OR_VIEW.finditer(text) if repeatable else ():
            self._execute(text[done : found.start()])
            # Triggers are on tables: skip the comparison if those are locked.
            if (self._locked and found["trigger"]) or not self._is_there(found):
                self.lock()
                self._execute(found[0])
            done = found.end()
        self._execute(text[done:])

    def _is_there(self, found: re.Match[str]) -> bool:
        """Return whether a trigger or view in the database is the same as in the statement.

        It creates the statement's object under another name and compares the definitions.
        """
        view, trigger, table = found["view"], found["trigger"], found["table"]
        if view is not None:
            there = self.connection.scalar(
                sa.text("select to_regclass(:name)"), {"name": f"sharequeue.{view}"}
            )
        else:
            there = self.connection.scalar(_TRIGGER, {"table": f"sharequeue.{table}", "name": trigger})
        if there is None:
            return False
        if view is not None:
            self._execute(_replaced(found, "view", _PROBE))
            same = self.connection.scalar(_SAME_VIEW, {"name": f"sharequeue.{view}"})
            self._execute(f"drop view sharequeue.{_PROBE}")
        else:
            self._execute(f"create table sharequeue.{_PROBE} (like sharequeue.{table})")
            self._execute(_replaced(found, "table", _PROBE))
            same = self.connection.scalar(
                _SAME_TRIGGER,
                {"table": f"sharequeue.{table}", "name": trigger, "probe": f"sharequeue.{_PROBE}"},
            )
            self._execute(f"drop table sharequeue.{_PROBE}")
        return bool(same)

    def _execute(self, text: str) -> None:
        if all(not line or line.startswith("--") for line in text.splitlines()):
            return
        # Without parameters, so that a percent sign or a colon in a file is plain text.
        self.connection.exec_driver_sql(text, execution_options={"no_parameters": True})


_PROBE = "upgrade_probe"

_TRIGGER_OR_VIEW = re.compile(
    r"^create or replace (?:view sharequeue\.(?P<view>\w+)\s"
    r"|trigger (?P<trigger>\w+)\s[^;]*?\son sharequeue\.(?P<table>\w+)\s).*?;$",
    re.MULTILINE | re.DOTALL,
)

_LOCKABLE = sa.text(
    # First the tables where nearly every operation begins: later operations wait there and hold no lock.
    "select format('%I.%I', 'sharequeue', relname) from pg_class"
    " where relnamespace = to_regnamespace('sharequeue') and relkind in ('r', 'p') and not relispartition"
    " order by relname <> 'share_partitions', relname <> 'group_settings', oid"
)
_TRIGGER = sa.text("select oid from pg_trigger where tgrelid = to_regclass(:table) and tgname = :name")
_SAME_VIEW = sa.text(
    "select pg_get_viewdef(cast(:name as regclass)) = pg_get_viewdef(cast('sharequeue.upgrade_probe' as regclass))"
)
_SAME_TRIGGER = sa.text(
    "select count(distinct regexp_replace(pg_get_triggerdef(oid), ' ON [^ ]+ ', ' ')) = 1 from pg_trigger"
    " where tgrelid in (to_regclass(:table), to_regclass(:probe)) and tgname = :name"
)
_IN_THE_WAY = sa.text(
    # The oldest transaction that holds a lock on the schema, or is changing it too.
    "select a.pid, a.usename, a.application_name, a.state, coalesce(a.query, '') as query,"
    " extract(epoch from clock_timestamp() - a.xact_start) as seconds"
    " from pg_stat_activity a where a.pid <> pg_backend_pid() and exists ("
    "  select from pg_locks l left join pg_class c on c.oid = l.relation and l.locktype = 'relation'"
    "  where l.pid = a.pid and l.granted and l.database ="
    "   (select oid from pg_database where datname = current_database())"
    "  and (c.relnamespace = to_regnamespace('sharequeue') or l.locktype = 'advisory'))"
    " order by a.xact_start limit 1"
)


def _replaced(found: re.Match[str], group: str, name: str) -> str:
    start, end = (position - found.start() for position in found.span(group))
    return found[0][:start] + name + found[0][end:]


def _made_way(error: Exception) -> bool:
    original: Any = getattr(error, "orig", error)
    # A catalogue row that another session changed at the same time has no SQLSTATE of its own.
    return (
        isinstance(error, _TookTooLong)
        or getattr(original, "pgcode", None) in _MADE_WAY
        or "tuple concurrently" in str(original)
    )


def _blocking_session(database: Database) -> str:
    with database.engine.connect() as connection:
        found = connection.execute(_IN_THE_WAY).mappings().one_or_none()
    if found is None:
        return "That session has ended: try again."
    seconds = "" if found["seconds"] is None else f" for {found['seconds']:.0f} s"
    return (
        f"Session {found['pid']} (user {found['usename']}, {found['application_name'] or 'no name'}) is in a "
        f"transaction{seconds}, {found['state']}; its last statement: {' '.join(found['query'].split())[:200]}. "
        f"End it (select pg_terminate_backend({found['pid']})), or try again later."
    )
