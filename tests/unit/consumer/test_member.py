"""When a consumer is a member, and what it may rely on meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from sharequeue import WakeupException
from sharequeue.consumer import member as module
from sharequeue.domain.errors import GroupAuthorizationFailed, UnknownMemberId, UnknownTopicId
from sharequeue.domain.values import SharePartition
from sharequeue.groups.assignments import AssignedTopic
from sharequeue.groups.heartbeats import JOIN_EPOCH, LEAVE_EPOCH, HeartbeatRequest, HeartbeatResponse
from sharequeue.state.calls import AcquiredLeases
from tests.unit.consumer.stub import consumer_of, holding_of, put
from tests.waiting import PATIENCE_S, wait_until

AT = SharePartition("g", "t", 0)


class Group:
    """What the coordinator, the configs and the state are to a member here."""

    def __init__(self) -> None:
        self.requests: list[int] = []
        self.released = 0
        self.error_code = 0
        self.level = "read_uncommitted"
        self.quiet = False
        self.lost: dict[str, UnknownTopicId] = {}
        self.figures = SimpleNamespace(lost_topics=lambda group_id, topics: self.lost)

    def beat(self, request: HeartbeatRequest, _: float | None = None) -> HeartbeatResponse:
        self.requests.append(request.member_epoch)
        if self.error_code:
            return HeartbeatResponse(self.error_code, "no")
        if self.quiet:
            return HeartbeatResponse(0, None, request.member_id, 1, 10, 1000)
        return HeartbeatResponse(
            0,
            None,
            request.member_id,
            1,
            10,
            1000,
            [AssignedTopic(topic_id="id", topic_name="t", partitions=[0])],
        )

    def configs(self, *_: Any) -> Any:
        return SimpleNamespace(
            isolation_level=self.level,
            partition_max_record_locks=2000,
        )

    def release_member(self, *_: str) -> None:
        self.released += 1


def transport(beat: Any) -> Any:
    """Send heartbeats by a function."""

    class Sent:
        def __call__(self, request: HeartbeatRequest, timeout: float | None = None) -> Any:
            return beat(request, timeout)

        def close(self) -> None:
            pass

    return Sent()


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
        consumer._member.membership._transport = transport(group.beat)
        try:
            yield consumer
        finally:
            consumer._member.membership.leave(60)


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
    wait_until(lambda: consumer._handover._polling)
    member.subscribe(("t",))
    member.polled()  # as the poll has said: it is the one that began before
    member._max_poll_s = 0.02  # not before: the program was between a subscription and a poll
    before = len(group.requests)
    wait_until(lambda: len(group.requests) > before + 10)  # ten heartbeats of 10 ms are longer than that
    assert LEAVE_EPOCH not in group.requests
    assert consumer._member.metrics()["last-poll-seconds-ago"] == 0
    consumer.wakeup()
    thread.join(PATIENCE_S)
    assert ended == [WakeupException]
    wait_until(lambda: LEAVE_EPOCH in group.requests)
    assert member.membership.unused
    assert group.released == 1
    member.polled()
    wait_until(lambda: group.requests.count(JOIN_EPOCH) == 2)


@pytest.mark.parametrize("how", ["expired", "out of use", "told by an acquire"])
def test_what_is_given_to_others_is_not_handed_out(consumer: Any, group: Group, how: str) -> None:
    """What waits for a poll goes when the member is out of the group, or gives its records back."""
    member, fetcher, gave = consumer._member, consumer._fetcher, []
    fetcher._state = SimpleNamespace(release=lambda leases, refund: gave.append(refund))
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
        member.membership.rejoin()
    wait_until(lambda: fetcher._handover.queue.records == 0 and True in gave)


def test_what_is_leased_while_the_member_is_lost(consumer: Any) -> None:
    """It is given back, with its delivery."""
    fetcher, gave = consumer._fetcher, []
    holding = holding_of(0, 3)

    def acquire(*_: Any, **__: Any) -> AcquiredLeases:
        fetcher.give_back_except(frozenset())
        return AcquiredLeases((holding.lease,), {})

    fetcher._state = SimpleNamespace(
        acquire=acquire, release=lambda leases, refund: gave.append((*leases, refund))
    )
    fetcher._ends = SimpleNamespace(readable=lambda *_: [AT], check_cluster=lambda: None)
    assert not fetcher._lease({AT: "id"})
    assert gave == [(holding.lease, True)]
    assert not fetcher._handover.queue.leases()


def test_the_isolation_level_is_known_before_the_assignment(
    consumer: Any, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is leased before it is known how it is to be read; heartbeats of nothing new do not load it again."""
    group.level = "read_committed"
    member, assigned = consumer._member, []

    def load(*_: Any) -> Any:
        assigned.append(dict(member.assignment))
        return group.configs()

    monkeypatch.setattr(module, "GroupConfigs", SimpleNamespace(load=load))
    member.subscribe(("t",))
    wait_until(lambda: bool(member.assignment))
    assert member.isolation_level == "read_committed"
    assert member.assignment == {AT: "id"}
    group.quiet = True
    before = len(group.requests)
    wait_until(lambda: len(group.requests) > before + 3)
    loaded = len(assigned)
    wait_until(lambda: len(group.requests) > before + 6)
    assert (assigned[0], len(assigned)) == ({}, loaded)


def test_an_older_subscription_s_error_is_forgotten(consumer: Any, group: Group) -> None:
    """Neither one that came before the new one, nor one whose heartbeat was under way, ends a poll."""
    member, fetcher = consumer._member, consumer._fetcher
    group.error_code = GroupAuthorizationFailed.code
    asked, go_on, beat = threading.Event(), threading.Event(), group.beat

    def slow(request: HeartbeatRequest, _: float | None) -> HeartbeatResponse:
        refused = beat(request)
        asked.set()
        go_on.wait(PATIENCE_S)
        return refused

    member.subscribe(("u",))
    wait_until(lambda: fetcher._handover._failure is not None)
    consumer._subscribed = ("u",)
    fetcher.start = consumer._listener.start = lambda: None
    member.membership._transport = transport(slow)
    consumer.subscribe(["v"])
    assert consumer.poll(0).is_empty()
    asked.wait(PATIENCE_S)
    group.error_code, member.membership._transport = 0, transport(beat)
    consumer.subscribe(["t"])
    go_on.set()
    wait_until(lambda: member.membership.joined)
    assert consumer.poll(0).is_empty()
    fetcher._handover.fail(GroupAuthorizationFailed())
    consumer.subscribe(["t"])
    assert consumer.poll(0).is_empty()


def test_a_lost_topic_is_reported_once(consumer: Any, group: Group) -> None:
    """By the next poll that has no records; one that is there again and is lost again is told again."""
    member, told = consumer._member, []

    def ask() -> None:
        member.answered((), group.beat(HeartbeatRequest("g", "m", 1)))

    for _ in range(2):
        group.lost = {"t": UnknownTopicId("t was deleted")}
        ask()
        ask()
        with pytest.raises(KafkaException) as raised:
            consumer.poll(0)
        told.append(raised.value.args[0].code())
        assert consumer.poll(0).is_empty()
        group.lost = {}
        ask()
        assert consumer.poll(0).is_empty()
    assert told == [KafkaError.UNKNOWN_TOPIC_ID] * 2


def test_an_error_waits_behind_records(consumer: Any) -> None:
    """A poll that has records returns them; the next one raises."""
    fetcher = consumer._fetcher
    pick = fetcher._handover.queue.pick

    def pick_while_it_fails(*arguments: Any, **named: Any) -> Any:
        fetcher._handover._failure = GroupAuthorizationFailed()
        return pick(*arguments, **named)

    put(consumer, 0, 1)
    fetcher._handover.queue.pick = pick_while_it_fails
    assert len(consumer.poll(0)) == 1
    with pytest.raises(KafkaException):
        consumer.poll(0)


def test_a_lost_topic_is_reported_to_the_error_callback() -> None:
    """Where the config has one: no poll raises then, and one that waits goes on waiting."""
    told: list[str] = []
    with consumer_of() as consumer:
        error_cb = {"error_cb": lambda error: told.append(error.name())}
        consumer._config = replace(consumer._config, reading=error_cb)
        consumer._handover.fail(UnknownTopicId("t was deleted"))
        assert consumer.poll(0).is_empty()
        put(consumer, 0, 1)
        consumer._handover.fail(UnknownTopicId("t was deleted"))
        assert len(consumer.poll(PATIENCE_S)) == 1
    assert told == ["UNKNOWN_TOPIC_ID"] * 2


def test_a_topic_made_again_is_read_anew(consumer: Any) -> None:
    """What was read ahead of the old one is not delivered as the new one's."""
    fetcher = consumer._fetcher
    left: list[tuple[str, int]] = []
    fetcher.reader.leave = left.append
    for topic_id in ("old", "old", "new", "new"):
        fetcher._leave_old_topics({AT: topic_id})
        fetcher._leave_old_topics({})
    assert left == [("t", 0)]
