"""The history of a group's figures, as the view for readers has it."""

from __future__ import annotations

import sqlalchemy as sa

from sharequeue.database import Database

_LAGS = sa.text(
    "select lag from sharequeue.share_partition_reports where group_id = :group_id"
    " order by reported_at, topic, partition"
)


def reported_lags(database: Database, group: str) -> list[int]:
    """Return the lag of each report of each share-partition, oldest first."""
    return [int(row["lag"]) for row in database.rows(_LAGS, group_id=group)]
