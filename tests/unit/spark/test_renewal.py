"""The renewal of locks goes on whatever the database answers, and ends a run by name when a lock is lost."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import READ_UNCOMMITTED, Delivery, Lease, SharePartition
from sharequeue.spark.leasing.budget import Budget
from sharequeue.spark.leasing.renewal import LeaseKeeper, LockLost
from sharequeue.state import locks
from sharequeue.state.calls import AcquiredLeases
from tests.waiting import PATIENCE_S

AT = SharePartition("g", "t", 0)


class NoConnection:
    """A state whose pool gives no connection for so many renewals."""

    def __init__(self, failures: int, lock_ms: int) -> None:
        self.failures, self.lock_ms, self.renewed = failures, lock_ms, threading.Event()

    def acquire(self, *_: object, **__: object) -> AcquiredLeases:
        now = datetime.now(UTC)
        held = (Delivery(1, OffsetSet.of((0, 1))),)
        return AcquiredLeases(
            (Lease(1, AT, 1, "m", 1, UUID(int=1), now, self.lock_ms, held, READ_UNCOMMITTED),), {}
        )

    def renew(self, leases: object) -> list[datetime]:
        self.failures -= 1
        if self.failures >= 0:
            raise PoolTimeoutError("QueuePool limit of size 5 overflow 5 reached")
        self.renewed.set()
        return [datetime.now(UTC)]

    def release(self, leases: object, **_: object) -> None:
        raise PoolTimeoutError("QueuePool limit of size 5 overflow 5 reached")


def keeper(state: Any, lost: threading.Event) -> LeaseKeeper:
    """Of a member without a group."""

    def cancel() -> None:
        lost.set()
        raise RuntimeError("the JVM is away")

    member: Any = SimpleNamespace(member_id="m", member_epoch=1, assignment=[AT], lost=threading.Event())
    jobs: Any = SimpleNamespace(cancel=cancel)
    return LeaseKeeper(state, member, jobs)


def test_a_pool_without_a_connection_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "RENEWALS_PER_LOCK", 120)  # soon, of a lock that does not lapse meanwhile
    state = NoConnection(1, 60_000)
    with keeper(state, threading.Event()) as kept:
        assert kept.acquire_within(Budget(1), [AT])
        assert state.renewed.wait(PATIENCE_S)


def test_a_lock_that_lapsed_meanwhile_ends_the_run() -> None:
    """Also when what is at work cannot be cancelled at once."""
    lost = threading.Event()
    with keeper(NoConnection(10**9, 300), lost) as kept:
        kept.acquire_within(Budget(1), [AT])
        assert lost.wait(PATIENCE_S)
        lost.clear()
        assert lost.wait(PATIENCE_S), "it is not tried again"
        with pytest.raises(LockLost, match="could not be renewed before its lock lapsed: QueuePool"):
            kept.check()
