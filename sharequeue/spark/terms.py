"""May a run use a JVM that was started for another one?

Only where it would have started the same: package versions, Spark's configuration, the jars, the folder it works in,
and the variables that the JVM or a client in it reads. What a keeper was started with and what a run asks for are
compared by name, so that a message says what differs.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from sharequeue.jvm.class_archive import QUIET

__all__ = ["GUEST", "forget_others", "terms_of", "unlike"]

GUEST = "SHAREQUEUE_GUEST"
"""The variable that names the run to whom a Python worker belongs."""
_READ = re.compile(
    "^(JAVA_|JDK_|_JAVA|SPARK_|PYSPARK_|HADOOP|YARN_|AWS_|GOOGLE_|AZURE_|KRB5|TZ$|LANG$|LC_|LD_LIBRARY_PATH$)"
)
_EVERYONES = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR")
# PySpark sets these itself.
_SPARKS_OWN = ("SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE")
_ARCHIVE = re.compile(rf'"?-XX:SharedArchiveFile=[^"]*"?|"?{re.escape(QUIET)}"?')


def terms_of(conf: Mapping[str, str]) -> dict[str, str]:
    """Return what must be alike, by name. Values of variables are hashed: they may be secrets."""
    found = {name: value for name, value in conf.items() if name != "spark.app.name"}
    # The archive may have been made in between.
    options = _ARCHIVE.sub("", conf.get("spark.driver.extraJavaOptions", ""))
    found["spark.driver.extraJavaOptions"] = options.strip()
    found["the jars' files"] = _files(conf.get("spark.jars", ""))
    found["sharequeue"], found["pyspark"] = _version("sharequeue"), _version("pyspark")
    found["python"], found["user"] = sys.executable, str(os.getuid())
    found["working folder"] = str(Path.cwd())
    for name, value in os.environ.items():
        if _READ.match(name) and name not in _SPARKS_OWN:
            found[name] = hashlib.sha256(value.encode(errors="surrogateescape")).hexdigest()
    return found


def forget_others() -> None:
    """Remove the variables that say nothing to a JVM: runs bring their own, and this process's are one run's."""
    for name in [*os.environ]:
        if not _READ.match(name) and name not in _EVERYONES:
            del os.environ[name]


def unlike(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Return the names of what differs."""
    return sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))


def _files(jars: str) -> str:
    found = []
    for jar in filter(None, jars.split(",")):
        try:
            seen = Path(jar).stat()
        except OSError:
            continue  # on a store
        found.append(f"{jar} {seen.st_size} {seen.st_mtime_ns}")
    return hashlib.sha256("\n".join(found).encode()).hexdigest()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"
