"""How does a consumer become, and stay, a member of its share group?

Heartbeats in a thread of their own, whatever the program does meanwhile (Kafka's ShareHeartbeatRequestManager):
straight to the database, or through the service where the login may not keep groups. A member that was fenced or
has expired joins again by itself; what it held is given back by then. A member whose program does not poll for
``max.poll.interval.ms`` leaves, and joins again at the next poll.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from math import inf
from uuid import uuid4

from sqlalchemy.exc import SQLAlchemyError

from sharequeue.consumer.beats import Beat
from sharequeue.database import Database
from sharequeue.errors import (
    NONE,
    ClusterAuthorizationFailed,
    FencedMemberEpoch,
    GroupIdNotFound,
    ShareError,
    UnknownMemberId,
    UnknownTopicId,
    error_for,
    first_line,
)
from sharequeue.groups.assignments import AssignedTopic
from sharequeue.groups.configs import GroupConfigs
from sharequeue.groups.heartbeats import JOIN_EPOCH, LEAVE_EPOCH, HeartbeatRequest, HeartbeatResponse
from sharequeue.settings import SettingMissing
from sharequeue.state import State
from sharequeue.values import SharePartition

_log = logging.getLogger(__name__)

_OUT = (UnknownMemberId.code, FencedMemberEpoch.code, GroupIdNotFound.code)
_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 1.0
_LONG_S = 3600.0


class Member:
    """One member of one share group. Attributes may be read from any thread; callbacks are called from its own."""

    def __init__(
        self,
        database: Database,
        group_id: str,
        client_id: str,
        rack_id: str | None,
        max_poll_interval_ms: int,
        changed: Callable[[], None],
        failed: Callable[[ShareError], None],
        beat: Beat,
        lost: Callable[[], None],
    ) -> None:
        self.group_id = group_id
        self.member_id = str(uuid4())
        self.topics: tuple[str, ...] = ()
        self.epoch = JOIN_EPOCH
        self.assignment: dict[SharePartition, str] = {}
        """The share-partitions to lease from, and the ids of their topics."""
        self.isolation_level = "read_uncommitted"
        self.max_locks = 2000
        """Records of one share-partition that the group may have in flight."""
        self.lock_duration_ms = inf
        """How long the group locks records now, as far as is known."""
        self.has_dead_letters = True
        """Whether the group has dead letters now, as far as is known: else nobody reads why a record failed."""
        self.lost_topics: Mapping[str, UnknownTopicId] = {}
        """Topics that were deleted, and perhaps made again: nothing of them is assigned."""
        self.error: ShareError | None = None
        """Why the member cannot join, where waiting will not help."""
        self.polled_at = time.monotonic()
        self.exceeded = False
        """Whether the member left because its program did not poll; until the next poll."""
        self._database = database
        self._client_id = client_id
        self._client_host = socket.gethostname()
        self._rack_id = rack_id
        self._max_poll_s = max_poll_interval_ms / 1000
        self._changed = changed
        self._failed = failed
        self._beat = beat
        self._lost = lost
        """Called where what the member holds is given to others: nothing of it may be handed out any more."""
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._leaving = True
        self._heartbeats = 0
        self._rebalances = 0
        self._full = True
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def joined(self) -> bool:
        """Whether the group knows the member, as far as is known here."""
        return self.epoch > JOIN_EPOCH

    def subscribe(self, topics: tuple[str, ...]) -> None:
        """Join with these topics, or change the member's topics; with none leave the group. Returns at once."""
        with self._lock:
            self.topics = topics
            self.error = None
            self._full = True
            if not topics:
                self.assignment = {}
        self.polled_at = time.monotonic()
        if self._thread is None and topics:
            self._thread = threading.Thread(target=self._run, name=f"heartbeat-{self.member_id}", daemon=True)
            self._thread.start()
        self._wake.set()

    def polled(self) -> None:
        """The program is in a poll, however long that waits. Where the member had left, or could not join, it tries
        again."""
        with self._lock:
            self.polled_at = inf
            again = self.exceeded or self.error is not None
            self.exceeded, self.error = False, None
        if again:
            self._wake.set()

    def returned(self) -> None:
        """The poll has returned: from now on ``max.poll.interval.ms`` counts."""
        with self._lock:
            self.polled_at = time.monotonic()

    def metrics(self) -> dict[str, float]:
        """What was done, by the names of Kafka's client."""
        return {
            "assigned-partitions": float(len(self.assignment)),
            "heartbeat-total": float(self._heartbeats),
            "last-poll-seconds-ago": max(0.0, time.monotonic() - self.polled_at),
            "rebalance-total": float(self._rebalances),
        }

    def rejoin(self) -> None:
        """The group does not know the member any more."""
        with self._lock:
            self._forget()
        self._lost()
        self._wake.set()

    def lose(self, topic: str, error: UnknownTopicId) -> None:
        """A topic is another one than the group has begun on: a lease was refused for that."""
        self._lose(self.topics, {**self.lost_topics, topic: error})

    def abandon(self) -> None:
        """Send no more heartbeats, without leaving: the session expires. Returns at once."""
        self._leaving = False
        self._stop.set()
        self._wake.set()

    def close(self, timeout: float) -> None:
        """Leave the group and send no more heartbeats. Returns after ``timeout`` seconds in any case."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout)

    def _forget(self) -> None:
        self.epoch, self.assignment, self._full = JOIN_EPOCH, {}, True

    def _leave(self) -> None:
        """Leave the group. Never fails: without a response the session expires."""
        with self._lock:
            joined = self.joined
            self._forget()
        if joined:
            try:
                self._beat(HeartbeatRequest(self.group_id, self.member_id, LEAVE_EPOCH))
            except (ShareError, SQLAlchemyError) as error:
                _log.warning(
                    "member %s could not leave group %s: %s", self.member_id, self.group_id, first_line(error)
                )
        self._changed()

    def _run(self) -> None:
        wait = 0.0
        while not self._stop.is_set():
            self._wake.wait(wait)
            self._wake.clear()
            if self._stop.is_set():
                break
            if not self.topics or self.exceeded or self.error is not None:
                if not self.topics:
                    self._leave()
                wait = _LONG_S
            elif self._out_of_use():
                _log.warning(
                    "member %s leaves group %s: its program has not polled for max.poll.interval.ms (%.0f s)",
                    *(self.member_id, self.group_id, self._max_poll_s),
                )
                self._give_back()
                self._leave()
                wait = _LONG_S
            else:
                wait = self._beat_once(wait)
        if self._leaving:
            self._leave()

    def _out_of_use(self) -> bool:
        """Whether the program has not polled for too long; from now until its next poll."""
        with self._lock:
            self.exceeded = time.monotonic() - self.polled_at > self._max_poll_s
            return self.exceeded

    def _beat_once(self, waited: float) -> float:
        topics = self.topics
        try:
            return self._one(topics, waited)
        except SettingMissing as error:
            self._give_up(topics, ClusterAuthorizationFailed(f"this login may not keep groups: {error}"))
            return _LONG_S
        except Exception as error:
            # Any error, also one that nobody thought of: a thread that died of it would tell nobody.
            _log.warning("heartbeat of %s failed, trying again: %s", self.member_id, first_line(error))
            with self._lock:
                self._full = True
            return min(max(waited * 2, _FIRST_WAIT_S), _LONGEST_WAIT_S)

    def _give_back(self) -> None:
        with self._lock:
            self.assignment = {}  # nothing more is leased
        self._lost()
        try:
            State(self._database).release(self.group_id, self.member_id)
        except (ShareError, SQLAlchemyError) as error:
            _log.warning("records of %s wait for their locks: %s", self.member_id, first_line(error))

    def _one(self, topics: tuple[str, ...], waited: float) -> float:
        """One heartbeat; return how long to wait for the next."""
        with self._lock:
            if topics != self.topics:
                return 0.0
            epoch, full = self.epoch, self._full or self.epoch == JOIN_EPOCH
        response = self._beat(
            HeartbeatRequest(
                self.group_id,
                self.member_id,
                epoch,
                self._rack_id if full else None,
                topics if full else None,
                self._client_id,
                self._client_host,
            )
        )
        self._heartbeats += 1
        if response.error_code != NONE:
            return self._refused(topics, response, waited)
        changed = False
        before, configs = self.isolation_level, GroupConfigs.load(self._database, self.group_id)
        self.max_locks, level = configs.partition_max_record_locks, configs.isolation_level
        self.lock_duration_ms = configs.record_lock_duration_ms
        self.has_dead_letters = bool(configs.dead_letter_topic)
        # Before the assignment is known: what is leased from it is read at the group's level.
        self.isolation_level = level
        if response.assignment is not None or response.member_epoch != epoch:
            self._lose(topics, State(self._database).figures.lost_topics(self.group_id, topics))
        with self._lock:
            if topics != self.topics:
                return 0.0
            self.error = None
            self.epoch, self._full = response.member_epoch, False
            if response.assignment is not None:
                assignment = _assigned(self.group_id, response.assignment)
                changed = assignment != self.assignment
                self._rebalances += changed
                self.assignment = assignment
        if changed or level != before:
            self._changed()
        if not self.assignment:
            # Nothing to do yet: the service is about to look at the topics, or another member has everything.
            return min(max(waited * 1.5, _FIRST_WAIT_S), _LONGEST_WAIT_S)
        # In good time for the end of the interval between two polls.
        left = min(0.0, self.polled_at - time.monotonic()) + self._max_poll_s
        return max(0.0, min(response.heartbeat_interval_ms / 1000, left + 0.01))

    def _lose(self, topics: tuple[str, ...], lost: Mapping[str, UnknownTopicId]) -> None:
        """These topics are lost now, and no others: say what was not said before."""
        said = set(map(str, self.lost_topics.values()))
        news = [str(error) for error in lost.values() if str(error) not in said]
        self.lost_topics = lost
        if news:
            _log.warning("member %s of group %s: %s", self.member_id, self.group_id, " ".join(news))
            self._fail(topics, UnknownTopicId(" ".join(news)))

    def _fail(self, topics: tuple[str, ...], error: ShareError, *, out: bool = False) -> None:
        """Have a poll raise the error, unless the program has subscribed to other topics meanwhile."""
        with self._lock:
            if topics == self.topics:
                if out:
                    self.error = error
                    self._forget()
                self._failed(error)

    def _give_up(self, topics: tuple[str, ...], error: ShareError) -> None:
        _log.error("member %s cannot join group %s: %s", self.member_id, self.group_id, error)
        self._fail(topics, error, out=True)

    def _refused(self, topics: tuple[str, ...], response: HeartbeatResponse, waited: float) -> float:
        error = error_for(response.error_code, response.error_message)
        if response.error_code in _OUT:
            _log.warning(
                "member %s is out of group %s and joins again: %s", self.member_id, self.group_id, error
            )
            with self._lock:
                self._forget()
            self._lost()
            self._changed()
        elif not error.retriable:
            self._give_up(topics, error)
        return min(max(waited * 2, _FIRST_WAIT_S), _LONGEST_WAIT_S)


def _assigned(group_id: str, topics: tuple[AssignedTopic, ...]) -> dict[SharePartition, str]:
    return {
        SharePartition(group_id, topic.topic_name, partition): topic.topic_id
        for topic in topics
        for partition in topic.partitions
    }
