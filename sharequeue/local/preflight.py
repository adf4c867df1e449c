"""Check that this machine can run the stack at all: Python, Java, disk space.

It runs before anything is changed, in `make` even before the environment exists. So this module imports only the
standard library and also runs as a plain script. `doctor.py` checks the servers.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

if __name__ == "__main__":  # a script has no package
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from sharequeue.domain import java
from sharequeue.domain.java import JAVA_MAJORS, Java, NoJava

__all__ = [
    "DISK_NEEDED_FOR_SETUP",
    "DISK_NEEDED_TO_RUN",
    "JAVA_MAJORS",
    "Java",
    "StackError",
    "check_disk",
    "check_name",
    "check_python",
    "check_writable",
    "find_java",
]

PYTHON_MINORS = ((3, 11), (3, 13))  # PySpark 4.0 declares Python up to 3.13
DISK_NEEDED_FOR_SETUP = 3 * 1024**3  # environment 1.7 GB, jars and caches 0.2 GB, the demo's data 0.5 GB
DISK_NEEDED_TO_RUN = 512 * 1024**2


class StackError(Exception):
    """This machine or the embedded stack does not meet a requirement; the message has what to do."""


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """Return Java 17 or 21, as `sharequeue.domain.java` finds it. Raises `StackError` with what was found."""
    try:
        return java.find_java(os.environ if environment is None else environment)
    except NoJava as error:
        raise StackError(str(error)) from None


def check_python(version: tuple[int, int] | None = None) -> str:
    """Return this Python's version. Raises `StackError` if it is not 3.11 to 3.13."""
    running = version or (sys.version_info[0], sys.version_info[1])
    if not PYTHON_MINORS[0] <= running <= PYTHON_MINORS[1]:
        raise StackError(
            f"Python 3.11, 3.12 or 3.13 is needed, but this is {running[0]}.{running[1]} ({sys.executable}): "
            "install one, or put it first on PATH."
        )
    return platform.python_version() if version is None else f"{running[0]}.{running[1]}"


def check_disk(folder: Path, needed: int) -> int:
    """Return the free bytes on the disk of `folder`, which need not exist. Raises `StackError` if they are fewer than
    `needed`.
    """
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise StackError(
            f"Only {free / 1024**3:.1f} GB are free on the disk of {folder}, but "
            f"{needed / 1024**3:.1f} GB are needed: free some space, or set SHAREQUEUE_HOME to another disk."
        )
    return free


def check_name(folder: Path) -> None:
    """Raise `StackError` if the path of the data folder has a comma: Kafka and Spark would read it as two paths."""
    if "," in str(folder):
        raise StackError(
            f"{folder} has a comma in its path, which Kafka and Spark would read as two paths: "
            "set SHAREQUEUE_HOME to a folder without one."
        )


def check_writable(folder: Path) -> None:
    """Raise `StackError` if `folder` cannot be created or written to."""
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise StackError(f"{existing} cannot be written to: set SHAREQUEUE_HOME to a folder of your own.")


def main() -> int:
    """Check this machine before the environment is created; print an error on stderr and return 1 if a check fails.

    It prints `java` on stdout if the environment needs that extra, because the machine has no Java.
    """
    try:
        check_python()
        if not _brings_java():
            find_java()
        check_disk(Path.cwd(), DISK_NEEDED_FOR_SETUP)
    except StackError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _brings_java() -> bool:
    """Return whether there is no Java but a wheel with one for this platform; print that.

    A wrong JAVA_HOME is reported, not worked around.
    """
    try:
        java.find_java()
    except NoJava:
        if os.environ.get("JAVA_HOME") or not java.has_wheel():
            return False
        print("java")
        return True
    return False


if __name__ == "__main__":
    sys.exit(main())
