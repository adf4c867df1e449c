"""What may be changed of a group from a page: by who has shown who it is, through the admin operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from sharequeue.database import Database
from sharequeue.groups.acls import Acl, Acls
from sharequeue.groups.configs import GroupConfigs, alter_group_configs
from sharequeue.groups.tokens import Tokens
from sharequeue.settings import Settings
from sharequeue.state import State
from sharequeue.values import SharePartition
from tests.html_pages import Page, read
from tests.integration.service.pages_client import client_of, got, here_of

OURS = {"Origin": "http://localhost"}
LIMIT = "share.delivery.count.limit"


@pytest.fixture
def client(settings: Settings, private_database: Database) -> Iterator[TestClient]:
    """Give a client of the service; ann has signed in."""
    _, secret = Tokens(private_database).create("User:ann")
    with client_of(here_of(settings, private_database)) as client:
        client.headers.update(OURS)
        client.post("/sign-in", data={"token": secret}, follow_redirects=False)
        yield client


def test_what_ann_may_change(
    client: TestClient, private_database: Database, make_topic: Callable[..., str]
) -> None:
    """A reset shows what it would do, and then does it; a config is set and taken away; a group is deleted by who
    writes its name. All of it is in the audit log under her name."""
    topic = make_topic(2)
    alter_group_configs(private_database, "g", {})
    State(private_database).initialize(SharePartition("g", topic, 1), "id", 5, 2)

    def done(do: str, fields: dict[str, str], status: int = 200) -> Page:
        response = client.post("/manage/g", data={"do": do, **fields}, follow_redirects=False)
        assert response.status_code == status, response.text
        return read(response.text)

    reset = {"topic": topic, "to": "offset", "offset": "7", "partition": "1"}
    plan = done("plan-offsets", reset)
    assert plan.rows("A dry run") == [[f"{topic}-1", "5", "0", "would be done"]]
    assert State(private_database).figures.describe("g")[0].spso == 5
    hidden = [each for each in plan.all("input") if each.get("type") == "hidden"]
    again = {each.get("name", ""): each.get("value", "") for each in hidden}
    assert done("alter-offsets", again).rows("What was done") == [[f"{topic}-1", "5", "0", "done"]]
    assert State(private_database).figures.describe("g")[0].spso == 0
    for wrong in ({"topic": "nosuch"}, {"to": "x"}, {"offset": "-1"}, {"offset": "x"}, {"partition": "9"}):
        done("plan-offsets", {**reset, **wrong}, 400)
    done("nothing", {}, 400)
    assert f"{LIMIT} is set" in done("alter-config", {"config": LIMIT, "value": "8"}).text
    assert GroupConfigs.load(private_database, "g").delivery_count_limit == 8
    assert "taken away" in done("alter-config", {"config": LIMIT, "unset": "1"}).text
    for config in (LIMIT, "nosuch", "", "<b>"):
        done("alter-config", {"config": config, "value": "many"}, 400)
    done("delete", {"group": "G"}, 400)
    response = client.post("/manage/g", data={"do": "delete", "group": "g"}, follow_redirects=False)
    assert (response.status_code, response.headers["location"]) == (303, "/")
    got(client, "/manage/g", 404)
    query = sa.text("select distinct act from sharequeue.audit_trail where principal = 'User:ann'")
    acts = private_database.rows(query)
    assert {row["act"] for row in acts} >= {"alter_offsets", "alter_group_config", "delete_group"}


def test_what_others_may_not(client: TestClient, private_database: Database) -> None:
    """Without the right for it the form is not there, and what is sent all the same is refused; nor does anybody act
    who has not shown who it is."""
    alter_group_configs(private_database, "g", {})
    Acls(private_database).add(Acl("User:*", "DESCRIBE", "ALLOW", "LITERAL", "g"))
    assert "User:ann may change nothing" in got(client, "/manage/g").text
    forms = ({"do": "plan-offsets"}, {"do": "alter-config", "config": LIMIT}, {"do": "delete", "group": "g"})
    for form in forms:
        assert "may not" in read(client.post("/manage/g", data=form).text).text
        assert (
            client.post("/manage/g", data=form, headers={"Origin": "http://evil.example"}).status_code == 403
        )
    Acls(private_database).add(Acl("User:*", "ALL", "ALLOW", "LITERAL", "g"))
    client.cookies.clear()
    assert "Sign in to change something" in got(client, "/manage/g").text
    for form in forms:
        refused = client.post("/manage/g", data=form)
        assert refused.status_code == 403
        assert "sign in first" in read(refused.text).text
