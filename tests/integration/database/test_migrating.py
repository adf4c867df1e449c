"""What a migration needs of the database, the login and its roles; a refusal is one line with the grants to give."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from sharequeue.cli.failures import database_failure
from sharequeue.database import Database, schema_files
from sharequeue.database.migrations import (
    EncodingNotSupported,
    SchemaForbidden,
    _make_roles,
    migrate,
)
from sharequeue.database.schema_files import Migration
from sharequeue.domain.settings import RoleNames
from sharequeue.local.doctor import FAILURE, _database
from tests.waiting import PATIENCE_S, wait_until

MakeDatabase = Callable[..., Database]


@pytest.fixture
def login() -> str:
    """Give the name of a login of this test alone."""
    return f"login_{uuid.uuid4().hex[:8]}"


@pytest.fixture
def make_database(database: Database, login: str) -> Iterator[MakeDatabase]:
    """Give a function that makes an empty database, and opens it with the test's login, or the superuser."""
    admin = sa.create_engine(database.engine.url, isolation_level="AUTOCOMMIT")
    opened: list[Database] = []
    with admin.connect() as connection:
        connection.exec_driver_sql(f"create role {login} login password 'secret'")

        def make(options: str = "", *, superuser: bool = False) -> Database:
            name = f"made_{uuid.uuid4().hex[:8]}"
            connection.exec_driver_sql(f"create database {name} {options}")
            url = database.engine.url.set(database=name)
            if not superuser:
                url = url.set(username=login, password="secret")
            opened.append(Database(url.render_as_string(hide_password=False)))
            return opened[-1]

        try:
            yield make
        finally:
            for each in opened:
                each.close()
                connection.exec_driver_sql(f"drop database {each.engine.url.database} with (force)")
            admin.dispose()


@pytest.fixture
def one_file(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Give a function that makes a text the only file of the schema."""

    def only(text: str) -> None:
        monkeypatch.setattr(
            schema_files, "migrations", lambda: [Migration("migrations/0100_one.sql", text, False)]
        )

    return only


def _as_superuser(database: Database, there: Database, statement: str) -> None:
    url = database.engine.url.set(database=there.engine.url.database)
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(statement)
    engine.dispose()


def test_a_login_that_may_not_migrate_is_told_the_grants(
    database: Database,
    make_database: MakeDatabase,
    login: str,
    one_file: Callable[[str], None],
) -> None:
    """Without CREATE on the database the two schemas are named, and with them the migration is done."""
    one_file("create table sharequeue_internal.t (i int)")
    there = make_database()
    name = there.engine.url.database
    schemas = (
        f"create schema sharequeue authorization {login}; "
        f"create schema sharequeue_internal authorization {login}"
    )
    for dry_run in (True, False):
        with pytest.raises(SchemaForbidden, match="may not create a schema in the database") as refused:
            migrate(there, dry_run=dry_run)
    assert f"`grant create on database {name} to {login}`" in str(refused.value)
    assert f"`{schemas}`" in str(refused.value)
    with pytest.raises(SchemaForbidden, match=f"alter role {login} createrole"):
        migrate(there, roles=RoleNames())
    _as_superuser(database, there, "create schema sharequeue")
    [found] = _database(there)
    assert (
        "refuses a statement (permission denied for schema sharequeue): give the login a role" in found.text
    )
    _as_superuser(database, there, "drop schema sharequeue")
    _as_superuser(database, there, schemas)
    assert migrate(there) == ["migrations/0100_one.sql"]


def test_a_member_that_may_not_become_the_owner_changes_nothing(
    database: Database, make_database: MakeDatabase, login: str, one_file: Callable[[str], None]
) -> None:
    """From PostgreSQL 16 on, a member may inherit rights without SET ROLE: new objects would be the login's own."""
    one_file("select 1")
    there = make_database()
    owner = f"owner_{login}"
    _as_superuser(
        database,
        there,
        f"create role {owner}; grant {owner} to {login} with inherit true, set false;"
        f" create schema sharequeue authorization {owner};"
        f" create schema sharequeue_internal authorization {owner}",
    )
    with pytest.raises(SchemaForbidden, match=f"belongs to {owner}: `grant {owner} to {login}`"):
        migrate(there)
    _as_superuser(database, there, f"grant {owner} to {login} with set true")
    assert migrate(there) == ["migrations/0100_one.sql"]


def test_who_may_create_roles_migrates_with_roles(
    database: Database, make_database: MakeDatabase, login: str
) -> None:
    """The owner of the database with CREATEROLE, as on managed servers: it makes the roles, and hands over to one
    that it may not become by itself."""
    there = make_database(f"owner {login}")
    _as_superuser(database, there, f"alter role {login} createrole")
    names = RoleNames(*(f"{purpose} {login}" for purpose in RoleNames._fields))
    assert migrate(there, roles=names)
    owner = sa.text("select pg_get_userbyid(nspowner) as name from pg_namespace where nspname = 'sharequeue'")
    assert there.rows(owner)[0]["name"] == names.owner
    assert migrate(there, roles=names) == []


def test_roles_may_be_made_by_two_databases_at_once(database: Database) -> None:
    """They belong to the whole server: who comes second waits, and goes on."""
    names = RoleNames(*(f"{purpose}_{uuid.uuid4().hex[:8]}" for purpose in RoleNames._fields))
    failed: list[BaseException] = []

    def second() -> None:
        try:
            with database.engine.begin() as connection:
                _make_roles(connection, names)
        except BaseException as error:
            failed.append(error)

    other = threading.Thread(target=second)
    waiting = sa.text(
        "select count(*) as n from pg_stat_activity where wait_event_type = 'Lock'"
        " and query like '%create role%' and pid <> pg_backend_pid()"
    )
    with database.engine.begin() as first:
        _make_roles(first, names)
        other.start()
        wait_until(lambda: bool(failed) or database.rows(waiting)[0]["n"] > 0)
    other.join(PATIENCE_S)
    assert failed == []


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_of_another_encoding_is_refused(make_database: MakeDatabase, encoding: str) -> None:
    """By the migration, before anything is changed, and by doctor: a name or an error may have any letter."""
    there = make_database(f"encoding '{encoding}' locale 'C' template template0", superuser=True)
    with pytest.raises(EncodingNotSupported, match=f"its encoding is {encoding}, .* encoding 'UTF8'"):
        migrate(there)
    [found] = _database(there)
    assert (found.subject, found.level) == ("database", FAILURE)
    assert f"its encoding is {encoding}" in found.text


def test_an_error_of_a_file_is_one_line(make_database: MakeDatabase, one_file: Callable[[str], None]) -> None:
    """With the name of the file; a percent sign in it is no parameter."""
    one_file("select '100 %s', 1 / 0")
    with pytest.raises(DBAPIError) as failed:
        migrate(make_database(superuser=True))
    said = database_failure(failed.value).format_message()
    assert "(division by zero; while applying migrations/0100_one.sql; nothing was changed)" in said


def test_a_role_s_transaction_timeout_ends_no_session(
    database: Database, make_database: MakeDatabase, login: str
) -> None:
    """It would end the session of a migration or of a long call, and the driver drops the reason."""
    there = make_database()
    _as_superuser(database, there, f"alter role {login} set transaction_timeout = '50ms'")
    assert there.rows(sa.text("select pg_sleep(0.2), 1 as one"))[0]["one"] == 1
    with there.transaction() as connection:
        assert connection.execute(sa.text("select pg_sleep(0.2)")) is not None
