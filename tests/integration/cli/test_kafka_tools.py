"""`share-groups` prints what Kafka's own tool prints in the same situation.

Each situation is made twice: of a share group of the broker, and of one that is kept here, on the same topics. What
may differ is named where it is compared: exit codes of failed describes and deletes (0 there), the order of rows
that has no meaning there, who the coordinator is, and leader epochs.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable

import pytest
from confluent_kafka import Producer, ShareConsumer

from sharequeue.cli import main
from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.groups.heartbeats import HeartbeatRequest, heartbeat
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.topics import Topics
from sharequeue.service.coordinator import Coordinator
from sharequeue.state import State
from tests import single
from tests.fixtures.kafka_tools import KafkaTool, Ran
from tests.fixtures.stack import MakeTopic
from tests.waiting import PATIENCE_S, one_round

Ours = Callable[..., Ran]


@pytest.fixture
def ours(
    private_database: Database,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Ours:
    """Give a function that runs our command as Kafka's tool is run."""
    monkeypatch.setenv("SHAREQUEUE_HOME", str(settings.home))
    url = private_database.engine.url.render_as_string(hide_password=False)
    monkeypatch.setenv("SHAREQUEUE_DATABASE_URL", url)
    monkeypatch.setenv("SHAREQUEUE_SERVICE_URL", "http://127.0.0.1:28080")

    def run(*words: str) -> Ran:
        given = ["sharequeue", "share-groups", "--bootstrap-server", settings.bootstrap_servers, *words]
        monkeypatch.setattr(sys, "argv", given)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return Ran(int(ended.value.code or 0), printed.out, printed.err)

    return run


@pytest.fixture
def log(settings: Settings, make_topic: MakeTopic) -> str:
    """A topic of two partitions with 10 and 4 records."""
    topic = make_topic(2)
    producer = Producer(client_config(settings))
    for number in range(14):
        producer.produce(topic, b"x", partition=number // 10)
    assert producer.flush(PATIENCE_S) == 0
    return topic


def text(printed: str) -> list[str]:
    """What was printed, with all that may differ made equal; rows in the order of their names."""
    printed = re.sub(r"\S+:\d+ +\(\S+\)", "COORDINATOR", printed)
    lines = [re.sub(r" +", " ", line).rstrip() for line in printed.splitlines()]
    # A Java stack goes with an error; it is on stderr, and nobody's to compare.
    lines = [line for line in lines if not re.match(r"\s*at |\s*\.\.\. |Caused by|\S+Exception: ", line)]
    return sorted(line for line in lines if line)


def same(tool: KafkaTool, ours: Ours, *words: str, code: int = 0) -> str:
    """Run both; check that they print the same. Return what ours printed."""
    there, here = tool(*words), ours(*words)
    assert text(here.out) == text(there.out), words
    assert text(here.err) == text(there.err), words
    assert here.code == code, (words, here)
    return here.out


def test_groups_without_members(
    kafka_tool: KafkaTool, ours: Ours, log: str, group: str, make_topic: MakeTopic
) -> None:
    """Resets, listings, descriptions and deletions of a group that nobody is in, and of one that is not there."""
    other = make_topic(1)
    reset = ("--reset-offsets", "--group", group)
    absent = f"{group}-absent"
    same(kafka_tool, ours, *reset, "--topic", log, "--to-earliest", "--dry-run")
    same(kafka_tool, ours, "--describe", "--group", group, code=1)
    same(kafka_tool, ours, *reset, "--topic", log, "--to-earliest", "--execute")
    same(kafka_tool, ours, *reset, "--topic", "nothing-of-that-name", "--to-earliest", "--execute", code=1)
    same(kafka_tool, ours, *reset, "--topic", f"{log}:0,7", "--to-earliest", "--execute", code=1)
    same(kafka_tool, ours, *reset, "--topic", f"{log}:1", "--to-latest", "--execute")
    same(kafka_tool, ours, *reset, "--all-topics", "--to-latest", "--dry-run")
    same(kafka_tool, ours, *reset, "--topic", log, "--to-datetime", "2020-01-01T00:00:00.000", "--dry-run")
    same(kafka_tool, ours, *reset, "--topic", log, "--to-datetime", "2099-01-01T00:00:00.000", "--dry-run")
    same(kafka_tool, ours, *reset, "--topic", log, "--to-datetime", "yesterday", "--dry-run", code=1)
    same(kafka_tool, ours, "--reset-offsets", "--group", absent, "--all-topics", "--to-latest", "--dry-run")
    described = same(kafka_tool, ours, "--describe", "--group", group)
    assert [line.split()[2:] for line in described.splitlines()[2:]] == [["0", "0", "10"], ["1", "4", "0"]]
    for view in ("--state", "--members", "--offsets"):
        same(kafka_tool, ours, "--describe", "--group", group, view)
    there, here = (run("--describe", "--group", group, "--verbose") for run in (kafka_tool, ours))
    rows = [[line.split() for line in each.out.splitlines()[1:]] for each in (there, here)]
    assert [row[:3] + row[4:] for row in rows[0]] == [row[:3] + row[4:] for row in rows[1]]
    there, here = (run("--describe", "--group", group, "--state", "--verbose") for run in (kafka_tool, ours))
    states = [text(each.out) for each in (there, here)]
    # A reset raises the epoch of a group here, and not on a broker of 4.4.0.
    assert [re.sub(r" \d+ \d+ 0$", "", line) for line in states[0]] == [
        re.sub(r" \d+ \d+ 0$", "", line) for line in states[1]
    ]
    for words in ((), ("--state",), ("--state", "Empty"), ("--state", "empty,Stable")):
        listed = [run("--list", *words).out.splitlines() for run in (kafka_tool, ours)]
        mine = [[line.split() for line in each if line.startswith((group, "GROUP"))] for each in listed]
        assert mine[0] == mine[1]
        assert mine[1]
    same(kafka_tool, ours, "--delete-offsets", "--group", group, "--topic", log, "--topic", other, code=1)
    same(kafka_tool, ours, "--delete-offsets", "--group", group, "--topic", "nothing-of-that-name", code=1)
    same(kafka_tool, ours, "--delete-offsets", "--group", absent, "--topic", log, code=1)
    same(kafka_tool, ours, "--describe", "--group", group)
    same(kafka_tool, ours, "--delete", "--group", group, "--group", absent, code=1)
    same(kafka_tool, ours, "--delete", "--group", absent, code=1)


def test_groups_with_a_member(
    kafka_tool: KafkaTool,
    ours: Ours,
    log: str,
    group: str,
    settings: Settings,
    private_database: Database,
    topics: Topics,
) -> None:
    """Its member and its assignment are shown; what would take its offsets is refused."""
    reset = ("--reset-offsets", "--group", group, "--topic", log, "--to-earliest", "--execute")
    same(kafka_tool, ours, *reset)
    alter_group_configs(private_database, group, {"share.assignment.interval.ms": 0})
    member = HeartbeatRequest(
        group, "m1", 0, subscribed_topic_names=(log,), client_id="ann", client_host="127.0.0.1"
    )
    heartbeat(private_database, member)
    one_round(Coordinator(private_database, topics))
    heartbeat(private_database, member)
    config = client_config(settings, group_id=group, client_id="ann", log_level=2)
    consumer = ShareConsumer(config)
    try:
        consumer.subscribe([log])
        deadline = time.monotonic() + PATIENCE_S
        while not consumer.poll(0.5):
            assert time.monotonic() < deadline
        for words in (("--members",), ("--members", "--verbose")):
            there, here = (
                run("--describe", "--group", group, *words).out.split() for run in (kafka_tool, ours)
            )
            width = len(there) // 2
            assert there[:width] == here[:width]
            at = {name: index for index, name in enumerate(there[:width], width)}
            for name in set(at) - {"CONSUMER-ID", "MEMBER-EPOCH"}:
                assert here[at[name]] == there[at[name]], name
        same(kafka_tool, ours, "--describe", "--group", group, "--state")
        same(kafka_tool, ours, "--delete", "--group", group, code=1)
        same(kafka_tool, ours, "--delete-offsets", "--group", group, "--topic", log, code=1)
        for each in (kafka_tool(*reset), ours(*reset)):
            assert each == Ran(1, "", f"Share group '{group}' is not empty.\n")
    finally:
        consumer.close()


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--describe",),
        ("--describe", "--list"),
        ("--describe", "--group", "g", "--members", "--state"),
        ("--describe", "--group", "g", "--state", "Empty"),
        ("--describe", "--group", "g", "--all-groups"),
        ("--list", "--group", "g"),
        ("--list", "--state", "Sleepy"),
        ("--delete",),
        ("--delete-offsets", "--group", "g"),
        ("--reset-offsets", "--group", "g", "--topic", "t"),
        ("--reset-offsets", "--group", "g", "--topic", "t", "--to-earliest", "--dry-run", "--execute"),
        ("--reset-offsets", "--group", "g", "--to-earliest", "--dry-run"),
        ("--reset-offsets", "--topic", "t", "--to-earliest", "--dry-run"),
        ("--reset-offsets", "--group", "g", "--topic", "t", "--to-earliest", "--to-latest", "--dry-run"),
    ],
    ids=lambda words: " ".join(words) or "nothing",
)
def test_what_may_not_stand_together(kafka_tool: KafkaTool, ours: Ours, words: tuple[str, ...]) -> None:
    """The same message, and exit code 1; above all a reset that says neither --dry-run nor --execute."""
    there, here = kafka_tool(*words), ours(*words)
    # Which of a set comes first is chance there.
    assert sorted(re.split(r"\W+", here.err.splitlines()[0])) == sorted(
        re.split(r"\W+", there.err.splitlines()[0])
    )
    assert (there.code, here.code, here.out) == (1, 1, "")


def test_another_cluster_is_refused(ours: Ours, private_database: Database) -> None:
    """--bootstrap-server must lead to the cluster whose records the state is of."""
    with private_database.transaction() as connection:
        connection.exec_driver_sql("select sharequeue.check_cluster('another')")
    refused = ours("--list")
    assert refused.code == 1
    assert "InconsistentClusterIdException: the broker belongs to Kafka cluster" in refused.out


def test_the_lag_of_a_topic_is_not_that_of_a_newer_one(
    ours: Ours, log: str, group: str, private_database: Database
) -> None:
    """A topic that was deleted and created again under its name: the lag is that of the old one, as elsewhere."""
    alter_group_configs(private_database, group, {})
    state, at = State(private_database), SharePartition(group, log, 0)
    state.initialize(at, "the old id", 0, 1)
    single.observe(state, at, "the old id", 0, 20, 20)
    (_, _, row) = ours("--describe", "--group", group).out.splitlines()
    assert row.split() == [group, log, "0", "0", "20"]
