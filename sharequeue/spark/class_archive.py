"""The archive of the classes that the JVM of a driver loads, without which a short run takes a third longer.

A driver loads some 15,000 classes, and to read, check and link them takes seconds. Java calls their archive class
data sharing (CDS). The first driver that finds none writes it when it ends, with the classes that its own job has
used; later ones map it into memory. Nothing depends on it: Java ignores an archive of another Java, of other jars, or
that was cut.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from sharequeue.domain.java import Java, NoJava, find_java

CHOSEN_BY = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
"""The environment variables with options of every JVM: if one says anything of archives, it is as it says."""
CHOICES = ("SharedArchiveFile", "ArchiveClassesAtExit", "AutoCreateSharedArchive", "-Xshare")
SETTINGS_OF_SPARK = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR")
"""Folders of files in the class path, which an archive may not have."""
# Without it, a JVM says in its standard output why it does not use an archive.
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_MAGIC = (0xF00BABA8).to_bytes(4, "little"), (0xF00BABA8).to_bytes(4, "big")
"""The beginning of a whole archive: Java writes it last."""
WRITTEN_AFTER_SECONDS = 600
"""An archive that is not whole then was cut."""


def archive_options(folder: Path) -> str:
    """Return the options of a driver's JVM, each after a space, that have it use the archive in a folder, or write it
    when it ends; none if there can be no archive.
    """
    try:
        java = find_java()
    except NoJava:  # the launcher says so
        return ""
    home = Path(_find_spark_home())  # type: ignore[no-untyped-call]
    if not _possible(java, home) or '"' in str(folder):
        return ""
    path = folder / f"spark-{_digest(java, home)}.jsa"
    try:
        with path.open("rb") as file:
            whole = file.read(4) in _MAGIC
            cut = not whole and time.time() - os.fstat(file.fileno()).st_mtime > WRITTEN_AFTER_SECONDS
    except FileNotFoundError:
        whole, cut = False, True
    except OSError:
        return ""
    if whole:
        return f' "-XX:SharedArchiveFile={path}" {_QUIET}'
    if not cut or not os.access(folder, os.W_OK):
        return ""
    _remove_old(folder)
    return f' "-XX:ArchiveClassesAtExit={path}" {_QUIET}'


def _possible(java: Java, home: Path) -> bool:
    given = " ".join(os.environ.get(name, "") for name in CHOSEN_BY)
    if any(choice in given for choice in CHOICES) or any(map(os.environ.get, SETTINGS_OF_SPARK)):
        return False
    # Ours is added to the archive of Java's own classes, which small installations leave out.
    return (java.home / "lib" / "server" / "classes.jsa").is_file() and not (home / "conf").exists()


def _digest(java: Java, home: Path) -> str:
    """Return a name for what an archive is made of: it may not be used for anything else."""
    made_of = hashlib.sha256("\0".join(_made_of(java, home)).encode())
    return made_of.hexdigest()[:16]


def _made_of(java: Java, home: Path) -> Iterator[str]:
    yield from (str(java.home), (java.home / "release").read_text(errors="replace"))
    with os.scandir(home / "jars") as jars:
        for jar in sorted(jars, key=lambda each: each.name):
            stat = jar.stat()
            yield f"{jar.path} {stat.st_size} {stat.st_mtime_ns}"


def _remove_old(folder: Path) -> None:
    """Remove the archives of earlier versions but the newest, which another environment may use."""
    with suppress(OSError):
        found = sorted(folder.glob("spark-*.jsa"), key=lambda each: each.stat().st_mtime)
        for each in found[:-1]:
            each.unlink()
