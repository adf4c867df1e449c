"""A group, a topic or a row that is sick delays nobody else: others' sessions end, locks are swept, topics start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

import pytest
from sqlalchemy import text

from sharequeue.database import Database
from sharequeue.domain.errors import BrokerNotAvailable
from sharequeue.domain.values import SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.groups.descriptions import describe_group
from sharequeue.groups.heartbeats import HeartbeatRequest, heartbeat
from sharequeue.kafka.topics import LogOffsets, Topics
from sharequeue.service.coordinator import Coordinator
from sharequeue.state import State
from tests import single
from tests.fixtures.logs import add_partitions
from tests.waiting import one_round

MakeTopic = Callable[..., str]
OF_GROUP = "where group_id = :group for update"
OF_STATE = "join sharequeue.share_partitions sp using (share_partition_id) where sp.group_id = :group for update of t"
HELD: Mapping[str, str] = {
    "a held group": f"select from sharequeue.share_groups {OF_GROUP}",
    "a held member": f"select from sharequeue.members {OF_GROUP}",
    "a held share-partition": f"select from sharequeue.share_partitions {OF_GROUP}",
    "a held observation": f"select from sharequeue.observations {OF_GROUP}",
    "held settings": f"select from sharequeue.group_settings {OF_GROUP}",
    "a held lease": f"select from sharequeue.leases t {OF_STATE}",
    "a held batch": f"select from sharequeue.in_flight_batches t {OF_STATE}",
    "a held topic": "select from sharequeue.topics where topic = :topic for update",
}
SICK = ("broken settings", "a poisonous lease", *HELD, "a dark topic")
NAMED = set(SICK) - {"held settings", "a held topic", "a dark topic"}
"""Groups of which something cannot be done. Settings are not written here; of two it is the topic that is named."""


@contextmanager
def sick(database: Database, kind: str, topic: str) -> Iterator[None]:
    """Have one group sick, in one way."""
    with ExitStack() as stack:
        if kind in HELD:
            connection = stack.enter_context(database.engine.connect())
            stack.enter_context(connection.begin())
            connection.execute(text(HELD[kind]), {"group": kind, "topic": topic})
        elif kind == "broken settings":
            stack.callback(_set_interval, database, kind, "0")
            _set_interval(database, kind, "at once")
        elif kind == "a poisonous lease":
            _run(
                database,
                "create function poison() returns trigger language plpgsql as"
                " $$ begin raise exception 'a poisonous row'; end $$",
                "create trigger poison before delete on sharequeue.leases for each row"
                " when (old.member_id = 'poison') execute function poison()",
            )
            stack.callback(_run, database, "drop trigger poison on sharequeue.leases")
        yield


def _run(database: Database, *statements: str, **names: str) -> None:
    with database.transaction() as connection:
        for statement in statements:
            connection.execute(text(statement), names)


def _set_interval(database: Database, group: str, value: str) -> None:
    """Past every check, as a restore from elsewhere may."""
    _run(
        database,
        "set local session_replication_role = replica",
        "update sharequeue.group_configs set value = :value where group_id = :group"
        " and name = 'share.assignment.interval.ms'",
        group=group,
        value=value,
    )


class Neighbours:
    """Groups with a member that is gone, a lapsed lock, a new topic, and a member that stays."""

    def __init__(
        self, database: Database, topics: Topics, make_topic: MakeTopic, kinds: tuple[str, ...]
    ) -> None:
        self.database, self.topics, self.groups = database, topics, (*kinds, "the well one")
        self.coordinator = Coordinator(database, topics)
        self.old = {group: make_topic() for group in self.groups}
        self.new = {group: make_topic() for group in self.groups}
        for group in self.groups:
            alter_group_configs(
                database, group, {"share.auto.offset.reset": "earliest", "share.assignment.interval.ms": "0"}
            )
            self.join(group, "gone", self.old[group])
        one_round(self.coordinator)
        state = State(database)
        _run(database, "update sharequeue.share_partitions set log_end = 5, last_stable_offset = 5")
        for group in self.groups:
            holder = "poison" if group == "a poisonous lease" else "holder"
            lease = single.acquire(state, SharePartition(group, self.old[group], 0), holder, None, 5)
            assert lease is not None
        _run(database, "select sharequeue.set_clock_offset(interval '1 min')")
        for group in self.groups:
            self.join(group, "stays", self.old[group], self.new[group])
        if "a held topic" in kinds:
            add_partitions(topics, self.old["a held topic"], 2)

    def join(self, group: str, member: str, *topics: str) -> None:
        request = HeartbeatRequest(group, member, 0, subscribed_topic_names=topics)
        assert heartbeat(self.database, request).error_code == 0

    def done(self, group: str) -> list[str]:
        """What of a group is done: its member is out, its lock is swept, its new topic has begun."""
        members = [member.member_id for member in describe_group(self.database, group).members]
        statuses = State(self.database).figures.describe(group)
        return [
            *(["expired"] if members == ["stays"] else []),
            *(["swept"] if not any(status.acquired for status in statuses) else []),
            *(["started"] if self.new[group] in {status.topic for status in statuses} else []),
        ]


@pytest.mark.parametrize(
    "kinds", [pytest.param(SICK, id="all"), *(pytest.param((k,), id=k, marks=pytest.mark.deep) for k in SICK)]
)
def test_a_sick_group_does_not_delay_the_others(
    private_database: Database,
    topics: Topics,
    make_topic: MakeTopic,
    monkeypatch: pytest.MonkeyPatch,
    kinds: tuple[str, ...],
) -> None:
    """While groups before it are sick, all that is due for the last group happens in one step, which waits for
    none of them; the sick ones are named; when they are well again, all of theirs happens too."""
    neighbours = Neighbours(private_database, topics, make_topic, kinds)
    coordinator, offsets = neighbours.coordinator, topics.offsets

    def dark(name: str, patience: float | None = None) -> dict[int, LogOffsets]:
        if name == neighbours.new.get("a dark topic"):
            raise BrokerNotAvailable("its leader does not answer")
        return offsets(name, patience)

    with ExitStack() as stack:
        for kind in kinds:
            stack.enter_context(sick(private_database, kind, neighbours.old[kind]))
        monkeypatch.setattr(topics, "offsets", dark)
        one_round(coordinator)
        assert neighbours.done("the well one") == ["expired", "swept", "started"]
        assert set(coordinator.groups.stuck) == NAMED & set(kinds)
        if "a dark topic" in kinds:
            waits = coordinator.waiting["a dark topic", neighbours.new["a dark topic"]]
            assert waits == "its leader does not answer"
        if "a held topic" in kinds:
            assert "locked" in coordinator.watcher.faults[neighbours.old["a held topic"]]
        monkeypatch.setattr(topics, "offsets", offsets)
    one_round(coordinator)
    for group in neighbours.groups:
        assert neighbours.done(group) == ["expired", "swept", "started"], group
    assert coordinator.groups.stuck == {}
    assert coordinator.watcher.faults == {}
    if "a held topic" in kinds:
        grown = [s.spso for s in State(private_database).figures.describe("a held topic") if s.partition == 1]
        assert grown == [0]
