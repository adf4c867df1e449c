"""As whom a browser sees the pages: it asks for a token itself, and sends it as the password of HTTP Basic."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.routing import Route
from starlette.testclient import TestClient

from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.groups.configs import alter_group_configs
from sharequeue.groups.tokens import Tokens
from sharequeue.service.edge.rates import Rates
from tests.integration.service.pages.html_pages import read
from tests.integration.service.pages.pages_client import client_of, got, here_of


@pytest.fixture
def client(settings: Settings, private_database: Database) -> Iterator[TestClient]:
    """Give a client of a service that requires a token; group g is there."""
    alter_group_configs(private_database, "g", {})
    with client_of(here_of(settings, private_database), require_token=True) as client:
        yield client


def test_a_token_is_the_password(client: TestClient, private_database: Database) -> None:
    """A page without a token makes the browser ask for one. With it the page is made as its principal, until the
    token is revoked. A wrong one is refused, and is not repeated in the page."""
    tokens = Tokens(private_database)
    token, secret = tokens.create("User:ann")
    for wrong in (None, ("ann", ""), ("ann", "secret"), ("", "sq_" + "x" * 43)):
        refused = client.get("/groups/g", auth=wrong)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"].startswith('Basic realm="sharequeue')
        assert not wrong or not wrong[1] or wrong[1] not in refused.text
    for name in ("ann", "", "a:b", "é"):
        header = base64.b64encode(f"{name.replace(':', '')}:{secret}".encode()).decode()
        assert "User:ann" in got(client, "/groups/g", headers={"Authorization": f"Basic {header}"}).text
    for broken in ("", "%", "c3E=", "/w==", base64.b64encode(secret.encode()).decode()):
        assert client.get("/", headers={"Authorization": f"Basic {broken}"}).status_code == 401
    both = [("Authorization", f"Bearer {secret}"), ("Authorization", "Basic OnNx")]
    assert client.get("/", headers=both).status_code == 401
    tokens.revoke(token.token_id)
    assert client.get("/", auth=("ann", secret)).status_code == 401


def test_a_password_changes_nothing(client: TestClient, private_database: Database) -> None:
    """A browser sends a password with whatever another site makes it send. So it counts for reading alone, and the
    pages change nothing."""
    _, secret = Tokens(private_database).create("User:ann")
    auth = ("ann", secret)
    for path in ("/v1/groups", "/v1/groups/g", "/v1/reports/g", "/metrics"):
        assert client.get(path, auth=auth).status_code == 200
    posts = [
        route.path.replace("{group_id:group}", "g")
        for route in client.app.routes  # type: ignore[attr-defined]
        if isinstance(route, Route)
    ]
    assert len(posts) > 15
    for path in posts:
        status = client.post(path, json={"groups_names": ["g"], "group_ids": ["g"]}, auth=auth).status_code
        assert status == (401 if path.startswith("/v1/") and status != 405 else 405), path
    assert client.get("/groups/g", auth=auth).status_code == 200


def test_where_no_token_is_required_a_link_asks_for_one(
    settings: Settings, private_database: Database
) -> None:
    """The page says that the caller is anonymous. The link makes the browser ask, then leads to the first page."""
    _, secret = Tokens(private_database).create("User:ann")
    with client_of(here_of(settings, private_database)) as client:
        page = got(client, "/")
        assert "Not signed in" in page.text
        assert "/sign-in" in page.links()
        asked = client.get("/sign-in")
        assert (asked.status_code, asked.headers["www-authenticate"][:5]) == (401, "Basic")
        read(asked.text)
        done = client.get("/sign-in", auth=("ann", secret), follow_redirects=False)
        assert (done.status_code, done.headers["location"]) == (303, "/")
        assert "/sign-in" not in got(client, "/", auth=("ann", secret)).links()


def test_wrong_passwords_are_answered_later_and_later(
    client: TestClient, private_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever tries many of them waits. Whoever has a right one does not."""
    waited: list[float] = []

    async def delay(request: Any, seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr("sharequeue.service.admission.delay", delay)
    # However long the sixty take, they come at one moment.
    client.app.state.service.admission.refused = Rates(20, clock=lambda: 0.0)  # type: ignore[attr-defined]
    for number in range(60):
        assert client.get("/", auth=("ann", f"sq_{number:043}")).status_code == 401
    assert (len(waited), waited[0]) == (60, 0)
    assert waited[-1] > 0.1
    _, secret = Tokens(private_database).create("User:ann")
    assert client.get("/", auth=("ann", secret)).status_code == 200
    assert len(waited) == 60
