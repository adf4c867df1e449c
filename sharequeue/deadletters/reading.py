"""How is a dead-letter topic read some letters at a time, and gone on with later?

From one offset of each partition to its end as of now, or to a bound. What it reached is where the next reading
begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache

from sharequeue.deadletters.letters import DeadLetter, read_dead_letters
from sharequeue.kafka.topics import LogOffsets, TopicInfo
from sharequeue.settings import Settings

CHUNK_BYTES = 64 * 1024 * 1024


@lru_cache(maxsize=10_000)
def partitions_of(source_partition: int, partitions: int) -> frozenset[int]:
    """Where the letters of a source partition may be, in a dead-letter topic that has so many partitions now.

    A letter goes into the partition: source partition modulo the number of partitions. That number only grows, so it
    was any from 1 to that of today when the letter was written.
    """
    return frozenset(source_partition % number for number in range(1, partitions + 1))


@dataclass(slots=True)
class Reading:
    """One reading of a dead-letter topic. `first` has the offset to begin at, where that is not the log's start."""

    settings: Settings
    topic: str
    info: TopicInfo
    logs: Mapping[int, LogOffsets]
    first: Mapping[int, int] = field(default_factory=dict)
    next: dict[int, int] = field(default_factory=dict)
    """Where the next reading begins."""
    oldest: dict[int, datetime] = field(default_factory=dict)
    """When the first letter that was read of a partition was written."""
    letters: int = 0

    def __post_init__(self) -> None:
        for partition, log in self.logs.items():
            self.next[partition] = max(log.log_start, self.first.get(partition, 0))

    def chunks(self, size: int, most: int) -> Iterator[list[DeadLetter]]:
        """The letters, `size` at a time or 64 MiB, and `most` in all."""
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
            # Beyond the last letter there can be markers of transactions.
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
        """Leave these, the last ones of the newest chunk, for the next reading."""
        for letter in reversed(letters):
            self.next[letter.partition] = letter.offset
        self.letters -= len(letters)

    def cut(self, partition: int) -> bool:
        """Whether retention, or a purge, has removed letters of a partition that this reading should have
        begun at.
        """
        log = self.logs.get(partition)
        return log is None or log.log_start > self.first.get(partition, 0)

    def reached_end(self, partition: int) -> bool:
        """Whether every letter that was committed before the reading began was read. Behind an open transaction,
        nobody sees what is committed."""
        log = self.logs.get(partition)
        return (
            log is not None
            and self.next[partition] >= log.last_stable_offset
            and log.last_stable_offset >= log.log_end
        )

    @property
    def left(self) -> int:
        """How many offsets are left for the next reading, at most so many letters."""
        return sum(max(0, log.last_stable_offset - self.next[p]) for p, log in self.logs.items())
