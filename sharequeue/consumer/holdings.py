"""What does a consumer hold, under which lock, and what has been said of it?

One ``Holding`` for each lease: which of its records wait to be read, to be handed out, to be acknowledged. A lock
is relied on by this process's own clock, from before the lease was asked for: it ends here before it does in the
database.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from uuid import UUID, uuid4

from confluent_kafka import KafkaError, Message

from sharequeue.offsets import EMPTY, OffsetSet
from sharequeue.values import AcknowledgeType, Lease, SharePartition

NOT_YET = -1
"""Handed out, and not acknowledged yet."""


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
    """When its lock has lapsed, by ``time.monotonic``."""
    unread: OffsetSet
    gaps: OffsetSet = EMPTY
    """Offsets without a record, to be acknowledged as gaps."""
    ready: list[Message] = field(default_factory=list)
    """Read, from ``next`` on not handed out yet."""
    next: int = 0
    seen: bool = False
    """Whether something of it was handed out."""
    handed: dict[int, int] = field(default_factory=dict)
    """Handed out and not sent yet: offset to acknowledge type."""
    messages: dict[int, Message] = field(default_factory=dict)
    """What was handed out in explicit mode: a record whose lock is renewed is polled again."""
    delays: dict[int, float] = field(default_factory=dict)
    """Seconds that a released record waits before it is delivered again."""
    errors: dict[int, str] = field(default_factory=dict)
    """Why a record failed, for its dead letter."""
    renewed: bool = False
    """What waits here was polled before, and its lock was renewed."""
    errors_at: list[str] = field(default_factory=list)
    """The folder of errors, once an acknowledgement of the lease has named it. What is renewed shares it."""

    @classmethod
    def of(cls, lease: Lease, asked_at: float) -> Holding:
        """What a lease holds that was asked for at this time."""
        return cls(lease, asked_at + lease.lock_duration_ms / 1000, lease.offsets)

    @property
    def key(self) -> tuple[str, int]:
        """Topic and partition."""
        return self.lease.share_partition.topic, self.lease.share_partition.partition

    @property
    def lapsed(self) -> bool:
        """Whether its lock may have lapsed."""
        return time.monotonic() >= self.deadline

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
        self.ready.extend(with_delivery_counts(messages, self.lease))
        found = offset_set(message.offset() for message in messages)  # type: ignore[misc]
        self.gaps |= (passed & self.unread) - found
        self.unread -= passed

    def hand_out(self, most: int, *, explicit: bool) -> list[Message]:
        """The next records, up to so many; they wait for their acknowledgement from now on."""
        messages = self.ready[self.next : self.next + most]
        self.next += len(messages)
        self.seen = True
        for message in messages:
            error = message.error()
            self.handed[message.offset()] = NOT_YET if error is None else _of_error(error)  # type: ignore[index]
        if explicit:
            self.messages.update((message.offset(), message) for message in messages)  # type: ignore[misc]
        if self.next == len(self.ready):
            self.ready, self.next = [], 0
        return messages

    def take(self, *, implicit: bool) -> Taken | None:
        """What is to be acknowledged now, taken out; None when there is nothing.

        With ``implicit`` all that was handed out is accepted.
        """
        by_type: dict[int, list[int]] = {}
        for offset, kind in self.handed.items():
            by_type.setdefault(kind, []).append(offset)
        if implicit and NOT_YET in by_type:
            by_type[AcknowledgeType.ACCEPT] = by_type.pop(NOT_YET)
        self.handed = dict.fromkeys(by_type.pop(NOT_YET, []), NOT_YET)
        renewed = by_type.pop(AcknowledgeType.RENEW, [])
        taken = Taken(
            {AcknowledgeType(kind): offset_set(offsets) for kind, offsets in by_type.items() if offsets},
            renewed=[self.messages[offset] for offset in renewed],
        )
        if self.gaps:
            taken.outcomes[AcknowledgeType.GAP] = self.gaps
            self.gaps = EMPTY
        if not taken.outcomes and not renewed:
            return None
        self._take_details(taken)
        self.messages = {offset: self.messages[offset] for offset in self.handed if offset in self.messages}
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


def offset_set(offsets: Iterable[int]) -> OffsetSet:
    """The set of these offsets, in any order."""
    ranges: list[tuple[int, int]] = []
    for offset in sorted(offsets):
        if ranges and ranges[-1][1] == offset:
            ranges[-1] = (ranges[-1][0], offset + 1)
        else:
            ranges.append((offset, offset + 1))
    return OffsetSet(tuple(ranges))


def with_delivery_counts(messages: Sequence[Message], lease: Lease) -> list[Message]:
    """The same messages, each with its delivery count: a message that was read cannot be given one."""
    counts = lease.deliveries
    only = counts[0].delivery_count if len(counts) == 1 else None
    counted: list[Message] = []
    for message in messages:
        count = only
        if count is None:
            count = next(each.delivery_count for each in counts if message.offset() in each.offsets)
        epoch = message.leader_epoch()  # an old message format has none
        counted.append(
            Message(
                message.topic(),
                message.partition(),
                message.offset(),
                message.key(),
                message.value(),
                message.headers(),
                message.error(),
                message.timestamp(),
                delivery_count=count,
                **({} if epoch is None else {"leader_epoch": epoch}),
            )
        )
    return counted
