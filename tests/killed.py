"""Run a script that kills itself by SIGKILL, in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys

from tests.fixtures.stack import REPOSITORY
from tests.waiting import PATIENCE_S


def run_killed(script: str, *arguments: object, may_end: bool = False) -> None:
    """Run a script with its arguments until it has killed itself; fail with its error if it ends otherwise.

    With `may_end` it may also be done before the kill comes.
    """
    ended = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL or (may_end and ended.returncode == 0), ended.stderr
