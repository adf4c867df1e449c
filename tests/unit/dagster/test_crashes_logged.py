"""What a run of Dagster logs about a process that died, and about the error of a Spark job."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from sharequeue.dagster.retries import _raise_without_jvm
from sharequeue.spark import isolated_jobs
from sharequeue.spark.full_runs import crashes_logged
from sharequeue.spark.handler import HandlerError
from sharequeue.spark.job_errors import JobFailed


class Log:
    """The log of a run, which may be out of reach."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.is_away = False

    def warning(self, text: str) -> None:
        if self.is_away:
            raise OSError("the instance does not respond")
        self.lines.append(text)

    debug = warning


def test_the_log_of_a_run_has_what_died_and_what_follows() -> None:
    """Only during the run, and an error of the log is none of the run's."""
    given: Any = Log()
    logger = logging.getLogger(isolated_jobs.__name__)
    with crashes_logged(given):
        logger.warning("%s of orders-0 ended", "9 records")
        given.is_away = True
        logger.warning("not logged")
    given.is_away = False
    logger.warning("of another run")
    assert given.lines == ["9 records of orders-0 ended"]


def test_the_error_of_a_step_has_no_stack_of_the_jvm() -> None:
    """The run's log has it, as debug; an error that Spark did not cause stays what it is."""
    whole = ": a.B: why\n\tat c.D.e(F.java:1)\nCaused by: f.G: the cause"
    context: Any = SimpleNamespace(log=Log())
    with pytest.raises(JobFailed, match="the cause") as raised:
        _raise_without_jvm(context, Py4JError(whole))
    assert "\tat" not in str(raised.value)
    assert raised.value.__suppress_context__
    assert context.log.lines == [f"the whole error of Spark:\n{whole}"]
    caused = HandlerError("expected a column")
    caused.__cause__ = Py4JError(whole)
    with pytest.raises(HandlerError) as raised_too:
        _raise_without_jvm(context, caused)
    assert raised_too.value.__cause__ is None
    with pytest.raises(KeyError):
        _raise_without_jvm(context, KeyError("x"))
    assert len(context.log.lines) == 2
