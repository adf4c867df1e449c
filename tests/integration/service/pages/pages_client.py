"""A client of the service's pages."""

from __future__ import annotations

from typing import Any

from starlette.testclient import TestClient

from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.service import create_app
from sharequeue.service.pages.layout import HEADERS
from tests.integration.service.openapi import conforming
from tests.integration.service.pages.html_pages import Page, read


def here_of(settings: Settings, database: Database) -> Settings:
    """Return settings that lead to a database."""
    return settings.replace(database_url=database.engine.url.render_as_string(hide_password=False))


def client_of(here: Settings, base_url: str = "http://localhost", **options: Any) -> TestClient:
    """Return a client of the service, without its coordinator."""
    client = TestClient(create_app(here, coordinate=False, **options), base_url=base_url)
    client.event_hooks = {"response": [lambda response: response.read(), conforming]}
    return client


def got(client: TestClient, path: str, status: int = 200, **options: Any) -> Page:
    """Return a page that breaks no rule, with the headers that all have."""
    response = client.get(path, **options)
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert {name: response.headers[name] for name in HEADERS} == HEADERS
    return read(response.text)
