"""Launch runs, watch them, and end the records of killed ones.

A run is executed in a process of its own (`run`), in the instance that the UI shows, and a signal ends all of it.
A tag leads from the launch to the run.
The demo holds a lock on a file, which the run's process inherits. Whoever gets that lock knows that no run of an
earlier demo is alive, and may mark those still recorded as started as failed.
"""

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import dagster as dg

from orchestration.demo.queue import NAME, QUEUE
from sharequeue.dagster.lineage import ACCEPTED
from sharequeue.dagster.sensors import AT_WORK
from sharequeue.domain.errors import first_line
from sharequeue.domain.settings import Settings
from sharequeue.local import dagster_ui
from sharequeue.local.home import Home

HOME_TAG = "sharequeue/demo-home"
LAUNCH_TAG = "sharequeue/demo-launch"
POLL_SECONDS = 0.25
_STAGE = re.compile(r" - (?:\w+ - )?(round \d+: .+|STEP_START - Started execution of step \"\w+\")")


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The result of a run. ``leased`` is None if it ended before its rounds did."""

    run_id: str
    succeeded: bool
    seconds: float
    leased: int | None
    rounds: int
    rounds_seconds: float
    """The seconds of its rounds, without the start of the process, of Spark and of the run, and what follows them."""
    reason: str
    log: Path


class Launcher:
    """Launches runs of the job, one at a time, for the stack in ``settings.home``."""

    def __init__(self, settings: Settings, instance: dg.DagsterInstance, lock: int) -> None:
        self._settings = settings
        self._instance = instance
        self._lock = lock

    def bury(self) -> list[str]:
        """Mark runs of earlier demos of this home that are no longer alive as failed, and return their ids."""
        tags = {HOME_TAG: str(self._settings.home)}
        dead = self._instance.get_runs(dg.RunsFilter(job_name=NAME, tags=tags, statuses=AT_WORK))
        for run in dead:
            self._instance.report_run_failed(run, "The process of this run is gone: it was killed.")
        return [run.run_id for run in dead]

    def launch(self, max_seconds: float | None, watch: Callable[[str], None]) -> RunOutcome:
        """Launch a run and wait for its end; ``watch`` is called repeatedly with its stage.

        An interrupt goes to the run first, which then releases its records.
        """
        bounds = {} if max_seconds is None else {"max_seconds": max_seconds}
        launch = {LAUNCH_TAG: str(uuid.uuid4())}
        tags = {
            **QUEUE.run_tags,
            HOME_TAG: str(self._settings.home),
            # The demo repeats a failed run itself; a daemon must not repeat it too.
            "dagster/max_retries": "0",
            **launch,
        }
        folder = Home.at(self._settings.home).logs / "runs"
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{launch[LAUNCH_TAG][:8]}.log"
        began = time.monotonic()
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "orchestration.demo.run", json.dumps(bounds), json.dumps(tags)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dagster_ui.environment(self._settings),
                cwd=dagster_ui.project(),
                pass_fds=(self._lock,),
                # Ctrl-C goes to the demo, which passes it on once and waits.
                start_new_session=True,
            )
        try:
            self._watch(process, log, watch)
        except BaseException:
            _end(process)
            raise
        return self._outcome(launch, process.returncode, time.monotonic() - began, log)

    def checks(self) -> list[dg.AssetCheckEvaluation]:
        """Return the check results of the latest successful run."""
        runs = self._instance.get_runs(
            dg.RunsFilter(job_name=NAME, statuses=[dg.DagsterRunStatus.SUCCESS]), limit=1
        )
        entries = self._instance.all_logs(runs[0].run_id) if runs else []
        events = [entry.dagster_event for entry in entries if entry.dagster_event is not None]
        return [
            event.asset_check_evaluation_data
            for event in events
            if event.event_type == dg.DagsterEventType.ASSET_CHECK_EVALUATION
        ]

    def _watch(self, process: "subprocess.Popen[bytes]", log: Path, watch: Callable[[str], None]) -> None:
        stage = "starting"
        with log.open(errors="replace") as lines:
            while process.poll() is None:
                for line in lines:
                    stage = stage_of(line) or stage
                watch(stage)
                time.sleep(POLL_SECONDS)

    def _outcome(self, launch: dict[str, str], returncode: int, seconds: float, log: Path) -> RunOutcome:
        run = next(iter(self._instance.get_runs(dg.RunsFilter(tags=launch), limit=1)), None)
        if run is None or run.status == dg.DagsterRunStatus.NOT_STARTED:
            reason = f"it ended before it started: {_last_line(log)}"
            if run is not None:
                self._instance.report_run_failed(run, reason)
            return RunOutcome(run.run_id if run else "", False, seconds, None, 0, 0.0, reason, log)
        if not run.is_finished:
            self._instance.report_run_failed(run, f"The process of this run ended with {returncode}.")
        succeeded = run.status == dg.DagsterRunStatus.SUCCESS
        figures = self._figures(run.run_id)
        leased = figures.get("leased_records")
        in_rounds = figures.get("run_seconds", 0.0) - figures.get("start_seconds", 0.0)
        reason = "" if succeeded else self._reason(run.run_id, returncode)
        return RunOutcome(
            *(run.run_id, succeeded, seconds, None if leased is None else int(leased)),
            *(int(figures.get("rounds", 0)), in_rounds, reason, log),
        )

    def _figures(self, run_id: str) -> dict[str, float]:
        for entry in self._instance.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION):
            made = entry.asset_materialization
            if made is not None and made.asset_key.path[-1] == ACCEPTED:
                return {
                    name: value.value
                    for name, value in made.metadata.items()
                    if isinstance(value, dg.IntMetadataValue | dg.FloatMetadataValue)
                    and value.value is not None
                }
        return {}

    def _reason(self, run_id: str, returncode: int) -> str:
        if returncode < 0:
            return f"it was killed by {signal.Signals(-returncode).name}"
        for entry in self._instance.all_logs(run_id, of_type=dg.DagsterEventType.STEP_FAILURE):
            event = entry.dagster_event
            if event is not None and event.step_failure_data.error is not None:
                error = event.step_failure_data.error
                cause = error.cause or error
                return f"{event.step_key}: {first_line(cause.message)}"
        return f"exit code {returncode}"


@contextmanager
def open_instance(settings: Settings) -> Iterator[dg.DagsterInstance]:
    """Open the Dagster instance of this stack, the same as in the runs and the UI."""
    folder = dagster_ui.prepare(Home.at(settings.home))
    given = os.environ.get("SHAREQUEUE_DAGSTER_URL")
    os.environ["SHAREQUEUE_DAGSTER_URL"] = settings.dagster_url
    try:
        with dg.DagsterInstance.from_config(str(folder)) as instance:
            yield instance
    finally:
        # Otherwise it would be read as an address that the user has set.
        if given is None:
            del os.environ["SHAREQUEUE_DAGSTER_URL"]


@contextmanager
def sole_demo(home: Home, say: Callable[[str], None]) -> Iterator[int]:
    """Hold the demo's lock of this home, after waiting for it if necessary; yield the descriptor for a run."""
    home.create()
    descriptor = os.open(home.job_lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another demo, or a run that an earlier one launched, is still running: waiting for its end")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def stage_of(line: str) -> str | None:
    """Return the stage of the run in a line of its log; None if it has none."""
    found = _STAGE.search(line)
    if found is None:
        return None
    stage = found.group(1).strip()
    return stage if stage.startswith("round") else stage.rsplit('"', 2)[1].replace("_", " ")


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a run that is no longer needed; it releases its records if it has the time."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"
