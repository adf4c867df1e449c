"""Can this machine run the stack at all: Python, Java, room on the disk?

Asked before anything is changed, by `make` even before there is an environment, so this module imports the
standard library only and also runs as a plain script. Whether the servers run and fit is `doctor.py`'s question.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

JAVA_MAJORS = (17, 21)  # Spark 4.0 needs 17, and its Hadoop stops working at 23
PYTHON_MINORS = ((3, 11), (3, 13))  # PySpark 4.0 declares Python up to 3.13
DISK_NEEDED_FOR_SETUP = 3 * 1024**3  # environment 1.7 GB, jars and caches 0.2 GB, the demo's data 0.5 GB
DISK_NEEDED_TO_RUN = 512 * 1024**2
_USUAL_FOLDERS = ("/usr/lib/jvm", "/Library/Java/JavaVirtualMachines", "/opt/homebrew/opt")


class StackError(Exception):
    """This machine or the embedded stack is not as it must be; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java installation that Spark and the broker both run on."""

    home: Path
    executable: Path
    version: str
    major: int

    def environment(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return `base` (default: this process's environment) with `JAVA_HOME` pointing here.

        Java takes the encoding of file names from the locale: under `C` it reads others than ASCII's wrongly.
        """
        return {
            **(os.environ if base is None else base),
            "JAVA_HOME": str(self.home),
            "LC_ALL": "C.UTF-8",
        }


def parse_java_version(text: str) -> tuple[str, int] | None:
    """Read (version, major) from what `java -version` prints; the old scheme's 1.8 is 8. None when it says
    nothing.
    """
    found = re.search(r'version "([^"]+)"', text)
    if not found:
        return None
    numbers = re.findall(r"\d+", found.group(1))
    if not numbers:
        return None
    major = int(numbers[1]) if numbers[0] == "1" and len(numbers) > 1 else int(numbers[0])
    return found.group(1), major


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """Find Java 17 or 21: `JAVA_HOME` decides when it is set, then PATH, then the usual folders.

    Raises `StackError` with one sentence: what was found and what to do.
    """
    environment = os.environ if environment is None else environment
    found: list[str] = []
    for executable in _candidates(environment):
        java = _inspect(executable)
        if java is None:
            continue
        if java.major in JAVA_MAJORS:
            return java
        found.append(f"Java {java.version} at {java.executable}")
    wanted = "Java 17 or 21 is needed (by Spark and by the Kafka broker)"
    how = (
        "install one (Debian and Ubuntu: openjdk-17-jre-headless, macOS: temurin@17), or set JAVA_HOME to one"
    )
    if found:
        raise StackError(f"{wanted}, but only {' and '.join(found)} was found: {how}.")
    if environment.get("JAVA_HOME"):
        raise StackError(
            f"{wanted}, but JAVA_HOME={environment['JAVA_HOME']} holds no working bin/java: {how}."
        )
    raise StackError(f"{wanted} and none was found: {how}.")


def _candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    if environment.get("JAVA_HOME"):
        # Spark's scripts follow JAVA_HOME whatever PATH says, so a wrong one is named, not worked around.
        yield Path(environment["JAVA_HOME"]) / "bin" / "java"
        return
    on_path = shutil.which("java", path=environment.get("PATH"))
    if on_path:
        yield Path(on_path)
    for root in map(Path, _USUAL_FOLDERS):
        for pattern in ("*/bin/java", "*/Contents/Home/bin/java"):
            yield from sorted(root.glob(pattern))


def _inspect(executable: Path) -> Java | None:
    try:
        # macOS has a /usr/bin/java that only says that there is none; it exits non-zero.
        printed = subprocess.run(
            [str(executable), "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    text = printed.stderr + printed.stdout
    version = parse_java_version(text)
    home = re.search(r"^\s*java\.home = (.+)$", text, re.MULTILINE)
    if version is None:
        return None
    real_home = Path(home.group(1).strip()) if home else executable.resolve().parents[1]
    return Java(real_home, executable, version[0], version[1])


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
    """Check this machine before an environment is made; one sentence on stderr and 1 when something is
    missing.
    """
    try:
        check_python()
        find_java()
        check_disk(Path.cwd(), DISK_NEEDED_FOR_SETUP)
    except StackError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
