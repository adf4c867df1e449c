"""Is the schema in the database the one this code was written for, and how does it get there?

Tables are made by numbered files that only go forward; functions and views by files that are applied again
whenever their text, or that of a file before them, changed. All of it in one transaction under an advisory lock,
as the schema's owner. Who may use what is ``sql/functions/90_permissions.sql``; which roles there are is asked for
by :class:`RoleNames` (``sharequeue migrate --roles``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from sharequeue.settings import RoleNames
from sharequeue.upgrades import SchemaBusy, Upgrade, patiently

if TYPE_CHECKING:
    from sharequeue.database import Database

__all__ = [
    "Migration",
    "SchemaBusy",
    "SchemaOutdated",
    "may_migrate",
    "migrate",
    "migrations",
    "pending",
    "schema_mismatch",
    "sql_root",
]

_MIGRATION_LOCK = 7_264_519_032_117
"""Key of the advisory lock under which one process at a time migrates; any constant does."""

_VERSIONED = "migrations/"


class SchemaOutdated(Exception):
    """The database's schema is not the one this code was written for. Run ``sharequeue migrate``."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One SQL file: a numbered one is applied once, a repeatable one whenever its text changed."""

    name: str
    text: str
    repeatable: bool

    @property
    def checksum(self) -> str:
        """What tells one text of the file from another."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def sql_root() -> Path:
    """The folder of the SQL files: beside the package in a checkout, inside it in an installed wheel."""
    package = Path(__file__).resolve().parent
    for root in (package.parent / "sql", package / "_sql"):
        if (root / "migrations").is_dir():
            return root
    raise FileNotFoundError(
        f"no SQL files beside or inside {package}: the installation is incomplete, install it again"
    )


def migrations() -> list[Migration]:
    """Every SQL file in the order of application: numbered ones, then functions, views, and the rest of
    functions.

    A view may use functions below 20; functions from 20 on may use views.
    """
    root = sql_root()
    functions = sorted((root / "functions").glob("*.sql"))
    early = [f for f in functions if f.name < "20"]
    late = [f for f in functions if f.name >= "20"]
    files = [
        *sorted((root / "migrations").glob("*.sql")),
        *early,
        *sorted((root / "views").glob("*.sql")),
        *late,
    ]
    return [
        Migration(f"{f.parent.name}/{f.name}", f.read_text(), f.parent.name != "migrations") for f in files
    ]


def pending(database: Database) -> list[str]:
    """The names of the files that :func:`migrate` would apply, in order. Raises SchemaOutdated as it does."""
    with database.engine.begin() as connection:
        _become_owner(connection)
        return [migration.name for migration in _pending(connection)]


def migrate(database: Database, *, dry_run: bool = False, roles: RoleNames | None = None) -> list[str]:
    """Brings the schema up to date, all in one transaction; answers with the names of the files applied.

    With ``dry_run`` nothing changes and the names say what would be applied. With ``roles`` the roles of those
    names are made where they are missing, the schema is handed to the owner's, and the others are granted what is
    theirs. Raises SchemaOutdated when an applied numbered migration has another text now, or the database has one
    that this code does not know (a newer release), and SchemaBusy when others were in the way for the database's
    lock time-out: workers go on meanwhile.
    """
    return patiently(database, lambda upgrade: _migrate(upgrade, dry_run, roles))


def _migrate(upgrade: Upgrade, dry_run: bool, roles: RoleNames | None) -> list[str]:
    connection = upgrade.connection
    # Moving a large table takes as long as it takes; waiting for one does not.
    connection.exec_driver_sql("set local statement_timeout = 0")
    connection.execute(sa.text("select pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
    if roles is not None and not dry_run:
        _make_roles(connection, roles)
        _hand_over(upgrade, roles.owner)
    _become_owner(connection)
    todo = _pending(connection)
    if dry_run:
        return [migration.name for migration in todo]
    if todo:
        _prepare(connection)
        for migration in todo:
            _apply(upgrade, migration)
        # Files that are gone; what they made was dropped by a numbered migration.
        connection.execute(
            sa.text("delete from sharequeue.schema_migrations where not name = any(:names)"),
            {"names": [f.name for f in migrations()]},
        )
    if roles is not None:
        _name_roles(connection, roles)
    return [migration.name for migration in todo]


def may_migrate(connection: sa.Connection) -> bool:
    """Whether the login may migrate: there is no schema yet, or the schema's owner is one of its roles."""
    owned = sa.text("select pg_has_role(nspowner, 'MEMBER') from pg_namespace where nspname = 'sharequeue'")
    return connection.scalar(owned) is not False


def schema_mismatch(connection: sa.Connection) -> str | None:
    """Says, for a caller whose statement failed, how the database's schema differs from this code's; None where it
    does not, or nobody can tell.

    Asks ``sharequeue.schema_version``, which every role may; before there was one, the table behind it.
    """
    files = migrations()
    ours = max(f.name for f in files if not f.repeatable)
    try:
        if connection.scalar(sa.text("select to_regnamespace('sharequeue')")) is None:
            return "The database has no schema `sharequeue`: run `sharequeue migrate`."
        if connection.scalar(sa.text("select to_regproc('sharequeue.schema_version')")) is None:
            applied = _applied(connection)
            theirs, digest = max((n for n in applied if n.startswith(_VERSIONED)), default="nothing"), ""
        else:
            theirs, digest = connection.execute(sa.text("select * from sharequeue.schema_version()")).one()
    except DBAPIError:
        return None
    if theirs > ours:
        return (
            f"The database's schema is newer than this program: it is at {theirs}, the program knows {ours}. "
            "Upgrade sharequeue here."
        )
    if theirs < ours:
        return (
            f"The database's schema is older than this program: it is at {theirs}, the program needs {ours}. "
            "Run `sharequeue migrate` as the schema's owner."
        )
    if digest != schema_digest(files):
        return (
            f"The database's functions are of another release than this program (both at {ours}). "
            "Run `sharequeue migrate` as the schema's owner, or upgrade sharequeue here."
        )
    return None


def schema_digest(files: list[Migration]) -> str:
    """One fingerprint of all files, as ``sharequeue.schema_version`` computes it from what was applied."""
    told = ",".join(f"{f.name} {f.checksum}" for f in sorted(files, key=lambda f: f.name))
    return hashlib.sha256(told.encode()).hexdigest()


def _pending(connection: sa.Connection) -> list[Migration]:
    applied = _applied(connection)
    files = migrations()
    unknown = sorted(name for name in applied.keys() - {f.name for f in files} if name.startswith(_VERSIONED))
    if unknown:
        raise SchemaOutdated(
            f"the database has {unknown[-1]}, which this version does not know: it was migrated by a newer release. "
            "Upgrade sharequeue here."
        )
    for f in files:
        if not f.repeatable and applied.get(f.name, f.checksum) != f.checksum:
            raise SchemaOutdated(
                f"{f.name} was applied with another text than it has now. Numbered migrations never change once "
                "applied: restore the file and write a new one."
            )
    first_changed = next((i for i, f in enumerate(files) if applied.get(f.name) != f.checksum), len(files))
    # A repeatable file may use any that stands before it: from the first change on, all of them are applied
    # again.
    return [f for i, f in enumerate(files) if i >= first_changed and (f.repeatable or f.name not in applied)]


def _applied(connection: sa.Connection) -> Mapping[str, str]:
    if connection.scalar(sa.text("select to_regclass('sharequeue.schema_migrations')")) is None:
        return {}
    rows = connection.execute(sa.text("select name, checksum from sharequeue.schema_migrations"))
    return {row.name: row.checksum for row in rows}


def _prepare(connection: sa.Connection) -> None:
    if connection.scalar(sa.text("select to_regnamespace('sharequeue')")) is None:
        connection.exec_driver_sql("create schema sharequeue")
    connection.exec_driver_sql(
        "create table if not exists sharequeue.schema_migrations ("
        " name text constraint schema_migrations_pkey primary key, checksum text not null,"
        " applied_at timestamptz not null default clock_timestamp())"
    )


def _apply(upgrade: Upgrade, migration: Migration) -> None:
    try:
        upgrade.run(migration.text, repeatable=migration.repeatable)
    except Exception as error:
        error.add_note(f"while applying {migration.name}; nothing was changed")
        raise
    upgrade.connection.execute(
        sa.text(
            "insert into sharequeue.schema_migrations (name, checksum) values (:name, :checksum)"
            " on conflict (name) do update set checksum = excluded.checksum, applied_at = clock_timestamp()"
        ),
        {"name": migration.name, "checksum": migration.checksum},
    )


def _become_owner(connection: sa.Connection) -> None:
    """What is made belongs to whom the schema belongs to, whichever of its members runs this."""
    owner = connection.scalar(
        sa.text(
            "select quote_ident(pg_get_userbyid(nspowner)) from pg_namespace where nspname = 'sharequeue'"
            " and nspowner <> to_regrole(quote_ident(current_user))"
        )
    )
    if owner is not None and connection.scalar(
        sa.text("select pg_has_role(to_regrole(:owner), 'MEMBER')"), {"owner": owner}
    ):
        connection.exec_driver_sql(f"set local role {owner}")


def _make_roles(connection: sa.Connection, roles: RoleNames) -> None:
    """Makes the group roles that are missing; those that are there already are left as they are."""
    for name in roles:
        quoted = connection.scalar(sa.text("select quote_ident(:name)"), {"name": name})
        if connection.scalar(sa.text("select to_regrole(:quoted)"), {"quoted": quoted}) is None:
            connection.exec_driver_sql(f"create role {quoted} nologin")


def _hand_over(upgrade: Upgrade, owner: str) -> None:
    """Makes ``owner`` the owner of the schema and all that is in it."""
    connection = upgrade.connection
    quoted = connection.scalar(sa.text("select quote_ident(:name)"), {"name": owner})
    if not connection.scalar(sa.text("select pg_has_role(to_regrole(:r), 'USAGE')"), {"r": quoted}):
        connection.exec_driver_sql(f"grant {quoted} to current_user")
    if not connection.scalar(
        sa.text("select has_database_privilege(:name, current_database(), 'CREATE')"), {"name": owner}
    ):
        # Postgres asks for it of the new owner of a schema.
        database = connection.scalar(sa.text("select quote_ident(current_database())"))
        connection.exec_driver_sql(f"grant create on database {database} to {quoted}")
    if connection.scalar(sa.text("select to_regnamespace('sharequeue')")) is None:
        connection.exec_driver_sql(f"create schema sharequeue authorization {quoted}")
        return
    connection.exec_driver_sql(f"alter schema sharequeue owner to {quoted}")
    statements = connection.scalars(_OWNED, {"owner": owner}).all()
    if statements:
        upgrade.lock()
    for statement in statements:
        connection.exec_driver_sql(statement)


_OWNED = sa.text(
    """
    select format('alter %s %s owner to %I', what, name, cast(:owner as text)) from (
        select 1 as turn, case relkind when 'v' then 'view' else 'table' end as what,
            cast(cast(c.oid as regclass) as text) as name, relowner as owner
        from pg_class c where relnamespace = to_regnamespace('sharequeue') and relkind in ('r', 'p', 'v')
        union all
        -- Those of identity columns follow their table.
        select 2, 'sequence', cast(cast(c.oid as regclass) as text), relowner
        from pg_class c where relnamespace = to_regnamespace('sharequeue') and relkind = 'S'
            and not exists (select from pg_depend d where d.classid = cast('pg_class' as regclass)
                and d.objid = c.oid and d.deptype in ('a', 'i'))
        union all
        select 3, 'type', cast(cast(t.oid as regtype) as text), typowner
        from pg_type t join pg_class c on c.oid = typrelid
        where typnamespace = to_regnamespace('sharequeue') and relkind = 'c'
        union all
        select 4, 'function', cast(cast(p.oid as regprocedure) as text), proowner
        from pg_proc p where pronamespace = to_regnamespace('sharequeue')
    ) as owned
    where owner <> to_regrole(quote_ident(:owner)) order by turn, name
    """
)


def _name_roles(connection: sa.Connection, roles: RoleNames) -> None:
    for purpose, name in roles._asdict().items():
        connection.execute(
            sa.text(
                "insert into sharequeue.roles (purpose, role_name) values (:purpose, :name)"
                " on conflict (purpose) do update set role_name = excluded.role_name"
            ),
            {"purpose": purpose, "name": name},
        )
    connection.execute(sa.text("select sharequeue.apply_permissions()"))
