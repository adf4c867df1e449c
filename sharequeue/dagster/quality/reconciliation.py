"""Check that a dead-letter topic holds exactly what Postgres has archived for a group.

In both directions. A letter that Postgres does not know was invented or altered; a second letter for a record is
doubled; a record that Postgres has recorded as written, without a letter, is missing. Letters that the topic's
retention has removed are not missing.

Records must have a letter if their batch was closed before the reading began. The letters of one
source partition are in the topic in the order of their batches, and within a batch in the order of offsets. So:

- From the end of an earlier reading on, all letters must exist.
- Without an earlier reading, or if the topic's log now starts after its end: all letters, if the log starts at 0.
  Otherwise all from the first existing letter of that source partition on. If there is none, the batches
  that were opened after the oldest letter of the dead-letter partition was written.
- The dead-letter topic may have grown, which changes the partition of a source's letters. So all partitions
  that are possible count.
- Up to the end of the partition, or to the last letter that was read if the reading ended before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import NamedTuple

from sharequeue.dagster.quality.archived import ArchivedLetters, ArchivedSpan
from sharequeue.dagster.quality.judging import CLOCKS_APART, Judged
from sharequeue.dagster.quality.reading import Reading, partitions_of
from sharequeue.words.offsets import MAX_OFFSET, OffsetSet
from sharequeue.words.values import SharePartition

SHOWN = 20
"""The number of examples of each kind that are kept; all are counted."""


class Place(NamedTuple):
    """The position of a letter among those of its source partition: its batch's number and its record's offset."""

    sequence: int
    offset: int


BEGIN = Place(0, -1)
"""Before the first letter."""


@dataclass(slots=True)
class Reconciled:
    """The findings, in letters; `next` is the position up to which each source partition is reconciled."""

    archived: int = 0
    """Records that must have a letter, in the range of this reading."""
    missing: int = 0
    invented: int = 0
    doubled: int = 0
    examples_missing: list[tuple[SharePartition, Place]] = field(default_factory=list)
    examples_apart: list[tuple[str, Judged]] = field(default_factory=list)
    """Invented and doubled letters."""
    next: dict[SharePartition, Place] = field(default_factory=dict)


class Reconciliation:
    """Collects the letters of one reading, then compares them with Postgres.

    It stores only the offsets of the letters. `places` are the positions at which an earlier one ended.
    """

    def __init__(self, places: Mapping[SharePartition, Place]) -> None:
        self._places = places
        self._seen: dict[SharePartition, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
        self._found = Reconciled()

    def add(self, judged: Iterable[Judged]) -> list[Judged]:
        """Add letters; return those whose batch has a letter for the record already, maybe in an earlier reading."""
        doubled = []
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
                    doubled.append(each)
                    self._found.doubled += 1
                    self._apart("doubled", each)
                seen.add(offset)
        return doubled

    def end(
        self, archived: ArchivedLetters, spans: Mapping[SharePartition, ArchivedSpan], reading: Reading
    ) -> Reconciled:
        """Compare with the batches in Postgres, a few at a time; `spans` are from before the reading."""
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
        """Return the position after which all letters must exist; None if it is not known."""
        partitions = partitions_of(source.partition, reading.info.partitions)
        known = self._places.get(source, BEGIN)
        cut = {partition for partition in partitions if reading.cut(partition)}
        if not cut:
            return known
        if first is not None:
            return max(known, Place(first.sequence, first.offset - 1))
        # All letters may have been removed. Those of batches younger than the oldest existing letter were not.
        return known if cut <= reading.oldest.keys() else None

    @staticmethod
    def _oldest(partitions: Iterable[int], reading: Reading) -> datetime | None:
        """Return when the oldest letter of the partitions with removed letters was written; None without any."""
        return max((reading.oldest[at] for at in partitions if reading.cut(at)), default=None)

    def _apart(self, what: str, judged: Judged) -> None:
        if len(self._found.examples_apart) < SHOWN:
            self._found.examples_apart.append((what, judged))
