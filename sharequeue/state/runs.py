"""What a run records in the state: the pipeline of its group, and that it has reported the group's losses."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from sharequeue.database import Database


class Runs:
    """The start and the end of a run; ``State.runs``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def claim(self, group_id: str, pipeline: str, replaces: str | None = None) -> str | None:
        """Record that a pipeline works on a group, unless another one does that is not named in `replaces`.

        Return the pipeline that works on the group now; None if the group does not exist.
        """
        rows = self._database.call(
            sa.text(
                "select sharequeue.claim_group(:group_id, :pipeline, cast(:replaces as text)) as pipeline"
            ),
            group_id=group_id,
            pipeline=pipeline,
            replaces=replaces,
        )
        found: str | None = rows[0]["pipeline"]
        return found

    def losses(self, group_id: str, topics: Sequence[str]) -> int:
        """Return how many records of these topics were removed by retention before they were processed, since the
        last call: each is returned once.

        Records that a lease still holds are returned later, unless their holder accepts them.
        """
        # Not repeated after a lost reply: a second call would return 0.
        rows = self._database.rows(
            sa.text("select sharequeue.report_losses(:group_id, cast(:topics as text[])) as lost"),
            group_id=group_id,
            topics=list(topics),
        )
        return int(rows[0]["lost"])
