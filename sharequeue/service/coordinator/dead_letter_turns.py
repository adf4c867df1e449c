"""Write dead letters from the service, if no job does.

Every few seconds the service looks for share-partitions with waiting dead letters, and writes them within the limits
below, so that no group stops because nothing writes its letters. One replica at a time writes those of a
share-partition, under a separate lease in Postgres; another writer (Dagster's asset, a job) fences it and goes first,
as always with two writers. A share-partition that could not be written is tried again separately, with growing
pauses, so that it delays no other. How letters are written exactly once is in `deadletters.writer`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from sqlalchemy.exc import SQLAlchemyError

from sharequeue.database import Database
from sharequeue.deadletters.outbox import BatchStep, Fenced
from sharequeue.deadletters.writer import DeadLetterReport, DeadLetterWriter, HeldLetters
from sharequeue.domain.errors import first_line
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import SharePartition
from sharequeue.groups.configs import GroupConfigs
from sharequeue.service.coordinator.service_leases import ServiceLease
from sharequeue.state import State

_log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""Seconds between two searches for waiting letters."""
TURN_SECONDS = 10.0
"""A group's turn ends with the current batch after this time; the next turn goes on."""
TURN_RECORDS = 200_000
"""The same limit as a number of letters written in a turn."""
BATCH_RECORDS = 5_000
"""The maximum number of letters in a batch: a turn ends between two batches."""
AT_ONCE = 4
"""The number of concurrent turns."""
LEASE_SECONDS = 60.0
"""How long a stopped replica blocks the others from its share-partition. Longer than a call may take."""
FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 120.0
"""Seconds between two attempts after a failure, doubled each time."""


class DeadLetterTurns:
    """The turns of one replica, in separate threads."""

    def __init__(self, settings: Settings, database: Database, replica: str) -> None:
        self._settings = settings
        self._database = database
        self._replica = replica
        self._lock = threading.Lock()
        self._at_work: set[SharePartition] = set()
        self._pauses: dict[
            SharePartition, tuple[float, float]
        ] = {}  # (time of the next attempt, pause after it)
        self._logged: dict[SharePartition, str] = {}
        self.failed: Counter[str] = Counter()
        """The number of failed attempts to write a share-partition's letters, by group."""
        self._stop = threading.Event()

    def run(self, stop: threading.Event, reporting: Callable[[Callable[[], None]], None]) -> None:
        """Repeat turns until `stop` is set; each search runs through `reporting`."""
        self._stop = stop
        with ThreadPoolExecutor(AT_ONCE, "sharequeue-dead-letters") as pool:
            while not stop.is_set():
                reporting(lambda: self._look(pool))
                stop.wait(LOOK_SECONDS)

    def waiting(self) -> list[SharePartition]:
        """Return the share-partitions with dead letters that are not written, of all groups."""
        return list(State(self._database).dead_letters.waiting())

    def write(self, sources: Iterable[SharePartition]) -> DeadLetterReport | None:
        """Do one turn for a group's share-partitions, except those that another replica writes; None if none is
        left."""
        leases = {source: self.lease(source) for source in sources}
        leases = {source: lease for source, lease in leases.items() if lease.take()}
        try:
            return self.write_under(leases) if leases else None
        finally:
            for lease in leases.values():
                lease.end()

    def lease(self, source: SharePartition) -> ServiceLease:
        """Return the lease under which this replica writes a share-partition's letters."""
        return ServiceLease(
            self._database, f"dead letters of {source.group_id}: {source}", self._replica, LEASE_SECONDS
        )

    def write_under(self, leases: Mapping[SharePartition, ServiceLease]) -> DeadLetterReport:
        """Do one turn for the share-partitions of leases that were taken; stop for each one whose lease is lost."""
        group_id = next(iter(leases)).group_id
        began = time.monotonic()
        done = threading.Event()
        written: dict[SharePartition, int] = {}
        taken = dict.fromkeys(leases, -LEASE_SECONDS)

        def on_step(step: BatchStep, source: SharePartition) -> None:
            # Once per batch, and while a large batch is written.
            if step == "opened" or time.monotonic() - taken[source] > LEASE_SECONDS / 4:
                if not leases[source].take():
                    raise Fenced("another replica now writes its dead letters")
                taken[source] = time.monotonic()
            if step == "closed":
                written[source] = written.get(source, 0) + BATCH_RECORDS
            late = time.monotonic() - began > TURN_SECONDS
            if late or sum(written.values()) >= TURN_RECORDS or self._stop.is_set():
                done.set()

        writer = DeadLetterWriter(
            self._settings,
            State(self._database),
            group_id,
            GroupConfigs.load(self._database, group_id),
            batch_records=BATCH_RECORDS,
            on_step=on_step,
            only=leases,
            stop=done,
            # A writer that takes over was requested explicitly and goes first.
            takeovers=0,
            try_again_seconds=0,
        )
        return writer.write(_log.info)

    def _look(self, pool: ThreadPoolExecutor) -> None:
        waiting = self.waiting()
        now = time.monotonic()
        with self._lock:
            self._pauses = {source: pause for source, pause in self._pauses.items() if source in waiting}
            turns: dict[str, list[SharePartition]] = {}
            for source in waiting:
                if source in self._at_work:
                    continue
                if source not in self._pauses:
                    turns.setdefault(source.group_id, []).append(source)
                elif self._pauses[source][0] <= now:
                    # Tried separately, because it may block again.
                    turns[str(source) + source.group_id + " again"] = [source]
            for sources in turns.values():
                self._at_work.update(sources)
        for sources in turns.values():
            pool.submit(self._turn, sources)

    def _log_held(self, held: Iterable[HeldLetters]) -> None:
        for each in held:
            source = each.share_partition
            if self._logged.get(source) != each.reason:
                self._logged[source] = each.reason
                _log.warning(
                    "%d dead letters of %s, group %s, are held: %s",
                    each.records,
                    source,
                    source.group_id,
                    each.reason,
                    extra={"group": source.group_id, "topic": source.topic, "partition": source.partition},
                )

    def _hold(self, sources: list[SharePartition], error: Exception) -> None:
        """Store and log why nothing was written, for each share-partition."""
        reason = first_line(error)
        group = sources[0].group_id
        _log.warning("dead letters of group %s cannot be written: %s", group, reason, extra={"group": group})
        if isinstance(error, SQLAlchemyError):
            return  # passes with the database, which cannot store it now
        letters = State(self._database).dead_letters
        with suppress(SQLAlchemyError):
            for source in sources:
                letters.hold(source, reason)

    def _turn(self, sources: list[SharePartition]) -> None:
        failed: set[SharePartition] = set()
        try:
            if not self._stop.is_set():
                report = self.write(sources)
                if report is not None:
                    failed = {held.share_partition for held in report.held}
                    failed |= {each.share_partition for each in report.partitions if each.takeovers}
                    self._log_held(report.held)
        except Exception as error:
            # Any error concerns these share-partitions only, and open batches are resumed.
            failed = set(sources)
            self._hold(sources, error)
        finally:
            with self._lock:
                self._at_work.difference_update(sources)
                self.failed.update(source.group_id for source in failed)
                for source in sources:
                    if source in failed:
                        pause = min(
                            2 * self._pauses.get(source, (0.0, FIRST_PAUSE_SECONDS / 2))[1],
                            LONGEST_PAUSE_SECONDS,
                        )
                        self._pauses[source] = (time.monotonic() + pause, pause)
                    else:
                        self._pauses.pop(source, None)
                        self._logged.pop(source, None)
