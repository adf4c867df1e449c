"""The SQL files of the schema, their order, and the comparison with a database.

Tables are made by numbered files, each applied once; functions and views by files that are applied again
whenever their text, or that of an earlier file, has changed. `migrations` applies them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

__all__ = [
    "VERSIONED",
    "Migration",
    "SchemaNewer",
    "SchemaOutdated",
    "applied",
    "migrations",
    "schema_mismatch",
    "sql_root",
]

VERSIONED = "migrations/"
"""The prefix of numbered files."""


class SchemaOutdated(Exception):
    """The database's schema is not the one that this code needs. Run ``sharequeue migrate``."""

    retriable = False


class SchemaNewer(SchemaOutdated):
    """The database's schema is from a newer release than this code."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One SQL file: a numbered one is applied once, a repeatable one whenever its text has changed."""

    name: str
    text: str
    repeatable: bool

    @property
    def checksum(self) -> str:
        """The checksum of the file's text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def sql_root() -> Path:
    """Return the folder of the SQL files: next to the package in a checkout, inside it in an installed wheel."""
    package = Path(__file__).resolve().parents[1]
    for root in (package.parent / "sql", package / "_sql"):
        if (root / "migrations").is_dir():
            return root
    raise FileNotFoundError(
        f"no SQL files next to or inside {package}: the installation is incomplete, install it again"
    )


def migrations() -> list[Migration]:
    """Return every SQL file in the order of application: the numbered ones, then ``functions/``, by path.

    The number of a folder of ``functions/`` gives the order. Inside a folder the order does not matter: no file
    needs another file of its folder to be applied first.
    """
    root = sql_root()
    folders = ("migrations", "functions")
    return [
        Migration(file.relative_to(root).as_posix(), file.read_text(), repeatable=folder == "functions")
        for folder in folders
        for file in sorted((root / folder).rglob("*.sql"), key=lambda file: file.relative_to(root).as_posix())
    ]


def schema_mismatch(connection: sa.Connection) -> str | None:
    """Return the difference between the database's schema and this code's, for a caller whose statement failed; None
    if there is none or it cannot be determined.

    Uses ``sharequeue.schema_version``, which every role may call.
    """
    files = migrations()
    expected = max(f.name for f in files if not f.repeatable)
    try:
        if connection.scalar(sa.text("select to_regnamespace('sharequeue')")) is None:
            return "The database has no schema `sharequeue`: run `sharequeue migrate`."
        deployed, digest = connection.execute(sa.text("select * from sharequeue.schema_version()")).one()
    except DBAPIError:
        return None
    if deployed > expected:
        return (
            f"The database's schema is newer than this program: it is at {deployed}, the program at {expected}. "
            "Upgrade sharequeue here."
        )
    if deployed < expected:
        return (
            f"The database's schema is older than this program: it is at {deployed}, the program needs {expected}. "
            "Run `sharequeue migrate` as the schema's owner."
        )
    if digest != schema_digest(files):
        return (
            f"The database's functions belong to another release than this program (both at {expected}). Run "
            "`sharequeue migrate` as the schema's owner, or upgrade sharequeue here."
        )
    return None


def schema_digest(files: list[Migration]) -> str:
    """Return one checksum of all files, as ``sharequeue.schema_version`` computes it from the applied ones."""
    listed = ",".join(f"{f.name} {f.checksum}" for f in sorted(files, key=lambda f: f.name))
    return hashlib.sha256(listed.encode()).hexdigest()


def applied(connection: sa.Connection) -> Mapping[str, str]:
    """Return the checksums of the applied files, by name."""
    if connection.scalar(sa.text("select to_regclass('sharequeue.schema_migrations')")) is None:
        return {}
    rows = connection.execute(sa.text("select name, checksum from sharequeue.schema_migrations"))
    return {row.name: row.checksum for row in rows}
