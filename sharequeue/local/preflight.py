"""Can this machine run the stack at all: Python, Java, room on the disk?

Asked before anything is changed, by `make` even before there is an environment, so this module imports the
standard library only and also runs as a plain script. Whether the servers run and fit is `doctor.py`'s question.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

if __name__ == "__main__":  # as a script, it is not of a package
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from sharequeue.jvm import java
from sharequeue.jvm.java import JAVA_MAJORS, Java, NoJava

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
    """This machine or the embedded stack is not as it must be; the message says what to do."""


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """Find Java 17 or 21, as `sharequeue.jvm.java` does. Raises `StackError` with what was found and what to do."""
    try:
        return java.find_java(os.environ if environment is None else environment)
    except NoJava as error:
        raise StackError(str(error)) from None


def check_python(version: tuple[int, int] | None = None) -> str:
    """Return this Python's version, or raise `StackError` when it is not 3.11 to 3.13."""
    running = version or (sys.version_info[0], sys.version_info[1])
    if not PYTHON_MINORS[0] <= running <= PYTHON_MINORS[1]:
        raise StackError(
            f"Python 3.11, 3.12 or 3.13 is needed, but this is {running[0]}.{running[1]} ({sys.executable}): "
            "install one, or put it first on PATH."
        )
    return platform.python_version() if version is None else f"{running[0]}.{running[1]}"


def check_disk(folder: Path, needed: int) -> int:
    """Return the free bytes where `folder` is or will be, or raise `StackError` when they are fewer than
    `needed`.
    """
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise StackError(
            f"Only {free / 1024**3:.1f} GB are free where {folder} lies and "
            f"{needed / 1024**3:.1f} GB are needed: make room, or point SHAREQUEUE_HOME to another disk."
        )
    return free


def check_name(folder: Path) -> None:
    """Raise `StackError` when the path of the data folder has a comma: Kafka and Spark take that for two paths."""
    if "," in str(folder):
        raise StackError(
            f"{folder} has a comma in its path, where Kafka and Spark would take it for two paths: "
            "set SHAREQUEUE_HOME to a folder without one."
        )


def check_writable(folder: Path) -> None:
    """Raise `StackError` when `folder` cannot be made or written to."""
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise StackError(f"{existing} cannot be written to: set SHAREQUEUE_HOME to a folder of your own.")


def main() -> int:
    """Check this machine before an environment is made; one sentence on stderr and 1 when something is missing.

    What the environment has to bring because the machine lacks it goes to stdout, as the name of an extra: `java`.
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
    """Whether there is no Java, but a wheel that has one; say so. A wrong JAVA_HOME is named, not worked around."""
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
