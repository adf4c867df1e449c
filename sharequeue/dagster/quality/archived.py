"""Read from Postgres the dead letters of a group, batch by batch.

It is used to compare a dead-letter topic with the state. It reads the batches that some letters name, or all from one
on, a few at a time, so that they never are in memory all at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import groupby

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import DeadLetterBatch, DeadLetterRun, SharePartition

BATCHES_AT_A_TIME = 20
"""Each has up to 20,000 records, the limit of the writer."""

# A topic that was created again has another id, which only an administrator's reset accepts: the audit log has it.
_BATCHES = sa.text(
    "select coalesce((select a.before ->> 'topic_id' from sharequeue.audit_trail a"
    "  where a.group_id = r.group_id and a.act = 'alter_offsets' and a.before ->> 'topic' = r.topic"
    "  and cast(a.before ->> 'partition' as integer) = r.partition and a.before ->> 'topic_id' is not null"
    "  and a.happened_at >= r.opened_at order by a.audit_id limit 1), r.topic_id) as topic_id,"
    " r.sequence, r.opened_at, r.dropped, r.cause, r.delivery_count, cast(r.offsets as text) as offsets"
    " from sharequeue.dead_letter_batch_runs r"
    " where r.group_id = :group_id and r.topic = :topic and r.partition = :partition"
    " and r.sequence = any (cast(:sequences as bigint[])) order by r.sequence, r.cause, r.delivery_count"
)
_SPANS = sa.text(
    "select topic, partition, max(sequence) as last, min(opened_at) as opened,"
    " coalesce(max(sequence) filter (where written_at is not null), 0) as closed"
    " from sharequeue.dead_letter_batch_runs where group_id = :group_id group by topic, partition"
)
_WRITTEN = sa.text(
    "select cast(coalesce(sum(sharequeue.records(offsets)), 0) as bigint) as records"
    " from sharequeue.dead_letter_batch_runs"
    " where group_id = :group_id and written_at is not null and not dropped"
)


@dataclass(frozen=True)
class ArchivedBatch:
    """A batch of dead letters, with the id that its source topic had when it was opened."""

    source: SharePartition
    sequence: int
    topic_id: str
    opened_at: datetime
    dropped: bool
    runs: tuple[DeadLetterRun, ...]

    @cached_property
    def identity(self) -> str:
        """The identity in the headers of its letters."""
        return DeadLetterBatch(self.source, self.sequence, self.topic_id, self.runs, self.opened_at).identity

    @cached_property
    def offsets(self) -> OffsetSet:
        """All of its offsets."""
        return OffsetSet.union(run.offsets for run in self.runs)

    def run_of(self, offset: int) -> DeadLetterRun | None:
        """Return the run that holds an offset; None if there is none."""
        return next((run for run in self.runs if offset in run.offsets), None)


@dataclass(frozen=True, slots=True)
class ArchivedSpan:
    """The batches of one share-partition: the numbers of the last one and of the last closed one, and
    when the first was opened."""

    last_sequence: int
    last_closed: int
    first_opened_at: datetime


class ArchivedLetters:
    """The dead letters of one group in Postgres."""

    def __init__(self, database: Database, group_id: str) -> None:
        self._database = database
        self._group_id = group_id

    def spans(self) -> dict[SharePartition, ArchivedSpan]:
        """Return the share-partitions that have batches."""
        return {
            SharePartition(self._group_id, row["topic"], row["partition"]): ArchivedSpan(
                row["last"], row["closed"], row["opened"]
            )
            for row in self._database.rows(_SPANS, group_id=self._group_id)
        }

    def written(self) -> int:
        """Return the number of letters that are recorded as written."""
        return int(self._database.rows(_WRITTEN, group_id=self._group_id)[0]["records"])

    def since(self, at: SharePartition, sequence: int, through: int) -> Iterator[ArchivedBatch]:
        """Yield the batches from this number through that one, in their order."""
        for first in range(sequence, through + 1, BATCHES_AT_A_TIME):
            yield from self.named(at, range(first, min(first + BATCHES_AT_A_TIME, through + 1)))

    def named(self, at: SharePartition, sequences: Iterable[int]) -> list[ArchivedBatch]:
        """Return the batches with these numbers that exist."""
        rows = self._database.rows(
            _BATCHES,
            group_id=self._group_id,
            topic=at.topic,
            partition=at.partition,
            sequences=sorted(sequences),
        )
        by_sequence = ((number, list(some)) for number, some in groupby(rows, lambda row: row["sequence"]))
        return [
            ArchivedBatch(
                at,
                sequence,
                first["topic_id"],
                first["opened_at"],
                first["dropped"],
                tuple(
                    DeadLetterRun(row["delivery_count"], row["cause"], OffsetSet.parse(row["offsets"]))
                    for row in (first, *others)
                ),
            )
            for sequence, (first, *others) in by_sequence
        ]
