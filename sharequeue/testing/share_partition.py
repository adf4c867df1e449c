"""What is the state of one share-partition, one entry per offset, and how does it move by itself?

The slow and obvious form of Kafka's ``SharePartition``, written from the rules: which offset a fetch reads
next (R-NF), what a lapsed lock or a closed session does (R-LT, R-RL), when SPSO advances (R-SO), what a moved
log start does (R-LS), and the counts (R-EP). SPEO is exclusive: the next offset never delivered. How records
are acquired and answered is in ``acquiring``, ``fan_out`` and ``acknowledging``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from uuid import UUID

from sharequeue.leases import SharePartition
from sharequeue.testing.records import (
    Description,
    HeldLease,
    InFlightBatch,
    OffsetState,
    Policy,
    Record,
    RecordState,
)

AVAILABLE, ACQUIRED = RecordState.AVAILABLE, RecordState.ACQUIRED
ARCHIVING, ARCHIVED = RecordState.ARCHIVING, RecordState.ARCHIVED


class InMemorySharePartition:
    """One share-partition. Every method assumes that nothing else acts at the same time."""

    def __init__(self, name: SharePartition, topic_id: str, start_offset: int, state_epoch: int) -> None:
        self.name = name
        self.topic_id = topic_id
        self.state_epoch = state_epoch
        self.spso = start_offset
        self.speo = start_offset
        self.records: dict[int, Record] = {}
        self.batches: list[InFlightBatch] = []
        self.leases: dict[int, HeldLease] = {}
        self.gap_window: tuple[int, int] | None = None
        self.log_start = 0
        self.log_end = start_offset
        self.last_stable_offset: int | None = None
        self.recreated = False
        self.lost_records = 0
        self.splits = 0
        self.outcomes: Counter[tuple[str, int]] = Counter()
        self.transitions: set[tuple[RecordState, RecordState]] = set()

    def load(self, runs: Sequence[tuple[int, int, RecordState, int]]) -> None:
        """In-flight state from elsewhere, such as a broker's own share group (R-IN-5 to R-IN-8).

        Runs are (first, last, state, delivery count). Raises ValueError for a run below SPSO, reversed, or out
        of order.
        """
        gap_start: int | None = None
        expected = self.spso
        for first, last, state, count in runs:
            if first < expected or last < first or state is ACQUIRED:
                raise ValueError(f"run {first}-{last} {state.name} does not follow offset {expected}")
            if gap_start is None and first > expected:
                gap_start = expected
            self.add_batch(InFlightBatch(first, last))
            for offset in range(first, last + 1):
                self.records[offset] = Record(state, count)
            expected = last + 1
        if runs:
            self.speo = expected
            self.gap_window = (gap_start, expected - 1) if gap_start is not None else None
            self.advance_spso()

    # Figures

    @property
    def in_flight(self) -> int:
        """The span from SPSO to SPEO: terminal records and holes count as well (R-NF-5)."""
        return self.speo - self.spso

    @property
    def delivery_complete_count(self) -> int:
        """Terminal offsets at or above SPSO (R-EP-1)."""
        return sum(record.state.terminal for offset, record in self.records.items() if offset >= self.spso)

    @property
    def lag(self) -> int:
        """Log end − SPSO − delivery-complete count (R-EP-2); 0 where the log ends below that."""
        return max(0, self.log_end - self.spso - self.delivery_complete_count)

    def describe(self) -> Description:
        """Everything there is to see."""
        seen = {offset: self._seen(record) for offset, record in sorted(self.records.items())}
        unfinished = {o: s for o, s in seen.items() if o < self.spso and not s.state.terminal}
        truncated = self.log_end < self.spso + self.delivery_complete_count
        return Description(
            spso=self.spso,
            speo=self.speo,
            state_epoch=self.state_epoch,
            delivery_complete_count=self.delivery_complete_count,
            in_flight=self.in_flight,
            lag=self.lag,
            offsets={offset: state for offset, state in seen.items() if offset >= self.spso},
            overtaken=unfinished,
            next_fetch_offset=self.next_fetch_offset(),
            lost_records=self.lost_records,
            fault=f"the log ends at {self.log_end}, below what was delivered" if truncated else None,
        )

    def _seen(self, record: Record) -> OffsetState:
        holder = self.leases[record.lease_id].member_id if record.lease_id is not None else ""
        return OffsetState(record.state, record.delivery_count, holder, record.part is not None)

    # Where a fetch reads

    @property
    def gap_active(self) -> bool:
        """Whether holes of a loaded state are still to be acquired (R-IN-6, R-NF-3)."""
        return self.gap_window is not None and self.gap_window[1] == self.speo - 1

    def next_fetch_offset(self) -> int:
        """The first hole of a loaded state, else the lowest AVAILABLE offset, else SPEO (R-NF-1 to 3)."""
        gap_start = self.gap_window[0] if self.gap_window and self.gap_active else None
        for batch in self.batches:
            if gap_start is not None:
                if batch.first > gap_start:
                    return gap_start
                gap_start = max(gap_start, batch.last + 1)
            for offset in batch.offsets():
                if offset in self.records and self.records[offset].state is AVAILABLE:
                    return offset
        return self.speo

    # Batches

    def add_batch(self, batch: InFlightBatch) -> None:
        """Keeps the batches in order of their offsets."""
        self.batches.append(batch)
        self.batches.sort(key=lambda b: b.first)

    def floor_batch(self, offset: int) -> InFlightBatch | None:
        """The last batch that begins at or below an offset."""
        return next((batch for batch in reversed(self.batches) if batch.first <= offset), None)

    def batches_between(self, first: int, last: int) -> list[InFlightBatch]:
        """The batches that begin within the bounds, both inclusive."""
        return [batch for batch in self.batches if first <= batch.first <= last]

    # Single records

    def move(self, record: Record, state: RecordState) -> None:
        """One transition of the diagram; only ACQUIRED has a holder."""
        self.transitions.add((record.state, state))
        record.state = state
        if state is not ACQUIRED:
            record.lease_id = record.expires_at = None

    def give_up(self, record: Record, cause: str, policy: Policy) -> None:
        """ARCHIVING where the group has a DLQ, else ARCHIVED (R-ST-4, R-AK-12)."""
        record.cause = cause
        self.move(record, ARCHIVING if policy.dead_letters else ARCHIVED)
        if not policy.dead_letters:
            self.outcomes[cause, record.delivery_count] += 1

    def give_back(self, record: Record, policy: Policy) -> None:
        """AVAILABLE again, or given up when its deliveries are used up (R-ST-4, R-ST-5)."""
        if record.delivery_count >= policy.delivery_count_limit:
            self.give_up(record, "exceeded", policy)
        else:
            self.move(record, AVAILABLE)

    # Deliveries that end without an answer

    def settle(self, now: float, policy: Policy) -> tuple[int, int]:
        """What the lapsed locks leave behind (R-LT); answers how many leases and records lapsed."""
        lapsed = [o for o, r in self.records.items() if r.expires_at is not None and r.expires_at <= now]
        leases = self.end_unanswered(lapsed, policy)
        return leases, len(lapsed)

    def release(self, member_id: str, policy: Policy, token: UUID | None = None) -> int:
        """Everything a member holds, or one lease of it, goes back unanswered; counts stay (R-RL-6)."""
        held = self.held(member_id, token)
        self.end_unanswered(held, policy)
        return len(held)

    def held(self, member_id: str, token: UUID | None = None) -> list[int]:
        """What a member holds, or what it holds under one lease, in order."""
        return [
            offset
            for offset, record in sorted(self.records.items())
            if record.lease_id is not None
            and self.leases[record.lease_id].member_id == member_id
            and token in (None, self.leases[record.lease_id].token)
        ]

    def renew(self, member_id: str, policy: Policy, now: float, token: UUID | None = None) -> float | None:
        """A full lock duration from now for all that is held (R-RN-1); the earliest expiry, None if nothing is."""
        expiries = []
        for offset in self.held(member_id, token):
            record = self.records[offset]
            own = self.leases[record.lease_id].lock_seconds if record.lease_id is not None else None
            record.expires_at = now + (policy.lock_seconds if own is None else own)
            expiries.append(record.expires_at)
        return min(expiries, default=None)

    def end_unanswered(self, offsets: Iterable[int], policy: Policy) -> int:
        """Records whose delivery ended without an outcome, lease by lease; SPSO is tried afterwards."""
        by_lease: dict[int, list[int]] = {}
        for offset in sorted(offsets):
            lease_id = self.records[offset].lease_id
            if lease_id is not None:
                by_lease.setdefault(lease_id, []).append(offset)
        for lease_id, held in sorted(by_lease.items()):
            redelivery = self.leases[lease_id].redelivery
            together = [self.records[offset] for offset in held if offset >= self.spso]
            for offset in held:
                if offset < self.spso:  # the log start has overtaken it (R-LT-3, R-LS-6)
                    self.move(self.records[offset], ARCHIVED)
            if redelivery == "fan_out":
                self._suspect(together, policy)
            else:
                for record in together:
                    self.give_back(record, policy)
        if by_lease:
            self.forget_ended_leases()
            self.advance_spso()
        return len(by_lease)

    def _suspect(self, records: Sequence[Record], policy: Policy) -> None:
        """Any of these may have killed its process: they come again in parts, the last delivery alone."""
        by_count: dict[int, list[Record]] = {}
        for record in records:
            by_count.setdefault(record.delivery_count, []).append(record)
        for count, alike in by_count.items():
            left = policy.delivery_count_limit - count
            for record in alike:
                if left > 0:
                    record.part = part_size(len(alike), left)
                    self.move(record, AVAILABLE)
                elif len(records) > 1:  # its last delivery was shared: one more, alone, at the same count
                    record.part = 1
                    self.move(record, AVAILABLE)
                else:
                    self.give_up(record, "exceeded", policy)

    def split_leases(self, renewed: Collection[int]) -> None:
        """Where only a part of a lease was renewed, the part goes on apart, under the same token."""
        by_lease: dict[int, list[int]] = {}
        for offset, record in self.records.items():
            if record.lease_id is not None:
                by_lease.setdefault(record.lease_id, []).append(offset)
        for lease_id, held in by_lease.items():
            kept = [offset for offset in held if offset in renewed]
            if 0 < len(kept) < len(held):
                self.splits += 1
                part = replace(self.leases[lease_id], lease_id=-self.splits)
                self.leases[part.lease_id] = part
                for offset in kept:
                    self.records[offset].lease_id = part.lease_id

    def forget_ended_leases(self) -> None:
        """Leases under which nothing is held any more."""
        held = {record.lease_id for record in self.records.values()}
        self.leases = {lease_id: lease for lease_id, lease in self.leases.items() if lease_id in held}

    # SPSO

    def advance_spso(self) -> None:
        """SPSO passes what is terminal, and holes behind it, up to the first unfinished offset (R-SO).

        The walk begins at SPSO, not at the first batch as Kafka's does: records that the log start has
        overtaken and that are still held do not keep SPSO from moving.
        """
        gap_start = self.gap_window[0] if self.gap_window and self.gap_active else None
        while self.spso < self.speo and self.spso != gap_start:
            record = self.records.get(self.spso)
            if record is None:
                if gap_start is not None:
                    break
                self.spso = min((o for o in self.records if o > self.spso), default=self.speo)
            elif record.state.terminal:
                self.spso += 1
            else:
                break
        self.speo = max(self.speo, self.spso)
        self._evict()

    def _evict(self) -> None:
        """Whole batches below SPSO in which nothing is held go; a partly finished one stays (R-SO-5)."""
        kept = []
        for batch in self.batches:
            below = batch.last < self.spso
            if below and all(self.records[o].state.terminal for o in batch.offsets() if o in self.records):
                for offset in batch.offsets():
                    self.records.pop(offset, None)
            else:
                kept.append(batch)
        self.batches = kept

    def advance_log_start(self, log_start: int) -> int:
        """The log now starts here: AVAILABLE records below are gone, held ones stay held (R-LS).

        Answers how many records were lost: removed before they were processed.
        """
        self.log_start = max(self.log_start, log_start)
        if log_start <= self.spso:
            return 0
        lost = max(0, log_start - self.speo)
        for offset, record in self.records.items():
            if offset < log_start and record.state is AVAILABLE:
                self.move(record, ARCHIVED)
                lost += 1
        self.spso = log_start
        self.speo = max(self.speo, log_start)
        self.lost_records += lost
        self._evict()
        return lost

    def verify(self) -> list[str]:
        """The invariants that do not hold, in words; empty when all do."""
        wrong = []
        ends = [(batch.first, batch.last) for batch in self.batches]
        if any(last >= first for (_, last), (first, _) in pairwise(ends)):
            wrong.append("in-flight batches overlap")
        if set(self.records) != {offset for batch in self.batches for offset in batch.offsets()}:
            wrong.append("in-flight batches and records do not cover the same offsets")
        if self.spso > self.speo:
            wrong.append(f"SPSO {self.spso} lies past SPEO {self.speo}")
        for offset, record in self.records.items():
            held = record.state is ACQUIRED
            if held != (record.lease_id in self.leases) or held != (record.expires_at is not None):
                wrong.append(f"offset {offset} is {record.state.name} without exactly one lease and expiry")
            if offset >= self.speo:
                wrong.append(f"offset {offset} lies at or past SPEO {self.speo}")
            if held and record.delivery_count < 1:
                wrong.append(f"offset {offset} is held with delivery count {record.delivery_count}")
        return wrong


def part_size(suspects: int, deliveries_left: int) -> int:
    """How many of so many suspects may share a lease, if the last delivery is to hold each alone.

    They are divided into k = ⌈N^(1 / deliveries left)⌉ parts.
    """
    parts = 1
    while parts**deliveries_left < suspects:
        parts += 1
    return math.ceil(suspects / parts)
