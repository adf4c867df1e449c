"""What goes wrong for one topic, one group or one replica holds up no other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from sqlalchemy import text

from sharequeue.database import Database
from sharequeue.domain.errors import UnknownTopicId
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import SharePartition
from sharequeue.groups.configs import ServiceConfigs, alter_group_configs
from sharequeue.groups.configs.published import publish_service_configs
from sharequeue.groups.descriptions import describe_group
from sharequeue.groups.heartbeats import HeartbeatRequest, heartbeat
from sharequeue.kafka.topics import Topics
from sharequeue.service.coordinator import Coordinator
from sharequeue.state import State
from tests import single
from tests.fixtures.logs import add_partitions
from tests.waiting import one_round, pass_time, running, wait_until

REPOSITORY = Path(__file__).parents[3]
MakeTopic = Callable[..., str]


def join(database: Database, group: str, *topics: str) -> None:
    alter_group_configs(
        database, group, {"share.auto.offset.reset": "earliest", "share.assignment.interval.ms": 0}
    )
    result = heartbeat(database, HeartbeatRequest(group, "m1", 0, subscribed_topic_names=topics))
    assert result.error_code == 0


def starts(database: Database, group: str) -> dict[int, int]:
    return {status.partition: status.spso for status in State(database).figures.describe(group)}


def members(database: Database, group: str) -> list[str]:
    return [member.member_id for member in describe_group(database, group).members]


def last_heard(database: Database, coordinator: Coordinator) -> datetime:
    heard = text("select heard_at from sharequeue.service_replicas where replica_id = :name")
    at: datetime = database.rows(heard, name=coordinator.name)[0]["heard_at"]
    return at


@contextmanager
def held(database: Database, statement: str) -> Iterator[None]:
    """Keep a transaction open that has locked something."""
    with database.engine.connect() as connection, connection.begin():
        connection.execute(text(statement))
        yield


def test_an_illegal_topic_name_stops_nobody(
    private_database: Database, topics: Topics, make_topic: MakeTopic
) -> None:
    """Names that can be no topic's, left by an earlier release, wait with the reason; every other topic starts."""
    topic = make_topic()
    join(private_database, "g", topic)
    join(private_database, "old", "stands-in")
    private_database.rows(
        text(
            "update sharequeue.members set subscribed_topic_names = '{a b,\"\",..}' where group_id = 'old'"
            " returning 1"
        )
    )
    coordinator = Coordinator(private_database, topics)
    one_round(coordinator)
    assert starts(private_database, "g") == {0: 0}
    assert {topic for _, topic in coordinator.waiting} == {"a b", "", ".."}
    assert "not legal" in coordinator.waiting["old", "a b"]


class Refusing:
    """A broker that refuses to speak of one topic, as after a revoked ACL."""

    def __init__(self, admin: Any, topic: str) -> None:
        self._admin = admin
        self._topic = topic

    def __getattr__(self, name: str) -> Any:
        return getattr(self._admin, name)

    def describe_topics(self, *arguments: Any, **named: Any) -> Any:
        results = self._admin.describe_topics(*arguments, **named)
        refused: Future[Any] = Future()
        refused.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
        return {topic: refused if topic == self._topic else results[topic] for topic in results}


def test_a_refused_topic_stops_nobody(
    private_database: Database,
    topics: Topics,
    make_topic: MakeTopic,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A topic that the service may not see any more keeps its state, and says so; the others go on."""
    revoked, other = make_topic(), make_topic()
    join(private_database, "r", revoked)
    coordinator = Coordinator(private_database, topics)
    one_round(coordinator)
    monkeypatch.setattr(topics, "_client", Refusing(topics._admin(), revoked))
    join(private_database, "g", other)
    one_round(coordinator)
    assert starts(private_database, "g") == {0: 0}
    assert starts(private_database, "r") == {0: 0}
    assert "TOPIC_AUTHORIZATION_FAILED" in coordinator.watcher.faults[revoked]
    assert caplog.text.count("TOPIC_AUTHORIZATION_FAILED") == 1
    one_round(coordinator)
    assert caplog.text.count("TOPIC_AUTHORIZATION_FAILED") == 1
    # Still assigned: it was not seen to be gone.
    assert [t["topic_name"] for t in describe_group(private_database, "r").members[0].assignment] == [revoked]


def test_many_missing_topics_are_one_warning(
    private_database: Database, topics: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    """A subscription to thousands of topics that are not there is told in one line, which names some."""
    join(private_database, "g", *(f"missing-{number:04}" for number in range(2000)))
    coordinator = Coordinator(private_database, topics)
    one_round(coordinator)
    one_round(coordinator)
    told = [record.getMessage() for record in caplog.records if "no such topic" in record.getMessage()]
    assert len(told) == 1
    assert "missing-0000, missing-0001, missing-0002 and 1,997 more" in told[0]
    assert len(coordinator.waiting) == 2000


@pytest.mark.slow
@pytest.mark.parametrize(
    "held_row",
    [
        "select from sharequeue.share_partitions where group_id = 'held' for update",
        *(
            pytest.param(
                f"select from sharequeue.{table} where group_id = 'held' for update", marks=pytest.mark.deep
            )
            for table in ("share_groups", "members")
        ),
    ],
)
def test_a_held_row_holds_up_its_group_only(
    private_database: Database, topics: Topics, make_topic: MakeTopic, held_row: str
) -> None:
    """While somebody's transaction holds a row of one group, the sessions of the others end, nobody's gets longer,
    and their topics start and grow."""
    topic = make_topic()
    join(private_database, "held", topic)
    join(private_database, "other", topic)
    coordinator = Coordinator(private_database, topics, interval=0.1, watch_interval=0.1)
    one_round(coordinator)
    at = SharePartition("held", topic, 0)
    with private_database.transaction() as connection:
        connection.execute(text("update sharequeue.share_partitions set log_end = 5, last_stable_offset = 5"))
    assert single.acquire(State(private_database), at, "m1", None, 5) is not None
    stepped = last_heard(private_database, coordinator)
    with running(coordinator):
        # Not before it has begun: it would take the minute for one in which nobody could be heard.
        wait_until(lambda: last_heard(private_database, coordinator) > stepped)
        with held(private_database, held_row):
            add_partitions(topics, topic, 2)
            private_database.rows(text("select sharequeue.set_clock_offset(interval '1 min')"))
            wait_until(lambda: members(private_database, "other") == [])
            wait_until(lambda: starts(private_database, "other") == {0: 0, 1: 0})
            wait_until(lambda: "held" in coordinator.groups.stuck)
            assert "sweep" not in coordinator.faults
            assert members(private_database, "held") == ["m1"]
        wait_until(lambda: members(private_database, "held") == [])
        wait_until(lambda: starts(private_database, "held") == {0: 0, 1: 0})
        wait_until(lambda: coordinator.groups.stuck == {})


def test_a_topic_made_again_with_fewer_partitions(
    private_database: Database, topics: Topics, make_topic: MakeTopic
) -> None:
    """Partitions that the topic no longer has are assigned to nobody and leased to nobody; the message says what to
    do, and that does it."""
    topic = make_topic(3)
    join(private_database, "g", topic)
    coordinator = Coordinator(private_database, topics)
    one_round(coordinator)
    state = State(private_database)
    with private_database.transaction() as connection:
        connection.execute(text("update sharequeue.share_partitions set log_end = 9, last_stable_offset = 9"))
    topics.delete(topic)
    one_round(coordinator)
    assert "deleted" in coordinator.waiting["g", topic]
    assert "offsets delete" in coordinator.waiting["g", topic]
    make_topic(1, topic)
    one_round(coordinator)
    assert "created again" in coordinator.waiting["g", topic]
    assert [member.assignment for member in describe_group(private_database, "g").members] == [[]]
    for partition in range(3):
        with pytest.raises(UnknownTopicId):
            single.acquire(state, SharePartition("g", topic, partition), "m1", None, 5)
    heartbeat(private_database, HeartbeatRequest("g", "m1", -1))
    state.administration.delete_offsets("g", topic)
    join(private_database, "g", topic)
    one_round(coordinator)
    assert starts(private_database, "g") == {0: 0}
    assert coordinator.waiting == {}
    [assigned] = describe_group(private_database, "g").members[0].assignment
    assert (assigned["topic_id"], assigned["partitions"]) == (topics.describe([topic])[topic].topic_id, [0])


REPLICA = """
import os, signal, sys, threading
from sharequeue.service.coordinator import Coordinator
from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.kafka.topics import Topics

place, ask = sys.argv[1], sys.argv[2]
settings = Settings.load()

class Stopping(Topics):
    "Stops its own process, once, where a broker's answer has just come."
    stopped = False

    def stop(self):
        if not self.stopped and os.path.exists(ask):
            type(self).stopped = True
            os.kill(os.getpid(), signal.SIGSTOP)

    def describe(self, names):
        answer = super().describe(names)
        if place == "describe":
            self.stop()
        return answer

    def ask(self, names):
        answer = super().ask(names)
        if place == "describe":
            self.stop()
        return answer

    def offsets_of(self, *arguments):
        answer = super().offsets_of(*arguments)
        if place == "offsets_of":
            self.stop()
        return answer

Coordinator(Database.open(settings), Stopping(settings), interval=0.1, watch_interval=0.1).run(threading.Event())
"""


@pytest.fixture
def replica(
    settings: Settings, private_database: Database, tmp_path: Path
) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Give a function that starts a replica, as a process, which stops itself at a place of the watch once the file
    `stop` is there."""
    started: list[subprocess.Popen[str]] = []

    def start(place: str) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "SHAREQUEUE_DATABASE_URL": private_database.engine.url.render_as_string(hide_password=False),
            "SHAREQUEUE_BOOTSTRAP_SERVERS": settings.bootstrap_servers,
        }
        process = subprocess.Popen(
            [sys.executable, "-c", REPLICA, place, str(tmp_path / "stop")],
            cwd=REPOSITORY,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def is_stopped(process: subprocess.Popen[str]) -> bool:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.slow
@pytest.mark.parametrize("place", ["describe", pytest.param("offsets_of", marks=pytest.mark.deep)])
def test_a_replica_stopped_inside_the_watch(
    private_database: Database,
    topics: Topics,
    make_topic: MakeTopic,
    tmp_path: Path,
    replica: Callable[[str], subprocess.Popen[str]],
    place: str,
) -> None:
    """A replica that is stopped between a broker's answer and its writing loses the watch. What it wants to write
    when it wakes is old, and is refused."""
    old, new = make_topic(2), make_topic()
    join(private_database, "g", old)
    stopped = replica(place)
    wait_until(lambda: len(starts(private_database, "g")) == 2)
    (tmp_path / "stop").touch()
    wait_until(lambda: is_stopped(stopped))
    # What the stopped one knows of the topic is not true any more.
    topics.delete(old)
    make_topic(1, old)
    join(private_database, "other", new)
    coordinator = Coordinator(private_database, topics, interval=0.1, watch_interval=0.1)
    with running(coordinator):
        wait_until(lambda: starts(private_database, "other") == {0: 0})
        wait_until(
            lambda: {s.status for s in State(private_database).figures.describe("g")} == {"topic_recreated"}
        )
    known = topics.describe([old])[old].topic_id

    def recorded() -> set[str]:
        rows = private_database.rows(text("select topic_id from sharequeue.topics where topic = :t"), t=old)
        seen.update({status.status for status in State(private_database).figures.describe("g")})
        return {row["topic_id"] for row in rows}

    seen: set[str] = set()
    os.kill(stopped.pid, signal.SIGCONT)
    turns_of = text(
        "select (select count(*) from sharequeue.service_replicas where heard_at > sharequeue.clock()"
        " - interval '500 ms') as awake"
    )
    wait_until(lambda: recorded() == {known} and private_database.rows(turns_of)[0]["awake"] > 0)
    for _ in range(20):
        assert recorded() == {known}
    assert seen == {"topic_recreated"}


def clock_and_beat(database: Database) -> tuple[Any, Any]:
    rows = database.rows(
        text("select sharequeue.clock() as at, (select max(beat_at) from sharequeue.service_beat) as beat")
    )
    return rows[0]["at"], rows[0]["beat"]


def test_a_replica_that_crashes_again_and_again(private_database: Database, topics: Topics) -> None:
    """Starting every few seconds lengthens nobody's session: a member that is silent is out after its time."""
    join(private_database, "g", "t")
    for second in range(5, 55, 5):
        private_database.rows(
            text("select sharequeue.set_clock_offset(cast(:by as interval))"), by=f"{second} seconds"
        )
        began, _ = clock_and_beat(private_database)

        def has_beaten(began: Any = began) -> bool:
            _, beat = clock_and_beat(private_database)
            return beat is not None and beat > began

        with running(Coordinator(private_database, topics, interval=0.02)):
            wait_until(has_beaten)
    assert members(private_database, "g") == []


def test_the_only_replica_stopped_for_longer_than_a_session(
    private_database: Database,
    replica: Callable[[str], subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the only replica is stopped nobody can be heard: when it wakes, sessions go on with what was left; then
    silence counts again."""
    for name, value in (
        ("MIN_HEARTBEAT_INTERVAL", 100),
        ("HEARTBEAT_INTERVAL", 250),
        ("MIN_SESSION_TIMEOUT", 500),
    ):
        monkeypatch.setenv(f"SHAREQUEUE_GROUP_SHARE_{name}_MS", str(value))
    publish_service_configs(private_database, ServiceConfigs.load())
    alter_group_configs(private_database, "g", {"share.session.timeout.ms": 30_000})
    only = replica("never")
    rows = text(
        "select (select max(heard_at) from sharequeue.service_replicas) as heard, sharequeue.clock() as at,"
        " (select min(session_expires_at) from sharequeue.members) as expires"
    )
    wait_until(lambda: private_database.rows(rows)[0]["heard"] is not None)
    join(private_database, "g", "t")
    os.kill(only.pid, signal.SIGSTOP)
    wait_until(lambda: is_stopped(only))
    # For longer than two of its heartbeat intervals by its own clock, and than a session by the database's.
    stopped_at = private_database.rows(rows)[0]["at"]
    wait_until(lambda: private_database.rows(rows)[0]["at"] > stopped_at + timedelta(seconds=1))
    pass_time(private_database, 60)
    before = private_database.rows(rows)[0]["heard"]
    os.kill(only.pid, signal.SIGCONT)
    wait_until(lambda: private_database.rows(rows)[0]["heard"] > before)
    found = private_database.rows(rows)[0]
    assert members(private_database, "g") == ["m1"]
    assert found["expires"] > found["at"]
    pass_time(private_database, 30)
    wait_until(lambda: members(private_database, "g") == [])


STOPPED_IN_A_TRANSACTION = """
import os, signal
from sqlalchemy import text
from sharequeue.database import Database
from sharequeue.database.lock_timeouts import short_transaction
from sharequeue.domain.settings import Settings

with short_transaction(Database.open(Settings.load())) as connection:
    connection.execute(text("select from sharequeue.share_groups for update"))
    os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_replica_stopped_inside_a_transaction(
    private_database: Database,
    replica: Callable[[str], subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Postgres ends the transaction of a replica that is stopped inside it: what it had locked is free, though the
    replica stays stopped."""
    join(private_database, "g", "t")
    monkeypatch.setattr(sys.modules[__name__], "REPLICA", STOPPED_IN_A_TRANSACTION)
    stopped = replica("nowhere")
    wait_until(lambda: is_stopped(stopped))
    request = HeartbeatRequest("g", "m1", 2)
    wait_until(lambda: heartbeat(private_database, request).error_code == 0)
