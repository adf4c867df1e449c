"""A replica of the service that kills or stops itself *inside* a step: at a statement of the watch, of expiry and
sweep, or of a heartbeat, before it is sent or after its answer, in a transaction or between two.

`python -m tests.deep.chaotic_service MARK serve …`: the file MARK, when it is there, has the step, the number of the
signal, and at which of the step's statements from now on it is sent. The replica removes it and sends the signal.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event

from sharequeue.cli import command

STEPS = {"watch": "sharequeue-watch", "sweep": "sharequeue-coordinator"}
"""The thread that does each; a heartbeat is told by its statement."""


class Bomb:
    """Counts the statements of the step that the mark names."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark
        self._lock = threading.Lock()
        self._seen = 0

    def __call__(self, connection: Any, cursor: Any, statement: str, *others: Any) -> None:
        with self._lock:
            try:
                step, number, nth = self._mark.read_text().split()
            except (FileNotFoundError, ValueError):
                self._seen = 0
                return
            thread = STEPS.get(step)
            here = threading.current_thread().name == thread if thread else "heartbeat" in statement
            self._seen += here
            if here and self._seen >= int(nth):
                self._mark.unlink()
                os.kill(os.getpid(), int(number))


if __name__ == "__main__":
    bomb = Bomb(Path(sys.argv[1]))
    event.listen(Engine, "before_cursor_execute", bomb)
    event.listen(Engine, "after_cursor_execute", bomb)
    command.main(sys.argv[2:])
