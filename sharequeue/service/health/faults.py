"""What is wrong now, with which group or topic, and since when?

The coordinator keeps what fails in words (`coordinator`, `group_steps`, `watch`). Here that is looked at again and
again, so that each fault has an age. Ages are by this process's monotonic clock: a clock that is set changes none.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from sharequeue.groups.replicas import WORK, Work
from sharequeue.service.coordinator import Coordinator
from sharequeue.values import HeldDeadLetters

__all__ = ["KINDS", "Fault", "Faults", "Kind"]

Kind = Literal[
    "database",
    "broker",
    "watch",
    "sweep",
    "journal",
    "dead_letters",
    "watch_late",
    "sweep_late",
    "journal_late",
    "dead_letters_late",
    "group",
    "topic",
    "held_dead_letters",
]
KINDS: tuple[Kind, ...] = get_args(Kind)

LATE_SECONDS: Mapping[Work, float] = {"watch": 60.0, "sweep": 30.0, "journal": 120.0, "dead_letters": 60.0}
"""Work that no replica has done for so long is late: many times as long as it takes from one turn to the next."""

_FAILING: Mapping[str, Kind] = {
    "expiry and sweep": "sweep",
    "watch": "watch",
    "journal": "journal",
    "dead letters": "dead_letters",
}
_LATE: Mapping[Work, Kind] = {
    "watch": "watch_late",
    "sweep": "sweep_late",
    "journal": "journal_late",
    "dead_letters": "dead_letters_late",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is wrong: of which kind, with which group or topic if it is one's, why, and for how long."""

    kind: Kind
    reason: str
    age_seconds: float
    group: str | None = None
    topic: str | None = None
    partition: int | None = None


_Key = tuple[Kind, str | None, str | None]


class Faults:
    """The faults of one replica. `monotonic` returns seconds."""

    def __init__(self, coordinator: Coordinator, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._coordinator = coordinator
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._reasons: dict[_Key, str] = {}
        self._since: dict[_Key, float] = {}

    def note(self, kind: Kind, reason: str | None) -> None:
        """Note that something fails which the coordinator does not do; or with None that it works."""
        with self._lock:
            self._set({(kind, None, None): reason} if reason else {}, lambda key: key[0] == kind)

    def look(self) -> None:
        """Note what the coordinator could not do at its last turn."""
        watcher = self._coordinator.watcher
        found: dict[_Key, str] = {}
        # Copied, for other threads write them.
        for what, reason in dict(self._coordinator.faults).items():
            found[_FAILING[what], None, None] = reason
        for group_id, reason in dict(self._coordinator.groups.stuck).items():
            found["group", group_id, None] = reason
        for topic, reason in dict(watcher.faults).items():
            found["topic", None, topic] = reason
        theirs = {"group", "topic", *_FAILING.values()}
        with self._lock:
            self._set(found, lambda key: key[0] in theirs)

    def _set(self, found: Mapping[_Key, str | None], concerned: Callable[[_Key], bool]) -> None:
        now = self._monotonic()
        for key in [key for key in self._reasons if concerned(key) and key not in found]:
            del self._reasons[key], self._since[key]
        for key, reason in found.items():
            self._reasons[key] = reason or ""
            self._since.setdefault(key, now)

    def of_this_replica(self) -> list[Fault]:
        """What fails here, as of the last look."""
        now = self._monotonic()
        with self._lock:
            return [
                Fault(kind, reason, now - self._since[kind, group, topic], group, topic)
                for (kind, group, topic), reason in self._reasons.items()
            ]

    @staticmethod
    def late(ages: Mapping[Work, float | None], *, drains: bool) -> list[Fault]:
        """What no replica has done for long, by the seconds since one did. What none ever did is not late."""
        return [
            Fault(
                _LATE[work],
                f"No replica has done this for {age:.0f} s: {WORK[work]}.",
                age,
            )
            for work, age in ages.items()
            if age is not None and age > LATE_SECONDS[work] and (drains or work != "dead_letters")
        ]

    @staticmethod
    def held(letters: Iterable[tuple[HeldDeadLetters, float]]) -> list[Fault]:
        """Dead letters that cannot be written, each with the seconds for which they have waited."""
        return [
            Fault(
                "held_dead_letters",
                f"{each.records} dead letters wait: {each.reason}",
                age,
                each.share_partition.group_id,
                each.share_partition.topic,
                each.share_partition.partition,
            )
            for each, age in letters
        ]
