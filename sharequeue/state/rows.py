"""Turn rows of state functions into values and errors, and names into parameters.

Shared by the parts of ``sharequeue.state.State``; nothing here uses the database.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any, Literal
from uuid import UUID

import sqlalchemy as sa

from sharequeue.domain.errors import ShareError, error_for
from sharequeue.domain.values import (
    Acknowledged,
    AcknowledgeType,
    Delivery,
    Lease,
    SharePartition,
)
from sharequeue.state.offset_sets import offsets_in, offsets_out

Redelivery = Literal["kafka", "fan_out"]
"""How redelivered records are leased: under Kafka's throttle, or with suspects divided (poison isolation)."""

AcquireMode = Literal["batch_optimized", "record_limit"]
"""Kafka's ``share.acquire.mode`` (KIP-1206)."""

OUTCOMES = (AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT, AcknowledgeType.GAP)
"""The outcomes in the order of the SQL functions' sets of offsets."""

ACQUIRED = (
    "error_code, error_message, lease_id, token, state_epoch, lock_duration_ms, expires_at, delivery_count,"
    " isolation_level, " + offsets_out("a.offsets")
)
"""The columns of an acquire with the alias `a`."""


@lru_cache(maxsize=128)
def statement(sql: str) -> sa.TextClause:
    """Return the statement of this text, parsed once: parsing takes SQLAlchemy a tenth of a millisecond."""
    return sa.text(sql)


def share_partition_name(at: SharePartition) -> dict[str, str | int]:
    """Return the parameters that identify a share-partition in SQL functions."""
    return {"group_id": at.group_id, "topic": at.topic, "partition": at.partition}


def acknowledged_of(row: Mapping[Any, Any]) -> Acknowledged:
    """Return the result of an acknowledgement from its row."""
    return Acknowledged(**{field.name: row[field.name] for field in fields(Acknowledged)})


def error_of_row(row: Mapping[Any, Any], prefix: str = "") -> ShareError | None:
    """Return the error in a row, None without one."""
    code = row[f"{prefix}error_code"]
    return error_for(int(str(code)), str(row[f"{prefix}error_message"])) if code else None


def raise_error_of_row(row: Mapping[Any, Any]) -> None:
    """Raise the error in a row, if it has one."""
    error = error_of_row(row)
    if error is not None:
        raise error


def lease_of(
    rows: Sequence[Mapping[Any, Any]], at: SharePartition, member_id: str, member_epoch: int | None
) -> Lease:
    """Return the lease from the rows of an acquire, one row per range."""
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
        deliveries=tuple(Delivery(row["delivery_count"], offsets_in(row)) for row in rows),
        isolation_level=first["isolation_level"],
        suspects=bool(first.get("suspects")),
        last_attempt=bool(first.get("last_attempt")),
        ordered=bool(first.get("ordered")),
    )
