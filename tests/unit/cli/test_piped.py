"""A run that Dagster has launched: whose context it is, and messages that do not arrive."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from dagster_pipes import DAGSTER_PIPES_CONTEXT_ENV_VAR, PipesContext, encode_param
from pyspark.errors import PythonException

from sharequeue.cli.failures import CommandRefused
from sharequeue.cli.piped import Piped, opened_pipes
from sharequeue.domain.results.launches import FailedRun, LaunchedRun, answered, extra_of

ANOTHERS: dict[str, Any] = {"asset_keys": [], "run_id": "r", "extras": {}}


@pytest.fixture(autouse=True)
def _no_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process has one context."""
    monkeypatch.setattr(PipesContext, "_instance", None)


def test_a_command_that_dagster_has_not_launched_opens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not without a context, and not in that of another program, which has started this one."""
    monkeypatch.delenv(DAGSTER_PIPES_CONTEXT_ENV_VAR, raising=False)
    assert opened_pipes(None, shown=False) is None
    monkeypatch.setenv(DAGSTER_PIPES_CONTEXT_ENV_VAR, encode_param({"data": ANOTHERS}))
    assert opened_pipes(None, shown=False) is None
    assert not PipesContext.is_initialized()


def test_a_client_may_put_the_context_on_the_command_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Databricks and Dataproc do so for a cluster that runs already."""
    order = LaunchedRun(
        pipeline={}, client_id="c", member_id="m", keep_seconds=1.0, deliveries_per_run=None, bounds={}
    )
    messages = tmp_path / "messages"
    words = {
        "--dagster-pipes-context": encode_param({"data": {**ANOTHERS, "extras": extra_of(order)}}),
        "--dagster-pipes-messages": encode_param({"path": str(messages)}),
    }
    monkeypatch.setattr(sys, "argv", ["submit.py", "run", *(word for pair in words.items() for word in pair)])
    piped = opened_pipes(None, shown=False)
    assert piped is not None
    assert piped.order == order
    with piped:
        pass
    assert [json.loads(line)["method"] for line in messages.read_text().splitlines()] == ["opened", "closed"]


def test_a_context_in_a_store_needs_a_function_that_opens_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the option; the function must return a context, and that must have an order."""
    for address in ({"bucket": "b", "key": "k"}, {"path": "/of/another/machine"}):
        monkeypatch.setenv(DAGSTER_PIPES_CONTEXT_ENV_VAR, encode_param(address))
        with pytest.raises(CommandRefused, match="--pipes MODULE:FUNCTION"):
            opened_pipes(None, shown=False)
    module: Any = ModuleType("pipes_of_a_test")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    module.opened = lambda: None
    assert opened_pipes("pipes_of_a_test:opened", shown=False) is None
    module.opened = lambda: "text"
    with pytest.raises(CommandRefused, match="has returned no Pipes context"):
        opened_pipes("pipes_of_a_test:opened", shown=False)
    given: Any = object.__new__(PipesContext)
    module.opened = lambda: given
    for extras, expected in (
        ({}, "has no order for a run"),
        ({"sharequeue": {"member_id": 1}}, "another version of sharequeue"),
        ({"sharequeue": {"run": {"member_id": 1}}}, "another version of sharequeue"),
    ):
        given._data = {"extras": extras}
        with pytest.raises(CommandRefused, match=expected):
            opened_pipes("pipes_of_a_test:opened", shown=False)


def test_a_run_goes_on_when_nobody_reads_its_messages(capsys: pytest.CaptureFixture[str]) -> None:
    """It says so once, and shows its progress; an error of the run is still raised."""

    def gone(*given: Any) -> None:
        raise FileNotFoundError("the folder is gone")

    context: Any = SimpleNamespace(log=SimpleNamespace(log=gone), close=gone)
    order: Any = SimpleNamespace()
    with Piped(context, order, shown=True) as piped:
        piped.log.info("round 1")
        piped.log.info("100% done")
        with pytest.raises(KeyError, match="of the run"), piped.failures_reported():
            raise KeyError("of the run")
    shown = capsys.readouterr().err.splitlines()
    assert shown == [
        "round 1",
        "Dagster gets no messages of this run, which goes on (the folder is gone)",
        "100% done",
    ]


def test_the_answer_comes_before_a_long_text() -> None:
    """The reader of messages in a file may stop at a long line, and what comes after it is lost."""
    sent: list[tuple[int, str]] = []
    log = SimpleNamespace(log=lambda level, _, text: sent.append((level, text)))
    context: Any = SimpleNamespace(log=log, close=lambda: None)
    order: Any = SimpleNamespace()
    failed = PythonException("ValueError: no price\n" + "  at org.apache.spark\n" * 1000)
    with (
        Piped(context, order, shown=False) as piped,
        pytest.raises(PythonException),
        piped.failures_reported(),
    ):
        raise failed
    (_, answer), (level, text) = sent
    assert isinstance(answered(answer), FailedRun)
    assert (level, text.splitlines()[0]) == (logging.DEBUG, "the whole error of Spark:")
