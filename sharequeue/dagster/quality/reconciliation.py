"""Check that a dead-letter topic holds exactly what Postgres has archived for a group.

In both directions. A letter that Postgres does not know was invented or altered; a second letter for a record is
doubled; a record that Postgres has recorded as written, without a letter, is missing. Letters that the topic's
retention has removed are not missing.

Records must have a letter if their batch was closed before the reading began. The letters of one
source partition are in the topic in the order of their batches, and within a batch in the order of offsets. So:

- From the end of an earlier reading on, all letters must exist.
- If letters at the beginning of the reading were removed: all from the first one of that source partition on.
- Up to the end of the topic, or to the last letter that was read if the reading ended before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from sharequeue.dagster.quality.archived import ArchivedLetters, ArchivedSpan
from sharequeue.dagster.quality.findings import (
    DOUBLED,
    INVENTED,
    MISSING,
    BatchPosition,
    Found,
    LetterFinding,
)
from sharequeue.dagster.quality.judging import Judged
from sharequeue.dagster.quality.reading import Reading
from sharequeue.domain.offsets import MAX_OFFSET, OffsetSet
from sharequeue.domain.values import SharePartition

BEGIN = BatchPosition(0, -1)
"""Before the first letter."""


class Reconciliation:
    """Collects the letters of one reading, then compares them with Postgres.

    It stores only the offsets of the letters. `places` are the positions at which an earlier one ended.
    """

    def __init__(self, places: Mapping[SharePartition, BatchPosition]) -> None:
        self.found = Found()
        self.archived = 0
        """Records that must have a letter, in the range of this reading."""
        self.next = dict(places)
        """The position up to which each source partition is reconciled."""
        self._places = places
        self._seen: dict[SharePartition, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))

    def add(self, judged: Iterable[Judged]) -> list[Judged]:
        """Add letters; return those whose batch has a letter for the record already, maybe in an earlier reading."""
        doubled = []
        for each in judged:
            if each.standing == "invented":
                self.found.add(INVENTED, 1, [about(each, INVENTED)])
            elif each.batch is not None and each.offset is not None:
                place = BatchPosition(each.batch.sequence, each.offset)
                seen = self._seen[each.batch.source][place.sequence]
                if place.offset in seen or place <= self._places.get(each.batch.source, BEGIN):
                    doubled.append(each)
                    self.found.add(DOUBLED, 1, [about(each, DOUBLED)])
                seen.add(place.offset)
        return doubled

    def end(
        self, archived: ArchivedLetters, spans: Mapping[SharePartition, ArchivedSpan], reading: Reading
    ) -> None:
        """Compare with the batches in Postgres, a few at a time; `spans` are from before the reading."""
        for source, span in spans.items():
            seen = self._seen[source]
            places = [
                BatchPosition(sequence, offset) for sequence, offsets in seen.items() for offset in offsets
            ]
            known, last = self._places.get(source, BEGIN), max(places, default=BEGIN)
            closed = BatchPosition(span.last_closed, MAX_OFFSET)
            through = closed if reading.reached_end else min(last, closed)
            self.next[source] = max(known, last, through)
            if reading.cut:
                # Without any letter of this source, nobody knows which ones were removed.
                first = min(places, default=through)
                known = max(known, BatchPosition(first.sequence, first.offset - 1) if places else first)
            if through > known:
                self._compare(archived, source, known, through)

    def _compare(
        self, archived: ArchivedLetters, source: SharePartition, after: BatchPosition, through: BatchPosition
    ) -> None:
        """Find the records after one position, up to another one, that have no letter."""
        for batch in archived.since(source, after.sequence, through.sequence):
            if batch.dropped:
                continue
            wanted = batch.offsets
            if batch.sequence == after.sequence and after.offset >= 0:
                wanted = wanted - OffsetSet.of((0, after.offset + 1))
            if batch.sequence == through.sequence:
                wanted = wanted & OffsetSet.of((0, through.offset + 1))
            self.archived += wanted.count
            lost = wanted - OffsetSet.from_offsets(self._seen[source].get(batch.sequence, ()))
            missing = (
                LetterFinding(MISSING, None, None, source.topic, source.partition, offset)
                for offset in lost.iter_offsets()
            )
            self.found.add(MISSING, lost.count, missing)


def about(judged: Judged, found: str, *, intact: bool = False) -> LetterFinding:
    """Return a finding about a letter."""
    letter = judged.letter
    source = (letter.source_topic, letter.source_partition, letter.source_offset)
    return LetterFinding(found[:500], letter.partition, letter.offset, *source, intact=intact)
