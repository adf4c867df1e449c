"""The records of a share-partition in flight, one entry per offset, and their figures.

The slow and obvious form of what Kafka's ``SharePartition`` keeps, written from the rules: which offset a fetch reads
next (R-NF), single transitions (R-ST), when SPSO advances (R-SO), what a moved log start does (R-LS), and the counts
(R-EP). SPEO is exclusive: the next offset never delivered. Who holds what, and how that ends, is in
``share_partition``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from sharequeue.domain.values import SharePartition
from tests.oracle.circuit_breaker import CircuitBreaker
from tests.oracle.records import (
    Description,
    HeldLease,
    InFlightBatch,
    Kept,
    LetterOfKey,
    OffsetState,
    Policy,
    Record,
    RecordState,
)

AVAILABLE, ACQUIRED = RecordState.AVAILABLE, RecordState.ACQUIRED
ARCHIVING, ARCHIVED = RecordState.ARCHIVING, RecordState.ARCHIVED


class InFlightWindow:
    """The records and batches between SPSO and SPEO, and the leases they are held under."""

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
        self.replaced_topic_ids: tuple[str, ...] = ()
        self.paused_reason: str | None = None
        self.circuit: CircuitBreaker | None = None
        self.letters: dict[int, LetterOfKey] = {}
        """Dead letters that were written and hold their key, by offset."""
        self.lost_records = 0
        self.splits = 0
        self.begun = 0
        """How many leases have begun."""
        self.kept: list[Kept] = []
        self.outcomes: Counter[tuple[str, int]] = Counter()
        self.transitions: set[tuple[RecordState, RecordState]] = set()
        self.advance_due = False
        """Whether an acquire has archived something, and SPSO has not been moved since."""

    def next_lease(self) -> int:
        """Draw the number of a lease."""
        self.begun += 1
        return self.begun

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

    def waiting(self, now: float) -> int:
        """Records that are AVAILABLE and wait for their time."""
        return sum(r.state is AVAILABLE and not r.deliverable(now) for r in self.records.values())

    def occupied(self, now: float) -> int:
        """What counts towards ``share.partition.max.record.locks``: the span without what waits, which would stall
        the window."""
        return self.in_flight - self.waiting(now)

    @property
    def delivery_complete_count(self) -> int:
        """Terminal offsets at or above SPSO (R-EP-1)."""
        return sum(record.state.terminal for offset, record in self.records.items() if offset >= self.spso)

    @property
    def lag(self) -> int:
        """Log end − SPSO − delivery-complete count (R-EP-2); 0 where the log ends below that."""
        return max(0, self.log_end - self.spso - self.delivery_complete_count)

    def describe(self, now: float) -> Description:
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
            next_fetch_offset=self.next_fetch_offset(now),
            lost_records=self.lost_records,
            waiting=self.waiting(now),
            fault=f"the log ends at {self.log_end}, below delivered records" if truncated else None,
        )

    def _seen(self, record: Record) -> OffsetState:
        holder = self.leases[record.lease_id].member_id if record.lease_id is not None else ""
        return OffsetState(record.state, record.delivery_count, holder, record.part is not None)

    # Where a fetch reads

    @property
    def gap_active(self) -> bool:
        """Whether holes of a loaded state are still to be acquired (R-IN-6, R-NF-3)."""
        return self.gap_window is not None and self.gap_window[1] == self.speo - 1

    def next_fetch_offset(self, now: float) -> int:
        """The first hole of a loaded state, else the lowest AVAILABLE offset whose time has come, else SPEO (R-NF-1
        to 3)."""
        gap_start = self.gap_window[0] if self.gap_window and self.gap_active else None
        for batch in self.batches:
            if gap_start is not None:
                if batch.first > gap_start:
                    return gap_start
                gap_start = max(gap_start, batch.last + 1)
            for offset in batch.offsets():
                if offset in self.records and self.records[offset].deliverable(now):
                    return offset
        return self.speo

    # Batches

    def add_batch(self, batch: InFlightBatch) -> None:
        """Keep the batches in order of their offsets."""
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
        """One transition of the diagram; only ACQUIRED has a holder, only AVAILABLE waits or is a suspect."""
        self.transitions.add((record.state, state))
        if record.state is ACQUIRED and record.given:
            record.given[-1].ended_as = state
        record.state = state
        record.part = record.not_before = None
        if state is not ACQUIRED:
            record.lease_id = record.locked_at = record.expires_at = None
        if state.terminal:
            record.reported = None

    def give_up(self, record: Record, cause: str, policy: Policy) -> None:
        """ARCHIVING where the group has a DLQ, else ARCHIVED (R-ST-4, R-AK-12)."""
        record.cause = cause
        self.move(record, ARCHIVING if policy.dead_letters else ARCHIVED)
        if not policy.dead_letters:
            self.outcomes[cause, record.delivery_count] += 1

    def give_back(self, record: Record, policy: Policy, not_before: float | None = None) -> None:
        """AVAILABLE again, from that time on if one is given; or given up when its deliveries are used up (R-ST-4,
        R-ST-5)."""
        if record.delivery_count >= policy.delivery_count_limit:
            self.give_up(record, "exhausted", policy)
        else:
            self.move(record, AVAILABLE)
            record.not_before = not_before

    # SPSO

    def advance_spso(self) -> None:
        """SPSO passes what is terminal, and holes behind it, up to the first unfinished offset (R-SO).

        The walk begins at SPSO, not at the first batch as Kafka's does: records that the log start has
        overtaken and that are still held do not keep SPSO from moving.
        """
        self.advance_due = False
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

    def advance_if_due(self) -> bool:
        """Advance SPSO where an acquire has left that to an acknowledgement (R-SO-1); return whether it had."""
        due = self.advance_due
        if due:
            self.advance_spso()
        return due

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

        Return how many records were lost: removed before they were finished, those that are held among them.
        """
        self.log_start = max(self.log_start, log_start)
        if log_start <= self.spso:
            return 0
        lost = max(0, log_start - self.speo)
        for offset, record in self.records.items():
            if offset < log_start and record.state is AVAILABLE:
                self.move(record, ARCHIVED)
                lost += 1
            elif offset < log_start and record.state is ACQUIRED:
                lost += offset >= self.spso
                record.reported = None  # whatever becomes of it, it is not delivered again
        self.spso = log_start
        self.speo = max(self.speo, log_start)
        self.lost_records += lost
        self.advance_spso()
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
