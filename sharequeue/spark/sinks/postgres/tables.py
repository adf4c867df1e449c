"""The tables of a sink in Postgres: the target and the staging tables.

This module finds the user's table and its columns, checks whether two URLs lead to the same database, and names,
lists and drops staging tables. Everything runs with psycopg2's cursor, because psycopg2 quotes identifiers, and in
transactions of the state.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg2
import sqlalchemy as sa
from psycopg2 import sql
from psycopg2.errors import InsufficientPrivilege, LockNotAvailable

from sharequeue.database.pool import connection_defaults
from sharequeue.domain.settings import normalise_database_url
from sharequeue.spark.sinks.interface import SinkRefused
from sharequeue.spark.sinks.postgres.definition import Definition, definition_of
from sharequeue.state import State

DROP_WAIT_MS = 1000
"""How long the drop of a staging table waits for a copy into it. The next run tries again."""

_TYPES = """
    with recursive based as (
        select a.attname, a.attnum, a.atttypid as type, a.atttypmod as modifier
        from pg_attribute a
        where a.attrelid = %s and a.attnum > 0 and not a.attisdropped and a.attgenerated = '' and a.attidentity <> 'a'
        union all
        select b.attname, b.attnum, t.typbasetype, t.typtypmod
        from based b join pg_type t on t.oid = b.type where t.typtype = 'd'
    )
    select b.attname, case when t.typcategory = 'A' then '[]' else t.typname end,
        case when b.modifier >= 0 and t.typnamespace = cast('pg_catalog' as regnamespace)
            then format_type(t.oid, -1) end
    from based b join pg_type t on t.oid = b.type where t.typtype <> 'd' order by b.attnum
"""
"""The columns that the sink may fill, with their types, and `Target.unlimited`; a domain is its base type."""
_RIGHTS = """
    select n.nspname, c.relname, has_table_privilege(c.oid, 'insert') and has_table_privilege(c.oid, 'select'),
        has_schema_privilege(n.oid, 'create'),
        -- The bits of tgtype: for each row, before, insert.
        (select coalesce(json_agg(a.attname order by a.attnum), '[]') from pg_attribute a
        where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.attnotnull and not a.atthasdef
            and a.attidentity = '' and not exists (select from pg_trigger g where g.tgtype & 7 = 7
            and (g.tgrelid = c.oid or g.tgrelid in (select relid from pg_partition_tree(c.oid))))),
        (select coalesce(json_agg(a.attname order by a.attnum), '[]') from pg_attribute a
        where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
            and (a.attgenerated <> '' or a.attidentity = 'a')),
        row_security_active(c.oid)
    from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = %s
"""


@dataclass(frozen=True, slots=True)
class Target:
    """The user's table, as described by the catalog."""

    schema: str
    name: str
    kinds: Mapping[str, str]
    """Type by column: for a domain its base type, for any array `[]`."""
    required: Sequence[str] = ()
    """Columns with NOT NULL that have no default, in a table without a trigger that could fill them."""
    generated: Sequence[str] = ()
    """Columns that Postgres always fills itself (`generated always`); they are not in `kinds`."""
    row_security: bool = False
    """Whether policies for rows apply to this role."""
    unlimited: Mapping[str, str] = field(default_factory=dict)
    """By column of a type with a length, precision or scale: the same type without it, as the catalog writes it."""
    definition: Definition = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of its columns."""
        return tuple(self.kinds)

    @property
    def identifier(self) -> sql.Identifier:
        """The name of the table in a statement."""
        return sql.Identifier(self.schema, self.name)


def staging_prefix(group: str, sink: str) -> str:
    """Return the prefix of the names of a sink's staging tables. The lease id follows it."""
    digest = hashlib.blake2s(f"{group}\0{sink}".encode(), digest_size=6).hexdigest()
    return f"sharequeue_staging_{digest}_"


def connection_of(url: str) -> dict[str, Any]:
    """Return psycopg2's arguments for an SQLAlchemy URL."""
    # SQLAlchemy translates it, because a URL may have several hosts.
    url = normalise_database_url(url)
    parts = sa.make_url(url)
    _, given = parts.get_dialect()().create_connect_args(parts)
    return {**given, **connection_defaults(url)}


def with_password(route: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with a password. If they have none, it is the one that libpq finds in this machine's
    password file, because executors have no such file.
    """
    if "password" in route:
        return dict(route)
    connection = psycopg2.connect(**route)
    try:
        found = connection.info.password
    finally:
        connection.close()
    return {**route, "password": found} if found else dict(route)


def cursor_of(connection: sa.Connection) -> Any:
    """Return psycopg2's cursor, in the same transaction: psycopg2 quotes identifiers."""
    # SQLAlchemy begins the transaction, with its settings, only at the first statement.
    connection.execute(sa.text("select 1"))
    return connection.connection.cursor()


def find(cursor: Any, table: str) -> Target:
    """Return the table of this name. Raises SinkRefused if it does not exist, or if the role may not write to it."""
    oid = _named(cursor, table)
    # Read first: an alteration between these statements then counts as one of later.
    definition = definition_of(cursor, oid)
    cursor.execute(_RIGHTS, (oid,))
    row = cursor.fetchone()
    if row is None:
        raise _missing(table)
    schema, name, may_insert, may_create, required, generated, row_security = row
    if schema == "sharequeue":
        raise SinkRefused(
            f"{table} is in the schema sharequeue, which only the queue may use: create the table in another schema."
        )
    if not may_insert or not may_create:
        lacking = (
            f"insert into and select from {schema}.{name}"
            if not may_insert
            else f"create staging tables in schema {schema}"
        )
        raise SinkRefused(f"this role may not {lacking}: grant this privilege, or use a role that has it.")
    cursor.execute(_TYPES, (oid,))
    columns = cursor.fetchall()
    kinds = {column: kind for column, kind, _ in columns}
    unlimited = {column: kind for column, _, kind in columns if kind is not None}
    return Target(schema, name, kinds, required, generated, row_security, unlimited, definition)


def _named(cursor: Any, table: str) -> int:
    try:
        cursor.execute(
            "select oid, relkind in ('r', 'p') from pg_class where oid = to_regclass(%s)", (table,)
        )
    except InsufficientPrivilege as error:
        raise SinkRefused(
            f"this role may not use the schema of {table}: grant it `usage` and `create` on the schema."
        ) from error
    row = cursor.fetchone()
    if row is None:
        raise _missing(table)
    oid, is_table = row
    if not is_table:
        raise SinkRefused(f"{table} is a view or a foreign table: expected a table of the state's database.")
    return int(oid)


def _missing(table: str) -> SinkRefused:
    return SinkRefused(
        f"there is no table {table} in the state's database: create it there, because its rows are written in "
        "the transaction that acknowledges. To write elsewhere, use `AtLeastOnce`."
    )


def same_database(connection: sa.Connection, route: Mapping[str, Any], table: str) -> None:
    """Raise SinkRefused unless both connect to the same database: then each sees a lock of the other.

    A lock is used because a restored copy of a database has the same identifiers.
    """
    keys = secrets.randbelow(2**31), secrets.randbelow(2**31)
    connection.execute(sa.text("select pg_advisory_xact_lock(:a, :b)"), dict(zip("ab", keys, strict=True)))
    there = psycopg2.connect(**route)
    try:
        with there.cursor() as cursor:
            cursor.execute(
                "select exists (select from pg_locks where locktype = 'advisory' and granted and database ="
                " (select oid from pg_database where datname = current_database()) and classid = %s and objid = %s)",
                keys,
            )
            seen = cursor.fetchone()
    finally:
        there.close()
    if not seen or not seen[0]:
        raise SinkRefused(
            f"`url` of table {table} is the address of another database (host {route.get('host')}, database "
            f"{route.get('dbname')}) than the one with the share group's state: rows and acknowledgement could not "
            "be committed together. Create the table in the state's database, or write with `AtLeastOnce`."
        )


def staging_tables(cursor: Any, schema: str, prefix: str) -> list[tuple[int, str]]:
    """Return the staging tables that exist, with their lease ids."""
    cursor.execute(
        "select c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace"
        " where n.nspname = %s and starts_with(c.relname, %s) and c.relkind = 'r' order by c.relname",
        (schema, prefix),
    )
    numbered = [(name.removeprefix(prefix), name) for (name,) in cursor.fetchall()]
    return [(int(number), name) for number, name in numbered if number.isdecimal()]


def dropped(state: State, schema: str, name: str) -> bool:
    """Drop a staging table. Return False if an abandoned copy still writes to it."""
    try:
        with state.transaction() as (connection, _):
            cursor = cursor_of(connection)
            cursor.execute("select set_config('lock_timeout', %s, true)", (str(DROP_WAIT_MS),))
            cursor.execute(sql.SQL("drop table if exists {}").format(sql.Identifier(schema, name)))
    except LockNotAvailable:
        return False
    return True
