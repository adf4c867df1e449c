"""What is a lease, and what are the other values of share-partition state?

Frozen values only: what an operation takes and returns, and the figures that people ask for. Each mirrors a
term of KIP-932 (share-partition, acquisition lock, delivery count), KIP-1191 (dead letters) or KIP-1226
(lag). What may be done with them is in ``sharequeue.state``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum
from uuid import UUID

from sharequeue.errors import ShareError
from sharequeue.offsets import EMPTY, OffsetSet

READ_COMMITTED = "read_committed"
READ_UNCOMMITTED = "read_uncommitted"
"""Kafka's isolation levels."""


class AcknowledgeType(IntEnum):
    """Kafka's acknowledgement types by number (R-AK-4)."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


@dataclass(frozen=True, slots=True, order=True)
class SharePartition:
    """One partition of a topic, as one share group sees it."""

    group_id: str
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class LogSeen:
    """The offsets of one log as the broker returned them, the two ends exclusive."""

    share_partition: SharePartition
    topic_id: str
    log_start: int
    log_end: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """Offsets of a lease that were delivered equally often, this delivery included."""

    delivery_count: int
    offsets: OffsetSet


@dataclass(frozen=True, slots=True)
class Lease:
    """What a member holds of one share-partition under one acquisition lock.

    ``token`` and ``state_epoch`` fence it: a late holder changes nothing. ``expires_at`` is by the
    database's clock.
    """

    lease_id: int
    share_partition: SharePartition
    state_epoch: int
    member_id: str
    member_epoch: int | None
    token: UUID
    expires_at: datetime
    lock_duration_ms: int
    deliveries: tuple[Delivery, ...]
    isolation_level: str
    """At which its records are read, and at no other: the group's when it was acquired."""
    suspects: bool = False
    """Whether the last delivery of these records ended without an acknowledgement: one of them may have killed its
    worker. Known only of leases from ``State.many.acquire``."""
    last_attempt: bool = False
    """Whether it is one suspect's last delivery: if it ends without an acknowledgement, the record is given up."""

    @property
    def offsets(self) -> OffsetSet:
        """Everything that was leased, whatever its delivery count."""
        held = EMPTY
        for delivery in self.deliveries:
            held |= delivery.offsets
        return held


@dataclass(frozen=True, slots=True)
class LeaseOutput:
    """An output made from a lease: readers may count it once the lease's acknowledgement has committed."""

    sink: str
    location: str
    records: int


@dataclass(frozen=True, slots=True)
class OutputRow:
    """An output that counts."""

    lease_id: int
    topic: str
    partition: int
    location: str
    records: int
    acknowledged_at: datetime
    topic_id: str
    """Which life of the topic the records are of: one that is made again has the same name and the same offsets."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """Outputs that go on together from files into a table with transactions of its own."""

    number: int
    """Rises with each transfer of a sink; the table takes each number once."""
    locations: tuple[str, ...]
    records: int
    busy: bool
    """Whether another process has claimed it."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """What an acknowledgement did, in records; ``exhausted`` are releases after the last delivery."""

    spso: int
    lag: int
    accepted: int
    released: int
    rejected: int
    gaps: int
    exhausted: int


@dataclass(frozen=True, slots=True)
class AcknowledgementBatch:
    """One run of an acknowledgement: one type for the whole of it, or one for each offset (R-AK-4)."""

    first: int
    last: int
    types: tuple[int, ...]

    @classmethod
    def of(cls, first: int, last: int, *types: AcknowledgeType | int) -> AcknowledgementBatch:
        """A run from ``first`` to ``last``, both inclusive."""
        return cls(first, last, tuple(int(kind) for kind in types))

    def type_at(self, offset: int) -> AcknowledgeType:
        """The type that acknowledges one offset of the run."""
        return AcknowledgeType(self.types[offset - self.first] if len(self.types) > 1 else self.types[0])


@dataclass(frozen=True, slots=True)
class AcknowledgedAndAcquired:
    """What a call did that acknowledges one lease and takes the next.

    ``refusal`` is why the acknowledgements were refused, ``acquire_refusal`` why nothing could be leased; ``lease``
    is None also when there was nothing to lease. SPSO and lag are None where they were refused.
    """

    refusal: ShareError | None
    spso: int | None
    lag: int | None
    acquire_refusal: ShareError | None
    lease: Lease | None


@dataclass(frozen=True, slots=True)
class DeletedTopic:
    """What a group had of a topic that is gone from the broker since ``gone_since``."""

    topic: str
    topic_id: str
    gone_since: datetime
    group_id: str
    share_partitions: int


@dataclass(frozen=True, slots=True)
class ForcedRun:
    """What was done, or would be done, by hand to offsets in one state of one holder.

    ``act`` is release, dead_letter, archive, none or refuse, the latter two with the reason. ``state`` is
    Kafka's number of the state before, ``member_id`` who held them; None where they were not in flight.
    """

    act: str
    offsets: OffsetSet
    state: int | None
    delivery_count: int | None
    member_id: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class ResetRow:
    """What a reset did, or would do, to one share-partition; ``error`` is the reason why not.

    ``before`` is None where it was not initialised, ``state_epoch`` None in a dry run.
    """

    topic: str
    partition: int
    before: int | None
    start_offset: int
    state_epoch: int | None
    error: ShareError | None = None


@dataclass(frozen=True, slots=True)
class Swept:
    """Locks that had lapsed and were settled. `stuck` are groups with some that could not be, and why."""

    leases: int
    records: int
    stuck: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeadLetterRun:
    """Offsets that became dead letters for the same cause ('rejected' or 'exceeded') after as many
    deliveries."""

    delivery_count: int
    cause: str
    offsets: OffsetSet


@dataclass(frozen=True, slots=True)
class DeadLetterBatch:
    """Dead letters to be written in one Kafka transaction, under a number that is durable before any is
    produced."""

    share_partition: SharePartition
    sequence: int
    topic_id: str
    letters: tuple[DeadLetterRun, ...]
    opened_at: datetime | None = None

    @property
    def count(self) -> int:
        """How many dead letters the batch holds."""
        return sum(run.offsets.count for run in self.letters)


@dataclass(frozen=True, slots=True)
class Attempt:
    """A delivery that failed: who had these records since when, and where the handler's errors were written."""

    lease_id: int
    member_id: str
    client_id: str
    """Empty when the member was gone before its records came back."""
    acquired_at: datetime
    offsets: OffsetSet
    exceptions: str | None
    """A folder of Parquet files; None when the attempt was not acknowledged, or its client writes none."""


@dataclass(frozen=True, slots=True)
class HeldDeadLetters:
    """Dead letters that the last drain could not write: how many records wait now, why, and since when."""

    share_partition: SharePartition
    records: int
    reason: str
    since: datetime


@dataclass(frozen=True, slots=True)
class ArchivedRun:
    """Dead letters whose batch is closed: written to the DLQ topic, or dropped where the group's config asks for
    that."""

    share_partition: SharePartition
    sequence: int
    cause: str
    delivery_count: int
    offsets: OffsetSet
    written_at: datetime
    dropped: bool


@dataclass(frozen=True, slots=True)
class SharePartitionStatus:
    """Every figure of a share-partition (KIP-1226), in offsets and records, as of now.

    ``log_start``, ``log_end`` and ``last_stable_offset`` are what the broker returned at ``observed_at``. ``waiting``
    are those of the available ones that wait for their time, the first of them until ``waiting_until``; ``fault`` is
    the reason why lag is not that of the formula. ``oldest_offset`` is the lowest that is neither acknowledged nor
    archived, None where there is none; since when it is in its state is known while it is acquired, or archiving in
    an open batch. ``paused_reason`` is a person's word, or the circuit breaker's.

    ``accepted``, ``rejected``, ``exhausted`` and ``gap`` are all records that ever ended, each in one of them;
    ``lost_records`` are apart. Of the rejected and exhausted, ``no_dlq`` ended while no dead-letter topic was set,
    and ``dropped_letters`` were dropped because theirs could not be written; each other one is a dead letter.
    ``held_reason`` is why those that are ``archiving`` are not written, where something has to be done.

    Where there is lag and nothing can be leased, ``blocked_by`` is why, in one word, and ``blocked_reason`` in words;
    ``blocked_until`` is when that may change, if it is known, and ``blocked_offset`` the record that is in the way.
    """

    group_id: str
    topic: str
    partition: int
    topic_id: str
    status: str
    state_epoch: int
    spso: int
    speo: int
    log_start: int
    log_end: int
    last_stable_offset: int
    observed_at: datetime | None
    lag: int
    in_flight: int
    available: int
    acquired: int
    archiving: int
    delivery_complete_count: int
    lost_records: int
    highest_delivery_count: int
    leases: int
    next_expiry: datetime | None
    waiting: int = 0
    paused_reason: str | None = None
    fault: str | None = None
    oldest_offset: int | None = None
    oldest_state: str | None = None
    oldest_since: datetime | None = None
    accepted: int = 0
    rejected: int = 0
    exhausted: int = 0
    gap: int = 0
    no_dlq: int = 0
    dropped_letters: int = 0
    held_reason: str | None = None
    waiting_until: datetime | None = None
    blocked_by: str | None = None
    blocked_reason: str | None = None
    blocked_until: datetime | None = None
    blocked_offset: int | None = None

    @property
    def share_partition(self) -> SharePartition:
        """Its name."""
        return SharePartition(self.group_id, self.topic, self.partition)

    @property
    def remark(self) -> str | None:
        """What hinders it, for people; None where nothing does."""
        paused = None if self.paused_reason is None else f"paused: {self.paused_reason}"
        return "; ".join(filter(None, (self.fault, paused, self.held_reason, self.obstacle))) or None

    @property
    def obstacle(self) -> str | None:
        """Why nothing can be leased, where no count of records and no other remark has it."""
        if self.blocked_by not in ("window", "transaction", "truncated", "unknown"):
            return None
        until = (
            f", until {self.blocked_until.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
            if self.blocked_until
            else ""
        )
        return f"nothing can be leased: {self.blocked_reason}{until}"


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """Who holds what, since when, and for how long still."""

    lease_id: int
    topic: str
    partition: int
    member_id: str
    records: int
    acquired_at: datetime
    expires_at: datetime
    seconds_left: float
    offsets: OffsetSet = EMPTY
    highest_delivery_count: int | None = None
    isolation_level: str | None = None


@dataclass(frozen=True, slots=True)
class DeliveryCount:
    """How many records of a share-partition ended as ``outcome`` after so many deliveries, ever."""

    topic: str
    partition: int
    outcome: str
    delivery_count: int
    records: int
