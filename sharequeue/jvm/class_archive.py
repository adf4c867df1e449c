"""Which class-data archive lets a JVM of ours start quicker, and is it there?

A JVM reads and checks thousands of classes at each start. From an archive (`-XX:SharedArchiveFile`) it takes them as
an earlier JVM had them. An archive fits one JVM and one class path: both are in its name, so that another JVM or
another release makes another one. The JVM looks again, and ignores one that does not fit. `local/class_archives.py`
makes them; without one, everything works as before.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from sharequeue.jvm.java import java_program

__all__ = [
    "QUIET",
    "archive_options",
    "broker_archive",
    "folder_of",
    "is_whole",
    "length_of",
    "quoted",
    "spark_archive",
]

QUIET = "-Xlog:cds*=off"
"""No word of an archive that does not fit."""
_CHOSEN = re.compile(r"SharedArchiveFile|ArchiveClassesAtExit|-Xshare")


def folder_of(jars: Path) -> Path:
    """Name the folder of the archives: beside the jars, because these are replaced as a whole."""
    return jars.with_name(f"{jars.name}.classes")


def spark_archive(jars: Path, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Name the archive for the JVM and the Spark that PySpark starts; None when one of them is not found."""
    java = java_program(environment)
    spec = importlib.util.find_spec("pyspark")
    # PySpark follows links to itself.
    package = str(Path(spec.origin).resolve().parent) if spec is not None and spec.origin else None
    spark = environment.get("SPARK_HOME") or package
    return _archive(jars, "spark", java, Path(spark) / "jars") if java and spark else None


def broker_archive(jars: Path, java: Path) -> Path | None:
    """Name the archive for the broker on this `java` program; None when its jars are not there."""
    return _archive(jars, "broker", java, jars / "broker")


def archive_options(archive: Path | None, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the JVM's options for an archive that is there; none when the environment chooses one itself."""
    chosen = (
        environment.get(name, "") for name in ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")
    )
    if archive is None or not is_whole(archive) or any(map(_CHOSEN.search, chosen)):
        return []
    return [f"-XX:SharedArchiveFile={archive}", QUIET]


def is_whole(archive: Path) -> bool:
    """Whether an archive is there, can be read, and is as long as when it was made: a JVM aborts on one cut short."""
    try:
        return os.access(archive, os.R_OK) and str(archive.stat().st_size) == length_of(archive).read_text()
    except OSError:
        return False


def length_of(archive: Path) -> Path:
    """Name the file that says how long an archive is."""
    return archive.with_suffix(".length")


def quoted(options: list[str]) -> str:
    """Return options as one of Spark's settings holds them."""
    return " ".join(f'"{option}"' for option in options)


def _archive(jars: Path, name: str, java: Path, class_path: Path) -> Path | None:
    key = hashlib.sha256()
    try:
        for path in _parts(java.resolve(), class_path):
            found = path.stat()
            key.update(f"{path} {found.st_size} {found.st_mtime_ns}\n".encode())
    except OSError:
        return None
    archive = folder_of(jars) / f"{name}-{key.hexdigest()[:16]}.jsa"
    # The JVM takes what follows a colon for a second archive; the rest cannot be quoted for Spark.
    return None if re.search(r'[:"\\]', str(archive)) else archive


def _parts(java: Path, class_path: Path) -> Iterator[Path]:
    """Yield what makes an archive unfit when it changes, as the JVM itself checks it: size and time of each file."""
    yield java.parents[1] / "lib" / "modules"
    found = sorted(class_path.glob("*.jar"))
    if not found:
        raise FileNotFoundError(class_path)
    yield from found
