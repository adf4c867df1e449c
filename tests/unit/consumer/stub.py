"""A share consumer without servers: its threads do not run, and what it has leased and read is put there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from confluent_kafka import Message

from sharequeue import ShareConsumer
from sharequeue.consumer.held_leases import HeldLease
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import READ_UNCOMMITTED, Delivery, Lease, SharePartition
from sharequeue.state.locks import lock_clock

CONFIG: dict[str, Any] = {
    "group.id": "g",
    "bootstrap.servers": "127.0.0.1:1",
    "sharequeue.database.url": "postgresql://x:y@127.0.0.1:1/none",
    "fetch.max.wait.ms": 0,
    "log_level": 0,
}


@contextmanager
def consumer_of(kind: type[ShareConsumer] = ShareConsumer, **config: Any) -> Iterator[Any]:
    """A consumer that is subscribed to `t`; names of configs with underscores. Nothing of it runs."""
    consumer = kind({**CONFIG, **{name.replace("_", "."): value for name, value in config.items()}})
    consumer._subscribed = ("t",)
    consumer._abandon.detach()
    try:
        yield consumer
    finally:
        consumer._listener.stop()
        consumer._fetcher.reader.close()


def lease_of(offsets: OffsetSet, topic: str = "t") -> Lease:
    """A lease of these offsets."""
    return Lease(
        lease_id=1,
        share_partition=SharePartition("g", topic, 0),
        state_epoch=1,
        member_id="m",
        member_epoch=1,
        token=uuid4(),
        expires_at=datetime(2030, 1, 1, tzinfo=UTC),
        lock_duration_ms=30_000,
        deliveries=(Delivery(1, offsets),),
        isolation_level=READ_UNCOMMITTED,
    )


def holding_of(first: int, end: int, topic: str = "t") -> HeldLease:
    """A lease of which nothing has been read."""
    return HeldLease.of(lease_of(OffsetSet.of((first, end)), topic), lock_clock())


def messages_of(first: int, end: int, topic: str = "t") -> list[Message]:
    """The records of these offsets."""
    return [
        Message(topic, 0, offset, None, b"%d" % offset, None, None, (1, 5)) for offset in range(first, end)
    ]


def put(consumer: Any, first: int, end: int, topic: str = "t") -> HeldLease:
    """Have these records wait for a poll."""
    holding = holding_of(first, end, topic)
    shelf = consumer._handover.queue
    shelf.to_read.append(holding)
    shelf.add(holding, messages_of(first, end, topic), holding.unread)
    return holding


def put_in_order(
    consumer: Any,
    keys: Sequence[bytes | None],
    blocked: Mapping[UUID, int] | None = None,
    read: int | None = None,
) -> HeldLease:
    """Have records with these keys, from offset 0 on, wait for a poll in order by key; `read` of them are read."""
    holding = HeldLease.of(lease_of(OffsetSet.of((0, len(keys)))), lock_clock(), blocked or {})
    consumer._handover.queue.to_read.append(holding)
    if read != 0:
        read_on(consumer, holding, keys, 0, read or len(keys))
    return holding


def read_on(consumer: Any, holding: HeldLease, keys: Sequence[bytes | None], first: int, end: int) -> None:
    """Read these records of a lease."""
    messages = [Message("t", 0, offset, keys[offset], b"v") for offset in range(first, end)]
    consumer._handover.queue.add(holding, messages, OffsetSet.of((first, end)))


def settle(consumer: Any) -> None:
    """Have everything that waits to be sent done, without an error."""
    fetcher = consumer._fetcher
    while fetcher._handover.outbox:
        sending = fetcher._handover.outbox.popleft()
        sending.results = [None] * len(sending.taken)
        fetcher._handover._finished.append(sending)
