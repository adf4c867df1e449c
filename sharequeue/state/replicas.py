"""The replicas of the service, and when one last did the work that replicas share.

Each replica reports every second that it is running, so that sessions are extended after a time without any. Every
few seconds it stores how long ago it did its work (``sharequeue.note_service_work``), so that every replica can
detect work that none does. The tasks themselves are in `service.coordinator`.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal
from uuid import uuid4

from sqlalchemy import text

from sharequeue.database import Database

Work = Literal["watch", "sweep", "journal", "dead_letters"]
WORK: Mapping[Work, str] = {
    "watch": "check the broker's topics",
    "sweep": "end expired sessions and lapsed locks",
    "journal": "maintain the journal",
    "dead_letters": "look for dead letters to write",
}
"""The recurring tasks of a replica."""
LATE_SECONDS: Mapping[Work, float] = {"watch": 60.0, "sweep": 30.0, "journal": 120.0, "dead_letters": 60.0}
"""Work that no replica has done for this long is late: many times the interval between two turns."""

ALIVE_SECONDS = 15.0
"""A replica without a report for longer is not counted."""

SET_BACK_SHOWN_SECONDS = 300.0
"""How long the clock counts as set back, at least: until it reaches the old time again, if that is later."""


def replica_name() -> str:
    """Return this process's name among the replicas: its host, its pid, and a unique part."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"


def hear_replica(
    database: Database,
    name: str,
    silence: timedelta | None = None,
    *,
    writes_letters: bool = False,
    stops: bool = False,
) -> timedelta | None:
    """Record that this replica is running, and whether it writes dead letters by itself; or that it `stops` in order.

    With `silence`: if no replica reported for longer than that, sessions continue with the time that they had left at
    the last report. Returns the length of that silence.
    """
    rows = database.call(
        text(
            "select sharequeue.hear_replica(:name, cast(:silence as interval), :writes_letters, :stops) as unheard"
        ),
        name=name,
        silence=silence,
        writes_letters=writes_letters,
        stops=stops,
    )
    unheard: timedelta | None = rows[0]["unheard"]
    return unheard


def beat_and_hear(database: Database, name: str, silence: timedelta | None, *, writes_letters: bool) -> None:
    """Record in one call that the service is alive, as ``Administration.beat``, and that this replica is."""
    database.call(
        text(
            "select sharequeue.beat(cast(:silence as interval)),"
            " sharequeue.hear_replica(:name, null, :writes_letters)"
        ),
        name=name,
        silence=silence,
        writes_letters=writes_letters,
    )


class ReplicaWork:
    """The work that one replica has done, and when. For several threads. `monotonic` returns seconds."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._done: dict[Work, float] = {}

    def done(self, work: Work) -> None:
        """Record that a round of this work has just succeeded."""
        with self._lock:
            self._done[work] = self._monotonic()

    def ages(self) -> dict[Work, float | None]:
        """Return the seconds since each kind of work last succeeded; None if it never did."""
        now = self._monotonic()
        with self._lock:
            return {work: now - self._done[work] if work in self._done else None for work in WORK}

    def write(self, database: Database, replica: str) -> None:
        """Store the ages, for all replicas to read."""
        ages = self.ages()
        database.call(
            text(
                "select sharequeue.note_service_work(:replica, :watched, :swept, :journal_kept, :drained) as noted"
            ),
            replica=replica,
            watched=ages["watch"],
            swept=ages["sweep"],
            journal_kept=ages["journal"],
            drained=ages["dead_letters"],
        )


@dataclass(frozen=True, slots=True)
class ClockSetBack:
    """The database's clock was set back: by how many seconds, and how many seconds ago a replica found it."""

    seconds: float
    age: float


@dataclass(frozen=True, slots=True)
class Replicas:
    """How many replicas are running, whether one writes dead letters, or did until it died, and seconds since any did
    each kind of work.
    """

    alive: int
    writes_letters: bool
    ages: Mapping[Work, float | None]
    set_back: ClockSetBack | None = None
    """The last time that the database's clock was set back, as long as stored times may still be in the future."""


def read_replicas(database: Database) -> Replicas:
    """Read what all replicas have stored.

    A time in the future, from before the clock was set back, counts as past by as much as it is ahead: a replica that
    is alive stores the present time a moment later.
    """
    row = database.rows(
        text(
            "select count(*) filter (where abs(extract(epoch from now - heard_at)) < :alive and not stopped)"
            " as alive,"
            " coalesce(bool_or(writes_letters and not stopped) filter (where heard_at > now - interval '1 day'),"
            " false) as writes_letters,"
            " min(abs(extract(epoch from now - watched_at))) as watch,"
            " min(abs(extract(epoch from now - swept_at))) as sweep,"
            " min(abs(extract(epoch from now - journal_kept_at))) as journal,"
            " min(abs(extract(epoch from now - letters_written_at))) as dead_letters,"
            " extract(epoch from max(set_back_by)) as set_back_by,"
            " extract(epoch from min(now - set_back_at)) as set_back_age"
            " from (select r.*, sharequeue.clock() as now from sharequeue.replicas r) as r"
        ),
        alive=ALIVE_SECONDS,
    )[0]
    set_back = None
    if row["set_back_age"] is not None:
        by, age = float(row["set_back_by"]), float(row["set_back_age"])
        set_back = ClockSetBack(by, age) if 0 <= age <= max(by, SET_BACK_SHOWN_SECONDS) else None
    return Replicas(
        row["alive"],
        row["writes_letters"],
        {work: None if row[work] is None else float(row[work]) for work in WORK},
        set_back,
    )
