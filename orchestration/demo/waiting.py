"""Wait for dead runs: for the records that they hold and for their membership.

A killed run holds its records until their lock expires, and stays a member of the group until its session
expires. Both take seconds by the database's clock. Until then a new run would get only part of the
work, so the demo prints the holders with their remaining time, and waits.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import dagster as dg
import sqlalchemy as sa

from orchestration.demo.position import Position
from sharequeue.dagster.names import CLIENT_ID_PREFIX
from sharequeue.database import Database
from sharequeue.domain.values import LeaseRow
from sharequeue.state import State

POLL_SECONDS = 0.5
# A view: the demo may have only the reader role in the database.
_MEMBERS = sa.text(
    "select member_id, client_id, session_expires_at from sharequeue.group_members where group_id = :group_id"
)


@dataclass(frozen=True, slots=True)
class Holder:
    """A member that holds records, or at least its place in the group, for ``seconds`` more."""

    who: str
    what: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.who} {self.what} for {max(0.0, self.seconds):.0f} s more"


def wait_for_holders(
    look: Callable[[], Position],
    holders: Callable[[Position], list[Holder]],
    settle: Callable[[], object],
    say: Callable[[list[Holder]], None],
) -> Position:
    """Wait while a member holds what a new run needs; return the position after that.

    ``settle`` releases expired locks; the service does that too, but may still be starting.
    """
    while True:
        position = look()
        found = [] if position.done else holders(position)
        if not found:
            return position
        say(found)
        time.sleep(POLL_SECONDS)
        settle()


class Holders:
    """Reads the holders from the state and the group, and from the Dagster instance whether their run is over."""

    def __init__(self, database: Database, instance: dg.DagsterInstance, group_id: str) -> None:
        self._database = database
        self._state = State(database)
        self._instance = instance
        self._group_id = group_id

    def __call__(self, position: Position) -> list[Holder]:
        """Return members of dead runs, and the holders of leases if nothing else is left."""
        dead = self._dead_members()
        leases = self._state.figures.leases(self._group_id)
        ours = [_lease(row, dead.get(row.member_id)) for row in leases if row.member_id in dead]
        places = [Holder(who, "keeps its place in the group", left) for who, left in dead.values()]
        if dead or position.waiting:
            return ours + places
        return [_lease(row, None) for row in leases]

    def _dead_members(self) -> dict[str, tuple[str, float]]:
        """Return the members whose run is over, by member id, with their name and remaining seconds."""
        now = self._state.now()
        dead = {}
        for member in self._database.rows(_MEMBERS, group_id=self._group_id):
            run_id = member["client_id"].removeprefix(CLIENT_ID_PREFIX)
            run = self._instance.get_run_by_id(run_id) if run_id != member["client_id"] else None
            if run is not None and run.is_finished:
                who = f"run {run_id[:8]} ({run.status.value.lower()})"
                dead[member["member_id"]] = (who, (member["session_expires_at"] - now).total_seconds())
        return dead


def _lease(row: LeaseRow, run: tuple[str, float] | None) -> Holder:
    who = run[0] if run else f"member {row.member_id}"
    return Holder(who, f"holds {row.records:,} records of {row.topic}-{row.partition}", row.seconds_left)
