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
from sharequeue.errors import UnknownMemberId
from sharequeue.groups.assignments import AssignedTopic
from sharequeue.groups.heartbeats import JOIN_EPOCH, LEAVE_EPOCH, HeartbeatRequest, HeartbeatResponse
from sharequeue.state.many import AcquiredMany
from sharequeue.values import SharePartition
from tests.unit.consumer.stub import consumer_of, holding_of, put
from tests.waiting import wait_until

AT = SharePartition("g", "t", 0)


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
        return SimpleNamespace(
            isolation_level=self.level,
            partition_max_record_locks=2000,
            record_lock_duration_ms=15_000,
            dead_letter_topic="",
        )

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
    with consumer_of() as consumer:
        consumer._member._beat = group.beat
        try:
            yield consumer
        finally:
            consumer._member.close(60)


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
    wait_until(lambda: consumer._fetcher._polling)
    member.subscribe(("t",))
    member.polled()  # as the poll has said: it is the one that began before
    member._max_poll_s = 0.02  # not before: the program was between a subscription and a poll
    began = time.monotonic()
    wait_until(lambda: time.monotonic() > began + 0.2)
    assert LEAVE_EPOCH not in group.requests
    assert consumer._member.metrics()["last-poll-seconds-ago"] == 0
    consumer.wakeup()
    thread.join(60)
    assert ended == [WakeupException]
    wait_until(lambda: LEAVE_EPOCH in group.requests)
    assert member.exceeded
    assert group.released == 1
    member.polled()
    wait_until(lambda: group.requests.count(JOIN_EPOCH) == 2)


@pytest.mark.parametrize("how", ["expired", "out of use", "told by an acquire"])
def test_what_is_given_to_others_is_not_handed_out(consumer: Any, group: Group, how: str) -> None:
    """What waits for a poll goes when the member is out of the group, or gives its records back."""
    member, fetcher, gave = consumer._member, consumer._fetcher, []
    fetcher._state = SimpleNamespace(many=SimpleNamespace(release=lambda leases, refund: gave.append(refund)))
    member.subscribe(("t",))
    member.polled()
    wait_until(lambda: bool(group.requests))
    put(consumer, 0, 3)
    if how == "expired":
        group.error_code = UnknownMemberId.code
    elif how == "out of use":
        member._max_poll_s = 0.02
        member.returned()
    else:
        member.rejoin()
    wait_until(lambda: fetcher._shelf.records == 0 and True in gave)


def test_what_is_leased_while_the_member_is_lost(consumer: Any) -> None:
    """It is given back, with its delivery."""
    fetcher, gave = consumer._fetcher, []
    holding = holding_of(0, 3)

    def acquire(*_: Any, **__: Any) -> AcquiredMany:
        fetcher.drop(frozenset())
        return AcquiredMany((holding.lease,), {})

    many = SimpleNamespace(acquire=acquire, release=lambda leases, refund: gave.append((*leases, refund)))
    fetcher._state = SimpleNamespace(many=many)
    fetcher._ends = SimpleNamespace(readable=lambda *_: [AT], check_cluster=lambda: None)
    assert not fetcher._lease({AT: "id"})
    assert gave == [(holding.lease, True)]
    assert not fetcher._shelf.leases()


def test_the_isolation_level_is_known_before_the_assignment(
    consumer: Any, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is leased before it is known how it is to be read."""
    group.level = "read_committed"
    member, assigned = consumer._member, []

    def load(*_: Any) -> Any:
        assigned.append(dict(member.assignment))
        return group.configs()

    monkeypatch.setattr(module, "GroupConfigs", SimpleNamespace(load=load))
    member.topics = ("t",)
    member._one(0.0)
    assert assigned == [{}]
    assert member.isolation_level == "read_committed"
    assert member.lock_duration_ms == 15_000
    assert member.assignment == {AT: "id"}
