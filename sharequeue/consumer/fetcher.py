"""What goes on behind a share consumer's polls: records are leased and read.

In a thread of its own, from which the program's takes them; acknowledgements are sent in another (``sender``).
Records are leased when a poll waits for them, and ahead of it when the polls come fast: what waits here is locked,
and its lock must not lapse. What may have lapsed is not handed out. A lease that nobody has seen is given back with
its delivery: a broker that cannot be read makes no dead letters.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from confluent_kafka import KafkaError, KafkaException
from sqlalchemy.exc import SQLAlchemyError

from sharequeue.consumer.configs import ConsumerConfig
from sharequeue.consumer.desk import Desk
from sharequeue.consumer.failures import Failures
from sharequeue.consumer.holdings import Holding, Question, lock_clock, with_delivery_counts
from sharequeue.consumer.log_ends import BROKER_TIMEOUT_S, LONGEST_WAIT_S, LOOK_AGAIN_S, LogEnds, key_of
from sharequeue.consumer.member import Member
from sharequeue.consumer.reader import Key, Reader
from sharequeue.consumer.sender import Sender
from sharequeue.consumer.sending import Sending, give_back
from sharequeue.consumer.shelf import Shelf
from sharequeue.database import Database
from sharequeue.errors import (
    BrokerNotAvailable,
    FencedMemberEpoch,
    GroupAuthorizationFailed,
    InconsistentClusterId,
    SaslAuthenticationFailed,
    ShareError,
    UnknownMemberId,
    UnknownTopicId,
    first_line,
)
from sharequeue.kafka.clients import logged_in
from sharequeue.offsets import EMPTY, OffsetSet
from sharequeue.state import State
from sharequeue.state.many import in_calls
from sharequeue.values import SharePartition

_log = logging.getLogger(__name__)

BROKER_PATIENCE_S = 10.0
"""A lease of which nothing could be read for so long, or for a third of its lock, is given back."""
AHEAD_S = 0.2
"""Records are leased ahead for so much of the program's work, and only where one poll's records take less."""
NOTIFIED_S = 2.0
"""How long a poll that waits is idle before the state is asked again, where a notification would end the wait."""
_RETRY_S = 0.2


class Fetcher(Desk):
    """Sends, leases and reads for one consumer, in a thread of its own."""

    def __init__(
        self, config: ConsumerConfig, database: Database, member: Member, notified: Callable[[], bool]
    ) -> None:
        super().__init__(config)
        self._settings = config.settings
        self._state, self._member = State(database), member
        self._notified = notified
        # Made now: it refuses configs that do not exist.
        self.reader = self._new_reader(member.isolation_level)
        self._ends = LogEnds(config.settings, self._state, config.reading.get("oauth_cb"))
        self._sender = Sender(self, self._state, member, Failures(config.settings))
        self._stop = self._started = False
        self._rotation = self._drops = 0
        self._dropped: list[Holding] = []
        """Leases that were handed out in part, and of which the rest is given back at the end."""
        self._unanswered: Question | None = None
        """Leases that were asked for, and no answer came: they are asked for once more, as the same request."""
        self._rests: list[Holding] = []
        self._assigned: Mapping[SharePartition, str] = {}
        self._topic_ids: dict[SharePartition, str] = {}
        """Of each share-partition that was ever assigned, the id that its topic had last."""
        self._thread = threading.Thread(target=self._run, name=f"share-fetch-{member.member_id}", daemon=True)

    def _new_reader(self, isolation_level: str) -> Reader:
        given, most = self._config.reading, self._config.fetch_max_bytes
        return Reader(self._settings, given, isolation_level, most)

    # What the program's thread calls.

    def start(self) -> None:
        """Begin, unless it has begun."""
        if not self._started:
            self._started = True
            self._thread.start()
            self._sender.start()

    def drop(self, topics: frozenset[str]) -> None:
        """Give back what waits here and is not of these topics; also what is being leased now."""
        with self.changed:
            self._drops += 1
            gone = [each for each in self._shelf.leases() if each.key[0] not in topics]
            if self._ceased:
                # What the program keeps is still its own: it is to be finished.
                gone = [each for each in gone if not each.renewed]
            untouched = [each.lease for each in gone if each.untouched]
            self._dropped = [each for each in self._dropped if not each.lapsed]
            self._dropped += [each for each in gone if not each.untouched]
            self._shelf.forget(gone)
        if untouched:
            try:
                self._state.many.release(untouched, refund=True)
            except (SQLAlchemyError, ShareError) as error:
                _log.warning("%d leases wait for their locks: %s", len(untouched), first_line(error))

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Have all clients of the broker log in with these, and those that are made later."""
        self._settings = logged_in(self._settings, username, password)
        self.reader.set_sasl_credentials(username, password)
        self._ends.set_sasl_credentials(username, password)

    def stop(self, timeout: float) -> None:
        """Send what is to be sent, for so long at most, lease no more and end the thread."""
        with self.changed:
            self._stop = True
            self.changed.notify_all()
        self._wake.set()
        self._sender.stop(timeout)
        if self._started:
            deadline = time.monotonic() + timeout
            self._sender.join(timeout)
            self._thread.join(max(0.0, deadline - time.monotonic()))
        if not self._started or not self._thread.is_alive():
            self.reader.close()

    def release_all(self, in_hand: list[Holding]) -> None:
        """Give back what the member holds. Raises what the database raises."""
        with self.changed:
            waiting = self._shelf.leases() + self._dropped
            self._shelf = Shelf()
        give_back(self._state, waiting, in_hand)
        self._state.release(self._member.group_id, self._member.member_id)

    # What its own thread does.

    def _run(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(self._something_to_do)
                if self._stop:
                    return
                self._asked = False
            try:
                if self._ceased:
                    self.drop(frozenset())
                else:
                    self._fetch()
            except (SQLAlchemyError, KafkaException, BrokerNotAvailable) as error:
                _log.warning(
                    "fetching for %s fails, and is tried again: %s", self._member.member_id, first_line(error)
                )
                self._pause(_RETRY_S)
            except Exception as error:
                _log.exception("fetching for %s failed", self._member.member_id)
                self.fail(error)
                self._pause(_RETRY_S)

    def _something_to_do(self) -> bool:
        return self._stop or self._wants_records() or self._to_give_back()

    def _to_give_back(self) -> bool:
        return self._ceased and not all(each.renewed for each in self._shelf.leases())

    def _wants_records(self) -> bool:
        if self._stop or self._ceased or (not self._member.assignment and not self._demand):
            return False
        waiting = self._shelf.records
        if (self._demand or self._asked) and not self._enough(self._config.max_poll_records):
            return True
        if waiting >= self._ahead_records / 2 or self._idle_ahead:
            return False
        return not self._shelf.at_least(self._config.fetch_max_bytes)

    def _interrupted(self) -> bool:
        return self._stop or self._ceased

    def _pause(self, seconds: float) -> None:
        with self.changed:
            self.changed.wait(seconds)

    def _fetch(self) -> None:
        """One round: read what is leased, else lease; where there is nothing, wait for something to come."""
        assignment, sent = self._member.assignment, self._sent
        self._leave_old_topics(assignment)
        self._give_back_rests()
        if self.reader.outdated:
            self._read_at(self.reader.isolation_level)
        if self._shelf.to_read:
            self._read()
        elif not assignment or not self._lease(assignment):
            if self._sent != sent:
                return  # what was acknowledged meanwhile has made room
            if self._demand:
                self._wait(assignment)
            else:
                self._idle_ahead = True
            return
        else:
            self._read()
        self._idle_ahead = False

    def _read_at(self, isolation_level: str) -> None:
        """Read with a new client from now on."""
        self.reader.close()
        self.reader = self._new_reader(isolation_level)
        self._ends.forget()

    def _leave_old_topics(self, assignment: Mapping[SharePartition, str]) -> None:
        """Forget what was read of a topic that has another id now: it was made again, and its offsets are others."""
        if assignment is not self._assigned:
            self._assigned = assignment
            for at, topic_id in assignment.items():
                if self._topic_ids.setdefault(at, topic_id) != topic_id:
                    self._topic_ids[at] = topic_id
                    self.reader.leave(key_of(at))
                    self._ends.forget()

    def _lease(self, assignment: Mapping[SharePartition, str]) -> bool:
        """Lease the next records; return whether there were any."""
        try:
            self._ends.check_cluster()
        except (InconsistentClusterId, SaslAuthenticationFailed) as wrong:
            self.fail(wrong)
            self._pause(LONGEST_WAIT_S)
            return False
        order = self._ends.readable(assignment, self.reader)
        if not order:
            return False
        self._rotation = (self._rotation + 1) % len(order)
        order = order[self._rotation :] + order[: self._rotation]
        # Of one share-partition at most half of what may be in flight: the next lease has room beside this one.
        most = (
            self._ahead_records if len(order) > 1 else min(self._ahead_records, self._member.max_locks // 2)
        )
        left = max(self._config.max_poll_records, most)
        questions = [Question(part, lock_clock(), self._drops) for part in in_calls(order)]
        if self._unanswered is not None:
            questions, self._unanswered = [self._unanswered], None
        for question in questions:
            part = question.part
            self._figures["fetch-total"] += 1
            try:
                acquired = self._state.many.acquire(
                    part,
                    self._member.member_id,
                    self._member.epoch,
                    left,
                    request_id=question.request_id,
                    max_bytes=max(1, self._config.fetch_max_bytes - self._shelf.bytes),
                    mean_bytes={at.topic: max(1.0, self.reader.mean_bytes.get(at.topic, 1.0)) for at in part},
                    redelivery="kafka",
                )
            except SQLAlchemyError:
                self._unanswered = question
                raise
            for at, error in acquired.refusals.items():
                self._refused(at, error)
            holdings = [Holding.of(lease, question.asked_at) for lease in acquired.leases]
            with self.changed:
                dropped = question.drops != self._drops or any(each.lapsed for each in holdings)
                if not dropped:
                    self._shelf.to_read.extend(holdings)
            if dropped:
                # The program has unsubscribed, or the member was lost, while these were leased; or it took too long.
                self._state.many.release(acquired.leases, refund=True)
                return False
            if holdings:
                return True
        return False

    def _refused(self, at: SharePartition, error: ShareError) -> None:
        if isinstance(error, UnknownMemberId | FencedMemberEpoch):
            self._member.rejoin()
        elif isinstance(error, GroupAuthorizationFailed):
            self.fail(error)
        elif isinstance(error, UnknownTopicId):
            self._member.lose(at.topic, error)
            self._ends.cannot_be_read(key_of(at))
        else:
            _log.warning("nothing can be leased of %s: %s", at, error)
            self._ends.cannot_be_read(key_of(at))

    def _read(self) -> None:
        """Read what is leased, as far as the bound of bytes and the broker allow."""
        self._have_all_come()
        while self._shelf.to_read and not self._interrupted():
            holding = self._shelf.to_read[0]
            if holding.lapsed:
                with self.changed:
                    self._shelf.forget([holding])
                continue
            if holding.lease.isolation_level != self.reader.isolation_level:
                self._read_at(holding.lease.isolation_level)
                self._have_all_come()
            room = self._config.fetch_max_bytes - self._shelf.bytes
            if room <= 0:
                return  # the rest when these are polled
            lock_s = holding.lease.lock_duration_ms / 1000
            part = self.reader.read(
                holding.key,
                holding.unread,
                room,
                min(BROKER_PATIENCE_S, lock_s / 3),
                self._interrupted,
            )
            counted = with_delivery_counts(part.messages, holding.lease)
            with self.changed:
                if holding not in self._shelf.to_read:
                    continue  # given back meanwhile
                self._shelf.add(holding, counted, part.passed)
                self._figures["records-consumed-total"] += len(part.messages)
                self._figures["bytes-consumed-total"] += sum(map(len, part.messages))
                self.changed.notify_all()
            stalled = bool(holding.unread) and not self._interrupted()
            if stalled and not (part.messages and part.error is None):
                self._not_readable(holding, part.error)
            with self.changed:
                # What is gaps only: nobody will acknowledge it. A poll may hand out the rest at this moment.
                gaps = None if holding.handed or holding.waiting else holding.take(implicit=False)
            if gaps is not None:
                self.send(Sending([(holding, gaps)]))
            if stalled and part.messages:
                return  # the bound of bytes: the rest when these are polled

    def _have_all_come(self) -> None:
        first: dict[Key, int] = {}
        with self.changed:
            for holding in self._shelf.to_read:
                first.setdefault(holding.key, holding.unread.first)
        self.reader.move_to(first)

    def _not_readable(self, holding: Holding, error: KafkaError | None) -> None:
        """The broker is silent, or the offsets are not in its log: learn which, and give back what is left."""
        at = holding.lease.share_partition
        topic_id = self._member.assignment.get(at)
        # A broker that is silent is not asked now: the lock would lapse meanwhile, and a delivery be lost.
        if error is not None and topic_id is not None and self._ends.observe({at: topic_id}, self.reader):
            start = self.reader.log_start(holding.key, BROKER_TIMEOUT_S)
            if start is not None and start > holding.unread.first:
                # Deleted records. The state has counted them as lost; there is nothing left to wait for.
                gone = holding.unread & OffsetSet.of((0, start))
                with self.changed:
                    holding.gaps |= gone
                    holding.unread -= gone
                    if not holding.unread and holding in self._shelf.to_read:
                        self._shelf.to_read.remove(holding)
                return
        _log.warning(
            "the leased records of %s cannot be read now and are given back: %s", at, error or "nothing came"
        )
        self._ends.cannot_be_read(holding.key)
        with self.changed:
            holding.unread = EMPTY
            if holding in self._shelf.to_read:
                self._shelf.to_read.remove(holding)
        self._rests.append(holding)
        self._give_back_rests()

    def _give_back_rests(self) -> None:
        """Give back, with its delivery, what could not be read of leases, once what was read is acknowledged."""
        for holding in list(self._rests):
            with self.changed:
                on_its_way = any(holding in dict(sending.taken) for sending in self.outbox)
                busy = (holding.handed or holding.waiting or on_its_way) and not holding.lapsed
            if not busy:
                # What was renewed of it is in use still: the rest waits for its lock then.
                if not holding.lapsed and not holding.split:
                    self._state.many.release([holding.lease], refund=True)
                self._rests.remove(holding)  # only now: what fails is tried again
                with self.changed:
                    holding.gaps = EMPTY  # given back too

    def _wait(self, assignment: Mapping[SharePartition, str]) -> None:
        """A poll waits, and nothing can be leased: look at the log's ends, and wait for what brings something."""
        # Records that the next lease will not have do not end the wait, and those of a transaction do that ends.
        if self._member.isolation_level != self.reader.isolation_level:
            self._read_at(self._member.isolation_level)
        self.reader.keep_only({key_of(at) for at in assignment})
        if new := self._ends.unknown(assignment):
            if not self._ends.observe(new, self.reader):
                self._pause(LOOK_AGAIN_S)
            return
        with self.changed:
            # What is on its way may be what fills the window.
            sent = self._sent
            self.changed.wait_for(
                lambda: self._sent != sent or not self.outbox or self._interrupted(), LOOK_AGAIN_S
            )
            if self._sent != sent:
                return
        until = time.monotonic() + (NOTIFIED_S if self._notified() else LOOK_AGAIN_S)
        while self._demand and not self._interrupted() and time.monotonic() < until:
            if self._wake.is_set():
                self._wake.clear()
                return
            self.reader.wait(0.02)
            if grown := self._ends.grown(assignment, self.reader):
                if not self._ends.observe(grown, self.reader):
                    self._pause(LOOK_AGAIN_S)
                return
