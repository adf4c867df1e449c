"""What does a consumer hold, under which lock, and what has been said of it?

One ``Holding`` for each lease: which of its records wait to be read, to be handed out, to be acknowledged. A lock
is relied on by this process's own clock, from before the lease was asked for: it ends here before it does in the
database.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from uuid import UUID, uuid4

from confluent_kafka import KafkaError, Message

from sharequeue.offsets import EMPTY, OffsetSet
from sharequeue.values import AcknowledgeType, Lease, SharePartition

NOT_YET = -1
"""Handed out, and not acknowledged yet."""
_NO_LATENCY, _NO_EPOCH = -1.0, -1
"""As the client has them. An old message format has no leader epoch."""


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def lock_clock() -> float:
    """Seconds by the clock of locks. They lapse while the machine sleeps, when ``time.monotonic`` stands still: so it
    is one that goes on, where there is one (Linux)."""
    return time.clock_gettime(_CLOCK)


@dataclass(slots=True)
class Taken:
    """What is to be acknowledged of one lease in one call."""

    outcomes: dict[AcknowledgeType, OffsetSet]
    delayed: dict[float, list[int]] = field(default_factory=dict)
    """Of the released offsets those that wait, by their seconds."""
    renewed: list[Message] = field(default_factory=list)
    """Records whose locks are renewed."""
    errors: dict[int, str] = field(default_factory=dict)

    def add(self, other: Taken) -> None:
        """What a later call says of the same lease, of other records."""
        for kind, offsets in other.outcomes.items():
            self.outcomes[kind] = self.outcomes.get(kind, EMPTY) | offsets
        for seconds, delayed in other.delayed.items():
            self.delayed.setdefault(seconds, []).extend(delayed)
        self.renewed += other.renewed
        self.errors |= other.errors


@dataclass(frozen=True, slots=True)
class Question:
    """May these be leased from? A reply may be lost; what it leased is known by the request's id."""

    part: Sequence[SharePartition]
    asked_at: float
    drops: int
    request_id: UUID = field(default_factory=uuid4)


@dataclass(slots=True, eq=False)
class Holding:
    """One lease of this consumer."""

    lease: Lease
    deadline: float
    """When its lock has lapsed, by ``lock_clock``."""
    unread: OffsetSet
    gaps: OffsetSet = EMPTY
    """Offsets without a record, to be acknowledged as gaps."""
    ready: list[Message] = field(default_factory=list)
    """Read, from ``next`` on not handed out yet."""
    next: int = 0
    seen: bool = False
    """Whether something of it was handed out."""
    waiting_bytes: int = 0
    """Of the keys and values that wait to be handed out, as if all were of one size. Not of what was renewed."""
    handed: dict[int, int] = field(default_factory=dict)
    """Handed out and not sent yet: offset to acknowledge type."""
    messages: list[Message] = field(default_factory=list)
    """What was handed out in explicit mode: a record whose lock is renewed is polled again."""
    delays: dict[int, float] = field(default_factory=dict)
    """Seconds that a released record waits before it is delivered again."""
    errors: dict[int, str] = field(default_factory=dict)
    """Why a record failed, for its dead letter."""
    renewed: bool = False
    """What waits here was polled before, and its lock was renewed."""
    split: bool = False
    """Whether some of it was renewed, and has a ``Holding`` of its own under the same lease."""
    errors_at: list[str] = field(default_factory=list)
    """The folder of errors, once an acknowledgement of the lease has named it. What is renewed shares it."""
    key: tuple[str, int] = field(init=False)
    """Topic and partition."""

    def __post_init__(self) -> None:
        self.key = self.lease.share_partition.topic, self.lease.share_partition.partition

    @classmethod
    def of(cls, lease: Lease, asked_at: float) -> Holding:
        """What a lease holds that was asked for at this time."""
        return cls(lease, asked_at + lease.lock_duration_ms / 1000, lease.offsets)

    @property
    def lapsed(self) -> bool:
        """Whether its lock may have lapsed."""
        return lock_clock() >= self.deadline

    @property
    def waiting(self) -> int:
        """Records that were read and not handed out."""
        return len(self.ready) - self.next

    @property
    def untouched(self) -> bool:
        """Whether nothing of it was handed out: nobody has seen its records."""
        return self.next == 0 and not self.handed and not self.seen

    @property
    def done(self) -> bool:
        """Whether nothing of it is left to be read, handed out or sent."""
        return not (self.unread or self.gaps or self.handed or self.waiting)

    def add(self, messages: Sequence[Message], passed: OffsetSet) -> None:
        """Add what was read; of what the reading has passed, offsets without a message are gaps."""
        self.ready += messages
        self.waiting_bytes += sum(map(len, messages))
        passed &= self.unread
        if len(messages) < passed.count:
            self.gaps |= passed - OffsetSet.from_offsets(map(offset_of, messages))
        self.unread -= passed

    def hand_out(self, most: int, *, explicit: bool) -> list[Message]:
        """The next records, up to so many; they wait for their acknowledgement from now on."""
        waiting = self.waiting
        messages = self.ready[self.next : self.next + most]
        self.next += len(messages)
        self.seen = True
        self.handed.update(dict.fromkeys(map(offset_of, messages), NOT_YET))
        if any(map(Message.error, messages)):
            errors = zip(messages, map(Message.error, messages), strict=True)
            self.handed |= {offset_of(each): _of_error(error) for each, error in errors if error is not None}
        if explicit:
            self.messages += messages
        if self.next == len(self.ready):
            self.ready, self.next = [], 0
        self.waiting_bytes = self.waiting_bytes * self.waiting // max(1, waiting)
        return messages

    def take(self, *, implicit: bool) -> Taken | None:
        """What is to be acknowledged now, taken out; None when there is nothing.

        With ``implicit`` all that was handed out is accepted.
        """
        kinds = set(self.handed.values())
        by_type: dict[int, list[int]] = {}
        if len(kinds) == 1:
            by_type[kinds.pop()] = list(self.handed)
        else:
            for offset, kind in self.handed.items():
                by_type.setdefault(kind, []).append(offset)
        if implicit and NOT_YET in by_type:
            by_type[AcknowledgeType.ACCEPT] = by_type.pop(NOT_YET)
        self.handed = dict.fromkeys(by_type.pop(NOT_YET, []), NOT_YET)
        renewed = set(by_type.pop(AcknowledgeType.RENEW, []))
        taken = Taken(
            {AcknowledgeType(kind): OffsetSet.from_offsets(offsets) for kind, offsets in by_type.items()},
            renewed=[each for each in self.messages if offset_of(each) in renewed] if renewed else [],
        )
        if self.gaps:
            taken.outcomes[AcknowledgeType.GAP] = self.gaps
            self.gaps = EMPTY
        if not taken.outcomes and not renewed:
            return None
        self._take_details(taken)
        self.messages = (
            [each for each in self.messages if offset_of(each) in self.handed] if self.handed else []
        )
        return taken

    def _take_details(self, taken: Taken) -> None:
        released = taken.outcomes.get(AcknowledgeType.RELEASE, EMPTY)
        for offset in [offset for offset in self.delays if offset in released]:
            taken.delayed.setdefault(self.delays.pop(offset), []).append(offset)
        failed = released | taken.outcomes.get(AcknowledgeType.REJECT, EMPTY)
        for offset in [offset for offset in self.errors if offset in failed]:
            taken.errors[offset] = self.errors.pop(offset)


def _of_error(error: KafkaError) -> AcknowledgeType:
    """What the client says of a record that could not be read (KIP-932): what is corrupt is rejected. One that could
    not be decoded, and was renewed, is released as before."""
    return AcknowledgeType.REJECT if error.code() == KafkaError._BAD_MSG else AcknowledgeType.RELEASE


offset_of: Callable[[Message], int] = Message.offset  # type: ignore[assignment]
"""Whatever a consumer returns has one."""


def with_delivery_counts(messages: Sequence[Message], lease: Lease) -> list[Message]:
    """The same messages, each with its delivery count: a message that was read cannot be given one."""
    counts = lease.deliveries
    counted = (
        repeat(counts[0].delivery_count)
        if len(counts) == 1
        else [
            next(each.delivery_count for each in counts if offset in each.offsets)
            for offset in map(offset_of, messages)
        ]
    )
    epochs = list(map(Message.leader_epoch, messages))
    if None in epochs:
        epochs = [_NO_EPOCH if each is None else each for each in epochs]
    # By map: no line of this is run for each record.
    return list(
        map(
            Message,  # type: ignore[arg-type]
            repeat(lease.share_partition.topic),
            repeat(lease.share_partition.partition),
            map(Message.offset, messages),
            map(Message.key, messages),
            map(Message.value, messages),
            map(Message.headers, messages),
            map(Message.error, messages),
            map(Message.timestamp, messages),
            repeat(_NO_LATENCY),
            epochs,
            counted,
        )
    )
