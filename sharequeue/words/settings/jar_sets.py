"""The optional sets of jars, their folders, and the choice for a Spark session.

Most users need none of them. A set is never fetched automatically: run `sharequeue jars fetch NAME` once. A session
made by `spark_session` gets the sets in `SHAREQUEUE_SPARK_JARS`, and `s3a` if the output is on S3. This module has
the names and the folders; `local/optional_jars.py` fetches the jars.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sharequeue.words.settings.addresses import SettingInvalid

__all__ = ["DESCRIPTIONS", "chosen", "fetch_command", "folder_of"]

DESCRIPTIONS = {
    "s3a": "Spark's client of S3, for an output on s3a:",
    "delta": "Delta Lake, for the sink DeltaTable",
    "iceberg": "Apache Iceberg, for the sink IcebergTable",
    "avro": "Spark's Avro functions",
}


def chosen(given: str | Iterable[str]) -> tuple[str, ...]:
    """Return the names of sets without duplicates, from a list or comma-separated text. Raises SettingInvalid."""
    names = given.split(",") if isinstance(given, str) else given
    found = tuple(dict.fromkeys(name.strip() for name in names if name.strip()))
    for name in found:
        if name not in DESCRIPTIONS:
            raise SettingInvalid(
                "SHAREQUEUE_SPARK_JARS",
                f"{name!r} is not a known set of jars: expected any of {', '.join(DESCRIPTIONS)}",
            )
    return found


def folder_of(jars: Path, name: str) -> Path:
    """Return the folder of a set's jars: next to the stack's jars, because those are replaced as a whole."""
    return jars.with_name(f"{jars.name}.{name}") / name


def fetch_command(*names: str) -> str:
    """Return the command that fetches these sets, for a message."""
    return f"`sharequeue jars fetch {' '.join(names)}`"
