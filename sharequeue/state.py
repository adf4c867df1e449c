"""What may be done to a share-partition, and what is its state?

A typed layer over the SQL functions in ``sql/functions``: one method, one function, one round trip, one
transaction. The rules themselves are in SQL, where every client meets the same ones; this module turns rows
into values, error codes into exceptions by Kafka's name, and repeats a call whose reply was lost: acquire and
acknowledge carry a request id for that, the others have the same effect done twice as once. Terms and
rules: KIP-932, KIP-1191, KIP-1222, KIP-1226.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal
from uuid import UUID, uuid4

import sqlalchemy as sa

from sharequeue.errors import error_for
from sharequeue.leases import (
    Acknowledged,
    AcknowledgeType,
    ArchivedRun,
    DeadLetterBatch,
    DeadLetterRun,
    Delivery,
    DeliveryCount,
    Lease,
    LeaseOutput,
    LeaseRow,
    OutputRow,
    SharePartition,
    SharePartitionStatus,
    Swept,
)
from sharequeue.offsets import EMPTY, OffsetSet
from sharequeue.state_administration import StateAdministration, share_partition_name

__all__ = [
    "AcknowledgeType",
    "Acknowledged",
    "AcquireMode",
    "ArchivedRun",
    "DeadLetterBatch",
    "DeadLetterRun",
    "Delivery",
    "DeliveryCount",
    "Lease",
    "LeaseOutput",
    "LeaseRow",
    "OutputRow",
    "Redelivery",
    "SharePartition",
    "SharePartitionStatus",
    "State",
    "Swept",
]

Redelivery = Literal["kafka", "fan_out"]
"""How records that come again are dealt out: under Kafka's throttle, or suspects divided (poison isolation)."""

AcquireMode = Literal["batch_optimized", "record_limit"]
"""Kafka's ``share.acquire.mode`` (KIP-1206)."""


class State(StateAdministration):
    """The operations on share-partition state, over one database. Safe to share between threads.

    A refusal raises the error of Kafka's name from ``sharequeue.errors`` and has changed nothing.
    """

    def now(self) -> datetime:
        """The time by which locks lapse."""
        clock: datetime = self._database.rows(sa.text("select sharequeue.clock() as clock"))[0]["clock"]
        return clock

    def initialize(self, at: SharePartition, topic_id: str, start_offset: int, state_epoch: int) -> bool:
        """Gives a share-partition its start offset (R-IN); answers whether it was new. A second time
        changes nothing."""
        rows = self._database.call(
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
        """Records what the broker said of the log; a log start past SPSO moves SPSO (R-LS).

        Answers the share-partition's status, None when it is not initialised.
        """
        rows = self._database.call(
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
    ) -> Lease | None:
        """Leases up to ``max_records`` records: redeliverable ones first, then fresh ones up to the log end.

        None when there is nothing to lease. With ``member_epoch`` the member must be live in the group. The
        arguments from ``mode`` on belong to ``redelivery="kafka"``: first and last offset of the log's
        batches, and the offsets of aborted transactions, shape the lease as a broker would (R-AQ, R-IL).
        """
        rows = self._database.call(
            sa.text(
                "select * from sharequeue.acquire(:group_id, :topic, :partition, cast(:state_epoch as integer),"
                " :member_id, cast(:member_epoch as integer), :max_records, cast(:lock_duration_ms as integer),"
                " cast(:request_id as uuid), :redelivery, :mode, cast(:batch_size as bigint),"
                " cast(:log_firsts as bigint[]), cast(:log_lasts as bigint[]), cast(:aborted as int8multirange))"
            ),
            **share_partition_name(at),
            state_epoch=state_epoch,
            member_id=member_id,
            member_epoch=member_epoch,
            max_records=max_records,
            lock_duration_ms=lock_duration_ms,
            request_id=str(request_id or uuid4()),
            redelivery=redelivery,
            mode=mode,
            batch_size=batch_size,
            log_firsts=None if log_batches is None else [first for first, _ in log_batches],
            log_lasts=None if log_batches is None else [last for _, last in log_batches],
            aborted=str(aborted),
        )
        if not rows:
            return None
        _raise_refusal(rows[0])
        deliveries = tuple(Delivery(row["delivery_count"], OffsetSet.parse(row["offsets"])) for row in rows)
        first = rows[0]
        return Lease(
            lease_id=first["lease_id"],
            share_partition=at,
            state_epoch=first["state_epoch"],
            member_id=member_id,
            member_epoch=member_epoch,
            token=UUID(str(first["token"])),
            expires_at=first["expires_at"],
            lock_duration_ms=first["lock_duration_ms"],
            deliveries=deliveries,
        )

    def acknowledge(
        self,
        lease: Lease,
        outcomes: Mapping[AcknowledgeType, OffsetSet],
        *,
        outputs: Sequence[LeaseOutput] = (),
        request_id: UUID | None = None,
        not_before: datetime | None = None,
    ) -> Acknowledged:
        """Answers records of a lease, all or nothing; the outputs named count from this commit on.

        What is released is delivered again ``not_before`` that time, by the database's clock.

        What no set names stays leased. Raises InvalidRecordState when an offset is not held under this
        lease, and FencedStateEpoch, UnknownMemberId or FencedMemberEpoch when its holder has been fenced.
        """
        if AcknowledgeType.RENEW in outcomes:
            raise ValueError("acknowledge() answers records; to keep a lock, call renew()")
        rows = self._database.call(
            sa.text(
                "select * from sharequeue.acknowledge(:group_id, :topic, :partition, :state_epoch, :member_id,"
                " cast(:member_epoch as integer), cast(:token as uuid), cast(:request_id as uuid),"
                " cast(:accept as int8multirange), cast(:release as int8multirange),"
                " cast(:reject as int8multirange), cast(:gap as int8multirange), cast(:outputs as jsonb), '{}',"
                " cast(:not_before as timestamptz), :lease_id)"
            ),
            **_holder(lease),
            request_id=str(request_id or uuid4()),
            accept=str(outcomes.get(AcknowledgeType.ACCEPT, EMPTY)),
            release=str(outcomes.get(AcknowledgeType.RELEASE, EMPTY)),
            reject=str(outcomes.get(AcknowledgeType.REJECT, EMPTY)),
            gap=str(outcomes.get(AcknowledgeType.GAP, EMPTY)),
            outputs=json.dumps(
                [{"sink": o.sink, "location": o.location, "records": o.records} for o in outputs]
            ),
            not_before=not_before,
            lease_id=lease.lease_id,
        )
        row = dict(rows[0])
        _raise_refusal(row)
        return Acknowledged(**{name: value for name, value in row.items() if not name.startswith("error_")})

    def renew(self, lease: Lease) -> datetime:
        """A full lock duration from now for what the lease still holds (KIP-1222); answers the new expiry.

        Raises InvalidRecordState when the lock has lapsed or the group forbids renewal.
        """
        rows = self._database.call(
            sa.text(
                "select * from sharequeue.renew(:group_id, :topic, :partition, :state_epoch, :member_id,"
                " cast(:member_epoch as integer), cast(:token as uuid))"
            ),
            **_holder(lease),
        )
        _raise_refusal(rows[0])
        expires_at: datetime = rows[0]["expires_at"]
        return expires_at

    def release(self, group_id: str, member_id: str) -> int:
        """Gives back, unanswered, everything a member holds in a group; answers how many records that was."""
        return self._release(group_id, member_id, None)

    def release_lease(self, lease: Lease) -> int:
        """Gives back, unanswered, what a lease still holds: its records come again as suspects."""
        return self._release(lease.share_partition.group_id, lease.member_id, lease.token)

    def _release(self, group_id: str, member_id: str, token: UUID | None) -> int:
        rows = self._database.call(
            sa.text("select sharequeue.release(:group_id, :member_id, cast(:token as uuid)) as released"),
            group_id=group_id,
            member_id=member_id,
            token=str(token) if token else None,
        )
        return int(rows[0]["released"])

    def sweep(self, limit: int = 1000) -> Swept:
        """Settles the locks that have lapsed on idle share-partitions, ``limit`` leases at most, oldest
        first."""
        rows = self._database.call(sa.text("select * from sharequeue.sweep(:limit)"), limit=limit)
        return Swept(rows[0]["leases"], rows[0]["records"])

    def open_dead_letters(self, at: SharePartition, max_records: int) -> DeadLetterBatch | None:
        """The batch of dead letters to write next: the open one again, or a new one of the lowest offsets.

        None when none waits.
        """
        rows = self._database.call(
            sa.text(
                "select * from sharequeue.open_dead_letters(:group_id, :topic, :partition, :max_records)"
            ),
            **share_partition_name(at),
            max_records=max_records,
        )
        if not rows:
            return None
        letters = tuple(
            DeadLetterRun(row["delivery_count"], row["cause"], OffsetSet.parse(row["offsets"]))
            for row in rows
        )
        first = rows[0]
        return DeadLetterBatch(at, first["sequence"], first["topic_id"], letters, first["opened_at"])

    def close_dead_letters(self, at: SharePartition, sequence: int, *, dropped: bool = False) -> int:
        """ARCHIVING becomes ARCHIVED for a batch the broker confirmed; answers its records, 0 if closed
        before."""
        rows = self._database.call(
            sa.text(
                "select sharequeue.close_dead_letters(:group_id, :topic, :partition, :sequence, :dropped) as closed"
            ),
            **share_partition_name(at),
            sequence=sequence,
            dropped=dropped,
        )
        return int(rows[0]["closed"])

    def dead_letters(self, group_id: str) -> list[ArchivedRun]:
        """Every closed run of dead letters of a group, in the order of writing."""
        rows = self._database.rows(
            sa.text(
                "select sp.topic, sp.partition, r.sequence, r.cause, r.delivery_count, r.offsets, b.written_at,"
                " b.dropped from sharequeue.dead_letter_runs r"
                " join sharequeue.dead_letter_batches b using (share_partition_id, sequence)"
                " join sharequeue.share_partitions sp using (share_partition_id)"
                " where sp.group_id = :group_id and b.written_at is not null"
                " order by sp.topic, sp.partition, r.sequence, r.cause, r.delivery_count"
            ),
            group_id=group_id,
        )
        return [
            ArchivedRun(
                SharePartition(group_id, row["topic"], row["partition"]),
                row["sequence"],
                row["cause"],
                row["delivery_count"],
                OffsetSet.parse(row["offsets"]),
                row["written_at"],
                row["dropped"],
            )
            for row in rows
        ]

    def outputs(self, group_id: str, sink: str) -> list[OutputRow]:
        """The outputs of a sink that count: the manifest its readers go by."""
        rows = self._database.rows(
            sa.text(
                "select o.lease_id, sp.topic, sp.partition, o.location, o.records, o.acknowledged_at"
                " from sharequeue.lease_outputs o join sharequeue.share_partitions sp using (share_partition_id)"
                " where sp.group_id = :group_id and o.sink = :sink order by o.lease_id"
            ),
            group_id=group_id,
            sink=sink,
        )
        return [OutputRow(**row) for row in rows]

    def describe(self, group_id: str | None = None) -> list[SharePartitionStatus]:
        """The figures of every share-partition of a group, or of all groups."""
        rows = self._database.rows(
            sa.text(
                "select group_id, topic, partition, topic_id, status, state_epoch, spso, speo, log_start, log_end,"
                " last_stable_offset, observed_at, lag, in_flight, available, acquired, archiving,"
                " delivery_complete_count, lost_records, highest_delivery_count, leases, next_expiry, waiting,"
                " paused_reason, fault"
                " from sharequeue.share_partition_status"
                " where cast(:group_id as text) is null or group_id = :group_id order by group_id, topic, partition"
            ),
            group_id=group_id,
        )
        return [SharePartitionStatus(**row) for row in rows]

    def leases(self, group_id: str) -> list[LeaseRow]:
        """Who holds what in a group, soonest to lapse first."""
        rows = self._database.rows(
            sa.text(
                "select lease_id, topic, partition, member_id, records, acquired_at, expires_at, seconds_left"
                " from sharequeue.held_leases where group_id = :group_id order by expires_at, lease_id"
            ),
            group_id=group_id,
        )
        return [LeaseRow(**row) for row in rows]

    def delivery_counts(self, group_id: str) -> list[DeliveryCount]:
        """The histogram of delivery counts over all records of a group that have ended, by outcome."""
        rows = self._database.rows(
            sa.text(
                "select sp.topic, sp.partition, d.outcome, d.delivery_count, d.records"
                " from sharequeue.delivery_count_totals d"
                " join sharequeue.share_partitions sp using (share_partition_id)"
                " where sp.group_id = :group_id order by sp.topic, sp.partition, d.outcome, d.delivery_count"
            ),
            group_id=group_id,
        )
        return [DeliveryCount(**row) for row in rows]

    def verify(self, group_id: str | None = None) -> list[str]:
        """The invariants of the state that do not hold, in words; empty when all do."""
        rows = self._database.rows(
            sa.text("select * from sharequeue.verify(cast(:group_id as text))"), group_id=group_id
        )
        return [f"{row['group_id']} {row['topic']}-{row['partition']}: {row['violation']}" for row in rows]


def _holder(lease: Lease) -> dict[str, str | int | None]:
    return {
        **share_partition_name(lease.share_partition),
        "state_epoch": lease.state_epoch,
        "member_id": lease.member_id,
        "member_epoch": lease.member_epoch,
        "token": str(lease.token),
    }


def _raise_refusal(row: Mapping[Any, Any]) -> None:
    if row["error_code"]:
        raise error_for(int(str(row["error_code"])), str(row["error_message"]))
