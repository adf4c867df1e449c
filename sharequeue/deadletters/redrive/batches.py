"""The batches of a redrive in Postgres.

The typed layer over `sql/functions/40_dead_letters/redrives.sql`: one batch at a time per partition of a
dead-letter topic, every letter that was ever sent or discarded, and the role that requested it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.deadletters.redrive.held_keys import HoldingLetters
from sharequeue.deadletters.redrive.selection import LetterPosition, Selection
from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.groups.group_names import all_group_names
from sharequeue.state.dead_letters import DeadLetters, FreedKeys, HoldingBatch


@dataclass(frozen=True, slots=True)
class TargetLog:
    """A target topic when a redrive began: the records of the redrive are behind these ends."""

    topic_id: str
    ends: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class RedriveBatch:
    """Letters of one partition that are sent together. It belongs to the redrive that opened it, which may have
    died."""

    partition: int
    sequence: int
    redrive_id: uuid.UUID
    target_topic: str | None
    only_group: str | None
    by_key: bool
    offsets: OffsetSet
    targets: Mapping[str, TargetLog]
    """The topics to which its redrive sends, as they were when it began."""
    is_new: bool
    """Whether it was opened just now, so that none of its records can be sent yet."""

    @property
    def identity(self) -> str:
        """The same for every attempt at this batch, and for no other batch."""
        return f"{self.redrive_id}:{self.sequence}"


@dataclass(frozen=True, slots=True)
class HandledLetters:
    """Letters of one partition that a new redrive does not choose, or that it only finishes."""

    sent: OffsetSet = EMPTY
    discarded: OffsetSet = EMPTY
    being_sent: OffsetSet = EMPTY
    """Letters of the open batch: its redrive is at work, or has died."""

    def status(self, offset: int) -> str | None:
        """Return `discarded`, `sent` or `being sent`; None for a letter that a redrive may choose."""
        names = {"discarded": self.discarded, "sent": self.sent, "being sent": self.being_sent}
        return next((name for name, offsets in names.items() if offset in offsets), None)


UNHANDLED = HandledLetters()


@dataclass(frozen=True, slots=True)
class Published:
    """Records of a topic-partition that have rows in the output of a group because a replay was published.

    While it is being published, all records of the replay.
    """

    group_id: str
    sink: str
    replay: str
    requested_by: str
    begun_at: datetime
    is_done: bool
    topic: str
    topic_id: str
    partition: int
    offsets: OffsetSet


class RedriveBatches:
    """The batches of one dead-letter topic with its current id."""

    def __init__(self, database: Database, topic: str, topic_id: str) -> None:
        self._database = database
        self.topic, self.topic_id = topic, topic_id
        self._name = {"topic": topic, "topic_id": topic_id}

    def begin(
        self,
        selection: Selection,
        target: str | None,
        only_group: str | None,
        targets: Mapping[str, TargetLog],
        *,
        by_key: bool = False,
    ) -> uuid.UUID:
        """Record that the current database role requested a redrive to these topics; return its id."""
        logs = {name: {"topic_id": log.topic_id, "ends": log.ends} for name, log in targets.items()}
        rows = self._database.call(
            sa.text(
                "select sharequeue.begin_redrive(:topic, :topic_id, :target, :only_group, cast(:targets as text[]),"
                " :by_key, cast(:selection as jsonb), cast(:logs as jsonb)) as redrive_id"
            ),
            **self._name,
            target=target,
            only_group=only_group,
            targets=sorted(targets),
            by_key=by_key,
            selection=json.dumps(selection.columns()),
            logs=json.dumps(logs),
        )
        return rows[0]["redrive_id"]  # type: ignore[no-any-return]

    def plan(self, redrive_id: uuid.UUID, planned: Iterable[tuple[str, LetterPosition]]) -> None:
        """Record the letters that a redrive is about to send, each with its group, before any is sent.

        Raises InvalidRequest if one of the records was published since the plan, or is being published.
        """
        found: dict[tuple[str, str, int, int], list[LetterPosition]] = {}
        for group, at in planned:
            found.setdefault((group, at.topic, at.source_partition, at.partition), []).append(at)
        self._database.call(
            sa.text(
                "select sharequeue.plan_redrive(cast(:redrive_id as uuid), cast(:partitions as integer[]),"
                " cast(:letters as int8multirange[]), cast(:groups as text[]), cast(:topics as text[]),"
                " cast(:source_partitions as integer[]), cast(:offsets as int8multirange[]))"
            ),
            redrive_id=str(redrive_id),
            groups=[group for group, *_ in found],
            topics=[topic for _, topic, *_ in found],
            source_partitions=[source_partition for _, _, source_partition, _ in found],
            partitions=[partition for *_, partition in found],
            letters=[str(OffsetSet.from_offsets(at.offset for at in some)) for some in found.values()],
            offsets=[str(OffsetSet.from_offsets(at.source_offset for at in some)) for some in found.values()],
        )

    def published(self) -> list[Published]:
        """Return the records that replays have put into the outputs of groups, or are putting there."""
        rows = self._database.rows(
            sa.text(
                "select u.group_id, u.sink, u.replay, u.requested_by, u.begun_at, u.ended_at is not null as is_done,"
                " r.topic, r.topic_id, r.partition,"
                " cast(case when u.ended_at is null then r.offsets else r.with_rows end as text) as offsets"
                " from sharequeue.publications u join sharequeue.published_records r using (publication_id)"
            )
        )
        return [Published(**{**row, "offsets": OffsetSet.parse(row["offsets"])}) for row in rows]

    def end(self, redrive_id: uuid.UUID) -> None:
        """Record that the redrive sends nothing more."""
        self._database.call(
            sa.text("select sharequeue.end_redrive(cast(:redrive_id as uuid))"), redrive_id=str(redrive_id)
        )

    def handled(self) -> dict[int, HandledLetters]:
        """Return every letter that was ever sent or discarded, or that is being sent, by partition."""
        rows = self._database.rows(
            sa.text(
                "select d.partition, cast(d.offsets as text) as sent, cast(d.discarded as text) as discarded,"
                " cast(coalesce(b.offsets, '{}') as text) as being_sent"
                " from sharequeue.redriven d left join sharequeue.redrive_batches b on b.sent_at is null"
                " and (b.dead_letter_topic, b.topic_id, b.partition) = (d.dead_letter_topic, d.topic_id, d.partition)"
                " where d.dead_letter_topic = :topic and d.topic_id = :topic_id"
            ),
            **self._name,
        )
        return {
            row["partition"]: HandledLetters(
                *(OffsetSet.parse(row[name]) for name in ("sent", "discarded", "being_sent"))
            )
            for row in rows
        }

    def discard(self, selection: Selection, letters: Mapping[int, OffsetSet]) -> int:
        """Record that no redrive sends these letters, by partition; return how many were not handled before."""
        rows = self._database.call(
            sa.text(
                "select sharequeue.discard_letters(:topic, :topic_id, cast(:selection as jsonb),"
                " cast(:partitions as integer[]), cast(:letters as int8multirange[])) as discarded"
            ),
            **self._name,
            selection=json.dumps(selection.columns()),
            partitions=list(letters),
            letters=[str(offsets) for offsets in letters.values()],
        )
        return int(rows[0]["discarded"])

    def holding(self) -> HoldingLetters:
        """Return the letters that hold their keys, of all dead-letter topics; none of them is looked up yet."""
        return HoldingLetters({batch.identity: batch for batch in DeadLetters(self._database).holding()})

    def held_behind(self, letters: Iterable[HoldingBatch]) -> FreedKeys:
        """Return what `free_keys` would free; nothing is changed."""
        return DeadLetters(self._database).close_letters(letters, execute=False)

    def free_keys(self, letters: Iterable[HoldingBatch]) -> FreedKeys:
        """Let the keys go on that these letters hold; a letter that holds none changes nothing."""
        return DeadLetters(self._database).close_letters(letters)

    def open_partitions(self) -> list[int]:
        """Return the partitions with an open batch."""
        return sorted(self._open_batches())

    def open_targets(self) -> set[str]:
        """Return the target topics of the redrives with an open batch."""
        return {topic for topics in self._open_batches().values() for topic in topics}

    def _open_batches(self) -> dict[int, list[str]]:
        """Return the target topics of each open batch's redrive, by partition."""
        rows = self._database.rows(
            sa.text(
                "select b.partition, r.target_topics from sharequeue.redrive_batches b"
                " join sharequeue.redrives r using (redrive_id) where b.dead_letter_topic = :topic"
                " and b.topic_id = :topic_id and b.sent_at is null"
            ),
            **self._name,
        )
        return {row["partition"]: row["target_topics"] for row in rows}

    def open(
        self, partition: int, redrive_id: uuid.UUID, wanted: OffsetSet, max_records: int
    ) -> RedriveBatch | None:
        """Return the next batch to send: the open one, else the lowest wanted letters that were never sent
        nor discarded."""
        rows = self._database.call(
            sa.text(
                "select sequence, redrive_id, target_topic, only_group, by_key, cast(offsets as text) as offsets,"
                " target_logs, is_new from sharequeue.open_redrive(:topic, :topic_id, :partition, :redrive_id,"
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
            {name: _target_log(log) for name, log in row["target_logs"].items()},
            row["is_new"],
        )

    def trim(self, batch: RedriveBatch, offsets: OffsetSet) -> RedriveBatch:
        """Reduce the batch to these letters: the others cannot be sent, or come with a later batch."""
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
        """Close a batch that was sent; return its number of letters, 0 if it was already closed."""
        rows = self._database.call(
            sa.text("select sharequeue.close_redrive(:topic, :topic_id, :partition, :sequence) as sent"),
            **self._name,
            partition=batch.partition,
            sequence=batch.sequence,
        )
        return int(rows[0]["sent"])

    def groups_of(self, topics: Iterable[str]) -> dict[str, set[str]]:
        """Return the share groups that read these topics, by topic."""
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
        return all_group_names(self._database)

    def is_source(self, topic: str, topic_id: str) -> bool:
        """Return whether no share group knows this topic under another id.

        If so, its offsets are those that letters name.
        """
        rows = self._database.rows(
            sa.text(
                "select 1 from sharequeue.share_partitions"
                " where topic = :source and topic_id <> :source_id limit 1"
            ),
            source=topic,
            source_id=topic_id,
        )
        return not rows


def _target_log(stored: Mapping[str, Any]) -> TargetLog:
    return TargetLog(stored["topic_id"], {int(at): end for at, end in stored["ends"].items()})
