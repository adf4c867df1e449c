"""Drains of dead letters in processes of their own that die as told, forked from one that has imported everything:
starting Python takes longer than all else that they do.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


@contextmanager
def drains(home: Path, errors: int | None = None) -> Iterator[Callable[..., int]]:
    """Give a function that drains in a process of its own, one at a time, and gives its exit code, which is negative
    for a signal. Its arguments are those of `tests.chaos.drain_dead_letters`; what it says goes to `errors`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.chaos.drain_dead_letters"],
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

        def drain(*arguments: object) -> int:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(" ".join(map(str, arguments)) + "\n")
            process.stdin.flush()
            return int(process.stdout.readline())

        yield drain
    finally:
        process.stdin.close()
        process.wait(60)
