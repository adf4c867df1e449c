"""Choose the records of a fetch.

Kafka's way: records that may come again first, by batch and offset, then fresh ones (R-AQ), slower and slower
as a batch nears its delivery limit (R-TH). Log-batch boundaries are optional. Given, both budgets are soft in
``batch_optimized``, as in Kafka; left out, one acquire is one batch, and everything is cut exactly at its
budget. Poison isolation by ``fan_out`` is in its own module.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.oracle.records import (
    AcquiredRange,
    Fetch,
    Given,
    HeldLease,
    InFlightBatch,
    LogBatch,
    Policy,
    Record,
    RecordState,
)
from tests.oracle.share_partition import InMemorySharePartition

AVAILABLE, ACQUIRED = RecordState.AVAILABLE, RecordState.ACQUIRED


class Acquisition:
    """One acquire under way: what it may still take, and what it has."""

    def __init__(
        self, at: InMemorySharePartition, fetch: Fetch, policy: Policy, lease: HeldLease, expires_at: float
    ) -> None:
        self.at = at
        self.fetch = fetch
        self.policy = policy
        self.lease = lease
        self.expires_at = expires_at
        self.exact = fetch.log is None or fetch.mode == "record_limit"
        self.log = [] if fetch.log is None else list(fetch.log)
        self.ranges: list[AcquiredRange] = []
        self.counted = 0
        self.budget = 0

    def run(self) -> None:
        """Redeliverable records by batch and offset, then fresh ones, within the budget (R-AQ)."""
        at = self.at
        offset = at.next_fetch_offset(self.fetch.now)
        if self.fetch.log is None:
            self.log = [LogBatch(offset, self.fetch.log_end - 1)] if offset < self.fetch.log_end else []
        read = [batch for batch in self.log if batch.last >= offset]
        if self.fetch.max_records <= 0 or not read or read[-1].last < at.spso:
            return
        log_base, last = read[0].first, self._set_budget(offset, read[-1].last)
        if self.budget <= 0:
            return
        self._archive_compacted(offset, log_base)
        base = self._base(log_base)
        overlap = at.batches_between(min(log_base, base), last)
        if not overlap:
            self._take_new(base, last)
        elif self._take_again(overlap, base, log_base, last) and overlap[-1].last < last:
            self._take_new(overlap[-1].last + 1, last)
        self._move_gap_window()
        self._archive_aborted()

    def _set_budget(self, offset: int, last: int) -> int:
        """How many records, and up to which offset (R-AQ-2)."""
        room = self.policy.max_record_locks - self.at.occupied(self.fetch.now)
        self.budget = min(self.fetch.max_records, room)
        if self.budget <= 0 and offset < self.at.speo:
            self.budget = min(self.fetch.max_records, self.at.speo - offset)
            return min(last, self.at.speo - 1)
        return last

    def _archive_compacted(self, offset: int, log_base: int) -> None:
        """What the log no longer has between the offset asked for and the first it gave (R-AQ-3)."""
        for missing in range(offset, log_base):
            record = self.at.records.get(missing)
            if record is not None and record.state is AVAILABLE:
                self.at.move(record, RecordState.ARCHIVED)
                self.at.outcomes["gap", record.delivery_count] += 1
                self.at.advance_due = True

    def _base(self, log_base: int) -> int:
        """Where the window begins for this fetch (R-AQ-4)."""
        floor = self.at.floor_batch(log_base)
        if floor is None:
            return max(log_base, self.at.spso)
        return floor.first if floor.last >= log_base else log_base

    def _take_again(self, overlap: list[InFlightBatch], base: int, log_base: int, last: int) -> bool:
        """Batches that were delivered before, in order; return whether fresh records may follow."""
        hole = base
        for batch in overlap:
            if self.counted >= self.budget:
                return False
            if self.at.gap_active:
                if hole < batch.first:
                    self._take_new(hole, batch.first - 1)
                hole = batch.last + 1
                if self.counted >= self.budget:
                    return False
            throttled = self._throttled(batch, log_base, last)
            if throttled and self.counted:
                return False  # R-TH-3
            whole = batch.first >= log_base and batch.last <= last
            too_long = self.exact and batch.last - batch.first + 1 > self.budget - self.counted
            if self._uniform(batch) and whole and not throttled and not too_long:
                self._take_whole(batch)
            elif self._take_part(batch, log_base, last) and throttled:
                return False  # R-TH-6
        return self.counted < self.budget

    def _uniform(self, batch: InFlightBatch) -> bool:
        """Whether Kafka would still hold the batch as one (R-ST-3): else it keeps its offsets apart."""
        records = [self.at.records[offset] for offset in batch.offsets()]
        return len({(r.state, r.delivery_count, r.deliverable(self.fetch.now)) for r in records}) == 1

    def _take_whole(self, batch: InFlightBatch) -> None:
        """All of a batch, past the budget if need be, unless it is not to be had (R-AQ-6 d)."""
        if not self.at.records[batch.first].deliverable(self.fetch.now):
            return
        for offset in batch.offsets():
            self._take(self.at.records[offset])
        self.counted += batch.last - batch.first + 1
        self.ranges.append(
            AcquiredRange(batch.first, batch.last, self.at.records[batch.first].delivery_count)
        )

    def _throttled(self, batch: InFlightBatch, first: int, last: int) -> bool:
        """Whether a batch nears its delivery limit (R-TH-2)."""
        counts = [self.at.records[offset].delivery_count for offset in self._available(batch, first, last)]
        return max(counts, default=0) >= self.policy.throttle_threshold

    def _available(self, batch: InFlightBatch, first: int, last: int) -> list[int]:
        window = range(max(batch.first, first), min(batch.last, last) + 1)
        return [offset for offset in window if self.at.records[offset].deliverable(self.fetch.now)]

    def _take_part(self, batch: InFlightBatch, first: int, last: int) -> int:
        """Offset by offset: the throttle's cap and the lone last attempt (R-AQ-8, R-TH-4, R-TH-5)."""
        limit, threshold = self.policy.delivery_count_limit, self.policy.throttle_threshold
        remaining = self.budget - self.counted
        cap: int | None = None
        taken: list[int] = []
        for offset in self._available(batch, first, last):
            count = self.at.records[offset].delivery_count
            # Also one that shared its last delivery: it comes once more, alone and uncounted.
            last_attempt = (limit > 2 and count == limit - 1) or self._spent(self.at.records[offset])
            if last_attempt and taken:
                break
            if count >= threshold and cap is None:
                cap = max(1, (batch.last - batch.first + 1) >> (count - threshold + 1))
            self._take(self.at.records[offset])
            taken.append(offset)
            # Equality, not "at least": a cap that was passed before it was set never stops (R-TH-4).
            if last_attempt or len(taken) == cap or (self.exact and len(taken) == remaining):
                break
        self.counted += len(taken)
        self.ranges += merged((offset, self.at.records[offset].delivery_count) for offset in taken)
        return len(taken)

    def _take_new(self, first: int, last: int) -> None:
        """Fresh records as new batches, cut on log-batch boundaries where there are any (R-AQ-10 to 14)."""
        budget, bound = self.budget - self.counted, last
        if not self.at.gap_active:
            first = max(first, self.at.speo)
        if first > last or budget <= 0:
            return
        if budget < last - first + 1:
            last = first + budget - 1
            if self.fetch.log is not None:
                last = next((b.last for b in self.log if b.first <= last <= b.last), last)
            if self.at.gap_active:
                last = min(last, bound)
        for start, end in self._split(first, last):
            acquired_to = min(end, start + budget - 1) if self.exact else end
            batch = InFlightBatch(start, end)
            for offset in batch.offsets():
                self.at.records[offset] = Record()
                if offset <= acquired_to:
                    self._take(self.at.records[offset])
            if not any(other.last >= self.at.spso for other in self.at.batches if other.first < start):
                self.at.spso = max(self.at.spso, start)  # R-AQ-14: the window begins with its first batch
            self.at.add_batch(batch)
            self.at.speo = max(self.at.speo, end + 1)
            self.counted += acquired_to - start + 1
            self.ranges.append(AcquiredRange(start, acquired_to, 1))

    def _split(self, first: int, last: int) -> list[tuple[int, int]]:
        """Batches of about the batch size, on log-batch boundaries only (R-AQ-11); one in record_limit."""
        starts = [first]
        if not self.exact and last - first + 1 > self.fetch.batch_size:
            for batch in self.log:
                if batch.first <= last and batch.first - starts[-1] >= self.fetch.batch_size:
                    starts.append(batch.first)
        return list(zip(starts, [start - 1 for start in starts[1:]] + [last], strict=True))

    def _spent(self, record: Record) -> bool:
        """Whether a suspect's deliveries are used up: it shared the last one."""
        return record.part is not None and record.delivery_count >= self.policy.delivery_count_limit

    def _take(self, record: Record) -> None:
        counted = not self._spent(record)
        self.at.move(record, ACQUIRED)
        record.delivery_count += counted
        record.given.append(Given(record.delivery_count))
        record.lease_id = self.lease.lease_id
        record.locked_at, record.expires_at = self.fetch.now, self.expires_at

    def _move_gap_window(self) -> None:
        """What of a loaded state's holes is still to be acquired (R-AQ-15)."""
        if self.at.gap_window is None or not self.ranges:
            return
        following = self.ranges[-1].last + 1
        keeps = self.at.gap_active and following <= self.at.gap_window[1]
        self.at.gap_window = (following, self.at.gap_window[1]) if keeps else None

    def _archive_aborted(self) -> None:
        """Under read_committed, records of aborted transactions end here, budget spent (R-IL-3)."""
        if not self.policy.read_committed or not self.fetch.aborted:
            return
        ranges: list[AcquiredRange] = []
        for acquired in self.ranges:
            kept: list[tuple[int, int]] = []
            for offset in range(acquired.first, acquired.last + 1):
                if offset in self.fetch.aborted:
                    self.at.move(self.at.records[offset], RecordState.ARCHIVED)
                    self.at.outcomes["gap", acquired.delivery_count] += 1
                    self.at.advance_due = True
                else:
                    kept.append((offset, acquired.delivery_count))
            ranges += merged(kept)
        self.ranges = ranges


def merged(offsets: Iterable[tuple[int, int]]) -> list[AcquiredRange]:
    """Ascending (offset, delivery count) pairs as ranges: neighbours of equal count are one (R-AQ-8)."""
    ranges: list[AcquiredRange] = []
    for offset, count in offsets:
        if ranges and ranges[-1].last + 1 == offset and ranges[-1].delivery_count == count:
            ranges[-1] = AcquiredRange(ranges[-1].first, offset, count)
        else:
            ranges.append(AcquiredRange(offset, offset, count))
    return ranges
