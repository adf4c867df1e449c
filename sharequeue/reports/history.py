"""The history of a group's figures.

The history for the reports: SPSO, lag and records in flight per share-partition, and the histogram of
delivery counts. Each call takes one snapshot. The figures are those of ``Figures.describe`` and
``Figures.delivery_counts``; tables, plots and Dagster metadata are made elsewhere from these rows, and any BI
tool may read the tables ``share_partition_history`` and ``delivery_count_history`` directly.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.words.figures import column_list


@dataclass(frozen=True, slots=True)
class SharePartitionReport:
    """One share-partition at one time, in offsets and records."""

    reported_at: datetime
    topic: str
    partition: int
    spso: int
    speo: int
    log_start: int
    log_end: int
    lag: int
    acquired: int
    available: int
    archiving: int
    delivery_complete_count: int


class Reports:
    """Takes snapshots of a group's figures and returns their history."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record(self, group_id: str, keep: timedelta | None = None) -> datetime:
        """Add one snapshot of the group to the history; return its time by the database's clock.

        Snapshots older than `keep` are removed, at most a thousand rows of each table; later calls remove the rest.
        None keeps everything.
        """
        rows = self._database.rows(
            sa.text("select sharequeue.record_report(:group_id) as reported_at"), group_id=group_id
        )
        if keep is not None:
            self.remove(group_id, keep)
        reported_at: datetime = rows[0]["reported_at"]
        return reported_at

    def remove(self, group_id: str, keep: timedelta, most: int = 1000) -> int:
        """Remove snapshots older than `keep`, at most `most` rows of each table; return the number of rows."""
        rows = self._database.rows(
            sa.text("select sharequeue.remove_reports(:group_id, :keep, :most) as removed"),
            group_id=group_id,
            keep=keep,
            most=most,
        )
        return int(rows[0]["removed"])

    def history(self, group_id: str, limit: int = 100) -> list[SharePartitionReport]:
        """Return the last ``limit`` snapshots of every share-partition of the group, oldest first."""
        rows = self._database.rows(
            sa.text(
                f"select {column_list(SharePartitionReport)} from ("  # noqa: S608 - columns of ours
                "  select *, row_number() over (partition by topic, partition order by reported_at desc) as back"
                "  from sharequeue.share_partition_reports where group_id = :group_id) as h"
                " where back <= :limit order by reported_at, topic, partition"
            ),
            group_id=group_id,
            limit=limit,
        )
        return [SharePartitionReport(**row) for row in rows]
