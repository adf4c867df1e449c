"""Apply the schema to a database.

Everything is applied in one transaction under an advisory lock, as the schema's owner. The files are listed by
`schema_files`, permissions are in ``sql/functions/99_permissions.sql``, and the roles are those of
:class:`RoleNames` (``sharequeue migrate --roles``).
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from sharequeue.database import schema_files
from sharequeue.database.pool import Database
from sharequeue.database.schema_files import VERSIONED, Migration, SchemaNewer, SchemaOutdated, applied
from sharequeue.database.sqlstates import DUPLICATE_OBJECT, DUPLICATE_ROW, FORBIDDEN, sqlstate
from sharequeue.database.upgrades import SchemaBusy, Upgrade, patiently
from sharequeue.domain.errors import UnsupportedVersion, first_line
from sharequeue.domain.settings import RoleNames

__all__ = [
    "OLDEST_POSTGRES",
    "EncodingNotSupported",
    "SchemaBusy",
    "SchemaForbidden",
    "encoding_defect",
    "may_migrate",
    "migrate",
    "pending",
]

OLDEST_POSTGRES = 15
"""The oldest supported major version: the functions use range_agg over multiranges, new in 15."""

_MIGRATION_LOCK = 7_264_519_032_117
"""Key of the advisory lock that lets one process at a time migrate; the value is arbitrary."""


_SCHEMAS = ("sharequeue", "sharequeue_internal")
"""The schema of tables and operations, and that of what operations are made of, which no role may use."""


class EncodingNotSupported(Exception):
    """The database cannot hold every text. Create one with the encoding UTF8."""


class SchemaForbidden(Exception):
    """The login may not change the schema. Nothing was changed; the message has the grants to give."""


def pending(database: Database) -> list[str]:
    """Return the names of the files that :func:`migrate` would apply, in order. Raises SchemaOutdated as it does."""
    with database.engine.begin() as connection:
        _become_owner(connection)
        return [migration.name for migration in _pending(connection)]


def migrate(database: Database, *, dry_run: bool = False, roles: RoleNames | None = None) -> list[str]:
    """Bring the schema up to date in one transaction; return the names of the files applied.

    With ``dry_run`` nothing is changed and the names are those that would be applied. With ``roles``, create the
    missing roles of those names, make the owner role the schema's owner, and grant the others their permissions.
    Raises SchemaOutdated if an applied numbered migration has another text now, or the database has one
    that this code does not know (from a newer release, or from before the first), SchemaBusy if other sessions held
    locks for the database's lock timeout (workers continue meanwhile), UnsupportedVersion for a Postgres that is
    too old, EncodingNotSupported for a database whose encoding is not UTF8, and SchemaForbidden if the login lacks a
    right.
    """
    try:
        return patiently(database, lambda upgrade: _migrate(upgrade, dry_run, roles))
    except DBAPIError as error:
        if sqlstate(error) != FORBIDDEN:
            raise
        with database.engine.begin() as connection:
            grants = _grants(connection, roles)
        raise SchemaForbidden(
            f"The login may not change the schema ({first_line(error.orig or error)}); nothing was changed. {grants}"
        ) from error


def _migrate(upgrade: Upgrade, dry_run: bool, roles: RoleNames | None) -> list[str]:
    connection = upgrade.connection
    _refuse_old_postgres(connection)
    _refuse_encoding(connection)
    # Moving a large table may take any time; waiting for a lock may not.
    connection.exec_driver_sql("set local statement_timeout = 0")
    connection.execute(sa.text("select pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
    if roles is not None and not dry_run:
        _make_roles(connection, roles)
        _hand_over(upgrade, roles.owner)
    is_owner = _become_owner(connection)
    todo = _pending(connection)
    if todo and roles is None:
        _require_rights(connection, is_owner=is_owner)
    if dry_run:
        return [migration.name for migration in todo]
    if todo:
        _prepare(connection)
        # A function may use one from a later file. All of them are checked once they exist.
        connection.exec_driver_sql("set local check_function_bodies = off")
        for migration in todo:
            _apply(upgrade, migration)
        connection.exec_driver_sql("set local check_function_bodies = on")
        connection.execute(_CHECKED)
        # Removed files; a numbered migration has dropped their objects.
        connection.execute(
            sa.text("delete from sharequeue.schema_migrations where not name = any(:names)"),
            {"names": [f.name for f in schema_files.migrations()]},
        )
    if roles is not None:
        _name_roles(connection, roles)
    return [migration.name for migration in todo]


def may_migrate(connection: sa.Connection) -> bool:
    """Return whether the login may migrate: the schema does not exist yet, or the login is a member of its owner."""
    owned = sa.text("select pg_has_role(nspowner, :right) from pg_namespace where nspname = 'sharequeue'")
    return connection.scalar(owned, {"right": _to_become(connection)}) is not False


def _pending(connection: sa.Connection) -> list[Migration]:
    done = applied(connection)
    files = schema_files.migrations()
    unknown = sorted(name for name in done.keys() - {f.name for f in files} if name.startswith(VERSIONED))
    if unknown and unknown[-1] < files[0].name:
        raise SchemaOutdated(
            f"the database has {unknown[-1]}: it was made before the first release, and cannot be upgraded. Nothing "
            "was changed. With the program that made it, let the groups finish their leases and export their offsets "
            "(`sharequeue offsets reset --to-current --export`). Then remove the state (`drop schema "
            "sharequeue, sharequeue_internal cascade`; for the local stack: `sharequeue reset`), run `sharequeue "
            "migrate`, and import the offsets (`sharequeue offsets reset --from-file`)."
        )
    if unknown:
        raise SchemaNewer(
            f"the database has {unknown[-1]}, which this version does not know: a newer release migrated it. "
            "Upgrade sharequeue here."
        )
    for f in files:
        if not f.repeatable and done.get(f.name, f.checksum) != f.checksum:
            raise SchemaOutdated(
                f"{f.name} has changed since it was applied. A numbered migration must not change once "
                "applied: restore the file and write a new one."
            )
    first_changed = next((i for i, f in enumerate(files) if done.get(f.name) != f.checksum), len(files))
    # A repeatable file may use any earlier one: from the first change on, all of them are applied
    # again.
    return [f for i, f in enumerate(files) if i >= first_changed and (f.repeatable or f.name not in done)]


def _refuse_old_postgres(connection: sa.Connection) -> None:
    number, version = connection.execute(
        sa.text("select current_setting('server_version_num'), current_setting('server_version')")
    ).one()
    if int(number) // 10_000 < OLDEST_POSTGRES:
        raise UnsupportedVersion(
            f"This is PostgreSQL {version}, but the schema needs {OLDEST_POSTGRES} or later. Nothing was changed. "
            "Use a newer server, or upgrade this one with pg_upgrade."
        )


def _require_rights(connection: sa.Connection, *, is_owner: bool) -> None:
    """Refuse a login that may not apply files, also in a dry run."""
    lacking = "may not become the owner of the schema"
    if is_owner:
        may_create, complete = connection.execute(
            sa.text(
                "select has_database_privilege(current_database(), 'CREATE'),"
                " not exists (select from unnest(cast(:schemas as text[])) s where to_regnamespace(s) is null)"
            ),
            {"schemas": list(_SCHEMAS)},
        ).one()
        if may_create or complete:
            return
        lacking = "may not create a schema in the database"
    raise SchemaForbidden(f"The login {lacking}; nothing was changed. {_grants(connection, None)}")


def encoding_defect(encoding: str) -> str | None:
    """Return why a database with this encoding cannot hold the state; None if it can."""
    if encoding == "UTF8":
        return None
    return (
        f"its encoding is {encoding}, which has not every text of keys, names and errors: create a database with "
        "`create database … encoding 'UTF8' locale 'C.UTF-8' template template0`"
    )


def _refuse_encoding(connection: sa.Connection) -> None:
    name, encoding = connection.execute(
        sa.text("select current_database(), current_setting('server_encoding')")
    ).one()
    if defect := encoding_defect(encoding):
        raise EncodingNotSupported(f"Database {name} cannot be used, and nothing was changed: {defect}.")


_CHECKED = sa.text(
    # The same check as in `create function`, where it was switched off.
    "select case lanname when 'sql' then pg_catalog.fmgr_sql_validator(p.oid)"
    " else pg_catalog.plpgsql_validator(p.oid) end"
    " from pg_proc p join pg_language l on l.oid = p.prolang"
    " where p.pronamespace in (to_regnamespace('sharequeue'), to_regnamespace('sharequeue_internal'))"
    " and p.prokind = 'f' and lanname in ('sql', 'plpgsql')"
)


def _prepare(connection: sa.Connection) -> None:
    for schema in _SCHEMAS:
        # Not `if not exists`: it needs the right to create one, also if a superuser has made it for this login.
        if connection.scalar(sa.text("select to_regnamespace(:name)"), {"name": schema}) is None:
            connection.exec_driver_sql(f"create schema {schema}")
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


def _become_owner(connection: sa.Connection) -> bool:
    """Switch to the schema's owner, so that new objects belong to it whichever member runs this.

    Returns whether the session is the owner's now, or there is no schema yet.
    """
    owner = connection.scalar(
        sa.text(
            "select quote_ident(pg_get_userbyid(nspowner)) from pg_namespace where nspname = 'sharequeue'"
            " and nspowner <> to_regrole(quote_ident(current_user))"
        )
    )
    if owner is None:
        return True
    may = connection.scalar(
        sa.text("select pg_has_role(to_regrole(:owner), :right)"),
        {"owner": owner, "right": _to_become(connection)},
    )
    if may:
        connection.exec_driver_sql(f"set local role {owner}")
    return bool(may)


def _to_become(connection: sa.Connection) -> str:
    """Return the name of the right to SET ROLE. From 16 on, a member may lack it, as the creator of a role does."""
    number = connection.scalar(sa.text("select cast(current_setting('server_version_num') as int)"))
    return "SET" if number is not None and number >= 160_000 else "MEMBER"


def _make_roles(connection: sa.Connection, roles: RoleNames) -> None:
    """Create the missing group roles; existing ones are not changed."""
    for name in roles:
        quoted = connection.scalar(sa.text("select quote_ident(:name)"), {"name": name})
        if connection.scalar(sa.text("select to_regrole(:quoted)"), {"quoted": quoted}) is None:
            _make_role(connection, quoted)


def _make_role(connection: sa.Connection, quoted: str | None) -> None:
    """Create a role, unless another session is creating it now: roles belong to all databases of the server, the
    migration's lock to one."""
    try:
        with connection.begin_nested():
            connection.exec_driver_sql(f"create role {quoted} nologin")
    except DBAPIError as error:
        if sqlstate(error) not in (DUPLICATE_OBJECT, DUPLICATE_ROW):
            raise


def _grants(connection: sa.Connection, roles: RoleNames | None) -> str:
    """Return the grants that the login may need, as SQL."""
    login, name, owner = connection.execute(
        sa.text(
            "select quote_ident(current_user), quote_ident(current_database()), (select quote_ident("
            "pg_get_userbyid(nspowner)) from pg_namespace where nspname = 'sharequeue'"
            " and nspowner <> to_regrole(quote_ident(current_user)))"
        )
    ).one()
    if roles is not None:
        existing = ", ".join(f'"{role}"' for role in roles)
        return (
            f"--roles needs a superuser, or: `alter role {login} createrole; grant create on database {name} to "
            f"{login} with grant option`, and for roles that exist already `grant {existing} to {login} with admin "
            "option`."
        )
    if owner is not None:
        return f"The schema belongs to {owner}: `grant {owner} to {login}`, or migrate with a login that is a member."
    made = "; ".join(f"create schema {schema} authorization {login}" for schema in _SCHEMAS)
    return (
        f"Have the owner of the database run `grant create on database {name} to {login}`, or make both schemas: "
        f"`{made}`."
    )


def _hand_over(upgrade: Upgrade, owner: str) -> None:
    """Make ``owner`` the owner of the schema and of all its objects."""
    connection = upgrade.connection
    quoted = connection.scalar(sa.text("select quote_ident(:name)"), {"name": owner})
    if not all(
        connection.scalar(
            sa.text("select pg_has_role(to_regrole(:role), :right)"), {"role": quoted, "right": right}
        )
        for right in ("USAGE", _to_become(connection))
    ):
        connection.exec_driver_sql(f"grant {quoted} to current_user")
    if not connection.scalar(
        sa.text("select has_database_privilege(:name, current_database(), 'CREATE')"), {"name": owner}
    ):
        # Postgres requires it of the new owner of a schema.
        database = connection.scalar(sa.text("select quote_ident(current_database())"))
        connection.exec_driver_sql(f"grant create on database {database} to {quoted}")
    if connection.scalar(sa.text("select to_regnamespace('sharequeue')")) is None:
        connection.exec_driver_sql(f"create schema sharequeue authorization {quoted}")
        return
    connection.exec_driver_sql(f"alter schema sharequeue owner to {quoted}")
    if connection.scalar(sa.text("select to_regnamespace('sharequeue_internal')")) is not None:
        connection.exec_driver_sql(f"alter schema sharequeue_internal owner to {quoted}")
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
        from pg_proc p where pronamespace in (to_regnamespace('sharequeue'), to_regnamespace('sharequeue_internal'))
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
