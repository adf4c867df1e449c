"""Who calls?

Whoever has a token (`Authorization: Bearer sq_…`) is the token's principal; else whoever has shown a certificate is
its subject; who says nothing is Kafka's `User:ANONYMOUS`, or is refused. A header that names nobody is refused: it is
never taken for no header. A token counts in this header alone, because a query string is in the logs of proxies.
"""

from __future__ import annotations

import math
from base64 import b64decode
from contextlib import suppress

from anyio import sleep
from starlette.requests import Request
from starlette.responses import JSONResponse

from sharequeue.errors import ThrottlingQuotaExceeded
from sharequeue.groups.tokens import TokenRefused
from sharequeue.service.edge.rates import network_of

ANONYMOUS = "User:ANONYMOUS"
"""Kafka's principal of a caller that has not said who it is."""
CERTIFIED = "sharequeue.certified"
"""Where `tls` leaves the principal of a client's certificate, in the scope of its requests."""


CONNECTION = "sharequeue.connection"
"""Where `protocol` leaves the connection of a request, in its scope. Other servers have none."""


_SCOPES = {
    "/v1/share-group-heartbeat": "heartbeat",
    "/metrics": "metrics",
    "/ready": "metrics",
    **dict.fromkeys(
        ("/v1/share-group-describe", "/v1/describe-share-group-offsets", "/v1/describe-configs"), "describe"
    ),
}


class Throttled(ThrottlingQuotaExceeded):
    """Who calls asks too often, by so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__()


def secret_of(request: Request) -> str:
    """Return the token in a request's `Authorization` headers, of which there are some.

    A request that only reads may have it as the password of `Basic`, which is how browsers send one. Browsers send it
    with what another site makes them send, too; so nothing is changed by it. Raises TokenRefused for more than one
    header, and for another scheme.
    """
    first, *more = request.headers.getlist("authorization")
    scheme, _, secret = first.partition(" ")
    if not more and scheme.lower() == "bearer":
        return secret.strip(" ")
    if not more and scheme.lower() == "basic" and request.method in ("GET", "HEAD"):
        with suppress(ValueError):
            return b64decode(secret.strip(" "), validate=True).decode().partition(":")[2]
    raise TokenRefused(
        "Say who you are by one header, `Authorization: Bearer sq_…`; leave it out to call as "
        f"{ANONYMOUS}. Another scheme, or a second header, is not taken. A GET may have the token as the password of "
        "`Basic`."
    )


def certified(request: Request) -> str | None:
    """Return the principal of the certificate that the client has shown, as Kafka names it; None without one."""
    found = request.scope.get(CERTIFIED)
    return None if found is None else str(found)


def needed_scope(request: Request) -> str:
    """Return which scope a token needs for a request. What is not known, and may change something, is `admin`."""
    return _SCOPES.get(request.url.path) or ("describe" if request.method in ("GET", "HEAD") else "admin")


def network(request: Request) -> str:
    """Return from where a request comes: the address at the other end of its connection, whatever a header says."""
    if (connection := request.scope.get(CONNECTION)) is not None:
        return str(connection.network)
    return network_of(request.client.host) if request.client else ""


async def delay(request: Request, seconds: float) -> None:
    """Let somebody wait for the answer; its connection makes room first where there are too many."""
    connection = request.scope.get(CONNECTION)
    if connection is not None:
        connection.delayed = True
    try:
        await sleep(seconds)
    finally:
        if connection is not None:
            connection.delayed = False


def throttled(error: Throttled) -> JSONResponse:
    """The response to a GET of who asks too often."""
    body = {"error_code": error.code, "error_message": error.message}
    return JSONResponse(body, 429, {"Retry-After": str(math.ceil(error.seconds))})


def demanded() -> TokenRefused:
    """The error for who says nothing where a token is required."""
    return TokenRefused(
        "This service has to know who calls: send `Authorization: Bearer sq_…`. `sharequeue tokens create` makes a "
        "token; SHAREQUEUE_SERVICE_TOKEN_FILE gives it to jobs and to the command."
    )


def unauthenticated(error: TokenRefused) -> JSONResponse:
    """The response to who is not who it says."""
    body = {"error_code": error.code, "error_message": error.message}
    return JSONResponse(body, 401, {"WWW-Authenticate": "Bearer"})
