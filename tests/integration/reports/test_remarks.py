"""Whatever makes a figure other than it looks is said wherever the figure is shown: states × faces."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

import pytest
import sqlalchemy as sa
from click.testing import CliRunner
from starlette.testclient import TestClient

from sharequeue.cli import command
from sharequeue.dagster.reports import spso_and_lag
from sharequeue.database import Database
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import AcknowledgeType, SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.groups.heartbeats import HeartbeatRequest, heartbeat
from sharequeue.reports.page import report_page
from sharequeue.reports.read import read_report
from sharequeue.reports.remarks import Remark, lines_of
from sharequeue.state import State
from sharequeue.state.replicas import ReplicaWork, hear_replica
from tests import single
from tests.integration.service.pages.html_pages import Page
from tests.integration.service.pages.pages_client import client_of, here_of
from tests.waiting import pass_time

pytestmark = pytest.mark.usefixtures("standing_clock")

Act = Callable[[State, SharePartition], object]


def begin(state: State, at: SharePartition, topic_id: str, log_end: int | None = None) -> None:
    """Start a share-partition at 0, and read its log if it has an end."""
    alter_group_configs(state.database, at.group_id, {})
    state.initialize(at, topic_id, 0, 1)
    if log_end is not None:
        single.observe(state, at, topic_id, 0, log_end, log_end)


def join(state: State, at: SharePartition, *topics: str) -> None:
    """Have a member subscribe."""
    request = HeartbeatRequest(at.group_id, "m", 0, subscribed_topic_names=topics)
    assert heartbeat(state.database, request).error_code == 0


def all_rejected(state: State, at: SharePartition) -> None:
    """Reject records, whose letters cannot be written."""
    alter_group_configs(state.database, at.group_id, {"errors.deadletterqueue.topic.name": "dlq.g"})
    lease = single.acquire(state, at, "m", None, 5)
    assert lease is not None
    single.acknowledge(state, lease, {AcknowledgeType.REJECT: lease.offsets})
    state.dead_letters.hold(at, "no dlq.g")


def suspects(state: State, at: SharePartition) -> None:
    """Have a run die with its records."""
    lease = single.acquire(state, at, "m", None, 5)
    assert lease is not None
    single.release(state, lease)


def breaker(state: State, at: SharePartition) -> None:
    """Open the circuit breaker."""
    percent = {"sharequeue.circuit.breaker.failure.percent": 50}
    alter_group_configs(state.database, at.group_id, percent)
    with state.database.transaction() as connection:
        connection.execute(
            sa.text(
                "insert into sharequeue.circuit_breakers (share_partition_id, state, opened_at, retry_at, reason)"
                " select share_partition_id, 'open', sharequeue.clock(), sharequeue.clock() + interval '1 h',"
                " 'too many' from sharequeue.share_partitions where group_id = :group_id"
            ),
            {"group_id": at.group_id},
        )


def full_window(state: State, at: SharePartition) -> None:
    """Have the first record wait behind a window of finished ones."""
    alter_group_configs(state.database, at.group_id, {"share.partition.max.record.locks": 100})
    lease = single.acquire(state, at, "m", None, 100)
    assert lease is not None
    single.acknowledge(state, lease, {AcknowledgeType.ACCEPT: lease.offsets - OffsetSet.of((0, 1))})


def open_transaction(state: State, at: SharePartition) -> None:
    """Have the group read committed records only, and a producer that does not commit."""
    alter_group_configs(state.database, at.group_id, {"share.isolation.level": "read_committed"})
    single.observe(state, at, "id", 0, 1_000, 0)


def partition_without_state(state: State, at: SharePartition) -> None:
    """Have a member subscribe to a topic of two partitions of which one has no leader."""
    with state.database.transaction() as connection:
        connection.execute(
            sa.text(
                "insert into sharequeue.topics (topic, topic_id, partitions, seen_at) values"
                " ('two', 'id', 2, sharequeue.clock())"
            )
        )
    two = SharePartition(at.group_id, "two", 0)
    join(state, at, "t", "two")
    state.initialize(two, "id", 0, 1)
    single.observe(state, two, "id", 0, 9, 9)


STATES: Mapping[str, tuple[Act, str]] = {
    "paused": (lambda s, at: s.administration.pause(at.group_id, "stock-taking"), "paused: stock-taking"),
    "held": (all_rejected, "dead letters are held: no dlq.g"),
    "breaker": (breaker, "circuit breaker open: too many"),
    "suspects": (suspects, "5 available records are suspects"),
    "recreated": (lambda s, at: single.observe(s, at, "new", 0, 4, 4), "deleted and created again"),
    "truncated": (
        lambda s, at: (single.alter_offsets(s, at, "id", 500), single.observe(s, at, "id", 0, 9, 9)),
        "starts at 500, after the end of the log, 9",
    ),
    "window": (full_window, "the window is full"),
    "transaction": (open_transaction, "an open transaction"),
    "leaderless": (partition_without_state, "not initialised yet, so the lag does not count it: the service"),
    "absent": (lambda s, at: join(s, at, "t", "tt"), "the broker has no such topic"),
}
OLD = "the lag does not count newer records"


def test_every_face_has_every_remark(
    settings: Settings, private_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each state of a share-partition, a topic or the whole group is a remark in the command, in HTTP, on pages, in
    the report and in Dagster; so is a lag that is out of date."""
    monkeypatch.setenv("SHAREQUEUE_HOME", str(settings.home))
    state = State(private_database)
    work = ReplicaWork()
    hear_replica(private_database, "r1")
    work.done("watch")
    work.write(private_database, "r1")
    for group, (act, _) in STATES.items():
        at = SharePartition(group, "t", 0)
        begin(state, at, "id", 1_000)
        act(state, at)
    gone = SharePartition("deleted", "gone", 0)
    begin(state, gone, "id-gone", 9)
    state.administration.note_topics({"gone": None})
    begin(state, SharePartition("unread", "unread", 0), "unread")
    begin(state, SharePartition("fine", "fine", 0), "fine", 9)
    expected = {group: words for group, (_, words) in STATES.items()}
    expected |= {"deleted": "topic gone was deleted", "unread": "the lag does not count what is in it"}
    alter_group_configs(private_database, "nothing", {})
    with client_of(here_of(settings, private_database)) as client:
        shown = faces(client, private_database, [*expected, "fine", "nothing"])
        missing = [
            (group, face)
            for group, words in expected.items()
            for face in FACES
            if words not in shown[face][group]
        ]
        # Kafka's answer on offsets has partitions only.
        assert missing == [("absent", "describe-offsets")]
        first = Page(client.get("/").text).text
        assert [words for words in expected.values() if words not in first] == []
        silent = [face for face in FACES if "no member subscribes" not in shown[face]["nothing"]]
        assert silent == ["describe-offsets"]
        assert [face for face in FACES if OLD in shown[face]["fine"]] == []
        # Then nothing reads the broker any more.
        pass_time(private_database, 90)
        shown = faces(client, private_database, ["fine"])
        assert [face for face in FACES if OLD not in shown[face]["fine"]] == []
        assert OLD in Page(client.get("/").text).text


FACES = (
    *("describe", "describe as JSON", "state", "state as JSON"),
    *("http", "describe-offsets", "page", "report", "dagster"),
)


def faces(client: TestClient, database: Database, groups: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return what each face says of each group."""
    asked = {"groups": [{"group_id": group} for group in groups]}
    offsets = client.post("/v1/describe-share-group-offsets", json=asked).json()["groups"]
    reports = {group: read_report(database, group) for group in groups}
    of_command = {
        name: described(database, groups, *words)
        for name, words in (("describe", ()), ("state", ("--state",)))
    }
    return {
        **{name: found[0] for name, found in of_command.items()},
        **{f"{name} as JSON": found[1] for name, found in of_command.items()},
        "http": {group: client.get(f"/v1/groups/{group}").text for group in groups},
        "describe-offsets": {each["group_id"]: str(each) for each in offsets},
        "page": {group: Page(client.get(f"/groups/{group}").text).text for group in groups},
        "report": {group: Page(report_page(report)).text for group, report in reports.items()},
        "dagster": {
            group: str(spso_and_lag(report, [])["remarks"].records) for group, report in reports.items()
        },
    }


def described(
    database: Database, groups: Sequence[str], *words: str
) -> tuple[dict[str, str], dict[str, str]]:
    """Return what `groups describe` prints on each group, as text and as JSON."""
    where = ("--database-url", database.engine.url.render_as_string(hide_password=False))
    named = [word for group in groups for word in ("--group", group)]
    printed = []
    for more in ((), ("-o", "json")):
        result = CliRunner().invoke(command, ["groups", "describe", *named, *words, *more, *where])
        assert result.exit_code == 0, result.output
        printed.append(result.stdout)
    lines, rows = printed[0].splitlines(), json.loads(printed[1])
    return (
        {group: str([line for line in lines if line.startswith(f"REMARK {group}")]) for group in groups},
        {group: str([row for row in rows if row["group"] == group]) for group in groups},
    )


def test_a_remark_on_many_is_one_line() -> None:
    """With the first of the share-partitions, and the number of the others."""
    found = [Remark("g", "paused: x", "t", partition) for partition in range(5)] + [Remark("g", "idle")]
    assert [line.text for line in lines_of(found)] == ["t-0, t-1, t-2 and 2 more: paused: x", "idle"]
