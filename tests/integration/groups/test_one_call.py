"""How many calls of the database a heartbeat makes, and what happens between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from sharequeue.consumer.configs import ConsumerConfig
from sharequeue.consumer.member import ConsumerMember
from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import SharePartition
from sharequeue.groups import heartbeats
from sharequeue.groups.assignments import assignment_parameters, write_assignment
from sharequeue.groups.configs import ServiceConfigs, alter_group_configs
from sharequeue.groups.configs.published import publish_service_configs
from sharequeue.groups.descriptions import describe_group
from sharequeue.groups.heartbeats import HeartbeatRequest, HeartbeatResponse, expire_members_of, heartbeat
from sharequeue.groups.tokens import Tokens
from sharequeue.kafka.topics import TopicInfo
from sharequeue.service import create_app
from sharequeue.service.coordinator.watched_topics import record_topics
from sharequeue.state import State
from tests.waiting import wait_until

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"
SERVICE = ServiceConfigs()

Calls = Callable[[], list[str]]


@pytest.fixture
def queue(private_database: Database) -> Database:
    """Give a database where group `g` may work on four share-partitions of topic `t`, and is assigned at once."""
    record_topics(private_database, {"t": TopicInfo(TOPIC_ID, 4)}, ["t"])
    alter_group_configs(private_database, "g", {"share.assignment.interval.ms": 0})
    for partition in range(4):
        State(private_database).initialize(SharePartition("g", "t", partition), TOPIC_ID, 0, 2)
    return private_database


@pytest.fixture
def calls(queue: Database) -> Iterator[Calls]:
    """Give what was sent since the last time that somebody asked: statements, and COMMIT where it is a message."""
    sent: list[str] = []

    def statement(*arguments: Any) -> None:
        sent.append(arguments[2])

    def commit(_: sa.Connection) -> None:
        sent.append("commit")

    def since() -> list[str]:
        before = sent.copy()
        sent.clear()
        return before

    sa.event.listen(queue.engine, "before_cursor_execute", statement)
    sa.event.listen(queue.engine, "commit", commit)
    yield since
    sa.event.remove(queue.engine, "before_cursor_execute", statement)
    sa.event.remove(queue.engine, "commit", commit)


def beat(queue: Database, member: str, epoch: int, *topics: str) -> HeartbeatResponse:
    request = HeartbeatRequest("g", member, epoch, subscribed_topic_names=topics or None)
    return heartbeat(queue, request, SERVICE)


def test_a_heartbeat_is_one_call(queue: Database, calls: Calls) -> None:
    """A heartbeat with no news is one message to the database and one back; so is one that tells the news of others,
    or leaves. One after which the group is assigned anew is two."""
    calls()
    epoch = beat(queue, "m1", 0, "t").member_epoch
    assert len(calls()) == 2
    assert beat(queue, "m1", epoch).member_epoch == epoch
    [steady] = calls()
    assert "sharequeue.heartbeat(" in steady
    assert beat(queue, "m2", 0, "t").member_epoch == epoch + 1
    assert len(calls()) == 2
    told = beat(queue, "m1", epoch)
    assert (told.member_epoch, len(told.assignment or ())) == (epoch + 1, 1)
    assert len(calls()) == 1
    assert beat(queue, "m1", epoch + 1, "t").assignment == told.assignment
    assert len(calls()) == 1
    assert beat(queue, "m1", epoch + 1, "u").assignment == []
    assert len(calls()) == 2
    beat(queue, "m1", -1)
    assert len(calls()) == 1
    assert expire_members_of(queue, "g") == []
    assert len(calls()) == 1
    assert beat(queue, "m1", 9).error_code == 25
    assert len(calls()) == 1


def test_a_consumer_is_a_member_by_few_calls(queue: Database, calls: Calls, settings: Settings) -> None:
    """Its join is four calls of the database: configs, two of the heartbeat, topics that are lost. A heartbeat of
    nothing new is one, and loads no configs."""
    publish_service_configs(queue, ServiceConfigs.of({"group.share.min.heartbeat.interval.ms": "50"}))
    alter_group_configs(queue, "g", {"share.heartbeat.interval.ms": 50})
    heard = Mock()
    member = ConsumerMember(ConsumerConfig("g", settings), queue, heard, heard, heard)
    calls()
    member.subscribe(("t",))
    wait_until(lambda: member.metrics()["heartbeat-total"] > 4)
    member.membership.leave()
    names = ("stored_configs", "assign_share_partitions", "heartbeat", "lost", "leave_group")
    sent = [next((name for name in names if name in call), call) for call in calls()]
    assert sent[:4] == ["stored_configs", "heartbeat", "assign_share_partitions", "lost"]
    assert set(sent[4:-1]) == {"heartbeat"}, sent
    assert sent[-1] == "leave_group"


def test_a_member_through_the_service_is_few_calls(queue: Database, settings: Settings) -> None:
    """Its join is four calls: the token, new topics, two of the heartbeat. A heartbeat of nothing new is its token,
    and a part of one call for all members."""
    _, secret = Tokens(queue).create("User:ann")
    url = queue.engine.url.render_as_string(hide_password=False)
    app = create_app(settings.replace(database_url=url), SERVICE, coordinate=False)
    service = app.state.service
    service.coordinator.settle()
    sent: list[str] = []
    sa.event.listen(
        service.heartbeats.database.engine, "before_cursor_execute", lambda *given: sent.append(given[2])
    )
    body = {"group_id": "g", "member_id": "m1", "member_epoch": 0, "subscribed_topic_names": ["t"]}
    headers = {"Authorization": f"Bearer {secret}"}
    with TestClient(app, base_url="http://localhost", headers=headers) as client:
        joined = client.post("/v1/share-group-heartbeat", json=body).json()
        assert len(joined["assignment"]["topic_partitions"]) == 1
        assert len(sent) == 4, sent
        sent.clear()
        body = {"group_id": "g", "member_id": "m1", "member_epoch": joined["member_epoch"]}
        assert client.post("/v1/share-group-heartbeat", json=body).json()["error_code"] == 0
    token, alive = sent
    assert "principal_of_token" in token
    assert "keep_alive" in alive


def due_after_join(queue: Database, member: str) -> Any:
    """Join, and return what is to be assigned, as a service that stops before it assigns."""
    rows = queue.rows(
        sa.text(
            "select to_assign from sharequeue.heartbeat('g', :member, 0, null, '{t}', '', '', 9, '{1,9000,9000}',"
            " '{1,2,3}', '{0,0,0}', true)"
        ),
        member=member,
    )
    return rows[0]["to_assign"]


def assigned(queue: Database) -> dict[str, list[int]]:
    return {
        member.member_id: [p for topic in member.assignment for p in topic["partitions"]]
        for member in describe_group(queue, "g").members
    }


def test_an_assignment_of_an_older_epoch_is_not_written(queue: Database) -> None:
    """What one service computed before another member came is left out, and so is what another one wrote already."""
    due = due_after_join(queue, "m1")
    later = due_after_join(queue, "m2")
    write_assignment(queue, "g", due)
    assert assigned(queue) == {"m1": [], "m2": []}
    write_assignment(queue, "g", later)
    both = assigned(queue)
    assert sorted(p for partitions in both.values() for p in partitions) == [0, 1, 2, 3]
    later["subscriptions"].pop("m2")
    write_assignment(queue, "g", later)
    assert assigned(queue) == both


def test_a_service_that_stopped_before_it_assigned(queue: Database) -> None:
    """The next heartbeat of anybody assigns for all."""
    due_after_join(queue, "m1")
    assert describe_group(queue, "g").assignment_epoch == 0
    assert beat(queue, "m2", 0, "t").member_epoch == 3
    assert [len(partitions) for partitions in assigned(queue).values()] == [2, 2]


def test_members_that_keep_joining_delay_no_heartbeat(
    queue: Database, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heartbeat whose assignments come too late each time returns the assignment there is."""
    epoch = beat(queue, "m1", 0, "t").member_epoch
    others = iter(range(100))
    compute = assignment_parameters

    def too_late(due: Any) -> dict[str, Any]:
        due_after_join(queue, f"other{next(others)}")
        return compute(due)

    monkeypatch.setattr(heartbeats, "assignment_parameters", too_late)
    result = beat(queue, "m2", 0, "t")
    assert (result.error_code, result.member_epoch, result.assignment) == (0, epoch, [])
    assert len(describe_group(queue, "g").members) == 5
    monkeypatch.undo()
    again = beat(queue, "m2", result.member_epoch)
    assert again.member_epoch == epoch + 4
    assert again.assignment
