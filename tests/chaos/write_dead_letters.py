"""The process that a kill test kills: writes a group's dead letters and dies at the step that it was given.

`python -m tests.chaos.write_dead_letters GROUP BATCH_RECORDS STEP NTH MANNER DELAY_MS`: at the NTH time that STEP is
reached (`start` is before anything, `never` is never), after DELAY_MS more, by MANNER: `exit` is `os._exit`, `kill`
SIGKILL. The stack is named by `SHAREQUEUE_HOME`.

Without arguments it reads such lines from its input, and forks a process for each (`forked_processes.serve`).
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from sharequeue.database import Database
from sharequeue.deadletters.outbox import BatchStep
from sharequeue.deadletters.writer import DeadLetterWriter
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import SharePartition
from sharequeue.groups.configs import GroupConfigs
from sharequeue.state import State
from tests.chaos.forked_processes import serve

EXIT_CODE = 86


def write(group: str, batch_records: str, fatal_step: str, nth: str, manner: str, delay_ms: str) -> None:
    """Write, unless dead before."""
    left = int(nth)
    lock = threading.Lock()

    def die() -> None:
        if manner == "exit":
            os._exit(EXIT_CODE)
        os.kill(os.getpid(), signal.SIGKILL)

    def on_step(step: str | BatchStep, source: SharePartition | None = None) -> None:
        nonlocal left
        # Share-partitions are written side by side.
        with lock:
            left -= step == fatal_step
            fatal = step == fatal_step and left == 0
        if fatal:
            if int(delay_ms):
                threading.Timer(int(delay_ms) / 1000, die).start()
            else:
                die()

    on_step("start")
    settings = Settings.load()
    with Database.open(settings) as database:
        configs = GroupConfigs.load(database, group)
        writer = DeadLetterWriter(
            settings, State(database), group, configs, batch_records=int(batch_records), on_step=on_step
        )
        report = writer.write()
    assert not report.held, report.held
    print(f"written {report.written} resumed {report.resumed}", file=sys.stderr)
    # A timer still running has nothing left to kill.
    os._exit(0)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        write(*sys.argv[1:])
    else:
        serve(write)
