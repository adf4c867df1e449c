"""Our processes are told from everybody else's, and ended without a trace."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sharequeue.local import ports, processes
from sharequeue.local.home import Home, write_json
from sharequeue.local.preflight import StackError
from sharequeue.local.processes import ProcessStart
from tests.waiting import PATIENCE_S, wait_until

SLEEP = (sys.executable, "-c", "import time; print('ready', flush=True); time.sleep(600)")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home.at(tmp_path / "home")
    home.create()
    yield home
    for record in home.run.glob("*.json"):
        running = processes.find(home, record.stem)
        if running is not None:
            processes.stop(home, running, polite=signal.SIGKILL)


def start(home: Home, *command: str, name: str = "sleeper") -> processes.Running:
    return processes.start(home, ProcessStart(name, command, dict(os.environ)))


def test_a_started_component_is_found_and_stopped(home: Home) -> None:
    """It runs in a session of its own, so that Ctrl-C at the starter does not reach it."""
    running = start(home, *SLEEP)
    processes.wait_until(running, lambda: "ready" in running.log.read_text(), PATIENCE_S)
    assert processes.find(home, "sleeper") == running
    assert os.getsid(running.pid) == running.pid
    processes.stop(home, running)
    assert not psutil.pid_exists(running.pid)
    assert processes.find(home, "sleeper") is None


def test_a_stale_record_never_names_somebody_elses_process(home: Home) -> None:
    """After a reboot the recorded pid may be anybody's; it is not ours, and is left alone."""
    with subprocess.Popen(SLEEP, stdout=subprocess.DEVNULL) as stranger:
        for started in (0.0, None):
            write_json(home.run / "sleeper.json", {"pid": stranger.pid, "started": started})
            assert processes.find(home, "sleeper") is None
            assert not ports.stop(home, "sleeper")
        assert stranger.poll() is None
        stranger.kill()


def test_a_copy_of_the_folder_has_no_processes(home: Home, tmp_path: Path) -> None:
    """`down` in a copy does not stop the original's servers; a folder that was moved keeps its own."""
    running = start(home, *SLEEP)
    copy = Home.at(shutil.copytree(home.path, tmp_path / "copy"))
    assert processes.find(copy, "sleeper") is None
    assert not ports.stop(copy, "sleeper")
    assert running.alive
    (tmp_path / "link").symlink_to(home.path)
    found = processes.find(Home.at(tmp_path / "link"), "sleeper")
    assert found is not None
    assert found.process == running.process
    (tmp_path / "link").unlink()
    moved = Home.at(home.path.rename(tmp_path / "moved"))
    found = processes.find(moved, "sleeper")
    assert found is not None
    processes.stop(moved, found)
    assert not running.alive


def test_a_process_whose_starter_was_killed_before_recording_it_is_found(home: Home) -> None:
    """The mark in its environment tells whose it is."""
    running = start(home, *SLEEP)
    (home.run / "sleeper.json").unlink()
    assert processes.find(home, "sleeper") == running
    assert (home.run / "sleeper.json").exists()


def test_a_component_that_ignores_sigterm_is_killed_with_its_children(home: Home) -> None:
    """Nothing of ours is left, whatever it thinks of signals."""
    script = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
        "print('ready', child.pid, flush=True); time.sleep(600)"
    )
    running = start(home, sys.executable, "-c", script)
    processes.wait_until(running, lambda: "ready" in running.log.read_text(), PATIENCE_S)
    child = int(running.log.read_text().split()[-1])
    processes.stop(home, running, seconds=0.2)
    assert not running.alive
    assert not psutil.pid_exists(child)


def test_a_component_that_dies_at_start_shows_its_last_lines_and_where_the_rest_is(home: Home) -> None:
    """Only the lines of this start, not of an earlier one."""
    (home.logs / "sleeper.log").write_text("--- earlier starting sleeper\nold complaint\n")
    running = start(home, sys.executable, "-c", "print('cannot go on'); raise SystemExit(3)")
    with pytest.raises(StackError) as raised:
        processes.wait_until(running, lambda: False, PATIENCE_S)
    assert "sleeper ended while it was starting" in str(raised.value)
    assert "| cannot go on" in str(raised.value)
    assert "old complaint" not in str(raised.value)
    assert str(home.logs / "sleeper.log") in str(raised.value)


def test_a_program_that_is_not_there_is_named(home: Home) -> None:
    """No traceback for a missing executable."""
    with pytest.raises(StackError, match="sleeper cannot be started: /nowhere/at/all: No such file"):
        start(home, "/nowhere/at/all")


def of(pid: int) -> processes.Running:
    return processes.Running("sleeper", psutil.Process(pid), Path("/nowhere"))


def test_a_dead_process_is_not_alive() -> None:
    """Neither an ended process nor its zombie."""
    ended = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    running = of(ended.pid)
    assert running.alive
    assert ended.stdin is not None
    ended.stdin.close()
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    assert not running.alive
    ended.wait()
    assert not running.alive
    assert of(os.getpid()).alive


def test_a_killed_process_is_there_until_its_last_thread_has_ended() -> None:
    """Its first thread may have ended before the others: until then its ports are in use."""
    code = (
        "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(600,)).start();"
        "ctypes.CDLL(None).pthread_exit(None)"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as dying:
        running = of(dying.pid)
        wait_until(lambda: running.process.status() == psutil.STATUS_ZOMBIE)
        assert running.alive
        dying.kill()
        dying.wait()
        assert not running.alive


def test_a_component_that_was_found_may_have_been_killed(home: Home) -> None:
    """Whoever waits for it starts it anew; one that lives and does not answer is an error."""
    running = start(home, *SLEEP)
    with pytest.raises(StackError, match="was not ready after 0 s"):
        processes.comes_up(running, lambda: False, 0.01)
    os.kill(running.pid, signal.SIGKILL)
    assert not processes.comes_up(running, lambda: False, 120)


@pytest.mark.parametrize(
    "complaint",
    [
        'could not bind IPv4 address "127.0.0.1": Address already in use',
        "java.net.BindException: Address already in use",
        "[Errno 98] error while attempting to bind on address ('127.0.0.1', 1): address already in use",
    ],
)
def test_a_port_lost_between_the_look_and_the_bind_is_known_by_the_servers_words(
    home: Home, complaint: str
) -> None:
    """Postgres, Kafka and uvicorn each say it; an earlier start's complaint does not count."""
    log = home.logs / "sleeper.log"
    log.write_text(f"--- first start\n{complaint}\n")
    assert processes.lost_its_port(log)
    log.write_text(f"--- first start\n{complaint}\n--- second start\nsomething else\n")
    assert not processes.lost_its_port(log)
