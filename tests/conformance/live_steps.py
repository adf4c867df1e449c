"""The steps of live scenarios.

The steps of the recorded scenarios, each a function with what it needs; and what a scenario is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Step = dict[str, Any]
SHORT = {"share.record.lock.duration.ms": 1500}
"""Locks that lapse while a test waits."""
LOOKED_AT_AFTER = {
    "poll",
    "ack",
    "releaseAll",
    "close",
    "drop",
    "expire",
    "alterOffsets",
    "deleteRecords",
    "deleteOffsets",
    "cpoll",
    "ccommit",
    "cclose",
}
"""Steps after which start offsets, lag and states are looked at too."""


@dataclass(frozen=True)
class Live:
    """One scenario."""

    rules: tuple[str, ...]
    steps: tuple[Step, ...]
    configs: Mapping[str, Any] = field(default_factory=dict)
    topics: Mapping[str, int] = field(default_factory=lambda: {"t": 1})
    log: Mapping[str, str] = field(default_factory=dict)
    """Configs of topic ``t``."""


def produce(*batches: int, **more: Any) -> Step:
    """Log batches of so many records."""
    return {"op": "produce", "batches": list(batches), **more}


def txn(do: str, name: str = "x") -> Step:
    """Begin, commit or abort a transaction."""
    return {"op": "txn", "txn": name, "do": do}


def join(member: str = "m1", **more: Any) -> Step:
    """A member joins, and all heartbeat until the group stands still."""
    return {"op": "join", "member": member, **more}


def poll(most: int = 500, member: str = "m1", **more: Any) -> Step:
    """One fetch."""
    return {"op": "poll", "member": member, "max": most, **more}


def ack(*acks: list[Any], member: str = "m1", **more: Any) -> Step:
    """One acknowledgement: partition, first, last, type."""
    return {"op": "ack", "member": member, "acks": list(acks), **more}


def release(member: str = "m1") -> Step:
    """Release all of the last fetch."""
    return {"op": "releaseAll", "member": member}


def close(member: str = "m1", **more: Any) -> Step:
    """A member closes its session and leaves."""
    return {"op": "close", "member": member, **more}


def config(**configs: Any) -> Step:
    """Change the group's configs; underscores stand for dots."""
    return {
        "op": "groupConfig",
        "configs": {name.replace("_", "."): value for name, value in configs.items()},
    }


def op(name: str, **more: Any) -> Step:
    """Any other step."""
    return {"op": name, **more}


EXPIRE = op("expire")
LONG = config(share_record_lock_duration_ms=60_000)
"""Locks that do not lapse before the next steps, however busy the machine is."""
GROUP = op("describeGroup")
START = (produce(4), join())


def rounds(number: int) -> tuple[Step, ...]:
    """Fetch and release so often."""
    return (poll(), release()) * number
