"""What is the state of share-partitions, in figures?

Read only: the views of ``sql/functions/81_views`` and ``sharequeue.verify`` as values. Lag is KIP-1226's. The history
of the figures is in ``sharequeue.state.reports``.
"""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.errors import UnknownTopicId
from sharequeue.offsets import OffsetSet
from sharequeue.values import DeliveryCount, LeaseRow, SharePartitionStatus

_COLUMNS = (
    "group_id, topic, partition, topic_id, status, state_epoch, spso, speo, log_start, log_end,"
    " last_stable_offset, observed_at, lag, in_flight, available, acquired, archiving,"
    " delivery_complete_count, lost_records, highest_delivery_count, leases, next_expiry, waiting,"
    " oldest_offset, oldest_state, oldest_since, paused_reason, fault, accepted, rejected, exhausted,"
    " gap, no_dlq, dropped_letters, held_reason, waiting_until, blocked_by, blocked_reason, blocked_until,"
    " blocked_offset"
)
_ALL = sa.text(
    f"select {_COLUMNS} from sharequeue.share_partition_status"  # noqa: S608 - columns of ours
    " where cast(:group_id as text) is null or group_id = :group_id order by group_id, topic, partition"
)
_SOME = sa.text(
    f"select {_COLUMNS} from sharequeue.share_partition_status s"  # noqa: S608 - columns of ours
    " join (select share_partition_id, row_number() over (order by"
    "   case when :by_lag then greatest(0, log_end - spso - delivery_complete_count) end desc nulls last,"
    "   topic, partition) as place"
    "  from sharequeue.share_partitions where group_id = :group_id order by place limit :most offset :skip"
    " ) as chosen using (share_partition_id) order by place"
)


class Figures:
    """The figures of share-partitions; ``State.figures``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def describe(self, group_id: str | None = None) -> list[SharePartitionStatus]:
        """Return the figures of every share-partition of a group, or of all groups."""
        rows = self._database.rows(_ALL, group_id=group_id)
        return [SharePartitionStatus(**row) for row in rows]

    def some(
        self, group_id: str, *, skip: int = 0, most: int, by_lag: bool = False
    ) -> list[SharePartitionStatus]:
        """Return the figures of `most` share-partitions of a group, after `skip` others: by name, or most lag first.

        What it costs grows with `most`, and not with the number of share-partitions.
        """
        rows = self._database.rows(_SOME, group_id=group_id, skip=skip, most=most, by_lag=by_lag)
        return [SharePartitionStatus(**row) for row in rows]

    def lost_topics(self, group_id: str, topics: Collection[str]) -> dict[str, UnknownTopicId]:
        """Return those of these topics that were deleted, or made again, since the group began on them.

        Each with the error that says so, and what to do. Nothing of them can be leased.
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

    def leases(self, group_id: str) -> list[LeaseRow]:
        """Return the leases of a group, soonest to lapse first."""
        rows = self._database.rows(
            sa.text(
                "select lease_id, topic, partition, member_id, records, acquired_at, expires_at, seconds_left,"
                " offsets, highest_delivery_count, isolation_level"
                " from sharequeue.held_leases where group_id = :group_id order by expires_at, lease_id"
            ),
            group_id=group_id,
        )
        return [LeaseRow(**{**row, "offsets": OffsetSet.parse(row["offsets"] or "{}")}) for row in rows]

    def delivery_counts(self, group_id: str) -> list[DeliveryCount]:
        """Return the histogram of delivery counts over all records of a group that have ended, by outcome."""
        rows = self._database.rows(
            sa.text(
                "select topic, partition, outcome, delivery_count, records from sharequeue.delivery_count_totals"
                " where group_id = :group_id order by topic, partition, outcome, delivery_count"
            ),
            group_id=group_id,
        )
        return [DeliveryCount(**row) for row in rows]

    def verify(self, group_id: str | None = None) -> list[str]:
        """Return the invariants of the state that do not hold, in words; empty when all hold."""
        rows = self._database.rows(
            sa.text("select * from sharequeue.verify(cast(:group_id as text))"), group_id=group_id
        )
        return [f"{row['group_id']} {row['topic']}-{row['partition']}: {row['violation']}" for row in rows]
