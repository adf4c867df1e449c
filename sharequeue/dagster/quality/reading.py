"""Read a dead-letter topic in chunks of letters, from a position to the current end, or to a limit.

`browsing` reads the newest letters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sharequeue.deadletters.letters import DeadLetter, read_dead_letters
from sharequeue.domain.settings import Settings
from sharequeue.kafka.topics import LogOffsets, TopicInfo

CHUNK_BYTES = 64 * 1024 * 1024


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
    letters: int = 0

    def __post_init__(self) -> None:
        self.next = {
            **self.first,
            **{
                partition: max(log.log_start, self.first.get(partition, 0))
                for partition, log in self.logs.items()
            },
        }

    def chunks(self, size: int, most: int) -> Iterator[list[DeadLetter]]:
        """Yield the letters in chunks of `size` or 64 MiB, up to `most` in total."""
        letters = read_dead_letters(self.settings, self.topic, self.first, self.logs)
        chunk: list[DeadLetter] = []
        held_bytes = 0
        for letter in letters:
            chunk.append(letter)
            held_bytes += len(letter.key or b"") + len(letter.value or b"")
            self.letters += 1
            self.next[letter.partition] = letter.offset + 1
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

    @property
    def cut(self) -> bool:
        """Whether letters at the beginning of this reading were removed from the topic."""
        return len(self.logs) < self.info.partitions or any(
            log.log_start > self.first.get(partition, 0) for partition, log in self.logs.items()
        )

    @property
    def reached_end(self) -> bool:
        """Whether every letter that was committed before the reading began was read.

        Letters committed behind an open transaction cannot be read, nor those of a partition without a leader.
        """
        return len(self.logs) == self.info.partitions and all(
            self.next[partition] >= log.last_stable_offset >= log.log_end
            for partition, log in self.logs.items()
        )

    @property
    def left(self) -> int:
        """The number of offsets left for the next reading, which is at least the number of letters."""
        return sum(max(0, log.last_stable_offset - self.next[p]) for p, log in self.logs.items())
