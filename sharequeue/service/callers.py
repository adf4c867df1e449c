"""The principal of a request.

With a token (`Authorization: Bearer sq_…`) it is the token's principal; else with a client certificate it is the
certificate's subject; else it is Kafka's `User:ANONYMOUS`, or the request is refused. A header with an invalid token
is refused, and never treated as a missing header. A token is read from this header only, because proxies log query
strings.
"""

from __future__ import annotations

import math
from base64 import b64decode
from contextlib import AbstractContextManager, nullcontext, suppress
from ipaddress import ip_address

from anyio import sleep
from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import Request
from starlette.responses import JSONResponse

from sharequeue.database.sqlstates import READ_ONLY, outage_reason, sqlstate
from sharequeue.domain.errors import (
    ClusterAuthorizationFailed,
    CoordinatorNotAvailable,
    GroupAuthorizationFailed,
    GroupIdNotFound,
    InvalidGroupId,
    ShareError,
    ThrottlingQuotaExceeded,
    TopicAuthorizationFailed,
)
from sharequeue.groups.tokens import TokenRefused
from sharequeue.service.edge.connections import CONNECTION, Connection
from sharequeue.service.edge.rates import network_of

ANONYMOUS = "User:ANONYMOUS"
"""Kafka's principal of an unauthenticated caller."""

_SCOPES = {
    "/v1/share-group-heartbeat": "heartbeat",
    "/metrics": "metrics",
    "/ready": "metrics",
    **dict.fromkeys(
        ("/v1/share-group-describe", "/v1/describe-share-group-offsets", "/v1/describe-configs"), "describe"
    ),
}


class Throttled(ThrottlingQuotaExceeded):
    """The principal sends more requests than the service allows for one principal. Nothing was done. Wait for
    `throttle_time_ms` (for a GET: `Retry-After`) and try again."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__()

    @property
    def retry_after(self) -> str:
        """The header `Retry-After`."""
        return str(math.ceil(self.seconds))


_STATUSES: tuple[tuple[tuple[type[ShareError], ...], int], ...] = (
    ((TokenRefused,), 401),
    ((ClusterAuthorizationFailed, GroupAuthorizationFailed, TopicAuthorizationFailed), 403),
    ((GroupIdNotFound, InvalidGroupId), 404),
    ((Throttled,), 429),
)


def secret_of(request: Request) -> str:
    """Return the token in a request's `Authorization` headers; there is at least one.

    A request that only reads may have the token as the password of `Basic`, as browsers send it. Browsers also add it
    to requests that another site causes; so such a request must not change anything. Raises TokenRefused for more
    than one header, and for another scheme.
    """
    first, *more = request.headers.getlist("authorization")
    scheme, _, secret = first.partition(" ")
    if not more and scheme.lower() == "bearer":
        return secret.strip(" ")
    if not more and scheme.lower() == "basic" and request.method in ("GET", "HEAD"):
        with suppress(ValueError):
            return b64decode(secret.strip(" "), validate=True).decode().partition(":")[2]
    raise TokenRefused(
        "Authenticate with one header, `Authorization: Bearer sq_…`, or leave it out to call as "
        f"{ANONYMOUS}. Other schemes, or a second header, are not accepted. A GET may have the token as the "
        "password of `Basic`."
    )


def certified(request: Request) -> str | None:
    """Return the principal of the client's certificate, as Kafka names it; None without a certificate."""
    connection = _connection(request)
    return None if connection is None else connection.principal


def needed_scope(request: Request) -> str:
    """Return the scope that a token needs for a request. Unknown requests that may change something need `admin`."""
    return _SCOPES.get(request.url.path) or ("describe" if request.method in ("GET", "HEAD") else "admin")


def network(request: Request) -> str:
    """Return the origin of a request: the remote address of its connection. Headers do not count."""
    if (connection := _connection(request)) is not None:
        return connection.network
    return network_of(request.client.host) if request.client else ""


def address(request: Request) -> str:
    """Return the address of a client for people: what a trusted proxy has named, if that is an address, else that of
    the connection."""
    named = request.client.host if request.client else ""
    with suppress(ValueError):
        return str(ip_address(named.partition("%")[0]))
    connection = _connection(request)
    return str(connection.address[0][0]) if connection is not None else ""


def _connection(request: Request) -> Connection | None:
    found: Connection | None = request.scope.get(CONNECTION)
    return found


async def delay(request: Request, seconds: float) -> None:
    """Delay the response to a request; if there are too many connections, its connection is closed first."""
    with client_is_not_late(request):
        await sleep(seconds)


def client_is_not_late(request: Request) -> AbstractContextManager[None]:
    """Return a block in which the service itself makes the client wait: that time does not count as the client's. If
    there are too many connections, this one is closed first."""
    connection = _connection(request)
    return nullcontext() if connection is None else connection.waits_for_us()


def unavailable(error: SQLAlchemyError) -> CoordinatorNotAvailable:
    """Return the error for a caller whose request failed in the database. The reason is in the log only, unless it is
    that the database is read-only: waiting does not end that."""
    return CoordinatorNotAvailable(outage_reason(error) if sqlstate(error) == READ_ONLY else None)


def status_of(error: ShareError) -> int:
    """Return the HTTP status of an error."""
    return next((status for kinds, status in _STATUSES if isinstance(error, kinds)), 400)


def refused(error: ShareError, status: int | None = None) -> JSONResponse:
    """Return an error as a response; by default with its own status."""
    body = {"error_code": error.code, "error_message": error.message}
    headers = {}
    if isinstance(error, TokenRefused):
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, Throttled):
        headers["Retry-After"] = error.retry_after
    return JSONResponse(body, status or status_of(error), headers)


def demanded() -> TokenRefused:
    """Return the error for a request without the required token."""
    return TokenRefused(
        "This service requires a token: send `Authorization: Bearer sq_…`. `sharequeue tokens create` "
        "creates a token; SHAREQUEUE_SERVICE_TOKEN_FILE passes it to jobs and to the command."
    )
