"""Fetch the jars of the broker and of Spark's Kafka connector, and check them.

They are resolved once, by the Ivy of PySpark, into `<jars>/broker` and `<jars>/spark`.
`jars.xml` lists the dependencies, and `jars.sha256` the checksum of every file. Every file is checked at
each start, so that an incomplete or altered set is noticed and fetched again, and a complete set needs no network.
Jars that only some users need are separate sets (`optional_jars.py`). PySpark is located, never imported.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sharequeue.local.home import Progress, file_lock
from sharequeue.local.preflight import Java, StackError
from sharequeue.local.trust_store import trust_options
from sharequeue.words.java import is_of_wheel

__all__ = ["CONFIGURATIONS", "STACK", "JarSet", "defects", "ensure", "expected", "pyspark_home"]

CONFIGURATIONS = ("broker", "spark")
_HERE = Path(__file__).parent
_SILENCE_SECONDS = 180
_SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""


@dataclass(frozen=True, slots=True)
class JarSet:
    """Jars that are fetched together, as listed in `<name>.xml` and `<name>.sha256`, into one folder for each of the
    `configurations`.
    """

    name: str
    configurations: tuple[str, ...]
    what: str
    """What they are and their size, for the progress message."""
    lists: Path = _HERE
    """The folder of the two files."""


STACK = JarSet("jars", CONFIGURATIONS, "Kafka and Spark's connector, once, into {folder} (57 MB)")


def expected(wanted: JarSet = STACK) -> dict[str, str]:
    """Return the files of a complete set: `broker/x.jar` → SHA-256."""
    lines = (wanted.lists / f"{wanted.name}.sha256").read_text().splitlines()
    return {name.strip(): digest for digest, _, name in (line.partition(" ") for line in lines if line)}


def defects(folder: Path, manifest: dict[str, str] | None = None, jar_set: JarSet = STACK) -> list[str]:
    """Return what is missing or wrong in `folder`; empty if the jars are complete."""
    wanted = expected(jar_set) if manifest is None else manifest
    problems = []
    for name, digest in wanted.items():
        path = folder / name
        try:
            with path.open("rb") as handle:
                if hashlib.file_digest(handle, "sha256").hexdigest() != digest:
                    problems.append(f"{name} has the wrong checksum")
        except OSError:
            problems.append(f"{name} is missing")
    # An extra jar on a class path can shadow the right one.
    parts = jar_set.configurations
    present = {f"{part}/{path.name}" for part in parts for path in (folder / part).glob("*.jar")}
    problems.extend(f"{name} is not part of the set" for name in sorted(present - wanted.keys()))
    return problems


def ensure(
    folder: Path, java: Java, ivy_settings: Path | None, progress: Progress, jar_set: JarSet = STACK
) -> None:
    """Download the jars into `folder` unless all of them are there.

    Safe against a second process doing the same, and against being killed at any point. Raises `StackError`
    with what to do if they cannot be fetched.
    """
    if not defects(folder, jar_set=jar_set):
        return
    lock = folder.with_name(f"{folder.name}.lock")
    with file_lock(lock, lambda: progress("jars: another command is resolving them: waiting")):
        if not defects(folder, jar_set=jar_set):
            return
        staged = folder.with_name(f"{folder.name}.resolving")
        shutil.rmtree(staged, ignore_errors=True)
        progress(f"jars: resolving {jar_set.what.format(folder=folder)}")
        _resolve(staged, folder.with_name("ivy"), java, ivy_settings, progress, jar_set)
        problems = defects(staged, jar_set=jar_set)
        if problems:
            shutil.rmtree(staged, ignore_errors=True)
            raise StackError(
                f"The fetched jars are not the expected ones ({len(problems)} problems; first: {problems[0]}). "
                "Check the mirror or proxy between this machine and the central repository; nothing was installed."
            )
        if folder.exists():
            shutil.rmtree(folder)
        staged.rename(folder)
        progress(f"jars: {len(expected(jar_set))} files, all checksums match")


def pyspark_home() -> Path:
    """Return the folder of the installed PySpark without importing it."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise StackError(
            "PySpark is not installed in this environment: run `make` again, or pip install -e ."
        )
    return Path(spec.origin).parent


def _ivy_jar() -> Path:
    found = sorted((pyspark_home() / "jars").glob("ivy-*.jar"))
    if not found:
        raise StackError(
            f"No Ivy in {pyspark_home() / 'jars'}: reinstall PySpark (pip install --force-reinstall pyspark)."
        )
    return found[-1]


def _resolve(
    staged: Path,
    cache: Path,
    java: Java,
    ivy_settings: Path | None,
    progress: Progress,
    jar_set: JarSet,
) -> None:
    staged.mkdir(parents=True)
    settings = ivy_settings
    if settings is None:
        settings = staged / "ivysettings.xml"
        settings.write_text(_SETTINGS)
    elif not settings.is_file():
        raise StackError(
            f"SHAREQUEUE_IVY_SETTINGS={settings} is not a file: set it to an Ivy settings file, or unset it."
        )
    command = [
        str(java.executable),
        *(trust_options(staged / "trust.jks") if is_of_wheel(java.executable) else ()),
        "-jar",
        str(_ivy_jar()),
        *("-settings", str(settings)),
        *("-cache", str(cache)),
        *("-ivy", str(jar_set.lists / f"{jar_set.name}.xml")),
        *("-confs", *jar_set.configurations),
        *("-types", "jar", "bundle"),
        *("-retrieve", f"{staged}/[conf]/[artifact]-[revision](-[classifier]).[ext]"),
    ]
    total = len(expected(jar_set))
    lines: list[str] = []
    done = 0
    with (
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process,
        _watch(process) as heard,
    ):
        for line in process.stdout or ():
            heard()
            lines.append(line.rstrip())
            fetched = re.search(r"\[SUCCESSFUL \].*!(\S+\.jar)", line)
            if fetched:
                done += 1
                progress(f"jars: {done} of {total} ({fetched.group(1)})")
    if process.returncode:
        shutil.rmtree(staged, ignore_errors=True)
        raise StackError(_explain(lines, process.returncode))
    for leftover in (*staged.glob("*.xml"), *staged.glob("*.jks")):
        leftover.unlink()


@contextmanager
def _watch(process: subprocess.Popen[str]) -> Iterator[_Heard]:
    """End a resolution that prints nothing for three minutes, so that a hanging connection does not block."""
    heard = _Heard(process)
    heard()
    try:
        yield heard
    finally:
        heard.timer.cancel()
        if process.poll() is None:
            process.wait()


class _Heard:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.timer = threading.Timer(_SILENCE_SECONDS, process.kill)

    def __call__(self) -> None:
        self.timer.cancel()
        self.timer = threading.Timer(_SILENCE_SECONDS, self.process.kill)
        self.timer.daemon = True
        self.timer.start()


def _explain(lines: list[str], code: int) -> str:
    reasons = [
        line.strip()
        for line in lines
        if re.search(r"UNRESOLVED|not found|Exception|ERROR|unreachable|timed out", line)
    ]
    shown = "\n".join(f"  | {reason}" for reason in (reasons or lines)[-8:])
    return (
        f"The jars could not be resolved (Ivy ended with {code}). Check the network. Behind a mirror, "
        f"set SHAREQUEUE_IVY_SETTINGS to an Ivy settings file with its address. "
        f"Fetched files are kept for the next attempt.\n{shown}"
    )
