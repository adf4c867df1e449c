"""Decide to which group a letter belongs, and find its batch in Postgres.

A dead-letter topic may be shared by groups and by a broker's own share groups, and it may hold letters of a group, or
of a topic, that has been deleted since. The headers of a letter are compared with what Postgres archived: a letter of
the group that Postgres does not know was invented or altered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from sharequeue.dagster.quality.archived import ArchivedBatch, ArchivedLetters, ArchivedSpan
from sharequeue.deadletters.letters import BATCH, GROUP, OFFSET, PARTITION, SEQUENCE, TOPIC, DeadLetter
from sharequeue.domain.moments import milliseconds_of
from sharequeue.domain.offsets import MAX_OFFSET, MAX_PARTITION
from sharequeue.domain.record_bytes import number_of
from sharequeue.domain.values import DeadLetterRun, SharePartition

Standing = Literal["known", "invented", "unplaced", "earlier", "foreign"]
"""`known`: Postgres has archived it. `invented`: it names the group, but Postgres has no such letter. `unplaced`: it
names the group, but not its record. `earlier`: of a deleted group or source topic that Postgres no longer
knows. `foreign`: of another group, or of none."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A letter, its headers as text, its classification, and its batch and run in Postgres."""

    letter: DeadLetter
    headers: Mapping[str, str | None]
    standing: Standing
    source: SharePartition | None = None
    offset: int | None = None
    """The record's offset; like the source and the sequence, None if the letter does not have it in readable form."""
    sequence: int | None = None
    batch: ArchivedBatch | None = None
    run: DeadLetterRun | None = None

    @property
    def place(self) -> tuple[int, int]:
        """The partition and the offset of the letter in the dead-letter topic."""
        return self.letter.partition, self.letter.offset

    @property
    def unaltered(self) -> bool:
        """Whether the letter is one that Postgres has archived, or an earlier one, by its headers."""
        return self.standing == "earlier" or (
            self.batch is not None and self.headers.get(BATCH) == self.batch.identity
        )


class Judge:
    """Judges the letters of a topic for one group, in batches. `spans` are from before the letters were read."""

    def __init__(
        self, archived: ArchivedLetters, group_id: str, spans: Mapping[SharePartition, ArchivedSpan]
    ) -> None:
        self._archived = archived
        self._group_id = group_id
        self._spans = spans

    def judge(self, letters: Iterable[DeadLetter]) -> list[Judged]:
        """Judge some letters; their batches are read in one query for each source partition."""
        read = [self._read(letter) for letter in letters]
        named: dict[SharePartition, set[int]] = defaultdict(set)
        for each in read:
            if each.source in self._spans and each.source is not None and each.sequence is not None:
                named[each.source].add(each.sequence)
        batches = {
            (source, batch.sequence): batch
            for source, sequences in named.items()
            for batch in self._archived.named(source, sequences)
        }
        return [self._one(each, batches) for each in read]

    def _read(self, letter: DeadLetter) -> Judged:
        """Read the headers about a letter's origin; the batch is not known yet."""
        headers = header_texts(letter)
        topic, partition = headers.get(TOPIC), number_of(headers.get(PARTITION), MAX_PARTITION)
        offset, group = number_of(headers.get(OFFSET), MAX_OFFSET), headers.get(GROUP)
        if group not in (self._group_id, None):
            return Judged(letter, headers, "foreign")
        if topic is None or partition is None or offset is None:
            return Judged(letter, headers, "unplaced" if group else "foreign")
        source = SharePartition(self._group_id, topic, partition)
        sequence = number_of(headers.get(SEQUENCE), MAX_OFFSET)
        return Judged(letter, headers, "invented" if group else "foreign", source, offset, sequence)

    def _one(self, read: Judged, batches: Mapping[tuple[SharePartition, int], ArchivedBatch]) -> Judged:
        if read.source is None or read.offset is None:
            return read
        batch = None if read.sequence is None else batches.get((read.source, read.sequence))
        run = None if batch is None else batch.run_of(read.offset)
        if batch is not None and run is not None and not _before(read, batch):
            return replace(read, standing="known", batch=batch, run=run)
        if read.standing == "invented" and self._is_earlier(read, read.source, batch):
            return replace(read, standing="earlier")
        return read

    def _is_earlier(self, read: Judged, source: SharePartition, batch: ArchivedBatch | None) -> bool:
        span = self._spans.get(source)
        if span is None:
            return True
        if batch is not None:
            return _before(read, batch)
        if read.sequence is not None and read.sequence <= span.last_sequence:
            return True  # a reset of the group dropped the batch while it was open
        at = read.letter.written_ms
        return at is not None and at < milliseconds_of(span.first_opened_at)


def _before(read: Judged, batch: ArchivedBatch) -> bool:
    """Return whether the letter is older than its batch: then an earlier batch with that number wrote it.

    A letter with the batch's identity belongs to it, whatever the clocks are.
    """
    at = read.letter.written_ms
    named = read.headers.get(BATCH) == batch.identity
    return not named and at is not None and at < milliseconds_of(batch.opened_at)


def header_texts(letter: DeadLetter) -> dict[str, str | None]:
    """Return the result of `header` for each name in the letter, for callers that need many."""
    found: dict[str, str | None] = {}
    for name, content in letter.headers:
        if name not in found:
            try:
                found[name] = None if content is None else content.decode()
            except UnicodeDecodeError:
                found[name] = None
    return found
