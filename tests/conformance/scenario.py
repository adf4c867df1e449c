"""A recorded scenario, and the actor of each of its steps.

Files of ``traces/`` as values. A step sets the stage (the log, the clock, configurations), or belongs to a part of
the project and is compared with it: the engine's steps by every replay, the coordinator's, the command line's and
the client's by ``service_replay``, the dead letters' by ``broker_stage``. A replay that does not compare a step
carries it out as far as the state of later steps needs it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TRACES = Path(__file__).parent / "traces"

ENGINE = "engine"
STAGE = "stage"
CLIENT = "client"
COORDINATOR = "coordinator"
DEAD_LETTERS = "dead letters"
COMMAND_LINE = "command line"
ROOMS = {
    "poll": ENGINE,
    "ack": ENGINE,
    "releaseAll": ENGINE,
    "close": ENGINE,
    "state": ENGINE,
    "stateLog": ENGINE,
    "describeOffsets": ENGINE,
    "wireOffsets": ENGINE,
    "alterOffsets": ENGINE,
    "deleteOffsets": ENGINE,
    "deleteGroup": ENGINE,
    "describeGroup": ENGINE,
    "cjoin": CLIENT,
    "cpoll": CLIENT,
    "cack": CLIENT,
    "ccommit": CLIENT,
    "cclose": CLIENT,
    "join": COORDINATOR,
    "leave": COORDINATOR,
    "hb": COORDINATOR,
    "settle": COORDINATOR,
    "shape": COORDINATOR,
    "dlq": DEAD_LETTERS,
    "describeTopic": DEAD_LETTERS,
    "cli": COMMAND_LINE,
}
"""Whose a step is; one that is not named here sets the stage."""


@dataclass(frozen=True, slots=True)
class Step:
    """What was done, and what the broker returned."""

    do: dict[str, Any]
    got: dict[str, Any]
    stable: bool = True
    """False where the broker may legally return something else."""
    others: tuple[dict[str, Any], ...] = ()
    """What else it was seen to return."""

    @property
    def op(self) -> str:
        """The kind of step."""
        return str(self.do["op"])

    @property
    def room(self) -> str:
        """Whose it is."""
        return ROOMS.get(self.op, STAGE)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One recorded scenario."""

    name: str
    topics: dict[str, int]
    groups: dict[str, dict[str, Any]]
    steps: tuple[Step, ...]
    topic_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    broker: dict[str, str] = field(default_factory=dict)
    """Dynamic configs of the broker; those of dead letters are the service's here."""


def load(path: Path) -> Scenario:
    """A scenario from its file."""
    told = json.loads(path.read_text(encoding="utf-8"))
    return Scenario(
        name=told["name"],
        topics={topic: options["partitions"] for topic, options in told["topics"].items()},
        groups=told["groups"],
        steps=tuple(
            Step(step["do"], step["got"], step.get("stable", True), (step["or"],) if "or" in step else ())
            for step in told["steps"]
        ),
        topic_configs={topic: options.get("configs", {}) for topic, options in told["topics"].items()},
        broker=told.get("broker") or {},
    )


SCENARIOS = {path.stem: load(path) for path in sorted(TRACES.glob("*.json"))}
