"""Choose the records of a batch run, so that a record which kills its process takes no neighbour with it.

``fan_out`` redelivery: records whose delivery ended without an acknowledgement are suspects and come in parts, each
in a lease of its own, the last delivery alone; records that were released come back together, with fresh ones.
How a record becomes a suspect, and how large its part is, ``share_partition`` says.
"""

from __future__ import annotations

from sharequeue.domain.offsets import OffsetSet
from tests.oracle.acquiring import Acquisition, merged
from tests.oracle.records import LogBatch


class FanOutAcquisition(Acquisition):
    """An acquire by a batch run. Redelivery stops at the run's budget, fresh records at the window as well."""

    def run(self) -> None:
        """What may come again, then fresh records if nothing stands in their way."""
        if self.fetch.max_records <= 0:
            return
        again, followed = self._choose()
        self._redeliver(again)
        if followed:
            self._take_fresh()
        self._archive_aborted()

    def _left_out(self) -> OffsetSet:
        return self.fetch.leave_out

    def _occupied(self) -> int:
        return self.at.occupied(self.fetch.now)

    def _choose(self) -> tuple[list[int], bool]:
        """One part of suspects, if the lowest redeliverable record is one; else released records, which fresh ones
        may follow."""
        at = self.at
        now, left_out = self.fetch.now, self._left_out()
        available = sorted(
            offset
            for offset, record in at.records.items()
            if record.deliverable(now)
            and offset not in left_out
            # Past the last stable offset a reader would find nothing, and take it for a gap.
            and offset < self.fetch.log_end
        )
        part = at.records[available[0]].part if available else None
        if part is not None:
            head = at.records[available[0]]
            alike = [
                offset
                for offset in available
                if (at.records[offset].part, at.records[offset].delivery_count) == (part, head.delivery_count)
            ]
            if head.delivery_count >= self.policy.delivery_count_limit - 1:
                part = 1  # its last attempt, also where the limit was lowered since
            return alike[: min(part, self.fetch.max_records)], False
        return [o for o in available if at.records[o].part is None][: self.fetch.max_records], True

    def _redeliver(self, offsets: list[int]) -> None:
        for offset in offsets:
            self._take(self.at.records[offset])
        self.counted += len(offsets)
        self.ranges += merged((offset, self.at.records[offset].delivery_count) for offset in offsets)

    def _take_fresh(self) -> None:
        at = self.at
        if self.fetch.log is None:
            self.log = [LogBatch(at.speo, self.fetch.log_end - 1)] if at.speo < self.fetch.log_end else []
        read = [batch for batch in self.log if batch.last >= at.speo]
        room = self.policy.max_record_locks - self._occupied()
        self.budget = min(self.fetch.max_records, self.counted + room)
        if read and self.budget > self.counted:
            self._take_new(max(at.speo, read[0].first), read[-1].last)
