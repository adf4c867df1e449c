"""Where do the sets of jars come from that only some users need: a client of S3, Delta, Iceberg, Avro?

Each has a list and checksums of its own (`s3a.xml`, `s3a.sha256` …), and is fetched as the stack's jars are, but only
by `sharequeue jars fetch`. A JVM of the stack never sees them; `spark_session` gives them to Spark.
"""

from __future__ import annotations

from collections.abc import Sequence

from sharequeue.jvm.jar_sets import folder_of
from sharequeue.local import jars
from sharequeue.local.home import Progress
from sharequeue.local.preflight import find_java
from sharequeue.settings import Settings

__all__ = ["MEGABYTES", "ensure", "is_whole", "jar_set"]

MEGABYTES = {"s3a": 10, "delta": 8, "iceberg": 47, "avro": 1}
"""How much is fetched, rounded up."""


def jar_set(name: str) -> jars.JarSet:
    """Return one of the sets that `jar_sets.DESCRIPTIONS` names."""
    return jars.JarSet(name, (name,), f"the set {name}, once, into {{folder}} ({MEGABYTES[name]} MB)")


def is_whole(settings: Settings, name: str) -> bool:
    """Return whether the jars of a set are there, each with its checksum."""
    return not jars.defects(folder_of(settings.jars, name).parent, jar_set=jar_set(name))


def ensure(settings: Settings, names: Sequence[str], progress: Progress) -> None:
    """Fetch the sets that are not there yet. Raises StackError with what to do when one cannot be had."""
    for name in names:
        folder = folder_of(settings.jars, name).parent
        jars.ensure(folder, find_java(), settings.ivy_settings, progress, jar_set(name))
