"""Compare the copy in a letter with its source record.

Only letters that are marked as copies are compared, byte by byte, and only if the source still has the record: its
retention may have removed it, or its topic may have been created again. Other letters have neither key nor value.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sharequeue.dagster.quality.judging import Judged
from sharequeue.deadletters.letters import (
    ORIGINAL_HEADER,
    ORIGINAL_TIMESTAMP,
    RECORD_DAMAGED,
    RECORD_MISSING,
    RECORD_OVERSIZED,
    RecordCopy,
    copy_of,
)
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import SharePartition
from sharequeue.kafka.headers import UNDECODABLE
from sharequeue.kafka.reading import RecordReader, offset_of
from sharequeue.kafka.topics import TopicInfo, Topics

SAME, NOT_COMPARED = "as in the source", "not compared"
ABSENT = "absent, as nothing is copied"
OTHER, UNEXPECTED = "other than in the source", "present, although the letter is not a copy"
AS_EXPECTED = (SAME, NOT_COMPARED, ABSENT)


@dataclass(frozen=True, slots=True)
class Compared:
    """Key, value and copied headers of one letter compared with its source record, each as one of the words above."""

    key: str
    value: str
    headers: str

    @property
    def as_expected(self) -> bool:
        """Whether no difference was found."""
        return {self.key, self.value, self.headers} <= set(AS_EXPECTED)


def copied(headers: Mapping[str, str | None]) -> str:
    """Return the state of a letter's copy: `whole`, `missing`, `oversized`, `damaged`; `none` without a copy."""
    if headers.get(RECORD_MISSING) is not None:
        return "missing"
    if headers.get(RECORD_OVERSIZED) is not None:
        return "oversized"
    if headers.get(RECORD_DAMAGED) is not None:
        return "damaged"
    return "none" if headers.get(ORIGINAL_TIMESTAMP) is None else "whole"


@dataclass(slots=True)
class Comparison:
    """Compares the letters of one reading with their originals."""

    settings: Settings
    topics: Topics
    seconds: float = 0.0
    """The time that reading originals has taken."""
    not_compared: int = 0
    """Copies whose originals no longer exist, or cannot be read any more."""
    _infos: dict[str, TopicInfo | None] = field(default_factory=dict)

    def compare(self, judged: Sequence[Judged]) -> list[Compared]:
        """Return one comparison for each letter, in order."""
        wanted: dict[SharePartition, set[int]] = defaultdict(set)
        for each in judged:
            if self._comparable(each) and each.source is not None and each.offset is not None:
                wanted[each.source].add(each.offset)
        began = time.monotonic()
        originals: dict[tuple[SharePartition | None, int | None], RecordCopy] = {}
        with RecordReader(self.settings) as reader:
            for source, offsets in sorted(wanted.items()):
                for message in reader.read(source.topic, source.partition, OffsetSet.from_offsets(offsets)):
                    if message.error() is None:
                        originals[source, offset_of(message)] = copy_of(message)
        self.seconds += time.monotonic() - began
        return [
            self._one(each, originals.get((each.source, each.offset)) if self._comparable(each) else None)
            for each in judged
        ]

    def _comparable(self, judged: Judged) -> bool:
        """Return whether a letter is a copy, and the source topic is still the one of its record: one that was
        created again may have another record at the same offset.
        """
        batch = judged.batch
        if copied(judged.headers) != "whole" or batch is None:
            return False
        topic = batch.source.topic
        if topic not in self._infos:
            self._infos[topic] = self.topics.describe([topic]).get(topic)
        info = self._infos[topic]
        return info is not None and info.topic_id == batch.topic_id

    def _one(self, judged: Judged, original: RecordCopy | None) -> Compared:
        letter = judged.letter
        if copied(judged.headers) != "whole":
            key, value = (ABSENT if part is None else UNEXPECTED for part in (letter.key, letter.value))
            return Compared(key, value, ABSENT)
        if original is None:
            self.not_compared += 1
            return Compared(NOT_COMPARED, NOT_COMPARED, NOT_COMPARED)
        headers = tuple(
            header
            for header in letter.headers
            if header[0] in (ORIGINAL_TIMESTAMP, UNDECODABLE) or header[0].startswith(ORIGINAL_HEADER)
        )
        return Compared(
            SAME if letter.key == original.key else OTHER,
            SAME if letter.value == original.value else OTHER,
            SAME if headers == original.headers else OTHER,
        )
