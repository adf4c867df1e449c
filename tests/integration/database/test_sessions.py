"""Sessions of the pool whose state makes calls fail: they are ended, and calls go on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, OperationalError

from sharequeue.database import Database
from sharequeue.domain.errors import InvalidConfig
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import AcknowledgeType, SharePartition
from sharequeue.local.doctor import FAILURE, OK, DoctorFinding, examine_servers
from sharequeue.local.stack import StackInfo
from sharequeue.service.health.servers import DatabaseProbe
from sharequeue.state import State
from tests import single
from tests.alone import run_alone
from tests.fixtures.stack import MakeCopy
from tests.servers.transaction_pooler import TransactionPooler

LEFT = (
    "set role pg_monitor",
    "set search_path to pg_temp",
    "set client_encoding to 'LATIN1'",
    "set datestyle to 'German'",
    "set intervalstyle to 'iso_8601'",
    "set array_nulls to off",
    "set standard_conforming_strings to off",
    "set default_transaction_read_only to on",
    "set default_transaction_isolation to 'serializable'",
    "set statement_timeout to 1",
    "rollback; begin; select 1 / 0",
)
"""What another program may leave in a session."""
READ_ONLY = "The database is read-only: nothing can be written"
PID = sa.text("select pg_backend_pid() as pid")


def _url(database: Database) -> str:
    return database.engine.url.render_as_string(hide_password=False)


@pytest.fixture
def small(private_database: Database) -> Iterator[Database]:
    """Give the private database with one session."""
    opened = Database(_url(private_database), pool_size=1)
    try:
        yield opened
    finally:
        opened.close()


def _leave(database: Database, statement: str) -> None:
    """Execute statements in the pool's session, and give it back."""
    pooled = database.engine.raw_connection()
    driver = pooled.driver_connection
    assert driver is not None
    driver.autocommit = True
    with driver.cursor() as cursor:
        try:
            cursor.execute(statement)
        except driver.Error:
            assert "1 / 0" in statement
    driver.autocommit = False
    pooled.close()


@contextmanager
def _read_only(database: Database) -> Iterator[None]:
    """Have new sessions of the database read-only, as a managed server does while its disk is full."""
    name = sa.make_url(_url(database)).database
    admin = sa.create_engine(_url(database), isolation_level="AUTOCOMMIT")
    try:
        with admin.connect() as connection:
            connection.exec_driver_sql(f'alter database "{name}" set default_transaction_read_only to on')
            try:
                yield
            finally:
                connection.exec_driver_sql(f'alter database "{name}" reset default_transaction_read_only')
    finally:
        admin.dispose()


@pytest.mark.parametrize("statement", LEFT)
def test_calls_succeed_whatever_a_session_was_left_with(
    small: Database, at: SharePartition, statement: str
) -> None:
    """A role, a search path, formats, a read-only default or an aborted transaction of the session fail no call."""
    _leave(small, statement)
    state = State(small)
    lease = single.acquire(state, at, "member-é", None, 5)
    assert lease is not None
    single.acknowledge(state, lease, {AcknowledgeType.ACCEPT: OffsetSet.of((0, 5))})
    row = small.rows(
        sa.text("select interval '36 h' as took, cast('2026-11-26' as date) as day, :letter as letter"),
        letter="é\\",
    )[0]
    assert (row["took"], row["letter"]) == (timedelta(hours=36), "é\\")
    assert str(row["day"]) == "2026-11-26"
    with state.transaction() as (_, joined):
        assert single.acquire(joined, at, "member", None, 5) is not None


def test_what_a_database_has_set_changes_no_text(
    private_database: Database, at: SharePartition, make_copy: MakeCopy
) -> None:
    """Settings of old programs: a list of nulls has nulls, a backslash is one, and names of configs are checked."""
    name = make_copy(private_database).engine.url.database
    with private_database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for setting in ("array_nulls", "standard_conforming_strings"):
            connection.exec_driver_sql(f'alter database "{name}" set {setting} to off')
    with Database(
        private_database.engine.url.set(database=name).render_as_string(hide_password=False)
    ) as old:
        state = State(old)
        lease = single.acquire(state, at, "member", None, 5)
        assert lease is not None
        single.acknowledge(state, lease, {AcknowledgeType.ACCEPT: OffsetSet.of((0, 5))})
        asked = sa.text("select cast(:texts as text[]) as texts, :text as text")
        with old.transaction() as connection:
            for _ in range(2):
                row = connection.execute(asked, {"texts": [None, None], "text": "a\\b'"}).one()
                assert tuple(row) == ([None, None], "a\\b'")
        check = sa.text(
            "select sharequeue_internal.check_service_configs(jsonb_build_object(:name, '15000'))"
        )
        old.rows(check, name="group.share.record.lock.duration.ms")
        with pytest.raises(InvalidConfig, match="there is no service config groupxshare"):
            old.rows(check, name="groupxshare.record.lock.duration.ms")


@pytest.mark.parametrize("variable", ["PGCLIENTENCODING", "PGDATESTYLE"])
def test_formats_of_the_environment_fail_no_call(
    private_database: Database, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """libpq's variables for the encoding and the style of dates do not reach the calls."""
    monkeypatch.setenv(variable, "LATIN1" if variable == "PGCLIENTENCODING" else "German")
    with Database(_url(private_database)) as database:
        found = database.rows(sa.text("select '\u0416' as letter, sharequeue.clock() as now"))[0]
        assert found["letter"] == "\u0416"
        assert found["now"].year > 2000


@pytest.mark.parametrize("pooler", [False, True], ids=["directly", "behind a pooler"])
def test_a_database_that_was_read_only_is_used_again(
    private_database: Database, at: SharePartition, pooler: bool
) -> None:
    """Sessions from that time are ended, of the pool and the pooler; while it lasts, the error says what it is."""
    with _read_only(private_database):
        between = TransactionPooler(private_database.engine.url, servers=3) if pooler else None
        url = between.url.render_as_string(hide_password=False) if between else _url(private_database)
        database = Database(url, pool_size=3)
        sessions = [database.engine.connect() for _ in range(3)]
        for each in sessions:
            each.close()
        state = State(database)
        with pytest.raises(OperationalError, match=READ_ONLY):
            single.acquire(state, at, "member", None, 5)
        with pytest.raises(OperationalError, match=READ_ONLY), state.transaction() as (_, joined):
            single.acquire(joined, at, "member", None, 5)
        with pytest.raises(OperationalError, match=READ_ONLY):
            database.require_writable()
        # Reading goes on, and gets sessions that are read-only.
        assert len({database.rows(PID)[0]["pid"] for _ in range(3)}) == (3 if pooler else 1)
    try:
        for member in ("one", "two", "three"):
            assert single.acquire(state, at, member, None, 5) is not None
        database.require_writable()
    finally:
        database.close()
        if between:
            between.close()


def test_a_session_that_has_lost_a_statement_is_ended(small: Database) -> None:
    """A prepared statement that is gone stays gone: the next call has another session."""
    before = small.rows(PID)[0]["pid"]
    with pytest.raises(DBAPIError):
        small.rows(sa.text("execute gone"))
    assert small.rows(PID)[0]["pid"] != before


def test_a_login_that_was_dropped_and_made_again_is_used_again(private_database: Database) -> None:
    """A session of the dropped login has no rights for ever; the call gets them in a new session."""
    url = private_database.engine.url
    login = "dropped_login"
    make = f"create role {login} login superuser password 'p'"

    def run(*statements: str) -> None:
        with private_database.transaction() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    run(make)
    made = url.set(username=login, password="p").render_as_string(hide_password=False)
    try:
        with Database(made, pool_size=1) as database:
            asked = sa.text("select count(*) as n from sharequeue.share_groups")
            database.rows(asked)
            run(f"drop role {login}", make)
            assert database.rows(asked)[0]["n"] == 0
    finally:
        run(f"drop role {login}")


def test_readiness_and_doctor_find_a_database_that_cannot_be_written(
    private_database: Database, stack: StackInfo
) -> None:
    """Both say that it is read-only, and both say ok as soon as it can be written again."""
    settings = Settings.load(stack.home).replace(database_url=_url(private_database))

    def examined() -> DoctorFinding:
        return next(each for each in examine_servers(settings) if each.subject == "database")

    with Database(_url(private_database)) as database:
        probe = DatabaseProbe(database)
        assert probe().state == "ok"
        with _read_only(private_database):
            database.engine.dispose()
            found = probe()
            assert not found.usable
            assert found.state.startswith(READ_ONLY)
            assert examined().level == FAILURE
            assert "is read-only" in examined().text
        assert probe().state == "ok"
        assert examined().level == OK


def fork_beside_a_session(url: str) -> None:
    """Fork while a pool has a session, and use its copy."""
    with Database(url, pool_size=1) as database:
        before = database.rows(PID)[0]["pid"]
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            with database:
                os.write(writing, str(database.rows(PID)[0]["pid"]).encode())
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert int(os.read(reading, 20)) != before
        with database.transaction() as connection:
            assert connection.execute(PID).scalar_one() == before


def test_a_forked_process_has_connections_of_its_own(private_database: Database) -> None:
    """It works and closes its pool; the session of the process it was forked from goes on."""
    run_alone(fork_beside_a_session, _url(private_database))


def test_notifications_that_another_program_listens_to_are_not_kept(small: Database) -> None:
    """A pooler hands over sessions that listen: a service's memory would grow for ever."""
    _leave(small, "listen something")
    small.rows(sa.text("select pg_notify('something', n::text) from generate_series(1, 100) n"))
    pooled = small.engine.raw_connection()
    assert len(pooled.driver_connection.notifies) == 0  # type: ignore[union-attr]
    pooled.close()
