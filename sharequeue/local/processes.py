"""Start, find and end the processes of a component, and never touch any other process.

A component is identified by its pid *and* the start time of that pid: after a crash or a reboot, another program may
have the same pid. Its record names the folder, because a copy of the folder has the record, too. Every component has
a mark in its environment, so that it is found even if its starter was killed before it wrote the record, or if the
clock was set. Each component's own module defines when it is ready.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from sharequeue.local.home import Home, read_json, write_json
from sharequeue.local.preflight import StackError

__all__ = [
    "ProcessStart",
    "Running",
    "comes_up",
    "find",
    "forget",
    "log_tail",
    "lost_its_port",
    "record_of",
    "recorded",
    "start",
    "stop",
    "wait_until",
]

MARK = "SHAREQUEUE_COMPONENT"
_ROTATE_AT = 10 * 1024**2
_SAME_START_S = 2.0
"""The system derives start times from the clock, so that they differ a little from one look to the next."""


@dataclass(frozen=True, slots=True)
class Running:
    """A process of ours."""

    name: str
    process: psutil.Process
    log: Path

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether exactly this process is still running. A zombie has ended once all its threads have: until then a
        killed program keeps its ports.
        """
        try:
            ended = self.process.status() == psutil.STATUS_ZOMBIE and self.process.num_threads() <= 1
            return self.process.is_running() and not ended
        except psutil.Error:
            return False


@dataclass(frozen=True, slots=True)
class ProcessStart:
    """How a component is started: the command, its complete environment, and its working directory."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    directory: Path = Path("/")


def record_of(process: psutil.Process) -> dict[str, Any]:
    """Return what identifies a process in a file."""
    return {"pid": process.pid, "started": process.create_time()}


def recorded(record: Any) -> psutil.Process | None:
    """Return the process of a record, or None if it has ended or there is no record."""
    try:
        process = psutil.Process(record["pid"])
        return process if abs(process.create_time() - record["started"]) < _SAME_START_S else None
    except (TypeError, KeyError, psutil.Error):
        return None


def find(home: Home, name: str) -> Running | None:
    """Return the running component `name`, or None; stale records are ignored."""
    record = read_json(home.run / f"{name}.json")
    process = recorded(record) if _is_of(home, record) else None
    if process is not None and (running := Running(name, process, _log(home, name))).alive:
        return running
    orphan = _marked(home, name)
    if orphan is not None:
        _record(home, orphan)
    return orphan


def start(home: Home, how: ProcessStart) -> Running:
    """Start a component in its own session, with its output in its log, and write the record."""
    log = _log(home, how.name)
    if log.exists() and log.stat().st_size > _ROTATE_AT:
        log.replace(log.with_suffix(".log.1"))
    environment = {**how.environment, MARK: _mark(home, how.name)}
    log.touch(mode=0o600)
    log.chmod(0o600)
    with log.open("ab") as output:
        # The position of this start's lines in the log, for an error message.
        output.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} starting {how.name}\n".encode())
        output.flush()
        try:
            process = subprocess.Popen(
                list(how.command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=how.directory,
                start_new_session=True,
            )
        except OSError as error:
            raise StackError(f"{how.name} cannot be started: {how.command[0]}: {error.strerror}.") from error
    process.returncode = 0  # we do not wait for it: it outlives us, and Popen must not warn about that
    running = Running(how.name, psutil.Process(process.pid), log)
    _record(home, running)
    return running


def wait_until(running: Running, ready: Callable[[], bool], seconds: float) -> None:
    """Wait until `ready()`. Raises `StackError` with the end of the log if the component ends or `seconds`
    pass.
    """
    deadline = time.monotonic() + seconds
    while not ready():
        if not running.alive:
            raise StackError(f"{running.name} ended while it was starting.\n{log_tail(running.log)}")
        if time.monotonic() > deadline:
            raise StackError(
                f"{running.name} was not ready after {seconds:.0f} s (it still runs, pid {running.pid}; "
                f"`sharequeue down` ends it).\n{log_tail(running.log)}"
            )
        time.sleep(0.05)


def comes_up(running: Running, ready: Callable[[], bool], seconds: float) -> bool:
    """Wait as `wait_until` for a component that was found; return False if it ends meanwhile, for example because it
    was killed a moment before.
    """
    try:
        wait_until(running, ready, seconds)
    except StackError:
        if running.alive:
            raise
        return False
    return True


def stop(
    home: Home, running: Running, *, polite: signal.Signals = signal.SIGTERM, seconds: float = 30
) -> None:
    """End a component and its child processes: with `polite` first, with SIGKILL after `seconds`. Does nothing if it
    is not ours.
    """
    if running.alive:
        with suppress(psutil.Error):
            family = [running.process, *running.process.children(recursive=True)]
            running.process.send_signal(polite)
            deadline = time.monotonic() + seconds
            while running.alive and time.monotonic() < deadline:
                time.sleep(0.02)
            # psutil compares start times before it kills, so a reused pid is safe.
            for member in family:
                with suppress(psutil.Error):
                    member.kill()
            psutil.wait_procs(family, timeout=5)
    forget(home, running.name)


def forget(home: Home, name: str) -> None:
    """Remove the record of a component that is no longer running."""
    (home.run / f"{name}.json").unlink(missing_ok=True)


def lost_its_port(log: Path) -> bool:
    """Return whether the last start failed because another program had bound its port, according to its log."""
    return any("address already in use" in line.lower() for line in _last_start(log))


def log_tail(log: Path, lines: int = 15) -> str:
    """Return the last lines of the log's last start, and the path of the whole log."""
    shown = "\n".join(f"  | {line}" for line in _last_start(log)[-lines:]) or "  | (it wrote nothing)"
    return f"{shown}\nThe whole log: {log}"


def _last_start(log: Path) -> list[str]:
    try:
        content = log.read_text(errors="replace").splitlines()
    except OSError:
        return []
    begins = max((number for number, line in enumerate(content) if line.startswith("--- ")), default=-1)
    return content[begins + 1 :]


def _log(home: Home, name: str) -> Path:
    return home.logs / f"{name}.log"


def _mark(home: Home, name: str) -> str:
    return f"{home.path}#{name}"


def _record(home: Home, running: Running) -> None:
    record = {**record_of(running.process), "home": str(home.path)}
    write_json(home.run / f"{running.name}.json", record)


def _is_of(home: Home, record: Any) -> bool:
    """Return whether a record was written in this folder. A copy of a folder has the records of the original, whose
    processes it must not touch; a folder that was moved keeps its own.
    """
    try:
        written = Path(record["home"])
        return not written.exists() or written.samefile(home.path)
    except (TypeError, KeyError):
        return True


def _marked(home: Home, name: str) -> Running | None:
    """Find a component with our mark but without a record: its starter was killed in between."""
    wanted = _mark(home, name)
    for process in psutil.process_iter():
        try:
            running = Running(name, process, _log(home, name))
            # Its children have the mark too; the component itself leads the session.
            if (
                process.environ().get(MARK) == wanted
                and os.getsid(process.pid) == process.pid
                and running.alive
            ):
                return running
        except (psutil.Error, OSError):
            continue
    return None
