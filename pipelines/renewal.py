"""How are the locks of a long round kept, and what happens when one is lost?

A thread renews every held lease at a third of its lock duration (KIP-1222's RENEW). A lease that the state
refuses to renew is lost: its records are being, or will be, delivered to somebody else, so the Spark job is
cancelled and nothing more is written or acknowledged. A database that does not answer is not a refusal:
renewal goes on trying until the lock must have lapsed.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Protocol, Self

from sqlalchemy.exc import SQLAlchemyError

from pipelines.interrupts import deferred, forget_interrupted_call
from pipelines.sharing import OutputNotShared
from pipelines.sizes import records_within
from sharequeue.errors import ShareError
from sharequeue.offsets import EMPTY, OffsetSet
from sharequeue.state import Lease, SharePartition, State

_log = logging.getLogger(__name__)

RENEWALS_PER_LOCK = 3


class Member(Protocol):
    """A member of a share group, as `sharequeue.membership.Membership` is one."""

    @property
    def member_id(self) -> str:
        """Its id."""
        ...

    @property
    def member_epoch(self) -> int | None:
        """Its epoch now; None for a holder that is no member."""
        ...

    @property
    def assignment(self) -> list[SharePartition]:
        """The share-partitions assigned to it now."""
        ...

    @property
    def lost(self) -> threading.Event:
        """Set when the group no longer knows it."""
        ...


class LockLost(Exception):
    """A lock was lost in the middle of a round: its records are somebody else's now. Nothing more was written
    or acknowledged; what else the run held was given back.
    """


@dataclass(frozen=True, slots=True)
class Budget:
    """How much is leased at most. `max_bytes` is no bound when 0; else `mean_bytes` has the mean size of each topic's
    records.
    """

    max_records: int
    max_bytes: int = 0
    mean_bytes: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Held:
    lease: Lease
    renewed_at: float
    """By the monotonic clock, taken before the request was sent: the lock lives at least this long plus its
    duration.
    """
    answering: bool = False
    """Whether an acknowledgement is under way, which may end it."""

    def due_at(self) -> float:
        return self.renewed_at + self.lease.lock_duration_ms / 1000 / RENEWALS_PER_LOCK

    def lapsed_at(self) -> float:
        return self.renewed_at + self.lease.lock_duration_ms / 1000


class LeaseKeeper:
    """Holds leases of one member and renews them until they are dropped.

    A context manager. What is still held when the block ends is given back: by an interrupt (no Exception) as of a
    run that was cancelled, else as unanswered. `on_lost` cancels what is at work: it is called from the renewing
    thread once a lock or the membership is lost, repeatedly until the exit, and when the block fails.
    """

    def __init__(self, state: State, member: Member, on_lost: Callable[[], None] = lambda: None) -> None:
        self._state = state
        self._member = member
        self._on_lost = on_lost
        self._held: dict[int, _Held] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stop = False
        self._process = os.getpid()
        self._lost: str | None = None
        self._thread = threading.Thread(target=self._run, name="lease-keeper", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.getpid() != self._process:
            return  # a forked child: what is held is its parent's
        # Ctrl-C, SIGTERM and Dagster's own interruption are no Exceptions: somebody stopped the run.
        stopped = error is not None and not isinstance(error, Exception)
        # Whoever is impatient and sends a second signal would make suspects of what is not given back yet.
        with deferred():
            try:
                if stopped:
                    forget_interrupted_call()
                if error is not None:
                    self._on_lost()
            finally:
                # Nor is an output that the driver does not see the fault of any record.
                self.give_back(cancelled=stopped or isinstance(error, OutputNotShared))
                self._stop = True
                self._wake.set()
                self._thread.join()
        # Spark's answer to the cancelled job is not the reason; the lost lock is.
        if isinstance(error, Exception) and not isinstance(error, LockLost):
            self.check()

    def give_back(self, *, cancelled: bool = False, refund: bool = False) -> None:
        """Give back all that is kept; with a `refund` it has not been delivered: no record is at fault."""
        held = self.held
        for lease in held:
            self.drop(lease)
        release_held(self._state, held, cancelled=cancelled, refund=refund)

    def acquire(
        self,
        sp: SharePartition,
        max_records: int,
        lock_duration_ms: int | None,
        leave_out: OffsetSet = EMPTY,
    ) -> Lease | None:
        """Lease up to so many records and keep them, none of `leave_out`; None when there is nothing to lease.

        Raises LockLost, and what `State.acquire` raises.
        """
        self.check()
        # From before it is asked for: the lock lives at least this long plus its duration.
        asked_at = time.monotonic()
        # A signal in between would leave a lease that nobody knows of.
        with deferred():
            lease = self._state.acquire(
                sp,
                self._member.member_id,
                self._member.member_epoch,
                max_records,
                lock_duration_ms=lock_duration_ms,
                leave_out=leave_out,
            )
            if lease is not None:
                with self._lock:
                    self._held[lease.lease_id] = _Held(lease, asked_at)
                self._wake.set()
        return lease

    def acquire_within(
        self,
        budget: Budget,
        share_partitions: Iterable[SharePartition],
        lock_duration_ms: int | None,
        leave_out: Callable[[SharePartition], OffsetSet] = lambda sp: EMPTY,
    ) -> list[Lease]:
        """Lease from these share-partitions, in this order, within one budget, and keep it."""
        leases: list[Lease] = []
        records, left = budget.max_records, float(budget.max_bytes)
        for sp in share_partitions:
            mean = budget.mean_bytes.get(sp.topic, 0.0)
            wanted = min(records, records_within(left, mean)) if budget.max_bytes else records
            if not leases and records > 0:
                # One record at least, however large, as in Kafka's fetch: or nothing would ever be leased.
                wanted = max(wanted, 1)
            if wanted <= 0:
                continue
            lease = self.acquire(sp, wanted, lock_duration_ms, leave_out(sp))
            if lease is not None:
                leases.append(lease)
                records -= lease.offsets.count
                left -= lease.offsets.count * mean
        return leases

    @contextmanager
    def answering(self, lease: Lease) -> Iterator[Lease]:
        """Give the lease as it is now, for a block that acknowledges it; afterwards it is kept no longer.

        A renewal that is refused meanwhile says nothing: the acknowledgement came first, or is refused itself. Raises
        LockLost; what the block raises leaves the lease kept.
        """
        self.check()
        with self._lock:
            held = self._held.get(lease.lease_id)
            if held is not None:
                held.answering = True
        try:
            yield self.current(lease)
        except BaseException:
            if held is not None:
                held.answering = False
            raise
        self.drop(lease)

    def drop(self, lease: Lease) -> None:
        """Keep it no longer: it was answered or given back."""
        with self._lock:
            self._held.pop(lease.lease_id, None)

    @property
    def held(self) -> list[Lease]:
        """What is kept now."""
        with self._lock:
            return [held.lease for held in self._held.values()]

    def current(self, lease: Lease) -> Lease:
        """The lease under the member's present epoch: it rises while others come and go, and only the last
        two are accepted.
        """
        return replace(lease, member_epoch=self._member.member_epoch)

    def check(self) -> None:
        """Raise LockLost when a lock or the membership is lost."""
        if self._lost is None and self._member.lost.is_set():
            self._lose(f"the group no longer knows member {self._member.member_id}")
        if self._lost is not None:
            raise LockLost(self._lost)

    def _run(self) -> None:
        while not self._stop:
            self._wake.wait(self._renew_due())
            self._wake.clear()

    def _renew_due(self) -> float:
        """Renew what is due; answers in how many seconds to come back."""
        if self._lost is None and self._member.lost.is_set():
            self._lose(f"the group no longer knows member {self._member.member_id}")
        if self._lost is not None:
            # Again and again: a cancellation finds only the jobs that run by now, and the next may be about to start.
            try:
                self._on_lost()
            except Exception as error:
                _log.warning("what is at work could not be cancelled, trying again: %s", error)
            return 0.2
        with self._lock:
            held = list(self._held.values())
        for each in held:
            if not self._stop and each.due_at() <= time.monotonic():
                self._renew(each)
        # Never long: a lost membership is only seen here while the main thread waits for Spark.
        due = [each.due_at() - time.monotonic() for each in held]
        return max(0.05, min([0.5, *due]))

    def _renew(self, held: _Held) -> None:
        asked_at = time.monotonic()
        try:
            self._state.renew(self.current(held.lease))
            held.renewed_at = asked_at
        except ShareError as error:
            with self._lock:
                still_held = held.lease.lease_id in self._held and not held.answering
            # Answered a moment ago, or just now: there is nothing left to renew.
            if still_held:
                self._lose(f"the lock on {held.lease.share_partition} (lease {held.lease.lease_id}): {error}")
        except Exception as error:
            # Not only the database's own: the pool of connections has a time-out, too.
            _log.warning("lease %d could not be renewed, trying again: %s", held.lease.lease_id, error)
            if asked_at >= held.lapsed_at():
                self._lose(
                    f"lease {held.lease.lease_id} could not be renewed before its lock lapsed: {error}"
                )

    def _lose(self, reason: str) -> None:
        if self._lost is None:
            self._lost = reason
            _log.error("lock lost: %s", reason)
            self._wake.set()


def release_held(
    state: State, leases: Iterable[Lease], *, cancelled: bool = False, refund: bool = False
) -> None:
    """Give back what is held, as well as it can be done: what cannot be given back lapses.

    Of a run that was `cancelled`, or with a `refund`, no record is a suspect.
    """
    for lease in leases:
        try:
            state.release_lease(lease, cancelled=cancelled, refund=refund)
        except (ShareError, SQLAlchemyError) as error:
            _log.warning("lease %d was not given back, its lock will lapse: %s", lease.lease_id, error)
