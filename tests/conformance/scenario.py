"""What does a recorded scenario hold, and whose is each of its steps?

Files of ``traces/`` as values. A step is the engine's and is compared, or sets the stage (the log, the clock,
members, configurations), or belongs to a part of the project that has its own replay: it is carried out as far
as the state of later steps needs it, and counted as waiting.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TRACES = Path(__file__).parent / "traces"

ENGINE = "engine"
STAGE = "stage"
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
    "cjoin": "client",
    "cpoll": "client",
    "cack": "client",
    "ccommit": "client",
    "cclose": "client",
    "hb": "coordinator",
    "settle": "coordinator",
    "shape": "coordinator",
    "dlq": "dead letters",
    "cli": "command line",
}
"""Whose a step is; one that is not named here sets the stage."""

_SESSION_ERRORS = ("SHARE_SESSION_NOT_FOUND", "INVALID_SHARE_SESSION_EPOCH", "SHARE_SESSION_LIMIT_REACHED")


@dataclass(frozen=True, slots=True)
class Step:
    """What was done, and what the broker returned."""

    do: dict[str, Any]
    got: dict[str, Any]

    @property
    def op(self) -> str:
        """The kind of step."""
        return str(self.do["op"])

    @property
    def room(self) -> str:
        """Whose it is."""
        if self.op == "ack" and any(str(ack[0]).startswith("?") for ack in self.do["acks"]):
            return "service"  # a topic id that no topic has is refused before there is a share-partition
        if self.op in ("poll", "ack") and str(self.got.get("error")) in _SESSION_ERRORS:
            return "service"
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
        steps=tuple(Step(step["do"], step["got"]) for step in told["steps"]),
        topic_configs={topic: options.get("configs", {}) for topic, options in told["topics"].items()},
        broker=told.get("broker") or {},
    )


SCENARIOS = {path.stem: load(path) for path in sorted(TRACES.glob("*.json"))}
