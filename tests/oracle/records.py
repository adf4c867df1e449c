"""What the in-memory model keeps of one offset, one batch and one lease.

Plain mutable entries, one per offset, because that is the slow and obvious way to hold a share-partition to
Kafka's rules; and the frozen values that go in and out of the engine. Mirrors Kafka's ``RecordState``,
``InFlightState`` and ``InFlightBatch``. What may happen to them is in the other modules.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal, NamedTuple
from uuid import UUID

from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.domain.values import Lease

AcquireMode = Literal["batch_optimized", "record_limit"]
"""Kafka's ``share.acquire.mode`` (KIP-1206): whole log batches, or exactly so many records."""

Redelivery = Literal["kafka", "fan_out"]
"""How records come again: Kafka's throttle (R-TH), or suspects in parts until each is alone."""


class RecordState(IntEnum):
    """Kafka's delivery states by number (R-ST-1)."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    ARCHIVED = 4

    @property
    def terminal(self) -> bool:
        """Whether nothing follows; ARCHIVING still waits for its dead letter, so it is not."""
        return self in (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)


@dataclass(frozen=True, slots=True)
class Reported:
    """What a worker has said of a record: the hash of its key, None for a record without a key; whether it was
    released; and how long the record waits by itself."""

    key_hash: UUID | None
    released: bool = False
    not_before: float | None = None


@dataclass(slots=True)
class Given:
    """One delivery of a record: its number, and the state that ended it; None while it lasts."""

    count: int
    ended_as: RecordState | None = None


@dataclass(slots=True)
class Record:
    """One offset between SPSO and SPEO.

    ``part`` is set on a suspect: how many may share its next lease. ``not_before`` is set on what was released with
    a time: before that second of the engine's clock it is AVAILABLE and not delivered; infinite for what is held
    behind another record of its key. ``locked_at`` is when its lock was taken or renewed. ``reported`` is None while
    nobody has said which key the record has. ``given`` has its deliveries so far.
    """

    state: RecordState = RecordState.AVAILABLE
    delivery_count: int = 0
    lease_id: int | None = None
    locked_at: float | None = None
    expires_at: float | None = None
    cause: str | None = None
    part: int | None = None
    not_before: float | None = None
    reported: Reported | None = None
    given: list[Given] = field(default_factory=list)

    def deliverable(self, now: float) -> bool:
        """Whether a fetch may get it now."""
        return self.state is RecordState.AVAILABLE and (self.not_before is None or self.not_before <= now)


@dataclass(slots=True)
class InFlightBatch:
    """Offsets that were first acquired together, both ends inclusive. Each has its own record, always: what
    Kafka keeps as one until it must tell offsets apart ("explodes") is a matter of memory, not of rules.
    """

    first: int
    last: int

    def offsets(self) -> range:
        """Every offset of the batch."""
        return range(self.first, self.last + 1)


@dataclass(slots=True)
class HeldLease:
    """One acquisition that has not ended: who holds it, and by which rule its records come again."""

    lease_id: int
    token: UUID
    member_id: str
    redelivery: Redelivery
    lock_seconds: float | None
    isolation_level: str
    number: int
    """In the order in which the leases of the share-partition began, those of a part that was renewed among them."""


@dataclass(slots=True)
class Kept:
    """Raw records that a lease has kept, and the level at which it read them."""

    number: int
    token: UUID
    isolation_level: str
    offsets: set[int]


@dataclass(frozen=True, slots=True)
class LogBatch:
    """One batch of the topic's log, first and last offset, both inclusive."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class AcquiredRange:
    """Consecutive offsets of one fetch that were delivered equally often, both ends inclusive."""

    first: int
    last: int
    delivery_count: int


@dataclass(frozen=True, slots=True)
class Acquired:
    """What an acquire got: the ranges as Kafka splits them, and the lease over them.

    ``lease`` is None when there was nothing to lease. ``counted`` is what the request's budget lost, records
    of aborted transactions included (R-AQ-16).
    """

    ranges: tuple[AcquiredRange, ...] = ()
    lease: Lease | None = None
    counted: int = 0
    state_epoch: int = 0

    @property
    def offsets(self) -> OffsetSet:
        """Everything acquired, whatever its delivery count."""
        held = EMPTY
        for acquired in self.ranges:
            held |= OffsetSet.of((acquired.first, acquired.last + 1))
        return held


@dataclass(frozen=True, slots=True)
class OffsetState:
    """The state of one offset as anyone may see it."""

    state: RecordState
    delivery_count: int
    member_id: str = ""
    suspect: bool = False


@dataclass(frozen=True, slots=True)
class Description:
    """One share-partition, offset by offset, with the figures of KIP-1226.

    ``offsets`` holds what lies between SPSO and SPEO; ``overtaken`` what is still held below SPSO because the
    log start moved past it (R-LS-4). ``waiting`` are the available ones that wait for their time, ``fault``
    says why lag is not what the formula gives.
    """

    spso: int
    speo: int
    state_epoch: int
    delivery_complete_count: int
    in_flight: int
    lag: int
    offsets: Mapping[int, OffsetState]
    overtaken: Mapping[int, OffsetState]
    next_fetch_offset: int
    lost_records: int
    fault: str | None = None
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class Fetch:
    """What one fetch of one share-partition carries (R-AQ)."""

    member_id: str
    max_records: int
    mode: AcquireMode
    batch_size: int
    log: Sequence[LogBatch] | None
    log_end: int
    aborted: OffsetSet
    redelivery: Redelivery
    now: float
    leave_out: OffsetSet = EMPTY


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """When the circuit breaker opens, and how it closes again (``sharequeue.circuit.breaker.…``)."""

    percent: int
    min_records: int
    window_records: int
    probe_records: int
    open_seconds: float


class LetterOfKey(NamedTuple):
    """A dead letter that holds its key, and the number of the batch that wrote it."""

    key: UUID
    sequence: int


@dataclass(frozen=True, slots=True)
class OrderPolicy:
    """Order by key: whether a dead letter holds its key, and from how many open keys on nothing fresh is leased."""

    letters_hold: bool
    max_open_keys: int


@dataclass(frozen=True, slots=True)
class Policy:
    """The group's configurations that the rules of a share-partition ask for, as they are now."""

    delivery_count_limit: int
    lock_seconds: float
    max_record_locks: int
    dead_letters: bool
    renewal: bool
    read_committed: bool
    refund_cancelled: bool
    breaker: BreakerPolicy | None
    order: OrderPolicy | None = None

    @property
    def throttle_threshold(self) -> int:
        """The delivery count from which a batch is throttled (R-TH-1)."""
        return max(2, -(-self.delivery_count_limit // 2))


def whole_second(seconds: float) -> float:
    """Rounded up to seconds, as times before which nothing is delivered are: different moments would fragment a
    batch."""
    return float(math.ceil(round(seconds, 6)))
