"""Lease and read records for the polls of a share consumer.

This is done in a thread of its own; acknowledgements are sent in another (``acknowledgement_sender``). Records are
leased when a poll waits for them, and ahead of the polls when these follow each other quickly: waiting records are
locked, and their locks must not lapse. Records whose lock may have lapsed are not handed out. A lease of which
nothing was handed out is given back with its delivery, so that an unreadable broker causes no dead letters.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

from confluent_kafka import KafkaError, KafkaException
from sqlalchemy.exc import SQLAlchemyError

from sharequeue.consumer.acknowledgement_sender import AcknowledgementSender
from sharequeue.consumer.acknowledgements import Acknowledgements, give_back
from sharequeue.consumer.configs import ConsumerConfig
from sharequeue.consumer.failures import Failures
from sharequeue.consumer.handover import Handover
from sharequeue.consumer.held_leases import AcquireRequest, HeldLease, with_delivery_counts
from sharequeue.consumer.lease_queue import LeaseQueue
from sharequeue.consumer.log_ends import BROKER_TIMEOUT_S, LONGEST_WAIT_S, LOOK_AGAIN_S, LogEnds, key_of
from sharequeue.consumer.member import ConsumerMember
from sharequeue.consumer.reader import Key, LeaseReader
from sharequeue.database import Database
from sharequeue.domain.errors import (
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
from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.domain.values import Lease, SharePartition
from sharequeue.kafka.clients import logged_in
from sharequeue.state import State
from sharequeue.state.calls import in_calls
from sharequeue.state.locks import lock_clock

_log = logging.getLogger(__name__)

BROKER_PATIENCE_S = 10.0
"""A lease is given back if nothing of it could be read for this time, or for a third of its lock."""
AHEAD_S = 0.2
"""Records are leased ahead for this much of the program's work, and only if one poll's records take less."""
NOTIFIED_S = 2.0
"""How long a waiting poll is idle before the state is asked again, if a notification would end the wait."""
_RETRY_S = 0.2


class Fetcher:
    """Leases and reads for one consumer, in a thread of its own."""

    def __init__(
        self,
        config: ConsumerConfig,
        database: Database,
        handover: Handover,
        member: ConsumerMember,
        notified: Callable[[], bool],
    ) -> None:
        self._config = config
        self._handover = handover
        self._settings = config.settings
        self._state, self._member = State(database), member
        self._notified = notified
        # Opened now: it refuses unknown configs.
        self.reader = self._new_reader(member.isolation_level)
        self._ends = LogEnds(config.settings, self._state, config.reading.get("oauth_cb"))
        failures = Failures(config.settings, lambda: self._state.outputs.identity().state_id)
        self._sender = AcknowledgementSender(handover, self._state, member, failures)
        self._stop = self._started = self._failing = False
        self._rotation = self._give_backs = 0
        self._partly_handed_out: list[HeldLease] = []
        """Leases that were partly handed out; the rest of each is given back at the end."""
        self._unanswered: AcquireRequest | None = None
        """A request for leases that got no reply: it is repeated as the same request."""
        self._rests: list[HeldLease] = []
        self._assigned: Mapping[SharePartition, str] = {}
        self._topic_ids: dict[SharePartition, str] = {}
        """The last topic id of each share-partition that was ever assigned."""
        self._thread = threading.Thread(target=self._run, name=f"share-fetch-{member.member_id}", daemon=True)

    def _new_reader(self, isolation_level: str) -> LeaseReader:
        given, most = self._config.reading, self._config.fetch_max_bytes
        return LeaseReader(self._settings, given, isolation_level, most)

    def start(self) -> None:
        """Start the threads, unless they are started."""
        if not self._started:
            self._started = True
            self._thread.start()
            self._sender.start()

    def give_back_except(self, topics: frozenset[str]) -> None:
        """Give back waiting records of all other topics, also those that are being leased now."""
        with self._handover.changed:
            self._give_backs += 1
            gone = [each for each in self._handover.queue.leases() if each.key[0] not in topics]
            idle = [
                each
                for each in gone
                if each.untouched or (each.polled_is_done and not self._handover.on_its_way(each))
            ]
            self._partly_handed_out = [each for each in self._partly_handed_out if not each.lapsed]
            self._partly_handed_out += [each for each in gone if each not in idle]
            self._handover.queue.forget(gone)
        if idle:
            try:
                self._state.release([each.lease for each in idle], refund=True)
            except (SQLAlchemyError, ShareError) as error:
                _log.warning(
                    "%d leases could not be released; their records are delivered again when the locks lapse: %s",
                    len(idle),
                    first_line(error),
                )

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Have all clients of the broker log in with these credentials, also clients that are made later."""
        self._settings = logged_in(self._settings, username, password)
        self.reader.set_sasl_credentials(username, password)
        self._ends.set_sasl_credentials(username, password)

    def stop(self, timeout: float) -> None:
        """Stop leasing, send what is left for up to `timeout` seconds, and end the thread."""
        with self._handover.changed:
            self._stop = True
            self._handover.changed.notify_all()
        self._handover.news.set()
        self._sender.stop(timeout)
        if self._started:
            deadline = time.monotonic() + timeout
            self._sender.join(timeout)
            self._thread.join(max(0.0, deadline - time.monotonic()))
        if not self._started or not self._thread.is_alive():
            self.reader.close()

    def release_all(self, in_hand: list[HeldLease]) -> None:
        """Give back everything that the member holds. Raises the errors of the database."""
        with self._handover.changed:
            waiting = self._handover.queue.leases() + self._partly_handed_out
            self._handover.queue = LeaseQueue()
        give_back(self._state, waiting, in_hand)
        self._state.release_member(self._member.group_id, self._member.member_id)

    # The part that runs in the thread of the fetcher.

    def _run(self) -> None:
        while True:
            with self._handover.changed:
                idle = not self._handover.changed.wait_for(
                    lambda: self._stop or self._wants_records(), self._until_idle()
                )
                if self._stop:
                    return
                self._handover.asked = self._handover.asked and idle
            try:
                if idle:
                    self._give_back_idle()
                else:
                    self._fetch()
                self._failing = False
            except (SQLAlchemyError, KafkaException, BrokerNotAvailable) as error:
                # Once for an outage, which has five failures in a second.
                if not self._failing:
                    _log.warning(
                        "fetching for %s failed, trying again: %s", self._member.member_id, first_line(error)
                    )
                self._failing = True
                self._pause(_RETRY_S)
            except Exception as error:
                _log.exception("fetching for %s failed", self._member.member_id)
                self._handover.fail(error)
                self._pause(_RETRY_S)

    def _wants_records(self) -> bool:
        handover = self._handover
        if not self._member.assignment and not handover.demand:
            return False
        if (handover.demand or handover.asked) and not handover.enough(self._config.max_poll_records):
            return True
        if handover.queue.buffered >= handover.ahead_records / 2 or handover.idle_ahead:
            return False
        return not handover.queue.at_least(self._config.fetch_max_bytes)

    def _idle(self) -> list[HeldLease]:
        """Return the leases in order by key of which no poll has had a record."""
        return [
            each
            for each in self._handover.queue.leases()
            if each.order is not None and each.untouched and not each.lapsed
        ]

    def _until_idle(self) -> float | None:
        """Return the seconds until such a lease is to be given back; None if there is none."""
        due = [each.lock.half_time - lock_clock() for each in self._idle()]
        return max(_RETRY_S, min(due)) if due else None

    def _give_back_idle(self) -> None:
        """Give back leases in order by key that were made ahead of polls which do not come.

        No other member can lease from their share-partitions meanwhile. They get their delivery back.
        """
        with self._handover.changed:
            late = [each for each in self._idle() if each.lock.half_over]
            if not late or self._handover.demand:
                return
            self._handover.queue.forget(late)
            self._handover.idle_ahead = True
        self._state.release([each.lease for each in late], refund=True)

    def _pause(self, seconds: float) -> None:
        with self._handover.changed:
            self._handover.changed.wait(seconds)

    def _fetch(self) -> None:
        """Do one round: read what is leased, else lease; if there is nothing to lease, wait for records."""
        assignment, sent = self._member.assignment, self._handover.answered
        self._leave_old_topics(assignment)
        self._give_back_rests()
        if self.reader.outdated:
            self._read_at(self.reader.isolation_level)
        if self._handover.queue.to_read:
            self._read()
        elif not assignment or not self._lease(assignment):
            if self._handover.answered != sent:
                return  # acknowledgements have made room meanwhile
            if self._handover.demand:
                self._wait(assignment)
            else:
                self._handover.idle_ahead = True
            return
        else:
            self._read()
        self._handover.idle_ahead = False

    def _read_at(self, isolation_level: str) -> None:
        """Read with a new client from now on."""
        self.reader.close()
        self.reader = self._new_reader(isolation_level)
        self._ends.forget()

    def _leave_old_topics(self, assignment: Mapping[SharePartition, str]) -> None:
        """Forget what was read of a topic whose id has changed: it was created again and has new offsets."""
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
            self._handover.fail(wrong)
            self._pause(LONGEST_WAIT_S)
            return False
        leased = self._leased_in_order()
        order = [at for at in self._ends.readable(assignment, self.reader) if key_of(at) not in leased]
        if not order:
            return False
        self._rotation = (self._rotation + 1) % len(order)
        order = order[self._rotation :] + order[: self._rotation]
        # From a single share-partition at most half of what may be in flight, so that the next lease has room.
        most = self._handover.ahead_records
        if len(order) == 1:
            most = min(most, self._member.max_locks // 2)
        left = max(self._config.max_poll_records, most)
        requests = [AcquireRequest(part, lock_clock(), self._give_backs) for part in in_calls(order)]
        if self._unanswered is not None:
            requests, self._unanswered = [self._unanswered], None
        for request in requests:
            part = request.part
            self._handover.figures["fetch-total"] += 1
            try:
                acquired = self._state.acquire(
                    part,
                    self._member.member_id,
                    self._member.epoch,
                    left,
                    request_id=request.request_id,
                    max_bytes=max(1, self._config.fetch_max_bytes - self._handover.queue.bytes),
                    mean_bytes={at.topic: max(1.0, self.reader.mean_bytes.get(at.topic, 1.0)) for at in part},
                    redelivery="kafka",
                )
                blocked = self._blocked_keys(acquired.leases)
            except SQLAlchemyError:
                self._unanswered = request
                raise
            for at, error in acquired.refusals.items():
                self._refused(at, error)
            holdings = [
                HeldLease.of(lease, request.asked_at, blocked.get(lease.token)) for lease in acquired.leases
            ]
            with self._handover.changed:
                given_back = request.give_backs != self._give_backs or any(each.lapsed for each in holdings)
                if not given_back:
                    self._handover.queue.to_read.extend(holdings)
            if given_back:
                # The program has unsubscribed, or the member was lost, while these were leased; or it took too long.
                self._state.release(acquired.leases, refund=True)
                return False
            if holdings:
                return True
        return False

    def _leased_in_order(self) -> set[Key]:
        """Return the partitions with a lease in order by key that has records left: they have no other lease."""
        with self._handover.changed:
            return {
                each.key
                for each in self._handover.queue.leases()
                if each.order is not None and (each.buffered or each.unread) and not each.lapsed
            }

    def _blocked_keys(self, leases: Sequence[Lease]) -> dict[UUID, dict[UUID, int]]:
        """Return the blocked keys of each lease in order by key, with the offset behind which each is blocked.

        No other key becomes blocked later: such a lease is the only one of its share-partition.
        """
        tokens = [lease.token for lease in leases if lease.ordered]
        if not tokens:
            return {}
        found = self._state.blocked_keys(self._member.group_id, tokens)
        # A lease that has ended meanwhile has no row. Its acknowledgements will be refused.
        return {
            token: dict(zip(found[token].hashes, found[token].first_offsets, strict=True))
            if token in found
            else {}
            for token in tokens
        }

    def _refused(self, at: SharePartition, error: ShareError) -> None:
        if isinstance(error, UnknownMemberId | FencedMemberEpoch):
            self._member.membership.rejoin()
        elif isinstance(error, GroupAuthorizationFailed):
            self._handover.fail(error)
        elif isinstance(error, UnknownTopicId):
            self._member.lose(at.topic, error)
            self._ends.cannot_be_read(key_of(at))
        else:
            _log.warning("nothing can be leased of %s: %s", at, error)
            self._ends.cannot_be_read(key_of(at))

    def _read(self) -> None:
        """Read the leased records, as far as the byte limit and the broker allow."""
        self._have_all_come()
        while self._handover.queue.to_read and not self._stop:
            holding = self._handover.queue.to_read[0]
            if holding.lapsed:
                with self._handover.changed:
                    self._handover.queue.forget([holding])
                continue
            if holding.lease.isolation_level != self.reader.isolation_level:
                self._read_at(holding.lease.isolation_level)
                self._have_all_come()
            room = self._config.fetch_max_bytes - self._handover.queue.bytes
            if room <= 0:
                return  # the rest is read when these are polled
            lock_s = holding.lease.lock_duration_ms / 1000
            part = self.reader.read(
                holding.key,
                holding.unread,
                room,
                min(BROKER_PATIENCE_S, lock_s / 3),
                lambda: self._stop,
            )
            counted = with_delivery_counts(part.messages, holding.lease)
            with self._handover.changed:
                if holding not in self._handover.queue.to_read:
                    continue  # given back meanwhile
                self._handover.queue.add(holding, counted, part.passed)
                self._handover.figures["records-consumed-total"] += len(part.messages)
                self._handover.figures["bytes-consumed-total"] += sum(map(len, part.messages))
                self._handover.changed.notify_all()
            stalled = bool(holding.unread) and not self._stop
            if stalled and not (part.messages and part.error is None):
                self._not_readable(holding, part.error)
            with self._handover.changed:
                # Nobody acknowledges a lease with gaps only. A poll may hand out the rest at this moment.
                gaps = None if holding.handed or holding.waiting else holding.take(implicit=False)
            if gaps is not None:
                self._handover.send(Acknowledgements([(holding, gaps)]))
            if stalled and part.messages:
                return  # the byte limit: the rest is read when these are polled

    def _have_all_come(self) -> None:
        first: dict[Key, int] = {}
        with self._handover.changed:
            for holding in self._handover.queue.to_read:
                first.setdefault(holding.key, holding.unread.first)
        self.reader.move_to(first)

    def _not_readable(self, holding: HeldLease, error: KafkaError | None) -> None:
        """Handle records that cannot be read: find out whether they were deleted, and give back the rest.

        Either the broker does not respond, or the offsets are not in its log.
        """
        at = holding.lease.share_partition
        topic_id = self._member.assignment.get(at)
        # A silent broker is not asked now: the lock would lapse meanwhile, and a delivery would be lost.
        if error is not None and topic_id is not None and self._ends.observe({at: topic_id}, self.reader):
            start = self.reader.log_start(holding.key, BROKER_TIMEOUT_S)
            if start is not None and start > holding.unread.first:
                # Deleted records. The state has counted them as lost; there is nothing left to wait for.
                gone = holding.unread & OffsetSet.of((0, start))
                with self._handover.changed:
                    holding.gaps |= gone
                    holding.unread -= gone
                    if not holding.unread and holding in self._handover.queue.to_read:
                        self._handover.queue.to_read.remove(holding)
                return
        _log.warning(
            "the leased records of %s cannot be read now and are released: %s", at, error or "nothing came"
        )
        self._ends.cannot_be_read(holding.key)
        with self._handover.changed:
            holding.unread = EMPTY
            if holding in self._handover.queue.to_read:
                self._handover.queue.to_read.remove(holding)
        self._rests.append(holding)
        self._give_back_rests()

    def _give_back_rests(self) -> None:
        """Give back the unread parts of leases, with their delivery, once the read parts are acknowledged."""
        for holding in list(self._rests):
            with self._handover.changed:
                used = holding.handed or holding.waiting or self._handover.on_its_way(holding)
                busy = used and not holding.lapsed
            if not busy:
                # Renewed records of it are still in use: then the rest waits until its lock lapses.
                if not holding.lapsed and not holding.split:
                    self._state.release([holding.lease], refund=True)
                self._rests.remove(holding)  # only now, so that a failure is tried again
                with self._handover.changed:
                    holding.gaps = EMPTY  # given back too
                    holding.forget()

    def _wait(self, assignment: Mapping[SharePartition, str]) -> None:
        """Wait until something can be leased, while a poll waits: watch the log's ends and the notifications."""
        # Records that the next lease cannot have do not end the wait; those of a transaction that ends do.
        if self._member.isolation_level != self.reader.isolation_level:
            self._read_at(self._member.isolation_level)
        self.reader.keep_only({key_of(at) for at in assignment})
        if new := self._ends.unknown(assignment):
            if not self._ends.observe(new, self.reader):
                self._pause(LOOK_AGAIN_S)
            return
        with self._handover.changed:
            # The window may be full of records whose acknowledgements are on their way.
            sent = self._handover.answered
            self._handover.changed.wait_for(
                lambda: self._handover.answered != sent or not self._handover.outbox or self._stop,
                LOOK_AGAIN_S,
            )
            if self._handover.answered != sent:
                return
        until = time.monotonic() + (NOTIFIED_S if self._notified() else LOOK_AGAIN_S)
        while self._handover.demand and not self._stop and time.monotonic() < until:
            if self._handover.news.is_set():
                self._handover.news.clear()
                return
            self.reader.wait(0.02)
            if grown := self._ends.grown(assignment, self.reader):
                if not self._ends.observe(grown, self.reader):
                    self._pause(LOOK_AGAIN_S)
                return
