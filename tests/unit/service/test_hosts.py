"""The host that a request names."""

from __future__ import annotations

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from sharequeue.service.edge.hosts import AllowedHosts, host_name


@pytest.mark.parametrize(
    ("header", "host"),
    [
        ("Queue.Example:80", "queue.example"),
        ("queue.example.", "queue.example"),
        ("queue.example.:443", "queue.example"),
        ("localhost:", "localhost"),
        ("[::1]:80", "::1"),
        ("[::1]", "::1"),
        *((bad, bad) for bad in ("[::1]evil", "[::1]:80@evil", "localhost:80@evil", "localhost:abc")),
        *(
            (bad, bad)
            for bad in (
                "localhost:80:80",
                "localhost@evil",
                "localhost,evil",
                "localhost/x",
                "local host",
                "[h]",
                "",
            )
        ),
    ],
)
def test_a_header_that_names_more_than_a_host_is_no_host(header: str, host: str) -> None:
    """A port and the dot of a full name do not matter; whatever else is there, the name is not one of ours."""
    assert host_name(header) == host


@pytest.mark.parametrize(
    ("arrived_at", "host", "status"),
    [
        ("10.0.0.5", "10.0.0.5:28080", 200),
        ("10.0.0.5", "10.0.0.6:28080", 400),
        ("10.0.0.5", "10.0.0.5.evil.example", 400),
        ("fd00::5", "[FD00:0::5]:28080", 200),
        ("fd00::5", "[fd00::6]:28080", 400),
        ("/run/service.socket", "/run/service.socket", 400),
        (None, "10.0.0.5", 400),
    ],
)
def test_the_address_at_which_a_request_arrived_is_a_host_of_ours(
    arrived_at: str | None, host: str, status: int
) -> None:
    """Prometheus and probes call each replica by its address, which no setting can know."""

    async def answer(request: Request) -> PlainTextResponse:
        return PlainTextResponse("served")

    app = AllowedHosts(Starlette(routes=[Route("/", answer)]), ())

    async def arriving(scope: Scope, receive: Receive, send: Send) -> None:
        server = None if arrived_at is None else (arrived_at, 28080)
        if scope["type"] == "http":
            scope["server"] = server
        await app(scope, receive, send)

    assert TestClient(arriving).get("/", headers={"Host": host}).status_code == status
