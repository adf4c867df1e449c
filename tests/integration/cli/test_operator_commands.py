"""What an operator looks at and sets: groups and their members, what is in flight, configs, the audit log."""

from __future__ import annotations

import json
import re
import time
from base64 import b64decode
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import text

from sharequeue.cli import command
from sharequeue.database import Database
from sharequeue.domain.errors import GroupIdNotFound, InvalidConfig, UnknownTopicOrPartition
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import AcknowledgeType, Lease, SharePartition
from sharequeue.groups.configs import GroupConfigs, alter_group_configs
from sharequeue.groups.group_names import all_group_names, awaited_share_partitions
from sharequeue.groups.heartbeats import HeartbeatRequest, heartbeat
from sharequeue.reports.read import read_windows
from sharequeue.state import State
from sharequeue.state.replicas import ReplicaWork, hear_replica
from tests import single
from tests.fixtures.deadletters import GivenUp
from tests.waiting import pass_time

Run = Callable[..., str]
AT = SharePartition("flights", "arrivals", 0)


@pytest.fixture
def where(private_database: Database, settings: Settings) -> tuple[str, ...]:
    """Give the options that lead the command to the database."""
    url = private_database.engine.url.render_as_string(hide_password=False)
    return ("--database-url", url, "--home", str(settings.home))


@pytest.fixture
def run(where: tuple[str, ...]) -> Run:
    """Give a function that runs the command on the database; it returns what is on stdout."""

    def of(*words: str, code: int = 0) -> str:
        result = CliRunner().invoke(command, [*words, *where])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result.stdout

    return of


@pytest.fixture
def lease(private_database: Database) -> Lease:
    """A member that is a run of Dagster's holds ten records; two topics are subscribed, and one has no state yet."""
    state = State(private_database)
    alter_group_configs(private_database, AT.group_id, {"share.assignment.interval.ms": 0})
    with private_database.transaction() as connection:
        for topic, partitions in ((AT.topic, 1), ("departures", 2)):
            connection.execute(
                text(
                    "insert into sharequeue.topics (topic, topic_id, partitions, seen_at)"
                    " values (:topic, :topic, :partitions, sharequeue.clock())"
                ),
                {"topic": topic, "partitions": partitions},
            )
    state.initialize(AT, AT.topic, 0, 1)
    single.observe(state, AT, AT.topic, 0, 100, 100)
    topics = (AT.topic, "departures")
    member = HeartbeatRequest(
        AT.group_id,
        "m1",
        0,
        subscribed_topic_names=topics,
        client_id="dagster-run-abc123",
        client_host="10.0.0.7",
    )
    response = heartbeat(private_database, member)
    assert response.error_code == 0, response
    held = single.acquire(state, AT, "m1", response.member_epoch, 10)
    assert held is not None
    single.acknowledge(state, held, {AcknowledgeType.ACCEPT: OffsetSet.of((2, 5))})
    return held


def rows(printed: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(printed)
    return found


def test_groups_by_state_and_members(run: Run, lease: Lease, private_database: Database) -> None:
    """Lists by state; who is in a group and what it is assigned; the group in one row."""
    alter_group_configs(private_database, "idle", {})
    assert [row["group"] for row in rows(run("groups", "list", "--state", "Empty", "-o", "json"))] == ["idle"]
    assert rows(run("groups", "list", "--state", "dead", "-o", "json")) == []
    assert [row["group"] for row in rows(run("groups", "list", "--state", "stable", "-o", "json"))] == [
        "flights"
    ]
    listed = rows(run("groups", "list", "--state", "empty,Stable", "-o", "json"))
    assert [row["group"] for row in listed] == ["flights", "idle"]
    for words in (("verify",), ("journal", "verify"), ("audit",)):
        run(*words, "--all-groups")
    (member,) = rows(run("groups", "describe", "--group", "flights", "--members", "-o", "json"))
    assert (member["consumer_id"], member["client_id"], member["host"]) == (
        "m1",
        "dagster-run-abc123",
        "10.0.0.7",
    )
    assert (member["assignment"], member["partitions"]) == ("arrivals:0", 1)
    flights, idle = rows(run("groups", "describe", "--all-groups", "--state", "-o", "json"))
    assert (flights["state"], flights["members"], flights["lag"], flights["acquired"]) == ("Stable", 1, 97, 7)
    assert (idle["state"], idle["members"]) == ("Empty", 0)
    assert flights["created_at"] <= time.time() * 1000 + 60_000


def test_what_is_not_initialised_is_a_dash(run: Run, lease: Lease, private_database: Database) -> None:
    """Its figures are `-`, in JSON null; times are numbers where they are known."""
    assert awaited_share_partitions(private_database, "flights") == [("departures", 0), ("departures", 1)]
    first, second, third = rows(run("groups", "describe", "--group", "flights", "-o", "json"))
    assert (first["topic"], first["start_offset"], first["lag"]) == ("arrivals", 0, 97)
    assert first["created_at"] <= first["last_written_at"]
    assert (second["topic"], second["partition"], third["partition"]) == ("departures", 0, 1)
    assert {second[name] for name in ("start_offset", "lag", "acquired", "created_at")} == {None}
    lines = run("groups", "describe", "--group", "flights").splitlines()
    assert lines[3].split()[:8] == ["flights", "departures", "0", *"-----"]
    (held, missing) = rows(
        run("groups", "describe", "--group", "flights", "--topic", "arrivals:0,7", "-o", "json")
    )
    assert (missing["partition"], missing["start_offset"]) == (7, None)
    assert (held["start_offset"], held["end_offset"], held["lag"]) == (0, 100, 97)
    assert (held["state_epoch"], held["topic_id"]) == (1, "arrivals")


@pytest.mark.usefixtures("standing_clock")
def test_a_lag_that_is_not_current_is_remarked_with_its_time_and_the_reason(
    run: Run, lease: Lease, private_database: Database
) -> None:
    """A minute after the last observation, or 15 s without a service; in text and in JSON, at the share-partition and
    at the group."""
    of_flights = ("groups", "describe", "--group", "flights")

    def remarks() -> tuple[str | None, str | None]:
        (state,) = rows(run(*of_flights, "--state", "-o", "json"))
        of_arrivals = [each for each in state["remark"].split("; ") if each.startswith("arrivals")]
        return rows(run(*of_flights, "-o", "json"))[0]["remark"], of_arrivals[0] if of_arrivals else None

    assert remarks() == (None, None)
    pass_time(private_database, 90)
    ours, of_group = remarks()
    assert ours is not None
    since = r"the end of the log was last read at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC \(90 s ago\)"
    assert re.match(since, ours)
    assert re.match(f"arrivals-0: {since}", str(of_group))
    assert "the lag does not count newer records" in ours
    assert "no service is running: start one with `sharequeue serve`" in ours
    for words, at in ((of_flights, "flights arrivals-0"), ((*of_flights, "--state"), "flights")):
        assert f"REMARK {at}" in run(*words)
    hear_replica(private_database, "r1")
    assert "the service has not read the broker's topics yet" in str(remarks()[0])
    single.observe(State(private_database), AT, AT.topic, 0, 200, 200)
    assert remarks() == (None, None)
    pass_time(private_database, 30)
    assert "no service is running" in str(remarks()[0])
    hear_replica(private_database, "r1")
    assert remarks() == (None, None)


def test_a_group_with_nothing_to_show_says_why(run: Run, private_database: Database) -> None:
    """Nobody subscribes, no service runs, or the broker has no such topic: never two empty tables."""
    alter_group_configs(private_database, "new", {})
    of_new = ("groups", "describe", "--group", "new")
    (idle,) = rows(run(*of_new, "-o", "json"))
    assert (idle["group"], idle["topic"], idle["lag"]) == ("new", None, None)
    assert "no member subscribes to a topic" in idle["remark"]
    assert "Members cannot join: no service is running" in idle["remark"]
    assert "REMARK new: no share-partition yet" in run(*of_new)
    assert rows(run(*of_new, "--state", "-o", "json"))[0]["remark"] == idle["remark"]
    member = HeartbeatRequest("new", "m1", 0, subscribed_topic_names=("fligths",))
    assert heartbeat(private_database, member).error_code == 0
    (waiting,) = rows(run(*of_new, "-o", "json"))
    assert (waiting["topic"], waiting["partition"]) == ("fligths", None)
    assert "no share-partition yet: no service is running" in waiting["remark"]
    hear_replica(private_database, "r1")
    work = ReplicaWork()
    work.done("watch")
    work.write(private_database, "r1")
    (absent,) = rows(run(*of_new, "--topic", "fligths", "-o", "json"))
    assert "no share-partition yet: the broker has no such topic" in absent["remark"]
    assert "REMARK new fligths: " in run(*of_new)


def test_a_dead_letter_topic_that_does_not_exist_is_a_warning(
    run: Run, where: tuple[str, ...], topic: str
) -> None:
    """Where the first dead letter would create it, too: a typo would become a topic."""
    words = ("configs", "alter", "--create-group", "--group", "g", "--dry-run")
    result = CliRunner().invoke(
        command, [*words, "--set", f"errors.deadletterqueue.topic.name=dlq.{topic}", *where]
    )
    assert result.exit_code == 0, result.output
    assert result.stderr.startswith(f"warning: there is no topic `dlq.{topic}`: check the name.")
    assert "errors.deadletterqueue.group.enable=true" in result.stderr


def test_what_is_in_flight_and_who_holds_it(run: Run, lease: Lease, private_database: Database) -> None:
    """A strip by offset, the lease with its run, and why it is stuck once its member is gone."""
    shown = run("state", "show", "--group", "flights").splitlines()
    assert shown[0] == "flights arrivals-0, offsets 0 up to 10: 7 acquired, 3 acknowledged"
    assert shown[1] == "AA+++AAAAA"
    found = rows(run("state", "show", "--group", "flights", "--topic", "arrivals", "-o", "json"))
    held = next(row for row in found if row["state"] == "acquired")
    assert (held["offsets"], held["consumer_id"], held["run"], held["stuck"]) == (
        "0-1,5-9",
        "m1",
        "abc123",
        None,
    )
    assert held["since"] < held["expires_at"]
    assert next(row for row in found if row["state"] == "acknowledged")["offsets"] == "2-4"
    assert rows(run("state", "show", "--group", "flights", "--topic", "departures", "-o", "json")) == []
    with private_database.transaction() as connection:
        connection.exec_driver_sql("delete from sharequeue.members")
    alter_group_configs(private_database, "idle", {})
    assert "STUCK flights arrivals-0 0-1,5-9: its member is gone" in run("state", "show", "--all-groups")


def test_configs_are_described_and_altered(run: Run, lease: Lease, private_database: Database) -> None:
    """What is set, what counts, prior and new values; a mistake changes nothing; the service's are only shown."""
    limit = "share.delivery.count.limit"
    named = ("--group", "flights")
    (own,) = rows(run("configs", "describe", *named, "-o", "json"))
    assert (own["name"], own["value"], own["own"]) == ("share.assignment.interval.ms", "0", True)
    (row,) = rows(run("configs", "describe", *named, "--name", limit, "-o", "json"))
    assert (row["value"], row["own"], row["default"]) == ("5", False, "5")
    dry = rows(run("configs", "alter", *named, "--set", f"{limit}=8", "--dry-run", "-o", "json"))
    assert [(row["old"], row["new"], row["status"]) for row in dry] == [("5", "8", "dry run")]
    assert GroupConfigs.load(private_database, "flights").delivery_count_limit == 5
    (done,) = rows(run("configs", "alter", *named, "--set", f"{limit}=8", "-o", "json"))
    assert (done["old"], done["new"], done["status"]) == ("5", "8", "done")
    (back,) = rows(run("configs", "alter", *named, "--unset", limit, "-o", "json"))
    assert (back["old"], back["new"]) == ("8", "5")
    for wrong in (f"{limit}=99", "share.delivery.count.limits=3"):
        with pytest.raises(InvalidConfig):
            run("configs", "alter", *named, "--set", "share.isolation.level=read_committed", "--set", wrong)
    assert GroupConfigs.load(private_database, "flights").delivery_count_limit == 5
    service = rows(run("configs", "describe", "--service", "--all", "-o", "json"))
    assert f"group.{limit}" in {row["name"] for row in service}
    assert run("configs", "describe", code=2) == ""
    audited = rows(run("audit", "--group", "flights", "--act", "alter_group_config", "-o", "json"))
    assert [bool(row["after"]) for row in audited] == [
        False,
        True,
        True,
    ]  # newest first: unset, 8, the interval
    assert [row["at"] for row in audited] == sorted((row["at"] for row in audited), reverse=True)
    assert len(rows(run("audit", "--limit", "1", "-o", "json"))) == 1
    assert rows(run("audit", "--since", "2999-01-01T00:00:00Z", "-o", "json")) == []
    assert rows(run("audit", "--since", "2013-01-01", "-o", "json")) != []
    with pytest.raises(GroupIdNotFound):
        run("groups", "describe", "--group", "nobody", "--members")


def test_a_resume_ends_every_pause(run: Run, lease: Lease, private_database: Database) -> None:
    """Of the group, and of its share-partitions; a part that is refused is a row, and the others are done."""
    named = ("--group", "flights")
    paused = ("groups", "pause", *named, "--reason", "why", "-o", "json")
    run(*paused)
    with pytest.raises(UnknownTopicOrPartition):
        run(*paused, "--topic", "arrivals:0", "--topic", "arrivals:7")
    assert [each.paused_reason for each in State(private_database).figures.describe("flights")] == ["why"]
    resumed = rows(run("groups", "resume", *named, "-o", "json"))
    assert [(row["topic"], row["partition"], row["status"]) for row in resumed] == [
        (None, None, "resumed"),
        ("arrivals", 0, "resumed"),
    ]
    assert [each.paused_reason for each in State(private_database).figures.describe("flights")] == [None]


def test_what_was_done_before_a_refusal_is_printed(
    run: Run, lease: Lease, where: tuple[str, ...], private_database: Database
) -> None:
    """Each part is a row; the one that was refused has its error as the status, and the exit code is 1."""
    with private_database.transaction() as connection:
        connection.exec_driver_sql(
            """select sharequeue.set_service_configs('{"group.share.min.session.timeout.ms": "1000"}')"""
        )
    alter_group_configs(private_database, "calm", {"share.heartbeat.interval.ms": 10_000})
    alter_group_configs(private_database, "late", {})
    words = (
        "groups",
        "pause",
        "--group",
        "flights",
        "--reason",
        "r",
        "--topic",
        "none",
        "--topic",
        "arrivals:0",
    )
    result = CliRunner().invoke(command, [*words, *where, "-o", "json"])
    assert isinstance(result.exception, UnknownTopicOrPartition)
    assert [row["status"][:34] for row in rows(result.stdout)] == [
        "Error: UNKNOWN_TOPIC_OR_PARTITION:",
        "paused",
    ]
    # What a dry run says is what happens: a session must be longer than the heartbeat interval.
    change = (
        "configs",
        "alter",
        "--group",
        "calm",
        "--group",
        "late",
        "--set",
        "share.session.timeout.ms=9000",
    )
    wanted = [("calm", "45000", "Error: INVALID_CONFIG:"), ("late", "9000", None)]
    for dry, done in ((("--dry-run",), "dry run"), ((), "done")):
        result = CliRunner().invoke(command, [*change, *where, *dry, "-o", "json"])
        assert isinstance(result.exception, InvalidConfig)
        found = [(row["group"], row["new"], row["status"][: len(done)]) for row in rows(result.stdout)]
        assert found == [(group, new, (status or done)[: len(done)]) for group, new, status in wanted]
        stored = GroupConfigs.load(private_database, "late").session_timeout_ms
        assert stored == (9000 if done == "done" else 45_000)


def test_a_dry_run_refuses_what_would_be_refused(run: Run, lease: Lease) -> None:
    """Offsets of a group with members stay; what --unset gives back is shown."""
    for words in (
        (),
        (
            "--execute",
            "--yes",
        ),
    ):
        told = run("offsets", "delete", "--group", "flights", "--topic", "arrivals", *words, code=1)
        assert "Error: NON_EMPTY_GROUP: " in told
    unset = ("configs", "alter", "--group", "flights", "--unset", "share.assignment.interval.ms")
    (dry,) = rows(run(*unset, "--dry-run", "-o", "json"))
    (done,) = rows(run(*unset, "-o", "json"))
    assert (dry["old"], dry["new"]) == (done["old"], done["new"])
    assert dry["new"] not in ("0", None)


def test_a_group_is_not_made_by_a_typo(run: Run, lease: Lease, private_database: Database) -> None:
    """`configs` refuses a group that there is not, unless it shall make it; a deleted one has its configs still."""
    limit = "share.delivery.count.limit"
    with pytest.raises(GroupIdNotFound, match=r"Did you mean flights\?"):
        run("configs", "describe", "--group", "flight")
    for words in ((), ("--dry-run",)):
        with pytest.raises(GroupIdNotFound, match=r"flights\? --create-group creates"):
            run("configs", "alter", "--group", "flight", "--set", f"{limit}=8", *words)
    assert all_group_names(private_database) == ["flights"]
    run("configs", "alter", "--group", "new", "--set", f"{limit}=8", "--create-group", "--dry-run")
    assert all_group_names(private_database) == ["flights"]
    run("configs", "alter", "--group", "new", "--set", f"{limit}=8", "--create-group")
    run("groups", "delete", "--group", "new", "--execute", "--yes")
    (kept,) = rows(run("configs", "describe", "--group", "new", "-o", "json"))
    assert kept["value"] == "8"
    with pytest.raises(UnknownTopicOrPartition, match="does not read topic arival"):
        run("consume", "--browse", "--group", "flights", "--topic", "arival")


def test_what_would_be_lost_is_said(run: Run, where: tuple[str, ...], private_database: Database) -> None:
    """Dead letters that are not written yet, before offsets or a group are deleted; and a topic that is none."""
    state = State(private_database)
    alter_group_configs(private_database, "g", {"errors.deadletterqueue.topic.name": "dlq.g"})
    at = SharePartition("g", "t", 0)
    state.initialize(at, "id", 0, 1)
    single.observe(state, at, "id", 0, 9, 9)
    held = single.acquire(state, at, "m", None, 5)
    assert held is not None
    single.acknowledge(state, held, {AcknowledgeType.REJECT: OffsetSet.of((0, 5))})
    for words in (
        ("groups", "delete", "--group", "g"),
        ("offsets", "delete", "--group", "g", "--topic", "t"),
    ):
        result = CliRunner().invoke(command, [*words, *where])
        assert result.exit_code == 0, result.output
        assert "t-0: 5 dead letters are not yet written, and would be lost" in " ".join(result.stderr.split())
        assert "sharequeue dlq write --group g" in result.stderr
    with pytest.raises(UnknownTopicOrPartition, match="Did you mean t"):
        run("groups", "describe", "--group", "g", "--topic", "tt")


def test_one_config_has_one_value(run: Run, where: tuple[str, ...], private_database: Database) -> None:
    """Named twice is a mistake; a dead-letter topic that would take nothing is a warning."""
    alter_group_configs(private_database, "g", {})
    limit = "share.delivery.count.limit"
    run("configs", "alter", "--group", "g", "--set", f"{limit}=4", "--set", f"{limit}=5", code=2)
    run("configs", "alter", "--group", "g", "--set", f"{limit}=4", "--unset", limit, code=2)
    assert not GroupConfigs.load(private_database, "g").own
    words = ("configs", "alter", "--group", "g", "--set", "errors.deadletterqueue.topic.name=letters")
    result = CliRunner().invoke(command, [*words, *where])
    assert result.exit_code == 0, result.output
    assert (
        "dead letters of group g will be held until an operator acts: `letters` does not begin"
        in result.stderr
    )


def test_chosen_windows_are_found_among_many(private_database: Database) -> None:
    """What is asked for is looked for in all share-partitions, not among those that have most in flight."""
    state = State(private_database)
    alter_group_configs(private_database, "g", {})
    for partition in range(3):
        at = SharePartition("g", "t", partition)
        state.initialize(at, "id", 0, 1)
        single.observe(state, at, "id", 0, 100, 100)
        assert single.acquire(state, at, "m", None, 10 - partition) is not None

    def found(*wanted: int, most: int | None = 1) -> list[int]:
        chosen = {"t": wanted} if wanted else None
        return [each.partition for each in read_windows(private_database, "g", chosen, most)]

    assert found() == [0]
    assert found(2) == [2]
    assert found(most=None) == [0, 1, 2]
    assert [each.partition for each in read_windows(private_database, "g", {"t": None}, None)] == [0, 1, 2]
    assert read_windows(private_database, "g", {"u": None}, None) == []


def test_letters_are_listed_whole(given_up: Callable[..., GivenUp], monkeypatch: pytest.MonkeyPatch) -> None:
    """One object a line with all that a letter has, also byte for byte; chosen as for a redrive."""
    case = given_up(copy=True)
    monkeypatch.setenv("SHAREQUEUE_HOME", str(case.settings.home))
    case.produce(3)
    case.reject()
    case.writer().write()
    wanted = ["dlq", "list", case.dead_letter_topic, "--limit", "0", "-o", "jsonl"]
    printed = CliRunner().invoke(command, [*wanted, "--cause", "rejected"]).stdout
    letters = [json.loads(line) for line in printed.splitlines()]
    assert [letter["source_offset"] for letter in letters] == [0, 1, 2]
    assert {letter["cause"] for letter in letters} == {"rejected"}
    assert all(letter["value"] is not None and letter["headers"] for letter in letters)
    refused = CliRunner().invoke(command, [*wanted, "--group", f"{case.group}x"])
    assert "there is no such share group" in refused.output
    printed = CliRunner().invoke(command, [*wanted, "--base64"]).stdout
    values = [json.loads(line)["value"] for line in printed.splitlines()]
    assert [b64decode(value).decode() for value in values] == [letter["value"] for letter in letters]
