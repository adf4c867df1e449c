"""How does an online member acknowledge and fetch, the way Kafka's clients do?

Acknowledgements as Kafka's batches (R-AK: first and last offset, in order, with one type for all or one per
offset), and the ShareFetch that carries them: acknowledge one lease and take the next, in one call and one commit.
Batch runs acknowledge sets of offsets; that is ``State.acknowledge``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from uuid import UUID, uuid4

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.offsets import OffsetSet
from sharequeue.state.rows import (
    AcquireMode,
    Redelivery,
    acknowledged_of,
    acquisition,
    holder,
    lease_of,
    raise_refusal,
    refusal,
    share_partition_name,
)
from sharequeue.values import (
    Acknowledged,
    AcknowledgedAndAcquired,
    AcknowledgementBatch,
    AcknowledgeType,
    Lease,
    SharePartition,
)


class Fetches:
    """The operations of an online member, in Kafka's batches; ``State.fetches``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def acknowledge_batches(
        self,
        at: SharePartition,
        member_id: str,
        batches: Sequence[AcknowledgementBatch],
        *,
        member_epoch: int | None = None,
        token: UUID | None = None,
        state_epoch: int | None = None,
        renewing: bool = True,
        not_before: datetime | None = None,
        request_id: UUID | None = None,
    ) -> Acknowledged:
        """Acknowledge batches in order, all or nothing; but locks renewed before a failing batch stay renewed.

        Without ``token`` and ``member_epoch`` whoever names the member may acknowledge for it, as on a broker
        (R-AK). ``renewing`` is the request's IsRenewAck (KIP-1222). Raises InvalidRequest for batches that are
        reversed, overlap, reach past the window or are more than two million, InvalidRecordState for offsets
        that are not held.
        """
        rows = self._database.call(
            sa.text(
                "select * from sharequeue.acknowledge_batches(:group_id, :topic, :partition,"
                " cast(:state_epoch as integer), :member_id, cast(:member_epoch as integer),"
                " cast(:token as uuid), cast(:request_id as uuid), cast(:firsts as bigint[]),"
                " cast(:lasts as bigint[]), cast(:types as smallint[]), cast(:type_counts as integer[]),"
                " :renewing, cast(:not_before as timestamptz))"
            ),
            **share_partition_name(at),
            state_epoch=state_epoch,
            member_id=member_id,
            member_epoch=member_epoch,
            token=None if token is None else str(token),
            request_id=str(request_id or uuid4()),
            **_arrays(batches),
            renewing=renewing,
            not_before=not_before,
        )
        raise_refusal(rows[0])
        return acknowledged_of(rows[0])

    def acknowledge_and_acquire(
        self,
        lease: Lease,
        outcomes: Mapping[AcknowledgeType, OffsetSet],
        max_records: int,
        *,
        lock_duration_ms: int | None = None,
        redelivery: Redelivery = "fan_out",
        mode: AcquireMode = "batch_optimized",
        not_before: datetime | None = None,
        request_id: UUID | None = None,
    ) -> AcknowledgedAndAcquired:
        """Acknowledge records of a lease and take the next, in one call and one commit.

        Refusals come as values: that of the acknowledgement does not stop the acquire, and neither undoes the
        other. Units and rules as in ``acknowledge`` and ``acquire``. A call that renews locks acquires nothing
        (KIP-1222): renewals go through ``renew`` or ``acknowledge_batches``.
        """
        if AcknowledgeType.RENEW in outcomes:
            raise ValueError("a call that renews locks acquires nothing: call renew()")
        plain = (lock_duration_ms, mode, not_before) == (None, "batch_optimized", None)
        rows = self._database.call(
            sa.text(_PLAIN if plain else _FULL),
            **holder(lease),
            **acquisition(max_records, lock_duration_ms, request_id, redelivery, mode),
            **_arrays(_batches(outcomes)),
            not_before=not_before,
        )
        first = rows[0]
        refused = refusal(first)
        acquired = None
        if refused is None and first["lease_id"] is not None:
            acquired = lease_of(rows, lease.share_partition, lease.member_id, lease.member_epoch)
        return AcknowledgedAndAcquired(
            refusal(first, "acknowledge_"), first["spso"], first["lag"], refused, acquired
        )


_NAMED = (
    "p_group_id => :group_id, p_topic => :topic, p_partition => :partition, p_state_epoch => :state_epoch,"
    " p_member_id => :member_id, p_member_epoch => cast(:member_epoch as integer),"
    " p_token => cast(:token as uuid), p_request_id => cast(:request_id as uuid),"
    " p_firsts => cast(:firsts as bigint[]), p_lasts => cast(:lasts as bigint[]),"
    " p_types => cast(:types as smallint[]), p_max_records => :max_records, p_redelivery => :redelivery"
)
_PLAIN = f"select * from sharequeue.acknowledge_and_acquire({_NAMED})"  # noqa: S608  (no value is in it)
_FULL = (
    f"select * from sharequeue.acknowledge_and_fetch({_NAMED}, p_type_counts => null,"  # noqa: S608
    " p_lock_duration_ms => cast(:lock_duration_ms as integer), p_mode => :mode,"
    " p_not_before => cast(:not_before as timestamptz))"
)


def _batches(outcomes: Mapping[AcknowledgeType, OffsetSet]) -> list[AcknowledgementBatch]:
    """Sets of offsets by type as batches in order, one type each."""
    runs = (
        AcknowledgementBatch(first, last, (kind,))
        for kind, offsets in outcomes.items()
        for first, last in offsets.runs()
    )
    return sorted(runs, key=lambda batch: batch.first)


def _arrays(batches: Iterable[AcknowledgementBatch]) -> dict[str, list[int] | None]:
    given = list(batches)
    single = all(len(batch.types) == 1 for batch in given)
    return {
        "firsts": [batch.first for batch in given],
        "lasts": [batch.last for batch in given],
        "types": [int(kind) for batch in given for kind in batch.types],
        "type_counts": None if single else [len(batch.types) for batch in given],
    }
