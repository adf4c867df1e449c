"""How are the locks of a long round kept, and what happens when one is lost?

A thread renews every held lease at a third of its lock duration (KIP-1222's RENEW). A lease that the state refuses to
renew is lost: its records are delivered to somebody else. So the Spark job is cancelled, and nothing more is written
or acknowledged. A database that cannot be reached is no refusal: renewal goes on trying until the lock must have
lapsed.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from sqlalchemy.exc import SQLAlchemyError

from sharequeue.errors import BrokerNotAvailable, OffsetOutOfRange, ShareError, UnknownTopicId, first_line
from sharequeue.offsets import EMPTY, OffsetSet
from sharequeue.spark.contract import RegistryNotAvailable
from sharequeue.spark.interrupts import deferred, forget_interrupted_call
from sharequeue.spark.leasing.budget import Budget
from sharequeue.spark.leasing.member import Member
from sharequeue.spark.output.reachable import OutputNotReachable
from sharequeue.spark.output.shared_folder import OutputNotShared
from sharequeue.state import State
from sharequeue.state.many import in_calls
from sharequeue.values import Lease, SharePartition

_log = logging.getLogger(__name__)

RENEWALS_PER_LOCK = 3
LAST_ATTEMPTS_IN_A_ROW = 32
"""Each takes a round of its own. After so many, everything else has a turn."""


class LockLost(Exception):
    """A lock was lost in the middle of a round: its records belong to somebody else now. Nothing more was written or
    acknowledged, and what else the run held was given back.
    """


@dataclass(slots=True)
class _Held:
    lease: Lease
    renewed_at: float
    """By the monotonic clock, taken before the request was sent: the lock lives at least this long plus its
    duration.
    """
    acknowledging: bool = False
    """Whether an acknowledgement is under way, which may end it."""

    def due_at(self) -> float:
        return self.renewed_at + self.lease.lock_duration_ms / 1000 / RENEWALS_PER_LOCK

    def lapsed_at(self) -> float:
        return self.renewed_at + self.lease.lock_duration_ms / 1000


class LeaseKeeper:
    """Holds leases of one member and renews them until they are dropped.

    A context manager. What is still held when the block ends is given back: after an interrupt (no Exception) as by a
    cancelled run, else as unacknowledged. `on_lost` cancels the work for the leases. It is called by the renewing
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
        self._failing: str | None = None
        """Why leases could not be renewed when it was last tried."""
        # A run begins with the others: they tell whether the handler works at all before a record is given up.
        self._last_attempts = LAST_ATTEMPTS_IN_A_ROW
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
        not_the_records = stopped or isinstance(error, OutputNotShared | OutputNotReachable)
        # Nor that the log is not as it was leased: they would end as dead letters that nobody has read.
        refund = isinstance(
            error,
            RegistryNotAvailable
            | OutputNotReachable
            | UnknownTopicId
            | OffsetOutOfRange
            | BrokerNotAvailable,
        )
        # A second signal would make suspects of what is not given back yet.
        with deferred():
            try:
                if stopped:
                    forget_interrupted_call()
                if error is not None:
                    self.cancel_jobs()
            finally:
                # An output that is full, or that the driver does not see, is no fault of the records either.
                self.give_back(
                    cancelled=not_the_records or stopped_in_spark(error),
                    refund=refund,
                )
                self._stop = True
                self._wake.set()
                self._thread.join()
        # Spark's error for the cancelled job is not the reason; the lost lock is.
        if isinstance(error, Exception) and not isinstance(error, LockLost):
            self.check()

    def cancel_jobs(self) -> None:
        """Cancel the work; again where an interrupt has broken the connection to the JVM. Raises nothing."""
        for _ in range(2):
            try:
                self._on_lost()
            except Exception as error:
                _log.warning("Spark's jobs were not cancelled: %s", error)
                forget_interrupted_call()
            else:
                return

    def give_back(
        self, leases: Sequence[Lease] | None = None, *, cancelled: bool = False, refund: bool = False
    ) -> None:
        """Give back what is held of these leases, or all; with a `refund` it does not count as delivered: no record
        is at fault.
        """
        of = None if leases is None else {lease.lease_id for lease in leases}
        held = [lease for lease in self.held if of is None or lease.lease_id in of]
        for lease in held:
            self.drop(lease)
        release_held(self._state, held, cancelled=cancelled, refund=refund)

    def acquire_within(
        self,
        budget: Budget,
        share_partitions: Sequence[SharePartition],
        lock_duration_ms: int | None,
        leave_out: Callable[[SharePartition], OffsetSet] = lambda sp: EMPTY,
        parts: int = 1,
        last_attempts: bool = True,
    ) -> list[Lease]:
        """Lease from these share-partitions, in this order, within one budget, and keep the leases: up to `parts`
        leases of one share-partition's suspects, and nothing of `leave_out`.

        A suspect's last attempt comes first and alone; in the first round, and after `LAST_ATTEMPTS_IN_A_ROW` of
        them, the others have a turn. Without `last_attempts` they are left where they are: other records are held,
        and they must be alone.
        Raises LockLost, and the error of the first share-partition that refused.
        """
        if not last_attempts:
            return self._acquire_many(budget, share_partitions, lock_duration_ms, leave_out, parts, False)
        first = self._last_attempts < LAST_ATTEMPTS_IN_A_ROW
        leases = self._acquire_many(budget, share_partitions, lock_duration_ms, leave_out, parts, first)
        if not leases and not first:
            leases = self._acquire_many(budget, share_partitions, lock_duration_ms, leave_out, parts, True)
        alone = any(lease.last_attempt for lease in leases)
        self._last_attempts = self._last_attempts + 1 if alone else 0
        return leases

    def _acquire_many(
        self,
        budget: Budget,
        share_partitions: Sequence[SharePartition],
        lock_duration_ms: int | None,
        leave_out: Callable[[SharePartition], OffsetSet],
        parts: int,
        last_attempt: bool,
    ) -> list[Lease]:
        leases: list[Lease] = []
        records, left = budget.max_records, float(budget.max_bytes)
        for some in in_calls(share_partitions):
            if leases:
                some = [at for at in some if not budget.max_bytes or budget.mean_bytes[at.topic] <= left]
            if records <= 0 or any(lease.last_attempt for lease in leases):
                break
            self.check()
            # From before it is asked for: the lock lives at least this long plus its duration.
            asked_at = time.monotonic()
            # A signal between the call and the note of it would leave leases that nobody holds.
            with deferred():
                acquired = self._state.many.acquire(
                    some,
                    self._member.member_id,
                    self._member.member_epoch,
                    records,
                    max_bytes=int(left) if budget.max_bytes else None,
                    mean_bytes=budget.mean_bytes,
                    lock_duration_ms=lock_duration_ms,
                    leave_outs=[leave_out(at) for at in some],
                    parts=parts,
                    # A last attempt must be alone, and these would be in the same round.
                    last_attempt=last_attempt and not leases,
                )
                with self._lock:
                    self._held.update({lease.lease_id: _Held(lease, asked_at) for lease in acquired.leases})
                self._wake.set()
            for refusal in acquired.refusals.values():
                raise refusal
            leases += acquired.leases
            for lease in acquired.leases:
                records -= lease.offsets.count
                left -= lease.offsets.count * budget.mean_bytes.get(lease.share_partition.topic, 0.0)
        return leases

    @contextmanager
    def acknowledging(self, lease: Lease) -> Iterator[Lease]:
        """Give the lease as it is now, to a block that acknowledges it; afterwards the lease is dropped.

        A renewal that is refused meanwhile means nothing: the acknowledgement came first, or is refused itself.
        Raises LockLost. When the block raises, the lease is kept.
        """
        self.check()
        with self._lock:
            held = self._held.get(lease.lease_id)
            if held is not None:
                held.acknowledging = True
        try:
            yield self.current(lease)
        except BaseException:
            if held is not None:
                held.acknowledging = False
            raise
        self.drop(lease)

    @contextmanager
    def acknowledging_many(self, leases: Sequence[Lease]) -> Iterator[list[Lease]]:
        """Do the same as `acknowledging` for leases that one call acknowledges; `drop` those that it has
        acknowledged.
        """
        self.check()
        with self._lock:
            held = [each for each in map(self._held.get, (lease.lease_id for lease in leases)) if each]
            for each in held:
                each.acknowledging = True
        try:
            yield self._currents(leases)
        finally:
            for each in held:
                each.acknowledging = False

    def end_unacknowledged(self, leases: Sequence[Lease]) -> None:
        """Give these back at once, unacknowledged: their records are suspects."""
        for lease in leases:
            self.drop(lease)
        release_held(self._state, leases)

    def cancel(self) -> None:
        """Cancel the work for the leases, as a lost lock would."""
        self._on_lost()

    def drop(self, lease: Lease) -> None:
        """Hold it no longer: it was acknowledged or given back."""
        with self._lock:
            self._held.pop(lease.lease_id, None)

    @property
    def held(self) -> list[Lease]:
        """The leases held now."""
        with self._lock:
            return [held.lease for held in self._held.values()]

    def current(self, lease: Lease) -> Lease:
        """Return the lease under the member's present epoch: it rises while others come and go, and only the last two
        are accepted.
        """
        return replace(lease, member_epoch=self._member.member_epoch)

    def _currents(self, leases: Sequence[Lease]) -> list[Lease]:
        # Asked once: a call has one member epoch, which may rise at any time.
        epoch = self._member.member_epoch
        return [replace(lease, member_epoch=epoch) for lease in leases]

    def check(self) -> None:
        """Raise LockLost when a lock or the membership is lost."""
        if self._lost is None and self._member.lost.is_set():
            self._lose(f"the group no longer knows member {self._member.member_id}")
        if self._lost is not None:
            raise LockLost(self._lost)

    def abandon(self) -> None:
        """Renew no longer, and give nothing back: what is held lapses. Returns at once."""
        self._stop = True
        self._wake.set()

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
                self._on_lost()
            except Exception as error:
                _log.warning("what is at work could not be cancelled, trying again: %s", error)
            return 0.2
        with self._lock:
            held = list(self._held.values())
        now = time.monotonic()
        for some in in_calls([each for each in held if each.due_at() <= now]):
            if not self._stop:
                self._renew(some)
        # Never long: a lost membership is only seen here while the main thread waits for Spark.
        due = [each.due_at() - time.monotonic() for each in held]
        return max(0.05, min([0.5, *due]))

    def _renew(self, some: Sequence[_Held]) -> None:
        asked_at = time.monotonic()
        try:
            results = self._state.many.renew(self._currents([held.lease for held in some]))
        except Exception as error:
            # Any error: the pool of connections has a time-out, too.
            reason = first_line(error)
            if reason != self._failing:  # one line for an outage, however long
                _log.warning("%d leases could not be renewed, trying again: %s", len(some), reason)
            self._failing = reason
            for held in some:
                if asked_at >= held.lapsed_at():
                    self._lose(
                        f"lease {held.lease.lease_id} could not be renewed before its lock lapsed: {error}"
                    )
            return
        if self._failing is not None:
            _log.warning("leases are renewed again")
            self._failing = None
        for held, result in zip(some, results, strict=True):
            if not isinstance(result, ShareError):
                held.renewed_at = asked_at
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


def stopped_in_spark(error: BaseException | None) -> bool:
    """Return whether Spark's error says that somebody has stopped the work: a stream around it, whose thread Spark
    interrupts, or a job group, as notebooks cancel a cell. Our own cancellations go by a tag.
    """
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    if java is None:
        return False
    try:
        if str(java.toString()).startswith("java.lang.InterruptedException"):
            return True
        for _ in range(10):
            if java is None:
                break
            if "cancelled part of cancelled job group" in str(java.getMessage()):
                return True
            java = java.getCause()
    except Py4JError:
        pass  # the JVM is no more
    return False


def release_held(
    state: State, leases: Sequence[Lease], *, cancelled: bool = False, refund: bool = False
) -> None:
    """Give back these leases as far as possible; the locks of the others lapse.

    After a run that was `cancelled`, or with a `refund`, no record is a suspect.
    """
    for some in in_calls(leases):
        try:
            state.many.release(some, cancelled=cancelled, refund=refund)
        except (ShareError, SQLAlchemyError) as error:
            ids = ", ".join(str(lease.lease_id) for lease in some)
            _log.warning("leases %s were not given back, their locks will lapse: %s", ids, error)
