"""The keys that dead letters hold: which letters of a topic hold one.

In a group that is ordered by key, with `sharequeue.order.on.dead.letter=hold`, later records of a letter's key wait
until the letter was redriven or discarded. The state knows the letters by their batches and source records
(`sharequeue.holding_letters`); the letters themselves are in the dead-letter topic, each with its batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from sharequeue.deadletters.letters import BATCH, DeadLetter
from sharequeue.deadletters.redrive.selection import Selection
from sharequeue.domain.offsets import EMPTY, OffsetSet, sets_of
from sharequeue.state.dead_letters import HoldingBatch


@dataclass(frozen=True, slots=True)
class HoldingLetters:
    """The letters of a dead-letter topic that hold their keys: of each letter, its batch and its source record."""

    held: Mapping[str, HoldingBatch] = field(default_factory=dict)
    """All letters that hold a key, of every dead-letter topic, by the identity of their batch."""
    found: dict[tuple[int, int], tuple[str, int]] = field(default_factory=dict)
    """Those that are in the topic, by their partition and offset there: the batch, and the offset of the record."""

    def note(self, letter: DeadLetter) -> None:
        """Remember a letter of the topic, if it holds its key."""
        batch, offset = self.held.get(letter.header(BATCH) or "") if self.held else None, letter.source_offset
        if batch is not None and offset is not None and offset in batch.offsets:
            self.found[letter.partition, letter.offset] = batch.identity, offset

    def of(self, *letters: Mapping[int, OffsetSet]) -> list[HoldingBatch]:
        """Return those letters that hold a key; `letters` by partition of their topic."""
        return self._batches(
            source
            for (partition, offset), source in self.found.items()
            if any(offset in some.get(partition, EMPTY) for some in letters)
        )

    def absent(self, selection: Selection, groups: set[str]) -> list[HoldingBatch]:
        """Return the letters of these groups that hold a key and are not in the topic.

        There are none if the selection has a condition on the letter itself, which can no longer be checked.
        """
        if selection.cause or selection.since or selection.until or selection.header or selection.offsets:
            return []
        there = {batch.identity: batch.offsets for batch in self._batches(self.found.values())}
        left = (
            replace(batch, offsets=batch.offsets - there.get(identity, EMPTY))
            for identity, batch in self.held.items()
        )
        return [
            batch
            for batch in left
            if batch.offsets
            and (at := batch.share_partition).group_id in groups
            and selection.group in (None, at.group_id)
            and selection.source_topic in (None, at.topic)
            and selection.source_partition in (None, at.partition)
        ]

    def _batches(self, letters: Iterable[tuple[str, int]]) -> list[HoldingBatch]:
        """Return letters, each by its batch and the offset of its record, together by batch."""
        found: dict[str, list[int]] = {}
        for identity, offset in letters:
            found.setdefault(identity, []).append(offset)
        return [replace(self.held[identity], offsets=offsets) for identity, offsets in sets_of(found).items()]
