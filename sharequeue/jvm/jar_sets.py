"""Which sets of jars are there beside the stack's own, where are they, and which of them does a Spark session get?

Most users need none of them, and nothing fetches one by itself: `sharequeue jars fetch NAME` does, once. A session
that `spark_session` makes gets the sets that `SHAREQUEUE_SPARK_JARS` names, and `s3a` where the output is on it. This
module knows the names and the folders; `local/optional_jars.py` fetches them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

__all__ = ["DESCRIPTIONS", "JarSetInvalid", "chosen", "fetch_command", "folder_of"]

DESCRIPTIONS = {
    "s3a": "Spark's client of S3, for an output on s3a:",
    "delta": "Delta Lake, for the sink DeltaTable",
    "iceberg": "Apache Iceberg, for the sink IcebergTable",
    "avro": "Spark's Avro functions",
}


class JarSetInvalid(ValueError):
    """SHAREQUEUE_SPARK_JARS names a set that there is not; the message names those that there are."""


def chosen(given: str | Iterable[str]) -> tuple[str, ...]:
    """Return the names of sets, from a list or from a text with commas, each once. Raises JarSetInvalid."""
    names = given.split(",") if isinstance(given, str) else given
    found = tuple(dict.fromkeys(name.strip() for name in names if name.strip()))
    for name in found:
        if name not in DESCRIPTIONS:
            raise JarSetInvalid(
                f"there is no set of jars {name!r}: expected some of {', '.join(DESCRIPTIONS)}"
            )
    return found


def folder_of(jars: Path, name: str) -> Path:
    """Name the folder of a set's jars: beside the stack's jars, which are replaced as a whole."""
    return jars.with_name(f"{jars.name}.{name}") / name


def fetch_command(*names: str) -> str:
    """Return the command that fetches these sets, for a message."""
    return f"`sharequeue jars fetch {' '.join(names)}`"
