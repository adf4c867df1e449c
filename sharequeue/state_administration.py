"""What may an administrator do to the state of share-partitions?

Pause and resume leasing, begin anew at another offset, forget a topic's state or a whole group: one method, one
SQL function of ``sql/functions/17_admin.sql``. Who may, and whether a group must be empty for it, is asked by
the callers (KIP-932, AlterShareGroupOffsets and its neighbours).
"""

from __future__ import annotations

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.leases import SharePartition


def share_partition_name(at: SharePartition) -> dict[str, str | int]:
    """The parameters by which the SQL functions find a share-partition."""
    return {"group_id": at.group_id, "topic": at.topic, "partition": at.partition}


class StateAdministration:
    """The administrative half of ``sharequeue.state.State``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def pause(
        self, group_id: str, reason: str | None, topic: str | None = None, partition: int | None = None
    ) -> int:
        """Stops leasing from a group, or from some of its share-partitions; None resumes. What is leased may
        still be answered. Answers how many rows that concerned."""
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

    def alter_offsets(
        self, at: SharePartition, topic_id: str, start_offset: int, state_epoch: int | None = None
    ) -> int:
        """Begins a share-partition anew at an offset: nothing is in flight, holders from before are fenced.

        Answers the new state epoch.
        """
        rows = self._database.rows(
            sa.text(
                "select sharequeue.alter_offsets(:group_id, :topic, :partition, :topic_id, :start_offset,"
                " cast(:state_epoch as integer)) as epoch"
            ),
            **share_partition_name(at),
            topic_id=topic_id,
            start_offset=start_offset,
            state_epoch=state_epoch,
        )
        return int(rows[0]["epoch"])

    def delete_offsets(self, group_id: str, topic: str) -> int:
        """Forgets a group's share-partitions of a topic; answers how many there were."""
        rows = self._database.call(
            sa.text("select sharequeue.delete_offsets(:group_id, :topic) as deleted"),
            group_id=group_id,
            topic=topic,
        )
        return int(rows[0]["deleted"])

    def delete_group(self, group_id: str) -> bool:
        """Deletes a group with all it has; answers whether there was one."""
        rows = self._database.call(
            sa.text("select sharequeue.delete_group(:group_id) as deleted"), group_id=group_id
        )
        return bool(rows[0]["deleted"])
