"""Topics that are not there: however many members name, a turn asks for so many, and nobody else waits for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from sqlalchemy import text

from sharequeue.database import Database
from sharequeue.domain.values import SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.groups.heartbeats import HeartbeatRequest, heartbeat
from sharequeue.kafka import topics as asking
from sharequeue.kafka.topics import TopicInfo, Topics, TopicsFound
from sharequeue.service.coordinator import Coordinator
from sharequeue.service.coordinator.watched_topics import MISSING_AT_ONCE, record_topics
from sharequeue.state import State

NAMES = tuple(f"missing-{number:04}" for number in range(6_000))
PARTS = 6
"""Of two groups each has half of what is asked for in a turn."""


def join(database: Database, group: str, member: str, topics: tuple[str, ...]) -> None:
    alter_group_configs(
        database, group, {"share.auto.offset.reset": "earliest", "share.assignment.interval.ms": 0}
    )
    assert (
        heartbeat(database, HeartbeatRequest(group, member, 0, subscribed_topic_names=topics)).error_code == 0
    )


def started(database: Database, group: str) -> set[str]:
    return {status.topic for status in State(database).figures.describe(group)}


def test_a_turn_asks_for_a_bounded_number_of_names(
    private_database: Database,
    topics: Topics,
    topic: str,
    make_topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of a group with three members and 6,000 missing topics a part is asked for at each turn, another one at the
    next, so that all have been asked for after six; what its neighbour misses is asked for at each turn, and begins
    at the first one after it is made. It is one line of the log."""
    for member in range(3):
        join(private_database, "long", f"m{member}", NAMES[member::3])
    join(private_database, "short", "m", (topic,))
    asked: list[list[str]] = []
    ask = topics.ask

    def counted(names: Iterable[str]) -> TopicsFound:
        asked.append(list(names))
        return ask(asked[-1])

    monkeypatch.setattr(topics, "ask", counted)
    coordinator = Coordinator(private_database, topics)
    for _ in range(PARTS):
        coordinator.watch()
        assert len(coordinator.waiting) <= MISSING_AT_ONCE
        assert "no such topic" in coordinator.waiting["short", topic]
    assert len(asked) == PARTS
    assert all(len(names) < MISSING_AT_ONCE and topic in names for names in asked)
    assert sum(map(len, asked)) == len(NAMES) + PARTS
    assert {name for names in asked for name in names} == {*NAMES, topic}
    told = [record.getMessage() for record in caplog.records if record.getMessage().startswith("group long")]
    assert len(told) == 1
    assert "waits for 6000 topics" in told[0]

    make_topic(name=topic)
    late = make_topic(name=f"{topic}-late")
    with private_database.transaction() as connection:
        connection.execute(
            text(
                "update sharequeue.members set subscribed_topic_names = array_append(subscribed_topic_names, :late)"
                " where group_id = 'long' and member_id = 'm0'"
            ),
            {"late": late},
        )
    for name in (topic, late):
        topics.offsets(name)  # waits for its leader, as a turn does for a moment only
    coordinator.watch()
    assert started(private_database, "short") == {topic}
    for _ in range(PARTS + 1):
        coordinator.watch()
    assert started(private_database, "long") == {late}


def test_what_is_assigned_does_not_grow_with_missing_topics(private_database: Database) -> None:
    """Whoever computes an assignment is given the topics of which there is something to assign, and no other."""
    join(private_database, "g", "m", (*NAMES, "there"))
    record_topics(private_database, {"there": TopicInfo("id", 1)}, ["there"])
    State(private_database).initialize(SharePartition("g", "there", 0), "id", 0, 1)
    [row] = private_database.rows(text("select to_assign from sharequeue.refresh_group('g', '{0,0,0}')"))
    assert row["to_assign"]["subscriptions"] == {"m": ["there"]}
    assert list(row["to_assign"]["partitions"]) == ["there"]


class Counting:
    """A client that counts the names of its questions."""

    def __init__(self, admin: Any) -> None:
        self._admin = admin
        self.asked: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._admin, name)

    def describe_topics(self, names: Any, **named: Any) -> Any:
        futures = self._admin.describe_topics(names, **named)
        self.asked.append(len(futures))
        return futures


def test_many_names_are_asked_for_in_several_requests(
    topics: Topics, topic: str, make_topic: Callable[..., str]
) -> None:
    """No question has more than a thousand names, and the answers are those of one."""
    make_topic(name=topic)
    counting = Counting(topics._admin())
    topics._client = counting  # type: ignore[assignment]
    found = topics.ask([*NAMES[:2_500], topic, "not legal"])
    assert set(found.known) == {topic}
    assert set(found.refused) == {"not legal"}
    assert counting.asked == [asking.ASKED_AT_ONCE, asking.ASKED_AT_ONCE, 501]
