"""Whose is a letter, and what does Postgres know of it?

A dead-letter topic may be shared by groups and by a broker's own share groups, and it may hold letters of a group, or
of a topic, that was deleted since. What a letter says is held against what Postgres archived: a letter that claims a
group and that Postgres does not know was invented or altered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from sharequeue.deadletters.archived import ArchivedBatch, ArchivedLetters, ArchivedSpan
from sharequeue.deadletters.letters import (
    BATCH,
    GROUP,
    OFFSET,
    PARTITION,
    SEQUENCE,
    TOPIC,
    DeadLetter,
    header_texts,
)
from sharequeue.offsets import MAX_OFFSET, OffsetSet
from sharequeue.values import DeadLetterRun, SharePartition

CLOCKS_APART = timedelta(minutes=1)
"""How far the clocks of a writer and of Postgres may be apart."""
_MAX_PARTITION = 2**31 - 1

Standing = Literal["known", "invented", "unplaced", "earlier", "foreign"]
"""`known`: Postgres has archived it. `invented`: it claims the group, and Postgres has no such letter. `unplaced`: it
claims the group, and does not say which record it stands for. `earlier`: of a life of the group or of its source
topic that Postgres no longer knows. `foreign`: of another group, or of nobody."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A letter, its headers as text, what it is, and the batch and run that hold it in Postgres."""

    letter: DeadLetter
    headers: Mapping[str, str | None]
    standing: Standing
    source: SharePartition | None = None
    offset: int | None = None
    """The record's; None, as the source, when the letter does not say it readably."""
    batch: ArchivedBatch | None = None
    run: DeadLetterRun | None = None

    @property
    def ours(self) -> bool:
        """Whether the letter claims the group, or stands where one of the group's must stand."""
        return self.standing != "foreign"


class Judge:
    """Judges the letters of a topic for one group, some at a time. `spans` are as of before they were read."""

    def __init__(
        self, archived: ArchivedLetters, group_id: str, spans: Mapping[SharePartition, ArchivedSpan]
    ) -> None:
        self._archived = archived
        self._group_id = group_id
        self._spans = spans

    def judge(self, letters: Iterable[DeadLetter]) -> list[Judged]:
        """Judge some letters; the batches that they name are asked for in one question a source partition."""
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
            # Postgres may have the offset twice: after a reset, a record is given up once more.
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
            return True  # a reset of the group gave the batch up while it was open
        written_at = claim.letter.timestamp
        return written_at is not None and written_at < span.first_opened_at


@dataclass(frozen=True, slots=True)
class _Claim:
    """What a letter says of itself, as far as it can be read."""

    letter: DeadLetter
    headers: Mapping[str, str | None]
    group: str | None
    source: SharePartition | None = None
    offset: int | None = None
    sequence: int | None = None


def _before(claim: _Claim, batch: ArchivedBatch) -> bool:
    """Whether the letter was written before its batch was opened: then an earlier batch of that number wrote it.

    A letter of the batch has its identity, whatever the clocks say. One that lacks the header may be of the batch, so
    the clocks may be apart there. One that has another identity is not, as it stands.
    """
    identity, written_at = claim.headers.get(BATCH), claim.letter.timestamp
    if identity == batch.identity or written_at is None:
        return False
    return written_at < batch.opened_at - (CLOCKS_APART if identity is None else timedelta())


def _number(text: str | None, most: int) -> int | None:
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > len(str(most)):
        return None
    number = int(text)
    return number if number <= most else None
