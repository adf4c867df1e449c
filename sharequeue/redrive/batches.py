"""What does Postgres know of dead letters that were put back?

The typed layer over `sql/functions/40_dead_letters/redrives.sql`: one batch at a time per partition of a
dead-letter topic, every letter that was ever sent, and who asked for it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, replace

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.groups.known import group_names
from sharequeue.offsets import OffsetSet


@dataclass(frozen=True, slots=True)
class RedriveBatch:
    """Letters of one partition that are sent together. It belongs to the redrive that opened it, maybe a dead one."""

    partition: int
    sequence: int
    redrive_id: uuid.UUID
    target_topic: str | None
    only_group: str | None
    by_key: bool
    offsets: OffsetSet

    @property
    def identity(self) -> str:
        """The same for every attempt at this batch, and for no other batch."""
        return f"{self.redrive_id}:{self.sequence}"


class RedriveBatches:
    """The batches of one dead-letter topic, as it is under its present id."""

    def __init__(self, database: Database, topic: str, topic_id: str) -> None:
        self._database = database
        self._name = {"topic": topic, "topic_id": topic_id}

    def begin(
        self,
        selection: str,
        target: str | None,
        only_group: str | None,
        targets: Iterable[str],
        *,
        by_key: bool = False,
    ) -> uuid.UUID:
        """Write down that the role that is logged in asks for a redrive to these topics; return its id."""
        redrive_id = uuid.uuid4()
        with self._database.transaction() as connection:
            connection.execute(
                sa.text(
                    "insert into sharequeue.redrives"
                    " (redrive_id, dead_letter_topic, topic_id, selection, target_topic, only_group, target_topics,"
                    " by_key, requested_at, requested_by)"
                    " values (:redrive_id, :topic, :topic_id, :selection, :target, :only_group,"
                    " cast(:targets as text[]), :by_key, sharequeue.clock(), session_user)"
                ),
                {
                    **self._name,
                    "redrive_id": redrive_id,
                    "selection": selection,
                    "target": target,
                    "only_group": only_group,
                    "targets": sorted(targets),
                    "by_key": by_key,
                },
            )
        return redrive_id

    def end(self, redrive_id: uuid.UUID) -> None:
        """Write down that the redrive has done all it was asked for."""
        with self._database.transaction() as connection:
            connection.execute(
                sa.text(
                    "update sharequeue.redrives set ended_at = sharequeue.clock() where redrive_id = :redrive_id"
                ),
                {"redrive_id": redrive_id},
            )

    def sent(self) -> dict[int, OffsetSet]:
        """Every letter that was ever sent, by partition."""
        rows = self._database.rows(
            sa.text(
                "select partition, cast(offsets as text) as offsets from sharequeue.redriven"
                " where dead_letter_topic = :topic and topic_id = :topic_id"
            ),
            **self._name,
        )
        return {row["partition"]: OffsetSet.parse(row["offsets"]) for row in rows}

    def open_partitions(self) -> list[int]:
        """Partitions with a batch that somebody opened and nobody closed."""
        rows = self._database.rows(
            sa.text(
                "select partition from sharequeue.redrive_batches where dead_letter_topic = :topic"
                " and topic_id = :topic_id and sent_at is null"
            ),
            **self._name,
        )
        return [row["partition"] for row in rows]

    def open(
        self, partition: int, redrive_id: uuid.UUID, wanted: OffsetSet, max_records: int
    ) -> RedriveBatch | None:
        """The batch to send next: the open one, else the lowest wanted letters that were never sent."""
        rows = self._database.call(
            sa.text(
                "select sequence, redrive_id, target_topic, only_group, by_key, cast(offsets as text) as offsets"
                " from sharequeue.open_redrive(:topic, :topic_id, :partition, :redrive_id,"
                " cast(:wanted as int8multirange), :max_records)"
            ),
            **self._name,
            partition=partition,
            redrive_id=redrive_id,
            wanted=str(wanted),
            max_records=max_records,
        )
        if not rows:
            return None
        row = rows[0]
        return RedriveBatch(
            partition,
            row["sequence"],
            row["redrive_id"],
            row["target_topic"],
            row["only_group"],
            row["by_key"],
            OffsetSet.parse(row["offsets"]),
        )

    def trim(self, batch: RedriveBatch, offsets: OffsetSet) -> RedriveBatch:
        """Go on with these letters of the batch alone: of the others there is nothing to send."""
        self._database.call(
            sa.text(
                "select sharequeue.trim_redrive(:topic, :topic_id, :partition, :sequence,"
                " cast(:offsets as int8multirange))"
            ),
            **self._name,
            partition=batch.partition,
            sequence=batch.sequence,
            offsets=str(offsets),
        )
        return replace(batch, offsets=batch.offsets & offsets)

    def close(self, batch: RedriveBatch) -> int:
        """The batch was sent; return how many letters that are, 0 when it was closed before."""
        rows = self._database.call(
            sa.text("select sharequeue.close_redrive(:topic, :topic_id, :partition, :sequence) as sent"),
            **self._name,
            partition=batch.partition,
            sequence=batch.sequence,
        )
        return int(rows[0]["sent"])

    def groups_of(self, topics: Iterable[str]) -> dict[str, set[str]]:
        """Return the share groups that get what is sent to these topics, by topic."""
        rows = self._database.rows(
            sa.text("select group_id, topic from sharequeue.groups_of_topics(cast(:topics as text[]))"),
            topics=sorted(topics),
        )
        found: dict[str, set[str]] = {}
        for row in rows:
            found.setdefault(row["topic"], set()).add(row["group_id"])
        return found

    def group_names(self) -> list[str]:
        """Return the names of all share groups."""
        return group_names(self._database)

    def is_source(self, topic: str, topic_id: str) -> bool:
        """Whether no share group knows this topic under another id: then its offsets are those that letters name."""
        rows = self._database.rows(
            sa.text(
                "select 1 from sharequeue.share_partitions"
                " where topic = :source and topic_id <> :source_id limit 1"
            ),
            source=topic,
            source_id=topic_id,
        )
        return not rows
