"""Dead letters put back to work from a page: first what would be sent, then each once; by who may."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module

import pytest
import sqlalchemy as sa
from confluent_kafka import Producer
from starlette.testclient import TestClient

from sharequeue.deadletters.letters import GROUP, MESSAGE, MESSAGES, OFFSET, PARTITION, TOPIC, headers_of
from sharequeue.groups.acls import Acl, AclFilter, Acls
from sharequeue.groups.tokens import Tokens
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.records import Originals
from sharequeue.offsets import OffsetSet
from sharequeue.redrive.selection import REDRIVE_FROM
from tests.fixtures.deadletters import GivenUp
from tests.fixtures.stack import MakeTopic
from tests.html_pages import Page, read
from tests.integration.service.pages_client import client_of, got
from tests.waiting import wait_until

Make = Callable[..., GivenUp]
OURS = {"Origin": "http://localhost"}
pytestmark = pytest.mark.usefixtures("patient")


@pytest.fixture
def case(given_up: Make) -> GivenUp:
    """Give ten letters in a topic."""
    case = given_up(copy=True)
    case.produce(12)
    case.reject({0: OffsetSet.of((0, 10))})
    case.writer().drain()
    return case


@pytest.fixture
def client(case: GivenUp) -> Iterator[TestClient]:
    """Give a client of the service, signed in as somebody who may."""
    _, secret = Tokens(case.database).create(f"User:{case.group}")
    with client_of(case.settings) as client:
        client.headers.update(OURS)
        client.post("/sign-in", data={"token": secret}, follow_redirects=False)
        yield client


def asked(client: TestClient, group: str, status: int = 200, **fields: str) -> Page:
    response = client.post(f"/redrive/{group}", data={"do": "plan", **fields})
    assert response.status_code == status, response.text
    return read(response.text)


def put_back(case: GivenUp, topic: str) -> list[str]:
    """From where each record of a topic was put back."""
    case.topics.settle([topic], 60)
    end = case.topics.offsets(topic)[0].log_end
    with Originals(case.settings, topic) as records:
        found = [headers_of(message) for message in records.read(0, OffsetSet.from_offsets(range(end)))]
    return [
        content.decode() for headers in found for name, content in headers if name == REDRIVE_FROM and content
    ]


def test_what_was_shown_is_sent_once(client: TestClient, case: GivenUp, make_topic: MakeTopic) -> None:
    """Nothing is sent by looking; then each letter of the plan is, in the name of who asked; and never again. A
    letter that names a topic which the group does not read is not sent: anybody may have written it."""
    other = make_topic(1)
    forged = {TOPIC: other, PARTITION: "0", OFFSET: "0", GROUP: case.group, MESSAGE: MESSAGES["rejected"]}
    producer = Producer(client_config(case.settings))
    producer.produce(case.dead_letter_topic, b"forged", headers=[(k, v.encode()) for k, v in forged.items()])
    producer.flush(30)
    page = asked(client, case.group, cause="rejected", offsets="0:0-6")
    (row,) = page.rows("A dry run")
    assert row == [case.topic, "7", "none"]
    assert "Send 7 letters" in page.text
    assert put_back(case, case.topic) == []
    hidden = [each for each in page.all("input") if each.get("type") == "hidden"]
    fields = {each.get("name", ""): each.get("value", "") for each in hidden}
    sent = client.post(f"/redrive/{case.group}", data={**fields, "do": "send"}, follow_redirects=False)
    assert (sent.status_code, sent.headers["location"]) == (303, f"/redrive/{case.group}")

    def ended() -> bool:
        text = got(client, f"/redrive/{case.group}").text
        return "None yet" not in text and "not ended" not in text and "under way" not in text

    wait_until(ended)
    (last,) = got(client, f"/redrive/{case.group}").rows("Redrives of this group")
    assert (last[1], last[3], last[4]) == (f"User:{case.group}", case.topic, "7")
    assert sorted(put_back(case, case.topic)) == [f"{case.dead_letter_topic}:0:{n}" for n in range(7)]
    again = asked(client, case.group)
    assert "3 letters would be sent. 7 were sent before" in again.text
    assert put_back(case, other) == []
    # A letter's own page leads to a form that has it.
    letter = got(client, f"/dead-letters/{case.group}?partition=0&offset=8")
    (link,) = (each for each in letter.links() if "redrive" in each)
    (offsets,) = (each.get("value") for each in got(client, link).all("input") if each.get("id") == "offsets")
    assert offsets == "0:8"
    for fields in (
        {"offsets": "x"}, {"header": "x"}, {"rate": "-1"}, {"rate": "nan"}, {"rate": "x"}, {"topic": other},
        {"cause": "rejectd"}, {"do": "sent"}, {"do": ""},
    ):  # fmt: skip
        asked(client, case.group, 400, **fields)
    # Without what was shown nothing is sent: a name with a mistake in it is not all letters.
    asked(client, case.group, 400, do="send")
    asked(client, case.group, 400, do="send", cause="rejected")
    asked(client, case.group, 400, do="send", cause="rejectd", offsets="0:7")
    assert len(put_back(case, case.topic)) == 7
    assert "ends at offset" in asked(client, case.group, offsets="0:99999").text


def test_letters_too_scattered_for_a_form_are_not_sent(
    client: TestClient, case: GivenUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sent is what was shown. What no form can name has no button, and the page says what to do."""
    monkeypatch.setattr(import_module("sharequeue.service.pages.redrive"), "_MOST_CHOSEN", 3)
    page = asked(client, case.group)
    assert "10 letters would be sent" in page.text
    assert "too scattered" in page.text
    assert [each for each in page.all("button") if each.get("value") == "send"] == []


def test_who_may_not_sends_nothing(client: TestClient, case: GivenUp) -> None:
    """Not who has not shown who it is, not from another site's page, without ALTER, or without READ on the topics."""
    group, acls, me = case.group, Acls(case.database), f"User:{case.group}"
    form = {"do": "send"}
    for origin in ("http://evil.example", "null"):
        assert client.post(f"/redrive/{group}", data=form, headers={"Origin": origin}).status_code == 403
    with client_of(case.settings) as nobody:
        assert "sign in first" in read(nobody.post(f"/redrive/{group}", data=form, headers=OURS).text).text
        assert got(nobody, f"/redrive/{group}").all("button") == []
    refusals = (
        Acl(me, "ALTER", "DENY", "LITERAL", group),
        Acl(me, "READ", "DENY", "LITERAL", group),
        Acl(me, "READ", "DENY", "LITERAL", case.dead_letter_topic, "TOPIC"),
    )
    try:
        for acl in refusals:
            acls.add(acl)
            acls.add(Acl(me, "ALL", "ALLOW", "LITERAL", acl.resource_name, acl.resource_type))
            asked(client, group, 403)
            assert client.post(f"/redrive/{group}", data=form).status_code == 403
            acls.remove(AclFilter(principal=me))
        acls.add(Acl(me, "READ", "DENY", "LITERAL", case.topic, "TOPIC"))
        acls.add(Acl(me, "ALL", "ALLOW", "LITERAL", case.topic, "TOPIC"))
        assert "0 letters would be sent" in asked(client, group).text
        assert "closed to you" in got(client, f"/dead-letters/{group}").text
        got(client, f"/dead-letters/{group}?partition=0&offset=1", 403)
    finally:
        acls.remove(AclFilter(principal=me))
    rows = case.database.rows(
        sa.text("select 1 from sharequeue.redrives where dead_letter_topic = :topic"),
        topic=case.dead_letter_topic,
    )
    assert rows == []
