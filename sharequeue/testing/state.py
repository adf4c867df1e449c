"""How does code that was written for ``sharequeue.state.State`` run without a database?

The same methods, over share groups in memory, with a clock that a test moves: hand one in where a pipeline or
a dead-letter writer expects a ``State``. Batch members' redelivery, as there: ``fan_out``. The rules are in the
other modules; this one turns their answers into the values of ``sharequeue.values``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from sharequeue.errors import InvalidRecordState, InvalidRequest
from sharequeue.offsets import EMPTY, OffsetSet
from sharequeue.testing.groups import InMemoryShareGroups
from sharequeue.testing.records import RecordState
from sharequeue.testing.share_partition import InMemorySharePartition
from sharequeue.values import (
    Acknowledged,
    AcknowledgementBatch,
    AcknowledgeType,
    ArchivedRun,
    Attempt,
    DeadLetterBatch,
    DeliveryCount,
    ForcedRun,
    HeldDeadLetters,
    Lease,
    LeaseOutput,
    LeaseRow,
    OutputRow,
    SharePartition,
    SharePartitionStatus,
    Swept,
)


class InMemoryState:
    """The operations of ``State`` in memory. ``groups`` has the clock, the configurations, and all the rest."""

    def __init__(self, groups: InMemoryShareGroups | None = None) -> None:
        self.groups = groups or InMemoryShareGroups()
        self._outputs: list[tuple[str, str, OutputRow]] = []
        self._written: list[ArchivedRun] = []
        self._observed: dict[SharePartition, datetime] = {}
        self._held: dict[SharePartition, tuple[str, datetime]] = {}

    def now(self) -> datetime:
        """The time by which locks lapse."""
        return self.groups.now()

    def initialize(self, at: SharePartition, topic_id: str, start_offset: int, state_epoch: int) -> bool:
        """Gives a share-partition its start offset; answers whether it was new."""
        return self.groups.initialize(at, topic_id, start_offset, state_epoch)

    def observe(
        self, at: SharePartition, topic_id: str, log_start: int, log_end: int, last_stable_offset: int
    ) -> str | None:
        """Records what the broker said of the log; answers the status, None when it is not initialised."""
        if at not in self.groups.share_partitions(at.group_id):
            return None
        self.groups.observe(at, topic_id, log_start, log_end, last_stable_offset)
        self._observed[at] = self.now()
        return _status(self.groups.share_partition(at))

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
        """Leases up to ``max_records`` records, none of ``leave_out``; None when there is nothing to lease."""
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
        """Answers records of a lease, all or nothing; the outputs named count from then on, one for each sink, if
        all that is answered is held under the lease. What is released is delivered again ``not_before`` that time."""
        if AcknowledgeType.RENEW in outcomes:
            raise ValueError("acknowledge() answers records; to keep a lock, call renew()")
        runs = sorted(
            (first, last, kind) for kind, offsets in outcomes.items() for first, last in offsets.runs()
        )
        at = lease.share_partition
        repeated = self.groups.answered(at, lease.member_id, request_id)
        if outputs and not repeated:
            self._check_outputs(lease, OffsetSet.union(outcomes.values()), [made.sink for made in outputs])
        try:
            answer = self.groups.acknowledge(
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
                    lease.lease_id, at.topic, at.partition, made.location, made.records, self.now()
                )
                self._outputs.append((at.group_id, made.sink, row))
        return answer

    def _check_outputs(self, lease: Lease, answered: OffsetSet, sinks: Sequence[str]) -> None:
        held = self.groups.held(lease)
        if not held or answered - held:
            raise InvalidRecordState(
                "an output needs a lease that is held, and every offset answered with it held under that lease: its "
                "lock lapsed, it was answered already, or another member holds it"
            )
        counted = {sink for _, sink, row in self._outputs if row.lease_id == lease.lease_id}
        for sink in sinks:
            if sink in counted or sinks.count(sink) > 1:
                raise InvalidRequest(f"sink {sink} has one output of lease {lease.lease_id} at most")

    def renew(self, lease: Lease) -> datetime:
        """A full lock duration from now for what the lease still holds; answers the new expiry."""
        return self.groups.renew(lease.share_partition, lease.member_id, lease)

    def release(self, group_id: str, member_id: str, *, cancelled: bool = False, refund: bool = False) -> int:
        """Gives back, unanswered, everything a member holds in a group; answers how many records that was."""
        return self.groups.release_member(group_id, member_id, cancelled=cancelled, refund=refund)

    def release_lease(self, lease: Lease, *, cancelled: bool = False, refund: bool = False) -> int:
        """Gives back, unanswered, what a lease still holds."""
        return self.groups.release_lease(lease, cancelled=cancelled, refund=refund)

    def pause(
        self, group_id: str, reason: str | None, topic: str | None = None, partition: int | None = None
    ) -> int:
        """Stops leasing from a group or from some of its share-partitions; None resumes."""
        return self.groups.pause(group_id, reason, topic, partition)

    def force_release(
        self, at: SharePartition, offsets: OffsetSet, *, execute: bool = False
    ) -> list[ForcedRun]:
        """Makes chosen offsets available at once, whoever holds them or whatever they wait for."""
        return self.groups.force_release(at, offsets, execute=execute)

    def force_dead_letter(
        self, at: SharePartition, offsets: OffsetSet, *, execute: bool = False
    ) -> list[ForcedRun]:
        """Sends chosen offsets to the dead-letter topic as rejected, whoever holds them."""
        return self.groups.force_dead_letter(at, offsets, execute=execute)

    def extend_locks(self, amount: timedelta) -> int:
        """Makes every lock there is last so much longer; answers how many leases that were."""
        return self.groups.extend_locks(amount)

    def raise_state_epochs(self) -> int:
        """Fences every holder, and makes what was leased available; answers how many share-partitions."""
        return self.groups.raise_state_epochs()

    def sweep(self, limit: int = 1000) -> Swept:
        """Settles the locks that have lapsed; in memory all of them, whatever the limit."""
        return self.groups.sweep()

    def open_dead_letters(self, at: SharePartition, max_records: int) -> DeadLetterBatch | None:
        """The batch of dead letters to write next; None when none waits."""
        return self.groups.open_dead_letters(at, max_records)

    def close_dead_letters(self, at: SharePartition, sequence: int, *, dropped: bool = False) -> int:
        """ARCHIVING becomes ARCHIVED for the open batch of that number; answers its records, else 0."""
        batch = self.groups.open_dead_letters(at, 0)
        closed = self.groups.close_dead_letters(at, sequence)
        if closed:
            self._held.pop(at, None)
        if closed and batch is not None:
            self._written += [
                ArchivedRun(at, sequence, run.cause, run.delivery_count, run.offsets, self.now(), dropped)
                for run in batch.letters
            ]
        return closed

    def dead_letters(self, group_id: str) -> list[ArchivedRun]:
        """Every closed run of dead letters of a group, in the order of writing."""
        return [run for run in self._written if run.share_partition.group_id == group_id]

    def dead_letter_attempts(self, at: SharePartition, sequence: int) -> list[Attempt]:
        """The deliveries that the records of a batch went through in vain, oldest first."""
        batch = self.groups.open_dead_letters(at, 0)
        written = [
            run.offsets for run in self._written if (run.share_partition, run.sequence) == (at, sequence)
        ]
        if batch is not None and batch.sequence == sequence:
            written += [run.offsets for run in batch.letters]
        letters = {offset for offsets in written for offset in offsets.iter_offsets()}
        return [
            Attempt(
                lease.lease_id,
                lease.member_id,
                "",
                self.groups.at_second(lease.acquired_at),
                OffsetSet.of(*((offset, offset + 1) for offset in sorted(offsets & letters))),
                self._exceptions(lease.lease_id),
            )
            for lease, offsets in self.groups.share_partition(at).failed_attempts.values()
            if offsets & letters
        ]

    def _exceptions(self, lease_id: int) -> str | None:
        found = (row for _, sink, row in self._outputs if sink.endswith("-exceptions") and row.records)
        return next((row.location for row in found if row.lease_id == lease_id), None)

    def topics_redriven_for_others(self, group_id: str) -> set[str]:
        """Return nothing: there is no broker here to put records back into."""
        return set()

    def hold_dead_letters(self, at: SharePartition, reason: str | None) -> None:
        """Says why what waits cannot be written; None takes it back, as closing a batch does."""
        if reason is None:
            self._held.pop(at, None)
        else:
            self._held[at] = (reason, self._held[at][1] if at in self._held else self.now())

    def service_drains(self) -> bool:
        """Return False: whoever uses this state writes its dead letters."""
        return False

    def held_dead_letters(self, group_id: str | None = None) -> list[HeldDeadLetters]:
        """What no drain could write, of a group or of all."""
        waiting = {
            SharePartition(s.group_id, s.topic, s.partition): s.archiving for s in self.describe(group_id)
        }
        return [
            HeldDeadLetters(at, waiting[at], *self._held[at])
            for at in sorted(self._held, key=lambda at: (at.group_id, at.topic, at.partition))
            if waiting.get(at)
        ]

    def outputs(self, group_id: str, sink: str) -> list[OutputRow]:
        """The outputs of a sink that count."""
        found = [row for group, name, row in self._outputs if (group, name) == (group_id, sink)]
        return sorted(found, key=lambda row: row.lease_id)

    def describe(self, group_id: str | None = None) -> list[SharePartitionStatus]:
        """The figures of every share-partition of a group, or of all groups."""
        names = [group_id] if group_id is not None else self.groups.group_ids()
        return [self._status(at) for name in names for at in self.groups.share_partitions(name)]

    def _status(self, at: SharePartition) -> SharePartitionStatus:
        found, view = self.groups.share_partition(at), self.groups.describe(at)
        states = [seen.state for seen in (*view.offsets.values(), *view.overtaken.values())]
        counts = [seen.delivery_count for seen in view.offsets.values()]
        ended: Counter[str] = Counter()
        for (outcome, _), records in found.outcomes.items():
            ended[outcome] += records
        dropped = [run for run in self._written if run.share_partition == at and run.dropped]
        available = [r for r in found.records.values() if r.state is RecordState.AVAILABLE]
        waits = [self.groups.at_second(r.not_before) for r in available if r.not_before is not None]
        expiries = [record.expires_at for record in found.records.values() if record.expires_at is not None]
        return SharePartitionStatus(
            group_id=at.group_id,
            topic=at.topic,
            partition=at.partition,
            topic_id=found.topic_id,
            status=_status(found),
            state_epoch=view.state_epoch,
            spso=view.spso,
            speo=view.speo,
            log_start=found.log_start,
            log_end=found.log_end,
            last_stable_offset=found.log_end
            if found.last_stable_offset is None
            else found.last_stable_offset,
            observed_at=self._observed.get(at),
            lag=view.lag,
            in_flight=view.in_flight,
            available=states.count(RecordState.AVAILABLE),
            acquired=states.count(RecordState.ACQUIRED),
            archiving=states.count(RecordState.ARCHIVING),
            delivery_complete_count=view.delivery_complete_count,
            lost_records=view.lost_records,
            highest_delivery_count=max(counts, default=0),
            leases=len({lease.token for lease in found.leases.values()}),
            next_expiry=self.groups.at_second(min(expiries)) if expiries else None,
            waiting=view.waiting,
            waiting_until=min((until for until in waits if until > self.now()), default=None),
            paused_reason=view.paused_reason,
            accepted=ended["accepted"],
            rejected=ended["rejected"],
            exhausted=ended["exceeded"],
            gap=ended["gap"],
            no_dlq=ended["rejected"] + ended["exceeded"] - found.closed_letters,
            dropped_letters=sum(run.offsets.count for run in dropped),
            held_reason=f"dead letters are held: {self._held[at][0]}" if at in self._held else None,
        )

    def leases(self, group_id: str) -> list[LeaseRow]:
        """Who holds what in a group, soonest to lapse first."""
        rows = []
        for at in self.groups.share_partitions(group_id):
            found = self.groups.share_partition(at)
            for lease in found.leases.values():
                held = [r.expires_at for r in found.records.values() if r.lease_id == lease.lease_id]
                expires_at = self.groups.at_second(min(moment for moment in held if moment is not None))
                rows.append(
                    LeaseRow(
                        lease_id=lease.lease_id,
                        topic=at.topic,
                        partition=at.partition,
                        member_id=lease.member_id,
                        records=len(held),
                        acquired_at=self.groups.at_second(lease.acquired_at),
                        expires_at=expires_at,
                        seconds_left=(expires_at - self.now()) / timedelta(seconds=1),
                    )
                )
        return sorted(rows, key=lambda row: (row.expires_at, row.lease_id))

    def delivery_counts(self, group_id: str) -> list[DeliveryCount]:
        """The histogram of delivery counts over all records of a group that have ended, by outcome."""
        return [
            DeliveryCount(at.topic, at.partition, outcome, count, records)
            for at in self.groups.share_partitions(group_id)
            for (outcome, count), records in sorted(self.groups.share_partition(at).outcomes.items())
        ]

    def verify(self, group_id: str | None = None) -> list[str]:
        """The invariants of the state that do not hold, in words; empty when all do."""
        return [v for v in self.groups.verify() if group_id is None or v.startswith(f"{group_id} ")]


def _status(found: InMemorySharePartition) -> str:
    return "topic_recreated" if found.recreated else "active"
