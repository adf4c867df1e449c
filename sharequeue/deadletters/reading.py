"""How is a dead-letter topic read some letters at a time, and gone on with later? And which letters are its newest?

From one offset of each partition to its end as of now, or to a bound. What it reached is where the next reading
begins. The newest letters are looked for from the ends of the partitions backwards, for a moment.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from threading import Thread

from sharequeue.deadletters.letters import DeadLetter, read_dead_letters
from sharequeue.kafka.topics import LogOffsets, TopicInfo, Topics
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
        """Whether retention, or a person, has removed letters of a partition that this reading should have
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


NEWEST_SECONDS = 2.0
"""How long the newest letters are looked for."""
_SEEN_SECONDS = 0.3
"""How long is waited of that for what was just committed to be seen; an open transaction of others takes longer."""
_BACK = 20
"""Offsets of each partition that are read first; ten times as many while letters lack."""
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(slots=True)
class Newest:
    """The newest letters of a group, the newest first; and what was in the way of reading more."""

    letters: list[DeadLetter] = field(default_factory=list)
    remark: str = ""


def newest_letters(
    settings: Settings, topic: str, group_id: str, count: int, seconds: float = NEWEST_SECONDS
) -> Newest:
    """The `count` newest letters of a group, as far as they are found in that time. Raises nothing: the broker may be
    away, and then the remark says so.
    """
    found = Newest()

    def look() -> None:
        try:
            for letters in _newest(settings, topic, group_id, count, time.monotonic() + seconds):
                found.letters = letters
        except Exception as error:  # whoever wants examples is not to fail for them
            found.remark = f"the topic could not be read: {error}"

    # A client that waits for a broker cannot be interrupted. It ends by itself, after half a minute at most.
    thread = Thread(target=look, name="sharequeue-newest-letters", daemon=True)
    thread.start()
    thread.join(seconds)
    late = f"the topic was read for {seconds:g} s, and no longer" if thread.is_alive() else ""
    return Newest(found.letters, found.remark or late)


def _newest(
    settings: Settings, topic: str, group_id: str, count: int, deadline: float
) -> Iterator[list[DeadLetter]]:
    """What is found near the ends of the partitions; then, while there are fewer, farther back."""
    # Half of the time, so that there is some left to say that the broker does not answer.
    with Topics(settings, max(0.1, (deadline - time.monotonic()) / 2)) as topics:
        topics.settle([topic], min(_SEEN_SECONDS, deadline - time.monotonic()))
        logs = topics.offsets(topic)
    back, all_read = _BACK, False
    letters: list[DeadLetter] = []
    while len(letters) < count and not all_read:
        first = {at: max(log.log_start, log.last_stable_offset - back) for at, log in logs.items()}
        all_read = all(first[at] == log.log_start for at, log in logs.items())
        back *= 10
        letters = []
        for letter in read_dead_letters(settings, topic, first, logs):
            if letter.group == group_id:
                letters.append(letter)
            if time.monotonic() > deadline:
                return
        letters.sort(key=lambda each: (each.timestamp or _LONG_AGO, each.offset), reverse=True)
        yield letters[:count]
