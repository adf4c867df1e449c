"""A program that listens and does not read stops neither the database nor the operations of the state."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import sqlalchemy as sa
from psycopg2 import sql
from sqlalchemy.exc import DBAPIError

from sharequeue.database import Database
from sharequeue.database.migrations import migrate
from sharequeue.database.sqlstates import sqlstate
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import AcknowledgeType, SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.local import doctor, postgres
from sharequeue.local.doctor import WARNING
from sharequeue.local.home import Home
from sharequeue.state import State, listening
from sharequeue.state.listening import Listener, channel_of
from tests import single
from tests.fixtures.stack import allow_short_locks
from tests.servers.transaction_pooler import TransactionPooler
from tests.waiting import PATIENCE_S, wait_until

FLOOD = sa.text("select pg_notify(:channel, repeat('x', 7900) || n) from generate_series(1, :many) n")


def _connected(database: Database) -> Any:
    url = database.engine.url
    return closing(
        psycopg2.connect(
            host=url.host, port=url.port, user=url.username, password=url.password, dbname=url.database
        )
    )


def _settings(database: Database, home: Path) -> Settings:
    return Settings.load(home, database_url=database.engine.url.render_as_string(hide_password=False))


def _fill(database: Database) -> None:
    """Notify until the queue is full."""
    while True:
        try:
            database.rows(FLOOD, channel="something", many=10)
        except DBAPIError as error:
            if sqlstate(error) == "54000":  # too many notifications
                return
            raise


def test_a_session_that_reads_no_notifications_is_ended(
    private_database: Database, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its backend waits for the client no longer than the limit, and the listener connects again when it goes on."""
    monkeypatch.setattr(listening, "STOPPED_MS", 1_000)
    listeners = sa.text(
        "select pid, wait_event from pg_stat_activity"
        " where datname = current_database() and query like '%tcp_user_timeout%' and pid <> pg_backend_pid()"
    )
    wait, goes_on = listening._wait_for, threading.Event()
    listener = Listener(private_database, group, lambda: None)
    try:
        listener.start()
        wait_until(lambda: listener.active)
        ((pid, _),) = (tuple(row.values()) for row in private_database.rows(listeners))

        def stopped(readable: tuple[Any, ...], seconds: float) -> None:
            goes_on.wait(PATIENCE_S)
            wait(readable, seconds)

        monkeypatch.setattr(listening, "_wait_for", stopped)
        private_database.rows(FLOOD, channel=channel_of(group), many=4_000)
        wait_until(lambda: not private_database.rows(listeners))
        goes_on.set()
        wait_until(lambda: [row["pid"] for row in private_database.rows(listeners)] not in ([], [pid]))
    finally:
        goes_on.set()
        listener.stop()


def test_behind_a_pooler_nothing_listens(
    private_database: Database, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LISTEN would stay in a server connection that others use; the listener finds that and does not try."""
    pooler = TransactionPooler(private_database.engine.url)
    ended = threading.Event()
    with Database(pooler.url.render_as_string(hide_password=False)) as database:
        listener = Listener(database, group, lambda: None)
        monkeypatch.setattr(listener, "_sleep", lambda _: ended.set())
        try:
            listener.start()
            assert ended.wait(PATIENCE_S)
            assert not listener.active
            channels = sa.text("select count(*) as n from pg_listening_channels()")
            assert [database.rows(channels)[0]["n"] for _ in range(4)] == [0, 0, 0, 0]
        finally:
            listener._stopping = True
            pooler.close()


def test_a_group_s_channel_has_no_notification_of_another_group(
    private_database: Database, at: SharePartition
) -> None:
    """So a consumer that has stopped is sent nothing while only other groups work."""
    other = SharePartition("another", at.topic, 0)
    state = State(private_database)
    with _connected(private_database) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(sql.SQL("listen {}").format(sql.Identifier(channel_of(at.group_id))))
        alter_group_configs(private_database, other.group_id, {})
        state.initialize(other, "id", 0, 2)
        single.observe(state, other, "id", 0, 1000, 1000)
        cursor.execute("select 1")
        assert connection.notifies == []
        single.observe(state, at, "id", 0, 2000, 2000)
        cursor.execute("select 1")
        assert [each.payload for each in connection.notifies] == [""]


def test_the_end_of_a_lease_in_order_wakes_the_other_members(
    private_database: Database, at: SharePartition
) -> None:
    """Under order by key the next lease can be made when all records of the one before are accepted: the other
    members of the share-partition are notified. Where it has one member, nobody is."""
    alter_group_configs(private_database, at.group_id, {"sharequeue.order": "key"})
    state = State(private_database)
    assign = sa.text(
        "with joined as (insert into sharequeue.members (group_id, member_id, member_epoch, joined_at, heartbeat_at,"
        " session_expires_at) select :group, :member, 1, now(), now(), now() + interval '1 hour' returning *)"
        " insert into sharequeue.assignments select j.group_id, j.member_id, sp.share_partition_id"
        " from joined j join sharequeue.share_partitions sp using (group_id)"
    )

    def accept() -> None:
        lease = single.acquire(state, at, "m1", None, 10)
        assert lease is not None
        single.acknowledge(state, lease, {AcknowledgeType.ACCEPT: lease.offsets})

    with _connected(private_database) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(sql.SQL("listen {}").format(sql.Identifier(channel_of(at.group_id))))
        with private_database.transaction() as transaction:
            transaction.execute(assign, {"group": at.group_id, "member": "m1"})
        accept()
        cursor.execute("select 1")
        assert connection.notifies == []
        with private_database.transaction() as transaction:
            transaction.execute(assign, {"group": at.group_id, "member": "m2"})
        accept()
        cursor.execute("select 1")
        assert [each.payload for each in connection.notifies] == [""]


def test_a_full_queue_of_notifications_fails_no_operation(
    stack_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program listens, idle in a transaction, until NOTIFY fails: release, sweep and observe succeed."""
    monkeypatch.setitem(postgres._OPTIONS, "max_notify_queue_pages", "64")
    home = Home.at(stack_home)
    home.create()
    port = postgres.ensure(home, lambda _: None)
    at = SharePartition("g", "t", 0)
    with Database(postgres.url(home, "sharequeue", port)) as database, _connected(database) as idle:
        migrate(database)
        allow_short_locks(database)
        alter_group_configs(database, "g", {})
        state = State(database)
        state.initialize(at, "id", 0, 2)
        single.observe(state, at, "id", 0, 1000, 1000)
        leases = [single.acquire(state, at, "member", None, 10) for _ in range(2)]
        with idle.cursor() as cursor:
            cursor.execute("listen something")
            idle.commit()
            cursor.execute("select 1")
        _fill(database)
        assert leases[0] is not None
        single.release(state, leases[0])
        single.observe(state, at, "id", 0, 2000, 2000)
        database.rows(sa.text("select sharequeue.set_clock_offset(interval '1 min')"))
        assert state.sweep().leases == 1
        found = {each.subject: each for each in doctor._database(database)}
        assert found["notifications"].level == WARNING
        assert "100 % full" in found["notifications"].seen
        (figures,) = state.figures.describe("g")
        assert (figures.acquired, figures.log_end) == (0, 2000)
