"""Read from Postgres the dead letters of a group, batch by batch.

It is used to compare a dead-letter topic with the state. It reads the batches that some letters name, those that
hold some offsets, or all from one on, a few at a time, so that they never are in memory all at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.words.offsets import OffsetSet
from sharequeue.words.values import DeadLetterBatch, DeadLetterRun, SharePartition

BATCHES_AT_A_TIME = 20
"""Each has up to 20,000 records, the limit of the writer."""

_BATCHES = (
    "select topic, partition, topic_id, sequence, opened_at, written_at, dropped, cause, delivery_count,"
    " cast(offsets as text) as offsets from sharequeue.dead_letter_batch_runs"
    " where group_id = :group_id and topic = :topic and partition = :partition"
    " and sequence = any (cast(:sequences as bigint[])) order by sequence, cause, delivery_count"
)
_HOLDING = (
    "select distinct sequence from sharequeue.dead_letter_batch_runs"
    " where group_id = :group_id and topic = :topic and partition = :partition"
    " and offsets && cast(:offsets as int8multirange)"
)


@dataclass(frozen=True)
class ArchivedBatch:
    """A batch of dead letters; `written_at` is None while it is open."""

    source: SharePartition
    sequence: int
    topic_id: str
    """The id of the source topic when the batch was written. A topic that was created again has another one."""
    opened_at: datetime
    written_at: datetime | None
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


class _Reset(NamedTuple):
    """An administrator's reset of a share-partition: only that accepts a topic that was created again."""

    at: datetime
    topic_id_before: str


class ArchivedLetters:
    """The dead letters of one group in Postgres."""

    def __init__(self, database: Database, group_id: str) -> None:
        self._database = database
        self._group_id = group_id
        self._resets: dict[SharePartition, list[_Reset]] | None = None

    def now(self) -> datetime:
        """Return the time by the database's clock."""
        return self._database.rows(sa.text("select sharequeue.clock() as now"))[0]["now"]  # type: ignore[no-any-return]

    def spans(self, as_of: datetime) -> dict[SharePartition, ArchivedSpan]:
        """Return the share-partitions that have batches; those closed later than `as_of` count as open."""
        rows = self._database.rows(
            sa.text(
                "select topic, partition, max(sequence) as last, min(opened_at) as opened,"
                " coalesce(max(sequence) filter (where written_at <= :as_of), 0) as closed"
                " from sharequeue.dead_letter_batch_runs where group_id = :group_id group by topic, partition"
            ),
            group_id=self._group_id,
            as_of=as_of,
        )
        return {
            SharePartition(self._group_id, row["topic"], row["partition"]): ArchivedSpan(
                row["last"], row["closed"], row["opened"]
            )
            for row in rows
        }

    def holding(self, at: SharePartition, offsets: OffsetSet) -> list[ArchivedBatch]:
        """Return the batches that hold any of these offsets."""
        rows = self._rows(_HOLDING, at, offsets=str(offsets))
        return self.named(at, (row["sequence"] for row in rows))

    def since(self, at: SharePartition, sequence: int, through: int) -> Iterator[ArchivedBatch]:
        """Yield the batches from this number through that one, in their order."""
        for first in range(sequence, through + 1, BATCHES_AT_A_TIME):
            yield from self.named(at, range(first, min(first + BATCHES_AT_A_TIME, through + 1)))

    def named(self, at: SharePartition, sequences: Iterable[int]) -> list[ArchivedBatch]:
        """Return the batches with these numbers that exist."""
        rows = self._rows(_BATCHES, at, sequences=sorted(sequences))
        return [
            ArchivedBatch(
                at,
                sequence,
                self._topic_id(at, first["opened_at"]) or first["topic_id"],
                first["opened_at"],
                first["written_at"],
                first["dropped"],
                tuple(
                    DeadLetterRun(row["delivery_count"], row["cause"], OffsetSet.parse(row["offsets"]))
                    for row in (first, *others)
                ),
            )
            for sequence, (first, *others) in (
                (sequence, list(some)) for sequence, some in groupby(rows, key=lambda row: row["sequence"])
            )
        ]

    def _rows(self, statement: str, at: SharePartition, **given: Any) -> list[sa.RowMapping]:
        return self._database.rows(
            sa.text(statement), group_id=self._group_id, topic=at.topic, partition=at.partition, **given
        )

    def _topic_id(self, at: SharePartition, opened_at: datetime) -> str | None:
        """Return the id that the topic had at a time; None if it still has it."""
        if self._resets is None:
            self._resets = self._read_resets()
        return next(
            (reset.topic_id_before for reset in self._resets.get(at, ()) if reset.at >= opened_at), None
        )

    def _read_resets(self) -> dict[SharePartition, list[_Reset]]:
        # The audit log has all resets, because nothing is ever removed from it.
        rows = self._database.rows(
            sa.text(
                "select happened_at, before ->> 'topic' as topic,"
                " cast(before ->> 'partition' as integer) as partition,"
                " before ->> 'topic_id' as topic_id from sharequeue.audit_trail"
                " where group_id = :group_id and act = 'alter_offsets' and before ->> 'topic_id' is not null"
                " order by audit_id"
            ),
            group_id=self._group_id,
        )
        resets: dict[SharePartition, list[_Reset]] = defaultdict(list)
        for row in rows:
            at = SharePartition(self._group_id, row["topic"], row["partition"])
            resets[at].append(_Reset(row["happened_at"], row["topic_id"]))
        return resets
