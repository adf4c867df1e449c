"""What a run of Dagster logs about a process that died."""

from __future__ import annotations

import logging
from typing import Any

from sharequeue.dagster.assets.accepted import crashes_logged
from sharequeue.spark import isolated_jobs


class Log:
    """The log of a run, which may be out of reach."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.is_away = False

    def warning(self, text: str) -> None:
        if self.is_away:
            raise OSError("the instance does not respond")
        self.lines.append(text)


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
