"""What a run tells the state about itself: which pipeline it is, and that it has reported what the group lost."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from sharequeue.database import Database


class Runs:
    """The begin and the end of a run; ``State.runs``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def claim(self, group_id: str, pipeline: str, replaces: str | None = None) -> str | None:
        """Note that a pipeline works on a group, unless another one does that it does not replace by name.

        Return the pipeline that works on the group now; None where there is no such group.
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
        """Return how many records of these topics retention has removed before they were processed, since this was
        last asked: each is returned once.

        Records that a lease still holds are returned later, unless their holder accepts them.
        """
        # Not repeated after a lost reply: the second call would return 0.
        rows = self._database.rows(
            sa.text("select sharequeue.report_losses(:group_id, cast(:topics as text[])) as lost"),
            group_id=group_id,
            topics=list(topics),
        )
        return int(rows[0]["lost"])
