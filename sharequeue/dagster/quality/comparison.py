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
    RECORD_MISSING,
    RECORD_OVERSIZED,
    RecordCopy,
    copy_of,
)
from sharequeue.kafka.reading import RecordReader, offset_of
from sharequeue.kafka.topics import TopicInfo, Topics
from sharequeue.words.offsets import OffsetSet
from sharequeue.words.settings import Settings
from sharequeue.words.values import SharePartition

SAME, NOT_COMPARED = "as in the source", "not compared"
ABSENT = "absent, as nothing is copied"
OTHER, UNEXPECTED = "other than in the source", "present, although the letter is not a copy"
AS_EXPECTED = (SAME, NOT_COMPARED, ABSENT)

COMPARE_SECONDS = 60.0
"""After this time, no more originals are read in one reading. They may be far apart in a large topic."""
SLICE = 2_000
"""The number of letters whose originals are read between two checks of the time."""


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
    """Return the state of a letter's copy: `whole`, `missing`, `oversized`, or `none` if no copy was requested."""
    if headers.get(RECORD_MISSING) is not None:
        return "missing"
    if headers.get(RECORD_OVERSIZED) is not None:
        return "oversized"
    return "none" if headers.get(ORIGINAL_TIMESTAMP) is None else "whole"


@dataclass(slots=True)
class Comparison:
    """Compares the letters of one reading with their originals, and starts no further comparison after `seconds`."""

    settings: Settings
    topics: Topics
    seconds: float = field(default_factory=lambda: COMPARE_SECONDS)
    not_compared: int = 0
    """Copies whose originals no longer exist."""
    _begun: bool = False
    _infos: dict[str, TopicInfo | None] = field(default_factory=dict)

    def compare(self, judged: Sequence[Judged]) -> list[Compared]:
        """Return one comparison for each letter, in order; fewer if the time is used up.

        The other letters are left to the next reading. The first letters of a reading are always compared, so that
        each reading makes progress.
        """
        compared: list[Compared] = []
        for at in range(0, len(judged), SLICE):
            if self._begun and self.seconds <= 0:
                break
            self._begun = True
            compared += self._compare(judged[at : at + SLICE])
        return compared

    def _compare(self, judged: Sequence[Judged]) -> list[Compared]:
        wanted: dict[SharePartition, set[int]] = defaultdict(set)
        for each in judged:
            if self._comparable(each) and each.source is not None and each.offset is not None:
                wanted[each.source].add(each.offset)
        originals = self._read(wanted)
        return [self._one(each, originals) for each in judged]

    def _comparable(self, judged: Judged) -> bool:
        """Return whether the source topic is still the one of the letter's record."""
        batch = judged.batch
        if copied(judged.headers) != "whole" or batch is None:
            return False
        topic = batch.source.topic
        if topic not in self._infos:
            self._infos[topic] = self.topics.describe([topic]).get(topic)
        info = self._infos[topic]
        return info is not None and info.topic_id == batch.topic_id

    def _read(self, wanted: dict[SharePartition, set[int]]) -> dict[tuple[SharePartition, int], RecordCopy]:
        found: dict[tuple[SharePartition, int], RecordCopy] = {}
        began = time.monotonic()
        with RecordReader(self.settings) as originals:
            for source, offsets in sorted(wanted.items()):
                for message in originals.read(
                    source.topic, source.partition, OffsetSet.from_offsets(offsets)
                ):
                    found[source, offset_of(message)] = copy_of(message)
        self.seconds -= time.monotonic() - began
        return found

    def _one(self, judged: Judged, originals: dict[tuple[SharePartition, int], RecordCopy]) -> Compared:
        letter = judged.letter
        if copied(judged.headers) != "whole":
            key, value = (ABSENT if part is None else UNEXPECTED for part in (letter.key, letter.value))
            return Compared(key, value, ABSENT)
        source, offset = judged.source, judged.offset
        original = None
        # A topic that was created again may have another record at the same offset.
        if source is not None and offset is not None and self._comparable(judged):
            original = originals.get((source, offset))
        if original is None:
            self.not_compared += 1
            return Compared(NOT_COMPARED, NOT_COMPARED, NOT_COMPARED)
        headers = tuple(
            header
            for header in letter.headers
            if header[0] == ORIGINAL_TIMESTAMP or header[0].startswith(ORIGINAL_HEADER)
        )
        return Compared(
            SAME if letter.key == original.key else OTHER,
            SAME if letter.value == original.value else OTHER,
            SAME if headers == original.headers else OTHER,
        )
