"""What is counted over a run of random histories, and what a difference between the engines is."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from sharequeue.domain.values import Lease, SharePartition


class Different(AssertionError):
    """The two engines do not agree."""


@dataclass
class Tally:
    """What a run of histories has done, over all of them."""

    steps: int = 0
    found_at: int | None = None
    found: Exception | None = None
    """The first difference, and at which step."""
    histories: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    transitions: set[tuple[str, str]] = field(default_factory=set)
    met: Counter[str] = field(default_factory=Counter)
    """What else has happened: a wait, a refund, each turn of a circuit breaker."""


@dataclass(frozen=True)
class Held:
    """A lease as both engines gave it."""

    at: SharePartition
    member: str
    lease: Lease
    token: str
