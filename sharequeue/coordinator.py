"""What must happen in a share group by itself, without anybody asking?

Sessions end, lapsed locks are swept, and the broker's topics are watched: new share-partitions get their
start offset (kafka-semantics 2.12), logs grow and are cut, topics are deleted or made anew, and assignments
follow. Kafka does this in the group coordinator, the share-partition leader and the share coordinator. Each
step may be repeated and done by several coordinators at once: every decision is one transaction over locked
rows, and only the watch is done by one at a time, to spare the broker. How an operation works is `groups`'
and `state`'s matter.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import text

from sharequeue.configs import GroupConfigs, ServiceConfigs, publish_service_configs
from sharequeue.database import Database
from sharequeue.errors import OffsetNotAvailable, explanation
from sharequeue.groups import expire_members, extend_sessions, refresh_group
from sharequeue.journal import Journal, Kept
from sharequeue.state import SharePartition, State
from sharequeue.topics import TopicInfo, Topics
from sharequeue.watched_topics import WatchedGroup, record_topics, watched_groups, watched_names

_log = logging.getLogger(__name__)

_WATCH_LOCK = 7_264_519_032_118
"""Key of the advisory lock under which one coordinator at a time watches the broker; any constant does."""

KEEP_INTERVAL_SECONDS = 10.0
"""Between two looks at what keeps the journal short; a share-partition may go past its bound meanwhile."""


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
    broker, in seconds. `now` gives Unix time in seconds, by which `by_duration` counts back.
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
    ) -> None:
        self._database = database
        self._topics = topics
        self._state = State(database)
        self._configs = configs or ServiceConfigs.load()
        self._interval = interval
        self._watch_interval = watch_interval
        self._now = now
        self._woken = threading.Event()
        self.faults: dict[str, str] = {}
        """What cannot be done now, in words, by what it is that fails: `expiry and sweep`, `watch`, `journal`."""
        self.waiting: dict[tuple[str, str], str] = {}
        """Why a group's topic has share-partitions without a start offset, by (group, topic)."""

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

    def settle(self) -> tuple[int, int]:
        """End sessions and locks whose time is over; gives how many of each. Needs no broker."""
        self._state.beat()
        expired = expire_members(self._database, self._configs)
        for group_id, member_id in expired:
            _log.warning(
                "member %s of group %s is gone: its session expired, records released", member_id, group_id
            )
        swept = self._state.sweep()
        if swept.leases:
            _log.info("swept %d lapsed leases, %d records", swept.leases, swept.records)
        self._refresh_assignments()
        return len(expired), swept.leases

    def watch(self) -> tuple[int, int]:
        """Look at the broker's topics; gives how many share-partitions were initialised and observed.

        Does nothing while another coordinator watches. Raises `BrokerNotAvailable`.
        """
        with self._only_watcher() as alone:
            if not alone:
                return 0, 0
            names = watched_names(self._database)
            known = self._topics.describe(names)
            initialized = record_topics(self._database, known, names)
            initialized += self._initialize(known)
            observed = self._observe(known)
        self._refresh_assignments()
        return initialized, observed

    def keep(self) -> Kept:
        """Write the snapshots that are due, make, roll up and drop the journal's days, and give back the room of
        tables that are nearly all room. Needs no broker."""
        kept = Journal(self._database).keep(
            retention=self._configs.journal_retention,
            updates_per_snapshot=self._configs.updates_per_snapshot,
        )
        for day in kept.dropped:
            _log.info("the journal of %s is dropped: older than %s", day, self._configs.journal_retention)
        for table in self._state.give_back_room():
            _log.info("%s was nearly all room, and is written anew", table)
        return kept

    def run(self, stop: threading.Event) -> None:
        """Go round until `stop` is set. Loss of the database or the broker is logged once, and tried again.

        At the start and after every loss of the database, sessions get a grace of two heartbeat intervals: while
        nobody could be heard, silence says nothing. Locks that ended in a silence longer than that go on with the
        time they had left. The service's configs are made known to the state functions then too.
        """
        watcher = threading.Thread(
            target=self._watch_until, args=(stop,), name="sharequeue-watch", daemon=True
        )
        watcher.start()
        keeper = threading.Thread(
            target=self._keep_until, args=(stop,), name="sharequeue-journal", daemon=True
        )
        keeper.start()
        heartbeat = timedelta(milliseconds=int(self._configs.values["group.share.heartbeat.interval.ms"]))
        unheard = True
        while not stop.is_set():
            with self._reporting("expiry and sweep"):
                if unheard:
                    self._take_up(2 * heartbeat)
                self.settle()
            unheard = "expiry and sweep" in self.faults
            stop.wait(self._interval)
        self._woken.set()
        watcher.join(timeout=1.0)
        keeper.join(timeout=1.0)

    def _take_up(self, grace: timedelta) -> None:
        """Begin, or begin again after nobody could be heard: before any lock or session is ended."""
        outage = self._state.beat(grace)
        if outage is not None:
            _log.warning("nobody was heard for %s: locks go on with the time they had left", outage)
        extend_sessions(self._database, int(grace / timedelta(milliseconds=1)))
        publish_service_configs(self._database, self._configs)

    def _watch_until(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self._woken.clear()
            with self._reporting("watch"):
                self.watch()
            self._woken.wait(self._watch_interval)

    def _keep_until(self, stop: threading.Event) -> None:
        while not stop.is_set():
            with self._reporting("journal"):
                self.keep()
            stop.wait(KEEP_INTERVAL_SECONDS)

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
            if self.faults.pop(what, None) is not None:
                _log.info("%s works again", what)

    @contextmanager
    def _only_watcher(self) -> Iterator[bool]:
        with self._database.engine.connect() as connection, connection.begin():
            locked = connection.scalar(text("select pg_try_advisory_xact_lock(:key)"), {"key": _WATCH_LOCK})
            yield bool(locked)

    def _refresh_assignments(self) -> None:
        behind = self._database.rows(
            text(
                "select g.group_id from sharequeue.share_groups g where exists"
                " (select from sharequeue.members m where m.group_id = g.group_id)"
                " and (g.assignment_epoch < g.group_epoch"
                " or g.metadata_hash is distinct from sharequeue.metadata_hash(g.group_id) or exists"
                " (select share_partition_id from sharequeue.assignable_share_partitions(g.group_id) except"
                " select a.share_partition_id from sharequeue.assignments a where a.group_id = g.group_id))"
                " order by g.group_id"
            )
        )
        for row in behind:
            refresh_group(self._database, row["group_id"], self._configs)

    def _initialize(self, known: Mapping[str, TopicInfo]) -> int:
        initialized = 0
        waiting: dict[tuple[str, str], str] = {}
        for group in watched_groups(self._database):
            for topic in group.subscribed:
                started, reason = self._initialize_topic(group, topic, known.get(topic))
                initialized += started
                if reason:
                    waiting[group.group_id, topic] = reason
        for key, reason in waiting.items():
            if self.waiting.get(key) != reason:
                _log.warning("group %s waits for topic %s: %s", *key, reason)
        self.waiting = waiting
        return initialized

    def _initialize_topic(
        self, group: WatchedGroup, topic: str, info: TopicInfo | None
    ) -> tuple[int, str | None]:
        """Start what can be started of a topic; gives how many share-partitions, and why the rest waits."""
        if info is None:
            return 0, "There is no such topic on the broker. Create it; the group then starts by itself."
        if group.topic_ids.get(topic, info.topic_id) != info.topic_id:
            return 0, (
                "The topic was deleted and made again under its name: what the group has of it belongs to "
                "the old one. Delete the group's offsets of the topic to start anew."
            )
        missing = sorted(set(range(info.partitions)) - group.initialized.get(topic, frozenset()))
        # The state epoch is the group epoch at initialisation, the change of metadata included (R-EP-3).
        epoch = refresh_group(self._database, group.group_id, self._configs) if missing else None
        if epoch is None:
            return 0, None
        starts = self._start_offsets(group.group_id, topic)
        started = 0
        for partition in missing:
            start = starts.get(partition)
            if start is not None:
                at = SharePartition(group.group_id, topic, partition)
                started += self._state.initialize(at, info.topic_id, start, epoch)
                _log.info("group %s starts %s at offset %d", group.group_id, at, start)
        without = [str(partition) for partition in missing if starts.get(partition) is None]
        if without:
            return started, f"{explanation(OffsetNotAvailable)} Partitions: {', '.join(without)}."
        return started, None

    def _start_offsets(self, group_id: str, topic: str) -> dict[int, int | None]:
        """Where each partition of a topic new to the group starts, by the group's reset policy (R-OR-2)."""
        configs = GroupConfigs.load(self._database, group_id, self._configs)
        back = configs.reset_duration
        if back is not None:
            since = int((self._now() - back.total_seconds()) * 1000)
            return self._topics.offsets_for_times(topic, since)
        logs = self._topics.offsets(topic)
        if configs.auto_offset_reset == "earliest":
            return {partition: log.log_start for partition, log in logs.items()}
        return {partition: log.log_end for partition, log in logs.items()}

    def _observe(self, known: Mapping[str, TopicInfo]) -> int:
        groups = watched_groups(self._database)
        topics = {topic for group in groups for topic in group.initialized}
        logs = self._topics.offsets_of({t: known[t].partitions for t in topics if t in known})
        observed = 0
        for group in groups:
            for topic, partitions in group.initialized.items():
                for partition in sorted(partitions):
                    log = logs.get((topic, partition))
                    if log is None:
                        continue
                    at = SharePartition(group.group_id, topic, partition)
                    status = self._state.observe(
                        at, known[topic].topic_id, log.log_start, log.log_end, log.last_stable_offset
                    )
                    observed += status is not None
        return observed
