"""Who writes dead letters where no job does?

The service, by itself, so that no group stands still because nobody drained it: every few seconds it looks for
share-partitions with dead letters that wait, and writes them within the bounds below. One replica drains a
share-partition at a time, under a lease of its own in Postgres; a drain from elsewhere (Dagster's asset, a job)
fences it and goes first, as two drains always do. A share-partition that could not be written is tried again on its
own, later and later, so that it delays no other. How letters are written, exactly once, is in `deadletters.writer`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import text

from sharequeue.database import Database
from sharequeue.deadletters.batches import Step
from sharequeue.deadletters.transactions import Fenced
from sharequeue.deadletters.writer import DeadLetterReport, DeadLetterWriter, Held
from sharequeue.groups.configs import GroupConfigs, ServiceConfigs
from sharequeue.groups.service_leases import ServiceLease
from sharequeue.settings import Settings
from sharequeue.state import State
from sharequeue.values import SharePartition

_log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""Between two looks at what waits."""
TURN_SECONDS = 10.0
"""A group's turn ends with the batch at which it is after this time; the next look goes on."""
TURN_RECORDS = 200_000
"""The same for letters written in a turn."""
BATCH_RECORDS = 5_000
"""Letters of a batch: a turn ends between two of them."""
AT_ONCE = 4
"""Turns at a time."""
LEASE_SECONDS = 60.0
"""How long a drainer that was stopped keeps the others from its share-partition. Longer than a call may take."""
FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 120.0
"""Between two tries of what cannot be written, doubled each time."""


class DeadLetterDrainer:
    """The drains of one replica, in threads of their own."""

    def __init__(self, settings: Settings, database: Database, configs: ServiceConfigs, replica: str) -> None:
        self._settings = settings
        self._database = database
        self._configs = configs
        self._replica = replica
        self._lock = threading.Lock()
        self._at_work: set[SharePartition] = set()
        self._pauses: dict[SharePartition, tuple[float, float]] = {}  # (not before, the pause then)
        self._logged: dict[SharePartition, str] = {}
        self.failed: Counter[str] = Counter()
        """How often a share-partition's letters could not be written, by group."""
        self._stop = threading.Event()

    def run(self, stop: threading.Event, reporting: Callable[[Callable[[], None]], None]) -> None:
        """Look again and again until `stop` is set; each look is made through `reporting`."""
        self._stop = stop
        with ThreadPoolExecutor(AT_ONCE, "sharequeue-dead-letters") as pool:
            while not stop.is_set():
                reporting(lambda: self._look(pool))
                stop.wait(LOOK_SECONDS)

    def waiting(self) -> list[SharePartition]:
        """The share-partitions with dead letters that are not written, of all groups."""
        rows = self._database.rows(
            text(
                "select sp.group_id, sp.topic, sp.partition from sharequeue.share_partitions sp"
                " where exists (select from sharequeue.in_flight_batches b"
                " where b.share_partition_id = sp.share_partition_id and b.state = 3)"
                " order by sp.group_id, sp.topic, sp.partition"
            )
        )
        return [SharePartition(row["group_id"], row["topic"], row["partition"]) for row in rows]

    def drain(self, sources: Iterable[SharePartition]) -> DeadLetterReport | None:
        """One turn for share-partitions of a group, without those that another replica has; None if none is left."""
        leases = {source: self._lease(source) for source in sources}
        leases = {source: lease for source, lease in leases.items() if lease.take()}
        try:
            return self._drain(leases) if leases else None
        finally:
            for lease in leases.values():
                lease.end()

    def _lease(self, source: SharePartition) -> ServiceLease:
        return ServiceLease(
            self._database, f"dead letters of {source.group_id}: {source}", self._replica, LEASE_SECONDS
        )

    def _drain(self, leases: dict[SharePartition, ServiceLease]) -> DeadLetterReport:
        group_id = next(iter(leases)).group_id
        began = time.monotonic()
        done = threading.Event()
        written: dict[SharePartition, int] = {}

        def on_step(step: Step, source: SharePartition) -> None:
            if not leases[source].take():
                raise Fenced("another replica drains it now")
            if step == "closed":
                written[source] = written.get(source, 0) + BATCH_RECORDS
            late = time.monotonic() - began > TURN_SECONDS
            if late or sum(written.values()) >= TURN_RECORDS or self._stop.is_set():
                done.set()

        writer = DeadLetterWriter(
            self._settings,
            State(self._database),
            group_id,
            GroupConfigs.load(self._database, group_id, self._configs),
            batch_records=BATCH_RECORDS,
            on_step=on_step,
            only=leases,
            stop=done,
            # Whoever takes over was asked to drain now; we have time.
            takeovers=0,
            try_again_seconds=0,
        )
        return writer.drain(_log.info)

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
                    # On its own: what could not be written may keep us waiting again.
                    turns[str(source) + source.group_id + " again"] = [source]
            for sources in turns.values():
                self._at_work.update(sources)
        for sources in turns.values():
            pool.submit(self._turn, sources)

    def _log_held(self, held: Iterable[Held]) -> None:
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

    def _turn(self, sources: list[SharePartition]) -> None:
        failed: set[SharePartition] = set()
        try:
            if not self._stop.is_set():
                report = self.drain(sources)
                if report is not None:
                    failed = {held.share_partition for held in report.held}
                    failed |= {each.share_partition for each in report.partitions if each.takeovers}
                    self._log_held(report.held)
        except Exception as error:
            # Whatever failed, it concerns these share-partitions only, and what was open is resumed.
            failed = set(sources)
            reason = str(error).splitlines()[0]
            _log.warning(
                "dead letters of group %s cannot be written: %s",
                sources[0].group_id,
                reason,
                extra={"group": sources[0].group_id},
            )
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
