"""Decide to which group a letter belongs, and find its batch in Postgres.

A dead-letter topic may be shared by groups and by a broker's own share groups, and it may hold letters of a group, or
of a topic, that has been deleted since. The headers of a letter are compared with what Postgres archived: a letter of
the group that Postgres does not know was invented or altered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from sharequeue.dagster.quality.archived import ArchivedBatch, ArchivedLetters, ArchivedSpan
from sharequeue.deadletters.letters import (
    BATCH,
    GROUP,
    OFFSET,
    PARTITION,
    SEQUENCE,
    TOPIC,
    DeadLetter,
)
from sharequeue.words.offsets import MAX_OFFSET, OffsetSet
from sharequeue.words.values import DeadLetterRun, SharePartition

CLOCKS_APART = timedelta(minutes=1)
"""The allowed difference between the clocks of a writer and of Postgres."""
_MAX_PARTITION = 2**31 - 1

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
    """The record's offset; like the source, None if the letter does not have it in readable form."""
    batch: ArchivedBatch | None = None
    run: DeadLetterRun | None = None

    @property
    def place(self) -> tuple[int, int]:
        """The partition and the offset of the letter in the dead-letter topic."""
        return self.letter.partition, self.letter.offset

    @property
    def unaltered(self) -> bool:
        """Whether the letter is one that Postgres has archived, or an earlier one, by its headers."""
        identity = None if self.batch is None else self.batch.identity
        return self.standing == "earlier" or (
            self.standing == "known" and self.headers.get(BATCH) in (None, identity)
        )

    @property
    def ours(self) -> bool:
        """Whether the letter names the group, or has the place of one of the group's letters."""
        return self.standing != "foreign"


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
        claims = [self._claim(letter) for letter in letters]
        named: dict[SharePartition, set[int]] = defaultdict(set)
        loose: dict[SharePartition, list[tuple[int, int]]] = defaultdict(list)
        for claim in claims:
            if claim.source is not None and claim.offset is not None and claim.source in self._spans:
                if claim.sequence is not None:
                    named[claim.source].add(claim.sequence)
                else:
                    loose[claim.source].append((claim.offset, claim.offset + 1))
        by_number = {
            (source, batch.sequence): batch
            for source, sequences in named.items()
            for batch in self._archived.named(source, sequences)
        }
        by_offset = {
            source: self._archived.holding(source, OffsetSet.of(*ranges)) for source, ranges in loose.items()
        }
        return [self._one(claim, by_number, by_offset) for claim in claims]

    def _claim(self, letter: DeadLetter) -> _Claim:
        headers = header_texts(letter)
        topic, partition = headers.get(TOPIC), _number(headers.get(PARTITION), _MAX_PARTITION)
        offset, group = _number(headers.get(OFFSET), MAX_OFFSET), headers.get(GROUP)
        if group not in (self._group_id, None) or topic is None or partition is None or offset is None:
            return _Claim(letter, headers, group)
        source = SharePartition(self._group_id, topic, partition)
        return _Claim(letter, headers, group, source, offset, _number(headers.get(SEQUENCE), MAX_OFFSET))

    def _one(
        self,
        claim: _Claim,
        by_number: Mapping[tuple[SharePartition, int], ArchivedBatch],
        by_offset: Mapping[SharePartition, Sequence[ArchivedBatch]],
    ) -> Judged:
        letter, headers, source, offset = claim.letter, claim.headers, claim.source, claim.offset
        if claim.group not in (self._group_id, None):
            return Judged(letter, headers, "foreign")
        if source is None or offset is None:
            return Judged(letter, headers, "foreign" if claim.group is None else "unplaced")
        batch: ArchivedBatch | None
        if claim.sequence is not None:
            batch = by_number.get((source, claim.sequence))
        else:
            # Postgres may have the offset twice: after a reset, a record can become a dead letter again.
            batch = next((b for b in reversed(by_offset.get(source, ())) if offset in b.offsets), None)
        run = None if batch is None else batch.run_of(offset)
        if batch is not None and run is not None and not _before(claim, batch):
            return Judged(letter, headers, "known", source, offset, batch, run)
        if claim.group is None:
            return Judged(letter, headers, "foreign", source, offset)
        standing: Standing = "earlier" if self._is_earlier(claim, source, batch) else "invented"
        return Judged(letter, headers, standing, source, offset)

    def _is_earlier(self, claim: _Claim, source: SharePartition, batch: ArchivedBatch | None) -> bool:
        span = self._spans.get(source)
        if span is None:
            return True
        if batch is not None:
            return _before(claim, batch)
        if claim.sequence is not None and claim.sequence <= span.last_sequence:
            return True  # a reset of the group dropped the batch while it was open
        written_at = claim.letter.timestamp
        return written_at is not None and written_at < span.first_opened_at


@dataclass(frozen=True, slots=True)
class _Claim:
    """The readable headers of a letter about its origin."""

    letter: DeadLetter
    headers: Mapping[str, str | None]
    group: str | None
    source: SharePartition | None = None
    offset: int | None = None
    sequence: int | None = None


def _before(claim: _Claim, batch: ArchivedBatch) -> bool:
    """Return whether the letter is older than its batch: then an earlier batch with that number wrote it.

    A letter with the batch's identity belongs to it, whatever the clocks are. One without that header may belong to
    it, so the clocks may differ. One with another identity does not belong to it.
    """
    identity, written_at = claim.headers.get(BATCH), claim.letter.timestamp
    if identity == batch.identity or written_at is None:
        return False
    return written_at < batch.opened_at - (CLOCKS_APART if identity is None else timedelta())


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


def _number(text: str | None, most: int) -> int | None:
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > len(str(most)):
        return None
    number = int(text)
    return number if number <= most else None
