"""Under which names may the service be called?

A page of another site can have a name of its own resolve to this machine, and a browser then lets it read what is
answered. So a request must name a host that is known to be ours (`SHAREQUEUE_SERVICE_ALLOWED_HOSTS`). Who calls is
`callers`' question.
"""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import ip_address

from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from sharequeue.errors import InvalidRequest
from sharequeue.names import shown

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")
ANY = "*"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class AllowedHosts:
    """Refuses requests for a host that is not one of `hosts` (status 400). Ports do not matter; `*` allows all."""

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app = app
        self._hosts = {host.strip("[]").lower() for host in (*LOOPBACK_HOSTS, *hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or another ASGI message."""
        if scope["type"] != "http" or ANY in self._hosts:
            await self._app(scope, receive, send)
            return
        named = HTTPConnection(scope).headers.getlist("host")
        # Of two, a proxy before us may have looked at the other one.
        host = host_name(", ".join(named))
        if len(named) == 1 and host in self._hosts:
            await self._app(scope, receive, send)
            return
        error = InvalidRequest(
            f"This service is not called {shown(host)}. Name it in SHAREQUEUE_SERVICE_ALLOWED_HOSTS, if it is."
        )
        response = JSONResponse({"error_code": error.code, "error_message": error.message}, 400)
        await response(scope, receive, send)


def host_name(header: str) -> str:
    """The host of a `Host` header, without its port and brackets."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()
