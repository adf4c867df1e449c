"""Record the history of a group while a run works on it.

A run may find a queue and drain it between two reports: the history would then show neither its lag nor its
throughput. So a run adds a row when it has seen the logs and leased nothing yet, after rounds, and at its end.
"""

from __future__ import annotations

import threading
import time
from datetime import timedelta

from sqlalchemy.exc import SQLAlchemyError

from sharequeue.database import Database
from sharequeue.reports.history import Reports
from sharequeue.words.errors import ShareError

__all__ = ["RunHistory"]

SECONDS_BETWEEN = 10.0
"""The shortest time between two rows of one run, its beginning and its end apart."""


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
