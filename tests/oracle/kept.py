"""Where the raw records of released offsets are kept, for their next delivery."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from sharequeue.domain.errors import InvalidRecordState, InvalidRequest
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import AcknowledgementBatch, AcknowledgeType
from tests.oracle.records import Kept, RecordState
from tests.oracle.share_partition import InMemorySharePartition


def validate(batches: Sequence[AcknowledgementBatch], kept: OffsetSet) -> None:
    """What is kept is released by the same acknowledgement. Runs are of one type."""
    released = {
        offset
        for batch in batches
        if AcknowledgeType.RELEASE in batch.types
        for offset in range(batch.first, batch.last + 1)
    }
    if not kept or not set(kept.iter_offsets()) <= released:
        raise InvalidRequest("something is kept that is not released, or nothing is")


def check(
    at: InMemorySharePartition, member_id: str, token: UUID | None, batches: Sequence[AcknowledgementBatch]
) -> None:
    """A lease keeps something only if it holds all that is acknowledged."""
    held = set(at.held(member_id, token))
    asked = {offset for batch in batches for offset in range(batch.first, batch.last + 1)}
    if token is None or not held or not asked <= held:
        raise InvalidRecordState("records are kept of a lease that does not hold them")


def keep(at: InMemorySharePartition, token: UUID, kept: OffsetSet) -> None:
    """Remember what a lease keeps that is still above SPSO: in the row of the first lease under the token."""
    offsets = {offset for offset in kept.iter_offsets() if offset >= at.spso}
    lease = min(
        (lease for lease in at.leases.values() if lease.token == token), key=lambda lease: lease.number
    )
    if not offsets:
        return
    for row in at.kept:
        if row.number == lease.number:
            row.offsets |= offsets
            return
    at.kept.append(Kept(lease.number, token, lease.isolation_level, offsets))


def kept_of(at: InMemorySharePartition, token: UUID) -> dict[int, UUID]:
    """Which lease has kept each record that is held under this token: the newest at the same level."""
    found: dict[int, UUID] = {}
    for row in sorted(at.kept, key=lambda row: row.number):
        for offset in row.offsets:
            record = at.records.get(offset)
            if record is None or record.lease_id is None or offset < at.log_start:
                continue
            lease = at.leases[record.lease_id]
            if lease.token == token and lease.isolation_level == row.isolation_level:
                found[offset] = row.token
    return found


def removable(at: InMemorySharePartition) -> list[Kept]:
    """What nobody needs any more: each record is finished or kept by a later lease, and the lease has ended."""
    still = {
        offset
        for offset, record in at.records.items()
        if offset >= at.spso and record.state in (RecordState.AVAILABLE, RecordState.ACQUIRED)
    }
    held = {lease.number for lease in at.leases.values()}
    return [
        row
        for row in at.kept
        if row.number not in held
        and not row.offsets
        & still - {o for later in at.kept if later.number > row.number for o in later.offsets}
    ]
