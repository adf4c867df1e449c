"""The currently known faults, each with its group or topic and its age.

The coordinator keeps the current errors as texts (`coordinator`, `group_steps`, `watch`). They are checked regularly
here, so that each fault has an age. Ages use this process's monotonic clock, so that setting the clock does not
change them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from sharequeue.domain.values import HeldDeadLetters
from sharequeue.service.coordinator import Coordinator
from sharequeue.state.replicas import LATE_SECONDS, WORK, Replicas, Work

__all__ = ["KINDS", "Fault", "Faults", "Kind", "recorded_faults"]

Kind = Literal[
    "database",
    "broker",
    "clock",
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

_LATE: Mapping[Work, Kind] = {
    "watch": "watch_late",
    "sweep": "sweep_late",
    "journal": "journal_late",
    "dead_letters": "dead_letters_late",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: its kind, its group or topic if there is one, its reason, and its age."""

    kind: Kind
    reason: str
    age_seconds: float
    group: str | None = None
    topic: str | None = None
    partition: int | None = None


NOTED_SECONDS = 60.0
"""How long an error that only a probe sees counts after the last probe that saw it: nobody may probe again."""

_Key = tuple[Kind, str | None, str | None]


class Faults:
    """The faults of one replica. `monotonic` returns seconds."""

    def __init__(self, coordinator: Coordinator, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._coordinator = coordinator
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._reasons: dict[_Key, str] = {}
        self._since: dict[_Key, float] = {}
        self._noted: dict[_Key, float] = {}

    def note(self, kind: Kind, reason: str | None) -> None:
        """Record the error that a probe has seen, or None. An error that is not seen again ends after
        `NOTED_SECONDS`."""
        key = kind, None, None
        with self._lock:
            self._noted[key] = self._monotonic()
            self._set({key: reason} if reason else {}, lambda known: known == key)

    def look(self) -> None:
        """Record the errors of the coordinator's last turn."""
        watcher = self._coordinator.watcher
        found: dict[_Key, str] = {}
        # Copied, because other threads write them.
        for work, reason in dict(self._coordinator.faults).items():
            found[work, None, None] = reason
        for group_id, reason in dict(self._coordinator.groups.stuck).items():
            found["group", group_id, None] = reason
        for topic, reason in dict(watcher.faults).items():
            found["topic", None, topic] = reason
        with self._lock:
            self._set(found, self._is_over)

    def _is_over(self, key: _Key) -> bool:
        """Return whether an error that the coordinator does not have now has ended."""
        noted = self._noted.get(key)
        return noted is None or self._monotonic() - noted > NOTED_SECONDS

    def _set(self, found: Mapping[_Key, str | None], concerned: Callable[[_Key], bool]) -> None:
        now = self._monotonic()
        for key in [key for key in self._reasons if concerned(key) and key not in found]:
            del self._reasons[key], self._since[key]
        for key, reason in found.items():
            self._reasons[key] = reason or ""
            self._since.setdefault(key, now)

    def of_this_replica(self) -> list[Fault]:
        """Return the faults of this replica at the last check."""
        now = self._monotonic()
        with self._lock:
            return [
                Fault(kind, reason, now - self._since[kind, group, topic], group, topic)
                for (kind, group, topic), reason in self._reasons.items()
            ]


def recorded_faults(replicas: Replicas, held: Iterable[tuple[HeldDeadLetters, float]]) -> list[Fault]:
    """Return the faults that the database shows.

    These are work that no replica has done for long, unless none has ever done it, a clock of the database that was
    set back, and dead letters that cannot be written, each with its waiting time in seconds.
    """
    late = [
        Fault(_LATE[work], f"No replica has done this for {age:.0f} s: {WORK[work]}.", age)
        for work, age in replicas.ages.items()
        if age is not None
        and age > LATE_SECONDS[work]
        and (replicas.writes_letters or work != "dead_letters")
    ]
    waiting = [
        Fault(
            "held_dead_letters",
            f"{each.records} dead letters wait: {each.reason}",
            age,
            each.share_partition.group_id,
            each.share_partition.topic,
            each.share_partition.partition,
        )
        for each, age in held
    ]
    clock = []
    if replicas.set_back is not None:
        clock.append(
            Fault(
                "clock",
                f"The database's clock was set back by {replicas.set_back.seconds:.0f} s. Times that were stored "
                "before count as now: locks and sessions may last longer once. Check how the database's machine "
                "sets its clock.",
                replicas.set_back.age,
            )
        )
    return late + clock + waiting
