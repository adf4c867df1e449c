"""Fetch the optional sets of jars: the S3 client, Delta, Iceberg, Avro.

A set is fetched like the stack's jars, but only by `sharequeue jars fetch`. The JVMs of the stack do not get them;
`spark_session` adds them to Spark.
"""

from __future__ import annotations

from collections.abc import Sequence

from sharequeue.domain.settings import Settings
from sharequeue.domain.settings.jar_sets import JarSetMissing, set_name
from sharequeue.local import jars
from sharequeue.local.home import Progress
from sharequeue.local.preflight import StackError, find_java

__all__ = ["MEGABYTES", "NOT_FOR_THIS_SPARK", "ensure", "jar_set", "state"]

MEGABYTES = {"s3a": 10, "delta": 10, "iceberg": 47, "avro": 1}
"""The download size, rounded up."""
NOT_FOR_THIS_SPARK = "not for this Spark"


def jar_set(name: str) -> jars.JarSet:
    """Return one of the sets in `jar_sets.DESCRIPTIONS`, for the installed Spark. Raises JarSetMissing."""
    return jars.JarSet(set_name(name), f"the set {name}", MEGABYTES[name])


def state(settings: Settings, name: str) -> str:
    """Return `fetched` if the jars of a set are there, each with its checksum, else `not fetched`; or that there is
    no such set for the installed Spark.
    """
    try:
        wanted = jar_set(name)
    except JarSetMissing:
        return NOT_FOR_THIS_SPARK
    return "not fetched" if jars.defects(settings.jars, wanted) else "fetched"


def ensure(settings: Settings, names: Sequence[str], progress: Progress) -> None:
    """Fetch the missing sets. Raises StackError with what to do if one cannot be fetched."""
    try:
        wanted = [jar_set(name) for name in names]
    except JarSetMissing as error:
        raise StackError(str(error)) from None
    for each in wanted:
        jars.ensure(settings.jars, find_java(), settings.ivy_settings, progress, each)
