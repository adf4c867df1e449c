"""What must be so of share-partitions, known from the answers of calls that count alone."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

At = tuple[str, int]
LIMIT = 5
OK, INVALID_RECORD_STATE, FENCED_STATE_EPOCH = 0, 121, 124
UNKNOWN = 3
"""Whoever waits while a group is deleted and made again may be told that it is not there: it may call again."""


@dataclass(frozen=True)
class Event:
    """A call that was answered."""

    number: int
    kind: str
    at: At | None
    clock: datetime
    what: dict[str, Any]
    answer: list[tuple[Any, ...]]


@dataclass
class Record:
    """One offset, as far as it is known."""

    count: int = 0
    token: str | None = None
    """Whose it is; None: nobody's."""
    done: bool = False


@dataclass
class Held:
    """A lease that is not over."""

    member: str
    locked_at: datetime
    expires_at: datetime


@dataclass
class Partition:
    """One share-partition."""

    records: list[Record]
    start: int = 0
    epoch: int = 1
    held: dict[str, Held] = field(default_factory=dict)

    @property
    def spso(self) -> int:
        """The first that is not done."""
        found = (o for o in range(self.start, len(self.records)) if not self.records[o].done)
        return next(found, len(self.records))

    def of(self, token: str) -> list[int]:
        """What is held under a token."""
        return [offset for offset, record in enumerate(self.records) if record.token == token]

    def give_back(self, offset: int) -> None:
        """It is nobody's any more; after its last delivery it is given up, for the group has no dead letters."""
        record = self.records[offset]
        record.token = None
        record.done = record.count >= LIMIT

    def set_back(self, now: datetime) -> None:
        """A lock that was taken in the future counts as taken now: the clock was set back since."""
        for held in self.held.values():
            if held.locked_at > now:
                held.expires_at -= held.locked_at - now
                held.locked_at = now

    def lapse(self, now: datetime) -> None:
        """Every operation first ends the leases whose lock has lapsed."""
        for token in [token for token, held in self.held.items() if held.expires_at <= now]:
            for offset in self.of(token):
                self.give_back(offset)
            del self.held[token]


class Ledger:
    """All share-partitions, and what was wrong."""

    def __init__(self, places: list[At], records: int) -> None:
        self.faults: list[str] = []
        self.tally: Counter[str] = Counter()
        self._many = records
        self._waiting: list[Event] = []
        self._lock = threading.Lock()
        self.partitions = {at: self._fresh(0) for at in places}
        self._requests: dict[tuple[At, str, str], list[tuple[Any, ...]]] = {}

    def _fresh(self, start: int, epoch: int = 1) -> Partition:
        return Partition([Record() for _ in range(self._many)], start, epoch)

    def take(self, events: list[Event]) -> None:
        """Their transaction counts."""
        with self._lock:
            self._waiting += events

    def settle(self) -> None:
        """All that was taken, in its order. No transaction is open now."""
        with self._lock:
            events, self._waiting = sorted(self._waiting, key=lambda event: event.number), []
        for event in events:
            self.tally[event.kind] += 1
            getattr(self, f"_{event.kind}")(event)

    def sweep(self, now: datetime) -> None:
        """Everything that has lapsed is over."""
        for partition in self.partitions.values():
            partition.set_back(now)
            partition.lapse(now)

    def _fault(self, event: Event, why: str) -> None:
        answer = str(event.answer)[:300]
        self.faults.append(
            f"{why}: {event.number} {event.kind} {event.at} {str(event.what)[:300]} -> {answer}"
        )

    def _acquire(self, event: Event) -> None:
        assert event.at is not None
        partition, rows = self.partitions[event.at], event.answer
        request = event.what["request"]
        if request is not None and (not rows or rows[0][0] == OK):
            key = (event.at, event.what["member"], request)
            if key in self._requests:
                if self._requests[key] != rows:
                    self._fault(event, f"the same request was answered by {self._requests[key]}")
                return
            self._requests[key] = rows
        if rows and rows[0][0] != OK:
            if rows[0][0] not in (FENCED_STATE_EPOCH, UNKNOWN):
                self._fault(event, "refused")
            return
        partition.lapse(event.clock)
        taken = 0
        for row in rows:
            token, count, expires_at = row[3], row[7], row[6]
            partition.held[token] = Held(event.what["member"], event.clock, expires_at)
            for first, end in _runs(row[8]):
                for offset in range(first, end):
                    taken += 1
                    self._taken(event, partition, offset, token, count)
        free = any(not r.done and r.token is None for r in partition.records[partition.start :])
        if not rows and free:
            self._fault(event, "nothing was leased, and something is free")
        if rows and not taken:
            self._fault(event, "an empty lease")

    def _taken(self, event: Event, partition: Partition, offset: int, token: str, count: int) -> None:
        if offset >= len(partition.records) or offset < partition.start:
            self._fault(event, f"offset {offset} does not exist")
            return
        record = partition.records[offset]
        if record.done:
            self._fault(event, f"offset {offset} is done")
        if record.token is not None:
            self._fault(event, f"offset {offset} is held under {record.token}")
        if count != record.count + 1:
            self._fault(event, f"offset {offset} was delivered {record.count} times")
        record.token, record.count = token, count

    def _acknowledge(self, event: Event) -> None:
        assert event.at is not None
        partition, token = self.partitions[event.at], event.what["token"]
        parts: dict[str, list[int]] = event.what["parts"]
        code = event.answer[0][0]
        if code == UNKNOWN:
            return
        partition.lapse(event.clock)
        spso = partition.spso
        asked = [offset for chosen in parts.values() for offset in chosen if offset >= spso]
        all_held = all(partition.records[offset].token == token for offset in asked)
        fenced = event.what["epoch"] != partition.epoch
        if code != OK:
            if not fenced and all_held:
                self._fault(event, f"refused, but all is held, SPSO {spso}")
            if fenced and code != FENCED_STATE_EPOCH:
                self._fault(event, f"epoch {partition.epoch}")
            return
        if fenced:
            self._fault(event, f"not refused at epoch {partition.epoch}")
        if not all_held:
            self._fault(event, f"not refused, SPSO {spso}")
            return
        accepted = sum(offset >= spso for offset in parts["accept"])
        if event.answer[0][4] != accepted:
            self._fault(event, f"{accepted} were to be accepted")
        for name, chosen in parts.items():
            for offset in chosen:
                if offset < spso:
                    continue
                if name == "release":
                    partition.give_back(offset)
                else:
                    partition.records[offset].token = None
                    partition.records[offset].done = True
        if event.answer[0][2] != partition.spso:
            self._fault(event, f"SPSO is {partition.spso}")

    def _renew(self, event: Event) -> None:
        assert event.at is not None
        partition, token = self.partitions[event.at], event.what["token"]
        partition.lapse(event.clock)
        code, _, expires_at = event.answer[0]
        if code == UNKNOWN:
            return
        held = bool(partition.of(token))
        fenced = event.what["epoch"] != partition.epoch
        expected = FENCED_STATE_EPOCH if fenced else OK if held else INVALID_RECORD_STATE
        if code != expected:
            self._fault(event, f"expected {expected}")
        if code == OK and token in partition.held:
            held_now = partition.held[token]
            held_now.locked_at, held_now.expires_at = event.clock, expires_at

    def _release(self, event: Event) -> None:
        released = 0
        token, member = event.what["token"], event.what["member"]
        for partition in self.partitions.values():
            partition.lapse(event.clock)
            for each, held in list(partition.held.items()):
                if held.member == member and token in (None, each):
                    offsets = partition.of(each)
                    released += len(offsets)
                    for offset in offsets:
                        partition.give_back(offset)
                    del partition.held[each]
        if event.answer[0][0] != released:
            self._fault(event, f"{released} were held")

    def _force(self, event: Event) -> None:
        assert event.at is not None
        partition = self.partitions[event.at]
        if event.answer and event.answer[0][0] == UNKNOWN:
            return
        if event.answer and event.answer[0][0] != OK:
            self._fault(event, "refused")
            return
        partition.lapse(event.clock)
        for row in event.answer:
            act, offsets = row[2], row[6]
            for first, end in _runs(offsets):
                for offset in range(first, end):
                    record = partition.records[offset]
                    if act in ("release", "archive") and record.done:
                        self._fault(event, f"offset {offset} is done")
                    if act == "release":
                        record.token = None
                        record.count = min(record.count, LIMIT - 1)
                    elif act == "archive":
                        record.token, record.done = None, True

    def _alter_offsets(self, event: Event) -> None:
        assert event.at is not None
        before = self.partitions[event.at]
        (epoch,) = event.answer[0]
        if epoch <= before.epoch:
            self._fault(event, f"the epoch was {before.epoch}")
        self.partitions[event.at] = self._fresh(event.what["start"], epoch)

    def _delete_group(self, event: Event) -> None:
        if event.answer != [(True,)]:
            self._fault(event, "there was one")

    def _reset_offsets(self, event: Event) -> None:
        """The group is made again."""
        for code, _, topic, partition, _, start, epoch in event.answer:
            if code != OK:
                self._fault(event, "refused")
            self.partitions[topic, partition] = self._fresh(start, epoch)
        self._requests.clear()


def _runs(offsets: str) -> list[tuple[int, int]]:
    inside = offsets.strip("{}").replace("),", ") ").split()
    return [(int(first), int(end)) for first, end in (run.strip("[)").split(",") for run in inside)]
