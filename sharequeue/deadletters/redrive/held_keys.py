"""The keys that dead letters hold: which letters of a topic hold one.

In a group that is ordered by key, with `sharequeue.order.on.dead.letter=hold`, later records of a letter's key wait
until the letter was redriven or discarded. The state knows the letters by their source records
(`sharequeue.holding_letters`); the letters themselves are in the dead-letter topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sharequeue.deadletters.letters import DeadLetter
from sharequeue.deadletters.redrive.selection import Selection
from sharequeue.domain.offsets import EMPTY, OffsetSet, sets_of
from sharequeue.domain.values import SharePartition

Sources = Mapping[SharePartition, OffsetSet]
"""Source records of letters."""


@dataclass(frozen=True, slots=True)
class HoldingLetters:
    """The letters of a dead-letter topic that hold their keys: of each letter, its source record."""

    held: Sources = field(default_factory=dict)
    """All letters that hold a key, of every dead-letter topic."""
    found: dict[tuple[int, int], tuple[SharePartition, int]] = field(default_factory=dict)
    """Those that are in the topic, by their partition and offset there."""

    def note(self, letter: DeadLetter) -> None:
        """Remember a letter of the topic, if it holds its key."""
        group, topic, partition, offset = (
            letter.group,
            letter.source_topic,
            letter.source_partition,
            letter.source_offset,
        )
        if not self.held or group is None or topic is None or partition is None or offset is None:
            return
        at = SharePartition(group, topic, partition)
        if offset in self.held.get(at, EMPTY):
            self.found[letter.partition, letter.offset] = at, offset

    def of(self, *letters: Mapping[int, OffsetSet]) -> Sources:
        """Return the source records of those letters that hold a key; `letters` by partition of their topic."""
        return _by_share_partition(
            source
            for (partition, offset), source in self.found.items()
            if any(offset in some.get(partition, EMPTY) for some in letters)
        )

    def absent(self, selection: Selection, groups: set[str]) -> Sources:
        """Return the letters of these groups that hold a key and are not in the topic.

        There are none if the selection has a condition on the letter itself, which can no longer be checked.
        """
        if selection.cause or selection.since or selection.until or selection.header or selection.offsets:
            return {}
        there = _by_share_partition(self.found.values())
        left = {at: offsets - there.get(at, EMPTY) for at, offsets in self.held.items()}
        return {
            at: offsets
            for at, offsets in left.items()
            if offsets
            and at.group_id in groups
            and selection.group in (None, at.group_id)
            and selection.source_topic in (None, at.topic)
            and selection.source_partition in (None, at.partition)
        }


def _by_share_partition(sources: Iterable[tuple[SharePartition, int]]) -> dict[SharePartition, OffsetSet]:
    found: dict[SharePartition, list[int]] = {}
    for at, offset in sources:
        found.setdefault(at, []).append(offset)
    return sets_of(found)
