"""The slow, obvious share-partition: one entry per offset, written from the rules, sharing no code with the
engine.

What `tests/integration/test_state_machine.py` holds the SQL functions against. Rules: KIP-932's states and
delivery counts, KIP-1191's two phases, and fan_out redelivery as `docs/architecture.md` tells it. Time is a
number that the test moves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field


class Refused(Exception):
    """The call is refused and nothing has changed."""


@dataclass
class Record:
    """One offset that was delivered at least once."""

    state: str = "available"  # available, acquired, acknowledged, archiving, archived
    count: int = 0
    lease: int | None = None
    cause: str | None = None
    isolate: int | None = None


@dataclass
class Held:
    """One lease: who, until when."""

    member: str
    expires_at: float


@dataclass
class Model:
    """One share-partition of a group with a dead-letter topic."""

    limit: int
    lock: float
    max_locks: int
    spso: int = 0
    speo: int = 0
    log_end: int = 0
    lost: int = 0
    now: float = 0.0
    records: dict[int, Record] = field(default_factory=dict)
    leases: dict[int, Held] = field(default_factory=dict)
    open_batch: list[int] = field(default_factory=list)
    counts: dict[tuple[str, int], int] = field(default_factory=dict)
    transitions: set[tuple[str, str]] = field(default_factory=set)

    def acquire(self, lease: int, member: str, most: int) -> dict[int, int]:
        """Delivery counts by offset of what the lease gets; empty when there is nothing."""
        self._settle()
        available = sorted(o for o, r in self.records.items() if r.state == "available")
        taken: list[int] = []
        fresh_budget = most
        if available and self.records[available[0]].isolate is not None:
            head = self.records[available[0]]
            alike = [o for o in available if self._kind(o) == (head.count, head.isolate)]
            taken, fresh_budget = alike[: min(most, head.isolate or 0)], 0
        elif available:
            taken = [o for o in available if self.records[o].isolate is None][:most]
            fresh_budget = most - len(taken)
        fresh = range(
            self.speo, max(self.speo, min(self.log_end, self.speo + fresh_budget, self.spso + self.max_locks))
        )
        for offset in fresh:
            self.records[offset] = Record()
        self.speo = max(self.speo, fresh.stop)
        delivered = {}
        for offset in [*taken, *fresh]:
            record = self.records[offset]
            record.count = record.count if record.count >= self.limit else record.count + 1
            self._move(record, "acquired")
            record.lease, record.isolate = lease, None
            delivered[offset] = record.count
        if delivered:
            self.leases[lease] = Held(member, self.now + self.lock)
        return delivered

    def acknowledge(self, lease: int, member: str, answers: dict[int, str]) -> None:
        """Accept, release, reject or gap by offset; all or nothing."""
        self._settle()
        live = {o: a for o, a in answers.items() if o >= self.spso}
        holder = self.leases.get(lease)
        for offset in live:
            record = self.records.get(offset)
            if holder is None or holder.member != member or record is None or record.lease != lease:
                raise Refused
        for offset, answer in live.items():
            record = self.records[offset]
            record.lease = None
            if answer == "accept":
                self._move(record, "acknowledged")
                self._count("accepted", record)
            elif answer == "gap":
                self._move(record, "archived")
                self._count("gap", record)
            elif answer == "reject":
                self._give_up(record, "rejected")
            elif record.count >= self.limit:
                self._give_up(record, "exceeded")
            else:
                self._move(record, "available")
        if holder is not None and holder.member == member:
            for offset in [o for o, r in self.records.items() if r.lease == lease and o < self.spso]:
                del self.records[offset]
        self._forget(lease)
        self._advance()

    def renew(self, lease: int, member: str) -> None:
        self._settle()
        if lease not in self.leases or self.leases[lease].member != member:
            raise Refused
        self.leases[lease].expires_at = self.now + self.lock

    def release(self, member: str) -> None:
        """Everything the member holds goes back without an answer."""
        held = [number for number, held in self.leases.items() if held.member == member]
        for lease in held:
            self._end_unanswered(lease)
        if held:
            self._advance()

    def sweep(self) -> None:
        self._settle()

    def log_start(self, start: int) -> None:
        if start <= self.spso:
            return
        for offset in [o for o in self.records if o < start]:
            if self.records[offset].state == "available":
                self.lost += 1
            if self.records[offset].state in ("available", "acknowledged", "archived"):
                del self.records[offset]
        self.lost += max(0, start - self.speo)
        self.spso, self.speo = start, max(self.speo, start)  # SPSO goes on with the next answer (R-SO)

    def open_dead_letters(self, most: int) -> list[int]:
        if not self.open_batch:
            self.open_batch = sorted(o for o, r in self.records.items() if r.state == "archiving")[:most]
        return self.open_batch

    def close_dead_letters(self) -> None:
        for offset in self.open_batch:
            record = self.records[offset]
            self._move(record, "archived")
            self._count(record.cause or "", record)
            if offset < self.spso:
                del self.records[offset]
        self.open_batch = []
        self._advance()

    def complete(self) -> int:
        return sum(r.state in ("acknowledged", "archived") for o, r in self.records.items() if o >= self.spso)

    def _settle(self) -> None:
        lapsed = [number for number, held in self.leases.items() if held.expires_at <= self.now]
        for lease in lapsed:
            self._end_unanswered(lease)
        if lapsed:
            self._advance()

    def _end_unanswered(self, lease: int) -> None:
        held = [o for o, r in self.records.items() if r.lease == lease]
        by_count: dict[int, list[int]] = {}
        for offset in held:
            record = self.records[offset]
            record.lease = None
            if offset < self.spso:
                del self.records[offset]
            else:
                by_count.setdefault(record.count, []).append(offset)
        for count, offsets in by_count.items():
            for offset in offsets:
                record = self.records[offset]
                if count < self.limit:
                    parts = math.ceil(round(len(offsets) ** (1 / (self.limit - count)), 9))
                    record.isolate = math.ceil(len(offsets) / parts)
                    self._move(record, "available")
                elif len(held) > 1:
                    record.isolate = 1
                    self._move(record, "available")
                else:
                    self._give_up(record, "exceeded")
        del self.leases[lease]

    def _give_up(self, record: Record, cause: str) -> None:
        record.cause = cause
        self._move(record, "archiving")

    def _move(self, record: Record, state: str) -> None:
        self.transitions.add((record.state, state))
        record.state = state

    def _count(self, outcome: str, record: Record) -> None:
        self.counts[outcome, record.count] = self.counts.get((outcome, record.count), 0) + 1

    def _kind(self, offset: int) -> tuple[int, int | None]:
        return self.records[offset].count, self.records[offset].isolate

    def _forget(self, lease: int) -> None:
        if lease in self.leases and not any(r.lease == lease for r in self.records.values()):
            del self.leases[lease]

    def _advance(self) -> None:
        while self.spso in self.records and self.records[self.spso].state in ("acknowledged", "archived"):
            del self.records[self.spso]
            self.spso += 1
        self.speo = max(self.speo, self.spso)
