"""Which SQL files make the schema, in which order, and is the database's schema the one that they make?

Tables are made by numbered files that only go forward; functions and views by files that are applied again
whenever their text, or that of a file before them, changed. How they are applied is in `migrations`.
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
"""Names of the numbered files begin so."""


class SchemaOutdated(Exception):
    """The database's schema is not the one this code was written for. Run ``sharequeue migrate``."""


class SchemaNewer(SchemaOutdated):
    """The database's schema is of a newer release than this code."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One SQL file: a numbered one is applied once, a repeatable one whenever its text changed."""

    name: str
    text: str
    repeatable: bool

    @property
    def checksum(self) -> str:
        """The checksum of the file's text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def sql_root() -> Path:
    """The folder of the SQL files: beside the package in a checkout, inside it in an installed wheel."""
    package = Path(__file__).resolve().parents[1]
    for root in (package.parent / "sql", package / "_sql"):
        if (root / "migrations").is_dir():
            return root
    raise FileNotFoundError(
        f"no SQL files beside or inside {package}: the installation is incomplete, install it again"
    )


def migrations() -> list[Migration]:
    """Return every SQL file in the order of application: the numbered ones, then ``functions/``, by path.

    The number of a folder of ``functions/`` is the order. Inside a folder the order does not matter: no file
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
    """Return how the database's schema differs from this code's, for a caller whose statement failed; None where it
    does not differ, or that is not known.

    Asks ``sharequeue.schema_version``, which every role may; before there was one, the table behind it.
    """
    files = migrations()
    ours = max(f.name for f in files if not f.repeatable)
    try:
        if connection.scalar(sa.text("select to_regnamespace('sharequeue')")) is None:
            return "The database has no schema `sharequeue`: run `sharequeue migrate`."
        if connection.scalar(sa.text("select to_regproc('sharequeue.schema_version')")) is None:
            names = applied(connection)
            theirs, digest = max((n for n in names if n.startswith(VERSIONED)), default="nothing"), ""
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
    listed = ",".join(f"{f.name} {f.checksum}" for f in sorted(files, key=lambda f: f.name))
    return hashlib.sha256(listed.encode()).hexdigest()


def applied(connection: sa.Connection) -> Mapping[str, str]:
    """The checksums of the files that were applied to the database, by name."""
    if connection.scalar(sa.text("select to_regclass('sharequeue.schema_migrations')")) is None:
        return {}
    rows = connection.execute(sa.text("select name, checksum from sharequeue.schema_migrations"))
    return {row.name: row.checksum for row in rows}
