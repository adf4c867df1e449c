"""The archive of the classes that the JVM of a driver loads, without which a short run takes a third longer.

A driver loads some 15,000 classes, and to read, check and link them takes seconds. Java calls their archive class
data sharing (CDS). The first driver that finds none writes it when it ends, with the classes that its own job has
used; later ones map it into memory. Nothing depends on it: Java ignores an archive of another Java, of other jars, or
with a wrong checksum, and `session` starts a JVM without it if it does not start with it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from sharequeue.domain.java import Java, NoJava, find_java

GIVEN_BY = (
    "JDK_JAVA_OPTIONS",
    "JAVA_TOOL_OPTIONS",
    "_JAVA_OPTIONS",
    "SPARK_SUBMIT_OPTS",
    "PYSPARK_SUBMIT_ARGS",
)
"""The environment variables with options of a driver's JVM."""
GIVEN_IN = ("spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions")
"""The same, in Spark's configuration."""
# A JVM with an agent, or with other modules, does not start if it is to write an archive, and one with a recording
# makes none. Objects that are not compressed need another archive of Java's own classes. Files of options are not
# read here, nor are options of spark-submit that add some, or change the class path.
_WITHOUT = re.compile(
    r"-javaagent|-agent(lib|path):|-Xrun|-Xshare|-Xbootclasspath|--(patch-module|limit-modules|upgrade-module-path)"
    r"|-XX:\S*(Archive|Shared|LoadedClassList|DynamicDump|Flags=|VMOptionsFile|FlightRecord|Compressed|ZGC)"
    r"|java\.system\.class\.loader|(^|\s)[\"']?@"
    r"|JavaOptions|java-options|ClassPath|class-path|properties-file"
)
"""What says that a JVM gets no archive from here."""
CLASS_PATH_OF_SPARK = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH")
"""Environment variables that change the class path: an archive may not have folders of files in it."""
CLASS_PATH = "spark.driver.extraClassPath"
# Between paths, and in Spark's and Java's own reading of an option, these have a meaning.
_UNUSABLE = re.compile(r'[":\\\x00-\x1f]|[\ud800-\udfff]')
# Without it, a JVM says in its standard output why it does not use an archive.
_QUIET = "-Xlog:cds*=off"
_MAGIC = (0xF00BABA8).to_bytes(4, "little"), (0xF00BABA8).to_bytes(4, "big")
"""The beginning of a whole archive: Java writes it last."""
WRITTEN_AFTER_SECONDS = 600
"""An archive that is not whole then was cut, or its driver has written none: the next driver may."""
MOST = 3
"""Archives in a folder; each environment has its own."""
UNUSED_AFTER_SECONDS = 7 * 86_400
FREE_BYTES = 2 * 2**30
"""What must be free on the disk for an archive, which has 200 MB, to be written."""


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The archive of a driver: there already, or to be written by its JVM when that ends."""

    path: Path
    is_there: bool

    @property
    def options(self) -> str:
        """The options of the JVM. Every byte of an archive is checked, as a JVM with a damaged one would crash."""
        if self.is_there:
            return f'"-XX:SharedArchiveFile={self.path}" -XX:+VerifySharedSpaces {_QUIET}'
        return f'"-XX:ArchiveClassesAtExit={self.path}" {_QUIET}'

    def give_up(self) -> None:
        """Remove the archive, with which a JVM did not start. One that was to be written is not tried again soon."""
        if self.is_there:
            with suppress(OSError):
                self.path.unlink()


def class_archive(folder: Path, conf: Mapping[str, str]) -> ClassArchive | None:
    """Return the archive in a folder for a driver with a configuration of Spark; None if it can have none."""
    try:
        java, home = find_java(), Path(_find_spark_home())  # type: ignore[no-untyped-call]
        if not _possible(java, home, conf) or _UNUSABLE.search(str(folder)):
            return None
        path = folder / f"spark-{_digest(java, home)}.jsa"
        if _is_whole(path):
            return ClassArchive(path, is_there=True)
        return ClassArchive(path, is_there=False) if _claimed(path) else None
    except (NoJava, OSError):  # if it matters, the launcher says so
        return None


def _possible(java: Java, home: Path, conf: Mapping[str, str]) -> bool:
    given = [os.environ.get(name, "") for name in GIVEN_BY] + [conf.get(name, "") for name in GIVEN_IN]
    if (
        any(map(_WITHOUT.search, given))
        or conf.get(CLASS_PATH)
        or any(map(os.environ.get, CLASS_PATH_OF_SPARK))
    ):
        return False
    # Ours is added to the archive of Java's own classes, which small installations leave out.
    return _own_archive(java).is_file() and not (home / "conf").exists()


def _own_archive(java: Java) -> Path:
    return java.home / "lib" / "server" / "classes.jsa"


def _digest(java: Java, home: Path) -> str:
    """Return a name for what an archive is made of: it may not be used for anything else."""
    made_of = hashlib.sha256("\0".join(_made_of(java, home)).encode(errors="surrogateescape"))
    return made_of.hexdigest()[:16]


def _made_of(java: Java, home: Path) -> Iterator[str]:
    yield (java.home / "release").read_text(errors="replace")
    jars = sorted((home / "jars").iterdir())
    for path in (_own_archive(java), *jars):
        stat = path.stat()
        # Java compares whole seconds, too, and layers of images keep no more.
        yield f"{path} {stat.st_size} {int(stat.st_mtime)}"


def _is_whole(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) in _MAGIC
    except FileNotFoundError:
        return False


def _claimed(path: Path) -> bool:
    """Return whether this driver is to write the archive: no other one is to, and there is room for it.

    An empty file says so to other drivers, until Java puts the archive in its place. Raises OSError if nothing can be
    written there.
    """
    with suppress(FileNotFoundError):
        if time.time() - path.stat().st_mtime <= WRITTEN_AFTER_SECONDS:
            return False
        path.unlink()
    if not _has_room(path.parent):
        return False
    path.open("xb").close()
    return True


def _has_room(folder: Path) -> bool:
    """Return whether a folder may have one more archive; before, remove those that nobody has used for long."""
    found = sorted((_last_used(each), each) for each in folder.glob("spark-*.jsa"))
    old = [each for used, each in found if time.time() - used > UNUSED_AFTER_SECONDS]
    too_many = old[: max(0, len(found) - MOST + 1)]
    for each in too_many:
        each.unlink()
    return len(found) - len(too_many) < MOST and shutil.disk_usage(folder).free >= FREE_BYTES


def _last_used(path: Path) -> float:
    stat = path.stat()
    return max(stat.st_atime, stat.st_mtime)
