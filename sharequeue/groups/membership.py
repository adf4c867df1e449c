"""How does a worker become, and stay, a member of a share group?

A client of the service: joins, heartbeats in a thread of its own while the worker works, and leaves. It
notices when the group has gone on without it (`lost`); what the worker then does with what it holds is its
own matter, and so is acquiring. The client's half of KIP-932 (Kafka's `ShareHeartbeatRequestManager`): the
full request is sent again after every failure, so that an assignment whose response was lost arrives all the
same.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self
from uuid import uuid4

from sharequeue.errors import (
    NONE,
    FencedMemberEpoch,
    SaslAuthenticationFailed,
    ShareError,
    UnknownMemberId,
    error_for,
)
from sharequeue.groups.heartbeats import JOIN_EPOCH, LEAVE_EPOCH, HeartbeatRequest, HeartbeatResponse
from sharequeue.groups.heartbeats_over_http import TIMEOUT_S, ServiceHeartbeats
from sharequeue.settings import ServiceAddress
from sharequeue.values import SharePartition

_log = logging.getLogger(__name__)

Progress = Callable[[str], None]

_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 1.0
_LEAVE_TIMEOUT_S = 3.0


class Membership:
    """One membership in one group, for `topics`, through the service at an address (`Settings.service`), or a
    bare URL. Use it as a context manager: leaving the
    block leaves the group. Attributes may be read from any thread.
    After `lost` is set, `join` starts over with the same member id.
    """

    def __init__(
        self,
        service: ServiceAddress | str,
        group_id: str,
        topics: Sequence[str],
        member_id: str | None = None,
        client_id: str = "sharequeue",
        rack_id: str | None = None,
        *,
        request_timeout: float = TIMEOUT_S,
    ) -> None:
        self.group_id = group_id
        self.topics = tuple(topics)
        self.member_id = member_id or str(uuid4())
        self.lost = threading.Event()
        """Set when the member is out of the group: fenced, expired, its token not taken any more, or the service not
        heard of for a session."""
        self.lost_reason: str | None = None
        self._client_id = client_id
        self._rack_id = rack_id
        self._service = ServiceHeartbeats(service, request_timeout)
        self._lock = threading.Lock()
        self._member_epoch = JOIN_EPOCH
        self._assignment: tuple[SharePartition, ...] = ()
        self._interval_s = 5.0
        self._session_s = 45.0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    @property
    def member_epoch(self) -> int:
        """The epoch of the last response; 0 before joining."""
        with self._lock:
            return self._member_epoch

    @property
    def assignment(self) -> list[SharePartition]:
        """The share-partitions to work on, from the last response."""
        with self._lock:
            return list(self._assignment)

    def join(self, timeout: float | None = 30.0, progress: Progress | None = None) -> list[SharePartition]:
        """Join, and wait until there is something assigned; return the assignment, empty if `timeout` ended
        first.

        `timeout` in seconds, None waits as long as it takes; `progress` hears what is waited for. Heartbeats
        go on in the background from here. Raises the error of a refusal, `CoordinatorNotAvailable` when the
        service did not answer in the time.
        """
        self._end_thread()
        self._stop.clear()
        self.lost.clear()
        self.lost_reason = None
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            self._member_epoch, self._assignment = JOIN_EPOCH, ()
        shown = ""
        wait = _FIRST_WAIT_S
        while True:
            waiting_for = f"waiting for share-partitions of {', '.join(self.topics)} in group {self.group_id}"
            try:
                self._beat(full=self.member_epoch == JOIN_EPOCH)
            except ShareError as error:
                if isinstance(error, UnknownMemberId | FencedMemberEpoch):
                    with self._lock:
                        self._member_epoch = JOIN_EPOCH
                elif not error.retriable or _over(deadline):
                    raise
                waiting_for = error.message
            if self.assignment or _over(deadline):
                break
            if progress is not None and waiting_for != shown:
                shown = waiting_for
                progress(waiting_for)
            time.sleep(wait)
            wait = min(wait * 1.5, _LONGEST_WAIT_S)
        self._thread = threading.Thread(
            target=self._keep_alive, name=f"heartbeat-{self.group_id}-{self.member_id}", daemon=True
        )
        self._thread.start()
        return self.assignment

    def leave(self) -> None:
        """Leave the group and stop heartbeating. Records still held wait for their lock; release them before.

        Never fails: if the service cannot be reached, the session expires. Harmless to repeat.
        """
        self._end_thread()
        if self._service.closed:
            return
        try:
            if self.member_epoch > JOIN_EPOCH and not self.lost.is_set():
                self._send(LEAVE_EPOCH, full=False, timeout=_LEAVE_TIMEOUT_S)
        except ShareError as error:
            _log.warning("member %s could not leave group %s: %s", self.member_id, self.group_id, error)
        finally:
            with self._lock:
                self._member_epoch, self._assignment = JOIN_EPOCH, ()
            self._service.close()

    def abandon(self) -> None:
        """Heartbeat no longer, without leaving: the session expires. Returns at once."""
        self._stop.set()

    def _end_thread(self) -> None:
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _keep_alive(self) -> None:
        heard = time.monotonic()
        full = False
        wait = self._interval_s
        failing: type[Exception] | None = None
        while not self._stop.wait(wait):
            # The session lives from when the service heard of the member, at the earliest from now.
            asked = time.monotonic()
            try:
                self._beat(full=full)
            except (UnknownMemberId, FencedMemberEpoch, SaslAuthenticationFailed) as error:
                self._lose(error.message)
                return
            except Exception as error:
                # Any error, also one that nobody thought of: a thread that died of it would tell nobody.
                silent = time.monotonic() - heard
                if silent >= self._session_s and not self.lost.is_set():
                    self._lose(
                        f"no heartbeat was answered for {silent:.0f} s, the session has expired: {error}"
                    )
                if type(error) is not failing:  # one line for an outage, however long
                    _log.warning(
                        "heartbeat of %s failed, trying again: %s: %s",
                        self.member_id,
                        type(error).__name__,
                        error,
                    )
                failing = type(error)
                full = True
                wait = min(_LONGEST_WAIT_S, self._interval_s)
            else:
                if failing is not None:
                    _log.warning("heartbeats of %s are answered again", self.member_id)
                    failing = None
                heard = asked
                full = False
                wait = self._interval_s

    def _lose(self, reason: str) -> None:
        _log.warning("member %s is out of group %s: %s", self.member_id, self.group_id, reason)
        self.lost_reason = reason
        with self._lock:
            self._assignment = ()
        self.lost.set()

    def _beat(self, *, full: bool) -> None:
        response = self._send(self.member_epoch, full=full)
        with self._lock:
            self._member_epoch = response.member_epoch
            if response.assignment is not None:
                self._assignment = tuple(
                    SharePartition(self.group_id, topic.topic_name, partition)
                    for topic in response.assignment
                    for partition in topic.partitions
                )
            self._interval_s = response.heartbeat_interval_ms / 1000
            self._session_s = response.session_timeout_ms / 1000

    def _send(self, epoch: int, *, full: bool, timeout: float | None = None) -> HeartbeatResponse:
        request = HeartbeatRequest(
            self.group_id,
            self.member_id,
            epoch,
            self._rack_id if full else None,
            self.topics if full else None,
            self._client_id,
        )
        response = self._service(request, timeout)
        if response.error_code != NONE:
            raise error_for(response.error_code, response.error_message)
        return response


def _over(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline
