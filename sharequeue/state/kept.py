"""Where raw records of released offsets are kept, so that their next delivery is read from files.

An acknowledgement writes the rows (``LeaseAcknowledgement.kept``). A record without a row, or whose files cannot be
read, is read from the log. ``sharequeue.spark`` writes, reads and removes the files.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.domain.values import KeptRow, Lease
from sharequeue.state.calls import names_of
from sharequeue.state.offset_sets import offsets_in, offsets_out
from sharequeue.state.rows import statement


class Kept:
    """The raw records that leases have kept; ``State.kept``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, leases: Sequence[Lease]) -> dict[int, list[KeptRow]]:
        """Return where records of these leases, all of one group, are kept, by lease id; leases without any are
        missing.

        Each offset is in one row, the newest that was read at the isolation level of the lease.
        """
        if not leases:
            return {}
        rows = self._database.call(
            statement(
                f"select lease_id, kept_by, location, {offsets_out('k.offsets')}"  # noqa: S608  (no value is in it)
                " from sharequeue.kept_of(:group_id, cast(:lease_ids as bigint[])) as k"
            ),
            group_id=names_of([lease.share_partition for lease in leases])["group_id"],
            lease_ids=[lease.lease_id for lease in leases],
        )
        found: dict[int, list[KeptRow]] = {}
        for row in rows:
            found.setdefault(row["lease_id"], []).append(_row_of(row, row["kept_by"]))
        return found

    def removable(self, group_id: str, *, all_rows: bool = False) -> list[KeptRow]:
        """Return the rows of a group whose files are no longer needed; with ``all_rows`` every row.

        Rows of leases that are held are never among them. Raises InconsistentClusterId in a copy of the database.
        """
        rows = self._database.call(
            statement(
                f"select lease_id, location, {offsets_out('k.offsets')}"  # noqa: S608  (no value is in it)
                " from sharequeue.removable_kept(:group_id, :all_rows) as k"
            ),
            group_id=group_id,
            all_rows=all_rows,
        )
        return [_row_of(row, row["lease_id"]) for row in rows]

    def drop(self, group_id: str, lease_ids: Collection[int]) -> int:
        """Forget the records that these leases have kept: their files were removed, or are damaged. Return how many
        of the leases had any.
        """
        rows = self._database.call(
            sa.text("select sharequeue.drop_kept(:group_id, cast(:lease_ids as bigint[])) as dropped"),
            group_id=group_id,
            lease_ids=list(lease_ids),
        )
        return int(rows[0]["dropped"])


def _row_of(row: Mapping[Any, Any], lease_id: int) -> KeptRow:
    return KeptRow(lease_id, row["location"], offsets_in(row))
