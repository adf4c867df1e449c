"""The sets of jars for Spark: their names, their folders, and the series of Spark that each exists for.

A set is for a series of Spark (4.0, 4.1 …), that of the installed PySpark. The connector's set is part of the stack.
Most users need none of the others. They are never fetched automatically: run `sharequeue jars fetch NAME` once. A
session made by `spark_session` gets the sets in `SHAREQUEUE_SPARK_JARS`, and `s3a` if the output is on S3.
`local/optional_jars.py` fetches them.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from sharequeue.domain.settings.addresses import SettingInvalid

__all__ = [
    "CONNECTOR",
    "DESCRIPTIONS",
    "SERIES",
    "JarSetMissing",
    "chosen",
    "fetch_command",
    "folder_of",
    "set_name",
]

CONNECTOR = "connector"
DESCRIPTIONS = {
    "s3a": "Spark's client of S3, for an output on s3a:",
    "delta": "Delta Lake, for the sink DeltaTable",
    "iceberg": "Apache Iceberg, for the sink IcebergTable",
    "avro": "Spark's Avro functions",
}
SERIES = {
    CONNECTOR: ("4.0", "4.1", "4.2"),
    "s3a": ("4.0", "4.1"),
    "delta": ("4.0", "4.1"),
    "iceberg": ("4.0", "4.1"),
    "avro": ("4.0", "4.1", "4.2"),
}
"""The series of Spark for which there is a list of each set."""


class JarSetMissing(Exception):
    """A set of jars does not exist for the installed Spark; the message has the versions of PySpark that have it."""


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


def set_name(name: str) -> str:
    """Return the name of a set's list and folder for the installed Spark, such as `delta-4.1`.

    Raises JarSetMissing if there is none for it.
    """
    try:
        installed = version("pyspark")
    except PackageNotFoundError:
        raise JarSetMissing(
            "PySpark is not installed in this environment: pip install 'sharequeue[dagster]'."
        ) from None
    series = ".".join(installed.split(".")[:2])
    if series not in SERIES[name]:
        wanted = SERIES[name][-1]
        raise JarSetMissing(
            f"There are no jars of the set {name} for Spark {installed}, only for {' and '.join(SERIES[name])}: "
            f"pip install 'pyspark[sql]=={wanted}.*'."
        )
    return f"{name}-{series}"


def folder_of(jars: Path, name: str) -> Path:
    """Return the folder of a set's jars. Raises JarSetMissing if the set does not exist for the installed Spark."""
    return jars / set_name(name)


def fetch_command(*names: str) -> str:
    """Return the command that fetches these sets, for a message."""
    return f"`sharequeue jars fetch {' '.join(names)}`"
