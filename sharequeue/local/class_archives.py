"""How do the class-data archives of Spark's JVM and the broker's come about?

`up` starts this module in the background when one is missing, before it fetches the jars: while they come, the
processors have little to do. It runs at a low priority, lets each JVM do a little of its work in a folder of its
own, and keeps what the JVM writes when it ends. Whatever goes wrong, there is no archive, and nobody hears of it.
"""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from sharequeue.jvm.class_archive import broker_archive, folder_of, is_whole, length_of, spark_archive
from sharequeue.jvm.java import is_of_wheel, java_program
from sharequeue.local import kafka, ports, processes
from sharequeue.local.home import Home, write_json
from sharequeue.local.preflight import StackError, find_java

__all__ = ["begin", "keep_whole", "make_all", "missing"]

Train = Callable[[Path], None]
"""Run a JVM that writes its archive to this path at its end, and wait for it."""

KEPT_SECONDS = 30 * 86_400
"""How long an archive is kept that no JVM reads: several environments may share their jars."""
_ROOM = 1024**3
_SECONDS = 900
_FOREIGN = (
    *("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH", "PYSPARK_SUBMIT_ARGS"),
    *("SPARK_SUBMIT_OPTS", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "PYSPARK_GATEWAY_PORT"),
)


def begin(jars: Path, java: Path, environment: Mapping[str, str]) -> None:
    """Make in the background what is missing; nothing where that cannot be written or has failed before."""
    folder = folder_of(jars)
    try:
        if not missing(jars, java, environment):
            return
        folder.mkdir(exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK) or shutil.disk_usage(folder).free < _ROOM:
            return
        process = subprocess.Popen(
            [sys.executable, "-m", "sharequeue.local.class_archives", str(jars)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={name: value for name, value in environment.items() if name not in _FOREIGN},
            cwd=folder,
            start_new_session=True,
        )
    except OSError:
        return
    process.returncode = 0  # it outlives us, and Popen must not complain about that


def missing(jars: Path, java: Path, environment: Mapping[str, str] = os.environ) -> list[tuple[Path, Train]]:
    """Return the archives that can be made and have not been tried yet, each with how."""

    def broker(staged: Path) -> None:
        _run_broker(jars, staged)

    wanted = [(spark_archive(jars, environment), _run_spark), (broker_archive(jars, java), broker)]
    return [
        (archive, train)
        for archive, train in wanted
        if archive is not None and not is_whole(archive) and not _failed(archive).exists()
    ]


def make_all(folder: Path, archives: Callable[[], list[tuple[Path, Train]]]) -> None:
    """Make one after the other, unless another process is at it. The lock dies with its process."""
    with (folder / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        while (
            wanted := archives()
        ):  # asked anew each time: the broker's jars come while Spark's archive is made
            keep_whole(*wanted[0])
        for path in folder.glob("*.jsa"):
            if path.stat().st_atime < time.time() - KEPT_SECONDS:
                path.unlink()
                length_of(path).unlink(missing_ok=True)


def keep_whole(archive: Path, train: Train) -> None:
    """Make one archive beside its place and move it there whole; note a failure, so that it is not tried again.

    A JVM aborts on an archive that is cut short, so it is on the disk before it has its name.
    """
    staged = archive.with_suffix(".part")
    staged.unlink(missing_ok=True)
    try:
        train(staged)
        with staged.open("rb") as written:
            whole = any(written.read(4))  # the JVM writes the head of the file last
            os.fsync(written.fileno())
    except (StackError, OSError, subprocess.SubprocessError):
        whole = False
    if whole:
        length = str(staged.stat().st_size)
        staged.replace(archive)
        length_of(archive).write_text(length)
    else:
        staged.unlink(missing_ok=True)
        _failed(archive).touch()


def _failed(archive: Path) -> Path:
    return archive.with_suffix(".failed")


def _run_spark(staged: Path) -> None:
    command = [sys.executable, "-m", "sharequeue.spark.first_job", str(staged)]
    with tempfile.TemporaryDirectory(
        prefix="sharequeue-classes-"
    ) as folder:  # Spark makes folders where it stands
        subprocess.run(command, check=True, timeout=_SECONDS, cwd=folder)


def _run_broker(jars: Path, staged: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="sharequeue-classes-") as folder:
        home = Home.at(folder)
        home.create()
        # Ports that no stack prefers: the one that is being started must not find its own taken.
        free = (port for port in random.sample(range(10_000, 20_000), 100) if ports.is_free(port))
        write_json(home.ports_file, dict(zip((kafka.NAME, kafka.CONTROLLER), free, strict=False)))
        # Less is compiled: the classes are the same.
        kafka.ensure(
            home,
            find_java(),
            jars,
            lambda line: None,
            options=["-XX:TieredStopAtLevel=1", f"-XX:ArchiveClassesAtExit={staged}"],
        )
        running = processes.find(home, kafka.NAME)
        if running is not None:
            processes.stop(home, running, seconds=_SECONDS)


def _make_base(java: Path) -> None:
    """Make the archive of Java's own classes, without which there is no other: the Java of a wheel comes without."""
    base = java.parents[1] / "lib" / "server" / "classes.jsa"
    if not is_of_wheel(java) or base.exists():
        return
    staged = base.with_name(f"classes.{os.getpid()}.part")
    try:
        command = [str(java), "-Xshare:dump", f"-XX:SharedArchiveFile={staged}"]
        subprocess.run(
            command, check=True, timeout=_SECONDS, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        staged.replace(base)
    finally:
        staged.unlink(missing_ok=True)


def main() -> None:
    """Make what is missing for the jars in the folder named on the command line."""
    os.nice(10)
    jars = Path(sys.argv[1])
    with suppress(OSError, subprocess.SubprocessError):
        java = java_program()
        if java is not None:
            _make_base(java)
    with suppress(OSError, StackError):
        make_all(folder_of(jars), lambda: missing(jars, find_java().executable))


if __name__ == "__main__":
    main()
