"""The membership of a worker in a share group: join, heartbeat, leave.

The client's half of KIP-932 (Kafka's `ShareHeartbeatRequestManager`), for runs and for consumers. Heartbeats are sent
in a thread of their own while the worker works, through a transport (`transports`): over HTTP to the service, or
directly to the database. The full request is sent again after every failure, so that an assignment also arrives if
its first response was lost. The worker itself acquires records, and decides about held ones.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from math import inf
from types import TracebackType
from typing import Protocol, Self
from uuid import uuid4

from sharequeue.domain.errors import (
    NONE,
    FencedMemberEpoch,
    GroupIdNotFound,
    ShareError,
    UnknownMemberId,
    error_for,
    first_line,
)
from sharequeue.domain.settings import ServiceAddress
from sharequeue.domain.values import SharePartition
from sharequeue.groups.heartbeats import JOIN_EPOCH, LEAVE_EPOCH, HeartbeatRequest, HeartbeatResponse
from sharequeue.groups.transports import TIMEOUT_S, ServiceTransport, Transport

_log = logging.getLogger(__name__)

Progress = Callable[[str], None]

_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 1.0
_LEAVE_TIMEOUT_S = 3.0
_UNTIL_WOKEN_S = 3600.0


class MemberEvents(Protocol):
    """The callbacks of a worker that rejoins by itself. Called in the thread of the heartbeats."""

    def answered(self, topics: tuple[str, ...], response: HeartbeatResponse) -> None:
        """Handle a response before its assignment is visible; an error here counts as a failed heartbeat."""

    def assigned(self) -> None:
        """Handle a changed assignment."""

    def out(self) -> None:
        """Stop handing out held records: the group gives them to others. The member joins again."""

    def refused(self, error: ShareError) -> None:
        """Report an error that waiting does not resolve. Called under a lock: it must not wait."""

    def unused(self) -> None:
        """Give back held records: the member leaves because it was not used in time."""


class Membership:
    """One membership in one group, for `topics`.

    Heartbeats go to the service at an address (`Settings.service`) or a bare URL, or through another transport. Use
    it as a context manager: leaving the block leaves the group. Attributes may be read from any thread.

    Without `events`, call `join`; a member that the group no longer knows is `lost`, and `join` starts again with the
    same member id. With `events`, call `subscribe`; the member then joins again by itself.
    """

    def __init__(
        self,
        service: ServiceAddress | str | Transport,
        group_id: str,
        topics: Sequence[str] = (),
        member_id: str | None = None,
        client_id: str = "sharequeue",
        rack_id: str | None = None,
        *,
        request_timeout: float = TIMEOUT_S,
        events: MemberEvents | None = None,
    ) -> None:
        self.group_id = group_id
        self.topics = tuple(topics)
        self.member_id = member_id or str(uuid4())
        self.member_epoch = JOIN_EPOCH
        """The epoch of the last response; 0 before joining."""
        self.topic_ids: Mapping[SharePartition, str] = {}
        """The share-partitions of the assignment, and the ids of their topics. A new object after each change."""
        self.lost = threading.Event()
        """Set when the member is out of the group: fenced, expired, refused, or without a response for a whole
        session."""
        self.error: ShareError | None = None
        """Why the member cannot join, if waiting does not resolve it."""
        self.unused = False
        """Whether the member left because it was not used; until `stay`."""
        self.heartbeats = 0
        """Number of requests that got a response."""
        self.rebalances = 0
        """How many times the assignment has changed."""
        self._client_id = client_id
        self._rack_id = rack_id
        self._transport: Transport = (
            ServiceTransport(service, request_timeout)
            if isinstance(service, ServiceAddress | str)
            else service
        )
        self._events = events
        self._rejoins = events is not None
        self._stay_until = self._stay_s = inf
        self._full = True
        self._interval_s = 5.0
        self._session_s = 45.0
        self._heard_at = time.monotonic()
        self._failure: Exception | None = None
        """The error of the last heartbeat, if it failed; it is sent again."""
        self._tried = False
        self._changed = threading.Condition()
        self._wake = threading.Event()
        self._stop = False
        self._leaving = True
        self._left = False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    @property
    def joined(self) -> bool:
        """Whether the group knows the member, as far as is known here."""
        return self.member_epoch > JOIN_EPOCH

    @property
    def assignment(self) -> list[SharePartition]:
        """The share-partitions to work on, from the last response."""
        return list(self.topic_ids)

    def join(self, timeout: float | None = 30.0, progress: Progress | None = None) -> list[SharePartition]:
        """Join, and wait for share-partitions; return the assignment, empty if `timeout` ended
        first.

        `timeout` in seconds, None means no limit; `progress` is called with what the member waits for. Heartbeats
        continue in the background. Raises the error of a refusal, `CoordinatorNotAvailable` if the service did
        not respond in time, RuntimeError after `leave`.
        """
        if self._left:
            raise RuntimeError("the membership has ended: create another one")
        self._end_thread(leave=False)
        deadline = inf if timeout is None else time.monotonic() + timeout
        self.lost.clear()
        self.error, self._failure, self._tried = None, None, False
        self._forget()
        self._rejoins = True
        self._begin()
        try:
            self._await_assignment(deadline, progress or (lambda _: None))
        except BaseException:
            self._end_thread(leave=False)
            raise
        finally:
            self._rejoins = self._events is not None
        return self.assignment

    def _await_assignment(self, deadline: float, progress: Progress) -> None:
        nothing_yet = f"waiting for share-partitions of {', '.join(self.topics)} in group {self.group_id}"
        shown = ""
        while True:
            with self._changed:
                # Wait for at least one request; a signal waits up to `_LONGEST_WAIT_S`.
                left = deadline - time.monotonic() if self._tried else _LONGEST_WAIT_S
                if self.error is not None:
                    raise self.error
                if self.topic_ids or left <= 0:
                    break
                failure = self._failure
                if not self._tried or shown == (waiting_for := _words(failure) or nothing_yet):
                    self._changed.wait(min(left, _LONGEST_WAIT_S))
                    continue
                shown = waiting_for
            progress(shown)
        if self._failure is not None and not self.topic_ids:
            raise self._failure

    def subscribe(self, topics: tuple[str, ...]) -> None:
        """Join with these topics, or change the member's topics; without topics leave the group. Returns at once."""
        with self._changed:
            self.topics, self.error, self._full = topics, None, True
            if not topics:
                self.topic_ids = {}
        if self._thread is None and topics and not self._left:
            self._begin()
        self._wake.set()

    def stay(self) -> None:
        """Stay a member without a limit. A member that left because it was unused, or was refused, joins again."""
        with self._changed:
            self._stay_until = inf
            again = self.unused or self.error is not None
            self.unused, self.error = False, None
        if again:
            self._wake.set()

    def stay_for(self, seconds: float) -> None:
        """Stay a member for this time; then leave, unless `stay` is called before."""
        with self._changed:
            self._stay_s, self._stay_until = seconds, time.monotonic() + seconds

    def report(self, topics: tuple[str, ...], error: ShareError) -> None:
        """Report an error of these topics, unless the member has other topics by now."""
        with self._changed:
            if topics == self.topics and self._events is not None:
                self._events.refused(error)

    def rejoin(self) -> None:
        """Join again, because the group no longer knows the member."""
        self._forget()
        if self._events is not None:
            self._events.out()
        self._wake.set()

    def leave(self, timeout: float | None = None) -> None:
        """Leave the group and stop heartbeating, in `timeout` seconds at most.

        Records still held wait until their locks lapse; release them before. Never fails: if
        the group cannot be reached, the session expires. Harmless to repeat.
        """
        self._left = True
        if self._end_thread(leave=True, timeout=timeout):
            self._send_leave()  # if a join was interrupted
            self._transport.close()

    def abandon(self) -> None:
        """Stop the heartbeats without leaving: the session expires. Returns at once."""
        self._leaving = False
        self._stop = True
        self._wake.set()

    def _begin(self) -> None:
        self._stop, self._leaving, self._heard_at = False, True, time.monotonic()
        self._thread = threading.Thread(
            target=self._run, name=f"heartbeat-{self.group_id}-{self.member_id}", daemon=True
        )
        self._thread.start()

    def _end_thread(self, *, leave: bool, timeout: float | None = None) -> bool:
        """End the thread of the heartbeats; return whether it ended in time."""
        self._leaving = self._leaving and leave
        self._stop = True
        self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)
            if thread.is_alive():
                return False
        self._thread = None
        self._wake.clear()
        return True

    def _run(self) -> None:
        wait = 0.0
        while True:
            self._wake.wait(wait)
            self._wake.clear()
            if self._stop:
                break
            if not self.topics and self._events is not None:
                self._send_leave()
                wait = _UNTIL_WOKEN_S
            elif self.unused or self.error is not None:
                wait = _UNTIL_WOKEN_S
            elif self._has_become_unused():
                self._leave_unused()
                wait = _UNTIL_WOKEN_S
            else:
                wait = self._beat(wait)
                if self.lost.is_set():
                    return
        if self._leaving:
            self._send_leave()

    def _has_become_unused(self) -> bool:
        with self._changed:
            self.unused = time.monotonic() > self._stay_until
            return self.unused

    def _leave_unused(self) -> None:
        with self._changed:
            self.topic_ids = {}  # nothing more is leased
        if self._events is not None:
            self._events.unused()
        self._send_leave()

    def _beat(self, waited: float) -> float:
        """Send one heartbeat; return how long to wait for the next."""
        with self._changed:
            topics, epoch = self.topics, self.member_epoch
            full = self._full or epoch == JOIN_EPOCH
        # The session starts when the request arrives at the group: not before now.
        asked_at = time.monotonic()
        try:
            response = self._send(
                HeartbeatRequest(
                    self.group_id,
                    self.member_id,
                    epoch,
                    self._rack_id if full else None,
                    topics if full else None,
                    self._client_id,
                )
            )
            if self._events is not None:
                self._events.answered(topics, response)
        except (UnknownMemberId, FencedMemberEpoch, GroupIdNotFound) as error:
            self._put_out(error)
        except ShareError as error:
            if not error.retriable:
                return self._refuse(topics, error)
            self._note_failure(error)
        except Exception as error:
            # Any error, also an unexpected one: it would otherwise end the thread without notice.
            self._note_failure(error)
        else:
            return self._accept(topics, response, asked_at, waited)
        return min(max(waited * 2, _FIRST_WAIT_S), _LONGEST_WAIT_S)

    def _accept(
        self, topics: tuple[str, ...], response: HeartbeatResponse, asked_at: float, waited: float
    ) -> float:
        if self._failure is not None:
            _log.warning("heartbeats of %s succeed again", self.member_id)
        with self._changed:
            if topics != self.topics:
                return 0.0
            self._tried, self._failure, self.error, self._full = True, None, None, False
            self._heard_at = asked_at
            self.member_epoch = response.member_epoch
            self._interval_s = response.heartbeat_interval_ms / 1000
            self._session_s = response.session_timeout_ms / 1000
            changed = False
            if response.assignment is not None:
                assigned = _share_partitions(self.group_id, response)
                changed = assigned != self.topic_ids
                self.topic_ids = assigned
                self.rebalances += changed
            self._changed.notify_all()
        if changed and self._events is not None:
            self._events.assigned()
        if not self.topic_ids:
            # Nothing assigned yet: the service is about to check the topics, or other members have everything.
            return min(max(waited * 1.5, _FIRST_WAIT_S), _LONGEST_WAIT_S, self._interval_s)
        # Early enough for the moment at which an unused member leaves.
        left = min(self._stay_until - time.monotonic(), self._stay_s)
        return max(0.0, min(self._interval_s, left + 0.01))

    def _put_out(self, error: ShareError) -> None:
        """Handle that the group no longer knows the member: join again, or be lost."""
        if not self._rejoins:
            self._lose(error.message)
            return
        _log.warning(
            "member %s is no longer in group %s and joins again: %s", self.member_id, self.group_id, error
        )
        with self._changed:
            self._tried, self._failure = True, None
            self._forget()
            self._changed.notify_all()
        if self._events is not None:
            self._events.out()

    def _refuse(self, topics: tuple[str, ...], error: ShareError) -> float:
        """Handle a refusal that waiting does not resolve, unless the member has other topics by now."""
        if not self._rejoins:
            self._lose(error.message)
            return _UNTIL_WOKEN_S
        with self._changed:
            if topics != self.topics:
                return 0.0
            self._forget()
            self.error = error
            if self._events is not None:
                _log.error("member %s cannot join group %s: %s", self.member_id, self.group_id, error)
                self._events.refused(error)
            self._changed.notify_all()
        return _UNTIL_WOKEN_S

    def _note_failure(self, error: Exception) -> None:
        """Handle a failed heartbeat; it is sent again until the session must have expired."""
        silent = time.monotonic() - self._heard_at
        if not self._rejoins and silent >= self._session_s:
            self._lose(f"no heartbeat has succeeded for {silent:.0f} s, and the session has expired: {error}")
            return
        if type(error) is not type(self._failure):  # one line for an outage, however long
            _log.warning(
                "heartbeat of %s failed, trying again: %s: %s",
                *(self.member_id, type(error).__name__, first_line(error)),
            )
        with self._changed:
            self._tried, self._failure, self._full = True, error, True
            self._changed.notify_all()

    def _lose(self, reason: str) -> None:
        _log.warning("member %s is no longer in group %s: %s", self.member_id, self.group_id, reason)
        self.topic_ids = {}
        self.lost.set()

    def _forget(self) -> None:
        with self._changed:
            self.member_epoch, self.topic_ids, self._full = JOIN_EPOCH, {}, True

    def _send_leave(self) -> None:
        """Leave the group. Never fails: without a response the session expires."""
        with self._changed:
            joined = self.joined and not self.lost.is_set()
            self._forget()
        if joined:
            try:
                self._send(HeartbeatRequest(self.group_id, self.member_id, LEAVE_EPOCH), _LEAVE_TIMEOUT_S)
            except Exception as error:
                _log.warning(
                    "member %s could not leave group %s: %s", self.member_id, self.group_id, first_line(error)
                )
            if self._events is not None:
                self._events.assigned()

    def _send(self, request: HeartbeatRequest, timeout: float | None = None) -> HeartbeatResponse:
        response = self._transport(request, timeout)
        if response.error_code != NONE:
            raise error_for(response.error_code, response.error_message)
        self.heartbeats += 1
        return response


def _words(failure: Exception | None) -> str:
    return failure.message if isinstance(failure, ShareError) else "" if failure is None else str(failure)


def _share_partitions(group_id: str, response: HeartbeatResponse) -> dict[SharePartition, str]:
    return {
        SharePartition(group_id, topic["topic_name"], partition): topic["topic_id"]
        for topic in response.assignment or ()
        for partition in topic["partitions"]
    }
