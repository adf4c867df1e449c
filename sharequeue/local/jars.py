"""Fetch the jars of the broker and of Spark, and check them.

`jar_lists/` has a list for each set: the broker's jars, and for each series of Spark (4.0, 4.1 …) its Kafka connector
and the sets that only some users need (`optional_jars.py`). A line has a jar's checksum and its coordinates. A set is
fetched once, by the Ivy of PySpark, into `<jars>/<set>`. Every file is checked at each start, so that an incomplete
or altered set is noticed and fetched again, and a complete set needs no network. PySpark is located, never imported.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sharequeue.domain.java import is_of_wheel
from sharequeue.domain.settings import jar_sets
from sharequeue.domain.settings.jar_sets import CONNECTOR, JarSetMissing
from sharequeue.local.home import Progress, file_lock
from sharequeue.local.preflight import Java, StackError
from sharequeue.local.trust_store import trust_options

__all__ = ["JarSet", "defects", "ensure", "ensure_stack", "expected", "pyspark_home", "stack_sets"]

_LISTS = Path(__file__).parent / "jar_lists"
_SILENCE_SECONDS = 180
_SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""
# Each module by name: nothing is looked up but the jars themselves.
_MODULE = '<dependency org="{}" name="{}" rev="{}" conf="jars->default" transitive="false"/>'
_IVY = """<ivy-module version="2.0">
  <info organisation="sharequeue" module="jars"/>
  <configurations><conf name="jars"/></configurations>
  <dependencies>{}</dependencies>
</ivy-module>
"""


@dataclass(frozen=True, slots=True)
class JarSet:
    """Jars that are fetched together, as listed in `<name>.txt`, into the folder `name`."""

    name: str
    what: str
    """What they are, for the progress message."""
    megabytes: int
    lists: Path = _LISTS
    """The folder of the list."""

    @property
    def modules(self) -> list[tuple[str, ...]]:
        """The checksum, organisation, name and version of each jar."""
        lines = (self.lists / f"{self.name}.txt").read_text().splitlines()
        return [tuple(re.split("[ :]", line)) for line in lines if not line.startswith("#")]


BROKER = JarSet("broker", "Kafka", 43)


def stack_sets() -> tuple[JarSet, JarSet]:
    """Return the sets of the stack: the broker's, and the Kafka connector of the installed Spark. Raises
    `StackError` if there is none for it.
    """
    try:
        name = jar_sets.set_name(CONNECTOR)
    except JarSetMissing as error:
        raise StackError(str(error)) from None
    return BROKER, JarSet(name, f"Spark's Kafka connector ({name.rpartition('-')[2]})", 14)


def expected(jar_set: JarSet) -> dict[str, str]:
    """Return the files of a complete set with their SHA-256."""
    return {f"{name}-{version}.jar": digest for digest, _, name, version in jar_set.modules}


def defects(jars: Path, jar_set: JarSet) -> list[str]:
    """Return what is missing or wrong in the set's folder in `jars`; empty if the set is complete."""
    return _defects(jars / jar_set.name, jar_set.name, expected(jar_set))


def _defects(folder: Path, title: str, wanted: Mapping[str, str]) -> list[str]:
    problems = []
    for name, digest in wanted.items():
        try:
            with (folder / name).open("rb") as handle:
                if hashlib.file_digest(handle, "sha256").hexdigest() != digest:
                    problems.append(f"{title}/{name} has the wrong checksum")
        except OSError:
            problems.append(f"{title}/{name} is missing")
    # An extra jar on a class path can shadow the right one.
    extra = {path.name for path in folder.glob("*.jar")} - wanted.keys()
    problems.extend(f"{title}/{name} is not part of the set" for name in sorted(extra))
    return problems


def ensure_stack(jars: Path, java: Java, ivy_settings: Path | None, progress: Progress) -> None:
    """Download the sets of the stack into `jars` unless they are there. Raises `StackError` with what to do."""
    for jar_set in stack_sets():
        ensure(jars, java, ivy_settings, progress, jar_set)


def ensure(jars: Path, java: Java, ivy_settings: Path | None, progress: Progress, jar_set: JarSet) -> None:
    """Download a set into its folder in `jars` unless all of it is there.

    Safe against a second process doing the same, and against being killed at any point. Raises `StackError`
    with what to do if the jars cannot be fetched.
    """
    if not defects(jars, jar_set):
        return
    lock = jars.with_name(f"{jars.name}.lock")
    with file_lock(lock, lambda: progress("jars: another command is resolving them: waiting")):
        if not defects(jars, jar_set):
            return
        folder = jars / jar_set.name
        staged = jars.with_name(f"{jars.name}.resolving")
        shutil.rmtree(staged, ignore_errors=True)
        progress(f"jars: resolving {jar_set.what}, once, into {folder} ({jar_set.megabytes} MB)")
        _resolve(staged, jars.with_name("ivy"), java, ivy_settings, progress, jar_set)
        problems = _defects(staged, jar_set.name, expected(jar_set))
        if problems:
            shutil.rmtree(staged, ignore_errors=True)
            raise StackError(
                f"The fetched jars are not the expected ones ({len(problems)} problems; first: {problems[0]}). "
                "Check the mirror or proxy between this machine and the central repository; nothing was installed."
            )
        if folder.exists():
            shutil.rmtree(folder)
        jars.mkdir(parents=True, exist_ok=True)
        staged.rename(folder)
        progress(f"jars: {len(expected(jar_set))} files, all checksums match")


def pyspark_home() -> Path:
    """Return the folder of the installed PySpark without importing it."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise StackError("PySpark is not installed in this environment: pip install 'sharequeue[dagster]'.")
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
    ivy = staged / "ivy.xml"
    ivy.write_text(_IVY.format("".join(_MODULE.format(*module) for _, *module in jar_set.modules)))
    command = [
        str(java.executable),
        *(trust_options(staged / "trust.jks") if is_of_wheel(java.executable) else ()),
        "-jar",
        str(_ivy_jar()),
        *("-settings", str(settings)),
        *("-cache", str(cache)),
        *("-ivy", str(ivy)),
        *("-confs", "jars"),
        *("-types", "jar", "bundle"),
        *("-retrieve", f"{staged}/[artifact]-[revision](-[classifier]).[ext]"),
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
def _watch(process: subprocess.Popen[str]) -> Iterator[_DownloadLog]:
    """End a resolution that prints nothing for three minutes, so that a hanging connection does not block."""
    heard = _DownloadLog(process)
    heard()
    try:
        yield heard
    finally:
        heard.timer.cancel()
        if process.poll() is None:
            process.wait()


class _DownloadLog:
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
