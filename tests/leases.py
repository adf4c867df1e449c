"""Leases that no state has granted, for tests of what reads them."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import uuid4

from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import READ_UNCOMMITTED, Delivery, Lease, SharePartition


def lease_of(lease_id: int, topic: str, partition: int, *deliveries: tuple[int, OffsetSet]) -> Lease:
    """Return a lease of a share-partition, from delivery counts and their offsets."""
    return Lease(
        lease_id=lease_id,
        share_partition=SharePartition("group", topic, partition),
        state_epoch=1,
        member_id="member",
        member_epoch=None,
        token=uuid4(),
        expires_at=datetime.now(UTC),
        lock_duration_ms=30_000,
        deliveries=tuple(Delivery(count, offsets) for count, offsets in deliveries),
        isolation_level=READ_UNCOMMITTED,
    )
