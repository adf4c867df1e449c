"""Dead letters, from ARCHIVING to ARCHIVED.

The state's part of KIP-1191: batches of ARCHIVING records under a number that is stored before anything is
produced, and their end after the broker has confirmed them (``sql/functions/40_dead_letters/batches.sql``). Writing
them to the topic is in ``sharequeue.deadletters.writer``.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import (
    ArchivedRun,
    Attempt,
    DeadLetterBatch,
    DeadLetterRun,
    HeldDeadLetters,
    SharePartition,
)
from sharequeue.state.calls import keys_to_json
from sharequeue.state.rows import share_partition_name


@dataclass(frozen=True, slots=True)
class FreedKeys:
    """How many keys go on after dead letters that held them, and how many held records."""

    keys: int = 0
    records: int = 0

    def __add__(self, other: FreedKeys) -> FreedKeys:
        """Add what others have freed."""
        return FreedKeys(self.keys + other.keys, self.records + other.records)

    def __bool__(self) -> bool:
        """Return whether any key goes on."""
        return self.keys > 0


NOTHING_FREED = FreedKeys()


@dataclass(frozen=True, slots=True)
class HoldingBatch:
    """Dead letters of one batch that hold their keys.

    The batch makes a letter known, and not only the place of its record: the same record may have an earlier letter,
    and so may another record at that place, in a topic that was deleted and created again since.
    """

    share_partition: SharePartition
    share_partition_id: int
    """Another one after the offsets, or the group, were deleted: then the numbers of batches start again."""
    sequence: int
    identity: str
    """The batch's identity, as its letters have it."""
    offsets: OffsetSet
    """Those of the letters' source records."""


class DeadLetters:
    """The dead letters of share-partitions, from ARCHIVING to ARCHIVED; ``State.dead_letters``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def topics_redriven_for_others(self, group_id: str) -> set[str]:
        """Return the topics with records that were sent back from a dead-letter topic for one other share group.

        A reader of `group_id` skips those records: they carry the other group's name in the header
        ``sharequeue.redrive.group``.
        """
        rows = self._database.rows(
            sa.text("select topic from sharequeue.topics_redriven_for_others(:group_id) as topic"),
            group_id=group_id,
        )
        return {row["topic"] for row in rows}

    def waiting(
        self, group_id: str | None = None, topics: Collection[str] | None = None
    ) -> dict[SharePartition, int]:
        """Return the share-partitions with dead letters that are not written yet, and how many records each has.

        Of a group, or of all; of these topics, or of all.
        """
        rows = self._database.rows(
            sa.text(
                "select group_id, topic, partition, records from sharequeue.waiting_dead_letters"
                " where (cast(:group_id as text) is null or group_id = :group_id)"
                " and (cast(:topics as text[]) is null or topic = any (cast(:topics as text[])))"
                " order by group_id, topic, partition"
            ),
            group_id=group_id,
            topics=None if topics is None else list(topics),
        )
        return {
            SharePartition(row["group_id"], row["topic"], row["partition"]): row["records"] for row in rows
        }

    def open(self, at: SharePartition, max_records: int) -> DeadLetterBatch | None:
        """Return the batch of dead letters to write next: the open one, or a new one of the lowest offsets.

        With the deliveries of its records that failed. None when no dead letter waits.
        """
        rows = self._database.call(
            sa.text(
                "select * from sharequeue.open_dead_letters(:group_id, :topic, :partition, :max_records)"
            ),
            **share_partition_name(at),
            max_records=max_records,
        )
        if not rows:
            return None
        letters = tuple(
            DeadLetterRun(row["delivery_count"], row["cause"], OffsetSet.parse(row["offsets"]))
            for row in rows
        )
        first = rows[0]
        attempts = tuple(
            Attempt(
                attempt["lease_id"],
                attempt["member_id"],
                attempt["client_id"],
                datetime.fromisoformat(attempt["acquired_at"]),
                OffsetSet.parse(attempt["offsets"]),
                attempt["exceptions"],
                attempt["reason"],
            )
            for attempt in first["attempts"]
        )
        return DeadLetterBatch(
            at,
            first["sequence"],
            first["topic_id"],
            letters,
            first["opened_at"],
            attempts,
            first["is_new"],
        )

    def close(
        self,
        batch: DeadLetterBatch,
        *,
        dropped: bool = False,
        keys: Mapping[UUID | None, OffsetSet] | None = None,
    ) -> int:
        """Close a batch that the broker has confirmed: its records become ARCHIVED.

        Return how many, 0 if it was already closed, or if its share-partition was deleted since: another batch may
        have its number. ``keys`` has the keys of its records, as in an acknowledgement: in a group that is ordered by
        key and whose dead letters hold their keys, these stay open.
        """
        rows = self._database.call(
            sa.text(
                "select sharequeue.close_dead_letters(:group_id, :topic, :partition, :sequence, :dropped,"
                " cast(:keys as jsonb), :opened_at) as closed"
            ),
            **share_partition_name(batch.share_partition),
            sequence=batch.sequence,
            opened_at=batch.opened_at,
            dropped=dropped,
            keys=None if keys is None else json.dumps(keys_to_json(keys)),
        )
        return int(rows[0]["closed"])

    def holding(self) -> list[HoldingBatch]:
        """Return the letters of all groups that hold their keys, batch by batch."""
        rows = self._database.rows(
            sa.text(
                "select h.share_partition_id, h.group_id, h.topic, h.partition, h.sequence,"
                " cast(h.offsets as text) as holding, r.topic_id, r.opened_at, r.cause, r.delivery_count,"
                " cast(r.offsets as text) as offsets from sharequeue.holding_letters h"
                " join sharequeue.dead_letter_batch_runs r using (group_id, topic, partition, sequence)"
                " order by h.share_partition_id, h.sequence, r.cause, r.delivery_count"
            )
        )
        batches = groupby(rows, lambda row: (row["share_partition_id"], row["sequence"]))
        return [_holding_batch(list(runs)) for _, runs in batches]

    def close_letters(self, letters: Iterable[HoldingBatch], *, execute: bool = True) -> FreedKeys:
        """Free what these dead letters hold, because they were redriven or discarded.

        Return how many keys go on, and how many records were held. Without ``execute``, nothing is changed. Letters
        that hold nothing any more change nothing.
        """
        function = "close_letters" if execute else "letters_held"
        ordered = sorted(letters, key=lambda batch: (batch.share_partition_id, batch.sequence))
        freed = NOTHING_FREED
        for share_partition_id, some in groupby(ordered, lambda batch: batch.share_partition_id):
            batches = list(some)
            rows = self._database.call(
                sa.text(
                    f"select * from sharequeue.{function}(:share_partition_id,"  # noqa: S608  (names)
                    " cast(:sequences as bigint[]), cast(:offsets as int8multirange[]))"
                ),
                share_partition_id=share_partition_id,
                sequences=[batch.sequence for batch in batches],
                offsets=[str(batch.offsets) for batch in batches],
            )
            freed += FreedKeys(rows[0]["keys"], rows[0]["held_records"])
        return freed

    def hold(self, at: SharePartition, reason: str | None) -> None:
        """Record why the waiting dead letters cannot be written. None removes the reason; so does closing a batch."""
        self._database.call(
            sa.text(
                "select sharequeue.hold_dead_letters(:group_id, :topic, :partition, cast(:reason as text))"
            ),
            **share_partition_name(at),
            reason=reason,
        )

    def service_writes_letters(self) -> bool:
        """Return whether a running service writes the dead letters of all groups automatically."""
        rows = self._database.rows(sa.text("select sharequeue.service_writes_letters() as writes"))
        return bool(rows[0]["writes"])

    def held(self, group_id: str | None = None) -> list[HeldDeadLetters]:
        """Return the dead letters that could not be written, of one group or of all."""
        rows = self._database.rows(
            sa.text(
                "select group_id, topic, partition, records, reason, since from sharequeue.dead_letters_held"
                " where group_id = coalesce(cast(:group_id as text), group_id) order by group_id, topic, partition"
            ),
            group_id=group_id,
        )
        return [
            HeldDeadLetters(
                SharePartition(row["group_id"], row["topic"], row["partition"]),
                row["records"],
                row["reason"],
                row["since"],
            )
            for row in rows
        ]

    def written(self, group_id: str) -> list[ArchivedRun]:
        """Return every closed run of dead letters of a group, in the order of writing."""
        rows = self._database.rows(
            sa.text(
                "select topic, partition, sequence, cause, delivery_count, offsets, written_at, dropped"
                " from sharequeue.dead_letter_batch_runs where group_id = :group_id and written_at is not null"
                " order by topic, partition, sequence, cause, delivery_count"
            ),
            group_id=group_id,
        )
        return [
            ArchivedRun(
                SharePartition(group_id, row["topic"], row["partition"]),
                row["sequence"],
                row["cause"],
                row["delivery_count"],
                OffsetSet.parse(row["offsets"]),
                row["written_at"],
                row["dropped"],
            )
            for row in rows
        ]


def _holding_batch(runs: Sequence[Mapping[Any, Any]]) -> HoldingBatch:
    """Return a batch from its runs, each with what holds of the whole batch."""
    first = runs[0]
    at = SharePartition(first["group_id"], first["topic"], first["partition"])
    letters = tuple(
        DeadLetterRun(run["delivery_count"], run["cause"], OffsetSet.parse(run["offsets"])) for run in runs
    )
    batch = DeadLetterBatch(at, first["sequence"], first["topic_id"], letters, first["opened_at"])
    return HoldingBatch(
        at, first["share_partition_id"], batch.sequence, batch.identity, OffsetSet.parse(first["holding"])
    )
