"""Watch the broker's topics and log offsets, and update the groups.

One replica at a time has a turn. It asks the broker for the topics of all groups, records what the broker returned,
initialises share-partitions (R-OR-1 to R-OR-3), and records the ends of the logs. The replica holds a lease for
its turn and no lock: each write is a short transaction, which is refused once another replica has taken over. An
error of one topic or one group does not stop the others. `coordinator` decides when a turn is due.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError

from sharequeue.database import Database
from sharequeue.database.sqlstates import sqlstate
from sharequeue.domain.errors import (
    CoordinatorNotAvailable,
    LeaderNotAvailable,
    NotCoordinator,
    OffsetNotAvailable,
    ShareError,
    explanation,
    first_line,
)
from sharequeue.domain.names import listed
from sharequeue.domain.values import LogSeen, SharePartition
from sharequeue.groups.configs import GroupConfigs, ServiceConfigs
from sharequeue.groups.heartbeats import refresh_group
from sharequeue.kafka.offset_resets import first_offsets
from sharequeue.kafka.topics import LogOffsets, TopicInfo, Topics, TopicsFound
from sharequeue.service.coordinator.group_steps import GroupSteps
from sharequeue.service.coordinator.service_leases import ServiceLease
from sharequeue.service.coordinator.watched_topics import (
    WatchedGroup,
    confirm_logs,
    record_topics,
    recorded,
    start_grown,
    watched_groups,
)
from sharequeue.state import State

_log = logging.getLogger(__name__)

WATCH = "watch"
LEASE_SECONDS = 10.0
"""How long a replica that was stopped during the watch blocks the others. Longer than a request may take."""
LEADER_PATIENCE_SECONDS = 0.5
"""How long the watch waits for the leaders of a topic that was just created; other topics wait meanwhile."""
CONFIRM_SECONDS = 10.0
"""The maximum time between two calls that record unchanged logs and compare them with the database."""
RESTS = 4
"""After a failed request for a topic's start offsets, the topic is skipped for this many times its duration."""

Starts = dict[tuple[str, str], Mapping[int, int | None]]
"""Start offsets by topic and reset policy, as far as they were requested in this turn."""

_NO_LOG = LogOffsets(0, 0, 0)
_DELETED = "deleted topics of the broker cannot be processed"
_TOPIC_HELD = "The topic's row is locked by another transaction. The next check tries again."
_LEADERLESS = (
    "Partitions without a leader cannot start: nothing is known of their logs. Start the brokers that have them; the "
    "group then starts them by itself."
)
_MADE_ANEW = (
    "The group's state belongs to the old topic; a new topic with the same name is another one. Stop the "
    "group's members, delete its offsets of the topic (`sharequeue offsets delete`), and start them again: "
    "the group then starts with the new topic."
)


class Watch:
    """The watch of one replica. `now` returns Unix time in seconds, from which `by_duration` counts back."""

    def __init__(
        self,
        database: Database,
        topics: Topics,
        configs: ServiceConfigs,
        groups: GroupSteps,
        replica: str,
        now: Callable[[], float],
    ) -> None:
        self._database = database
        self._topics = topics
        self._configs = configs
        self._groups = groups
        self._now = now
        self._lease = ServiceLease(database, WATCH, replica, LEASE_SECONDS)
        self._taken_at = 0.0
        self.turns = 0
        """The number of successful turns."""
        self.waiting: dict[tuple[str, str], str] = {}
        """Why a group's topic has share-partitions without a start offset, by (group, topic)."""
        self._retry_at: dict[tuple[str, str], float] = {}
        self._failing: dict[str, tuple[float, ShareError]] = {}  # by topic: time of the next try, error
        self.faults: dict[str, str] = {}
        """The error of the broker, or of the rule for names, for each topic that a group needs."""
        self.quiet = False
        """Whether nothing had changed at the last turn."""
        self._turn = 0
        self._long: frozenset[str] = (
            frozenset()
        )  # groups with more missing topics than are requested in a turn
        self._seen: tuple[object, object] | None = None  # groups and logs in the database
        self._confirmed_at = 0.0

    def look(self) -> tuple[int, int]:
        """Do one turn; return how many share-partitions were initialised and observed.

        Does nothing while another replica has its turn, and stops once another one has taken over. Raises
        `BrokerNotAvailable`.
        """
        self.quiet = False
        if not self._lease.take():
            return 0, 0
        self._taken_at = time.monotonic()
        try:
            found = self._look()
            self.turns += 1
            return found
        except NotCoordinator as error:
            _log.warning("this check of the topics ends early: %s", error)
            return 0, 0
        finally:
            self._lease.end()

    def _look(self) -> tuple[int, int]:
        # Checked at every turn: the address may now lead to another cluster, which has none of the topics.
        cluster_id = self._topics.cluster_id()
        State(self._database).administration.check_cluster(cluster_id)
        self._turn += 1
        groups = self._watched()
        self._note_long(groups)
        last = recorded(self._database)
        names = {topic for group in groups for topic in (*group.subscribed, *group.topic_ids)}
        found = self._topics.ask(sorted(names))
        refused = dict(found.refused)
        seen = names - set(refused)
        differs = last.differs(found.known, seen)
        if differs:
            with self._lease.fenced() as database:
                held = record_topics(database, found.known, seen)
            # A topic's growth must be recorded before any of its share-partitions starts.
            refused.update(dict.fromkeys(held, CoordinatorNotAvailable(_TOPIC_HELD)))
            found = TopicsFound(found.known, refused)
        present = {name: info.topic_id for name, info in found.known.items()}
        others = any(
            present.get(topic) != topic_id
            for group in groups
            for topic, topic_id in group.topic_ids.items()
            if topic in seen
        )
        if last.some_gone or others:
            with self._apart(_DELETED), self._lease.fenced() as database:
                State(database).administration.note_topics({name: present.get(name) for name in sorted(seen)})
            with self._apart(_DELETED):
                self._remove_deleted()
        initialized = 0
        grown = recorded(self._database).grown if differs else last.grown
        for group_id in self._groups.in_turn("growth", grown):
            with self._groups.step("growth", group_id), self._lease.fenced() as database:
                initialized += start_grown(database, group_id)
        if initialized or differs or others:
            groups = self._watched()
        started = self._initialize(groups, found, names)
        if started:
            groups = self._watched()
        observed = self._observe(groups, found.known, refused)
        self.quiet &= not (differs or others or initialized or started)
        self._log_faults({**_without_leaders(found.known), **refused})
        return initialized + started, observed

    def _watched(self) -> list[WatchedGroup]:
        return watched_groups(self._database, self._turn)

    def _note_long(self, groups: Sequence[WatchedGroup]) -> None:
        """Log once each group with more missing topics than are requested in a turn."""
        long = [group for group in groups if group.asked < group.missing]
        for group in long:
            if group.group_id not in self._long:
                _log.warning(
                    "group %s waits for %d topics that did not exist at the last check. So many topics are "
                    "checked in parts, one part in each round: a new one is found late, and the others get "
                    "no line each",
                    *(group.group_id, group.missing),
                    extra={"group": group.group_id},
                )
        self._long = frozenset(group.group_id for group in long)

    @contextmanager
    def _apart(self, what: str) -> Iterator[None]:
        """Run work that may fail for all groups and topics together; the rest of the turn goes on."""
        try:
            yield
        except DBAPIError as error:
            if not sqlstate(error):
                raise
            _log.warning("%s: %s", what, first_line(error.orig or error))

    def _remove_deleted(self) -> None:
        """Remove the state of topics that have been gone for long enough, each group in a step of its own."""
        retention = self._configs.deleted_topics_retention
        due = State(self._database).administration.remove_deleted_topics(retention, execute=False)
        for group_id in self._groups.in_turn("deletion", {each.group_id for each in due}):
            with self._groups.step("deletion", group_id), self._lease.fenced() as database:
                for each in State(database).administration.remove_deleted_topics(
                    retention, execute=True, group_id=group_id
                ):
                    _log.warning(
                        "group %s: removed its %d share-partitions of topic %s (id %s), which is gone since %s",
                        *(group_id, each.share_partitions, each.topic, each.topic_id, each.gone_since),
                        extra={"group": group_id, "topic": each.topic},
                    )

    def _still_watching(self) -> None:
        """Renew the lease of the watch before the broker is asked again."""
        if time.monotonic() - self._taken_at < LEASE_SECONDS / 10:
            return
        if not self._lease.take():
            raise NotCoordinator
        self._taken_at = time.monotonic()

    def _log_faults(self, refused: Mapping[str, ShareError]) -> None:
        faults = {topic: f"{error.name}: {error.message}" for topic, error in refused.items()}
        by_reason: dict[str, list[str]] = {}
        for topic, reason in faults.items():
            if self.faults.get(topic) != reason:
                by_reason.setdefault(reason, []).append(topic)
        for reason, topics in by_reason.items():
            _log.warning("topic %s could not be checked completely: %s", listed(topics), reason)
        self.faults = faults

    def _initialize(self, groups: Sequence[WatchedGroup], found: TopicsFound, asked: set[str]) -> int:
        initialized = 0
        waiting: dict[tuple[str, str], str] = {}
        starts: Starts = {}
        by_name = {group.group_id: group for group in groups}
        looked_at = set()
        for group_id in self._groups.in_turn("start", by_name):
            looked_at.add(group_id)
            with self._groups.step("start", group_id):
                for topic in sorted(asked.intersection(by_name[group_id].subscribed)):
                    started, reason = self._initialize_topic(by_name[group_id], topic, found, starts)
                    initialized += started
                    if reason:
                        waiting[group_id, topic] = reason
        # The turn may end before the last group: the reasons of the other groups stay.
        for (group_id, topic), reason in self.waiting.items():
            if group_id in by_name and group_id not in looked_at:
                waiting[group_id, topic] = reason
        self._log_waiting(waiting)
        return initialized

    def _log_waiting(self, waiting: dict[tuple[str, str], str]) -> None:
        # One line for each reason: a subscription may name thousands of topics that are not there.
        news: dict[tuple[str, str], list[str]] = {}
        for (group_id, topic), reason in waiting.items():
            if self.waiting.get((group_id, topic)) != reason and group_id not in self._long:
                news.setdefault((group_id, reason), []).append(topic)
        for (group_id, reason), topics in news.items():
            _log.warning(
                "group %s waits for topic %s: %s", group_id, listed(topics), reason, extra={"group": group_id}
            )
        self.waiting = waiting

    def _initialize_topic(
        self, group: WatchedGroup, topic: str, found: TopicsFound, known_starts: Starts
    ) -> tuple[int, str | None]:
        """Start the share-partitions of a topic that can start; return their number, and why the others wait."""
        if topic in found.refused:
            return 0, found.refused[topic].message
        info = found.known.get(topic)
        if info is None and topic in group.topic_ids:
            return 0, f"The topic was deleted. {_MADE_ANEW}"
        if info is None:
            return 0, "There is no such topic on the broker. Create it; the group then starts by itself."
        if group.topic_ids.get(topic, info.topic_id) != info.topic_id:
            return 0, f"The topic was deleted and created again with the same name. {_MADE_ANEW}"
        missing = sorted(set(range(info.partitions)) - group.initialized.get(topic, frozenset()))
        if not missing:
            return 0, None
        key = group.group_id, topic
        if self._now() < self._retry_at.get(key, 0.0):
            return 0, self.waiting.get(key)
        self._still_watching()
        try:
            starts = self._start_offsets(group.group_id, topic, known_starts)
        except NotCoordinator:
            raise
        except ShareError as error:
            # The broker has just returned the topic: an error now concerns this topic only.
            return 0, error.message
        started = 0
        with self._lease.fenced() as database:
            # The state epoch is the group epoch at initialisation, the change of metadata included (R-EP-3).
            epoch = refresh_group(database, group.group_id, self._configs)
            if epoch is None:
                return 0, None
            for partition in missing:
                start = starts.get(partition)
                if start is not None:
                    at = SharePartition(group.group_id, topic, partition)
                    started += State(database).initialize(at, info.topic_id, start, epoch)
        for partition in missing:
            if starts.get(partition) is not None:
                _log.info(
                    "group %s starts %s-%d at offset %d",
                    *(group.group_id, topic, partition, starts[partition]),
                    extra={"group": group.group_id, "topic": topic, "partition": partition},
                )
        leaderless = [str(partition) for partition in missing if partition not in starts]
        too_old = [str(partition) for partition in missing if starts.get(partition, 0) is None]
        if too_old and not leaderless:
            # The broker has responded: no record is young enough. A partition without a leader is requested again.
            self._retry_at[key] = self._now() + self._configs.initialize_retry_ms / 1000
        reasons = []
        if too_old:
            reasons.append(f"{explanation(OffsetNotAvailable)} Partitions: {', '.join(too_old)}.")
        if leaderless:
            reasons.append(f"{_LEADERLESS} Partitions: {', '.join(leaderless)}.")
        return started, " ".join(reasons) or None

    def _start_offsets(self, group_id: str, topic: str, known: Starts) -> Mapping[int, int | None]:
        """Return the start offset of each partition of a topic new to the group, by the group's reset policy
        (R-OR-2).

        There is one request per turn for all groups that begin with the topic. A request that fails is not repeated
        at every turn: it may take until the client's timeout, and the others would wait as long.
        """
        configs = GroupConfigs.load(self._database, group_id, self._configs)
        policy = configs.auto_offset_reset
        if (topic, policy) in known:
            return known[topic, policy]
        began = time.monotonic()
        until, failure = self._failing.get(topic, (0.0, None))
        if failure is not None and began < until:
            raise failure
        try:
            starts = known[topic, policy] = self._ask_start_offsets(topic, configs)
        except ShareError as error:
            now = time.monotonic()
            self._failing[topic] = now + RESTS * (now - began), error
            raise
        self._failing.pop(topic, None)
        return starts

    def _ask_start_offsets(self, topic: str, configs: GroupConfigs) -> Mapping[int, int | None]:
        policy, back = configs.auto_offset_reset, configs.reset_duration
        return first_offsets(self._topics, topic, policy, back, self._now(), LEADER_PATIENCE_SECONDS)

    def _observe(
        self, groups: Sequence[WatchedGroup], known: Mapping[str, TopicInfo], refused: dict[str, ShareError]
    ) -> int:
        topics = {topic for group in groups for topic in group.initialized}
        self._still_watching()
        logs = self._topics.offsets_of({t: known[t].led for t in topics if t in known}, refused)
        seen = [(group.group_id, group.initialized, group.topic_ids) for group in groups], logs
        # Unchanged logs, up to ten thousand, are found here and not sent to the database at every turn.
        if seen == self._seen and time.monotonic() - self._confirmed_at < CONFIRM_SECONDS:
            self.quiet = True
            return sum(len(of_topic) for group in groups for of_topic in group.initialized.values())
        self._seen = None
        # Not fenced: for unchanged logs it only records the time. And no transaction is open while ten thousand of
        # them are serialised for the call.
        due = confirm_logs(self._database, known, logs)
        self.quiet = not due
        observed = 0
        for group in groups:
            if group.group_id not in due:
                observed += sum(
                    (topic, partition) in logs
                    for topic, of_topic in group.initialized.items()
                    for partition in of_topic
                )
        by_name = {group.group_id: group for group in groups}
        left = set(due)
        for group_id in self._groups.in_turn("observation", due & set(by_name)):
            with self._groups.step("observation", group_id), self._lease.fenced() as database:
                statuses = State(database).observe(_seen_of(by_name[group_id], known, logs))
                observed += sum(status is not None for status in statuses.values())
                left.discard(group_id)
        if not left:
            self._seen, self._confirmed_at = seen, time.monotonic()
        return observed


def _without_leaders(known: Mapping[str, TopicInfo]) -> dict[str, ShareError]:
    """Return the errors of the topics that have partitions without a leader."""
    return {
        topic: LeaderNotAvailable(
            f"Partitions without a leader: {', '.join(map(str, sorted(info.leaderless)))}. Nothing is known of their "
            "logs: new records in them are not noticed, and they are not leased. Start the brokers that have them."
        )
        for topic, info in known.items()
        if info.leaderless
    }


def _seen_of(
    group: WatchedGroup, known: Mapping[str, TopicInfo], logs: Mapping[tuple[str, int], LogOffsets]
) -> list[LogSeen]:
    seen: list[LogSeen] = []
    for topic, partitions in group.initialized.items():
        # Partitions of a deleted topic of the same name are observed too, or they would be leased for ever; as
        # empty if the current topic does not have that partition.
        another = topic in known and known[topic].topic_id != group.topic_ids[topic]
        for partition in sorted(partitions):
            log = logs.get((topic, partition), _NO_LOG if another else None)
            if log is not None:
                at = SharePartition(group.group_id, topic, partition)
                ends = log.log_start, log.log_end, log.last_stable_offset
                seen.append(LogSeen(at, known[topic].topic_id, *ends))
    return seen
