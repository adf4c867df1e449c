"""The renewal of locks goes on whatever the database answers, and ends a run by name when a lock is lost."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from pipelines.renewal import LeaseKeeper, LockLost
from sharequeue.state import SharePartition

AT = SharePartition("g", "t", 0)


class NoConnection:
    """A state whose pool gives no connection for so many renewals."""

    def __init__(self, failures: int, lock_ms: int) -> None:
        self.failures, self.lock_ms, self.renewed = failures, lock_ms, threading.Event()

    def acquire(self, *_: object, **__: object) -> Any:
        return SimpleNamespace(lease_id=1, lock_duration_ms=self.lock_ms, share_partition=AT, member_epoch=1)

    def renew(self, lease: object) -> None:
        self.failures -= 1
        if self.failures >= 0:
            raise PoolTimeoutError("QueuePool limit of size 5 overflow 5 reached")
        self.renewed.set()

    def release_lease(self, lease: object, **_: object) -> None:
        raise PoolTimeoutError("QueuePool limit of size 5 overflow 5 reached")


def keeper(state: Any, lost: threading.Event, monkeypatch: pytest.MonkeyPatch) -> LeaseKeeper:
    """Of a member without a group."""

    def cancel() -> None:
        lost.set()
        raise RuntimeError("the JVM is away")

    monkeypatch.setattr(LeaseKeeper, "current", lambda self, lease: lease)
    member: Any = SimpleNamespace(member_id="m", member_epoch=1, assignment=[AT], lost=threading.Event())
    return LeaseKeeper(state, member, cancel)


def test_a_pool_without_a_connection_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    state = NoConnection(1, 1500)
    with keeper(state, threading.Event(), monkeypatch) as kept:
        assert kept.acquire(AT, 1, None) is not None
        assert state.renewed.wait(20)


def test_a_lock_that_lapsed_meanwhile_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when what is at work cannot be cancelled at once."""
    lost = threading.Event()
    with keeper(NoConnection(10**9, 300), lost, monkeypatch) as kept:
        kept.acquire(AT, 1, None)
        assert lost.wait(20)
        assert kept._thread.is_alive()
        with pytest.raises(LockLost, match="could not be renewed before its lock lapsed: QueuePool"):
            kept.check()
