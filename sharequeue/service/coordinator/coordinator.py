"""What must happen in a share group by itself, without anybody asking?

Sessions end, lapsed locks are swept, and the broker's topics are watched: new share-partitions get their
start offset (kafka-semantics 2.12), logs grow and are cut, topics are deleted or made anew, and assignments
follow. Kafka does this in the group coordinator, the share-partition leader and the share coordinator. Each
step may be repeated and done by several coordinators at once: every decision is one transaction over locked
rows, and only the watch is done by one at a time, which holds a lease for it. Each group is a step of its own, and
each topic: what fails for one is logged and tried again, and does not stop the others. How an operation works is in
`groups` and `state`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from sharequeue.database import Database
from sharequeue.deadletters.drainer import DeadLetterDrainer
from sharequeue.groups.assignments import backlog_groups, rebalance
from sharequeue.groups.configs import ServiceConfigs
from sharequeue.groups.configs.published import publish_service_configs
from sharequeue.groups.heartbeats import changed_groups, due_groups, expire_members_of, refresh_group
from sharequeue.groups.replicas import ReplicaWork, Work, beat_and_hear, hear_replica, replica_name
from sharequeue.kafka.topics import Topics
from sharequeue.service.coordinator.group_steps import GroupSteps
from sharequeue.service.coordinator.watch import Watch
from sharequeue.settings import Settings
from sharequeue.state import State
from sharequeue.state.journal import Journal, Kept

_log = logging.getLogger(__name__)

KEEP_INTERVAL_SECONDS = 10.0
"""Between two looks at what keeps the journal short; a share-partition may go past its bound meanwhile."""

CHANGES_INTERVAL_SECONDS = 10.0
"""Between two looks at all groups for a topic or share-partition that is new. The watch that makes one new has them
looked at at once, and a member's heartbeat looks at its own group."""
CHANGES_AT_ONCE = 200
"""Groups looked at for that in a round; the rest follows in the next ones."""
CHANGES_IN_A_LOOK = 20
CHANGES_SECONDS = 1.0
"""After this time the rest follows in the next round too: members may name many thousands of topics."""
REST = 300
"""While nothing is new of the broker, the watch rests so many times as long as its last turn kept the processor:
a third of a per cent of it, and a broker that is far away is asked as often as one near by."""
LONGEST_REST_SECONDS = 10.0
"""The watch rests no longer than this."""

KEEPS_UP_SECONDS = 5.0
"""The last round must not be longer ago, or members' heartbeats look at their groups themselves."""
REBALANCE_SECONDS = 10.0
"""Between two looks at what waits in groups that are assigned by backlog: members learn of it in half that time."""

_NEWS = "assignment of what is new"
_WORK: Mapping[str, Work] = {
    "expiry and sweep": "sweep",
    "journal": "journal",
    "dead letters": "dead_letters",
}
"""What is done when a round of it ends well. The watch may have had no turn."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one step did."""

    expired: int = 0
    swept_leases: int = 0
    initialized: int = 0
    observed: int = 0


class Coordinator:
    """Everything that must happen by itself, for all groups of a database.

    `interval` is the time between two rounds of expiry and sweep, `watch_interval` between two looks at the
    broker, `rebalance_interval` between two looks at what waits in groups that are assigned by backlog, in seconds.
    `now` returns Unix time in seconds, by which `by_duration` counts back. If `dead_letters` has the settings of the
    broker, the coordinator writes the dead letters.
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
        rebalance_interval: float = REBALANCE_SECONDS,
        dead_letters: Settings | None = None,
    ) -> None:
        self._database = database
        self._state = State(database)
        self._configs = configs or ServiceConfigs.load()
        self._interval = interval
        self._watch_interval = watch_interval
        self._rebalance_interval = rebalance_interval
        self._rebalanced_at = time.monotonic()
        self._woken = threading.Event()
        self.name = replica_name()
        """What this coordinator is called among the replicas."""
        self.groups = GroupSteps()
        """Groups for which something could not be done at the last try, and why."""
        self.watcher = Watch(database, topics, self._configs, self.groups, self.name, now)
        """What the groups wait for, and what is wrong with their topics."""
        self._drainer = (
            None
            if dead_letters is None
            else DeadLetterDrainer(dead_letters, database, self._configs, self.name)
        )
        self._settled_at = -KEEPS_UP_SECONDS
        self._changes_lock = threading.Lock()
        self._changes_after: str | None = (
            ""  # the group behind which the look at changes goes on; None: it rests
        )
        self._changes_at = 0.0
        self.faults: dict[str, str] = {}
        """What cannot be done now, in words, by what it is that fails: `expiry and sweep`, `watch`, `journal`, `dead
        letters`."""
        self.work = ReplicaWork()
        """When this replica last did what it does by itself."""

    @property
    def failed_letters(self) -> dict[str, int]:
        """How often dead letters could not be written by this replica, by group."""
        return {} if self._drainer is None else dict(self._drainer.failed)

    @property
    def waiting(self) -> dict[tuple[str, str], str]:
        """Why a group's topic has share-partitions without a start offset, by (group, topic)."""
        return self.watcher.waiting

    @property
    def keeps_up(self) -> bool:
        """Whether all groups are looked at here, so that a heartbeat need not look at its own."""
        return time.monotonic() - self._settled_at < KEEPS_UP_SECONDS

    def wake(self) -> None:
        """Have the broker looked at now and not at the next turn: somebody waits for a topic to be
        initialised."""
        self._woken.set()

    def step(self) -> Step:
        """One round of everything. Raises what the database or the broker raises; nothing is left half
        done."""
        expired, swept = self.settle()
        initialized, observed = self.watch()
        return Step(expired, swept, initialized, observed)

    def settle(self, silence: timedelta | None = None) -> tuple[int, int]:
        """End sessions and locks that have expired; return how many of each. Needs no broker.

        With `silence`: once longer than that has passed in here, this process or the database was stopped meanwhile;
        then nothing more is ended, for nobody could be heard.
        """
        began = time.monotonic()

        def stopped() -> bool:
            return silence is not None and time.monotonic() - began > silence.total_seconds()

        # A beat that waited while the database stood still must not hide the silence.
        beat_and_hear(self._database, self.name, silence, drains=self._drainer is not None)
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
        self._refresh_assignments("assignment", [*due.behind, *left, *self._rebalance()])
        self._settled_at = time.monotonic()
        return expired, swept.leases

    def watch(self) -> tuple[int, int]:
        """Look at the broker's topics; return how many share-partitions were initialised and observed.

        Does nothing while another coordinator watches, and nothing more once another one has taken over. Raises
        `BrokerNotAvailable`.
        """
        turns = self.watcher.turns
        found = self.watcher.look()
        if self.watcher.turns > turns:
            self.work.done("watch")
        if self.watcher.quiet:
            # What is still behind is seen to by `settle`.
            self.groups.note(_NEWS, {})
        else:
            with self._changes_lock:
                self._changes_after = ""
            self._refresh_assignments(_NEWS, due_groups(self._database).behind)
        return found

    def keep(self) -> Kept:
        """Write the snapshots that are due, make, roll up and drop the journal's days, and give back the room of
        tables that are nearly all room. Needs no broker."""
        kept = Journal(self._database).keep(
            retention=self._configs.journal_retention,
            updates_per_snapshot=self._configs.updates_per_snapshot,
        )
        for day in kept.dropped:
            _log.info("the journal of %s is dropped: older than %s", day, self._configs.journal_retention)
        for table in self._state.administration.give_back_room():
            _log.info("%s was nearly all room, and is written anew", table)
        return kept

    def run(self, stop: threading.Event) -> None:
        """Go round until `stop` is set. Loss of the database or the broker is logged once, and tried again.

        At the start, after every loss of the database, and where this process or the database was stopped: if no
        replica was at work for longer than two heartbeat intervals, nobody could be heard, so sessions and locks go
        on with the time they had left. A replica that starts beside others, or again and again, lengthens nothing.
        The service's configs are made known to the state functions then too.
        """
        watcher = threading.Thread(
            target=self._watch_until, args=(stop,), name="sharequeue-watch", daemon=True
        )
        watcher.start()
        keeper = threading.Thread(
            target=self._keep_until, args=(stop,), name="sharequeue-journal", daemon=True
        )
        keeper.start()
        if self._drainer is not None:
            drainer = threading.Thread(
                target=self._drainer.run,
                args=(stop, self._reported("dead letters")),
                name="sharequeue-dead-letters",
                daemon=True,
            )
            drainer.start()
        heartbeat = timedelta(milliseconds=int(self._configs.values["group.share.heartbeat.interval.ms"]))
        silence = 2 * heartbeat
        heard: float | None = None
        while not stop.is_set():
            with self._reporting("expiry and sweep"):
                # First a question that changes nothing: where the database stands still, this is what waits. A beat
                # that waited would end the silence before anybody had noticed it.
                self._state.now()
                if heard is None or time.monotonic() - heard > silence.total_seconds():
                    self._take_up(silence)
                heard = time.monotonic()
                self.settle(silence)
            if "expiry and sweep" in self.faults:
                heard = None
            stop.wait(self._interval)
        self._woken.set()
        watcher.join(timeout=1.0)
        keeper.join(timeout=1.0)

    def _take_up(self, silence: timedelta) -> None:
        """Begin, or begin again after nobody could be heard: before any lock or session is ended."""
        outage = self._state.administration.beat(silence)
        if outage is not None:
            _log.warning("nobody was heard for %s: locks go on with the time they had left", outage)
        unheard = hear_replica(self._database, self.name, silence, drains=self._drainer is not None)
        if unheard is not None:
            _log.warning("no replica was there for %s: sessions go on with the time they had left", unheard)
        publish_service_configs(self._database, self._configs)

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

    def _reported(self, what: str) -> Callable[[Callable[[], None]], None]:
        def do(work: Callable[[], None]) -> None:
            with self._reporting(what):
                work()

        return do

    @contextmanager
    def _reporting(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            # Whatever it was, the next round starts from what the database holds; dying would help nobody.
            reason = str(error).splitlines()[0]
            if self.faults.get(what) != reason:
                _log.warning("%s fails, and is tried again: %s", what, reason)
            self.faults[what] = reason
        else:
            if what in _WORK:
                self.work.done(_WORK[what])
            if self.faults.pop(what, None) is not None:
                _log.info("%s works again", what)

    def _rebalance(self) -> list[str]:
        """Return the groups in which the backlog has shifted so far that they are to be assigned anew."""
        if time.monotonic() - self._rebalanced_at < self._rebalance_interval:
            return []
        self._rebalanced_at = time.monotonic()
        shifted = []
        for group_id in self.groups.in_turn("rebalance", backlog_groups(self._database, self._configs)):
            with self.groups.step("rebalance", group_id):
                if rebalance(self._database, group_id):
                    shifted.append(group_id)
        return shifted

    def _refresh_assignments(self, kind: str, behind: Iterable[str]) -> None:
        """Assign anew what is behind, and what a look at the next groups finds changed."""
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
