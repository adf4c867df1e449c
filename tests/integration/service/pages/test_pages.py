"""The pages to look at: what they show, to whom, in which time; and that nothing of somebody else's becomes a tag."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any
from urllib.parse import quote

import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from sharequeue.database import Database
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import AcknowledgeType, SharePartition
from sharequeue.groups.acls import Acl, Acls
from sharequeue.groups.configs import ServiceConfigs, alter_group_configs
from sharequeue.groups.heartbeats import HeartbeatRequest, heartbeat
from sharequeue.groups.tokens import Tokens
from sharequeue.reports.history import Reports
from sharequeue.service import admission
from sharequeue.service.edge.response_headers import COMMON
from sharequeue.state import State
from tests import single
from tests.integration.service.pages.html_pages import Page
from tests.integration.service.pages.pages_client import client_of, got, here_of
from tests.waiting import pass_time

OVERVIEW = import_module("sharequeue.service.pages.overview_page")
"""The package has a function of this name."""
HOSTILE = "<script>alert(1)</script>\"'&\u202e/../?#"


@pytest.fixture
def at_configs() -> Mapping[str, str | int]:
    """Released records come again at once."""
    return {"sharequeue.retry.backoff.ms": 0}


@pytest.fixture
def here(settings: Settings, private_database: Database) -> Settings:
    """Give settings that lead to a database of this test alone."""
    return here_of(settings, private_database)


@pytest.fixture
def client(here: Settings) -> Iterator[TestClient]:
    """Give such a client, whom nobody asks for a token."""
    with client_of(here) as client:
        yield client


def test_a_page_that_takes_too_long_is_an_error(
    here: Settings, private_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Postgres ends a statement that takes too long, and the reader may try again."""
    alter_group_configs(private_database, "g", {})
    monkeypatch.setattr(admission, "STATEMENT_SECONDS", 2.0)
    monkeypatch.setattr(OVERVIEW, "_WHOLE", sa.text("select pg_sleep(60), :groups"))
    with client_of(here) as client:
        assert "Try again" in got(client, "/", 503).text
        got(client, "/groups/g")


def test_a_group_with_thousands_of_topics_is_shown_in_time(
    client: TestClient, private_database: Database
) -> None:
    """As many as a heartbeat may name, none of them there: one question for all of them, whoever asks."""
    names = tuple(f"nothing-{number}" for number in range(10_000))
    request = HeartbeatRequest(
        "many", "m", 0, subscribed_topic_names=names, client_id="c", client_host="here"
    )
    assert heartbeat(private_database, request, ServiceConfigs.of({}), "User:ann").error_code == 0
    statements: list[str] = []

    def note(*call: Any) -> None:
        statements.append(call[2])

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        for path in ("/", "/groups/many", "/v1/groups/many"):
            assert client.get(path).status_code == 200
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
    assert len(statements) < 100


def test_what_nobody_foresaw_is_an_error_like_others(
    client: TestClient,
    private_database: Database,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Status 500, as JSON or as a page, without what failed; the log has that."""
    alter_group_configs(private_database, "g", {})

    def fail(*_: Any, **__: Any) -> None:
        raise OverflowError("what-failed")

    monkeypatch.setattr(OVERVIEW, "list_groups", fail)
    assert "what-failed" not in got(client, "/", 500).text
    monkeypatch.setattr("sharequeue.service.operations.configs.alter_and_tell", fail)
    answer = client.post("/v1/incremental-alter-configs", json={"group_id": "g", "configs": {}})
    assert (answer.status_code, answer.json()["error_code"]) == (500, -1)
    assert "what-failed" not in answer.text
    assert [record.exc_info is not None for record in caplog.records].count(True) == 2


def join(
    database: Database, group: str, member: str, client_id: str, topic: str, rack: str | None = None
) -> None:
    """Have a member join a group."""
    request = HeartbeatRequest(
        group,
        member,
        0,
        subscribed_topic_names=(topic,),
        rack_id=rack,
        client_id=client_id,
        client_host="here",
    )
    answer = heartbeat(database, request, ServiceConfigs.of({}), "User:ann")
    assert answer.error_code == 0, answer


def test_a_group_from_its_list_to_its_page(
    client: TestClient, private_database: Database, at: SharePartition
) -> None:
    """The figures, the window, who holds what, as which run; each page is a link away from the one before."""
    state = State(private_database)
    run = "11111111-2222-4333-8444-555555555555"
    join(private_database, at.group_id, "m", f"dagster-run-{run}", at.topic, "rack-7")
    Reports(private_database).record(at.group_id)
    pass_time(private_database, 10)
    lease = single.acquire(state, at, "m", None, 20)
    assert lease is not None
    kinds = {"ACCEPT": (5, 10), "REJECT": (10, 12), "RELEASE": (12, 15)}
    single.acknowledge(
        state, lease, {AcknowledgeType[kind]: OffsetSet.of(run) for kind, run in kinds.items()}
    )
    Reports(private_database).record(at.group_id)

    first = got(client, "/")
    (row,) = first.rows("Share groups")
    assert row[:5] == ["g", "Stable", "1", "1", "995"]
    assert "/groups/g" in first.links()
    group = got(client, "/groups/g")
    (partition,) = group.rows("Share-partitions")
    assert partition[0] == "t-0"
    assert "5 acknowledged, 2 archiving" in str([each.get("aria-label") for each in group.all("svg")])
    (held,) = group.rows("Leases")
    assert held[1:7] == ["t-0", "0 to 19", "10", "1", f"run {run}", "m"]
    (member,) = group.rows("Members")
    assert member[:5] == ["m", f"run {run}", "here", "rack-7", "2"]
    assert {"/v1/reports/g", "/dead-letters/g"} <= set(group.links())
    report = Page(client.get("/v1/reports/g").text)
    assert "Lag of the last 24 hours" in str([each.get("aria-label") for each in report.all("svg")])
    private_database.rows(sa.text("delete from sharequeue.members returning member_id"))
    state.administration.delete_group("g")
    assert "may have been deleted" in got(client, "/groups/g", 404).text
    assert "There is no share group yet" in got(client, "/").text


def test_nothing_of_others_becomes_a_tag(client: TestClient, private_database: Database) -> None:
    """Names of groups, topics, members, clients, racks and reasons; and every group has an address."""
    state = State(private_database)
    for group in (HOSTILE, ".", "..", "a/b", "-", "ä b", "x" * 249):
        at = SharePartition(group, "t", 0)
        alter_group_configs(private_database, group, {})
        join(private_database, group, "<b>m</b>", f"dagster-run-{HOSTILE}", "t", HOSTILE)
        state.initialize(at, "id", 0, 2)
        single.observe(state, at, "id", 0, 100, 100)
        assert single.acquire(state, at, "<b>m</b>", None, 5) is not None
        state.administration.pause(group, HOSTILE, at.topic, 0)
    first = got(client, "/")
    links = [each for each in first.links() if each.startswith("/groups/")]
    assert len(set(links)) == 7
    for link in links:
        page = got(client, link)
        assert page.all("b") == []
        assert "<script>alert(1)</script>" in page.text
        assert "\\u202e" in page.text
    got(client, f"/groups/{quote('<img src=x>')}", 404)
    got(client, "/groups/%00", 404)
    got(client, "/groups/g?page=999999999999999999999", 404)
    got(client, f"/?q={quote(HOSTILE)}&after=%00")


def test_what_fails_is_shown_with_its_age(client: TestClient, private_database: Database) -> None:
    """Of the service's own work, and of a group that the caller may see."""
    alter_group_configs(private_database, "g", {})
    service = client.app.state.service  # type: ignore[attr-defined]
    service.coordinator.faults["dead_letters"] = "the broker is away"
    service.coordinator.groups.note("sweep", {"g": "its row is held", "another": "a secret"})
    text = got(client, "/").text
    for said in (
        r"dead letters is failing, for \d[.\d]* s: the broker is away",
        r"group g is stuck, for \d[.\d]* s: its row is held",
    ):
        assert re.search(said, text), text
    assert "a secret" not in text


def test_who_may_not_describe_sees_nothing(here: Settings, private_database: Database) -> None:
    """A group that is closed is not in the list, whether it is there cannot be asked, and errors name no other group;
    of one with a closed topic there is the name alone."""
    state, acls = State(private_database), Acls(private_database)
    for group, topic in (("open", "t"), ("closed", "t"), ("half", "secret"), ("opera", "t")):
        alter_group_configs(private_database, group, {})
        at = SharePartition(group, topic, 0)
        state.initialize(at, f"id-{topic}", 0, 2)
        state.administration.pause(group, f"why {group}", topic, 0)
    acls.add(Acl("User:boss", "ALL", "ALLOW", "LITERAL", "closed"))
    acls.add(Acl("User:boss", "ALL", "ALLOW", "LITERAL", "secret", "TOPIC"))
    acls.add(Acl("User:ann", "READ", "ALLOW", "LITERAL", "opera"))
    acls.add(Acl("User:bob", "ALTER_CONFIGS", "ALLOW", "LITERAL", "opera"))
    secrets = {name: Tokens(private_database).create(f"User:{name}")[1] for name in ("ann", "bob", "boss")}
    as_whom = {name: {"Authorization": f"Bearer {secret}"} for name, secret in secrets.items()}
    with client_of(here) as client:
        nobody = got(client, "/")
        assert [row[0] for row in nobody.rows("Share groups")] == [
            "half no access to one of its topics",
            "open",
        ]
        assert "why open" in nobody.text
        assert not {"why closed", "why half", "closed,"} & set(nobody.text.split("; "))
        assert "why half" not in nobody.text
        for path in ("/groups/closed", "/groups/half"):
            page = got(client, path, 403)
            assert "why" not in page.text
            assert "secret" not in page.text
            assert "may not DESCRIBE" in page.text
        assert "closed" not in got(client, "/groups/close", 404).text
        assert "closed" not in client.get("/v1/reports/close").text
        refused = client.get("/v1/groups/half")
        assert (refused.status_code, "secret" in refused.text) == (403, False)
        for each in (refused, client.get("/health"), client.get("/metrics"), client.get("/nosuch")):
            assert {name: each.headers[name] for name in COMMON} == COMMON
        assert [row[0] for row in got(client, "/?q=OPE").rows("Share groups")] == ["open"]
        ann = got(client, "/", headers=as_whom["ann"])
        assert [row[0] for row in ann.rows("Share groups")][1:] == ["open", "opera"]
        assert "User:ann" in ann.text
        got(client, "/groups/opera", headers=as_whom["ann"])
        got(client, "/groups/opera", 403, headers=as_whom["bob"])
        assert len(got(client, "/", headers=as_whom["boss"]).rows("Share groups")) == 3
        got(client, "/", 401, headers={"Authorization": "Bearer nobody"})
    with client_of(here, require_token=True) as client:
        for path in ("/", "/groups/open", "/groups/nosuch"):
            assert "open" not in got(client, path, 401).text
        got(client, "/groups/open", headers=as_whom["ann"])


def test_pages_of_a_large_group_are_bounded(client: TestClient, private_database: Database) -> None:
    """Share-partitions, some with windows of 2,000 scattered offsets: a page has 25 of them, all can be reached."""
    alter_group_configs(private_database, "g", {"sharequeue.retry.backoff.ms": 0})
    state = State(private_database)
    for partition in range(30):
        at = SharePartition("g", "t", partition)
        state.initialize(at, "id", 0, 2)
        single.observe(state, at, "id", 0, 5000 + partition, 5000 + partition)
        if partition % 10:
            continue
        lease = single.acquire(state, at, "m", None, 2000)
        assert lease is not None
        single.acknowledge(
            state, lease, {AcknowledgeType.RELEASE: OffsetSet.of(*((n, n + 1) for n in range(1, 2000, 2)))}
        )
    seen: list[str] = []
    for number in (1, 2):
        page = got(client, f"/groups/g?page={number}")
        seen += [row[0] for row in page.rows("Share-partitions")]
    assert sorted(seen) == sorted(f"t-{partition}" for partition in range(30))
    assert seen[0] == "t-29"
    response = client.get("/groups/g")
    assert len(response.content) < 700_000
