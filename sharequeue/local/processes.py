"""Start, find and end the processes of a component, and never touch any other process.

A component is identified by its pid *and* the start time of that pid: after a crash or a reboot, another program may
have the same pid. Every component also has a mark in its environment, so that it is found
even if its starter was killed before it wrote the record. Each component's own module defines when it is
ready.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from sharequeue.local.home import Home, read_json, write_json
from sharequeue.local.preflight import StackError

__all__ = [
    "Running",
    "Start",
    "comes_up",
    "find",
    "forget",
    "identity",
    "log_tail",
    "lost_its_port",
    "start",
    "stop",
    "wait_until",
]

MARK = "SHAREQUEUE_COMPONENT"
_ROTATE_AT = 10 * 1024**2
_children: set[int] = set()  # pids started by this process: it collects only their exit status


@dataclass(frozen=True, slots=True)
class Running:
    """A live process of ours."""

    name: str
    pid: int
    identity: str
    """Boot id and start time of the pid; see `identity`."""
    log: Path

    @property
    def alive(self) -> bool:
        """Whether exactly this process is still running."""
        return identity(self.pid) == self.identity


@dataclass(frozen=True, slots=True)
class Start:
    """How a component is started: the command, its complete environment, and its user."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    user: tuple[int, int] | None = None
    """The uid and gid to switch to, or None to keep the current ones."""
    directory: Path = Path("/")


def identity(pid: int) -> str | None:
    """Return a permanent identity of the process with this pid, or None if it has ended. A zombie has ended once all
    its threads have: until then a killed program keeps its ports.

    Linux: boot id and start time in clock ticks since boot, which changes of the wall clock do not affect.
    Elsewhere: psutil's start time.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except ProcessLookupError:
        return None
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
    else:
        return None if fields[0] in "ZX" and not _has_threads(pid) else f"{boot}:{fields[19]}"
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.2f}"
    except psutil.Error:
        return None


def _has_threads(pid: int) -> bool:
    """Return whether threads of a process have outlived its main thread."""
    try:
        return len([*Path(f"/proc/{pid}/task").iterdir()]) > 1
    except OSError:
        return False


def find(home: Home, name: str) -> Running | None:
    """Return the running component `name`, or None; stale records are ignored."""
    record = read_json(home.run / f"{name}.json")
    if isinstance(record, dict) and isinstance(record.get("pid"), int):
        running = Running(name, record["pid"], str(record.get("identity")), _log(home, name))
        _reap(running.pid)
        if running.alive:
            return running
    orphan = _marked(home, name)
    if orphan is not None:
        _record(home, orphan)
    return orphan


def start(home: Home, how: Start) -> Running:
    """Start a component in its own session, with its output in its log, and write the record."""
    log = _log(home, how.name)
    if log.exists() and log.stat().st_size > _ROTATE_AT:
        log.replace(log.with_suffix(".log.1"))
    environment = {**how.environment, MARK: _mark(home, how.name)}
    user, group = how.user or (None, None)
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
                user=user,
                group=group,
                extra_groups=None if how.user is None else [],
            )
        except OSError as error:
            raise StackError(f"{how.name} cannot be started: {how.command[0]}: {error.strerror}.") from error
    _children.add(process.pid)
    # A child that has ended is a zombie until it is reaped; `alive` is then False.
    running = Running(how.name, process.pid, identity(process.pid) or "ended", log)
    process.returncode = 0  # we do not wait for it: it outlives us, and Popen must not warn about that
    _record(home, running)
    return running


def wait_until(running: Running, ready: Callable[[], bool], seconds: float) -> None:
    """Wait until `ready()`. Raises `StackError` with the end of the log if the component ends or `seconds`
    pass.
    """
    deadline = time.monotonic() + seconds
    while not ready():
        _reap(running.pid)
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
    home: Home, running: Running, *, polite: signal.Signals = signal.SIGTERM, seconds: float = 20
) -> None:
    """End a component and its child processes: with `polite` first, with SIGKILL after `seconds`. Does nothing if it
    is not ours.
    """
    try:
        process = psutil.Process(running.pid)
        family = [process, *process.children(recursive=True)]
    except psutil.Error:
        family = []
    if running.alive and family:
        _signal(running.pid, polite)
        _wait_gone(running, seconds)
        # psutil compares start times before it kills, so a reused pid is safe.
        for member in family:
            try:
                member.kill()
            except psutil.Error:
                continue
        psutil.wait_procs(family, timeout=5)
    _reap(running.pid)
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
    write_json(home.run / f"{running.name}.json", {"pid": running.pid, "identity": running.identity})


def _marked(home: Home, name: str) -> Running | None:
    """Find a component with our mark but without a record: its starter was killed in between."""
    wanted = _mark(home, name)
    for process in psutil.process_iter():
        try:
            # Its children have the mark too; the component itself leads the session.
            if process.environ().get(MARK) == wanted and os.getsid(process.pid) == process.pid:
                known = identity(process.pid)
                if known is not None:
                    return Running(name, process.pid, known, _log(home, name))
        except (psutil.Error, OSError):
            continue
    return None


def _signal(pid: int, which: signal.Signals) -> None:
    try:
        os.kill(pid, which)
    except ProcessLookupError:
        return


def _wait_gone(running: Running, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        _reap(running.pid)
        if not running.alive:
            return
        time.sleep(0.02)


def _reap(pid: int) -> None:
    """Collect the exit status of a process that we started, so that it does not stay a zombie."""
    if pid not in _children:
        return
    try:
        ended, _ = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        ended = pid
    if ended:
        _children.discard(pid)
