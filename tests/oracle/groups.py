"""Drive share groups in memory: no broker, no database, no waiting.

The in-memory engine: any number of groups and share-partitions, every operation on their state by Kafka's
rules and under Kafka's error names, and a clock that moves only by a call. It holds one entry per offset:
made to be obvious and exact, not to be fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from sharequeue.domain.errors import InvalidRecordState, InvalidRequest, UnknownTopicId
from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.domain.values import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Acknowledged,
    AcknowledgementBatch,
    DeadLetterBatch,
    Delivery,
    Lease,
    SharePartition,
    Swept,
)
from tests.oracle import kept as keeping
from tests.oracle import order
from tests.oracle.acknowledging import Acknowledgement, validate
from tests.oracle.acquiring import Acquisition
from tests.oracle.administration import START
from tests.oracle.group import Call, Result
from tests.oracle.operations import Operations
from tests.oracle.records import (
    Acquired,
    AcquiredRange,
    AcquireMode,
    Description,
    Fetch,
    HeldLease,
    LogBatch,
    Redelivery,
    whole_second,
)
from tests.oracle.share_partition import InMemorySharePartition


class InMemoryShareGroups(Operations):
    """All groups of a test. Refusals raise the errors of ``sharequeue.domain.errors`` and have changed nothing.

    Members may be any name, as for a bare broker: who may act is the coordinator's business. ``service_configs`` are
    what the service is configured to, by Kafka's names (``group.share.…``); its bounds of lock durations bind.
    """

    def __init__(self, start: datetime = START, *, service_configs: Mapping[str, str] | None = None) -> None:
        super().__init__(start, service_configs=service_configs)
        self._leases = 0

    # Records

    def _results(self, at: SharePartition) -> dict[Call, Result]:
        """What was returned to calls on a share-partition; they go with it."""
        group, name = self._groups.get(at.group_id), (at.topic, at.partition)
        return {} if group is None or name not in group.partitions else group.results[name]

    def acquire(
        self,
        at: SharePartition,
        member_id: str,
        max_records: int,
        *,
        state_epoch: int | None = None,
        mode: AcquireMode = "batch_optimized",
        batch_size: int | None = None,
        log_batches: Sequence[LogBatch] | None = None,
        aborted: OffsetSet = EMPTY,
        log_start: int | None = None,
        lock_duration_ms: int | None = None,
        redelivery: Redelivery = "kafka",
        request_id: UUID | None = None,
        leave_out: OffsetSet = EMPTY,
    ) -> Acquired:
        """Lease records of one share-partition: those that come again first, then fresh ones (R-AQ, R-TH).

        ``log_batches`` are the log's batches from SPSO on or from anywhere before; without them the log is what
        :meth:`observe` said, and everything is cut exactly at ``max_records``. ``aborted`` holds the records of
        aborted transactions; they count under ``share.isolation.level=read_committed`` only. A ``log_start``
        past what the fetch would read is noticed first (R-LS). ``batch_size`` is ``max_records`` unless given.
        Nothing is leased while leasing is paused or the circuit is open; the probe of a circuit is cut exactly.
        ``fan_out`` passes by what is in ``leave_out``.

        Raises UnknownTopicOrPartition, GroupIdNotFound, FencedStateEpoch, UnknownTopicId, InvalidRequest.
        """
        call = "acquire", member_id, request_id
        repeated = self._results(at).get(call)
        if isinstance(repeated, Acquired):
            return repeated
        if not member_id or len(member_id) > 36 or max_records < 0:
            raise InvalidRequest("an acquire names a member of 1 to 36 characters and 0 or more records")
        if batch_size is not None and batch_size < 1:
            raise InvalidRequest("the batch size must be at least 1")
        found = self._find(at, state_epoch)
        if found.recreated:
            raise UnknownTopicId
        least, longest = self._groups[at.group_id].lock_bounds_ms()
        if lock_duration_ms is not None and not least <= lock_duration_ms <= longest:
            raise InvalidRequest(f"a lock lasts {least} to {longest} ms, not {lock_duration_ms}")
        self._settle(found)
        policy = self._policy(at)
        if self.paused_by_hand(at) is None:
            order.forget_keys(found, policy, self._seconds)
        if log_start is not None and log_start > found.next_fetch_offset(self._seconds):
            with order.held_again(found, self._seconds):
                found.advance_log_start(log_start)
        most, probe = found.allowed(max_records, policy, self._seconds)
        if most == 0 or self.paused_by_hand(at) is not None:
            return Acquired((), None, 0, found.state_epoch)
        end = found.log_end
        if policy.read_committed and found.last_stable_offset is not None:
            end = min(end, found.last_stable_offset)
            log_batches = None if log_batches is None else [b for b in log_batches if b.last < end]
        if policy.order:  # as a batch run's, which says nothing of the log
            log_batches, aborted = None, EMPTY
        fetch = Fetch(
            member_id,
            most,
            "record_limit" if probe else mode,
            batch_size or max(1, most),
            log_batches,
            end,
            aborted,
            redelivery,
            self._seconds,
            leave_out,
        )
        lock_seconds = None if lock_duration_ms is None else lock_duration_ms / 1000
        lock = policy.lock_seconds if lock_seconds is None else lock_seconds
        kind = order.acquisition_of(policy, redelivery)
        again = True
        while again:
            self._leases += 1
            lease = HeldLease(
                self._leases,
                UUID(int=self._leases),
                member_id,
                "fan_out" if policy.order else redelivery,
                lock_seconds,
                READ_COMMITTED if policy.read_committed else READ_UNCOMMITTED,
                found.next_lease(),
            )
            found.leases[lease.lease_id] = lease
            acquisition = kind(found, fetch, policy, lease, self._seconds + lock)
            was_due = found.advance_due
            acquisition.run()
            if probe and found.circuit is not None:
                found.circuit.probes(found.held(member_id, lease.token))
            found.forget_ended_leases()
            # Nothing was found: an acknowledgement that would let SPSO pass what is finished may never come.
            again = not acquisition.ranges and found.advance_if_due() and was_due
        result = self._result(found, acquisition, lock)
        if request_id and result.ranges:  # a repeated call that got nothing may get something
            self._results(at)[call] = result
        return result

    def _result(self, found: InMemorySharePartition, acquisition: Acquisition, lock: float) -> Acquired:
        ranges, held = tuple(acquisition.ranges), acquisition.lease
        if not ranges:
            return Acquired((), None, acquisition.counted, found.state_epoch)
        lease = Lease(
            lease_id=held.lease_id,
            share_partition=found.name,
            state_epoch=found.state_epoch,
            member_id=held.member_id,
            member_epoch=None,
            token=held.token,
            expires_at=self.now() + timedelta(seconds=lock),
            lock_duration_ms=round(lock * 1000),
            deliveries=_deliveries(ranges),
            isolation_level=held.isolation_level,
        )
        return Acquired(ranges, lease, acquisition.counted, found.state_epoch)

    def acknowledge(
        self,
        at: SharePartition,
        member_id: str,
        batches: Sequence[AcknowledgementBatch],
        *,
        state_epoch: int | None = None,
        lease: Lease | None = None,
        renew_allowed: bool = True,
        not_before: datetime | None = None,
        request_id: UUID | None = None,
        holds: OffsetSet = EMPTY,
        keys: Mapping[UUID | None, OffsetSet] | None = None,
        kept: OffsetSet | None = None,
    ) -> Acknowledged:
        """Acknowledge records, all or none of them, but for locks renewed before the run that failed (R-AK).

        What is released is not delivered again ``not_before`` that time, rounded up to seconds. In an ordered group
        ``holds`` are records behind an open one of their key, ``keys`` those of all that is not accepted.
        ``kept`` are released records whose raw bytes the lease keeps; it must hold all that is acknowledged then.
        With ``lease`` only what is held under it may be acknowledged, and its state epoch must be the present one.
        Raises InvalidRecordState, InvalidRequest, FencedStateEpoch, UnknownTopicOrPartition, GroupIdNotFound.
        """
        call = "acknowledge", member_id, request_id
        repeated = self._results(at).get(call)
        if isinstance(repeated, Acknowledged):
            return repeated
        validate(batches, renew_allowed=renew_allowed)
        found = self._find(at, lease.state_epoch if lease else state_epoch)
        if kept is not None:
            keeping.validate(batches, kept)
        self._settle(found)
        token = lease.token if lease else None
        wait = None if not_before is None else whole_second((not_before - self._start).total_seconds())
        policy, now = self._policy(at), self._seconds
        result = Acknowledgement(found, member_id, policy, now, token, wait).apply(batches, holds, keys, kept)
        if request_id:
            self._results(at)[call] = result
        return result

    def renew(self, at: SharePartition, member_id: str, lease: Lease | None = None) -> datetime:
        """A full lock duration from now for all that a member holds, or for one lease (R-RN).

        Return when the locks lapse now. Raises InvalidRecordState when nothing is held, or the group forbids it.
        """
        found = self._find(at, lease.state_epoch if lease else None)
        policy = self._policy(at)
        if not policy.renewal:
            raise InvalidRecordState("Renewing acquisition locks is not enabled for the group.")
        self._settle(found)
        lapses = found.renew(member_id, policy, self._seconds, lease.token if lease else None)
        if lapses is None:
            raise InvalidRecordState
        return self.at_second(lapses)

    # Deliveries without an acknowledgement

    def release_member(
        self,
        group_id: str,
        member_id: str,
        share_partitions: Sequence[SharePartition] | None = None,
        *,
        cancelled: bool = False,
        refund: bool = False,
    ) -> int:
        """A member's session ended: what it holds goes back unanswered, counts kept (R-RL-6).

        ``share_partitions`` are those in its session; what it holds of others waits for its locks (R-RL-7).
        ``cancelled`` says that a person or the scheduler stopped the run: its records are no suspects, and have their
        delivery back where ``sharequeue.cancelled.run.refund.enable`` is on; ``refund`` gives it back anyhow.
        Return how many records that was.
        """
        group = self._group(group_id)
        policy = group.policy()
        released = 0
        for found in group.partitions.values():
            self._settle(found)
            if share_partitions is not None and found.name not in share_partitions:
                continue
            with order.held_again(found, self._seconds):
                released += found.release(
                    member_id, policy, self._seconds, cancelled=cancelled, refund=refund
                )
        return released

    def release_lease(self, lease: Lease, *, cancelled: bool = False, refund: bool = False) -> int:
        """What one lease still holds goes back unanswered (see :meth:`release_member`). Return how many records
        that was."""
        if lease.share_partition not in self.share_partitions(lease.share_partition.group_id):
            return 0
        found = self._find(lease.share_partition)
        self._settle(found)
        policy, now = self._policy(found.name), self._seconds
        with order.held_again(found, now):
            return found.release(
                lease.member_id, policy, now, lease.token, cancelled=cancelled, refund=refund
            )

    def sweep(self) -> Swept:
        """Settle every lapsed lock of every group (R-LT), and let SPSO pass what is finished."""
        leases = records = 0
        for group in self._groups.values():
            more = self._settle_group(group)
            leases, records = leases + more.leases, records + more.records
            for found in group.partitions.values():
                found.advance_if_due()
        return Swept(leases, records)

    # Dead letters

    def open_dead_letters(self, at: SharePartition, max_records: int = 1000) -> DeadLetterBatch | None:
        """The dead letters to write next, under their number; None when none waits (R-DL)."""
        self._settle(self._find(at))
        return self._groups[at.group_id].dead_letters[at.topic, at.partition].open_batch(max_records)

    def close_dead_letters(
        self,
        at: SharePartition,
        sequence: int,
        gaps: OffsetSet = EMPTY,
        keys: Mapping[UUID | None, OffsetSet] | None = None,
        *,
        dropped: bool = False,
    ) -> int:
        """The batch of that number was written: its records are ARCHIVED. ``gaps`` held no record (R-DL); ``keys``
        are those of its records, for letters that hold them. ``dropped`` ones were not written, and hold nothing."""
        self._settle(self._find(at))
        policy = self._policy(at).order
        letters = self._groups[at.group_id].dead_letters[at.topic, at.partition]
        holds = policy is not None and policy.letters_hold and not dropped
        return letters.close_batch(
            sequence, gaps, letters_hold=holds, keys=keys if policy else None, now=self._seconds
        )

    # Order by key

    def blocked_keys(self, at: SharePartition, lease: Lease) -> dict[UUID, tuple[int, float | None]] | None:
        """The keys of which a lease must hold records, from which offset on and until when; None if the group is not
        ordered."""
        if self._policy(at).order is None or at not in self.share_partitions(at.group_id):
            return None
        return order.blocked_keys(self._find(at), lease.token)

    def let_keys_go(self, at: SharePartition, batches: Mapping[int, OffsetSet]) -> tuple[int, int]:
        """Dead letters, by the numbers of their batches, were redriven or discarded: they hold their keys no longer.
        Return how many keys and how many held records go on."""
        found = self._find(at)
        letters = {
            offset
            for offset, letter in found.letters.items()
            if offset in batches.get(letter.sequence, EMPTY)
        }
        return order.let_go(found, letters, self._seconds)

    # Looking

    def describe(self, at: SharePartition) -> Description:
        """One share-partition, offset by offset, with its figures (R-EP). Lapsed locks are not settled by it."""
        return self._find(at).describe(self._seconds)

    def share_partition(self, at: SharePartition) -> InMemorySharePartition:
        """The share-partition itself, entry by entry: to look at, not to change."""
        return self._find(at)

    def share_partitions(self, group_id: str) -> list[SharePartition]:
        """The initialised share-partitions of a group, in order."""
        group = self._groups.get(group_id)
        return sorted(found.name for found in group.partitions.values()) if group else []

    def verify(self) -> list[str]:
        """The invariants that do not hold, in words; empty when all do."""
        return [
            f"{group.group_id} {found.name}: {violation}"
            for group in self._groups.values()
            for found in group.partitions.values()
            for violation in found.verify()
        ]


def _deliveries(ranges: Sequence[AcquiredRange]) -> tuple[Delivery, ...]:
    """The ranges as a lease tells them: one set of offsets for each delivery count."""
    by_count: dict[int, OffsetSet] = {}
    for acquired in ranges:
        held = OffsetSet.of((acquired.first, acquired.last + 1))
        by_count[acquired.delivery_count] = by_count.get(acquired.delivery_count, EMPTY) | held
    return tuple(Delivery(count, offsets) for count, offsets in sorted(by_count.items()))
