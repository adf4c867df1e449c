"""Kafka's admin operations over HTTP: who cannot reach Postgres sees and does the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from click.testing import CliRunner
from starlette.routing import Route
from starlette.testclient import TestClient

from sharequeue.cli import command
from sharequeue.database import Database
from sharequeue.database.pool import Joined
from sharequeue.domain.errors import (
    GroupAuthorizationFailed,
    GroupIdNotFound,
    InvalidConfig,
    InvalidGroupId,
    InvalidRequest,
    NonEmptyGroup,
    TopicAuthorizationFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import SharePartition
from sharequeue.groups.acls import OPERATIONS, Acl, AclFilter, Acls, authorized_operations, on_behalf_of
from sharequeue.groups.configs import GroupConfigs, alter_group_configs
from sharequeue.groups.heartbeats import HeartbeatRequest, heartbeat
from sharequeue.groups.tokens import Tokens
from sharequeue.service import create_app
from sharequeue.service.admission import ANONYMOUS
from sharequeue.state import State
from tests import single
from tests.fixtures.stack import MakeTopic
from tests.integration.service.openapi import conforming
from tests.integration.service.test_service import serving
from tests.waiting import PATIENCE_S

Answer = dict[str, Any]
Ask = Callable[..., Answer]


@pytest.fixture
def ask(settings: Settings, private_database: Database) -> Iterator[Ask]:
    """Give a function that sends a request to the service, without its coordinator."""
    url = private_database.engine.url.render_as_string(hide_password=False)
    app = create_app(settings.replace(database_url=url), coordinate=False)
    with TestClient(app, base_url="http://localhost") as client:

        def send(path: str, **body: Any) -> Answer:
            response = client.post(f"/v1/{path}", json=body)
            assert response.status_code == 200, response.text
            conforming(response)
            answer: Answer = response.json()
            return answer

        yield send


def join(database: Database, group: str, topic: str) -> None:
    alter_group_configs(database, group, {"share.assignment.interval.ms": 0})
    heartbeat(database, HeartbeatRequest(group, "m1", 0, subscribed_topic_names=(topic,), client_id="ann"))


def topic_id(database: Database, group: str, topic: str) -> str:
    """The id that the state has of a topic."""
    return next(each.topic_id for each in State(database).figures.describe(group) if each.topic == topic)


def test_many_groups_are_described(ask: Ask, private_database: Database) -> None:
    """State, members and authorized operations; what is wrong with one does not stop the others."""
    join(private_database, "g", "t")
    State(private_database).initialize(SharePartition("g", "t", 0), "id", 3, 1)
    Acls(private_database).add(Acl(ANONYMOUS, "READ", "ALLOW", "LITERAL", "g"))
    Acls(private_database).add(Acl("User:ann", "READ", "ALLOW", "LITERAL", "closed"))
    alter_group_configs(private_database, "closed", {})
    asked = {"group_ids": ["g", "absent", "", "closed"], "include_authorized_operations": True}
    found = ask("share-group-describe", **asked)["groups"]
    assert [each["error_code"] for each in found] == [
        0,
        GroupIdNotFound.code,
        InvalidGroupId.code,
        GroupAuthorizationFailed.code,
    ]
    assert (found[0]["group_state"], found[0]["assignor_name"]) == ("Stable", "simple")
    assert found[0]["authorized_operations"] == ["READ", "DESCRIBE"]
    (member,) = found[0]["members"]
    assert (member["member_id"], member["client_id"]) == ("m1", "ann")
    assert found[1]["members"] == []
    assert ask("share-group-describe", group_ids=["g"])["groups"][0]["authorized_operations"] is None


def test_offsets_are_described_altered_and_deleted(
    ask: Ask, private_database: Database, make_topic: MakeTopic
) -> None:
    """Filters by topic and partition, -1 where there is nothing; errors by partition; refused with members."""
    topic = make_topic(2)
    starts = [{"partition_index": 0, "start_offset": 0}, {"partition_index": 7, "start_offset": 0}]
    unknown = {
        "topic_name": "nothing-of-that-name",
        "partitions": [{"partition_index": 0, "start_offset": 0}],
    }
    altered = ask(
        "alter-share-group-offsets",
        group_id="g",
        topics=[{"topic_name": topic, "partitions": starts}, unknown],
    )
    assert altered["error_code"] == 0
    errors = {
        (each["topic_name"], part["partition_index"]): part["error_code"]
        for each in altered["responses"]
        for part in each["partitions"]
    }
    missing = UnknownTopicOrPartition.code
    assert errors == {(topic, 0): 0, (topic, 7): missing, ("nothing-of-that-name", 0): missing}
    negative = [{"topic_name": topic, "partitions": [{"partition_index": 1, "start_offset": -1}]}]
    (refused,) = ask("alter-share-group-offsets", group_id="g", topics=negative)["responses"]
    assert refused["partitions"][0]["error_code"] == InvalidRequest.code

    beyond = [{"topic_name": topic, "partitions": [{"partition_index": 1, "start_offset": 9999}]}]
    (taken,) = ask("alter-share-group-offsets", group_id="g", topics=beyond)["responses"]
    assert taken["partitions"][0]["error_code"] == 0  # as by a broker
    single.observe(
        State(private_database),
        SharePartition("g", topic, 1),
        topic_id(private_database, "g", topic),
        0,
        9,
        9,
    )
    (status,) = [each for each in State(private_database).figures.describe("g") if each.partition == 1]
    assert "starts at 9999, after the end of the log, 9" in str(status.fault)
    State(private_database).administration.delete_offsets("g", topic)
    ask(
        "alter-share-group-offsets",
        group_id="g",
        topics=[{"topic_name": topic, "partitions": starts}],
    )

    wanted = [{"topic_name": topic, "partitions": [0, 1]}]
    groups = [{"group_id": "g", "topics": wanted}, {"group_id": "h", "topics": []}, {"group_id": "i"}]
    first, second, third = ask("describe-share-group-offsets", groups=groups)["groups"]
    found = first["topics"][0]["partitions"]
    assert [(each["partition_index"], each["start_offset"]) for each in found] == [(0, 0), (1, -1)]
    assert [each["lag"] for each in found] == [0, -1]
    assert second["topics"] == third["topics"] == []

    join(private_database, "g", topic)
    (everything,) = ask("describe-share-group-offsets", groups=[{"group_id": "g"}])["groups"]
    assert [part["start_offset"] for part in everything["topics"][0]["partitions"]] == [0]
    named: Any = {"group_id": "g", "topics": [{"topic_name": topic}]}
    assert ask("delete-share-group-offsets", **named)["error_code"] == NonEmptyGroup.code
    assert ask("alter-share-group-offsets", group_id="g", topics=[unknown])["error_code"] in (
        0,
        NonEmptyGroup.code,
    )
    (kept,) = ask("delete-groups", groups_names=["g"])["results"]
    assert kept["error_code"] == NonEmptyGroup.code
    heartbeat(private_database, HeartbeatRequest("g", "m1", -1))
    assert ask("alter-share-group-offsets", group_id="new", topics=[])["responses"] == []
    (asked,) = ask("share-group-describe", group_ids=["new"])["groups"]
    assert asked["error_code"] == GroupIdNotFound.code
    assert ask("delete-share-group-offsets", **named)["responses"][0]["error_code"] == 0
    assert ask("delete-share-group-offsets", **named)["responses"][0]["error_code"] == missing
    results = ask("delete-groups", groups_names=["g", "absent"])["results"]
    assert [each["error_code"] for each in results] == [0, GroupIdNotFound.code]


def test_configs_are_described_and_altered(ask: Ask, private_database: Database) -> None:
    """All of a request or nothing; null takes a value away; a closed group is closed."""
    limit = "share.delivery.count.limit"
    assert ask("incremental-alter-configs", group_id="g", configs={limit: "8"})["error_code"] == 0
    (found,) = ask("describe-configs", group_ids=["g"], names=[limit])["groups"]
    assert found["configs"] == [{"name": limit, "value": "8", "is_default": False}]
    (unknown,) = ask("describe-configs", group_ids=["g"], names=[limit, "share.delivery.limit"])["groups"]
    assert (unknown["error_code"], unknown["configs"]) == (InvalidConfig.code, [])
    assert "Did you mean `share.delivery.count.limit`?" in unknown["error_message"]
    wrong = ask("incremental-alter-configs", group_id="g", configs={limit: "7", "no.such": "1"})
    assert wrong["error_code"] == InvalidConfig.code
    assert GroupConfigs.load(private_database, "g").delivery_count_limit == 8
    assert ask("incremental-alter-configs", group_id="g", configs={limit: None})["error_code"] == 0
    assert GroupConfigs.load(private_database, "g").delivery_count_limit == 5
    (who,) = private_database.rows(
        sa.text("select distinct principal from sharequeue.audit_trail where act = 'alter_group_config'")
    )
    assert who["principal"] == ANONYMOUS
    State(private_database).initialize(SharePartition("g", "t", 0), "id", 0, 1)
    (late,) = ask("incremental-alter-configs", group_id="g", configs={"share.auto.offset.reset": "earliest"})[
        "warnings"
    ]
    assert "group g has already started" in late
    Acls(private_database).allow_everyone_if_no_acl_found(False)
    for path, body in (
        ("incremental-alter-configs", {"group_id": "g", "configs": {limit: "3"}}),
        ("delete-share-group-offsets", {"group_id": "g", "topics": [{"topic_name": "t"}]}),
        ("alter-share-group-offsets", {"group_id": "g", "topics": []}),
    ):
        assert ask(path, **body)["error_code"] == GroupAuthorizationFailed.code, path


def test_an_alter_warns_over_http_as_the_command_does(
    ask: Ask, settings: Settings, private_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a dead-letter topic that takes nothing now; a change of anything else asks nobody about that topic."""
    changes = {"errors.deadletterqueue.topic.name": "letters"}
    (warning,) = ask("incremental-alter-configs", group_id="g", configs=changes)["warnings"]
    assert warning.startswith(
        "dead letters of group g will be held until an operator acts: `letters` does not"
    )
    url = private_database.engine.url.render_as_string(hide_password=False)
    where = ("--home", str(settings.home), "--database-url", url)
    words = ("configs", "alter", "--group", "g", "--set", "errors.deadletterqueue.topic.name=letters")
    result = CliRunner().invoke(command, [*words, *where])
    assert (result.exit_code, result.stderr) == (0, f"warning: {warning}\n")

    def ask_nobody(*_: object) -> str:
        raise AssertionError("asked about the dead-letter topic")

    monkeypatch.setattr("sharequeue.deadletters.topic._held_or_missing", ask_nobody)
    limit = {"share.delivery.count.limit": "8"}
    assert ask("incremental-alter-configs", group_id="g", configs=limit)["warnings"] == []


def test_topics_have_acls_too(ask: Ask, private_database: Database, make_topic: MakeTopic) -> None:
    """TOPIC_AUTHORIZATION_FAILED where Kafka says it: by topic, or for the whole group or heartbeat."""
    closed, topic = make_topic(1), make_topic(1)
    alter_group_configs(private_database, "g", {})
    alter_group_configs(private_database, "other", {})
    for each in (closed, topic):
        State(private_database).initialize(SharePartition("g", each, 0), "id", 0, 1)
    Acls(private_database).add(Acl("User:ann", "ALL", "ALLOW", "LITERAL", closed, "TOPIC"))
    refused = TopicAuthorizationFailed.code
    (all_of_it,) = ask("describe-share-group-offsets", groups=[{"group_id": "g"}])["groups"]
    assert [each["topic_name"] for each in all_of_it["topics"]] == [topic]
    wanted = [{"topic_name": each, "partitions": [0]} for each in (closed, topic)]
    (found,) = ask("describe-share-group-offsets", groups=[{"group_id": "g", "topics": wanted}])["groups"]
    errors = [part["error_code"] for each in found["topics"] for part in each["partitions"]]
    assert errors == [refused, 0]
    start = [{"partition_index": 0, "start_offset": 0}]
    starts = [{"topic_name": each, "partitions": start} for each in (closed, topic)]
    altered = ask("alter-share-group-offsets", group_id="g", topics=starts)["responses"]
    by_topic = {each["topic_name"]: each["partitions"][0]["error_code"] for each in altered}
    assert by_topic == {closed: refused, topic: 0}
    named = [{"topic_name": each} for each in (closed, topic)]
    deleted = ask("delete-share-group-offsets", group_id="g", topics=named)["responses"]
    assert [each["error_code"] for each in deleted] == [refused, 0]

    def beat(names: list[str] | None, epoch: int = 0) -> int:
        body = {"group_id": "g", "member_id": "m", "member_epoch": epoch, "subscribed_topic_names": names}
        return int(ask("share-group-heartbeat", **body)["error_code"])

    assert beat([topic, closed]) == refused
    assert beat([topic]) == 0
    assert beat([closed], 1) == refused
    State(private_database).initialize(SharePartition("other", closed, 0), "id", 0, 1)
    join(private_database, "other", closed)
    (group,) = ask("share-group-describe", group_ids=["other"])["groups"]
    assert (group["error_code"], group["members"]) == (refused, [])


def test_heartbeats_ask_for_acls(settings: Settings, private_database: Database) -> None:
    """READ on the group at each; a member is its principal's, and who may ALTER the group may make it leave; what may
    not be looked at is not shown."""
    tokens = Tokens(private_database)
    held = {name: tokens.create(f"User:{name}")[1] for name in ("ann", "bob", "carl", "dora")}
    acls = Acls(private_database)
    for name, operation in (("ann", "READ"), ("bob", "READ"), ("carl", "READ"), ("carl", "ALTER")):
        acls.add(Acl(f"User:{name}", operation, "ALLOW", "LITERAL", "g"))
    url = private_database.engine.url.render_as_string(hide_password=False)
    app = create_app(settings.replace(database_url=url), coordinate=False)
    with TestClient(app, base_url="http://localhost") as client:

        def header(name: str | None) -> dict[str, str]:
            return {} if name is None else {"Authorization": f"Bearer {held[name]}"}

        def beat(name: str | None, epoch: int, member: str = "m") -> int:
            body = {"group_id": "g", "member_id": member, "member_epoch": epoch}
            body |= {"subscribed_topic_names": ["t"]} if epoch >= 0 else {}
            response = client.post("/v1/share-group-heartbeat", json=body, headers=header(name))
            conforming(response)
            return int(response.json()["error_code"])

        refused = GroupAuthorizationFailed.code
        assert [beat(name, 0) for name in ("dora", None, "ann")] == [refused, refused, 0]
        assert [beat(name, 0) for name in ("bob", "carl")] == [refused, refused]
        assert [beat(name, -1) for name in ("dora", None, "bob", "ann")] == [refused, refused, refused, 0]
        assert beat("ann", 0) == 0
        assert beat("carl", -1) == 0
        assert beat("bob", 0) == 0
        acls.remove(AclFilter(principal="User:bob"))
        assert beat("bob", 1) == refused
        for path in ("/v1/groups/g", "/v1/reports/g"):
            for who, status in (("ann", 200), ("dora", 403), (None, 403)):
                response = client.get(path, headers=header(who))
                conforming(response)
                assert response.status_code == status, (path, who)
        groups = {
            name: client.get("/v1/groups", headers=header(name)).json()["groups"] for name in ("ann", "dora")
        }
        assert [each["group_id"] for each in groups["ann"]] == ["g"]
        assert groups["dora"] == []
        State(private_database).initialize(SharePartition("g", "t", 0), "id", 0, 1)
        acls.add(Acl("User:dora", "READ", "ALLOW", "LITERAL", "t", "TOPIC"))
        for path in ("/v1/groups/g", "/v1/reports/g"):
            response = client.get(path, headers=header("ann"))
            conforming(response)
            assert (response.status_code, response.json()["error_code"]) == (
                403,
                TopicAuthorizationFailed.code,
            )


def test_where_a_token_is_required_nobody_is_anonymous(
    settings: Settings, private_database: Database
) -> None:
    """All but the probes, which then say no more than yes or no."""
    _, secret = Tokens(private_database).create("User:ann")
    url = private_database.engine.url.render_as_string(hide_password=False)
    app = create_app(settings.replace(database_url=url), coordinate=False, require_token=True)
    with TestClient(app, base_url="http://localhost") as client:
        paths = [route.path for route in app.routes if isinstance(route, Route)]
        for path in paths:
            for method in ("GET", "POST"):
                response = client.request(method, path.replace("{group_id:group}", "g"))
                conforming(response)
                opened = path in ("/health", "/ready", "/openapi.json") and method == "GET"
                # The style sheet is open to everybody.
                closed = 404 if path == "/pages/{name}" else 401
                assert response.status_code in ((200, 503) if opened else (closed, 405)), (method, path)
        assert set(client.get("/ready").json()) == {"ready", "degraded"}
        header = {"Authorization": f"Bearer {secret}"}
        assert "database" in client.get("/ready", headers=header).json()
        assert client.get("/v1/groups", headers=header).status_code == 200
        assert client.get("/metrics", headers=header).status_code == 200


def test_malformed_requests_and_other_sites_are_refused(
    settings: Settings, private_database: Database
) -> None:
    """What is no JSON, names no known field, or comes from a page in a browser does nothing."""
    url = private_database.engine.url.render_as_string(hide_password=False)
    app = create_app(settings.replace(database_url=url), coordinate=False)
    alter_group_configs(private_database, "g", {})
    with TestClient(app, base_url="http://localhost") as client:
        path = "/v1/delete-groups"
        assert client.post(path, content=b'{"groups_names": ["g"]}').status_code == 415
        for body in (b"{", b'{"groups": ["g"]}', b'{"groups_names": "g"}', b'{"groups_names": ["g\\u0000"]}'):
            answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
            assert (answer.status_code, answer.json()["error_code"]) == (400, InvalidRequest.code)
        assert client.post("http://evil.example" + path, json={"groups_names": ["g"]}).status_code == 400
        assert client.get(path).status_code == 405
        assert [each["group_id"] for each in client.get("/v1/groups?state=Empty").json()["groups"]] == ["g"]
        assert client.get("/v1/groups?state=stable").json()["groups"] == []
        assert client.get("/v1/groups?state=Sleepy").status_code == 400


def test_the_command_of_the_page_closes_the_service_and_not_the_workers(
    ask: Ask, private_database: Database
) -> None:
    """`acls add --deny-principal User:ANONYMOUS --group '*' --allow-principal 'User:*'`."""
    join(private_database, "g", "t")
    at = SharePartition("g", "t", 0)
    State(private_database).initialize(at, "id", 0, 1)
    single.observe(State(private_database), at, "id", 0, 9, 9)
    url = private_database.engine.url.render_as_string(hide_password=False)
    words = [
        *("acls", "add", "--deny-principal", ANONYMOUS, "--group", "*", "--allow-principal", "User:*"),
        *("--database-url", url),
    ]
    result = CliRunner().invoke(command, words)
    assert result.exit_code == 0, result.output
    refused = GroupAuthorizationFailed.code
    assert ask("share-group-describe", group_ids=["g"])["groups"][0]["error_code"] == refused
    assert ask("delete-groups", groups_names=["g"])["results"][0]["error_code"] == refused
    assert ask("describe-configs", group_ids=["g"])["groups"][0]["error_code"] == refused
    named: Any = {"group_id": "g", "topics": [{"topic_name": "t"}]}
    assert ask("delete-share-group-offsets", **named)["error_code"] == refused
    with on_behalf_of(private_database, "User:worker") as connection:
        lease = single.acquire(State(Joined(connection)), at, "m", None, 5)
    assert lease is not None


def test_the_rules_are_those_of_the_database(private_database: Database) -> None:
    """For every operation, of rules that allow, deny, and cover by name, prefix or all."""
    acls = Acls(private_database)
    for acl in (
        Acl(ANONYMOUS, "READ", "ALLOW", "PREFIXED", "a."),
        Acl("User:*", "DESCRIBE", "DENY", "LITERAL", "a.b"),
        Acl(ANONYMOUS, "ALTER_CONFIGS", "ALLOW", "LITERAL", "b"),
        Acl("User:ann", "ALL", "ALLOW", "LITERAL", "c"),
        Acl(ANONYMOUS, "ALL", "ALLOW", "LITERAL", "d"),
    ):
        acls.add(acl)
    for open_without in (True, False):
        acls.allow_everyone_if_no_acl_found(open_without)
        for group in ("a.", "a.b", "b", "c", "d", "e"):
            with on_behalf_of(private_database, ANONYMOUS) as connection:
                allowed = connection.execute(
                    sa.text(
                        "select operation from unnest(cast(:operations as text[])) as o (operation)"
                        " where sharequeue_internal.authorised(:group, operation)"
                    ),
                    {"group": group, "operations": [name for name in OPERATIONS if name != "ALL"]},
                ).scalars()
                assert authorized_operations(Joined(connection), group) == list(allowed)


def test_why_nothing_can_be_leased_is_said_over_http(settings: Settings, private_database: Database) -> None:
    """In one word, until when and behind which offset: what the view has;
    null where something can be leased."""
    state, at = State(private_database), SharePartition("g", "t", 0)
    join(private_database, "g", "t")
    state.initialize(at, "id", 3, 1)
    url = private_database.engine.url.render_as_string(hide_password=False)

    def said() -> tuple[str | None, str | None, int | None]:
        answer = httpx.get(f"{where}/v1/groups/g", trust_env=False, timeout=PATIENCE_S)
        conforming(answer)
        (found,) = answer.json()["offsets"]
        (status,) = state.figures.describe("g")
        until = status.blocked_until
        assert found["blocked_until"] == (None if until is None else until.isoformat())
        for key in ("blocked_by", "blocked_offset"):
            assert found[key] == getattr(status, key)
        return found["blocked_by"], found["blocked_until"], found["blocked_offset"]

    with serving(settings.replace(database_url=url), coordinate=False) as where:
        assert said() == (None, None, None)
        single.observe(state, at, "id", 0, 9, 9)
        assert said() == (None, None, None)
        lease = single.acquire(state, at, "m", None, 100)
        assert lease is not None
        assert said() == ("leased", lease.expires_at.isoformat(), 3)
        state.administration.pause("g", "a look")
        assert said() == ("paused", None, None)


def test_a_reset_with_an_id_that_was_replaced_is_refused_over_http(
    ask: Ask, private_database: Database, make_topic: MakeTopic
) -> None:
    """The partition has its error, by name, and stays as it is."""
    topic = make_topic(1)
    starts = [{"topic_name": topic, "partitions": [{"partition_index": 0, "start_offset": 0}]}]
    ask("alter-share-group-offsets", group_id="g", topics=starts)
    single.alter_offsets(State(private_database), SharePartition("g", topic, 0), "an id that came later", 5)
    described = ask("describe-share-group-offsets", groups=[{"group_id": "g", "topics": None}])["groups"]
    assert described[0]["topics"][0]["partitions"][0]["leader_epoch"] == -1
    (stale,) = ask("alter-share-group-offsets", group_id="g", topics=starts)["responses"]
    assert stale["partitions"][0]["error_code"] == UnknownTopicId.code
    assert "no longer has the id" in stale["partitions"][0]["error_message"]
    assert [each.spso for each in State(private_database).figures.describe("g")] == [5]


def test_a_partition_that_is_named_twice_is_refused_before_anything_changes(
    ask: Ask, private_database: Database, make_topic: MakeTopic
) -> None:
    """In one entry of its topic or in two: no group is made, and one that is there stays as it is."""
    topic = make_topic(2)

    def starts(*named: tuple[int, int]) -> Answer:
        return {
            "topic_name": topic,
            "partitions": [{"partition_index": index, "start_offset": start} for index, start in named],
        }

    for topics in ([starts((1, 5), (0, 3), (0, 4))], [starts((0, 3), (1, 5)), starts((0, 3))]):
        refused = ask("alter-share-group-offsets", group_id="g", topics=topics)
        assert refused["error_code"] == InvalidRequest.code
        assert refused["error_message"] == (
            f"partition 0 of topic '{topic}' is named twice: give it one start offset"
        )
        (absent,) = ask("share-group-describe", group_ids=["g"])["groups"]
        assert absent["error_code"] == GroupIdNotFound.code
    two_entries = [starts((0, 3)), starts((1, 5))]
    assert ask("alter-share-group-offsets", group_id="g", topics=two_entries)["error_code"] == 0
    assert ask("alter-share-group-offsets", group_id="g", topics=topics)["error_code"] == InvalidRequest.code
    assert [each.spso for each in State(private_database).figures.describe("g")] == [3, 5]


def test_listed_groups_are_those_that_the_caller_may_describe(
    settings: Settings, private_database: Database
) -> None:
    """As in Kafka's ListGroups: READ, ALTER and DELETE imply DESCRIBE, configs do not. What is listed is what
    `GET /v1/groups/{g}` and the first page show, in one statement."""
    url = private_database.engine.url.render_as_string(hide_password=False)
    _, secret = Tokens(private_database).create("User:ann")
    header = {"Authorization": f"Bearer {secret}"}
    alter_group_configs(private_database, "open", {})
    for operation in OPERATIONS:
        alter_group_configs(private_database, f"may.{operation}", {})
        Acls(private_database).add(Acl("User:ann", operation, "ALLOW", "LITERAL", f"may.{operation}"))
    statements: list[str] = []
    app = create_app(settings.replace(database_url=url), coordinate=False)
    with TestClient(app, base_url="http://localhost") as client:
        sa.event.listen(
            app.state.service.database.engine,
            "before_cursor_execute",
            lambda *of: statements.append(of[2]),
        )
        listed = [each["group_id"] for each in client.get("/v1/groups", headers=header).json()["groups"]]
        assert len([each for each in statements if "share_groups" in each]) == 1
        shown = client.get("/", headers=header).text
        for operation in OPERATIONS:
            status = client.get(f"/v1/groups/may.{operation}", headers=header).status_code
            assert (f"may.{operation}" in listed) == (status == 200) == (f"may.{operation}" in shown)
    assert listed == ["may.ALL", "may.ALTER", "may.DELETE", "may.DESCRIBE", "may.READ", "open"]


def test_a_group_named_twice_is_answered_twice(ask: Ask, private_database: Database) -> None:
    """Each entry of a request has its answer, in its place."""
    join(private_database, "g", "t")
    for partition in (0, 1):
        State(private_database).initialize(SharePartition("g", "t", partition), "id", partition, 1)
    for path, body in (
        ("share-group-describe", {"group_ids": ["g", "h", "g"]}),
        ("describe-configs", {"group_ids": ["g", "h", "g"]}),
        ("describe-share-group-offsets", {"groups": [{"group_id": each} for each in "ghg"]}),
    ):
        assert [each["group_id"] for each in ask(path, **body)["groups"]] == ["g", "h", "g"]
    named = [
        {"group_id": "g", "topics": [{"topic_name": "t", "partitions": [partition]}]} for partition in (1, 0)
    ]
    found = ask("describe-share-group-offsets", groups=named)["groups"]
    assert [each["topics"][0]["partitions"][0]["start_offset"] for each in found] == [1, 0]
    deleted = ask("delete-groups", groups_names=["h", "g", "h"])["results"]
    assert [each["group_id"] for each in deleted] == ["h", "g", "h"]


def test_what_is_closed_is_not_named(ask: Ask, private_database: Database) -> None:
    """Whether there is a closed group cannot be asked, by deleting it either."""
    acls = Acls(private_database)
    for name in ("closed", "nothing"):
        acls.add(Acl("User:boss", "ALL", "ALLOW", "LITERAL", name))
    alter_group_configs(private_database, "closed", {})
    results = ask("delete-groups", groups_names=["closed", "nothing"])["results"]
    assert {each["error_code"] for each in results} == {GroupAuthorizationFailed.code}
