"""The allowed host names of the service.

Another site can let its own name resolve to this machine, and a browser then lets its pages read the responses (DNS
rebinding). So a request must have an allowed host (`SHAREQUEUE_SERVICE_ALLOWED_HOSTS`), or the address at which it
arrived: Prometheus and the kubelet call each replica by its address, and no name was resolved then. Callers are
authenticated in `admission`.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from ipaddress import ip_address

from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from sharequeue.domain.errors import InvalidRequest
from sharequeue.domain.names import shown

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")
ANY = "*"
_HOST = re.compile(r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[^\[\]:@/,\s]+))(?::[0-9]*)?")


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server that listens on this address."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class AllowedHosts:
    """ASGI middleware that refuses requests for a host that is neither in `hosts` nor the address of the connection
    (status 400). Ports do not matter; `*` allows all."""

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app = app
        self._hosts = {host.strip("[]").lower().removesuffix(".") for host in (*LOOPBACK_HOSTS, *hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI scope: a request, or another one."""
        if scope["type"] != "http" or ANY in self._hosts:
            await self._app(scope, receive, send)
            return
        named = HTTPConnection(scope).headers.getlist("host")
        # With two headers, a proxy in front of the service may have checked the other one.
        host = host_name(", ".join(named))
        if len(named) == 1 and (host in self._hosts or _is_address(host, scope)):
            await self._app(scope, receive, send)
            return
        error = InvalidRequest(
            f"The host {shown(host)} is not allowed. If it is a name of this service, add it to "
            "SHAREQUEUE_SERVICE_ALLOWED_HOSTS."
        )
        response = JSONResponse({"error_code": error.code, "error_message": error.message}, 400)
        await response(scope, receive, send)


def _is_address(host: str, scope: Scope) -> bool:
    """Return whether a host is the address of this machine to which the request was sent."""
    server = scope.get("server")
    try:
        return server is not None and ip_address(host) == ip_address(server[0])
    except ValueError:
        return False


def host_name(header: str) -> str:
    """Return the host of a `Host` header, without its port, its brackets, and the dot of a full name.

    A header with anything else is returned as it is: that is not a host name.
    """
    found = _HOST.fullmatch(header)
    return header if found is None else (found["address"] or found["name"]).lower().removesuffix(".")
