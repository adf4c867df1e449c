"""The locks of leases, as the process that holds them may rely on them, and their renewal.

A lock is relied on by this process's own clock, from before the lease was asked for: it ends here before it does in
the database. A run has a keeper, which renews every held lease at a third of its lock duration (KIP-1222's RENEW). A
lease that the state refuses to renew is lost: its records are delivered to another member. So the work for it is
cancelled, and nothing more is acknowledged. If the database cannot be reached, renewal is tried again until the lock
must have lapsed. A consumer renews the records that its program names, and relies on the same locks.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol
from uuid import UUID

from sharequeue.domain.errors import ShareError, first_line
from sharequeue.domain.values import Acknowledged, Lease
from sharequeue.state.calls import LeaseAcknowledgement, in_calls
from sharequeue.state.state import State

_log = logging.getLogger(__name__)

RENEWALS_PER_LOCK = 3

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def lock_clock() -> float:
    """Return the seconds of the clock of locks.

    Locks lapse while the machine sleeps, when ``time.monotonic`` stops: so it is a clock that goes on, if there is
    one (Linux).
    """
    return time.clock_gettime(_CLOCK)


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock, from `since` (by `lock_clock`, before it was asked for) and for `duration_ms`."""

    since: float
    duration_ms: float

    @property
    def deadline(self) -> float:
        """When it has lapsed, by `lock_clock`."""
        return self.since + self.duration_ms / 1000

    @property
    def lapsed(self) -> bool:
        """Whether it may have lapsed."""
        return lock_clock() >= self.deadline

    @property
    def half_time(self) -> float:
        """When half of its time is over, by `lock_clock`."""
        return self.since + self.duration_ms / 2000

    @property
    def half_over(self) -> bool:
        """Whether less than half of its time is left."""
        return lock_clock() >= self.half_time

    @property
    def renewal_due(self) -> float:
        """When it is to be renewed, by `lock_clock`."""
        return self.since + self.duration_ms / 1000 / RENEWALS_PER_LOCK


class Holder(Protocol):
    """A member that holds leases."""

    @property
    def member_id(self) -> str:
        """Its id."""
        ...

    @property
    def member_epoch(self) -> int | None:
        """Its epoch now; None for a holder that is not a member."""
        ...

    @property
    def lost(self) -> threading.Event:
        """Set when the group no longer knows it."""
        ...


@dataclass(slots=True)
class _HeldLock:
    lease: Lease
    lock: Lock
    acknowledging: bool = False
    """Whether an acknowledgement is under way, which may end it."""


class LockKeeper:
    """Holds leases of one member and renews them until they are forgotten, in a thread from `start` to `stop`.

    `lost_error` makes the error of `check` from its reason.
    """

    def __init__(self, state: State, member: Holder, lost_error: Callable[[str], Exception]) -> None:
        self._state = state
        self._member = member
        self._lost_error = lost_error
        self._held: dict[int, _HeldLock] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stop = False
        self._lost: str | None = None
        self._failing: str | None = None
        """Why leases could not be renewed when it was last tried."""
        self._thread = threading.Thread(target=self._run, name="lock-keeper", daemon=True)

    def start(self) -> None:
        """Begin to renew."""
        self._thread.start()

    def stop(self) -> None:
        """Renew no longer, and wait for the end of the thread."""
        self.abandon()
        self._thread.join()

    def abandon(self) -> None:
        """Renew no longer, and give nothing back: what is held lapses. Returns at once."""
        self._stop = True
        self._wake.set()

    def hold(self, leases: Sequence[Lease], asked_at: float) -> None:
        """Renew these from now on. `asked_at` is from before they were asked for: their locks live from then."""
        with self._lock:
            self._held.update(
                {lease.lease_id: _HeldLock(lease, Lock(asked_at, lease.lock_duration_ms)) for lease in leases}
            )
        self._wake.set()

    @contextmanager
    def acknowledging(self, leases: Sequence[Lease]) -> Iterator[list[Lease]]:
        """Give the leases as they are now to a block that acknowledges them in one call, and that forgets those that
        it has acknowledged.

        A renewal that is refused meanwhile means nothing: the acknowledgement came first, or is refused itself. Nor
        does it after an error of the block: the acknowledgement may have committed. Raises `lost_error`.
        """
        self.check()
        with self._lock:
            held = [each for each in map(self._held.get, (lease.lease_id for lease in leases)) if each]
            for each in held:
                each.acknowledging = True
        yield self._currents(leases)
        for each in held:
            each.acknowledging = False

    def acknowledge(
        self, given: Sequence[LeaseAcknowledgement], request_id: UUID
    ) -> list[Acknowledged | ShareError]:
        """Acknowledge leases in one call, and forget those that it has acknowledged. Raises `lost_error`."""
        with self.acknowledging([each.lease for each in given]) as leases:
            wanted = [replace(each, lease=lease) for lease, each in zip(leases, given, strict=True)]
            results = self._state.acknowledge(wanted, request_id=request_id)
            for lease, result in zip(leases, results, strict=True):
                if not isinstance(result, ShareError):
                    self.forget(lease)
        return results

    def forget(self, lease: Lease) -> None:
        """Hold it no longer: it was acknowledged or given back."""
        with self._lock:
            self._held.pop(lease.lease_id, None)

    @property
    def held(self) -> list[Lease]:
        """The leases held now."""
        with self._lock:
            return [held.lease for held in self._held.values()]

    def _currents(self, leases: Sequence[Lease]) -> list[Lease]:
        # The present epoch: it rises while others come and go, and only the last two are accepted. A call has one, so
        # it is read once.
        epoch = self._member.member_epoch
        return [replace(lease, member_epoch=epoch) for lease in leases]

    def check(self) -> None:
        """Raise `lost_error` when a lock or the membership is lost."""
        if self._lost is None and self._member.lost.is_set():
            self._lose(f"the group no longer knows member {self._member.member_id}")
        if self._lost is not None:
            raise self._lost_error(self._lost)

    def cancel_work(self) -> None:
        """Cancel the work for the leases, if a subclass has such work. The thread calls this once a lock or the
        membership is lost, repeatedly until `stop`.
        """

    def _run(self) -> None:
        while not self._stop:
            self._wake.wait(self._renew_due())
            self._wake.clear()

    def _renew_due(self) -> float:
        """Renew what is due; return in how many seconds to come back."""
        if self._lost is None and self._member.lost.is_set():
            self._lose(f"the group no longer knows member {self._member.member_id}")
        if self._lost is not None:
            # Again and again: a cancellation finds only the jobs that run by now, and the next may be about to start.
            try:
                self.cancel_work()
            except Exception as error:
                _log.warning("the running work could not be cancelled, trying again: %s", error)
            return 0.2
        with self._lock:
            held = list(self._held.values())
        now = lock_clock()
        for some in in_calls([each for each in held if each.lock.renewal_due <= now]):
            if not self._stop:
                self._renew(some)
        # Never long: a lost membership is only seen here while the main thread waits for Spark.
        due = [each.lock.renewal_due - lock_clock() for each in held]
        return max(0.05, min([0.5, *due]))

    def _renew(self, some: Sequence[_HeldLock]) -> None:
        asked_at = lock_clock()
        try:
            results = self._state.renew(self._currents([held.lease for held in some]))
        except Exception as error:
            # Any error: the pool of connections has a time-out, too.
            reason = first_line(error)
            if reason != self._failing:  # one line for an outage, however long
                _log.warning("%d leases could not be renewed, trying again: %s", len(some), reason)
            self._failing = reason
            for held in some:
                if asked_at >= held.lock.deadline:
                    self._lose(
                        f"lease {held.lease.lease_id} could not be renewed before its lock lapsed: {error}"
                    )
            return
        if self._failing is not None:
            _log.warning("leases are renewed again")
            self._failing = None
        for held, result in zip(some, results, strict=True):
            if not isinstance(result, ShareError):
                held.lock = replace(held.lock, since=asked_at)
                continue
            with self._lock:
                still_held = held.lease.lease_id in self._held and not held.acknowledging
            # Acknowledged a moment ago, or just now: there is nothing left to renew.
            if still_held:
                self._lose(
                    f"the lock on {held.lease.share_partition} (lease {held.lease.lease_id}): {result}"
                )

    def _lose(self, reason: str) -> None:
        if self._lost is None:
            self._lost = reason
            _log.error("lock lost: %s", reason)
            self._wake.set()
