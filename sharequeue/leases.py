"""What is a lease, and what are the other values that share-partition state is told in?

Frozen values only: what an operation takes and answers, and the figures that people ask for. Each mirrors a
term of KIP-932 (share-partition, acquisition lock, delivery count), KIP-1191 (dead letters) or KIP-1226
(lag). What may be done with them is in ``sharequeue.state``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from uuid import UUID

from sharequeue.offsets import EMPTY, OffsetSet


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
class Swept:
    """Locks that had lapsed and were settled."""

    leases: int
    records: int


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
class ArchivedRun:
    """Dead letters whose batch is closed: written to the DLQ topic, or dropped where the group says so."""

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

    ``log_start``, ``log_end`` and ``last_stable_offset`` are what the broker said at ``observed_at``.
    ``waiting`` are those of the available ones that wait for their time; ``fault`` says why lag is not what the
    formula gives.
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

    @property
    def share_partition(self) -> SharePartition:
        """Its name."""
        return SharePartition(self.group_id, self.topic, self.partition)


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


@dataclass(frozen=True, slots=True)
class DeliveryCount:
    """How many records of a share-partition ended as ``outcome`` after so many deliveries, ever."""

    topic: str
    partition: int
    outcome: str
    delivery_count: int
    records: int
