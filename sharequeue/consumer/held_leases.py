"""The leases of a consumer: their locks, and which of their records are acknowledged.

Each lease has one ``HeldLease``: which of its records wait to be read, to be handed out, to be acknowledged. Locks
are timed by this process's own clock, from before the lease was requested: a lock ends here before it ends in the
database.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from uuid import UUID, uuid4

from confluent_kafka import KafkaError, Message

from sharequeue.consumer.key_order import Keys, LeaseOrder, offset_of
from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.domain.values import AcknowledgeType, Lease, SharePartition
from sharequeue.kafka.damage import is_damage
from sharequeue.kafka.headers import PROBLEM, Undecodable, read_headers
from sharequeue.state.locks import Lock

NOT_YET = -1
"""Handed out, and not acknowledged yet."""
_NO_LATENCY, _NO_EPOCH = -1.0, -1
"""The client's values for "unknown". An old message format has no leader epoch."""


@dataclass(slots=True)
class LeaseOutcomes:
    """The outcomes of records of one lease that one call acknowledges."""

    outcomes: dict[AcknowledgeType, OffsetSet]
    delayed: dict[float, list[int]] = field(default_factory=dict)
    """The released offsets with a delay, by the delay in seconds."""
    renewed: list[Message] = field(default_factory=list)
    """Records whose locks are renewed."""
    errors: dict[int, str] = field(default_factory=dict)
    holds: OffsetSet = EMPTY
    """Records behind an open one of their key: they are given back with their delivery."""
    keys: Keys = field(default_factory=dict)
    """The keys of released, rejected and held records, in a group that is ordered by key."""

    def add(self, other: LeaseOutcomes) -> None:
        """Add the outcomes that a later call has for other records of the same lease."""
        for kind, offsets in other.outcomes.items():
            self.outcomes[kind] = self.outcomes.get(kind, EMPTY) | offsets
        for seconds, delayed in other.delayed.items():
            self.delayed.setdefault(seconds, []).extend(delayed)
        self.renewed += other.renewed
        self.errors |= other.errors
        self.holds |= other.holds
        for key, offsets_of_key in other.keys.items():
            self.keys.setdefault(key, []).extend(offsets_of_key)


@dataclass(frozen=True, slots=True)
class AcquireRequest:
    """A request to lease from share-partitions. If its reply is lost, its leases are found by the request's id."""

    part: Sequence[SharePartition]
    asked_at: float
    give_backs: int
    request_id: UUID = field(default_factory=uuid4)


@dataclass(slots=True, eq=False)
class HeldLease:
    """One lease of this consumer."""

    lease: Lease
    lock: Lock
    unread: OffsetSet
    order: LeaseOrder | None = None
    """The order by key, if the group has one. Renewed records share it."""
    gaps: OffsetSet = EMPTY
    """Offsets without a record, to be acknowledged as gaps."""
    ready: list[Message] = field(default_factory=list)
    """Records that were read; those from ``next`` on are not handed out yet."""
    next: int = 0
    seen: bool = False
    """Whether any of its records was handed out."""
    waiting_bytes: int = 0
    """Bytes of keys and values that wait to be handed out, as if all had one size. Without renewed records."""
    handed: dict[int, int] = field(default_factory=dict)
    """Acknowledge types by offset, of records that were handed out and are not sent yet."""
    messages: list[Message] = field(default_factory=list)
    """Messages that were handed out in explicit mode: renewed records are polled again."""
    delays: dict[int, float] = field(default_factory=dict)
    """Seconds that a released record waits before it is delivered again."""
    errors: dict[int, str] = field(default_factory=dict)
    """Why a record failed, for its dead letter."""
    renewed: bool = False
    """Whether its records were polled before and their locks renewed."""
    split: bool = False
    """Whether some of its records were renewed and have their own ``HeldLease`` under the same lease."""
    errors_at: list[str] = field(default_factory=list)
    """The folder of errors, once an acknowledgement of the lease has named it. Renewed records share it."""
    key: tuple[str, int] = field(init=False)
    """Topic and partition."""

    def __post_init__(self) -> None:
        self.key = self.lease.share_partition.topic, self.lease.share_partition.partition

    @classmethod
    def of(cls, lease: Lease, asked_at: float, blocked: Mapping[UUID, int] | None = None) -> HeldLease:
        """Return the holding of a lease that was requested at this time, in order by key if `blocked` is given."""
        lock = Lock(asked_at, lease.lock_duration_ms)
        order = None if blocked is None else LeaseOrder(blocked, lock)
        return cls(lease, lock, lease.offsets, order)

    @property
    def lapsed(self) -> bool:
        """Whether its lock may have lapsed."""
        return self.lock.lapsed

    @property
    def lost(self) -> bool:
        """Whether nothing of it can be acknowledged any more, because an acknowledgement was refused."""
        return self.order is not None and self.order.lost

    @property
    def waiting(self) -> int:
        """Records that may be handed out now."""
        return len(self.ready) - self.next + (0 if self._own_order is None else self._own_order.freed)

    @property
    def buffered(self) -> int:
        """Records that were read and not handed out, also those that wait behind another one of their key."""
        return self.waiting + (0 if self._own_order is None else self._own_order.behind)

    @property
    def _own_order(self) -> LeaseOrder | None:
        """The order by key, unless these are renewed records, behind which others of the lease wait."""
        return None if self.renewed else self.order

    @property
    def untouched(self) -> bool:
        """Whether none of its records was handed out."""
        return self.next == 0 and not self.handed and not self.seen

    @property
    def polled_is_done(self) -> bool:
        """Whether all that was handed out of it is taken to be sent, so that the rest may go back on its own. It may
        not beside renewed records, which have the same lease.
        """
        return not self.handed and not self.renewed and not self.split

    @property
    def done(self) -> bool:
        """Whether nothing of it is left to be read, handed out or sent."""
        return not (self.unread or self.gaps or self.handed or self.buffered)

    def add(self, messages: Sequence[Message], passed: OffsetSet) -> None:
        """Add messages that were read; passed offsets without a message are gaps."""
        before = self.buffered
        self.ready += messages if self.order is None else self.order.admit(messages)
        self.waiting_bytes += sum(map(len, messages)) * (self.buffered - before) // max(1, len(messages))
        passed &= self.unread
        if len(messages) < passed.count:
            self.gaps |= passed - OffsetSet.from_offsets(map(offset_of, messages))
        self.unread -= passed

    def hand_out(self, most: int, *, explicit: bool) -> list[Message]:
        """Return the next records, at most `most`; they wait for their acknowledgement from now on."""
        before = self.buffered
        if self._own_order is not None:
            self._own_order.add_freed(self.ready, self.next)
        messages = self.ready[self.next : self.next + most]
        self.next += len(messages)
        self.seen = True
        self.handed.update(dict.fromkeys(map(offset_of, messages), NOT_YET))
        if any(map(Message.error, messages)):
            errors = zip(messages, map(Message.error, messages), strict=True)
            wrong = {offset_of(each): error for each, error in errors if error is not None}
            self.handed |= {offset: _of_error(error) for offset, error in wrong.items()}
            self.errors |= {offset: error.str() for offset, error in wrong.items()}
        if explicit:
            self.messages += messages
        if self.next == len(self.ready):
            self.ready, self.next = [], 0
        self._scale_bytes(before)
        return messages

    def _scale_bytes(self, before: int) -> None:
        self.waiting_bytes = self.waiting_bytes * self.buffered // max(1, before)

    def forget(self) -> None:
        """Forget what is not handed out: nothing of it is handed out or given back any more."""
        self.ready, self.next, self.unread = [], 0, EMPTY
        if self._own_order is not None:
            self._own_order.forget()

    def take(self, *, implicit: bool) -> LeaseOutcomes | None:
        """Take out the outcomes to acknowledge now; return None when there are none.

        With ``implicit`` everything that was handed out is accepted.
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
        taken = LeaseOutcomes(
            {AcknowledgeType(kind): OffsetSet.from_offsets(offsets) for kind, offsets in by_type.items()},
            renewed=[each for each in self.messages if offset_of(each) in renewed] if renewed else [],
        )
        if self.gaps:
            taken.outcomes[AcknowledgeType.GAP] = self.gaps
            self.gaps = EMPTY
        if self.order is not None:
            self._take_order(taken, self.order)
        if not taken.outcomes and not renewed and not taken.holds:
            return None
        self._take_details(taken)
        self.messages = (
            [each for each in self.messages if offset_of(each) in self.handed] if self.handed else []
        )
        return taken

    def _take_order(self, taken: LeaseOutcomes, order: LeaseOrder) -> None:
        before = self.buffered
        order.hold_late()
        order.accept(taken.outcomes.get(AcknowledgeType.ACCEPT, EMPTY))
        for kind in (AcknowledgeType.RELEASE, AcknowledgeType.REJECT):
            order.fail(taken.outcomes.get(kind, EMPTY))
        taken.holds, taken.keys = order.take_holds()
        self._scale_bytes(before)

    def _take_details(self, taken: LeaseOutcomes) -> None:
        released = taken.outcomes.get(AcknowledgeType.RELEASE, EMPTY)
        for offset in [offset for offset in self.delays if offset in released]:
            taken.delayed.setdefault(self.delays.pop(offset), []).append(offset)
        failed = released | taken.outcomes.get(AcknowledgeType.REJECT, EMPTY)
        for offset in [offset for offset in self.errors if offset in failed]:
            taken.errors[offset] = self.errors.pop(offset)


def _of_error(error: KafkaError) -> AcknowledgeType:
    """Return the acknowledgement of a record that could not be read (KIP-932).

    Damaged records are rejected. One that this client cannot decompress is released. So is one that could not be
    decoded, and was renewed, as before.
    """
    return AcknowledgeType.REJECT if is_damage(error) else AcknowledgeType.RELEASE


def with_delivery_counts(messages: Sequence[Message], lease: Lease) -> list[Message]:
    """Return the same messages, each with its delivery count.

    They are new messages, because the count of an existing message cannot be set. One whose headers cannot be read
    has an error, and otherwise its key and value.
    """
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
    headers, errors = read_headers(messages), list(map(Message.error, messages))
    if Undecodable in set(map(type, headers)):
        errors = [
            KafkaError(KafkaError._VALUE_DESERIALIZATION, PROBLEM) if type(each) is Undecodable else error
            for each, error in zip(headers, errors, strict=True)
        ]
    # With map, so that no line of Python runs for each record.
    return list(
        map(
            Message,  # type: ignore[arg-type]
            repeat(lease.share_partition.topic),
            repeat(lease.share_partition.partition),
            map(Message.offset, messages),
            map(Message.key, messages),
            map(Message.value, messages),
            headers,
            errors,
            map(Message.timestamp, messages),
            repeat(_NO_LATENCY),
            epochs,
            counted,
        )
    )
