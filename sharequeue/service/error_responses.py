"""Errors as HTTP responses.

Kafka's error number and the message are in the body; the status tells HTTP clients what kind of error it is.
"""

from __future__ import annotations

import math
from typing import Any

from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import JSONResponse

from sharequeue.database.sqlstates import READ_ONLY, outage_reason, sqlstate
from sharequeue.domain.errors import (
    BrokerNotAvailable,
    ClusterAuthorizationFailed,
    CoordinatorNotAvailable,
    GroupAuthorizationFailed,
    GroupIdNotFound,
    InvalidGroupId,
    InvalidRequest,
    ShareError,
    ThrottlingQuotaExceeded,
    TopicAuthorizationFailed,
)
from sharequeue.groups.tokens import TokenRefused


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


class UnsupportedBody(InvalidRequest):
    """The headers of the request name another body than JSON without an encoding."""


_STATUSES: tuple[tuple[tuple[type[ShareError], ...], int], ...] = (
    ((TokenRefused,), 401),
    ((ClusterAuthorizationFailed, GroupAuthorizationFailed, TopicAuthorizationFailed), 403),
    ((GroupIdNotFound, InvalidGroupId), 404),
    ((UnsupportedBody,), 415),
    ((Throttled,), 429),
    ((CoordinatorNotAvailable, BrokerNotAvailable), 503),
)


def status_of(error: ShareError) -> int:
    """Return the HTTP status of an error."""
    return next((status for kinds, status in _STATUSES if isinstance(error, kinds)), 400)


def error_fields(error: ShareError | None) -> dict[str, Any]:
    """Return an error as fields of a response; 0 and null without one."""
    return {
        "error_code": error.code if error else 0,
        "error_message": error.message if error else None,
    }


def refused(error: ShareError, status: int | None = None) -> JSONResponse:
    """Return an error as a response; by default with its own status."""
    headers = {}
    if isinstance(error, TokenRefused):
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, Throttled):
        headers["Retry-After"] = error.retry_after
    return JSONResponse(error_fields(error), status or status_of(error), headers)


def unavailable(error: SQLAlchemyError) -> CoordinatorNotAvailable:
    """Return the error for a caller whose request failed in the database. The reason is in the log only, unless it is
    that the database is read-only: waiting does not end that."""
    return CoordinatorNotAvailable(outage_reason(error) if sqlstate(error) == READ_ONLY else None)


def token_required() -> TokenRefused:
    """Return the error for a request without the required token."""
    return TokenRefused(
        "This service requires a token: send `Authorization: Bearer sq_…`. `sharequeue tokens create` "
        "creates a token; SHAREQUEUE_SERVICE_TOKEN_FILE passes it to jobs and to the command."
    )
