"""How is a run launched, watched, and buried when it was killed?

A run is made as the UI makes one, with the code location it is from, so that it is seen there and can be executed
again; then it is executed in a process of its own, as Dagster's launcher does, and is ended as a whole by a signal.
The demo holds a lock on a file, which the run's process inherits: whoever gets that lock knows that no run of an
earlier demo is alive, whatever was killed, and may call those still marked as started dead.
"""

import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import dagster as dg

# A run that the UI can execute again names where its code is, and Dagster has no public face for that (1.13).
from dagster._core.definitions.reconstruct import ReconstructableRepository
from dagster._core.definitions.repository_definition import SINGLETON_REPOSITORY_NAME
from dagster._core.origin import JobPythonOrigin
from dagster._core.remote_origin import (
    ManagedGrpcPythonEnvCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._grpc.types import ExecuteRunArgs
from dagster_shared.serdes import serialize_value

from orchestration.definitions import defs
from orchestration.demo.queue import NAME, QUEUE
from sharequeue.dagster.lineage import ACCEPTED
from sharequeue.dagster.sensors import AT_WORK
from sharequeue.local import dagster_ui
from sharequeue.local.home import Home
from sharequeue.settings import Settings

HOME_TAG = "sharequeue/demo-home"
POLL_SECONDS = 0.25
_LOCATION = {"module_name": "orchestration.definitions", "location_name": "sharequeue"}
"""As `workspace.yaml` has it."""

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

    def launch(self, max_seconds: float | None, watch: Callable[[str], None]) -> RunOutcome:
        """Launch a run and wait for its end; ``watch`` hears its stage, again and again.

        An interrupt goes to the run first, which then gives back what it holds.
        """
        run = self._create(max_seconds)
        folder = Home.at(self._settings.home).logs / "runs"
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{run.run_id[:8]}.log"
        arguments = ExecuteRunArgs(
            job_origin=_origin(),
            run_id=run.run_id,
            instance_ref=self._instance.get_ref(),
            set_exit_code_on_failure=True,
        )
        began = time.monotonic()
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "dagster", "api", "execute_run"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={
                    **dagster_ui.environment(self._settings),
                    "DAGSTER_EXECUTE_RUN_ARGS": serialize_value(arguments),
                },
                cwd=dagster_ui.project(),
                pass_fds=(self._lock,),
                # Ctrl-C is for the demo, which passes it on once and waits.
                start_new_session=True,
            )
        try:
            self._watch(process, log, watch)
        except BaseException:
            _end(process)
            raise
        return self._outcome(run.run_id, process.returncode, time.monotonic() - began, log)

    def _create(self, max_seconds: float | None) -> dg.DagsterRun:
        """The run as a record of the instance, not begun yet."""
        bounds = {} if max_seconds is None else {"max_seconds": max_seconds}
        return self._instance.create_run_for_job(
            defs().get_repository_def().get_job(NAME),
            run_config={"ops": {f"{NAME}_accepted": {"config": bounds}}},
            tags={
                **QUEUE.run_tags,
                HOME_TAG: str(self._settings.home),
                # The demo repeats a failed run itself; a daemon that did so too would only be in its way.
                "dagster/max_retries": "0",
            },
            remote_job_origin=_remote_origin(),
            job_code_origin=_origin(),
        )

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

    def _watch(self, process: "subprocess.Popen[bytes]", log: Path, watch: Callable[[str], None]) -> None:
        stage = "starting"
        with log.open(errors="replace") as lines:
            while process.poll() is None:
                for line in lines:
                    stage = stage_of(line) or stage
                watch(stage)
                time.sleep(POLL_SECONDS)

    def _outcome(self, run_id: str, returncode: int, seconds: float, log: Path) -> RunOutcome:
        run = self._instance.get_run_by_id(run_id)
        if run is None:
            return RunOutcome("", False, seconds, None, 0, "it was deleted while it ran", log)
        if run.status == dg.DagsterRunStatus.NOT_STARTED:
            reason = f"it ended before it began: {_last_line(log)}"
            self._instance.report_run_failed(run, reason)
            return RunOutcome(run_id, False, seconds, None, 0, reason, log)
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
            if made is not None and made.asset_key.path[-1] == ACCEPTED:
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


def _origin() -> JobPythonOrigin:
    """Where the run's process finds the job's code."""
    repository = ReconstructableRepository.for_module(
        _LOCATION["module_name"], "defs", str(dagster_ui.project())
    )
    return repository.get_reconstructable_job(NAME).get_python_origin()


def _remote_origin() -> RemoteJobOrigin:
    """Where the UI finds the job: the code location of `workspace.yaml`."""
    target = LoadableTargetOrigin(
        executable_path=sys.executable,
        module_name=_LOCATION["module_name"],
        working_directory=str(dagster_ui.project()),
    )
    location = ManagedGrpcPythonEnvCodeLocationOrigin(target, _LOCATION["location_name"])
    return RemoteJobOrigin(RemoteRepositoryOrigin(location, SINGLETON_REPOSITORY_NAME), NAME)


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
