"""Planned deaths: at its steps a process kills itself, its driver, Postgres or the broker, or one stops for a while.

Only the standard library: Python workers of Spark get a copy of `Deaths`, and count the steps of their task.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

Who = Literal["task", "driver", "pause", "postgres", "kafka", "stall"]
"""A Python worker; a driver with its JVM; the same, stopped; a server; the broker, stopped."""
PIDS, CALM = "pids.json", "calm"
TRANSFER = "transfer begun"


@dataclass(frozen=True, slots=True)
class Death:
    """Who dies, and how long after which step was reached for the nth time, counted from 1. In a task, which counts
    its own steps, not before the driver has begun so many transfers."""

    who: Who
    at: str
    nth: int
    delay_ms: int = 0
    transfers: int = 0


@dataclass
class Deaths:
    """The deaths of one process and of its tasks. Each comes once, and leaves a file in `folder`, which has the
    process ids of the servers. Once the file `calm` is there, none comes."""

    folder: str
    life: str
    planned: list[Death]
    driver: int = field(default_factory=os.getpid)
    reached: dict[str, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Deaths:
        """Read what `told` has written."""
        given = json.loads(text)
        return cls(given["folder"], given["life"], [Death(**each) for each in given["planned"]])

    def told(self) -> str:
        """Return the plan for a process."""
        plan = {
            "folder": self.folder,
            "life": self.life,
            "planned": [asdict(each) for each in self.planned],
        }
        return json.dumps(plan)

    def __call__(self, step: str) -> None:
        """Let come what is planned at this step."""
        self.reached[step] = self.reached.get(step, 0) + 1
        # A task has the counts of its driver.
        transfers = self.reached.get(TRANSFER, 0)
        for number, death in enumerate(self.planned):
            if (death.at, death.nth) == (step, self.reached[step]) and transfers >= death.transfers:
                if death.delay_ms:
                    threading.Timer(death.delay_ms / 1000, self._come, (number, death)).start()
                else:
                    self._come(number, death)

    def _come(self, number: int, death: Death) -> None:
        folder = Path(self.folder)
        if (folder / CALM).exists():
            return
        try:
            with (folder / f"death-{self.life}-{number}").open("x") as file:
                json.dump({**asdict(death), "driver": self.driver}, file)
        except FileExistsError:
            return
        if death.who == "task":
            os.kill(os.getpid(), signal.SIGKILL)
        elif death.who in ("driver", "pause"):
            os.killpg(self.driver, signal.SIGKILL if death.who == "driver" else signal.SIGSTOP)
        else:
            servers: Mapping[str, Any] = json.loads((folder / PIDS).read_text())
            name, number_of = (
                ("kafka", signal.SIGSTOP) if death.who == "stall" else (death.who, signal.SIGKILL)
            )
            try:
                os.kill(servers[name], number_of)
            except ProcessLookupError:
                # Another death was quicker.
                return


def came(folder: Path) -> list[dict[str, Any]]:
    """Return the deaths that have come, each with the process id of its driver."""
    found = []
    for file in folder.glob("death-*"):
        if file.stat().st_size:  # it is being written
            found.append({**_read(file), "file": file.name})
    return found


@cache
def _read(file: Path) -> Mapping[str, Any]:
    # A thousand files are looked at five times a second.
    return json.loads(file.read_text())  # type: ignore[no-any-return]
