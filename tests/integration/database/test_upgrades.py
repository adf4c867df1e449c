"""Upgrades and those who work meanwhile: what does not differ is left alone, what differs is changed without holding
anybody up for a second, and an upgrade that cannot have its locks gives up and says because of whom."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest
import sqlalchemy as sa

from sharequeue.database import Database, schema_files
from sharequeue.database.migrations import SchemaBusy, migrate
from sharequeue.database.schema_files import Migration, migrations
from sharequeue.domain.settings import DatabaseOptions, RoleNames
from sharequeue.domain.values import AcknowledgeType, SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.state import State
from tests import single
from tests.integration.state.state_calls import take
from tests.operations_at_once import deadlocks
from tests.waiting import PATIENCE_S, wait_for_locks

AT = SharePartition("g", "t", 0)
WIDER = "alter table sharequeue.share_partitions add column wider{} integer;"
IDENTITIES = sa.text(
    "select cast(oid as text), cast(xmin as text) from pg_trigger where not tgisinternal union all"
    " select cast(oid as text), cast(xmin as text) from pg_rewrite order by 1"
)


@pytest.fixture
def state(private_database: Database) -> State:
    """A share-partition with many records."""
    alter_group_configs(private_database, "g", {"share.partition.max.record.locks": 10000})
    state = State(private_database)
    for partition in range(4):
        at = SharePartition("g", "t", partition)
        state.initialize(at, "id", 0, 1)
        single.observe(state, at, "id", 0, 10**9, 10**9)
    return state


def another(database: Database, lock_timeout_ms: int = 30_000) -> Database:
    """The same database in a pool of its own."""
    url = database.engine.url.render_as_string(hide_password=False)
    return Database(url, options=DatabaseOptions(lock_timeout_ms=lock_timeout_ms))


def of_tomorrow(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Migration], Migration], *more: Migration
) -> None:
    """This program's files are another release's."""
    files = migrations()
    numbered = [f for f in files if not f.repeatable]
    known = [*numbered, *more, *(change(f) for f in files[len(numbered) :])]
    monkeypatch.setattr(schema_files, "migrations", lambda: known)


def commented(file: Migration) -> Migration:
    """Every text differs, and nothing that it makes."""
    return replace(file, text=f"-- Tomorrow's.\n{file.text}")


@dataclass
class Work:
    """What workers did, and the longest that one call took."""

    calls: int = 0
    longest: float = 0.0


@contextmanager
def workers(database: Database, number: int) -> Iterator[Work]:
    """Workers that acquire and acknowledge all the time, each on a share-partition of its own."""
    work, stop, lock = Work(), threading.Event(), threading.Lock()

    def one(partition: int) -> None:
        at = SharePartition("g", "t", partition)
        with another(database) as opened:
            state = State(opened)
            while not stop.is_set():
                began = time.monotonic()
                lease = single.acquire(state, at, "m", None, 10)
                assert lease is not None
                single.acknowledge(state, lease, {AcknowledgeType.ACCEPT: lease.offsets})
                with lock:
                    work.calls += 1
                    work.longest = max(work.longest, time.monotonic() - began)

    with ThreadPoolExecutor(number) as pool:
        running = [pool.submit(one, partition) for partition in range(number)]
        try:
            yield work
        finally:
            stop.set()
        for each in running:
            each.result()


def test_new_text_of_functions_waits_for_nobody(
    private_database: Database, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every function is replaced while a transaction that has written to the tables and read the views stays open;
    triggers and views, which are as before, are not touched, and the grants stay."""
    names = RoleNames(*(f"{purpose}_{uuid.uuid4().hex[:8]}" for purpose in RoleNames._fields))
    migrate(private_database, roles=names)
    before = private_database.rows(IDENTITIES)
    of_tomorrow(monkeypatch, commented)
    with private_database.transaction() as held, another(private_database, 1000) as upgrading:
        held.execute(sa.text("select * from sharequeue.acquire('g', 't', 0, 1, 'm', null, 10)"))
        held.execute(sa.text("select sharequeue.record_report('g')"))
        assert len(migrate(upgrading)) == len([f for f in migrations() if f.repeatable])
    assert private_database.rows(IDENTITIES) == before
    assert migrate(private_database) == []


def test_what_differs_is_changed(
    private_database: Database, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trigger with a condition and a view that shows something else are as tomorrow's files say."""

    def changed(file: Migration) -> Migration:
        text = file.text.replace(
            "execute function sharequeue_internal.journal_leases()",
            "when (true) execute function sharequeue_internal.journal_leases()",
        )
        text = text.replace(
            "select audit_id, happened_at,", "select audit_id, happened_at + interval '0' as happened_at,"
        )
        return replace(file, text=text)

    of_tomorrow(monkeypatch, changed)
    migrate(private_database)
    [trigger] = private_database.rows(
        sa.text("select pg_get_triggerdef(oid) as it from pg_trigger where tgname = 'leases_journal'")
    )
    assert "WHEN (true)" in trigger["it"]
    [view] = private_database.rows(sa.text("select pg_get_viewdef('sharequeue.audit_trail') as it"))
    assert "interval" in view["it"].lower()
    assert take(state, AT).offsets.count == 10


def test_an_upgrade_gives_up_rather_than_holding_others_up(
    private_database: Database, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One idle transaction elsewhere, and a table to be changed: for as long as the upgrade tries, nobody waits as
    long as it does; then it says who was in the way, and nothing has changed."""
    column = Migration("migrations/9999_wider.sql", WIDER.format(""), repeatable=False)
    of_tomorrow(monkeypatch, lambda f: f, column)
    with private_database.engine.connect() as idle, another(private_database, 8000) as upgrading:
        pid = (
            idle.execute(sa.text("select pg_backend_pid() from sharequeue.share_partitions"))
            .scalars()
            .first()
        )
        message = rf"Session {pid} .* idle in transaction; its last"
        with workers(private_database, 2) as work:
            began = time.monotonic()
            with pytest.raises(SchemaBusy, match=message):
                migrate(upgrading)
            tried = time.monotonic() - began
        assert work.calls > 10
        assert work.longest < tried
        idle.rollback()
        assert migrate(upgrading)[0] == column.name
    assert deadlocks(private_database) == 0


def test_workers_go_on_through_upgrades(
    private_database: Database, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upgrades that change a table, a trigger and every function, while four workers work: no deadlock, no error, and
    no call waits for all of them."""
    with workers(private_database, 4) as work, another(private_database) as upgrading:
        began = time.monotonic()
        columns: list[Migration] = []
        for number in range(3):
            name = f"migrations/999{number}_wider.sql"
            columns.append(Migration(name, WIDER.format(number), repeatable=False))
            of_tomorrow(monkeypatch, commented, *columns)
            assert name in migrate(upgrading)
        took = time.monotonic() - began
    assert work.longest < took
    assert deadlocks(private_database) == 0
    assert state.figures.verify() == []


def test_a_call_that_met_a_deadlock_is_done_again(private_database: Database) -> None:
    """Of two that wait for each other Postgres ends one, which has done nothing then: the call is repeated."""
    both = sa.text("select pg_advisory_xact_lock(1), pg_advisory_xact_lock(2)")
    with ThreadPoolExecutor(1) as pool, another(private_database) as opened:
        with private_database.transaction() as other:
            other.execute(sa.text("set local deadlock_timeout = '1min'"))
            other.execute(sa.text("select pg_advisory_xact_lock(2)"))
            call = pool.submit(opened.rows, both)
            wait_for_locks(private_database)
            other.execute(sa.text("select pg_advisory_xact_lock(1)"))
        assert len(call.result(PATIENCE_S)) == 1
