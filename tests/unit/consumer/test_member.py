"""When is a consumer a member, and what may it rely on meanwhile?"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sharequeue import WakeupException
from sharequeue.consumer import member as module
from sharequeue.groups.assignments import AssignedTopic
from sharequeue.groups.heartbeats import JOIN_EPOCH, LEAVE_EPOCH, HeartbeatRequest, HeartbeatResponse
from tests.unit.consumer.stub import consumer_of
from tests.waiting import wait_until


class Group:
    """What the coordinator, the configs and the state are to a member here."""

    def __init__(self) -> None:
        self.requests: list[int] = []
        self.released = 0
        self.error_code = 0
        self.level = "read_uncommitted"

    def beat(self, request: HeartbeatRequest) -> HeartbeatResponse:
        self.requests.append(request.member_epoch)
        if self.error_code:
            return HeartbeatResponse(self.error_code, "no")
        return HeartbeatResponse(0, None, request.member_id, 1, 10, 1000, (AssignedTopic("id", "t", (0,)),))

    def configs(self, *_: Any) -> Any:
        return SimpleNamespace(isolation_level=self.level, partition_max_record_locks=2000)

    def release(self, *_: str) -> None:
        self.released += 1


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    group = Group()
    monkeypatch.setattr(module, "GroupConfigs", SimpleNamespace(load=group.configs))
    monkeypatch.setattr(module, "State", lambda _: group)
    return group


@pytest.fixture
def consumer(group: Group) -> Iterator[Any]:
    """Give a consumer whose member is at work."""
    with consumer_of(max_poll_interval_ms=20) as consumer:
        consumer._member._beat = group.beat
        try:
            yield consumer
        finally:
            consumer._member.close(10)


def test_a_program_in_a_poll_is_in_use(consumer: Any, group: Group) -> None:
    """However long the poll waits it stays a member, and max.poll.interval.ms counts from its return."""
    ended: list[type[BaseException]] = []

    def program() -> None:
        try:
            consumer.poll()
        except WakeupException as error:
            ended.append(type(error))

    thread = threading.Thread(target=program)
    thread.start()
    member = consumer._member
    wait_until(lambda: consumer._fetcher._polling, 10)
    member.subscribe(("t",))
    member.polled()  # as the poll has said: it is the one that began before
    began = time.monotonic()
    wait_until(lambda: time.monotonic() > began + 0.2, 10)
    assert LEAVE_EPOCH not in group.requests
    assert consumer._member.metrics()["last-poll-seconds-ago"] == 0
    consumer.wakeup()
    thread.join(10)
    assert ended == [WakeupException]
    wait_until(lambda: LEAVE_EPOCH in group.requests, 10)
    assert member.exceeded
    assert group.released == 1
    member.polled()
    wait_until(lambda: group.requests.count(JOIN_EPOCH) == 2, 10)
