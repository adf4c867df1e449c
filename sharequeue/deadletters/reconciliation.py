"""Does a dead-letter topic hold exactly what Postgres has archived for a group?

Both ways. A letter that Postgres does not know was invented, or altered; one that is there twice is doubled; a record
that Postgres has as written, and that has no letter, is missing. What the topic's retention has removed is not
missing.

Which records must have a letter: those of batches that were closed before the reading began. The letters of one
source partition stand in the topic in the order of their batches, and within a batch in the order of offsets. So:

- From where an earlier reading ended, everything must be there.
- Without an earlier one, or where the topic's log now starts behind its end: if the log starts at 0, everything. Else
  everything from the first letter of that source partition on which is still there. If there is none, the batches
  that were opened after the oldest letter of the dead-letter partition was written.
- The dead-letter topic may have grown, and with it the partition of a source's letters has changed. So all partitions
  count that it can have been.
- Up to the end of the partition, or to the last letter that was read if the reading ended before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import NamedTuple

from sharequeue.deadletters.archived import ArchivedLetters, ArchivedSpan
from sharequeue.deadletters.judging import CLOCKS_APART, Judged
from sharequeue.deadletters.reading import Reading, partitions_of
from sharequeue.offsets import MAX_OFFSET, OffsetSet
from sharequeue.values import SharePartition

SHOWN = 20
"""Examples of one kind that are kept; all are counted."""


class Place(NamedTuple):
    """Where a letter stands among those of its source partition: the number of its batch, and its record's offset."""

    sequence: int
    offset: int


BEGIN = Place(0, -1)
"""Before the first one."""


@dataclass(slots=True)
class Reconciled:
    """What was found, in letters; `next` is up to where each source partition is reconciled."""

    archived: int = 0
    """Records that must have a letter, as far as this reading went."""
    missing: int = 0
    invented: int = 0
    doubled: int = 0
    examples_missing: list[tuple[SharePartition, Place]] = field(default_factory=list)
    examples_apart: list[tuple[str, Judged]] = field(default_factory=list)
    """Letters that are invented or doubled."""
    next: dict[SharePartition, Place] = field(default_factory=dict)


class Reconciliation:
    """Takes the letters of one reading as they come, then holds Postgres against them.

    Remembers the offsets of the letters that were read, nothing else of them. `places` is where an earlier one ended.
    """

    def __init__(self, places: Mapping[SharePartition, Place]) -> None:
        self._places = places
        self._seen: dict[SharePartition, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
        self._found = Reconciled()

    def add(self, judged: Iterable[Judged]) -> None:
        """Take some letters."""
        for each in judged:
            offset = each.offset
            if each.standing == "invented":
                self._found.invented += 1
                self._apart("invented", each)
            elif each.standing == "known" and each.batch is not None and offset is not None:
                source, sequence = each.batch.source, each.batch.sequence
                place = Place(sequence, offset)
                seen = self._seen[source][sequence]
                if offset in seen or place <= self._places.get(source, BEGIN):
                    self._found.doubled += 1
                    self._apart("doubled", each)
                seen.add(offset)

    def end(
        self, archived: ArchivedLetters, spans: Mapping[SharePartition, ArchivedSpan], reading: Reading
    ) -> Reconciled:
        """Ask Postgres for what must be there, a few batches at a time; `spans` are as of before the reading."""
        for source, span in spans.items():
            seen = {sequence: offsets for sequence, offsets in self._seen[source].items() if offsets}
            places = [Place(sequence, min(offsets)) for sequence, offsets in seen.items()]
            last = max((Place(sequence, max(offsets)) for sequence, offsets in seen.items()), default=BEGIN)
            partitions = partitions_of(source.partition, reading.info.partitions)
            closed = Place(span.last_closed, MAX_OFFSET)
            ended = all(reading.reached_end(partition) for partition in partitions)
            through = closed if ended else min(last, closed)
            self._found.next[source] = max(self._places.get(source, BEGIN), last, through)
            after = self._after(source, min(places, default=None), reading)
            if after is None or through <= after:
                continue
            unseen_before = None if places else self._oldest(partitions, reading)
            for batch in archived.since(source, after.sequence, through.sequence):
                if batch.dropped:
                    continue
                if unseen_before is not None and batch.opened_at <= unseen_before + CLOCKS_APART:
                    continue
                wanted = batch.offsets
                if batch.sequence == after.sequence and after.offset >= 0:
                    wanted = wanted - OffsetSet.of((0, after.offset + 1))
                if batch.sequence == through.sequence:
                    wanted = wanted & OffsetSet.of((0, through.offset + 1))
                self._found.archived += wanted.count
                there = seen.get(batch.sequence, set())
                lost = wanted - OffsetSet.from_offsets(there)
                self._found.missing += lost.count
                examples = islice(lost.iter_offsets(), SHOWN - len(self._found.examples_missing))
                self._found.examples_missing += [
                    (source, Place(batch.sequence, offset)) for offset in examples
                ]
        return self._found

    def _after(self, source: SharePartition, first: Place | None, reading: Reading) -> Place | None:
        """The place behind which everything must be there; None when that is not known."""
        partitions = partitions_of(source.partition, reading.info.partitions)
        known = self._places.get(source, BEGIN)
        cut = {partition for partition in partitions if reading.cut(partition)}
        if not cut:
            return known
        if first is not None:
            return max(known, Place(first.sequence, first.offset - 1))
        # All of it may have been removed. Batches that are younger than what is there were not.
        return known if cut <= reading.oldest.keys() else None

    @staticmethod
    def _oldest(partitions: Iterable[int], reading: Reading) -> datetime | None:
        """When the oldest letter was written of those partitions that have lost some; None when none has."""
        return max((reading.oldest[at] for at in partitions if reading.cut(at)), default=None)

    def _apart(self, what: str, judged: Judged) -> None:
        if len(self._found.examples_apart) < SHOWN:
            self._found.examples_apart.append((what, judged))
