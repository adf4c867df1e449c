"""The background work for share groups: assignment, expiry of sessions, sweeps.

Sessions expire, lapsed locks are swept, and the broker's topics are watched: new share-partitions get their start
offset (R-OR-1 to R-OR-3), growth and truncation of logs and deletion and re-creation of topics are recorded, and
assignments are updated. Kafka does this in the group coordinator, the share-partition leader and the share
coordinator. Several coordinators may run, and each step may be repeated: every decision is one transaction over
locked rows; only the watch needs a lease, so that one coordinator at a time does it. Each group and each topic is a
separate step: its error is logged, the step is repeated, and the others go on. The operations are in `groups` and
`state`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from sharequeue.database import Database
from sharequeue.domain.errors import first_line
from sharequeue.domain.settings import Settings
from sharequeue.groups.configs import ServiceConfigs
from sharequeue.groups.configs.published import publish_service_configs
from sharequeue.groups.heartbeats import changed_groups, due_groups, expire_members_of, refresh_group
from sharequeue.kafka.topics import Topics
from sharequeue.service.coordinator.dead_letter_turns import DeadLetterTurns
from sharequeue.service.coordinator.group_steps import GroupSteps
from sharequeue.service.coordinator.watch import Watch
from sharequeue.state import State
from sharequeue.state.journal import Journal, JournalUpkeep
from sharequeue.state.replicas import ReplicaWork, Work, beat_and_hear, hear_replica, replica_name

_log = logging.getLogger(__name__)

KEEP_INTERVAL_SECONDS = 10.0
"""Seconds between two checks of the journal's size; a share-partition may exceed its limit meanwhile."""

CHANGES_INTERVAL_SECONDS = 10.0
"""Seconds between two checks of all groups for new topics and share-partitions. A watch that adds one has them
checked at once, and a member's heartbeat checks its own group."""
CHANGES_AT_ONCE = 200
"""The number of groups checked for that in a round; the others follow in the next rounds."""
CHANGES_IN_A_LOOK = 20
CHANGES_SECONDS = 1.0
"""After this time the others follow in the next round too: members may subscribe to many thousands of topics."""
REST = 300
"""While nothing changes at the broker, the watch sleeps this many times the CPU time of its last turn: it uses a
third of a per cent of a core, and a remote broker is asked as often as a near one."""
LONGEST_REST_SECONDS = 10.0
"""The longest sleep of the watch."""

KEEPS_UP_SECONDS = 5.0
"""The maximum age of the last round; after that, members' heartbeats check their own groups."""

_NEWS = "assignment of new share-partitions"


class Coordinator:
    """All background work, for all groups of a database.

    `interval` is the time between two rounds of expiry and sweep, `watch_interval` between two checks of the broker,
    in seconds. `now` returns Unix time in seconds, from which `by_duration` counts back. If `dead_letters` has the
    settings of the broker, the coordinator writes the dead letters.
    """

    def __init__(
        self,
        database: Database,
        topics: Topics,
        configs: ServiceConfigs | None = None,
        *,
        interval: float = 1.0,
        watch_interval: float = 2.0,
        now: Callable[[], float] = time.time,
        dead_letters: Settings | None = None,
    ) -> None:
        self._database = database
        self._state = State(database)
        self._configs = configs or ServiceConfigs.load()
        self._interval = interval
        self._watch_interval = watch_interval
        self._woken = threading.Event()
        self.name = replica_name()
        """The name of this coordinator among the replicas."""
        self.groups = GroupSteps()
        """Groups for which the last attempt at a step failed, and the reasons."""
        self.watcher = Watch(database, topics, self._configs, self.groups, self.name, now)
        """The watch: the reasons why groups wait, and the errors of their topics."""
        self._dead_letter_turns = (
            None if dead_letters is None else DeadLetterTurns(dead_letters, database, self.name)
        )
        self._settled_at = -KEEPS_UP_SECONDS
        self._changes_lock = threading.Lock()
        self._changes_after: str | None = (
            ""  # the group after which the check for changes continues; None: it sleeps
        )
        self._changes_at = 0.0
        self.faults: dict[Work, str] = {}
        """The current errors, by the work that fails."""
        self.work = ReplicaWork()
        """When this replica last did its background work."""

    @property
    def failed_letters(self) -> dict[str, int]:
        """The number of failed attempts of this replica to write dead letters, by group."""
        return {} if self._dead_letter_turns is None else dict(self._dead_letter_turns.failed)

    @property
    def waiting(self) -> dict[tuple[str, str], str]:
        """Why a group's topic has share-partitions without a start offset, by (group, topic)."""
        return self.watcher.waiting

    @property
    def writes_letters(self) -> bool:
        """Whether this coordinator writes dead letters."""
        return self._dead_letter_turns is not None

    @property
    def keeps_up(self) -> bool:
        """Whether this coordinator checks all groups, so that a heartbeat need not check its own."""
        return time.monotonic() - self._settled_at < KEEPS_UP_SECONDS

    def wake(self) -> None:
        """Start the watch now instead of at the next turn: a member waits for a topic to be initialised."""
        self._woken.set()

    def settle(self, silence: timedelta | None = None) -> tuple[int, int]:
        """End sessions and locks that have expired; return how many of each. Needs no broker.

        With `silence`: if this call takes longer than that, this process or the database was stopped meanwhile; then
        nothing more is ended, because no heartbeat could be received.
        """
        began = time.monotonic()

        def stopped() -> bool:
            return silence is not None and time.monotonic() - began > silence.total_seconds()

        # A beat that waited while the database was stopped must not hide the silence.
        beat_and_hear(self._database, self.name, silence, writes_letters=self.writes_letters)
        due = due_groups(self._database)
        expired = 0
        left: list[str] = []
        for group_id in self.groups.in_turn("expiry", due.overdue):
            if stopped():
                return expired, 0
            with self.groups.step("expiry", group_id):
                gone = expire_members_of(self._database, group_id)
                for member_id in gone:
                    _log.warning(
                        "member %s of group %s is gone: its session expired, records released",
                        member_id,
                        group_id,
                        extra={"group": group_id, "member": member_id},
                    )
                expired += len(gone)
                left.append(group_id)
        if stopped():
            return expired, 0
        swept = self._state.sweep()
        self.groups.note("sweep", swept.stuck)
        if swept.leases:
            _log.info("swept %d lapsed leases, %d records", swept.leases, swept.records)
        self._refresh_assignments("assignment", [*due.behind, *left])
        self._settled_at = time.monotonic()
        return expired, swept.leases

    def watch(self) -> tuple[int, int]:
        """Read the broker's topics; return how many share-partitions were initialised and observed.

        Does nothing while another coordinator watches, and stops once another one has taken over. Raises
        `BrokerNotAvailable`.
        """
        turns = self.watcher.turns
        found = self.watcher.look()
        if self.watcher.turns > turns:
            self._succeeded("watch")
        if self.watcher.quiet:
            # `settle` updates the assignments that are still behind.
            self.groups.note(_NEWS, {})
        else:
            with self._changes_lock:
                self._changes_after = ""
            self._refresh_assignments(_NEWS, due_groups(self._database).behind)
        return found

    def keep(self) -> JournalUpkeep:
        """Write the due snapshots; create, roll up and drop the journal's days; release the disk space of tables that
        are nearly empty. Needs no broker."""
        kept = Journal(self._database).keep(
            retention=self._configs.journal_retention,
            updates_per_snapshot=self._configs.updates_per_snapshot,
        )
        for day in kept.dropped:
            _log.info("the journal of %s is dropped: older than %s", day, self._configs.journal_retention)
        for table in self._state.administration.give_back_room():
            _log.info("%s was almost empty and was rewritten", table)
        return kept

    def run(self, stop: threading.Event) -> None:
        """Repeat rounds until `stop` is set. Loss of the database or the broker is logged once, and the round is
        repeated.

        At the start, after every loss of the database, and after this process or the database was stopped: if no
        replica was at work for longer than two heartbeat intervals, no heartbeat could be received, so sessions and
        locks continue with their remaining time. A replica that starts beside others, or repeatedly, extends nothing.
        At the same moments the service's configs are passed to the state functions.
        """
        with self._noting_its_end("sweep"):
            watcher = self._started("watch", lambda: self._watch_until(stop))
            keeper = self._started("journal", lambda: self._keep_until(stop))
            if (letters := self._dead_letter_turns) is not None:
                self._started("dead_letters", lambda: letters.run(stop, self._reported("dead_letters")))
            self._settle_until(stop)
            self._leave()
            self._woken.set()
            watcher.join(timeout=1.0)
            keeper.join(timeout=1.0)

    def _settle_until(self, stop: threading.Event) -> None:
        heartbeat = timedelta(milliseconds=int(self._configs.values["group.share.heartbeat.interval.ms"]))
        silence = 2 * heartbeat
        heard: float | None = None
        while not stop.is_set():
            with self._reporting("sweep"):
                # First a read-only query: if the database is stopped, this query waits. A beat
                # that waited would end the silence before it was noticed.
                self._state.now()
                if heard is None or time.monotonic() - heard > silence.total_seconds():
                    self._take_up(silence)
                heard = time.monotonic()
                self.settle(silence)
            if "sweep" in self.faults:
                heard = None
            stop.wait(self._interval)

    def _started(self, work: Work, loop: Callable[[], None]) -> threading.Thread:
        """Start the loop of a work in a thread of its own."""

        def run() -> None:
            with self._noting_its_end(work):
                loop()

        thread = threading.Thread(target=run, name=f"sharequeue-{work.replace('_', '-')}", daemon=True)
        thread.start()
        return thread

    @contextmanager
    def _noting_its_end(self, work: Work) -> Iterator[None]:
        """Record a fault that stays if the loop of a work ends by an error, whatever it is."""
        try:
            yield
        except BaseException as error:
            cause = f"{type(error).__name__}: {first_line(error)}"
            reason = f"this replica has stopped this work, restart it: {cause}"
            _log.exception("%s: %s", work, reason)
            self.faults[work] = reason
            raise

    def _take_up(self, silence: timedelta) -> None:
        """Start, or start again after a time without heartbeats: before any lock or session is ended."""
        outage = self._state.administration.beat(silence)
        if outage is not None:
            _log.warning(
                "the database had no beat of the service for %s: locks continue with their remaining time",
                outage,
            )
        unheard = hear_replica(self._database, self.name, silence, writes_letters=self.writes_letters)
        if unheard is not None:
            _log.warning("no replica was active for %s: sessions continue with their remaining time", unheard)
        publish_service_configs(self._database, self._configs)

    def _leave(self) -> None:
        """Record that this replica stops in order, so that what it did is not missed."""
        try:
            hear_replica(self._database, self.name, writes_letters=self.writes_letters, stops=True)
        except Exception as error:  # the process ends anyway
            _log.warning("the stop was not recorded: %s", first_line(error))

    def _watch_until(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self._woken.clear()
            began = time.thread_time()
            with self._reporting("watch"):
                self.watch()
            rest = self._watch_interval
            if self.watcher.quiet:
                rest = max(rest, min(REST * (time.thread_time() - began), LONGEST_REST_SECONDS))
            self._woken.wait(rest)

    def _keep_until(self, stop: threading.Event) -> None:
        while not stop.is_set():
            with self._reporting("journal"):
                self.keep()
            stop.wait(KEEP_INTERVAL_SECONDS)

    def _reported(self, work: Work) -> Callable[[Callable[[], None]], None]:
        def do(turn: Callable[[], None]) -> None:
            with self._reporting(work):
                turn()

        return do

    @contextmanager
    def _reporting(self, work: Work) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            # After any error, the next round starts from the state in the database; ending the process would not
            # help.
            reason = first_line(error)
            if self.faults.get(work) != reason:
                _log.warning("%s failed, trying again: %s", work, reason)
            self.faults[work] = reason
        else:
            # The watch may have had no turn, which is neither a success nor a failure: it records its own successes.
            if work != "watch":
                self._succeeded(work)

    def _succeeded(self, work: Work) -> None:
        self.work.done(work)
        if self.faults.pop(work, None) is not None:
            _log.info("%s recovered", work)

    def _refresh_assignments(self, kind: str, behind: Iterable[str]) -> None:
        """Renew the assignments of the groups that are behind, and of those of the next groups that have changed."""
        with self._changes_lock:
            now = time.monotonic()
            if self._changes_after is None and now - self._changes_at > CHANGES_INTERVAL_SECONDS:
                self._changes_after = ""
            if self._changes_after == "":
                self._changes_at = now
            changed: list[str] = []
            for _ in range(0, CHANGES_AT_ONCE, CHANGES_IN_A_LOOK):
                if self._changes_after is None or time.monotonic() - now > CHANGES_SECONDS:
                    break
                found, self._changes_after = changed_groups(
                    self._database, self._changes_after, CHANGES_IN_A_LOOK
                )
                changed += found
        for group_id in self.groups.in_turn(kind, [*behind, *changed]):
            with self.groups.step(kind, group_id):
                refresh_group(self._database, group_id, self._configs)
