"""What does a consumer hold, under which lock, and what has been said of it?

One ``Holding`` for each lease: which of its records wait to be read, to be handed out, to be acknowledged. A lock
is relied on by this process's own clock, from before the lease was asked for: it ends here before it does in the
database.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from confluent_kafka import Message

from sharequeue.offsets import EMPTY, OffsetSet
from sharequeue.values import AcknowledgeType, Lease

NOT_YET = -1
"""Handed out, and not acknowledged yet."""


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
    handed: dict[int, int] = field(default_factory=dict)
    """Handed out and not sent yet: offset to acknowledge type."""

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
        return self.next == 0 and not self.handed

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

    def hand_out(self, most: int) -> list[Message]:
        """The next records, up to so many; they wait for their acknowledgement from now on."""
        messages = self.ready[self.next : self.next + most]
        self.next += len(messages)
        self.handed.update((message.offset(), NOT_YET) for message in messages)  # type: ignore[misc]
        if self.next == len(self.ready):
            self.ready, self.next = [], 0
        return messages

    def outcomes(self, *, implicit: bool) -> dict[AcknowledgeType, OffsetSet]:
        """What is to be acknowledged now, taken out; with ``implicit`` all that was handed out is accepted."""
        taken: dict[AcknowledgeType, OffsetSet] = {}
        by_type: dict[int, list[int]] = {}
        if implicit:
            by_type[AcknowledgeType.ACCEPT] = list(self.handed)
            self.handed = {}
        else:
            for offset, kind in self.handed.items():
                if kind != NOT_YET:
                    by_type.setdefault(kind, []).append(offset)
            self.handed = {o: kind for o, kind in self.handed.items() if kind == NOT_YET}
        for kind, offsets in by_type.items():
            if offsets:
                taken[AcknowledgeType(kind)] = offset_set(offsets)
        if self.gaps:
            taken[AcknowledgeType.GAP] = self.gaps
            self.gaps = EMPTY
        return taken


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
                leader_epoch=message.leader_epoch(),
                delivery_count=count,
            )
        )
    return counted
