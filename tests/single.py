"""The operations of ``State`` on one share-partition or one lease, for tests: a refusal is raised.

Each makes the call for many with one of them, as consumers and runs do. Only what the log looks like, which no caller
of ``State`` knows, goes to the SQL function for one (``acquire_of_log``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

import sqlalchemy as sa

from sharequeue.domain.errors import ShareError
from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.domain.values import (
    Acknowledged,
    AcknowledgeType,
    KeptRecords,
    Lease,
    LeaseOutput,
    LogSeen,
    SharePartition,
)
from sharequeue.state import State
from sharequeue.state.calls import LeaseAcknowledgement
from sharequeue.state.rows import ACQUIRED, lease_of, raise_error_of_row

_T = TypeVar("_T")


def _of_one(results: Sequence[_T | ShareError]) -> _T:
    (result,) = results
    if isinstance(result, ShareError):
        raise result
    return result


def observe(
    state: State, at: SharePartition, topic_id: str, log_start: int, log_end: int, last_stable_offset: int
) -> str | None:
    """Record the offsets of one log; return the share-partition's status."""
    return state.observe([LogSeen(at, topic_id, log_start, log_end, last_stable_offset)])[at]


def alter_offsets(state: State, at: SharePartition, topic_id: str, start_offset: int) -> int:
    """Restart one share-partition at an offset; return its new state epoch."""
    rows = state.administration.reset_offsets(
        at.group_id, {(at.topic, at.partition): start_offset}, {at.topic: topic_id}, execute=True
    )
    (row,) = rows
    if row.error is not None:
        raise row.error
    assert row.state_epoch is not None
    return row.state_epoch


def acquire(
    state: State,
    at: SharePartition,
    member_id: str,
    member_epoch: int | None,
    max_records: int,
    *,
    leave_out: OffsetSet = EMPTY,
    **options: Any,
) -> Lease | None:
    """Lease from one share-partition; None when there is nothing to lease."""
    acquired = state.acquire([at], member_id, member_epoch, max_records, leave_outs=[leave_out], **options)
    if at in acquired.refusals:
        raise acquired.refusals[at]
    return acquired.leases[0] if acquired.leases else None


def acquire_of_log(
    state: State,
    at: SharePartition,
    member_id: str,
    max_records: int,
    *,
    log_batches: Sequence[tuple[int, int]] | None = None,
    aborted: OffsetSet = EMPTY,
    redelivery: str = "kafka",
    mode: str = "batch_optimized",
) -> Lease | None:
    """Lease by the batches of the log, first and last offset, and the offsets of aborted transactions."""
    rows = state.database.call(
        sa.text(
            f"select {ACQUIRED} from sharequeue.acquire(:group_id, :topic, :partition, null, :member_id, null,"  # noqa: S608
            " :max_records, p_redelivery => :redelivery, p_mode => :mode,"
            " p_log_firsts => cast(:log_firsts as bigint[]), p_log_lasts => cast(:log_lasts as bigint[]),"
            " p_aborted => cast(:aborted as int8multirange)) as a"
        ),
        group_id=at.group_id,
        topic=at.topic,
        partition=at.partition,
        member_id=member_id,
        max_records=max_records,
        redelivery=redelivery,
        mode=mode,
        log_firsts=None if log_batches is None else [first for first, _ in log_batches],
        log_lasts=None if log_batches is None else [last for _, last in log_batches],
        aborted=str(aborted),
    )
    if not rows:
        return None
    raise_error_of_row(rows[0])
    return lease_of(rows, at, member_id, None)


def acknowledge(
    state: State,
    lease: Lease,
    outcomes: Mapping[AcknowledgeType, OffsetSet],
    *,
    outputs: Sequence[LeaseOutput] = (),
    request_id: UUID | None = None,
    not_before: datetime | None = None,
    kept: KeptRecords | None = None,
) -> Acknowledged:
    """Acknowledge records of one lease."""
    each = LeaseAcknowledgement(lease, outcomes, outputs, not_before, kept=kept)
    return _of_one(state.acknowledge([each], request_id=request_id))


def renew(state: State, lease: Lease) -> datetime:
    """Renew the lock of one lease; return its new expiry."""
    return _of_one(state.renew([lease]))


def release(state: State, lease: Lease, *, cancelled: bool = False, refund: bool = False) -> int:
    """Give back what one lease still holds; return how many records that was."""
    return state.release([lease], cancelled=cancelled, refund=refund)


def take_snapshot(state: State, at: SharePartition) -> int:
    """Write a snapshot of one share-partition into the journal; return its first journal id."""
    (row,) = state.database.rows(
        sa.text(
            "select sharequeue.take_snapshot(share_partition_id) as journal_id from sharequeue.share_partitions"
            " where group_id = :group_id and topic = :topic and partition = :partition"
        ),
        group_id=at.group_id,
        topic=at.topic,
        partition=at.partition,
    )
    return int(row["journal_id"])
