"""Leases and the other values of share-partition state.

Frozen values only: the arguments and results of operations, and the figures of reports. Each mirrors a
term of KIP-932 (share-partition, acquisition lock, delivery count), KIP-1191 (dead letters) or KIP-1226
(lag). The operations on them are in ``sharequeue.state``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from uuid import UUID

from sharequeue.domain.errors import ShareError
from sharequeue.domain.offsets import EMPTY, OffsetSet

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
    """One partition of a topic in one share group."""

    group_id: str
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class LogSeen:
    """The offsets of one log as the broker returned them; both ends are exclusive."""

    share_partition: SharePartition
    topic_id: str
    log_start: int
    log_end: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """Offsets of a lease with the same delivery count, this delivery included."""

    delivery_count: int
    offsets: OffsetSet


@dataclass(frozen=True, slots=True)
class Lease:
    """The records of one share-partition that a member holds under one acquisition lock.

    ``token`` and ``state_epoch`` fence it: calls of a late holder change nothing. ``expires_at`` is by the
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
    """The isolation level for reading its records: the group's at the time of the acquire."""
    suspects: bool = False
    """Whether the last delivery of these records ended without an acknowledgement: one of them may have crashed its
    worker. Known only for leases from ``State.acquire``."""
    last_attempt: bool = False
    """Whether this is one suspect's last delivery: if it ends without an acknowledgement, the record is archived."""
    ordered: bool = False
    """Whether the group was ordered by key when it was leased: its holder asks ``State.blocked_keys``. Known only for
    leases from ``State.acquire``."""

    @property
    def offsets(self) -> OffsetSet:
        """All offsets that were leased, whatever their delivery count."""
        held = EMPTY
        for delivery in self.deliveries:
            held |= delivery.offsets
        return held


@dataclass(frozen=True, slots=True)
class LeaseOutput:
    """An output made from a lease: it counts from the commit of the lease's acknowledgement on."""

    sink: str
    location: str
    records: int


@dataclass(frozen=True, slots=True)
class KeptRecords:
    """Raw records of a lease that its acknowledgement releases, kept in files for their next delivery."""

    location: str
    offsets: OffsetSet

    def within(self, offsets: OffsetSet) -> KeptRecords | None:
        """Return those of these offsets; None without any."""
        some = self.offsets & offsets
        return KeptRecords(self.location, some) if some else None


@dataclass(frozen=True, slots=True)
class KeptRow:
    """Where a lease has kept raw records."""

    lease_id: int
    """The lease that has kept them."""
    location: str
    offsets: OffsetSet


@dataclass(frozen=True, slots=True)
class StateIdentity:
    """Which state this is: outputs carry it, so that a state knows its own."""

    state_id: UUID
    """In the names of new outputs. An adoption draws a new one."""
    origin_id: UUID
    """The same before and after an adoption."""
    bound_at: datetime
    """When the state was bound to its database, or adopted there."""
    former: Mapping[UUID, int] = field(default_factory=dict)
    """The ids before an adoption, each with the last lease id that was the state's own."""

    def has(self, state_id: UUID, last_lease_id: int) -> bool:
        """Return whether this state has allotted a lease id under a state id."""
        return state_id == self.state_id or last_lease_id <= self.former.get(state_id, -1)


@dataclass(frozen=True, slots=True)
class StatePlace:
    """The database to which a state is bound, and the one in which it is, in words."""

    bound_to: str | None
    """None before the first use."""
    bound_at: datetime | None
    here: str
    is_copy: bool
    """Whether it is bound to another database, and owns something outside: then nothing begins here."""


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
    """The topic's id: a topic that is deleted and created again has the same name and the same offsets."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """Outputs that are moved together from files into a target with transactions of its own."""

    number: int
    """Increases with each transfer of a sink; the target accepts each number once."""
    sources: Mapping[str, tuple[str, int]]
    """The topic and partition of the records of each location, in the order of the leases."""
    records: int
    busy: bool
    """Whether another process has claimed it."""


@dataclass(frozen=True, slots=True)
class WaitingResults:
    """Accepted rows that are not in the table or topic of their sink yet; the view ``waiting_results``."""

    group_id: str
    sink: str
    rows: int
    oldest_at: datetime
    """When the first of them were acknowledged."""
    number: int | None
    """The number of the transfer that was begun for some of them."""
    held_reason: str | None
    """Why the last attempt at it could not be finished, and what to do."""
    held_since: datetime | None


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The result of an acknowledgement, in records; ``exhausted`` are releases after the last delivery."""

    spso: int
    lag: int
    accepted: int
    released: int
    rejected: int
    gaps: int
    exhausted: int


@dataclass(frozen=True, slots=True)
class AcknowledgementBatch:
    """One range of an acknowledgement, with one type for all offsets or one type for each (R-AK-4)."""

    first: int
    last: int
    types: tuple[int, ...]

    @classmethod
    def of(cls, first: int, last: int, *types: AcknowledgeType | int) -> AcknowledgementBatch:
        """Return the batch from ``first`` to ``last``, both inclusive."""
        return cls(first, last, tuple(int(kind) for kind in types))


@dataclass(frozen=True, slots=True)
class DeletedTopic:
    """The state of a group for a topic that has been gone from the broker since ``gone_since``."""

    topic: str
    topic_id: str
    gone_since: datetime
    group_id: str
    share_partitions: int


@dataclass(frozen=True, slots=True)
class ForcedRun:
    """The result, or planned result, of a manual change to offsets in one state and of one holder.

    ``act`` is release, dead_letter, archive, none or refuse, the latter two with the reason. ``state`` is
    Kafka's number of the state before, ``member_id`` the holder; None if they were not in flight.
    """

    act: str
    offsets: OffsetSet
    state: int | None
    delivery_count: int | None
    member_id: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class ResetRow:
    """The result, or planned result, of a reset of one share-partition; ``error`` is the reason for a refusal.

    ``before`` is None if it was not initialised, ``state_epoch`` None in a dry run.
    """

    topic: str
    partition: int
    before: int | None
    start_offset: int
    state_epoch: int | None
    error: ShareError | None = None


@dataclass(frozen=True, slots=True)
class Swept:
    """Expired locks that were released. `stuck` are groups whose locks could not be released, with the reason."""

    leases: int
    records: int
    stuck: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeadLetterRun:
    """Offsets that became dead letters for the same cause ('rejected' or 'exhausted') after the same number of
    deliveries."""

    delivery_count: int
    cause: str
    offsets: OffsetSet


@dataclass(frozen=True, slots=True)
class DeadLetterBatch:
    """Dead letters to be written in one Kafka transaction, under a number that is stored before any is
    produced."""

    share_partition: SharePartition
    sequence: int
    topic_id: str
    letters: tuple[DeadLetterRun, ...]
    opened_at: datetime | None = None
    attempts: tuple[Attempt, ...] = ()
    """The deliveries of its records that failed, oldest first."""
    is_new: bool = False
    """Whether it was opened just now, so that none of its letters can be written yet."""

    @property
    def count(self) -> int:
        """The number of dead letters in the batch."""
        return sum(run.offsets.count for run in self.letters)

    @property
    def offsets(self) -> OffsetSet:
        """The offsets of its records."""
        return OffsetSet.union(run.offsets for run in self.letters)

    @property
    def identity(self) -> str:
        """A text that is the same for every attempt at this batch and for no other batch.

        The sequence number alone is not enough: it starts again at 1 when a group is deleted and created again, while
        the broker still has the marker and the letters of the former group. The content of the batch and the time of
        its opening, to the microsecond, distinguish them.
        """
        at = self.share_partition
        parts = [at.group_id, at.topic, at.partition, self.topic_id, self.sequence, self.opened_at]
        for run in self.letters:
            parts += [run.cause, run.delivery_count, str(run.offsets)]
        return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Attempt:
    """A failed delivery: its holder, its time, and the location of the handler's errors."""

    lease_id: int
    member_id: str
    client_id: str
    """Empty if the member had left before its records were released."""
    acquired_at: datetime
    offsets: OffsetSet
    exceptions: str | None
    """A folder of Parquet files; None if the attempt was not acknowledged, or its client writes none."""
    reason: str | None = None
    """Why it ended without an acknowledgement, as ``Class: message``; None if it was acknowledged, or not known."""


@dataclass(frozen=True, slots=True)
class HeldDeadLetters:
    """Dead letters that the last writer could not write: their number, the reason, and since when."""

    share_partition: SharePartition
    records: int
    reason: str
    since: datetime


@dataclass(frozen=True, slots=True)
class ArchivedRun:
    """Dead letters whose batch is closed: written to the DLQ topic, or dropped if the group's config asks for
    that."""

    share_partition: SharePartition
    sequence: int
    cause: str
    delivery_count: int
    offsets: OffsetSet
    written_at: datetime
    dropped: bool


@dataclass(frozen=True, slots=True)
class OpenKey:
    """A key of a group that is ordered by key, with an open record; the view ``open_keys``."""

    topic: str
    partition: int
    key_hash: UUID
    first_offset: int
    """Its first open record: read it in the topic to see the key."""
    state: str | None
    """That of this record: available, waiting, leased, archiving, or dead_letter."""
    since: datetime
    until: datetime | None
    """Until when that record waits."""
    held_records: int
    """Records behind it."""


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """A lease: its holder, its records, its start, and the remaining time of its lock; the view ``held_leases``.

    ``client_id`` is None if the member is gone. ``stuck_reason`` is why the lease is stuck; None if it is not.
    """

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
    client_id: str | None = None
    held_seconds: float = 0.0
    stuck_reason: str | None = None


@dataclass(frozen=True, slots=True)
class DeliveryCount:
    """The number of records of a share-partition that ended as ``outcome`` after this many deliveries, ever."""

    topic: str
    partition: int
    outcome: str
    delivery_count: int
    records: int
