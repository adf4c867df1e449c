"""Databases that tests use one after the other: to make one takes several times as long as to empty one.

A test's database is given to a later test if the test changed nothing of it but rows. What it put in is taken out,
what it took out is put back, sequences go back, and the database gets another name: what still runs of the earlier
test does not find it.
"""

from __future__ import annotations

import io
import uuid
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psycopg2
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

# What has an oid below 16384 is Postgres's own.
_SCHEMA = """
select md5(string_agg(line, e'\\n' order by line)) from (
    select 'class ' || (
        oid, relname, relnamespace, reltype, relowner, relam, reltablespace, relpersistence, relkind, relnatts,
        relchecks, relhasrules, relhastriggers, relhassubclass, relrowsecurity, relforcerowsecurity, relreplident,
        relispartition, relacl, reloptions, case when relkind in ('r', 'm') then reltuples end
    )::text as line
    from pg_class where oid >= 16384
    union all select 'attribute ' || (attrelid, attnum, xmin)::text from pg_attribute where attrelid >= 16384
    union all select 'proc ' || (oid, case when proname = 'clock' then prosrc else xmin::text end)::text
        from pg_proc where oid >= 16384  -- the clock may have stood: it goes again
    union all select 'type ' || (oid, xmin)::text from pg_type where oid >= 16384
    union all select 'constraint ' || (oid, xmin)::text from pg_constraint where oid >= 16384
    union all select 'trigger ' || (oid, xmin)::text from pg_trigger
    union all select 'rewrite ' || (oid, xmin)::text from pg_rewrite where oid >= 16384
    union all select 'default ' || (oid, xmin)::text from pg_attrdef
    union all select 'policy ' || (oid, xmin)::text from pg_policy
    union all select 'namespace ' || (oid, xmin)::text from pg_namespace where nspname !~ '^pg_'
    union all select 'default acl ' || (oid, xmin)::text from pg_default_acl
    union all select 'extension ' || (oid, xmin)::text from pg_extension
    union all select 'publication ' || (oid, xmin)::text from pg_publication
    union all select 'event trigger ' || (oid, xmin)::text from pg_event_trigger
    union all select 'statistics ' || oid::text from pg_statistic_ext
    union all select 'statistic ' || (starelid, staattnum)::text from pg_statistic where starelid >= 16384
    union all select 'setting ' || s::text from pg_db_role_setting as s
        where setdatabase = (select oid from pg_database where datname = current_database())
    union all select 'database ' || (datdba, datallowconn, datconnlimit, datacl)::text from pg_database
        where datname = current_database()
    union all select 'prepared ' || gid from pg_prepared_xacts where database = current_database()
) as lines
"""
_END_OTHERS = """
select pg_terminate_backend(pid, 5000) from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid()
"""
_WITH_PAGES = """
select oid::regclass::text from pg_class
where oid >= 16384 and relkind = 'r' and pg_relation_size(oid) > 0 order by 1
"""
_REFERRING = """
with recursive referring(oid) as (
    select oid from pg_class where oid >= 16384 and oid::regclass::text = any(%s)
    union
    select conrelid from pg_constraint join referring on confrelid = referring.oid where contype = 'f'
)
select oid::regclass::text from referring
"""
_SEQUENCES = """
select schemaname || '.' || sequencename, start_value, last_value from pg_sequences
"""


@dataclass(frozen=True)
class Spare:
    """What databases made from one template are like before a test."""

    schema: str
    rows: dict[str, str]
    """The content of each table that has one, as COPY writes it."""
    sequences: dict[str, tuple[int, int | None]]
    """The start and the last value of each sequence."""

    @classmethod
    def of(cls, url: sa.URL) -> Spare:
        """Look at a migrated database that is copied; autovacuum must find nothing to do there."""
        with closing(_connect(url)) as connection, connection.cursor() as cursor:
            cursor.execute(_END_OTHERS)
            cursor.execute("select pg_stat_reset()")
            connection.commit()
            cursor.execute(_WITH_PAGES)
            tables = [name for (name,) in cursor.fetchall()]
            return cls(_schema(cursor), {name: _content(cursor, name) for name in tables}, _sequences(cursor))

    def restore(self, url: sa.URL, admin: sa.Engine) -> sa.URL | None:
        """Make a database that a test had as it was before; return its new address, or None if the test changed more
        than rows."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        try:
            with closing(_connect(url)) as connection, connection.cursor() as cursor:
                cursor.execute(_END_OTHERS)
                if not self._empty(cursor):
                    return None
                connection.commit()
            with admin.connect() as at_once:
                at_once.exec_driver_sql(f"alter database {url.database} rename to {name}")
        except (DBAPIError, psycopg2.Error):
            return None
        return url.set(database=name)

    def _empty(self, cursor: Any) -> bool:
        # No trigger refuses what is done here: the audit log cannot be emptied otherwise.
        cursor.execute("set session_replication_role = replica")
        cursor.execute(_WITH_PAGES)
        there = {name for (name,) in cursor.fetchall()}
        same = {name for name in there & self.rows.keys() if _content(cursor, name) == self.rows[name]}
        changed = sorted((there | self.rows.keys()) - same)
        if changed:
            cursor.execute(_REFERRING, (changed,))
            emptied = {name for (name,) in cursor.fetchall()}
            if not emptied.issuperset(changed):
                return False
            cursor.execute(f"truncate {', '.join(sorted(emptied))}")
            for name in sorted(emptied & self.rows.keys()):
                cursor.copy_expert(f"copy {name} from stdin", io.StringIO(self.rows[name]))
        for name, (start, last) in _sequences(cursor).items():
            if self.sequences.get(name) != (start, last):
                wanted, called = self.sequences.get(name, (start, None))
                cursor.execute(
                    "select setval(%s, %s, %s)",
                    (name, wanted if called is None else called, called is not None),
                )
        cursor.execute("select pg_stat_reset()")
        return _schema(cursor) == self.schema


def _connect(url: sa.URL) -> Any:
    return psycopg2.connect(
        host=url.host, port=url.port, user=url.username, password=url.password, dbname=url.database
    )


def _schema(cursor: Any) -> str:
    cursor.execute(_SCHEMA)
    ((found,),) = cursor.fetchall()
    return str(found)


def _content(cursor: Any, table: str) -> str:
    content = io.StringIO()
    cursor.copy_expert(f"copy {table} to stdout", content)
    return content.getvalue()


def _sequences(cursor: Any) -> dict[str, tuple[int, int | None]]:
    cursor.execute(_SEQUENCES)
    return {name: (start, last) for name, start, last in cursor.fetchall()}
