"""The operations of administrators on share-partitions.

Pause and resume leasing, restart at another offset, delete the state of a topic or of a whole group, move stuck
records by hand, extend locks, fence every holder after a restore. Each method calls one SQL function of
``sql/functions``. The functions check the caller's permission, refuse while a group has members (KIP-932,
AlterShareGroupOffsets and similar requests), and write the audit log.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Literal

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import DeletedTopic, ForcedRun, ResetRow, SharePartition, StatePlace
from sharequeue.state.rows import error_of_row, raise_error_of_row, share_partition_name


class Administration:
    """Operations of administrators and of the service on share-partitions; ``State.administration``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def pause(
        self, group_id: str, reason: str | None, topic: str | None = None, partition: int | None = None
    ) -> int:
        """Stop leasing from a group, or from some of its share-partitions; a reason of None resumes, and closes the
        circuit breaker. Leased records may still be acknowledged. Return the number of rows changed.

        Raises GroupIdNotFound, UnknownTopicOrPartition, and InvalidRequest for an empty reason.
        """
        rows = self._database.call(
            sa.text(
                "select sharequeue.pause(:group_id, cast(:reason as text), cast(:topic as text),"
                " cast(:partition as integer)) as paused"
            ),
            group_id=group_id,
            reason=reason,
            topic=topic,
            partition=partition,
        )
        return int(rows[0]["paused"])

    def reset_offsets(
        self,
        group_id: str,
        starts: Mapping[tuple[str, int], int],
        topic_ids: Mapping[str, str],
        *,
        execute: bool = False,
    ) -> list[ResetRow]:
        """Restart many share-partitions, given by topic and partition; create the group if it does not exist.

        Without ``execute``, only return what would be done. A partition that is refused does not stop the
        others (Kafka's AlterShareGroupOffsets). Raises NonEmptyGroup, InvalidGroupId.
        """
        named = sorted(starts)
        rows = self._database.rows(
            sa.text(
                "select * from sharequeue.reset_offsets(:group_id, cast(:topics as text[]),"
                " cast(:partitions as integer[]), cast(:topic_ids as text[]), cast(:starts as bigint[]), :execute)"
            ),
            group_id=group_id,
            topics=[topic for topic, _ in named],
            partitions=[partition for _, partition in named],
            topic_ids=[topic_ids[topic] for topic, _ in named],
            starts=[starts[each] for each in named],
            execute=execute,
        )
        done = (
            ResetRow(
                row["topic"],
                row["partition"],
                row["start_offset_before"],
                row["start_offset"],
                row["state_epoch"],
                error_of_row(row),
            )
            for row in rows
        )
        return sorted(done, key=lambda row: (row.topic, row.partition))

    def delete_offsets(self, group_id: str, topic: str) -> int:
        """Delete a group's share-partitions of a topic; return how many existed.

        Raises NonEmptyGroup, GroupIdNotFound.
        """
        rows = self._database.call(
            sa.text("select sharequeue.delete_offsets(:group_id, :topic) as deleted"),
            group_id=group_id,
            topic=topic,
        )
        return int(rows[0]["deleted"])

    def delete_group(self, group_id: str) -> bool:
        """Delete a group with all its state; return whether it existed. Raises NonEmptyGroup."""
        rows = self._database.call(
            sa.text("select sharequeue.delete_group(:group_id) as deleted"), group_id=group_id
        )
        return bool(rows[0]["deleted"])

    def force_release(
        self, at: SharePartition, offsets: OffsetSet, *, execute: bool = False
    ) -> list[ForcedRun]:
        """Make these offsets available at once, even if they are leased or wait for a later time.

        A holder is fenced for them: its acknowledgement gets InvalidRecordState. Offsets that are acknowledged or
        archived, on their way to the dead-letter topic, or never delivered are refused and stay unchanged. Without
        ``execute``, return what would be done and change nothing.
        """
        return self._force(at, offsets, "release", execute)

    def force_dead_letter(
        self, at: SharePartition, offsets: OffsetSet, *, execute: bool = False
    ) -> list[ForcedRun]:
        """Send these offsets to the dead-letter topic as rejected, even if they are leased; archive them if the
        group has no such topic. Otherwise as :meth:`force_release`."""
        return self._force(at, offsets, "dead_letter", execute)

    def _force(
        self, at: SharePartition, offsets: OffsetSet, act: Literal["release", "dead_letter"], execute: bool
    ) -> list[ForcedRun]:
        rows = self._database.rows(
            sa.text(
                "select * from sharequeue.force(:group_id, :topic, :partition, cast(:offsets as int8multirange),"
                " :act, :execute)"
            ),
            **share_partition_name(at),
            offsets=str(offsets),
            act=act,
            execute=execute,
        )
        for row in rows:
            raise_error_of_row(row)
        done = (
            ForcedRun(
                row["act"],
                OffsetSet.parse(row["offsets"]),
                row["state"],
                row["delivery_count"],
                row["member_id"],
                row["reason"],
            )
            for row in rows
        )
        return sorted(done, key=lambda run: run.offsets.first)

    def extend_locks(self, amount: timedelta) -> int:
        """Extend every lock by this duration; return the number of leases extended."""
        rows = self._database.rows(
            sa.text("select sharequeue.extend_locks(cast(:amount as interval)) as extended"), amount=amount
        )
        return int(rows[0]["extended"])

    def raise_state_epochs(self) -> int:
        """Fence every earlier holder and make all leased records available, after a restore from a backup.

        Return the number of share-partitions.
        """
        rows = self._database.rows(sa.text("select sharequeue.raise_state_epochs() as raised"))
        return int(rows[0]["raised"])

    def place(self) -> StatePlace:
        """Return to which database the state is bound, and in which it is."""
        rows = self._database.rows(sa.text("select * from sharequeue.identity_found()"))
        return StatePlace(**rows[0])

    def adopt(self) -> int:
        """Make this database the one of two with the same state that goes on, and fence every earlier holder.

        Return the number of share-partitions.
        """
        rows = self._database.rows(sa.text("select sharequeue.adopt() as raised"))
        return int(rows[0]["raised"])

    def check_cluster(self, cluster_id: str) -> None:
        """Check that the state belongs to this Kafka cluster, and to this database. The first call by the service
        binds the state to its cluster.

        Raises InconsistentClusterId, with both ids and what to do, if the state belongs to another cluster, or if
        this database is a copy of the state's own.
        """
        self._database.call(sa.text("select sharequeue.check_cluster(:cluster_id)"), cluster_id=cluster_id)

    def note_topics(self, topic_ids: Mapping[str, str | None]) -> None:
        """Record the topics as the broker returned them: each with its current id, or None if it does not
        exist."""
        self._database.call(
            sa.text("select sharequeue.note_topics(cast(:topics as text[]), cast(:topic_ids as text[]))"),
            topics=list(topic_ids),
            topic_ids=list(topic_ids.values()),
        )

    def remove_deleted_topics(
        self, gone_for: timedelta, *, execute: bool, group_id: str | None = None
    ) -> list[DeletedTopic]:
        """Remove the state of all groups, or of one group, for topics that the broker has reported as deleted for at
        least ``gone_for``, the last time included. Without ``execute``, only return what would be removed."""
        rows = self._database.rows(
            sa.text(
                "select * from sharequeue.remove_deleted_topics(cast(:gone_for as interval), :execute,"
                " cast(:group_id as text)) order by group_id, topic, topic_id"
            ),
            gone_for=gone_for,
            execute=execute,
            group_id=group_id,
        )
        return [DeletedTopic(**row) for row in rows]

    def beat(self, longer_than: timedelta | None = None) -> timedelta | None:
        """Record that the service is alive; return the duration of the outage that this ends, None without one.

        An outage is another Postgres server than at the last beat, or a silence longer than ``longer_than``. Locks
        that would have expired in it continue with their remaining time (``sql/functions/30_state/outages.sql``).
        """
        rows = self._database.call(
            sa.text("select sharequeue.beat(cast(:longer_than as interval)) as outage"),
            longer_than=longer_than,
        )
        outage: timedelta | None = rows[0]["outage"]
        return outage

    def give_back_room(self) -> tuple[str, ...]:
        """Rewrite tables that are mostly free space, after a long transaction elsewhere; return their names.

        Safe to call often: it checks sizes first, and does nothing if it would gain nothing.
        """
        return tuple(
            self._database.rows(sa.text("select sharequeue.give_back_room() as tables"))[0]["tables"]
        )
