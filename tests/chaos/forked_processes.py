"""Writers in processes of their own that are killed, forked from one process that has imported everything: starting
Python takes longer than all else that they do.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import PATIENCE_S

REPOSITORY = Path(__file__).parents[2]
DEAD_LETTERS = "tests.chaos.write_dead_letters"
INTO_POSTGRES = "tests.chaos.drain_to_postgres"


@contextmanager
def in_fork(
    home: Path, errors: int | None = None, module: str = DEAD_LETTERS
) -> Iterator[Callable[..., int]]:
    """Give a function that writes in a process of its own, one at a time, and gives its exit code, which is negative
    for a signal. Its arguments are those of the module; what it prints as errors goes to `errors`."""
    process = subprocess.Popen(
        [sys.executable, "-m", module],
        cwd=REPOSITORY,
        env={**os.environ, "SHAREQUEUE_HOME": str(home)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:

        def call(*arguments: object) -> int:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(" ".join(map(str, arguments)) + "\n")
            process.stdin.flush()
            return int(process.stdout.readline())

        yield call
    finally:
        process.stdin.close()
        process.wait(PATIENCE_S)


def serve(write: Callable[..., None]) -> None:
    """Fork a process for each line of the input, and print its exit code, negative for the signal that killed it.

    This process has no threads and no connections."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                write(*line.split())
            finally:
                # Only an error comes here, and its traceback must not be the parent's to print.
                sys.excepthook(*sys.exc_info())
                os._exit(1)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
