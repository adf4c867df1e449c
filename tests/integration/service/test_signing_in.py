"""Signing in to the pages: by a token, for a while, and only from a page of theirs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from sharequeue.database import Database
from sharequeue.groups.configs import alter_group_configs
from sharequeue.groups.page_sessions import LIFETIME
from sharequeue.groups.tokens import Tokens
from sharequeue.service.edge.rates import Rates
from sharequeue.settings import Settings
from tests.html_pages import Page, read
from tests.integration.service.pages_client import client_of, here_of
from tests.waiting import pass_time

OURS = {"Origin": "http://localhost"}


@pytest.fixture
def client(settings: Settings, private_database: Database) -> Iterator[TestClient]:
    """Give a client of a service that asks who is there."""
    alter_group_configs(private_database, "g", {})
    with client_of(here_of(settings, private_database), require_token=True) as client:
        yield client


def sign_in(client: TestClient, token: str, target: str = "/", **headers: str) -> Any:
    return client.post(
        "/sign-in", data={"token": token, "next": target}, headers={**OURS, **headers}, follow_redirects=False
    )


def test_a_session_lasts_as_long_as_its_token_at_most(client: TestClient, private_database: Database) -> None:
    """Whoever signs in looks as the token's principal, in the pages alone; until it signs out, the session ends by
    itself, or the token is revoked. The cookie has another secret than the token, and no script can read it."""
    tokens = Tokens(private_database)
    token, secret = tokens.create("User:ann")
    asked = client.get("/groups/g?page=1")
    assert asked.status_code == 401
    page = read(asked.text)
    (target,) = (each.get("value") for each in page.all("input") if each.get("name") == "next")
    assert target == "/groups/g?page=1"
    answer = sign_in(client, secret, target)
    assert (answer.status_code, answer.headers["location"]) == (303, "/groups/g?page=1")
    (cookie,) = answer.headers.get_list("set-cookie")
    assert secret not in cookie
    for attribute in ("HttpOnly", "SameSite=strict", "Path=/", f"Max-Age={int(LIFETIME.total_seconds())}"):
        assert attribute in cookie
    assert "Domain" not in cookie
    assert "User:ann" in read(client.get("/groups/g").text).text
    # It opens nothing but pages: what takes JSON takes no cookie.
    assert client.get("/v1/groups").status_code == 401
    assert client.post("/v1/delete-groups", json={"groups_names": ["g"]}).status_code == 401
    held = client.cookies["sharequeue"]
    (row,) = private_database.rows(sa.text("select session_hash from sharequeue.page_sessions"))
    assert held.encode() not in bytes(row["session_hash"])
    out = client.post("/sign-out", data={"": ""}, headers=OURS, follow_redirects=False)
    assert out.status_code == 303
    client.cookies.set("sharequeue", held)
    assert client.get("/").status_code == 401

    client.cookies.clear()
    sign_in(client, secret)
    pass_time(private_database, LIFETIME.total_seconds() + 1)
    assert client.get("/").status_code == 401
    sign_in(client, secret)
    assert client.get("/").status_code == 200
    tokens.revoke(token.token_id)
    assert client.get("/").status_code == 401


def test_only_a_page_of_ours_signs_anybody_in_or_out(
    client: TestClient, private_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """A form of another site, of nowhere, or in another type is refused; a wrong token is not repeated anywhere; and
    nobody is sent to another site."""
    caplog.set_level(logging.DEBUG)
    _, secret = Tokens(private_database).create("User:ann")
    form = {"token": secret, "next": "/"}
    for origin in ("http://evil.example", "null", "http://localhost:1", "https://localhost.evil.example", ""):
        for path in ("/sign-in", "/sign-out"):
            headers = {"Origin": origin} if origin else {}
            answer = client.post(path, data=form, headers=headers, follow_redirects=False)
            assert answer.status_code == 403
            assert "set-cookie" not in answer.headers
            read(answer.text)
    for body, kind in ((b"{}", "application/json"), (b"a=1&" * 60, "application/x-www-form-urlencoded")):
        refused = client.post("/sign-in", content=body, headers={**OURS, "Content-Type": kind})
        assert refused.status_code == 400
    wrong = "sq_" + "x" * 43
    for token in (wrong, "nothing", ""):
        answer = sign_in(client, token, "/groups/g")
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers
        assert wrong not in answer.text
    for target in (
        "//evil.example",
        "https://evil.example",
        "/\\evil.example",
        "\\\\e",
        "/\t/e",
        "javascript:a",
        "/é",
        "",
    ):
        assert sign_in(client, secret, target).headers["location"] == "/"
        shown = read(client.get("/sign-in", params={"next": target}).text)
        assert [each.get("value") for each in shown.all("input") if each.get("name") == "next"] == ["/"]
    assert secret not in caplog.text
    assert wrong not in caplog.text


def test_wrong_secrets_of_the_pages_are_answered_later_and_later(
    client: TestClient, private_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token at the form and a session in a cookie are secrets as a token in the header is: whoever tries many of
    them waits, and whoever has a right one does not."""
    waited: list[float] = []

    async def delay(request: Any, seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr("sharequeue.service.context.delay", delay)
    # However long the sixty take, they come at one moment.
    client.app.state.service._refused = Rates(20, clock=lambda: 0.0)  # type: ignore[attr-defined]
    for number in range(60):
        if number % 2:
            assert sign_in(client, f"sq_{number:043}").status_code == 401
        else:
            assert client.get("/", headers={"Cookie": f"sharequeue={number:043}"}).status_code == 401
    assert len(waited) == 60
    assert waited[0] == 0
    assert waited[-1] > 0.1
    _, secret = Tokens(private_database).create("User:ann")
    assert sign_in(client, secret).status_code == 303
    assert client.get("/").status_code == 200
    assert len(waited) == 60


@pytest.mark.parametrize("path", ["/sign-in", "/manage/g", "/redrive/g"])
def test_who_goes_in_the_middle_of_a_form_leaves_nothing_behind(client: TestClient, path: str) -> None:
    """No traceback in the log: anybody could write many."""
    headers = {**OURS, "Content-Type": "application/x-www-form-urlencoded", "Host": "localhost"}
    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "scheme": "http", "http_version": "1.1", "client": ("127.0.0.1", 1), "server": ("localhost", 80),
    }  # fmt: skip
    said: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        said.append(message)

    async def go() -> None:
        await client.app(scope, receive, send)

    anyio.run(go)
    assert said[0]["status"] == 400


def test_over_tls_the_cookie_is_of_this_host_alone(settings: Settings, private_database: Database) -> None:
    """It is Secure, and its name begins with __Host-, so that no neighbour can set it; one without is not taken.
    Behind a proxy with TLS, too."""
    alter_group_configs(private_database, "g", {})
    _, secret = Tokens(private_database).create("User:ann")
    here = here_of(settings, private_database)
    with client_of(here, require_token=True, base_url="https://localhost") as client:
        answer = sign_in(client, secret, Origin="https://localhost")
        assert answer.headers["set-cookie"].startswith("__Host-sharequeue=")
        assert "Secure" in answer.headers["set-cookie"]
        assert client.get("/").status_code == 200
        value = client.cookies["__Host-sharequeue"]
        client.cookies.clear()
        client.cookies.set("sharequeue", value)
        assert client.get("/").status_code == 401
    with client_of(here, require_token=True) as client:
        answer = sign_in(client, secret, Origin="https://localhost")
        assert "Secure" in answer.headers["set-cookie"]


def test_a_page_shows_as_whom_it_is_made(settings: Settings, private_database: Database) -> None:
    """Who has not said so is offered to sign in; a header counts before a session."""
    alter_group_configs(private_database, "g", {})
    secrets = [Tokens(private_database).create(f"User:{name}")[1] for name in ("ann", "bob")]
    with client_of(here_of(settings, private_database)) as client:

        def seen(**headers: str) -> Page:
            return read(client.get("/?q=g", headers=headers).text)

        assert "/sign-in?next=%2F%3Fq%3Dg" in seen().links()
        assert "Not signed in" in seen().text
        sign_in(client, secrets[0])
        assert "User:ann" in seen().text
        assert "User:bob" in seen(Authorization=f"Bearer {secrets[1]}").text
        assert client.get("/", headers={"Authorization": "Bearer no"}).status_code == 401
