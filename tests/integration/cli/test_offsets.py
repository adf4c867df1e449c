"""Where a group begins anew, on a real broker: through the command line and through State."""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from confluent_kafka import Consumer, Producer, TopicPartition

from sharequeue.cli import main
from sharequeue.database import Database
from sharequeue.domain.errors import FencedStateEpoch, NonEmptyGroup
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import AcknowledgeType, SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.groups.heartbeats import HeartbeatRequest, heartbeat
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.topics import Topics
from sharequeue.local.stack import StackInfo
from sharequeue.service.coordinator import Coordinator
from sharequeue.state import State
from tests import single
from tests.waiting import PATIENCE_S, one_round

MakeTopic = Callable[..., str]
Command = Callable[..., tuple[int, str, str]]
HOUR_MS = 3_600_000


@pytest.fixture
def command(
    stack: StackInfo, database: Database, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Give a function that runs `sharequeue` on the stack: exit code, stdout, stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setenv("SHAREQUEUE_HOME", str(stack.home))
        monkeypatch.setattr(sys, "argv", ["sharequeue", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return run


@pytest.fixture
def log(settings: Settings, make_topic: MakeTopic) -> str:
    """A topic of two partitions: 6 records of two hours ago in the first, then 4 of now."""
    topic = make_topic(2)
    producer = Producer(client_config(settings))
    now = int(time.time() * 1000)
    for number in range(10):
        producer.produce(topic, b"x", partition=0, timestamp=now - (2 * HOUR_MS if number < 6 else 0))
    assert producer.flush(PATIENCE_S) == 0
    return topic


def starts(state: State, group: str) -> dict[int, int]:
    return {each.partition: each.spso for each in state.figures.describe(group)}


def reset(command: Command, group: str, *arguments: str) -> list[dict[str, Any]]:
    code, out, err = command(
        "offsets", "reset", "-o", "json", "--yes", "--group", group, "--create-group", *arguments
    )
    assert code == 0, err
    rows: list[dict[str, Any]] = json.loads(out)
    return rows


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        (("--to-earliest",), [0, 0]),
        (("--to-latest",), [10, 0]),
        (("--to-offset", "4"), [4, 0]),
        (("--to-offset", "99"), [10, 0]),
        (("--by-duration", "PT1H"), [6, 0]),
        (("--to-datetime", "an hour ago"), [6, 0]),
        (("--to-datetime", "2100-01-01T00:00:00.000"), [10, 0]),
        (("--to-current",), [10, 0]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
@pytest.mark.rule("R-AD-7")
def test_the_ways_to_begin(
    command: Command, state: State, group: str, log: str, way: tuple[str, ...], expected: list[int]
) -> None:
    """Each option of Kafka's tool resolves as there; a dry run changes nothing, --execute does it."""
    an_hour_ago = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    way = tuple(an_hour_ago if word == "an hour ago" else word for word in way)
    rows = reset(command, group, "--topic", log, *way)
    assert [(row["new_offset"], row["status"]) for row in rows] == [(each, "dry run") for each in expected]
    assert state.figures.describe(group) == []
    rows = reset(command, group, "--topic", log, *way, "--execute", "--yes")
    assert {row["status"] for row in rows} == {"done"}
    assert list(starts(state, group).values()) == expected
    assert state.figures.verify(group) == []


def test_a_reset_says_what_it_passes_over_and_which_instant_it_means(
    command: Command, state: State, group: str, log: str, settings: Settings
) -> None:
    """Records that are not finished count, as dry run and done; what is begun again, or was not begun, is none.
    A time with a zone is shown as the instant in UTC."""
    reset(command, group, "--topic", f"{log}:0", "--to-earliest", "--execute")
    at = SharePartition(group, log, 0)
    topic_id = Topics(settings).describe([log])[log].topic_id
    single.observe(state, at, topic_id, 0, 10, 10)
    lease = single.acquire(state, at, "member", None, 8)
    assert lease is not None
    outcomes = {
        AcknowledgeType.ACCEPT: OffsetSet.of((0, 2), (5, 6)),
        AcknowledgeType.REJECT: OffsetSet.of((7, 8)),
        AcknowledgeType.RELEASE: OffsetSet.of((2, 5), (6, 7)),
    }
    single.acknowledge(state, lease, outcomes)

    def passed_over(*way: str) -> list[int | None]:
        return [row["passed_over"] for row in reset(command, group, "--topic", log, *way)]

    assert passed_over("--to-latest") == [6, None]  # 2, 3, 4, 6, 8, 9
    assert passed_over("--to-offset", "4") == [2, None]
    assert passed_over("--to-earliest") == [0, None]
    reset_it = ("offsets", "reset", "--group", group, "--topic", log)
    _, out, err = command(*reset_it, "--to-datetime", "2100-01-01T12:00:00+02:00")
    assert "at or after 2100-01-01T10:00:00.000+00:00" in out
    assert "6 unfinished records are skipped" in err
    assert "dry run" in out
    _, out, _ = command(*reset_it, "--to-datetime", "2100-01-01T12:00:00+02:00", "--export")
    assert [line.split(",")[0] for line in out.splitlines()] == [log, log]
    assert [
        row["passed_over"] for row in reset(command, group, "--topic", log, "--to-latest", "--execute")
    ] == [
        6,
        None,
    ]


def test_from_a_consumer_group(
    command: Command, state: State, group: str, log: str, settings: Settings
) -> None:
    """A share group takes over where a consumer group of the broker stands, for what that has committed. They may
    have the same name."""
    consumer = Consumer(client_config(settings, group_id=group))
    consumer.commit(offsets=[TopicPartition(log, 0, 7)], asynchronous=False)
    consumer.close()
    rows = reset(command, group, "--from-consumer-group", group, "--execute", "--yes")
    assert [(row["partition"], row["new_offset"]) for row in rows] == [(0, 7)]
    assert starts(state, group) == {0: 7}
    code, _, err = command(
        "offsets", "reset", "--group", group, "--topic", log, "--from-consumer-group", "no"
    )
    assert (code, "GROUP_ID_NOT_FOUND" in err) == (1, True)


def test_from_a_share_group_of_the_broker_by_file(
    command: Command, state: State, group: str, log: str, tmp_path: Path
) -> None:
    """Lines as `kafka-share-groups.sh --export` prints them set the start; our own --export prints the same."""
    exported = tmp_path / "offsets.csv"
    exported.write_text(f'"{log}",0,3\n{log},1,0\n')
    reset(command, group, "--from-file", str(exported), "--execute", "--yes")
    assert starts(state, group) == {0: 3, 1: 0}
    code, out, _ = command("offsets", "reset", "--group", group, "--all-topics", "--to-current", "--export")
    assert code == 0
    assert list(csv.reader(out.splitlines())) == [[log, "0", "3"], [log, "1", "0"]]
    exported.write_text("nonsense\n")
    code, _, err = command("offsets", "reset", "--group", group, "--from-file", str(exported))
    assert (code, "INVALID_REQUEST" in err) == (1, True)
    exported.write_text(f"{log},0,1\n{log},1,0\n{log},0,5\n")
    code, _, err = command(
        "offsets", "reset", "--group", group, "--from-file", str(exported), "--execute", "--yes"
    )
    assert (code, f"line 3: partition 0 of topic {log!r} is named twice, first in line 1" in err) == (1, True)
    assert starts(state, group) == {0: 3, 1: 0}


@pytest.mark.rule("R-AD-1", "R-AD-2", "R-AD-5")
def test_a_group_with_members_is_left_alone(
    command: Command, state: State, database: Database, group: str, log: str
) -> None:
    """Reset and deletes are refused with NON_EMPTY_GROUP while a member lives, and nothing changes."""
    state_before = reset(command, group, "--topic", log, "--to-offset", "4", "--execute", "--yes")
    assert state_before
    heartbeat(database, HeartbeatRequest(group, "m1", 0, subscribed_topic_names=(log,)))
    for arguments in (
        ("offsets", "reset", "--group", group, "--topic", log, "--to-earliest", "--execute", "--yes"),
        ("offsets", "delete", "--group", group, "--topic", log, "--execute", "--yes"),
        ("groups", "delete", "--group", group, "--execute", "--yes"),
    ):
        code, out, err = command(*arguments)
        assert (code, "NON_EMPTY_GROUP" in out + err) == (1, True), arguments
    with pytest.raises(NonEmptyGroup, match="1 members"):
        state.administration.delete_group(group)
    with pytest.raises(NonEmptyGroup, match="1 members"):
        state.administration.delete_offsets(group, log)
    with pytest.raises(NonEmptyGroup, match="1 members"):
        single.alter_offsets(state, SharePartition(group, log, 0), "id", 0)
    assert starts(state, group) == {0: 4, 1: 0}


@pytest.mark.rule("R-AD-2", "R-AD-5")
def test_deletes(command: Command, state: State, group: str, log: str) -> None:
    """Offsets and groups go with --execute only; what is not there is an error by name and exit code 1."""
    reset(command, group, "--topic", log, "--to-earliest", "--execute", "--yes")
    assert command("offsets", "delete", "--group", group, "--topic", log)[0] == 0
    assert command("groups", "delete", "--group", group)[0] == 0
    assert len(state.figures.describe(group)) == 2
    assert (
        "Successful"
        in command("offsets", "delete", "--group", group, "--topic", log, "--execute", "--yes")[1]
    )
    assert state.figures.describe(group) == []
    code, out, _ = command("offsets", "delete", "--group", group, "--topic", log, "--execute", "--yes")
    assert (code, "There is no offset information to delete" in out) == (1, True)
    assert "Successful" in command("groups", "delete", "--group", group, "--execute", "--yes")[1]
    code, out, _ = command("groups", "delete", "--group", group, "--execute", "--yes")
    assert (code, "GROUP_ID_NOT_FOUND" in out) == (1, True)


@pytest.mark.rule("R-AD-1")
def test_a_reset_fences_and_starts_anew(state: State, group: str, database: Database) -> None:
    """Holders from before a reset get FENCED_STATE_EPOCH; the group epoch rises once for all partitions."""
    at = SharePartition(group, "t", 0)
    first = state.administration.reset_offsets(group, {("t", 0): 5, ("t", 1): 6}, {"t": "id"}, execute=True)
    assert [(row.before, row.start_offset, row.state_epoch) for row in first] == [(None, 5, 1), (None, 6, 1)]
    single.observe(state, at, "id", 0, 100, 100)
    lease = single.acquire(state, at, "m", None, 10)
    assert lease is not None
    again = state.administration.reset_offsets(group, {("t", 0): 0, ("t", 1): -3}, {"t": "id"}, execute=True)
    assert [(row.before, row.state_epoch, row.error and row.error.name) for row in again] == [
        (5, 2, None),
        (6, None, "INVALID_REQUEST"),
    ]
    with pytest.raises(FencedStateEpoch):
        single.acknowledge(state, lease, {AcknowledgeType.ACCEPT: lease.offsets})
    rows = database.rows(
        sa.text("select group_epoch from sharequeue.share_groups where group_id = :group"), group=group
    )
    assert rows[0]["group_epoch"] == 2
    assert state.figures.verify(group) == []


def test_a_recreated_topic_resumes_by_a_reset(
    command: Command,
    private_database: Database,
    topics: Topics,
    make_topic: MakeTopic,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A topic made anew stops leasing and says so; a reset tells how many records of the former one the group never
    gets, and the group goes on with the new one."""
    topic = make_topic()
    state, coordinator = State(private_database), Coordinator(private_database, topics)
    alter_group_configs(private_database, "g", {"share.auto.offset.reset": "earliest"})
    heartbeat(private_database, HeartbeatRequest("g", "m1", 0, subscribed_topic_names=(topic,)))
    one_round(coordinator)
    single.observe(state, SharePartition("g", topic, 0), topics.info(topic).topic_id, 0, 7, 7)
    topics.delete(topic)
    one_round(coordinator)
    assert [each.blocked_by for each in state.figures.describe("g")] == ["topic_deleted"]
    made = topics.create(topic, 1)
    one_round(coordinator)
    (status,) = state.figures.describe("g")
    assert (status.status, status.blocked_by) == ("topic_recreated", "topic_recreated")
    heartbeat(private_database, HeartbeatRequest("g", "m1", -1))
    url = private_database.engine.url.render_as_string(hide_password=False)
    monkeypatch.setenv("SHAREQUEUE_DATABASE_URL", url)
    (row,) = reset(command, "g", "--topic", topic, "--to-earliest")
    assert (row["new_offset"], row["old_offset"], row["passed_over"]) == (0, 0, 7)
    state.administration.reset_offsets("g", {(topic, 0): 0}, {topic: made.topic_id}, execute=True)
    one_round(coordinator)
    assert (state.figures.describe("g")[0].status, state.figures.describe("g")[0].topic_id) == (
        "active",
        made.topic_id,
    )


def test_a_reset_with_an_id_that_was_replaced_is_refused(
    command: Command, state: State, group: str, log: str
) -> None:
    """The command found an id that is no longer the topic's: it says all of why, dry run or not, and changes
    nothing."""
    reset(command, group, "--topic", f"{log}:0", "--to-earliest", "--execute")
    single.alter_offsets(state, SharePartition(group, log, 0), "an id that came later", 5)
    for execute in ((), ("--execute", "--yes")):
        code, out, _ = command(
            *("offsets", "reset", "--group", group, "--topic", f"{log}:0", "--to-earliest"), *execute
        )
        assert code == 1
        assert "UNKNOWN_TOPIC_ID" in out
        assert "first delete the group's offsets of the topic" in out
    assert starts(state, group) == {0: 5}


def test_records_that_retention_removed_are_shown(
    command: Command, state: State, group: str, topic: str
) -> None:
    """What left the log unprocessed is counted, and describe and the command line show it."""
    at = SharePartition(group, topic, 0)
    state.administration.reset_offsets(group, {(topic, 0): 0}, {topic: "id"}, execute=True)
    single.observe(state, at, "id", 0, 100, 100)
    single.observe(state, at, "id", 40, 100, 100)
    assert state.figures.describe(group)[0].lost_records == 40
    (row,) = json.loads(command("groups", "describe", "--group", group, "-o", "json")[1])
    assert (row["lost_records"], row["oldest_offset"], row["lag"]) == (40, 40, 60)


def test_stuck_records_by_command(command: Command, state: State, group: str, topic: str) -> None:
    """`state show` shows who holds what; `state release` frees it, with --execute; pauses show as remarks."""
    at = SharePartition(group, topic, 0)
    state.administration.reset_offsets(group, {(topic, 0): 0}, {topic: "id"}, execute=True)
    single.observe(state, at, "id", 0, 100, 100)
    assert single.acquire(state, at, "worker", None, 10) is not None
    (held,) = json.loads(command("state", "show", "--group", group, "-o", "json")[1])
    assert (held["consumer_id"], held["offsets"], held["records"]) == ("worker", "0-9", 10)
    forced = ("state", "release", "--group", group, "--topic", f"{topic}:0", "--offsets", "0,3-5")
    assert "dry run" in command(*forced)[1]
    assert state.figures.describe(group)[0].acquired == 10
    assert command(*forced, "--execute", "--yes")[0] == 0
    assert state.figures.describe(group)[0].available == 4
    code, out, _ = command("state", "dead-letter", *forced[2:6], "--offsets", "50-60")
    assert (code, "never delivered" in out) == (1, True)
    assert command("groups", "pause", "--group", group, "--reason", "closed")[0] == 0
    assert "closed" in command("groups", "describe", "--group", group)[1]
    assert command("groups", "resume", "--group", group)[0] == 0
    assert single.acquire(state, at, "worker", None, 4) is not None
    assert "would" in command("state", "extend-locks", "--by", "PT1M")[1]
    assert "would" in command("state", "raise-epochs")[1]


def test_oldest_unprocessed(state: State, group: str, topic: str) -> None:
    """The lowest offset not done with, in which state, and since when where that is known."""
    at = SharePartition(group, topic, 0)
    state.administration.reset_offsets(group, {(topic, 0): 0}, {topic: "id"}, execute=True)

    def oldest() -> tuple[int | None, str | None, bool]:
        status = state.figures.describe(group)[0]
        return status.oldest_offset, status.oldest_state, status.oldest_since is not None

    assert oldest() == (None, None, False)
    single.observe(state, at, "id", 0, 100, 100)
    assert oldest() == (0, "fresh", False)
    lease = single.acquire(state, at, "m", None, 10)
    assert lease is not None
    assert oldest() == (0, "acquired", True)
    single.acknowledge(state, lease, {AcknowledgeType.ACCEPT: OffsetSet.of((0, 4), (5, 10))})
    assert oldest() == (4, "acquired", True)
    single.release(state, lease)
    assert oldest() == (4, "available", False)
