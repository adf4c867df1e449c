"""Read a dead-letter topic in chunks of letters, from a position on.

It reads from one offset of each partition to the current end, or to a limit. The next reading begins where this one
ended. `browsing` reads the newest letters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache

from sharequeue.deadletters.letters import DeadLetter, read_dead_letters
from sharequeue.kafka.topics import LogOffsets, TopicInfo
from sharequeue.words.offsets import EMPTY, OffsetSet
from sharequeue.words.settings import Settings

CHUNK_BYTES = 64 * 1024 * 1024


@lru_cache(maxsize=10_000)
def partitions_of(source_partition: int, partitions: int) -> frozenset[int]:
    """Return the partitions in which the letters of a source partition may be.

    A letter's partition is the source partition modulo the dead-letter topic's number of partitions. That number only
    grows, so it was any from 1 to the current one when the letter was written.
    """
    return frozenset(source_partition % number for number in range(1, partitions + 1))


@dataclass(slots=True)
class Reading:
    """One reading of a dead-letter topic. `first` has the offsets to begin at; without one it is the log's start."""

    settings: Settings
    topic: str
    info: TopicInfo
    logs: Mapping[int, LogOffsets]
    first: Mapping[int, int] = field(default_factory=dict)
    next: dict[int, int] = field(default_factory=dict)
    """The offsets at which the next reading begins."""
    oldest: dict[int, datetime] = field(default_factory=dict)
    """The time at which the first letter read of each partition was written."""
    letters: int = 0

    def __post_init__(self) -> None:
        for partition, log in self.logs.items():
            self.next[partition] = max(log.log_start, self.first.get(partition, 0))

    def chunks(self, size: int, most: int) -> Iterator[list[DeadLetter]]:
        """Yield the letters in chunks of `size` or 64 MiB, up to `most` in total."""
        letters = read_dead_letters(self.settings, self.topic, self.first, self.logs)
        chunk: list[DeadLetter] = []
        held_bytes = 0
        for letter in letters:
            chunk.append(letter)
            held_bytes += len(letter.key or b"") + len(letter.value or b"")
            self._passed(letter)
            if len(chunk) == size or held_bytes >= CHUNK_BYTES or self.letters == most:
                yield chunk
                chunk, held_bytes = [], 0
            if self.letters == most:
                break
        else:
            # Transaction markers can follow the last letter.
            self.next.update({partition: log.last_stable_offset for partition, log in self.logs.items()})
        letters.close()
        if chunk:
            yield chunk

    def _passed(self, letter: DeadLetter) -> None:
        self.letters += 1
        self.next[letter.partition] = letter.offset + 1
        if letter.timestamp is not None:
            self.oldest.setdefault(letter.partition, letter.timestamp)

    def give_back(self, letters: Sequence[DeadLetter]) -> None:
        """Leave the last letters of the newest chunk to the next reading."""
        for letter in reversed(letters):
            self.next[letter.partition] = letter.offset
        self.letters -= len(letters)

    def done(self, partition: int) -> OffsetSet:
        """Return the offsets of a partition that were read now, or that the topic has removed."""
        log = self.logs.get(partition)
        if log is None:
            return EMPTY  # it has no leader at the moment
        ranges = ((0, log.log_start), (self.first.get(partition, 0), self.next[partition]))
        return OffsetSet.of(*((first, end) for first, end in ranges if first < end))

    def cut(self, partition: int) -> bool:
        """Return whether letters at the beginning of this reading were removed from a partition."""
        log = self.logs.get(partition)
        return log is None or log.log_start > self.first.get(partition, 0)

    def reached_end(self, partition: int) -> bool:
        """Return whether every letter that was committed before the reading began was read.

        Letters committed behind an open transaction cannot be read.
        """
        log = self.logs.get(partition)
        return (
            log is not None
            and self.next[partition] >= log.last_stable_offset
            and log.last_stable_offset >= log.log_end
        )

    @property
    def left(self) -> int:
        """The number of offsets left for the next reading, which is at least the number of letters."""
        return sum(max(0, log.last_stable_offset - self.next[p]) for p, log in self.logs.items())
