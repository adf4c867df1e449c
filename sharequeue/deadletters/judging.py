"""Whose is a letter, and what does Postgres know of it?

A dead-letter topic may be shared by groups and by a broker's own share groups, and it may hold letters of a group, or
of a topic, that was deleted since. What a letter says is held against what Postgres archived: a letter that claims a
group and that Postgres does not know was invented or altered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from sharequeue.deadletters.archived import ArchivedBatch, ArchivedLetters, ArchivedSpan
from sharequeue.deadletters.letters import BATCH, SEQUENCE, DeadLetter
from sharequeue.offsets import MAX_OFFSET, OffsetSet
from sharequeue.values import DeadLetterRun, SharePartition

CLOCKS_APART = timedelta(minutes=1)
"""How far the clocks of a writer and of Postgres may be apart."""
_MAX_PARTITION = 2**31 - 1

Standing = Literal["known", "invented", "unplaced", "earlier", "foreign"]
"""`known`: Postgres has archived it. `invented`: it claims the group, and Postgres has no such letter. `unplaced`: it
claims the group, and does not say which record it stands for. `earlier`: of a life of the group or of its source
topic that Postgres no longer knows. `foreign`: of another group, or of nobody."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A letter, what it is, and the batch and run that hold it in Postgres."""

    letter: DeadLetter
    standing: Standing
    batch: ArchivedBatch | None = None
    run: DeadLetterRun | None = None

    @property
    def ours(self) -> bool:
        """Whether the letter claims the group, or stands where one of the group's must stand."""
        return self.standing != "foreign"


def source_of(letter: DeadLetter, group_id: str) -> SharePartition | None:
    """Where the record lies; None when the letter does not say it readably."""
    topic, partition, offset = letter.source_topic, letter.source_partition, letter.source_offset
    if topic is None or partition is None or offset is None:
        return None
    if not (0 <= partition <= _MAX_PARTITION and 0 <= offset <= MAX_OFFSET):
        return None
    return SharePartition(group_id, topic, partition)


def sequence_of(letter: DeadLetter) -> int | None:
    """The number of the batch that wrote the letter, as it says."""
    text = letter.header(SEQUENCE) or ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < len(str(MAX_OFFSET)) else None


class Judge:
    """Judges the letters of a topic for one group, some at a time. `spans` are as of before they were read."""

    def __init__(
        self, archived: ArchivedLetters, group_id: str, spans: Mapping[SharePartition, ArchivedSpan]
    ) -> None:
        self._archived = archived
        self._group_id = group_id
        self._spans = spans

    def judge(self, letters: Sequence[DeadLetter]) -> list[Judged]:
        """Judge some letters; the batches that they name are asked for in one question a source partition."""
        named: dict[SharePartition, set[int]] = defaultdict(set)
        loose: dict[SharePartition, list[tuple[int, int]]] = defaultdict(list)
        for letter in letters:
            source = source_of(letter, self._group_id)
            if source is not None and source in self._spans and letter.group in (self._group_id, None):
                sequence, offset = sequence_of(letter), letter.source_offset
                if sequence is not None:
                    named[source].add(sequence)
                elif offset is not None:
                    loose[source].append((offset, offset + 1))
        by_number = {
            (source, batch.sequence): batch
            for source, sequences in named.items()
            for batch in self._archived.named(source, sequences)
        }
        by_offset = {
            source: self._archived.holding(source, OffsetSet.of(*ranges)) for source, ranges in loose.items()
        }
        return [self._one(letter, by_number, by_offset) for letter in letters]

    def _one(
        self,
        letter: DeadLetter,
        by_number: Mapping[tuple[SharePartition, int], ArchivedBatch],
        by_offset: Mapping[SharePartition, Sequence[ArchivedBatch]],
    ) -> Judged:
        if letter.group not in (self._group_id, None):
            return Judged(letter, "foreign")
        source, offset = source_of(letter, self._group_id), letter.source_offset
        if source is None or offset is None:
            return Judged(letter, "foreign" if letter.group is None else "unplaced")
        sequence = sequence_of(letter)
        batch: ArchivedBatch | None
        if sequence is not None:
            batch = by_number.get((source, sequence))
        else:
            # What was read from Postgres may hold the offset twice: after a reset, a record is given up once more.
            batch = next((b for b in reversed(by_offset.get(source, ())) if offset in b.offsets), None)
        run = None if batch is None else batch.run_of(offset)
        if batch is not None and run is not None and not _before(letter, batch):
            return Judged(letter, "known", batch, run)
        if letter.group is None:
            return Judged(letter, "foreign")
        return Judged(letter, "earlier" if self._is_earlier(letter, source, sequence, batch) else "invented")

    def _is_earlier(
        self, letter: DeadLetter, source: SharePartition, sequence: int | None, batch: ArchivedBatch | None
    ) -> bool:
        span = self._spans.get(source)
        if span is None:
            return True
        if batch is not None:
            return _before(letter, batch)
        if sequence is not None and sequence <= span.last_sequence:
            return True  # a reset of the group gave the batch up while it was open
        return letter.timestamp is not None and letter.timestamp < span.first_opened_at


def _before(letter: DeadLetter, batch: ArchivedBatch) -> bool:
    """Whether the letter was written before its batch was opened: then an earlier batch of that number wrote it."""
    if letter.header(BATCH) == batch.identity:
        return False
    return letter.timestamp is not None and letter.timestamp < batch.opened_at - CLOCKS_APART


__all__ = ["Judge", "Judged", "Standing", "sequence_of", "source_of"]
