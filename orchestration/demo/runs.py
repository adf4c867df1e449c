"""How is a run launched, watched, and buried when it was killed?

A run is ``dagster job execute`` in a process of its own: recorded in the instance, visible in the UI, and
ended as a whole by a signal. The demo holds a lock on a file, which the run's process inherits: whoever gets
that lock knows that no run of an earlier demo is alive, whatever was killed, and may call those still marked
as started dead.
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

from orchestration.defs.flight_delays.group import NAME, TAGS
from sharequeue.dagster.sensors import AT_WORK
from sharequeue.local import dagster_ui
from sharequeue.local.home import Home
from sharequeue.settings import Settings

HOME_TAG = "sharequeue/demo-home"
LAUNCH_TAG = "sharequeue/demo-launch"
POLL_SECONDS = 0.25

_STAGE = re.compile(r" - (?:\w+ - )?(round \d+: .+|STEP_START - Started execution of step \"\w+\")")


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """What became of a run. ``leased`` is None when it ended before its rounds did."""

    run_id: str
    succeeded: bool
    seconds: float
    leased: int | None
    rounds: int
    reason: str
    log: Path


class Launcher:
    """Launches runs of the job, one at a time, for the stack in ``settings.home``."""

    def __init__(self, settings: Settings, instance: dg.DagsterInstance, lock: int) -> None:
        self._settings = settings
        self._instance = instance
        self._lock = lock

    def bury(self) -> list[str]:
        """Mark runs of earlier demos of this home as failed that are not alive, and return their ids."""
        tags = {HOME_TAG: str(self._settings.home)}
        dead = self._instance.get_runs(dg.RunsFilter(job_name=NAME, tags=tags, statuses=AT_WORK))
        for run in dead:
            self._instance.report_run_failed(run, "The process of this run is gone: it was killed.")
        return [run.run_id for run in dead]

    def launch(self, max_rounds: int, watch: Callable[[str], None]) -> RunOutcome:
        """Launch a run and wait for its end; ``watch`` hears its stage, again and again.

        An interrupt goes to the run first, which then gives back what it holds.
        """
        launch_id = uuid.uuid4().hex[:12]
        folder = Home.at(self._settings.home).logs / "runs"
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{launch_id}.log"
        config = log.with_suffix(".json")
        config.write_text(json.dumps({"ops": {"accepted_flights": {"config": {"max_rounds": max_rounds}}}}))
        began = time.monotonic()
        with log.open("wb") as output:
            process = subprocess.Popen(
                self._command(launch_id, config),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dagster_ui.environment(self._settings),
                cwd=dagster_ui.repository(),
                pass_fds=(self._lock,),
                # Ctrl-C is for the demo, which passes it on once and waits.
                start_new_session=True,
            )
        try:
            self._watch(process, log, watch)
        except BaseException:
            _end(process)
            raise
        return self._outcome(launch_id, process.returncode, time.monotonic() - began, log)

    def checks(self) -> list[dg.AssetCheckEvaluation]:
        """The check results of the latest successful run."""
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

    def _command(self, launch_id: str, config: Path) -> list[str]:
        tags = {
            **TAGS,
            HOME_TAG: str(self._settings.home),
            LAUNCH_TAG: launch_id,
            # The demo repeats a failed run itself; a daemon that did so too would only be in its way.
            "dagster/max_retries": "0",
        }
        what = ("-m", "orchestration.definitions", "-j", NAME, "-c", str(config), "--tags", json.dumps(tags))
        return [sys.executable, "-m", "dagster", "job", "execute", *what]

    def _watch(self, process: "subprocess.Popen[bytes]", log: Path, watch: Callable[[str], None]) -> None:
        stage = "starting"
        with log.open(errors="replace") as lines:
            while process.poll() is None:
                for line in lines:
                    stage = stage_of(line) or stage
                watch(stage)
                time.sleep(POLL_SECONDS)

    def _outcome(self, launch_id: str, returncode: int, seconds: float, log: Path) -> RunOutcome:
        runs = self._instance.get_runs(dg.RunsFilter(tags={LAUNCH_TAG: launch_id}), limit=1)
        if not runs:
            return RunOutcome(
                "", False, seconds, None, 0, f"it ended before it began: {_last_line(log)}", log
            )
        run = runs[0]
        if not run.is_finished:
            self._instance.report_run_failed(run, f"The process of this run ended with {returncode}.")
        succeeded = run.status == dg.DagsterRunStatus.SUCCESS
        figures = self._figures(run.run_id)
        leased = figures.get("leased_records")
        reason = "" if succeeded else self._reason(run.run_id, returncode)
        return RunOutcome(run.run_id, succeeded, seconds, leased, figures.get("rounds", 0), reason, log)

    def _figures(self, run_id: str) -> dict[str, int]:
        for entry in self._instance.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION):
            made = entry.asset_materialization
            if made is not None and made.asset_key.path == ["accepted_flights"]:
                return {
                    name: value.value
                    for name, value in made.metadata.items()
                    if isinstance(value, dg.IntMetadataValue) and value.value is not None
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
                return f"{event.step_key}: {cause.message.strip().splitlines()[0]}"
        return f"exit code {returncode}"


@contextmanager
def open_instance(settings: Settings) -> Iterator[dg.DagsterInstance]:
    """The Dagster instance of this stack, as the runs and the UI have it."""
    folder = dagster_ui.prepare(Home.at(settings.home))
    given = os.environ.get("SHAREQUEUE_DAGSTER_URL")
    os.environ["SHAREQUEUE_DAGSTER_URL"] = settings.dagster_url
    try:
        with dg.DagsterInstance.from_config(str(folder)) as instance:
            yield instance
    finally:
        # Left behind it would pass for an address that somebody has set.
        if given is None:
            del os.environ["SHAREQUEUE_DAGSTER_URL"]


@contextmanager
def sole_demo(home: Home, say: Callable[[str], None]) -> Iterator[int]:
    """Holds the demo's lock of this home, waiting for it if need be; return the descriptor a run inherits."""
    home.create()
    descriptor = os.open(home.job_lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another demo, or a run that an earlier one launched, is still at work: waiting for its end")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def stage_of(line: str) -> str | None:
    """What a line of a run's log says about where the run is; None when it says nothing of that."""
    found = _STAGE.search(line)
    if found is None:
        return None
    stage = found.group(1).strip()
    return stage if stage.startswith("round") else stage.rsplit('"', 2)[1].replace("_", " ")


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a run that nobody waits for any more; it gives back what it holds when it is given the time."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
