"""Processes stopped, killed and started again around a run: `up`, `down`, and the run itself."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.local.stack import status, up
from sharequeue.state import State
from tests.deep.disturbed_jobs import PIPELINE, RECORDS, all_once, drained, fill, rows_by_manifest
from tests.deep.servers import of_code
from tests.fixtures.stack import REPOSITORY, allow_short_locks, jars_folder, say
from tests.waiting import pass_time, wait_until

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

ENVIRONMENT = {"SHAREQUEUE_JARS": str(jars_folder())}
SERVERS = ("postgres", "kafka", "service")


@dataclass
class Here:
    """A home, and who is started in it."""

    home: Path
    folder: Path
    begun: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def settings(self) -> Settings:
        return Settings.load(self.home)

    def start(self, *arguments: str, **given: str) -> subprocess.Popen[bytes]:
        """Start a command of ours."""
        settings = {"SHAREQUEUE_HOME": str(self.home), **ENVIRONMENT, **given}
        environment = of_code(REPOSITORY, {**settings, "PYTHONPATH": f"{REPOSITORY}:{self.folder}"})
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "sharequeue.cli", *arguments],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.begun.append(process)
        return process

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def run(self, name: str, *arguments: str, **given: str) -> subprocess.Popen[bytes]:
        """Start a run of the pipeline of this name, over records of its own."""
        (self.folder / f"{name}.py").write_text(PIPELINE.format(name=name))
        return self.start("run", f"{name}:work", "--max-records", "60", *arguments, **given)

    def done(self, name: str) -> int:
        with Database.open(self.settings) as database:
            return sum(each.spso for each in State(database).figures.describe(name))

    def ends_right(self, name: str) -> None:
        """The next run does what is left, and everything is in the output once."""
        drained(lambda: self.run(name), self.log)
        assert self.done(name) == RECORDS
        with Database.open(self.settings) as database:
            assert rows_by_manifest(database, name) == all_once()
            assert State(database).figures.verify(name) == []
            assert State(database).figures.leases(name) == []


@pytest.fixture
def here(module_home: Path, tmp_path: Path) -> Iterator[Here]:
    """Give a home whose stack runs, whatever the test before has left."""
    up(module_home, say, environment=ENVIRONMENT)
    found = Here(module_home, tmp_path)
    with Database.open(found.settings) as database:
        allow_short_locks(database)
    yield found
    for process in found.begun:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
            process.kill()


def halt(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signal a run with its JVM and its workers."""
    for each in (psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            each.send_signal(number)


@pytest.mark.parametrize("follow", [False, True], ids=["once", "followed"])
def test_a_run_that_stands_still(here: Here, follow: bool, told: list[str]) -> None:
    """It is stopped in the midst of a round, beyond its locks and its session; another run does the work. When it
    goes on it acknowledges nothing of that: it ends with an error or follows on, and every record counts once."""
    name = "still_f" if follow else "still"
    fill(here.settings, name)
    stopped = here.run(name, *(["--follow"] if follow else []))
    wait_until(lambda: here.done(name) >= 60, 240, here.log.read_text)
    halt(stopped, signal.SIGSTOP)
    with Database.open(here.settings) as database:
        pass_time(database, 120)
        # The service has seen nobody for so long, and gives everybody the time that was left.
        wait_until(lambda: State(database).figures.leases(name) == [], 90, "its locks do not lapse")
    drained(lambda: here.run(name), here.log)
    assert here.done(name) == RECORDS
    halt(stopped, signal.SIGCONT)
    if follow:
        time.sleep(5)
        stopped.send_signal(signal.SIGTERM)
    code = stopped.wait(120)
    assert code in ((1, 143) if follow else (0, 1)), here.log.read_text()[-4000:]
    last = here.log.read_text().splitlines()[-1]
    told.append(f"a run stopped beyond its locks (followed: {follow}) ends with {code}: {last[:160]}")
    here.ends_right(name)


@pytest.mark.parametrize("follow", [False, True], ids=["once", "followed"])
def test_down_under_a_run(here: Here, follow: bool, told: list[str]) -> None:
    """The stack is stopped while a run works. The run ends and says so, or waits as it follows; after `up` all ends
    right."""
    name = "down_f" if follow else "down"
    fill(here.settings, name)
    running = here.run(name, *(["--follow"] if follow else []))
    wait_until(lambda: here.done(name) >= 60, 240, here.log.read_text)
    assert here.start("down").wait(120) == 0, here.log.read_text()[-4000:]
    began = time.monotonic()
    if not follow:
        code = running.wait(180)
        assert code == 1, here.log.read_text()[-4000:]
        last = here.log.read_text().splitlines()[-1]
        told.append(f"`down` under a run: it ends {time.monotonic() - began:.0f} s later: {last[:160]}")
    assert here.start("up").wait(120) == 0, here.log.read_text()[-4000:]
    if follow:
        wait_until(lambda: here.done(name) == RECORDS, 240, here.log.read_text)
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 143, here.log.read_text()[-4000:]
    here.ends_right(name)


def test_up_and_down_killed_at_any_moment(here: Here, told: list[str]) -> None:
    """`up`s and `down`s at once, each killed or stopped after a while that is drawn: the next `up` has everything
    running, once, with its data."""
    seed = random.SystemRandom().randrange(10**6)
    draw, did = random.Random(seed), Counter[str]()  # noqa: S311 - a draw of a test
    name = "ups"
    fill(here.settings, name)
    for _ in range(8):
        commands = [draw.choice(("up", "up", "down")) for _ in range(draw.randint(1, 3))]
        begun = [here.start(command) for command in commands]
        did.update(commands)
        time.sleep(draw.uniform(0.2, 5.0))
        for process in begun:
            how = draw.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP))
            with suppress(ProcessLookupError):
                process.send_signal(how)
            did[how.name] += process.poll() is None
        time.sleep(0.5)
        if draw.random() < 0.5:  # somebody waits while one that is stopped has the lock
            waits = here.start("up")
            time.sleep(1)
            did["waited"] += waits.poll() is None
        for process in begun:
            with suppress(ProcessLookupError):
                process.kill()
    ended = here.start("up").wait(180)
    assert ended == 0, (seed, here.log.read_text()[-4000:])
    states = {each.name: each.state for each in status(here.home)}
    assert all(states[name] == "running" for name in SERVERS), (seed, states)
    lines = [" ".join(each.info["cmdline"] or []) for each in psutil.process_iter(["cmdline"])]
    assert sum("kafka.Kafka" in line and str(here.home) in line for line in lines) <= 1, seed
    assert sum("/bin/postgres -D" in line and str(here.home) in line for line in lines) == 1, seed
    here.ends_right(name)
    told.append(
        f"`up` and `down` at once, killed or stopped, seed {seed}: {dict(did)}; the next `up` was right"
    )
