"""The log of a topic, as far as share groups can see it.

One partition's log as a scenario makes it: batches, which offsets still hold a record, transactions, where it
starts and ends. No broker is needed for it: the recorded results of `produce` are the offsets.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from sharequeue.domain.offsets import OffsetSet
from tests.conformance.engines import LogEnds
from tests.oracle import LogBatch

_DURATION = re.compile(r"^P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?$")


@dataclass(slots=True)
class PartitionLog:
    """One partition's log. Times are seconds on the scenario's clock."""

    batches: list[LogBatch] = field(default_factory=list)
    data: set[int] = field(default_factory=set)
    times: dict[int, float] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)
    open: dict[str, list[LogBatch]] = field(default_factory=dict)
    start: int = 0
    end: int = 0

    def produce(self, first: int, last: int, at: float, transaction: str | None) -> None:
        """One log batch."""
        batch = LogBatch(first, last)
        self.batches.append(batch)
        self.data.update(range(first, last + 1))
        self.times.update(dict.fromkeys(range(first, last + 1), at))
        self.end = last + 1
        if transaction is not None:
            self.open.setdefault(transaction, []).append(batch)

    def finish(self, transaction: str, committed: bool) -> None:
        """The transaction's marker: a batch of one offset that holds no record."""
        written = self.open.pop(transaction, None)
        if written is None:
            return
        self.batches.append(LogBatch(self.end, self.end))
        self.end += 1
        if not committed:
            self.aborted.update(o for batch in written for o in range(batch.first, batch.last + 1))

    def delete_before(self, offset: int) -> None:
        """DeleteRecords: a batch that reaches past the offset is still read whole."""
        self.start = max(self.start, offset)
        self.batches = [batch for batch in self.batches if batch.last >= self.start]
        self.data = {o for o in self.data if o >= self.start}

    def compact(self, left: Sequence[int]) -> None:
        """The log cleaner: batches of which nothing is left are gone."""
        self.data = set(left)
        self.batches = [b for b in self.batches if any(b.first <= o <= b.last for o in left)]

    def ends(self, now: float, reset: str) -> LogEnds:
        """Where it starts and ends for a group with this reset policy."""
        unfinished = [batches[0].first for batches in self.open.values()]
        young = None
        if reset.startswith("by_duration:"):
            young = self.first_since(now - seconds_of(reset.removeprefix("by_duration:")))
        return LogEnds(self.start, self.end, min([*unfinished, self.end]), young)

    def first_since(self, moment: float) -> int | None:
        """The first record at or after a moment."""
        return min((offset for offset in self.data if self.times[offset] >= moment), default=None)

    def aborted_set(self) -> OffsetSet:
        """The records of aborted transactions."""
        return OffsetSet.from_offsets(self.aborted)


def seconds_of(duration: str) -> float:
    """The length of an ISO-8601 duration of days, hours, minutes and seconds."""
    found = _DURATION.match(duration)
    if found is None:
        raise ValueError(f"{duration!r} is no duration such as PT1H")
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
