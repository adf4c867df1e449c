"""Lease for a run within a budget, renew the locks, and give back what is still held at the end.

`state.locks` renews the locks. When a lock is lost, the Spark jobs for the leases are cancelled.
"""

from __future__ import annotations

import itertools
import logging
import zlib
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol, Self

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from sqlalchemy.exc import SQLAlchemyError

from sharequeue.domain.errors import (
    BrokerNotAvailable,
    InvalidTimestamp,
    OffsetOutOfRange,
    PipelineError,
    ShareError,
    UnknownTopicId,
)
from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.domain.values import Lease, SharePartition
from sharequeue.outputs.errors import OutputNotReachable
from sharequeue.spark.handler import RegistryNotAvailable
from sharequeue.spark.leasing.budget import Budget
from sharequeue.spark.leasing.crashes import reason_for_letters
from sharequeue.spark.output.shared_folder import OutputNotShared
from sharequeue.spark.signals import deferred, forget_interrupted_call
from sharequeue.spark.spark_jobs import Jobs
from sharequeue.state import State
from sharequeue.state.calls import in_calls
from sharequeue.state.locks import Holder, LockKeeper, lock_clock

_log = logging.getLogger(__name__)

LAST_ATTEMPTS_IN_A_ROW = 32
"""The number of last attempts, each in a separate round, after which the other records are leased."""


_turns = itertools.count()


class LeasingMember(Holder, Protocol):
    """A member of a share group, for example `sharequeue.groups.membership.Membership`."""

    @property
    def assignment(self) -> list[SharePartition]:
        """The share-partitions assigned to it now."""
        ...


def in_turn(member: LeasingMember, topics: Sequence[str]) -> list[SharePartition]:
    """Return the assigned share-partitions of these topics, starting at a different one for each call and each
    member, so that none starves.
    """
    assigned = sorted(sp for sp in member.assignment if sp.topic in topics)
    turn = (next(_turns) + zlib.crc32(member.member_id.encode())) % len(assigned) if assigned else 0
    return assigned[turn:] + assigned[:turn]


class LockLost(PipelineError):
    """A lock was lost during a round: another member may have its records. Nothing more was written or acknowledged,
    and the run's other leases were given back.
    """

    retriable = True


class LeaseKeeper(LockKeeper):
    """The leases of one member, renewed until they are forgotten.

    A context manager. What is still held when the block ends is given back: after an interrupt (no Exception) as by a
    cancelled run, else as unacknowledged. `jobs` are the Spark jobs for the leases: they are cancelled when a lock is
    lost, and when the block fails.
    """

    def __init__(self, state: State, member: LeasingMember, jobs: Jobs | None = None) -> None:
        super().__init__(state, member, LockLost)
        self._jobs = jobs
        # A run begins with the other records: they show whether the handler works at all, before a record is given
        # up.
        self._last_attempts = LAST_ATTEMPTS_IN_A_ROW

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Ctrl-C, SIGTERM and Dagster's own interruption are no Exceptions: somebody stopped the run.
        stopped = error is not None and not isinstance(error, Exception)
        not_the_records = stopped or isinstance(error, OutputNotShared | OutputNotReachable)
        # A changed log is not the records' fault either: they would become dead letters that no handler has read.
        refund = isinstance(
            error,
            RegistryNotAvailable
            | OutputNotReachable
            | InvalidTimestamp
            | UnknownTopicId
            | OffsetOutOfRange
            | BrokerNotAvailable,
        )
        # A second signal would make the remaining leases suspects.
        with deferred():
            try:
                if stopped:
                    forget_interrupted_call()
                if error is not None:
                    self.cancel_work()
            finally:
                # An output that is full, or that the driver cannot read, is not the records' fault either.
                self.give_back(
                    cancelled=not_the_records or stopped_in_spark(error),
                    refund=refund,
                    reason=reason_for_letters(error) if isinstance(error, Exception) else None,
                )
                self.stop()
        # The reason is the lost lock, not Spark's error for the cancelled job.
        if isinstance(error, Exception) and not isinstance(error, LockLost):
            self.check()

    def cancel_work(self) -> None:
        """Cancel the Spark jobs."""
        if self._jobs is not None:
            self._jobs.cancel()

    def give_back(
        self,
        leases: Sequence[Lease] | None = None,
        *,
        cancelled: bool = False,
        refund: bool = False,
        reason: str | None = None,
    ) -> None:
        """Give back the held ones of these leases, or all: their records become suspects, unless the run was
        `cancelled`. With `refund` the delivery does not count, because no record is at fault. `reason` is for the
        dead letters of records that are given up by this, as `Class: message`.
        """
        of = None if leases is None else {lease.lease_id for lease in leases}
        held = [lease for lease in self.held if of is None or lease.lease_id in of]
        for lease in held:
            self.forget(lease)
        release_held(self._state, held, cancelled=cancelled, refund=refund, reason=reason)

    def acquire_within(
        self,
        budget: Budget,
        share_partitions: Sequence[SharePartition],
        leave_out: Callable[[SharePartition], OffsetSet] = lambda sp: EMPTY,
        parts: int = 1,
        last_attempts: bool = True,
    ) -> list[Lease]:
        """Lease from these share-partitions, in this order, within one budget, and hold the leases: up to `parts`
        leases of suspects for each share-partition, and nothing in `leave_out`.

        A suspect's last attempt comes first and alone; in the first round, and after `LAST_ATTEMPTS_IN_A_ROW` of
        them, the other records are leased. Without `last_attempts` they are not leased: other records are held, and
        they must be alone. Raises LockLost, and the error of the first share-partition that refused.
        """
        if not last_attempts:
            return self._acquire_many(budget, share_partitions, leave_out, parts, False)
        first = self._last_attempts < LAST_ATTEMPTS_IN_A_ROW
        leases = self._acquire_many(budget, share_partitions, leave_out, parts, first)
        if not leases and not first:
            leases = self._acquire_many(budget, share_partitions, leave_out, parts, True)
        alone = any(lease.last_attempt for lease in leases)
        self._last_attempts = self._last_attempts + 1 if alone else 0
        return leases

    def _acquire_many(
        self,
        budget: Budget,
        share_partitions: Sequence[SharePartition],
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
            # Taken before the request: the lock lasts at least until this time plus its duration.
            asked_at = lock_clock()
            # A signal between the call and its registration would leave leases that nothing holds.
            with deferred():
                acquired = self._state.acquire(
                    some,
                    self._member.member_id,
                    self._member.member_epoch,
                    records,
                    max_bytes=int(left) if budget.max_bytes else None,
                    mean_bytes=budget.mean_bytes,
                    leave_outs=[leave_out(at) for at in some],
                    parts=parts,
                    # A last attempt must be alone in its round.
                    last_attempt=last_attempt and not leases,
                )
                self.hold(acquired.leases, asked_at)
            for refusal in acquired.refusals.values():
                raise refusal
            leases += acquired.leases
            for lease in acquired.leases:
                records -= lease.offsets.count
                left -= lease.offsets.count * budget.mean_bytes.get(lease.share_partition.topic, 0.0)
        return leases


def stopped_in_spark(error: BaseException | None) -> bool:
    """Return whether Spark's error means that the work was stopped.

    A stream around it may stop it by interrupting its thread, or a notebook by cancelling the job group of a cell.
    Cancellations of this library use a tag.
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
        pass  # the JVM has ended
    return False


def release_held(
    state: State,
    leases: Sequence[Lease],
    *,
    cancelled: bool = False,
    refund: bool = False,
    reason: str | None = None,
) -> None:
    """Give back these leases as far as possible; the locks of the rest expire.

    After a `cancelled` run, or with `refund`, no record becomes a suspect.
    """
    for some in in_calls(leases):
        try:
            state.release(some, cancelled=cancelled, refund=refund, reasons=[reason] * len(some))
        except (ShareError, SQLAlchemyError) as error:
            ids = ", ".join(str(lease.lease_id) for lease in some)
            _log.warning("leases %s were not given back, their locks will lapse: %s", ids, error)
