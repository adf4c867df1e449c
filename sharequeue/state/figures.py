"""The figures of share-partitions.

Read only: the views of ``sql/functions/81_views`` and ``sharequeue.verify`` as values. Lag is KIP-1226's. Figures of
whole groups, and the history of figures, are in ``sharequeue.reports``.
"""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.domain.errors import UnknownTopicId
from sharequeue.domain.figures import SharePartitionStatus, column_list
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import DeliveryCount, LeaseRow, OpenKey, SharePartition

_STATUS = f"select {column_list(SharePartitionStatus)} from sharequeue.share_partition_status"  # noqa: S608
_ALL = sa.text(
    f"{_STATUS} where cast(:group_id as text) is null or group_id = :group_id order by group_id, topic, partition"
)
_ONE = sa.text(f"{_STATUS} where group_id = :group_id and topic = :topic and partition = :partition")
_SOME = sa.text(
    f"{_STATUS} s join (select share_partition_id, row_number() over (order by"  # noqa: S608
    "   case when :by_lag then greatest(0, log_end - spso - delivery_complete_count) end desc nulls last,"
    "   topic, partition) as place"
    "  from sharequeue.share_partitions where group_id = :group_id order by place limit :most offset :skip"
    " ) as chosen using (share_partition_id) order by place"
)
# The leases are chosen first: what each holds is counted for these alone.
_LEASES = sa.text(
    "with chosen as materialized (select lease_id as id, group_id as at_group, topic as at_topic,"  # noqa: S608
    "   partition as at_partition from sharequeue.held_leases"
    "  where group_id = :group_id and topic = coalesce(cast(:topic as text), topic)"
    "  and partition = coalesce(cast(:partition as integer), partition) and (stuck_reason is not null or not :stuck)"
    "  order by case when :stuck then held_seconds end desc, expires_at, lease_id limit :most)"
    f" select {column_list(LeaseRow)}"
    " from chosen cross join lateral (select * from sharequeue.held_leases x where x.lease_id = chosen.id"
    "  and x.group_id = chosen.at_group and x.topic = chosen.at_topic and x.partition = chosen.at_partition"
    "  offset 0) as h"
    " order by case when :stuck then h.held_seconds end desc, h.expires_at, h.lease_id"
)
_OPEN_KEYS = sa.text(
    f"select {column_list(OpenKey)} from sharequeue.open_keys where group_id = :group_id"  # noqa: S608
    " order by since, topic, partition, first_offset limit :most"
)


class Figures:
    """The figures of share-partitions; ``State.figures``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def describe(self, group_id: str | None = None) -> list[SharePartitionStatus]:
        """Return the figures of every share-partition of a group, or of all groups."""
        rows = self._database.rows(_ALL, group_id=group_id)
        return [SharePartitionStatus(**row) for row in rows]

    def one(self, at: SharePartition) -> SharePartitionStatus | None:
        """Return the figures of one share-partition; None if it has no state."""
        rows = self._database.rows(_ONE, group_id=at.group_id, topic=at.topic, partition=at.partition)
        return SharePartitionStatus(**rows[0]) if rows else None

    def some(
        self, group_id: str, *, skip: int = 0, most: int, by_lag: bool = False
    ) -> list[SharePartitionStatus]:
        """Return the figures of `most` share-partitions of a group, after `skip` others: by name, or most lag first.

        The cost grows with `most`, not with the number of share-partitions.
        """
        rows = self._database.rows(_SOME, group_id=group_id, skip=skip, most=most, by_lag=by_lag)
        return [SharePartitionStatus(**row) for row in rows]

    def lost_topics(self, group_id: str, topics: Collection[str]) -> dict[str, UnknownTopicId]:
        """Return the topics among these that were deleted, or created again, since the group started to read them.

        Each has the error that explains it and what to do. Nothing of them can be leased.
        """
        rows = self._database.rows(
            sa.text(
                "select topic, reason from sharequeue.lost_topics"
                " where group_id = :group_id and topic = any (cast(:topics as text[])) order by topic"
            ),
            group_id=group_id,
            topics=sorted(topics),
        )
        return {row["topic"]: UnknownTopicId(row["reason"]) for row in rows}

    def leases(
        self,
        group_id: str,
        topic: str | None = None,
        partition: int | None = None,
        *,
        stuck: bool = False,
        most: int | None = None,
    ) -> list[LeaseRow]:
        """Return the leases of a group, or of one of its share-partitions, the next one to expire first.

        With `stuck`, return only leases that no member will finish, the longest held first. `most` of None is no
        limit.
        """
        rows = self._database.rows(
            _LEASES, group_id=group_id, topic=topic, partition=partition, stuck=stuck, most=most
        )
        return [LeaseRow(**{**row, "offsets": OffsetSet.parse(row["offsets"] or "{}")}) for row in rows]

    def open_keys(self, group_id: str, most: int) -> list[OpenKey]:
        """Return the open keys of a group that is ordered by key, `most` of them, the oldest first."""
        rows = self._database.rows(_OPEN_KEYS, group_id=group_id, most=most)
        return [OpenKey(**row) for row in rows]

    def delivery_counts(self, group_id: str) -> list[DeliveryCount]:
        """Return the histogram of delivery counts of all ended records of a group, by outcome."""
        rows = self._database.rows(
            sa.text(
                f"select {column_list(DeliveryCount)} from sharequeue.delivery_count_totals"  # noqa: S608
                " where group_id = :group_id order by topic, partition, outcome, delivery_count"
            ),
            group_id=group_id,
        )
        return [DeliveryCount(**row) for row in rows]

    def verify(self, group_id: str | None = None) -> list[str]:
        """Return the violated invariants of the state, as text; empty if all hold."""
        rows = self._database.rows(
            sa.text("select * from sharequeue.verify(cast(:group_id as text))"), group_id=group_id
        )
        return [
            row["violation"]
            if row["group_id"] is None
            else f"{row['group_id']} {row['topic']}-{row['partition']}: {row['violation']}"
            for row in rows
        ]

    def sequences_behind(self) -> list[str]:
        """Return the sequences whose values would repeat, as after a copy of the rows without them."""
        rows = self._database.rows(sa.text("select sequence from sharequeue.sequences_behind() order by 1"))
        return [row["sequence"] for row in rows]
