"""What the fuzzer's ledger writes down of calls, records and share-partitions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

At = tuple[str, str, int]
_RANGE = re.compile(r"\[(\d+),(\d+)\)")
GAP, ACCEPT, RELEASE, REJECT = range(4)
HOLD = 9
FINISHED = ("accepted", "gap", "lost")
GIVEN_UP = ("rejected", "exhausted")


def offsets_of(text: str) -> list[int]:
    """The offsets of an `int8multirange`."""
    return [o for first, past in _RANGE.findall(text) for o in range(int(first), int(past))]


def multirange(offsets: list[int]) -> str:
    """Text of an `int8multirange` with these offsets."""
    return "{" + ",".join(f"[{o},{o + 1})" for o in sorted(offsets)) + "}"


def seconds(moment: str | datetime) -> float:
    """Seconds since the epoch."""
    return (datetime.fromisoformat(moment) if isinstance(moment, str) else moment).timestamp()


@dataclass(slots=True)
class Call:
    """One call: who asked what, when, and what was returned."""

    number: int
    operation: str
    args: dict[str, Any]
    started: int
    phase: int
    seq: int = 0
    result: Any = None
    at: float = 0.0
    finished: float = float("inf")
    """When it had committed, in ticks as `started`; a call that began later has seen it."""

    @property
    def share_partition(self) -> At | None:
        """The one share-partition that it is about."""
        a = self.args
        named = a.get("p_group_id") and a.get("p_topic") and a.get("p_partition") is not None
        return (a["p_group_id"], a["p_topic"], a["p_partition"]) if named else None


@dataclass(slots=True)
class Record:
    """A record that was delivered at least once, or will never be."""

    state: str
    counts: set[int] = field(default_factory=set)
    token: str = ""
    member: str = ""
    group: str = ""
    low: float = 0.0
    high: float = 0.0
    granted_in: int = 0
    granted: float = 0
    fan_out: bool = False
    suspect: bool = False
    """A delivery under `fan_out` ended without an acknowledgement."""
    maybe_over: bool = False
    """Its deliveries may be used up; nobody has said so yet."""
    letter: str = "no"
    not_before: float = 0.0
    history: list[str] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """Whether SPSO may pass it, for certain."""
        return self.state in FINISHED or (self.state in GIVEN_UP and self.letter in ("no", "closed"))

    @property
    def maybe_done(self) -> bool:
        """Whether SPSO may have passed it."""
        return self.done or self.maybe_over or (self.state in GIVEN_UP and self.letter == "maybe")


@dataclass
class Partition:
    """One life of a share-partition: from its start offset to the next reset."""

    start: int
    topic_id: str
    spso: int
    status: str = "active"
    replaced: set[str] = field(default_factory=set)
    """The ids that the topic had before."""
    logs: set[tuple[int, int]] = field(default_factory=set)
    """The end of the log and its last stable offset, as they were observed last; several where observations met: one
    that changes nothing locks nothing, so it may have come before another one that drew its number first."""
    observed: tuple[int, float] = (-1, 0.0)
    """The phase of the last observation, and when all so far had committed."""
    at: float = 0.0
    at_phase: int = -1
    records: dict[int, Record] = field(default_factory=dict)
    open_letters: tuple[int, set[int]] | None = None
    accepted: dict[UUID, int] = field(default_factory=dict)
    """The last record of each key that was accepted."""
    reported: set[int] = field(default_factory=set)
    """The records whose key was reported."""
    batch_of: dict[int, int] = field(default_factory=dict)
    """The batch that wrote each letter."""
    let_go: set[int] = field(default_factory=set)
    """The letters that hold their key no longer, if they did."""
    kept: dict[int, tuple[set[int], set[int]]] = field(default_factory=dict)
    """The records that each lease has kept: those that are in its row for certain, and those that may be."""

    @property
    def log_end(self) -> int | None:
        """The furthest end that the log may have been observed at."""
        return max((end for end, _ in self.logs), default=None)

    @property
    def stable(self) -> int | None:
        """The furthest last stable offset."""
        return max((stable for _, stable in self.logs), default=None)


@dataclass
class Settings:
    """What the configs of a group may have been during a phase, and ever."""

    limits_ever: set[int] = field(default_factory=set)
    dlq: set[bool] = field(default_factory=set)
    dlq_ever: set[bool] = field(default_factory=set)
    committed: set[bool] = field(default_factory=set)
