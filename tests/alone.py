"""Run a function of a test's module in a fresh process of Python.

A test that forks is such a function: a worker of the tests has the threads of librdkafka, Arrow and a JVM, and what a
fork of it collects as garbage can end it with a signal.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from tests.fixtures.stack import REPOSITORY
from tests.waiting import PATIENCE_S


def run_alone(function: Callable[..., None], *arguments: str) -> None:
    """Call a function with these arguments in a process of its own; fail with its error, or its signal."""
    ended = subprocess.run(
        [
            *(sys.executable, "-c"),
            f"import sys; from {function.__module__} import {function.__name__} as it; it(*sys.argv[1:])",
            *arguments,
        ],
        cwd=REPOSITORY,
        stderr=subprocess.PIPE,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 0, f"{ended.returncode}: {ended.stderr}"
