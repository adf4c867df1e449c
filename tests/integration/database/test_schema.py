"""The schema: one file that shows the whole, one transaction that brings it up to date, and a clear answer to whoever
meets another than it expects."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path

import pytest
import sqlalchemy as sa

from sharequeue.database import Database, schema_files
from sharequeue.database import migrations as migrating
from sharequeue.database.migrations import migrate, pending
from sharequeue.database.schema_files import Migration, SchemaOutdated, migrations
from sharequeue.domain.errors import UnsupportedVersion
from sharequeue.domain.values import SharePartition
from sharequeue.local import ports, postgres
from sharequeue.local.home import Home
from sharequeue.state import State
from tests import single
from tests.conformance.histories import run_histories
from tests.operation_calls import call_every_operation
from tests.schema_text import schema_of

AT = SharePartition("group", "topic", 0)
FUTURE = Migration("migrations/9999_future.sql", "drop function sharequeue.sweep(integer);", repeatable=False)
BROKEN = Migration(
    "migrations/9998_broken.sql", "create table sharequeue.half (a int); selec 1;", repeatable=False
)


def _with(monkeypatch: pytest.MonkeyPatch, *more: Migration) -> None:
    """This program knows more numbered migrations than it does."""
    files = migrations()
    numbered = [f for f in files if not f.repeatable]
    known = [*numbered, *more, *files[len(numbered) :]]
    monkeypatch.setattr(schema_files, "migrations", lambda: known)


def _without_schema(database: Database) -> None:
    with database.transaction() as connection:
        connection.exec_driver_sql("drop schema sharequeue, sharequeue_internal cascade")


def test_a_migration_that_fails_leaves_nothing(
    private_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All in one transaction: what came before the mistake is undone too, and the error names the file."""
    _without_schema(private_database)
    _with(monkeypatch, BROKEN)
    with pytest.raises(sa.exc.ProgrammingError, match="syntax error") as failed:
        migrate(private_database)
    assert failed.value.__notes__ == [f"while applying {BROKEN.name}; nothing was changed"]
    assert private_database.rows(sa.text("select to_regnamespace('sharequeue') as it"))[0]["it"] is None


def test_several_may_migrate_at_once(private_database: Database) -> None:
    """One applies all, the others find nothing to do."""
    _without_schema(private_database)
    with ThreadPoolExecutor(4) as pool:
        applied = sorted(len(names) for names in pool.map(lambda _: migrate(private_database), range(4)))
    assert applied == [0, 0, 0, len(migrations())]


def test_a_dry_run_says_which_files_and_changes_nothing(private_database: Database) -> None:
    """From the first changed file on, in order."""
    with private_database.transaction() as connection:
        connection.exec_driver_sql(
            "update sharequeue.schema_migrations set checksum = '' where name = 'functions/90_checks/verify.sql'"
        )
    would = migrate(private_database, dry_run=True)
    assert would[0] == "functions/90_checks/verify.sql"
    assert would[-1] == "functions/99_permissions.sql"
    assert pending(private_database) == would
    assert migrate(private_database) == would
    assert migrate(private_database) == []


def test_an_old_program_is_refused_by_a_newer_schema(private_database: Database) -> None:
    """A function that a newer release dropped: the caller hears to upgrade, not that a function does not exist."""
    with private_database.transaction() as connection:
        connection.exec_driver_sql(FUTURE.text)
        connection.execute(
            sa.text("insert into sharequeue.schema_migrations (name, checksum) values (:name, :checksum)"),
            {"name": FUTURE.name, "checksum": FUTURE.checksum},
        )
    with pytest.raises(SchemaOutdated, match=r"newer than this program: it is at migrations/9999_future.sql"):
        State(private_database).sweep()
    with pytest.raises(SchemaOutdated, match="Upgrade sharequeue here"):
        migrate(private_database)


def test_a_new_program_is_refused_by_an_older_schema(
    private_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not there yet: run migrate. The same where functions alone are of another release, and where there is
    no schema at all."""
    missing = sa.text("select sharequeue.operation_of_tomorrow(1)")
    with pytest.raises(sa.exc.ProgrammingError, match="does not exist"):
        private_database.rows(missing)
    with private_database.transaction() as connection:
        connection.exec_driver_sql(
            "update sharequeue.schema_migrations set checksum = 'x' where name = 'functions/30_state/release.sql'"
        )
    with pytest.raises(SchemaOutdated, match=r"functions belong to another release.*sharequeue migrate"):
        private_database.call(missing)
    _with(monkeypatch, FUTURE)
    older = r"older than this program: it is at migrations/\d{4}_\w+.sql, the program needs migrations/9999_future"
    with pytest.raises(SchemaOutdated, match=older):
        private_database.call(missing)
    _without_schema(private_database)
    with pytest.raises(SchemaOutdated, match="no schema `sharequeue`: run `sharequeue migrate`"):
        single.acquire(State(private_database), AT, "member", None, 1)


def test_a_database_of_before_the_first_release_is_refused(private_database: Database) -> None:
    """Every caller learns that its schema is older, and `migrate` how its state moves; nothing is changed."""
    with private_database.transaction() as connection:
        connection.exec_driver_sql(
            "delete from sharequeue.schema_migrations where starts_with(name, 'migrations/')"
        )
        connection.exec_driver_sql(
            "insert into sharequeue.schema_migrations values ('migrations/0051_retry_backoff.sql', '')"
        )
        connection.exec_driver_sql("drop function sharequeue.sweep(integer)")
    before = private_database.rows(sa.text("select * from sharequeue.schema_migrations order by name"))
    with pytest.raises(SchemaOutdated, match=r"older than this program.*Run `sharequeue migrate`"):
        State(private_database).sweep()
    for refused in (migrate, pending):
        with pytest.raises(
            SchemaOutdated, match=r"made before the first release.*--export.*`sharequeue reset`"
        ):
            refused(private_database)
    assert (
        private_database.rows(sa.text("select * from sharequeue.schema_migrations order by name")) == before
    )


def test_a_postgres_that_is_too_old_is_refused(
    private_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the name of the error, with both versions, before anything is changed."""
    _without_schema(private_database)
    monkeypatch.setattr(migrating, "OLDEST_POSTGRES", 99)
    with pytest.raises(UnsupportedVersion, match=r"This is PostgreSQL \d+.*but the schema needs 99 or later"):
        migrate(private_database)
    monkeypatch.undo()
    assert len(migrate(private_database)) == len(migrations())


def _older() -> dict[int, Path]:
    """Where the binaries of PostgreSQL before 18 are, by major version: 16 in the wheel that brings 18, and 15 in
    an early release of the wheel that one was made from, which knows no Python 3.12."""
    found = {16: postgres._binaries().parents[1] / "pginstall" / "bin"}
    spec = importlib.util.find_spec("pgserver")
    if spec is not None and spec.origin is not None:
        found[15] = Path(spec.origin).parent / "pginstall" / "bin"
    elif sys.platform == "linux" and sys.version_info < (3, 12):
        raise AssertionError("The wheel with PostgreSQL 15 is missing: pip install -e '.[dev]'")
    return found


def _each_older() -> list[object]:
    """The oldest in every run, the others in the deep one."""
    oldest, *others = sorted(_older())
    return [oldest, *(pytest.param(version, marks=pytest.mark.deep) for version in others)]


@pytest.fixture(params=_each_older())
def older_postgres(request: pytest.FixtureRequest, stack_home: Path) -> Iterator[tuple[int, Database]]:
    """Give a PostgreSQL of an older major version, and which.

    Not below pytest's own folder: another run of pytest shuts that against others, and as root Postgres is one.
    """
    home = Home.at(stack_home)
    home.create()
    binaries = _older()[request.param]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(postgres, "_binaries", lambda: binaries)
        port = postgres.ensure(home, lambda line: None)
        opened = Database(postgres.url(home, "sharequeue", port))
        try:
            yield request.param, opened
        finally:
            opened.close()
            ports.stop(home, postgres.NAME)


def test_older_postgresql_does_all_that_18_does(
    older_postgres: tuple[int, Database],
) -> None:
    """15 and 16: migrated from nothing, every operation, every invariant, random histories, nothing left to do."""
    version, opened = older_postgres
    assert opened.rows(sa.text("show server_version_num"))[0]["server_version_num"].startswith(str(version))
    assert len(migrate(opened)) == len(migrations())
    assert migrate(opened) == []
    run = run_histories(opened.engine.url.render_as_string(hide_password=False), version, 3)
    assert run.difference is None, run.told()
    call_every_operation(opened)


def _in_reverse(files: list[Migration]) -> list[Migration]:
    """The same files, those of each folder of functions from the last to the first."""
    numbered = [f for f in files if not f.repeatable]
    folders = groupby((f for f in files if f.repeatable), key=lambda f: f.name.split("/")[1])
    return [*numbered, *(f for _, folder in folders for f in reversed(list(folder)))]


def test_the_order_inside_a_folder_does_not_matter(
    private_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each folder of functions from its last file to its first, into a database without a schema: the same schema."""
    schema = schema_of(private_database)
    _without_schema(private_database)
    reverse = _in_reverse(migrations())
    assert reverse != migrations()
    monkeypatch.setattr(schema_files, "migrations", lambda: reverse)
    assert migrate(private_database) == [f.name for f in reverse]
    assert schema_of(private_database) == schema


def test_a_function_that_cannot_run_is_refused(
    private_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bodies are checked when all functions are there: one that names what nobody made fails the migration."""
    files = migrations()
    wrong = Migration(
        "functions/10_values/wrong.sql",
        "create function sharequeue.wrong() returns bigint language sql as $$ select sharequeue.nobodys() $$;",
        repeatable=True,
    )
    monkeypatch.setattr(schema_files, "migrations", lambda: [*files, wrong])
    with pytest.raises(sa.exc.ProgrammingError, match="nobodys"):
        migrate(private_database)
    monkeypatch.undo()
    assert migrate(private_database) == []


def test_every_sql_file_is_found() -> None:
    """Numbers of migrations are unique and in order; permissions come last."""
    names = [m.name for m in migrations()]
    numbers = [int(name.split("/")[1][:4]) for name in names if name.startswith("migrations/")]
    assert numbers == sorted(set(numbers))
    assert names[-1] == "functions/99_permissions.sql"


def test_no_operation_compiles_its_statements(private_database: Database) -> None:
    """Operations and the queries of this library run without JIT, whatever the server's default is."""
    compiling = private_database.rows(
        sa.text(
            "select proname from pg_proc where pronamespace = cast('sharequeue' as regnamespace)"
            " and prosecdef and proname <> 'clock' and not 'jit=off' = any (proconfig)"
        )
    )
    assert compiling == []
    assert private_database.rows(sa.text("show jit"))[0]["jit"] == "off"
