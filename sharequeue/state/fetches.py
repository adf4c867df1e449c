"""Acknowledge in batches of first and last offset, as Kafka's clients do.

Batches come in order, with one type for all offsets or one per offset (R-AK). Runs acknowledge sets of offsets
instead, with ``State.acknowledge``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID, uuid4

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.domain.values import (
    Acknowledged,
    AcknowledgementBatch,
    SharePartition,
)
from sharequeue.state.rows import (
    acknowledged_of,
    raise_error_of_row,
    share_partition_name,
)


class Fetches:
    """Acknowledgements by an online member; ``State.fetches``."""

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

        Without ``token`` and ``member_epoch``, any caller that names the member may acknowledge for it, as on a
        broker (R-AK). ``renewing`` is the request's IsRenewAck (KIP-1222). Raises InvalidRequest for batches that are
        reversed, overlap, extend past the window or have more than two million offsets, InvalidRecordState for
        offsets that are not held.
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
        raise_error_of_row(rows[0])
        return acknowledged_of(rows[0])


def _arrays(batches: Iterable[AcknowledgementBatch]) -> dict[str, list[int] | None]:
    given = list(batches)
    single = all(len(batch.types) == 1 for batch in given)
    return {
        "firsts": [batch.first for batch in given],
        "lasts": [batch.last for batch in given],
        "types": [int(kind) for batch in given for kind in batch.types],
        "type_counts": None if single else [len(batch.types) for batch in given],
    }
