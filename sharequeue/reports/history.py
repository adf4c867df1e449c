"""The history of a group's figures.

The history for the reports: SPSO, lag and records in flight per share-partition, and the histogram of
delivery counts. Each call takes one snapshot. The figures are those of ``Figures.describe`` and
``Figures.delivery_counts``; any BI tool may read the tables ``share_partition_history`` and
``delivery_count_history`` directly.

A run may find a queue and drain it between two reports: the history would then show neither its lag nor its
throughput. So a run adds a row when it has seen the logs and leased nothing yet, after rounds, and at its end.
"""

from __future__ import annotations

import threading
import time
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from sharequeue.database import Database
from sharequeue.domain.errors import ShareError

__all__ = ["Reports", "RunHistory"]

SECONDS_BETWEEN = 10.0
"""The shortest time between two rows of one run, its beginning and its end apart."""


class Reports:
    """Takes snapshots of a group's figures, and removes old ones."""

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


class RunHistory:
    """The rows of one run. A run never fails because of them. May be used from several threads.

    `keep` is the retention of the history; None keeps everything.
    """

    def __init__(self, database: Database, group_id: str, keep: timedelta | None = None) -> None:
        self._reports, self._group_id, self._keep = Reports(database), group_id, keep
        self._lock = threading.Lock()
        self._recorded_at: float | None = None

    def note(self, stage: str) -> None:
        """Add a row if a stage of a round needs one: before the first lease, and after a round (`done`)."""
        with self._lock:
            now, before = time.monotonic(), self._recorded_at
            if stage != ("acquire" if before is None else "done"):
                return
            if before is not None and now - before < SECONDS_BETWEEN:
                return
            self._recorded_at = now
        self.record()

    def record(self) -> None:
        """Add a row now."""
        try:
            self._reports.record(self._group_id, self._keep)
        except (SQLAlchemyError, ShareError):
            return
