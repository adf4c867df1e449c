"""Select the dead letters of a redrive, and build the records that are produced from them.

A selection matches letters by conditions. Selected letters are sent in the order of their sources. A letter becomes
its source record again, with the record's own headers and a count of its redrives, which shows a loop. `redrive`
sends them, each once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from sharequeue.deadletters.letters import ORIGINAL_HEADER, DeadLetter
from sharequeue.domain.moments import milliseconds_of
from sharequeue.domain.names import is_topic_name, nearest, plural
from sharequeue.domain.offsets import MAX_OFFSET, OffsetSet
from sharequeue.domain.record_bytes import number_of
from sharequeue.kafka.headers import UNDECODABLE, Header, Headers
from sharequeue.kafka.topics import LogOffsets, Topics, is_same

REDRIVE_COUNT = "sharequeue.redrive.count"
"""The number of times the record was redriven from a dead-letter topic."""
REDRIVE_FROM = "sharequeue.redrive.from"
"""The letter from which it was redriven: topic, partition and offset, joined by colons."""
REDRIVE_BATCH = "sharequeue.redrive.batch"
"""The identity of the batch that sent it. It shows what a killed redrive has sent."""
REDRIVE_GROUP = "sharequeue.redrive.group"
"""The one share group for which the record was redriven; readers of other groups skip it."""
_OURS = frozenset({REDRIVE_COUNT, REDRIVE_FROM, REDRIVE_BATCH, REDRIVE_GROUP})

BATCH_BYTES = 16 * 1024 * 1024
"""The largest letters of a batch are in memory at the same time; a single one may be larger."""

_OFFSETS = re.compile(r"(\d+):(\d+)(?:-(\d+))?")
_MOST_NAMED = 5
_MOST_REDRIVES = 999_999_999
"""The highest count of redrives that is believed: a record may come with any header."""


class RedriveRefused(Exception):
    """The redrive cannot go on; the message has the reason and what to do. What was sent is recorded and is not sent
    again."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The letters to redrive: those that meet every condition. A condition that is None or empty is met by all
    letters.

    `since` and `until` apply to the time when the letter was written, `header` to any header of the letter or of its
    source record, `offsets` to the letter's own offset, by partition.
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
        """Return whether this letter is selected."""
        at = letter.written_ms
        return all(
            (
                self.cause is None or letter.cause == self.cause,
                self.since is None or (at is not None and at >= milliseconds_of(self.since)),
                self.until is None or (at is not None and at < milliseconds_of(self.until)),
                self.group is None or letter.group == self.group,
                self.source_topic is None or letter.source_topic == self.source_topic,
                self.source_partition is None or letter.source_partition == self.source_partition,
                self.header is None or _has(letter, *self.header),
                not self.offsets or letter.offset in self.offsets.get(letter.partition, OffsetSet()),
            )
        )

    def columns(self) -> dict[str, Any]:
        """Return the conditions by their columns in `sharequeue.redrives`; None for a condition that is not set."""
        name, value = self.header or (None, None)
        return {
            "cause": self.cause,
            "since": self.since and self.since.isoformat(),
            "until": self.until and self.until.isoformat(),
            "group_id": self.group,
            "source_topic": self.source_topic,
            "source_partition": self.source_partition,
            "header_name": name,
            "header_value": value,
            "offsets": {str(at): str(offsets) for at, offsets in sorted(self.offsets.items())} or None,
        }

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """Return the selection in a row of `sharequeue.redrives`."""
        return cls(
            cause=row["cause"],
            since=row["since"],
            until=row["until"],
            group=row["group_id"],
            source_topic=row["source_topic"],
            source_partition=row["source_partition"],
            header=None if row["header_name"] is None else (row["header_name"], row["header_value"]),
            offsets={int(at): OffsetSet.parse(offsets) for at, offsets in (row["offsets"] or {}).items()},
        )

    def __str__(self) -> str:
        """Return the conditions in words."""
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


class LetterPosition(NamedTuple):
    """The position of a letter's source record, and the position of the letter."""

    topic: str
    source_partition: int
    source_offset: int
    partition: int
    offset: int
    topic_id: str | None = None
    """The id of the record's topic, if the letter has it."""

    @classmethod
    def of(cls, letter: DeadLetter) -> LetterPosition:
        """Return the place of a letter; a missing number is -1."""
        partition, offset = (
            -1 if at is None else at for at in (letter.source_partition, letter.source_offset)
        )
        topic, topic_id = letter.source_topic or "", letter.source_topic_id
        return cls(topic, partition, offset, letter.partition, letter.offset, topic_id)

    @property
    def is_known(self) -> bool:
        """Whether the letter names a record that a topic can have: any program may write its headers."""
        return is_topic_name(self.topic) and self.source_partition >= 0 and self.source_offset >= 0


@dataclass(slots=True)
class LettersSeen:
    """The groups and source topics of the letters that were read, to find a typo in a selection."""

    groups: set[str] = field(default_factory=set)
    topics: set[str] = field(default_factory=set)
    others: int = 0
    """Records without the headers of dead letters: it is the wrong topic, or another program writes to it."""
    unreadable: list[DeadLetter] = field(default_factory=list)
    """Records that could not be read whole, so that they may be letters."""
    partitions: set[tuple[str, int]] = field(default_factory=set)
    """Source topics with their partitions."""

    def of(self, letters: Iterable[DeadLetter]) -> Iterator[DeadLetter]:
        """Yield the letters, and record their groups and source topics."""
        for letter in letters:
            if letter.group is not None:
                self.groups.add(letter.group)
            if letter.source_topic is not None:
                self.topics.add(letter.source_topic)
                if letter.source_partition is not None:
                    self.partitions.add((letter.source_topic, letter.source_partition))
            if letter.foreign and letter.problem is not None:
                self.unreadable.append(letter)
            else:
                self.others += letter.foreign
            yield letter

    def unreadable_note(self, topic: str) -> str | None:
        """Return which records could not be read, and why; None if there are none."""
        if not self.unreadable:
            return None
        some = self.unreadable[:_MOST_NAMED]
        named = "; ".join(f"{each.partition}:{each.offset}: {each.problem}" for each in some)
        more = ", ..." if len(self.unreadable) > len(some) else ""
        return (
            f"{plural(len(self.unreadable), 'record')} of {topic} could not be read and may be dead letters: "
            f"{named}{more}. `dlq show {topic} {some[0].partition} {some[0].offset}` prints what is known of one"
        )

    def check(
        self, selection: Selection, topic: str, all_groups: Callable[[], Iterable[str]], broker: Topics
    ) -> None:
        """Raise RedriveRefused for an unknown group, topic or partition in the selection that no letter names.

        All letters must have been read. `all_groups` returns the existing share groups.
        """
        group, source = selection.group, selection.source_topic
        if group is not None and group not in self.groups:
            known = self.groups | set(all_groups())
            if group not in known:
                raise RedriveRefused(
                    f"{topic!r} has no letter of group {group!r}, and there is no such share group. "
                    f"{nearest(group, known, 'groups')}"
                )
        if source is not None and source not in self.topics and not broker.describe([source]):
            known = self.topics | set(broker.names())
            raise RedriveRefused(
                f"{topic!r} has no letter of source topic {source!r}, and there is no such topic. "
                f"{nearest(source, known, 'topics')}"
            )
        self._check_partition(selection, topic, broker)

    def _check_partition(self, selection: Selection, topic: str, broker: Topics) -> None:
        partition, source = selection.source_partition, selection.source_topic
        sources = self.topics if source is None else {source}
        if partition is None or not sources or any((name, partition) in self.partitions for name in sources):
            return
        sizes = {
            name: info.partitions for name, info in broker.describe(filter(is_topic_name, sources)).items()
        }
        if all(partition >= size for size in sizes.values()):
            there = ", ".join(f"{name} has {size}" for name, size in sorted(sizes.items()))
            raise RedriveRefused(
                f"{topic!r} has no letter of source partition {partition}, and there is no such partition"
                + (f": {there}." if there else ".")
            )


def check_offsets(
    topic: str, partitions: int, offsets: Mapping[int, OffsetSet], logs: Mapping[int, LogOffsets]
) -> None:
    """Raise RedriveRefused for a partition that the dead-letter topic does not have, or offsets that are all past its
    end."""
    for partition, wanted in sorted(offsets.items()):
        if partition >= partitions:
            raise RedriveRefused(f"{topic} has no partition {partition}: it has {partitions}.")
        log = logs.get(partition)
        if log is not None and wanted.first >= log.log_end:
            raise RedriveRefused(
                f"{topic}-{partition} ends at offset {log.log_end}: there is no letter at {wanted.first}."
            )


def check_same(broker: Topics, topic_ids: Mapping[str, str]) -> None:
    """Raise RedriveRefused if one of these topics no longer has its id: the offsets of a new topic are others."""
    there = broker.describe(topic_ids)
    if changed := sorted(name for name, topic_id in topic_ids.items() if not is_same(there, name, topic_id)):
        raise RedriveRefused(
            f"{changed[0]} was deleted or created again meanwhile: what was planned for it does not hold for a new "
            "topic. Start again."
        )


def in_order(
    letters: Iterable[LetterPosition],
    most: int,
    sizes: Mapping[LetterPosition, int] = MappingProxyType({}),
    most_bytes: int = BATCH_BYTES,
) -> Iterator[tuple[int, OffsetSet]]:
    """Yield the letters in batches of one partition of their topic, those of each source partition in source order,
    also if they are in several partitions because the dead-letter topic has grown.

    A batch has `most` letters, and `most_bytes` by the known sizes, at most; a larger letter is a batch of its own.
    """
    ordered = sorted(letters)
    home: dict[tuple[str, int], int] = {}
    for place in ordered:
        home.setdefault(place[:2], place.partition)
    ordered.sort(key=lambda place: home[place[:2]])
    for partition, places in groupby(ordered, key=lambda place: place.partition):
        batch, size = list[int](), 0
        for place in places:
            size += sizes.get(place, 0)
            if batch and (len(batch) == most or size > most_bytes):
                yield partition, OffsetSet.from_offsets(batch)
                batch, size = [], sizes.get(place, 0)
            batch.append(place.offset)
        yield partition, OffsetSet.from_offsets(batch)


def parse_offsets(texts: Iterable[str]) -> dict[int, OffsetSet]:
    """Parse offsets of a dead-letter topic, each text `PARTITION:OFFSET` or `PARTITION:FIRST-LAST`. Raises
    ValueError."""
    found: dict[int, OffsetSet] = {}
    for text in texts:
        given = _OFFSETS.fullmatch(text)
        first, last = (int(given[2]), int(given[3] or given[2])) if given else (1, 0)
        if given is None or not first <= last <= MAX_OFFSET:
            raise ValueError(
                f"{text!r}: expected PARTITION:OFFSET or PARTITION:FIRST-LAST, with offsets of 0 to {MAX_OFFSET}"
            )
        partition = int(given[1])
        found[partition] = found.get(partition, OffsetSet()) | OffsetSet.of((first, last + 1))
    return found


def parse_header(text: str) -> tuple[str, str]:
    """Parse a header given as `NAME=VALUE`. Raises ValueError."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r}: expected NAME=VALUE")
    return name, value


def redrive_count(headers: Headers) -> int:
    """Return how often the record with these headers was redriven already. Those of a letter's record are its
    `original_headers`: the letter may itself be a record that was redriven, from a further dead-letter topic. A count
    that no redrive can have written is ignored."""
    texts = (value.decode(errors="replace") for name, value in headers if name == REDRIVE_COUNT and value)
    return max((number_of(text, _MOST_REDRIVES) or 0 for text in texts), default=0)


def original_headers(letter: DeadLetter) -> Headers:
    """Return the original headers of the record, from its copy in the letter."""
    return tuple(
        (name.removeprefix(ORIGINAL_HEADER), value)
        for name, value in letter.headers
        if name.startswith(ORIGINAL_HEADER) or name == UNDECODABLE
    )


def redriven_headers(
    letter: DeadLetter, topic: str, own: Headers, only_group: str | None = None, batch: str | None = None
) -> list[Header]:
    """Return the headers of the redriven record: its own, with our count, origin, batch and group instead of those of
    an earlier redrive. A record that is a letter itself, of another topic, keeps what makes it one."""
    kept = [header for header in own if header[0] not in _OURS]
    origin = f"{topic}:{letter.partition}:{letter.offset}"
    ours: list[Header] = [
        (REDRIVE_COUNT, b"%d" % (redrive_count(own) + 1)),
        (REDRIVE_FROM, origin.encode()),
        *([(REDRIVE_BATCH, batch.encode())] if batch else []),
    ]
    return [*kept, *ours, *([(REDRIVE_GROUP, only_group.encode())] if only_group else [])]


def _has(letter: DeadLetter, name: str, value: str) -> bool:
    wanted = value.encode()
    return any(
        content == wanted and name in (key, key.removeprefix(ORIGINAL_HEADER))
        for key, content in letter.headers
    )
