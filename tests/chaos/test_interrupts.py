"""A person stops a run: by Ctrl-C, once or twice, by SIGTERM, by Dagster's "terminate"; wherever the run is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sharequeue.domain.settings import Settings
from sharequeue.state import State
from tests.chaos.interrupted_runs import CASES, INTERRUPTED
from tests.fixtures.pipelines import Assigned, Produce
from tests.fixtures.stack import REPOSITORY, MakeTopic
from tests.waiting import PATIENCE_S, wait_until

RECORDS = 50
ENDED_BY = {"dagster": "DagsterExecutionInterruptedError", "terminated": "Terminated"}


@pytest.mark.slow
def test_an_interrupted_run_makes_no_suspects_and_no_dead_letters(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    settings: Settings,
    state: State,
    tmp_path: Path,
) -> None:
    """Real signals to a real process, with a limit of two deliveries, so that all but the first interrupt what is at
    its last one: each run ends by what the signal raises, everything is there again at once and together, nothing is
    given up, and the session goes on working: the last run accepts it all in one lease."""
    topic = make_topic(1)
    produce(topic, 0, range(RECORDS))
    assigned(topic, share_delivery_count_limit="2", errors_deadletterqueue_topic_name="dlq.never")
    command = [sys.executable, "-m", "tests.chaos.interrupted_runs"]
    process = subprocess.Popen(
        [*command, str(settings.home), str(tmp_path / "output"), group, topic, str(tmp_path)],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    said: list[str] = []
    assert process.stdout is not None
    reading = threading.Thread(target=lambda: said.extend(process.stdout or ()), daemon=True)
    reading.start()

    def wait(condition: Callable[[], bool]) -> None:
        def came() -> bool:
            assert process.poll() is None, "".join(said)
            return condition()

        wait_until(came, PATIENCE_S, lambda: "".join(said))

    try:
        assert process.stdin is not None
        for case in CASES:
            process.stdin.write("\n")
            process.stdin.flush()
            wait(lambda: (tmp_path / case).exists() or f"ready {case}\n" in said)  # noqa: B023
            if case == "group":
                os.killpg(process.pid, signal.SIGINT)
            else:
                process.send_signal(signal.SIGTERM if case == "terminated" else signal.SIGINT)
            if case == "twice":
                process.send_signal(signal.SIGINT)
            if case == "acknowledging":
                (tmp_path / INTERRUPTED).touch()
            wait(lambda: any(line.startswith(f"ended {case} ") for line in said))  # noqa: B023
            (status,) = state.figures.describe(group)
            # An acknowledgement that is under way is waited for, and counts.
            left = 0 if case == "acknowledging" else RECORDS
            assert (status.lag, status.available, status.acquired) == (left, left, 0), "".join(said)
            assert (status.archiving, status.highest_delivery_count) == (0, min(left, 1)), "".join(said)
        process.wait(PATIENCE_S)
        reading.join(PATIENCE_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    text = "".join(said)
    assert [line for line in said if line.startswith("kept")] == ["kept True\n", "kept False\n"], text
    ended = [line.split()[1:3] for line in said if line.startswith("ended")]
    assert ended == [[case, ENDED_BY.get(case, "KeyboardInterrupt")] for case in CASES], text
    assert [(c.outcome, c.delivery_count, c.records) for c in state.figures.delivery_counts(group)] == [
        ("accepted", 2, RECORDS)
    ]
    assert state.figures.verify(group) == []
