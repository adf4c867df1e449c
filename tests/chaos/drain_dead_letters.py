"""The process that a kill test kills: drains a group's dead letters and dies where it is told to.

`python -m tests.chaos.drain_dead_letters GROUP BATCH_RECORDS STEP NTH MANNER DELAY_MS`: at the NTH time that STEP is
reached (`start` is before anything, `never` is never), after DELAY_MS more, by MANNER: `exit` is `os._exit`, `kill`
SIGKILL. The stack is named by `SHAREQUEUE_HOME`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from sharequeue.configs import GroupConfigs
from sharequeue.database import Database
from sharequeue.deadletter_batches import Step
from sharequeue.deadletters import DeadLetterWriter
from sharequeue.settings import Settings
from sharequeue.state import SharePartition, State

EXIT_CODE = 86


def main() -> None:
    """Drain, unless dead before."""
    group, batch_records, fatal_step, nth, manner, delay_ms = sys.argv[1:]
    left = int(nth)

    def die() -> None:
        if manner == "exit":
            os._exit(EXIT_CODE)
        os.kill(os.getpid(), signal.SIGKILL)

    def on_step(step: str | Step, source: SharePartition | None = None) -> None:
        nonlocal left
        left -= step == fatal_step
        if step == fatal_step and left == 0:
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
        report = writer.drain()
    assert not report.held, report.held
    print(f"written {report.written} resumed {report.resumed}")
    # A timer still running has nothing left to kill.
    os._exit(0)


if __name__ == "__main__":
    main()
