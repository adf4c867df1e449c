"""Which dead letters are put back, and what does a record look like that comes from one?

A selection takes a letter or not. The letters that it takes go in the order of their sources. A letter becomes the
record that it stands for, with the record's own headers and a count of how often it was put back, by which a loop is
found. `redrive` sends them, each once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby, islice
from typing import NamedTuple

from sharequeue.deadletters.letters import ORIGINAL_HEADER, DeadLetter, Header, Headers
from sharequeue.kafka.topics import LogOffsets, Topics
from sharequeue.names import nearest
from sharequeue.offsets import OffsetSet

REDRIVE_COUNT = "sharequeue.redrive.count"
"""How often the record was put back from a dead-letter topic."""
REDRIVE_FROM = "sharequeue.redrive.from"
"""The letter it was put back from: topic, partition and offset, joined by colons."""

REDRIVE_GROUP = "sharequeue.redrive.group"
"""The one share group that the record was put back for; readers of other groups pass over it."""

_OFFSETS = re.compile(r"(\d+):(\d+)(?:-(\d+))?")
_OURS = ("__dlq.", "sharequeue.")


class RedriveRefused(Exception):
    """The redrive cannot go on; the message has the reason and what to do. What was sent is recorded and is not sent
    again."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Letters to put back: those for which every condition holds. A condition that is None, or empty, holds for all.

    `since` and `until` are about when the letter was written, `header` about any header of the letter or of the
    record it stands for, `offsets` about the letter's own offset, by partition.
    """

    cause: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    group: str | None = None
    source_topic: str | None = None
    source_partition: int | None = None
    header: tuple[str, str] | None = None
    offsets: Mapping[int, OffsetSet] = field(default_factory=dict)

    def takes(self, letter: DeadLetter) -> bool:
        """Whether this letter is meant."""
        return all(
            (
                self.cause is None or letter.cause == self.cause,
                self.since is None or (letter.timestamp is not None and letter.timestamp >= self.since),
                self.until is None or (letter.timestamp is not None and letter.timestamp < self.until),
                self.group is None or letter.group == self.group,
                self.source_topic is None or letter.source_topic == self.source_topic,
                self.source_partition is None or letter.source_partition == self.source_partition,
                self.header is None or _has(letter, *self.header),
                not self.offsets or letter.offset in self.offsets.get(letter.partition, OffsetSet()),
            )
        )

    def __str__(self) -> str:
        """Return what is asked for, in words, for the audit."""
        conditions = {
            "cause": self.cause,
            "since": self.since and self.since.astimezone(UTC).isoformat(),
            "until": self.until and self.until.astimezone(UTC).isoformat(),
            "group": self.group,
            "source topic": self.source_topic,
            "source partition": self.source_partition,
            "header": self.header and "=".join(self.header),
            "offsets": " ".join(
                f"{partition}:{offsets}" for partition, offsets in sorted(self.offsets.items())
            ),
        }
        return (
            ", ".join(f"{name} {value}" for name, value in conditions.items() if value not in (None, ""))
            or "all"
        )


class Place(NamedTuple):
    """Where the record of a letter comes from, and where the letter lies."""

    topic: str
    source_partition: int
    source_offset: int
    partition: int
    offset: int

    @classmethod
    def of(cls, letter: DeadLetter) -> Place:
        """Return the place of a letter; a number that it does not have is -1."""
        partition, offset = (
            -1 if at is None else at for at in (letter.source_partition, letter.source_offset)
        )
        return cls(letter.source_topic or "", partition, offset, letter.partition, letter.offset)


@dataclass(slots=True)
class LettersSeen:
    """Which groups and source topics the letters that were read name, so that a typo in a selection is found."""

    groups: set[str] = field(default_factory=set)
    topics: set[str] = field(default_factory=set)
    others: int = 0
    """Records without a header of dead letters: the topic is another one, or somebody else writes to it."""
    partitions: set[tuple[str, int]] = field(default_factory=set)
    """Source topics with their partitions."""

    def of(self, letters: Iterable[DeadLetter]) -> Iterator[DeadLetter]:
        """Yield the letters, and remember what they name."""
        for letter in letters:
            if letter.group is not None:
                self.groups.add(letter.group)
            if letter.source_topic is not None:
                self.topics.add(letter.source_topic)
                if letter.source_partition is not None:
                    self.partitions.add((letter.source_topic, letter.source_partition))
            self.others += letter.foreign
            yield letter

    def check(
        self, selection: Selection, topic: str, all_groups: Callable[[], Iterable[str]], broker: Topics
    ) -> None:
        """Raise RedriveRefused for a group, topic or partition of one that no letter names and nobody else knows.

        All letters must have been read. `all_groups` returns the share groups that there are.
        """
        group, source = selection.group, selection.source_topic
        if group is not None and group not in self.groups:
            known = self.groups | set(all_groups())
            if group not in known:
                raise RedriveRefused(
                    f"no letter in {topic!r} is of a group {group!r}, and there is no such share group. "
                    f"{nearest(group, known, 'groups')}"
                )
        if source is not None and source not in self.topics and not broker.describe([source]):
            known = self.topics | set(broker.names())
            raise RedriveRefused(
                f"no letter in {topic!r} is of a topic {source!r}, and there is no such topic. "
                f"{nearest(source, known, 'topics')}"
            )
        self._check_partition(selection, topic, broker)

    def _check_partition(self, selection: Selection, topic: str, broker: Topics) -> None:
        partition, source = selection.source_partition, selection.source_topic
        sources = self.topics if source is None else {source}
        if partition is None or not sources or any((name, partition) in self.partitions for name in sources):
            return
        sizes = {name: info.partitions for name, info in broker.describe(sources).items()}
        if all(partition >= size for size in sizes.values()):
            there = ", ".join(f"{name} has {size}" for name, size in sorted(sizes.items()))
            raise RedriveRefused(
                f"no letter in {topic!r} is of a source partition {partition}, and there is none"
                + (f": {there}." if there else ".")
            )


def check_offsets(
    topic: str, partitions: int, offsets: Mapping[int, OffsetSet], logs: Mapping[int, LogOffsets]
) -> None:
    """Raise RedriveRefused for a partition that a dead-letter topic has not, or offsets that are all past its end."""
    for partition, wanted in sorted(offsets.items()):
        if partition >= partitions:
            raise RedriveRefused(f"{topic} has no partition {partition}: it has {partitions}.")
        log = logs.get(partition)
        if log is not None and wanted.first >= log.log_end:
            raise RedriveRefused(
                f"{topic}-{partition} ends at offset {log.log_end}: there is nothing at {wanted.first}."
            )


def in_order(letters: Iterable[Place], most: int) -> Iterator[tuple[int, OffsetSet]]:
    """Yield the letters in batches of one partition of their topic, those of each source partition in their order
    there: also where they lie in several partitions, because the dead-letter topic got more."""
    ordered = sorted(letters)
    home: dict[tuple[str, int], int] = {}
    for place in ordered:
        home.setdefault(place[:2], place.partition)
    ordered.sort(key=lambda place: home[place[:2]])
    for partition, places in groupby(ordered, key=lambda place: place.partition):
        while batch := list(islice(places, most)):
            yield partition, OffsetSet.from_offsets(place.offset for place in batch)


def parse_offsets(texts: Iterable[str]) -> dict[int, OffsetSet]:
    """Return the offsets of a dead-letter topic that are meant, each text `PARTITION:OFFSET` or
    `PARTITION:FIRST-LAST`. Raises ValueError."""
    found: dict[int, OffsetSet] = {}
    for text in texts:
        given = _OFFSETS.fullmatch(text)
        first, last = (int(given[2]), int(given[3] or given[2])) if given else (1, 0)
        if given is None or last < first:
            raise ValueError(f"{text!r}: expected PARTITION:OFFSET or PARTITION:FIRST-LAST")
        partition = int(given[1])
        found[partition] = found.get(partition, OffsetSet()) | OffsetSet.of((first, last + 1))
    return found


def parse_header(text: str) -> tuple[str, str]:
    """A header as `NAME=VALUE`. Raises ValueError."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r}: expected NAME=VALUE")
    return name, value


def redrive_count(headers: Headers) -> int:
    """How often the record that has these headers was put back already; of a letter, the record it stands for."""
    counts = [
        int(value)
        for name, value in headers
        if name in (REDRIVE_COUNT, ORIGINAL_HEADER + REDRIVE_COUNT) and value is not None and value.isdigit()
    ]
    return max(counts, default=0)


def original_headers(letter: DeadLetter) -> Headers:
    """Return the headers that the record had, from its copy in the letter."""
    return tuple(
        (name.removeprefix(ORIGINAL_HEADER), value)
        for name, value in letter.headers
        if name.startswith(ORIGINAL_HEADER)
    )


def redriven_headers(
    letter: DeadLetter, topic: str, own: Headers, only_group: str | None = None
) -> list[Header]:
    """Return the headers of the record put back: its own, without our earlier marks, then count, origin and whom
    it is for."""
    kept = [header for header in own if not header[0].startswith(_OURS)]
    count = max(redrive_count(own), redrive_count(letter.headers)) + 1
    origin = f"{topic}:{letter.partition}:{letter.offset}"
    ours: list[Header] = [(REDRIVE_COUNT, b"%d" % count), (REDRIVE_FROM, origin.encode())]
    return [*kept, *ours, *([(REDRIVE_GROUP, only_group.encode())] if only_group else [])]


def _has(letter: DeadLetter, name: str, value: str) -> bool:
    wanted = value.encode()
    return any(
        content == wanted and key.removeprefix(ORIGINAL_HEADER) == name for key, content in letter.headers
    )
