"""How the progress of a run is shown: a line that changes on a terminal, a line for each round elsewhere."""

from __future__ import annotations

import io
import subprocess
import sys
from dataclasses import replace

import pytest

from sharequeue.spark.progress import Progress, shown_progress
from sharequeue.spark.waits import named_wait
from tests.waiting import wait_until

BEGUN = Progress(1, "write", 1000, 0, 2.0, None)
DONE = Progress(1, "done", 1000, 1000, 2.0, 3500)


def test_a_line_of_progress_has_rate_and_lag() -> None:
    """Before the first round has ended, there is neither."""
    assert str(BEGUN) == "round 1: write 1,000 records"
    assert str(DONE) == "round 1: 1,000 records done, 500/s, lag 3,500"
    assert str(Progress(2, "acquire", 0, 1000, 4.0, None)) == "round 2: acquire, 1,000 records done, 250/s"


def test_each_round_writes_a_line_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """Where there is no terminal; stdout has the results alone. Nothing at all when it is switched off."""
    for wanted in (True, False):
        with shown_progress(wanted) as told:
            told(BEGUN)
            told(DONE)
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"{DONE}\n")
    heard: list[Progress] = []
    with shown_progress(heard.append) as told:
        told(BEGUN)
    assert heard == [BEGUN]


def test_a_terminal_shows_one_line_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends with what was said last."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with shown_progress(True) as told:
        told(BEGUN)
        told(DONE)
    assert str(DONE) in terminal.getvalue()
    assert "\x1b[" in terminal.getvalue()


def test_the_command_line_loads_no_spark() -> None:
    """Only `sharequeue run` does, when it runs."""
    code = "import sharequeue.cli, sys; print('pyspark' in sys.modules, 'sharequeue.spark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


class Gone(io.StringIO):
    """A stderr whose reader is gone."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


@pytest.mark.parametrize("stderr", ["pipe", "terminal", "closed", "none"])
def test_a_closed_stderr_fails_no_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stderr: str
) -> None:
    """A pipe or a terminal that is gone, a stderr that was closed, or none at all; and stdout stays for results."""
    there: io.StringIO | None = None if stderr == "none" else Gone(terminal=stderr == "terminal")
    if there is not None and stderr == "closed":
        there.close()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", there)
    with shown_progress(True) as told:
        told(BEGUN)
        told(DONE)
    monkeypatch.undo()
    assert capsys.readouterr().out == ""


def test_a_long_stage_has_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage that takes longer than the limit is written once; waiting for records is no such stage."""
    monkeypatch.setattr("sharequeue.spark.progress.WAIT_SECONDS", 0.01)
    monkeypatch.setattr(sys, "stderr", said := io.StringIO())
    with shown_progress(True) as told:
        told(replace(BEGUN, stage="waiting"))
        told(replace(BEGUN, round=2))
        wait_until(lambda: bool(said.getvalue()))
    assert said.getvalue() == f"{replace(BEGUN, round=2)}\n"


def test_a_long_wait_is_named(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Once, as a warning; a short one is not."""
    monkeypatch.setattr("sharequeue.spark.waits.WAIT_SECONDS", 0.01)
    with named_wait("Spark to start"):
        wait_until(lambda: caplog.messages == ["waiting for Spark to start"])
    monkeypatch.setattr("sharequeue.spark.waits.WAIT_SECONDS", 3600.0)
    with named_wait("the broker"):
        pass
    assert len(caplog.messages) == 1
