"""What has Postgres of the dead letters of a group, batch by batch?

For whoever holds a dead-letter topic against the state: asked for the batches that some letters name, for those that
hold some offsets, or for all from one on, a few at a time, so that nobody holds all of them in memory.
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
from sharequeue.deadletters.letters import batch_identity
from sharequeue.offsets import OffsetSet
from sharequeue.values import DeadLetterBatch, DeadLetterRun, SharePartition

BATCHES_AT_A_TIME = 20
"""Each has 20,000 records at most, as the writer makes them."""

_COLUMNS = (
    "select topic, partition, topic_id, sequence, opened_at, written_at, dropped, cause, delivery_count,"
    " cast(offsets as text) as offsets from sharequeue.dead_letter_batch_runs"
)
_ORDER = " order by topic, partition, sequence, cause, delivery_count"


@dataclass(frozen=True)
class ArchivedBatch:
    """A batch of dead letters; `written_at` is None while it is open."""

    source: SharePartition
    sequence: int
    topic_id: str
    """The id that the source topic had when the batch was written. It has another if it was made again since."""
    opened_at: datetime
    written_at: datetime | None
    dropped: bool
    runs: tuple[DeadLetterRun, ...]

    @cached_property
    def identity(self) -> str:
        """What its letters have in their header."""
        return batch_identity(
            DeadLetterBatch(self.source, self.sequence, self.topic_id, self.runs, self.opened_at)
        )

    @cached_property
    def offsets(self) -> OffsetSet:
        """All of it."""
        return OffsetSet.union(run.offsets for run in self.runs)

    def run_of(self, offset: int) -> DeadLetterRun | None:
        """The run that holds an offset."""
        return next((run for run in self.runs if offset in run.offsets), None)


@dataclass(frozen=True, slots=True)
class ArchivedSpan:
    """The batches of one share-partition: the numbers of the last one and of the last that was closed by then, and
    when the first was opened."""

    last_sequence: int
    last_closed: int
    first_opened_at: datetime


class _Reset(NamedTuple):
    """An administrator's reset of a share-partition: it alone takes over a topic that was made again."""

    at: datetime
    topic_id_before: str


class ArchivedLetters:
    """The dead letters of one group as Postgres has them."""

    def __init__(self, database: Database, group_id: str) -> None:
        self._database = database
        self._group_id = group_id
        self._resets: dict[SharePartition, list[_Reset]] | None = None

    def now(self) -> datetime:
        """The time by the database's clock."""
        return self._database.rows(sa.text("select sharequeue.clock() as now"))[0]["now"]  # type: ignore[no-any-return]

    def spans(self, as_of: datetime) -> dict[SharePartition, ArchivedSpan]:
        """The share-partitions that have batches; what was closed later than `as_of` counts as open."""
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

    def named(self, at: SharePartition, sequences: Iterable[int]) -> list[ArchivedBatch]:
        """The batches of these numbers, those that there are."""
        return self._batches(
            at, " and sequence = any (cast(:sequences as bigint[]))", sequences=sorted(sequences)
        )

    def holding(self, at: SharePartition, offsets: OffsetSet) -> list[ArchivedBatch]:
        """The batches that hold any of these offsets."""
        return self._batches(
            at,
            " and sequence in (select b.sequence from sharequeue.dead_letter_batch_runs b"
            " where b.group_id = :group_id and b.topic = :topic and b.partition = :partition"
            " and b.offsets && cast(:offsets as int8multirange))",
            offsets=str(offsets),
        )

    def since(self, at: SharePartition, sequence: int, through: int) -> Iterator[ArchivedBatch]:
        """The batches from this number through that one, in their order."""
        last = sequence - 1
        while last < through:
            some = self._batches(
                at,
                " and sequence in (select distinct b.sequence from sharequeue.dead_letter_batch_runs b"
                " where b.group_id = :group_id and b.topic = :topic and b.partition = :partition"
                " and b.sequence > :last and b.sequence <= :through order by b.sequence limit :some)",
                last=last,
                through=through,
                some=BATCHES_AT_A_TIME,
            )
            yield from some
            if len(some) < BATCHES_AT_A_TIME:
                return
            last = some[-1].sequence

    def _batches(self, at: SharePartition, condition: str, **given: Any) -> list[ArchivedBatch]:
        rows = self._database.rows(
            sa.text(
                f"{_COLUMNS} where group_id = :group_id and topic = :topic and partition = :partition"
                f"{condition}{_ORDER}"
            ),
            group_id=self._group_id,
            topic=at.topic,
            partition=at.partition,
            **given,
        )
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

    def _topic_id(self, at: SharePartition, opened_at: datetime) -> str | None:
        """The id that the topic had at a time; None when it is the one that it has now."""
        if self._resets is None:
            self._resets = self._read_resets()
        return next(
            (reset.topic_id_before for reset in self._resets.get(at, ()) if reset.at >= opened_at), None
        )

    def _read_resets(self) -> dict[SharePartition, list[_Reset]]:
        # The audit log has all of them, as nothing is ever removed from it.
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
