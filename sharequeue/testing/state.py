"""How does code that was written for ``sharequeue.state.State`` run without a database?

The same methods, over share groups in memory, with a clock that a test moves: hand one in where a pipeline or
a dead-letter writer expects a ``State``. Batch members' redelivery, as there: ``fan_out``. The rules are in the
other modules; this one turns what they return into the values of ``sharequeue.values``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

from sharequeue.errors import InvalidRecordState, InvalidRequest
from sharequeue.offsets import EMPTY, OffsetSet
from sharequeue.testing.groups import InMemoryShareGroups
from sharequeue.testing.state_parts import (
    InMemoryAdministration,
    InMemoryDeadLetters,
    InMemoryFigures,
    InMemoryOutputs,
    status_of,
)
from sharequeue.values import (
    Acknowledged,
    AcknowledgementBatch,
    AcknowledgeType,
    Lease,
    LeaseOutput,
    OutputRow,
    SharePartition,
    Swept,
)


class InMemoryState:
    """The operations of ``State`` in memory. ``groups`` has the clock, the configurations, and all the rest."""

    def __init__(self, groups: InMemoryShareGroups | None = None) -> None:
        self.groups = groups or InMemoryShareGroups()
        self.administration = InMemoryAdministration(self.groups)
        self.outputs = InMemoryOutputs(self.groups)
        self.dead_letters = InMemoryDeadLetters(self.groups, self.outputs)
        self.figures = InMemoryFigures(self.groups, self.dead_letters)

    def now(self) -> datetime:
        """The time by which locks lapse."""
        return self.groups.now()

    def initialize(self, at: SharePartition, topic_id: str, start_offset: int, state_epoch: int) -> bool:
        """Give a share-partition its start offset; return whether it was new."""
        return self.groups.initialize(at, topic_id, start_offset, state_epoch)

    def observe(
        self, at: SharePartition, topic_id: str, log_start: int, log_end: int, last_stable_offset: int
    ) -> str | None:
        """Record what the broker said of the log; return the status, None when it is not initialised."""
        if at not in self.groups.share_partitions(at.group_id):
            return None
        self.groups.observe(at, topic_id, log_start, log_end, last_stable_offset)
        self.figures.observed[at] = self.now()
        return status_of(self.groups.share_partition(at))

    def acquire(
        self,
        at: SharePartition,
        member_id: str,
        member_epoch: int | None,
        max_records: int,
        *,
        state_epoch: int | None = None,
        lock_duration_ms: int | None = None,
        request_id: UUID | None = None,
        leave_out: OffsetSet = EMPTY,
    ) -> Lease | None:
        """Lease up to ``max_records`` records, none of ``leave_out``; None when there is nothing to lease."""
        return self.groups.acquire(
            at,
            member_id,
            max_records,
            member_epoch=member_epoch,
            state_epoch=state_epoch,
            lock_duration_ms=lock_duration_ms,
            redelivery="fan_out",
            request_id=request_id,
            leave_out=leave_out,
        ).lease

    def acknowledge(
        self,
        lease: Lease,
        outcomes: Mapping[AcknowledgeType, OffsetSet],
        *,
        outputs: Sequence[LeaseOutput] = (),
        request_id: UUID | None = None,
        not_before: datetime | None = None,
    ) -> Acknowledged:
        """Acknowledge records of a lease, all or nothing; the outputs named count from then on, one for each sink, if
        every offset named is held under the lease. What is released is delivered again ``not_before`` that time."""
        if AcknowledgeType.RENEW in outcomes:
            raise ValueError("acknowledge() acknowledges records; to keep a lock, call renew()")
        runs = sorted(
            (first, last, kind) for kind, offsets in outcomes.items() for first, last in offsets.runs()
        )
        at = lease.share_partition
        repeated = self.groups.acknowledged_before(at, lease.member_id, request_id)
        if outputs and not repeated:
            self.outputs.check(lease, OffsetSet.union(outcomes.values()), outputs)
        try:
            result = self.groups.acknowledge(
                at,
                lease.member_id,
                [AcknowledgementBatch.of(first, last, kind) for first, last, kind in runs],
                lease=lease,
                not_before=not_before,
                request_id=request_id,
            )
        except InvalidRequest as error:  # sets cannot be malformed: something lies past what was acquired
            raise InvalidRecordState(error.message) from None
        if not repeated:
            for made in outputs:
                row = OutputRow(
                    lease.lease_id,
                    at.topic,
                    at.partition,
                    made.location,
                    made.records,
                    self.now(),
                    self.groups.share_partition(at).topic_id,
                )
                self.outputs.rows.append((at.group_id, made.sink, row))
        return result

    def renew(self, lease: Lease) -> datetime:
        """Renew the lock of what the lease still holds, for a full lock duration; return the new expiry."""
        return self.groups.renew(lease.share_partition, lease.member_id, lease)

    def release(self, group_id: str, member_id: str, *, cancelled: bool = False, refund: bool = False) -> int:
        """Give back everything that a member holds in a group; return how many records that was."""
        return self.groups.release_member(group_id, member_id, cancelled=cancelled, refund=refund)

    def release_lease(self, lease: Lease, *, cancelled: bool = False, refund: bool = False) -> int:
        """Give back what a lease still holds; return how many records."""
        return self.groups.release_lease(lease, cancelled=cancelled, refund=refund)

    def sweep(self, limit: int = 1000) -> Swept:
        """Settle the locks that have lapsed; in memory all of them, whatever the limit."""
        return self.groups.sweep()
