"""What may be done to a share-partition, and what is its state?

A typed layer over the SQL functions in ``sql/functions``: one method, one function, one round trip, one
transaction. The rules themselves are in SQL, where every client meets the same ones; this module turns rows
into values, error codes into exceptions by Kafka's name, and repeats a call whose reply was lost: acquire and
acknowledge carry a request id for that, the others have the same effect done twice as once. Terms and
rules: KIP-932, KIP-1191, KIP-1222, KIP-1226.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Self
from uuid import UUID, uuid4

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.database.pool import Joined
from sharequeue.offsets import EMPTY, OffsetSet
from sharequeue.state.administration import Administration
from sharequeue.state.dead_letters import DeadLetters
from sharequeue.state.fetches import Fetches
from sharequeue.state.figures import Figures
from sharequeue.state.many import Many
from sharequeue.state.offset_sets import Parameters
from sharequeue.state.outputs import Outputs
from sharequeue.state.rows import (
    ACQUIRED,
    OUTCOMES,
    AcquireMode,
    Redelivery,
    acknowledged_of,
    acquisition,
    holder,
    lease_of,
    outputs_of,
    raise_refusal,
    share_partition_name,
)
from sharequeue.state.runs import Runs
from sharequeue.values import (
    Acknowledged,
    AcknowledgeType,
    Lease,
    LeaseOutput,
    SharePartition,
    Swept,
)


class State:
    """The operations on share-partition state, over one database. Safe to share between threads.

    Here is what a worker does with one share-partition; everything else is in a part:

    - ``many``: the same operations on many share-partitions in one call,
    - ``fetches``: acknowledgements in Kafka's batches, and the fetch that carries them,
    - ``dead_letters``: the state's half of writing dead letters,
    - ``outputs``: the outputs of a sink that count, and their compaction,
    - ``figures``: what the state is, read only,
    - ``administration``: what administrators and the service do,
    - ``runs``: what a run of a pipeline tells the state about itself.

    Each part is a class over a ``Database`` too: ``Figures(database)`` is ``State(database).figures``. A refusal
    raises the error of Kafka's name from ``sharequeue.errors`` and has changed nothing.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self.many = Many(database)
        self.fetches = Fetches(database)
        self.dead_letters = DeadLetters(database)
        self.outputs = Outputs(database)
        self.figures = Figures(database)
        self.administration = Administration(database)
        self.runs = Runs(database)

    @contextmanager
    def transaction(self) -> Iterator[tuple[sa.Connection, Self]]:
        """One transaction for statements of the caller's own and for calls of the state given: all or nothing.

        A refusal raises, as ever, and so takes the caller's statements back with it. Nothing is repeated when
        the connection is lost: the caller repeats the block, with the same request ids.
        """
        with self.database.transaction() as connection:
            yield connection, type(self)(Joined(connection))

    def now(self) -> datetime:
        """The time by which locks lapse."""
        clock: datetime = self.database.rows(sa.text("select sharequeue.clock() as clock"))[0]["clock"]
        return clock

    def initialize(self, at: SharePartition, topic_id: str, start_offset: int, state_epoch: int) -> bool:
        """Give a share-partition its start offset (R-IN); return whether it was new. A second time
        changes nothing."""
        rows = self.database.call(
            sa.text(
                "select sharequeue.initialize(:group_id, :topic, :partition, :topic_id, :start_offset, :state_epoch)"
                " as created"
            ),
            **share_partition_name(at),
            topic_id=topic_id,
            start_offset=start_offset,
            state_epoch=state_epoch,
        )
        return bool(rows[0]["created"])

    def observe(
        self, at: SharePartition, topic_id: str, log_start: int, log_end: int, last_stable_offset: int
    ) -> str | None:
        """Record the log offsets that the broker returned; a log start past SPSO moves SPSO (R-LS).

        Return the share-partition's status, None when it is not initialised.
        """
        rows = self.database.call(
            sa.text(
                "select sharequeue.observe(:group_id, :topic, :partition, :topic_id, :log_start, :log_end,"
                " :last_stable_offset) as status"
            ),
            **share_partition_name(at),
            topic_id=topic_id,
            log_start=log_start,
            log_end=log_end,
            last_stable_offset=last_stable_offset,
        )
        status: str | None = rows[0]["status"]
        return status

    def acquire(
        self,
        at: SharePartition,
        member_id: str,
        member_epoch: int | None,
        max_records: int,
        *,
        state_epoch: int | None = None,
        lock_duration_ms: int | None = None,
        request_id: UUID | None = None,
        redelivery: Redelivery = "fan_out",
        mode: AcquireMode = "batch_optimized",
        batch_size: int | None = None,
        log_batches: Sequence[tuple[int, int]] | None = None,
        aborted: OffsetSet = EMPTY,
        leave_out: OffsetSet = EMPTY,
    ) -> Lease | None:
        """Lease up to ``max_records`` records: redeliverable ones first, then fresh ones up to the log end.

        None when there is nothing to lease. With ``member_epoch`` the member must be live in the group. What is in
        ``leave_out`` is not leased again by ``fan_out``; others may have it. The arguments from ``mode`` to
        ``aborted`` belong to ``redelivery="kafka"``: first and last offset of the log's batches, and the offsets of
        aborted transactions, shape the lease as a broker would (R-AQ, R-IL).
        """
        sets = Parameters()
        left_out = sets.offset_set("leave_out", leave_out)
        rows = self.database.call(
            sa.text(
                f"select {ACQUIRED}"  # noqa: S608  (no value is in it)
                " from sharequeue.acquire(:group_id, :topic, :partition, cast(:state_epoch as integer),"
                " :member_id, cast(:member_epoch as integer), :max_records, cast(:lock_duration_ms as integer),"
                " cast(:request_id as uuid), :redelivery, :mode, cast(:batch_size as bigint),"
                " cast(:log_firsts as bigint[]), cast(:log_lasts as bigint[]), cast(:aborted as int8multirange),"
                f" {left_out}) as a"
            ),
            **share_partition_name(at),
            state_epoch=state_epoch,
            member_id=member_id,
            member_epoch=member_epoch,
            **acquisition(max_records, lock_duration_ms, request_id, redelivery, mode),
            batch_size=batch_size,
            log_firsts=None if log_batches is None else [first for first, _ in log_batches],
            log_lasts=None if log_batches is None else [last for _, last in log_batches],
            aborted=str(aborted),
            **sets,
        )
        if not rows:
            return None
        raise_refusal(rows[0])
        return lease_of(rows, at, member_id, member_epoch)

    def acknowledge(
        self,
        lease: Lease,
        outcomes: Mapping[AcknowledgeType, OffsetSet],
        *,
        outputs: Sequence[LeaseOutput] = (),
        request_id: UUID | None = None,
        not_before: datetime | None = None,
    ) -> Acknowledged:
        """Acknowledge records of a lease, all or nothing; the outputs named count from this commit on.

        What is released is delivered again ``not_before`` that time, by the database's clock.

        What no set names stays leased. Raises InvalidRecordState when an offset is not held under this
        lease, and FencedStateEpoch, UnknownMemberId or FencedMemberEpoch when its holder has been fenced.
        """
        if AcknowledgeType.RENEW in outcomes:
            raise ValueError("acknowledge() acknowledges records; to keep a lock, call renew()")
        sets = Parameters()
        accept, release, reject, gap = (
            sets.offset_set(kind.name, outcomes.get(kind, EMPTY)) for kind in OUTCOMES
        )
        rows = self.database.call(
            sa.text(
                "select * from sharequeue.acknowledge("  # noqa: S608  (no value is in it)
                ":group_id, :topic, :partition, :state_epoch, :member_id,"
                " cast(:member_epoch as integer), cast(:token as uuid), cast(:request_id as uuid),"
                f" {accept}, {release}, {reject}, {gap}, cast(:outputs as jsonb), '{{}}',"
                " cast(:not_before as timestamptz))"
            ),
            **holder(lease),
            **sets,
            request_id=str(request_id or uuid4()),
            outputs=json.dumps(outputs_of(outputs)),
            not_before=not_before,
        )
        raise_refusal(rows[0])
        return acknowledged_of(rows[0])

    def renew(self, lease: Lease) -> datetime:
        """Renew the lock of what the lease still holds, for a full lock duration from now (KIP-1222).

        Return the new expiry.

        Raises InvalidRecordState when the lock has lapsed or the group forbids renewal.
        """
        rows = self.database.call(
            sa.text(
                "select * from sharequeue.renew(:group_id, :topic, :partition, :state_epoch, :member_id,"
                " cast(:member_epoch as integer), cast(:token as uuid))"
            ),
            **holder(lease),
        )
        raise_refusal(rows[0])
        expires_at: datetime = rows[0]["expires_at"]
        return expires_at

    def release(self, group_id: str, member_id: str, *, cancelled: bool = False, refund: bool = False) -> int:
        """Give back everything that a member holds in a group; return how many records that was.

        ``cancelled``: a person or the scheduler stopped the run: its records are no suspects, and where
        the group config ``sharequeue.cancelled.run.refund.enable`` is on they get their delivery back.
        ``refund``: the same for a run in which no record was at fault; the delivery is given back in any case.
        """
        return self._release(group_id, member_id, None, cancelled, refund)

    def release_lease(self, lease: Lease, *, cancelled: bool = False, refund: bool = False) -> int:
        """Give back what a lease still holds; return how many records. They come again as suspects, unless
        ``cancelled`` or with a ``refund`` (see :meth:`release`)."""
        return self._release(lease.share_partition.group_id, lease.member_id, lease.token, cancelled, refund)

    def _release(
        self, group_id: str, member_id: str, token: UUID | None, cancelled: bool, refund: bool
    ) -> int:
        rows = self.database.call(
            sa.text(
                "select sharequeue.release(:group_id, :member_id, cast(:token as uuid), :cancelled, :refund)"
                " as released"
            ),
            group_id=group_id,
            member_id=member_id,
            token=str(token) if token else None,
            cancelled=cancelled,
            refund=refund,
        )
        return int(rows[0]["released"])

    def sweep(self, limit: int = 1000) -> Swept:
        """Settle the locks that have lapsed on idle share-partitions, ``limit`` leases at most, oldest
        first."""
        rows = self.database.call(sa.text("select * from sharequeue.sweep(:limit)"), limit=limit)
        return Swept(rows[0]["leases"], rows[0]["records"], rows[0]["stuck"])
