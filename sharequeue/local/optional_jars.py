"""Fetch the optional sets of jars: the S3 client, Delta, Iceberg, Avro.

Each has its own list and checksums (`s3a.xml`, `s3a.sha256` …). A set is fetched like the stack's jars, but only
by `sharequeue jars fetch`. The JVMs of the stack do not get them; `spark_session` adds them to Spark.
"""

from __future__ import annotations

from collections.abc import Sequence

from sharequeue.local import jars
from sharequeue.local.home import Progress
from sharequeue.local.preflight import find_java
from sharequeue.words.settings import Settings
from sharequeue.words.settings.jar_sets import folder_of

__all__ = ["MEGABYTES", "ensure", "is_whole", "jar_set"]

MEGABYTES = {"s3a": 10, "delta": 8, "iceberg": 47, "avro": 1}
"""The download size, rounded up."""


def jar_set(name: str) -> jars.JarSet:
    """Return one of the sets in `jar_sets.DESCRIPTIONS`."""
    return jars.JarSet(name, (name,), f"the set {name}, once, into {{folder}} ({MEGABYTES[name]} MB)")


def is_whole(settings: Settings, name: str) -> bool:
    """Return whether the jars of a set are there, each with its checksum."""
    return not jars.defects(folder_of(settings.jars, name).parent, jar_set=jar_set(name))


def ensure(settings: Settings, names: Sequence[str], progress: Progress) -> None:
    """Fetch the missing sets. Raises StackError with what to do if one cannot be fetched."""
    for name in names:
        folder = folder_of(settings.jars, name).parent
        jars.ensure(folder, find_java(), settings.ivy_settings, progress, jar_set(name))
