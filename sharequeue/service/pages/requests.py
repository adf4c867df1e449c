"""Requests for pages, with the caller's rights and a time limit.

A page is made in a thread, with a connection of the pages' own small pool, so that pages never take connections from
heartbeats. Each statement may take `STATEMENT_SECONDS`, and a page waits for its turn and is made within
`PAGE_SECONDS`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import anyio
from anyio.to_thread import run_sync
from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from sharequeue.database import Database
from sharequeue.database.pool import Joined
from sharequeue.domain.errors import (
    GroupAuthorizationFailed,
    ShareError,
    TopicAuthorizationFailed,
    UnknownServerError,
    first_line,
)
from sharequeue.domain.names import shown
from sharequeue.groups.acls import authorized_operations, authorized_topic_operations, on_behalf_of
from sharequeue.groups.group_names import require_there
from sharequeue.groups.tokens import TokenRefused
from sharequeue.reports.html import Content
from sharequeue.service.admin import Admin
from sharequeue.service.callers import ANONYMOUS, Throttled, status_of
from sharequeue.service.context import Service
from sharequeue.service.pages.layout import error_page, page

__all__ = ["PageRequest", "Pages"]

_log = logging.getLogger(__name__)

STATEMENT_SECONDS = 5.0
PAGE_SECONDS = 30.0
AT_ONCE = 3
"""The maximum number of concurrent pages; each has a connection."""

_TITLES = {400: "Bad request", 401: "Sign in", 403: "Not allowed", 404: "Not found", 429: "Too many requests"}
"""The titles of error pages by status."""

_CHALLENGE = 'Basic realm="sharequeue: any name, and a token as the password", charset="UTF-8"'
"""The header that makes a browser prompt for a token, and send it with each request until it is closed."""

Found = TypeVar("Found")
Handler = Callable[["PageRequest"], Response]


@dataclass(frozen=True, slots=True)
class PageRequest:
    """One request for a page, with its caller, whose rights apply."""

    service: Service
    database: Database
    request: Request
    principal: str

    def asked(self, name: str) -> str:
        """Return a field of the query; an empty text if it is missing."""
        return self.request.query_params.get(name, "")

    def number(self, name: str, least: int, most: int) -> int:
        """Return a field of the query as a number within bounds; `least` if it is not a number."""
        text = self.asked(name)
        return min(max(int(text), least), most) if text.isdecimal() and len(text) < 20 else least

    def group(self) -> str:
        """Return the group in the path. Raises the errors of `described`."""
        group_id = str(self.request.path_params["group_id"])
        # Browsers treat the names `.` and `..` as steps in the path.
        return self.described(self.asked("name") if group_id == "-" and self.asked("name") else group_id)

    def described(self, group_id: str) -> str:
        """Return a group that exists, if the caller is allowed to describe it and all its topics.

        Raises InvalidGroupId, GroupIdNotFound, GroupAuthorizationFailed, TopicAuthorizationFailed.
        """
        Admin(self.database, self.service.topics, self.principal).require_whole(group_id)
        require_there(self.database, group_id)
        return group_id

    def as_caller(self, work: Callable[[Database], Found]) -> Found:
        """Return the result of a function that reads with the caller's rights."""
        with on_behalf_of(self.database, self.principal) as connection:
            return work(Joined(connection))

    def require_read(self, group_id: str) -> None:
        """Raise GroupAuthorizationFailed unless the caller may read the records of a group."""
        if "READ" not in self.as_caller(lambda database: authorized_operations(database, group_id)):
            raise GroupAuthorizationFailed(
                f"{self.principal} may not READ group {shown(group_id)}: dead letters contain its records."
            )

    def may_read_topic(self, topic: str) -> bool:
        """Return whether the caller may read a topic."""
        return "READ" in self.as_caller(lambda database: authorized_topic_operations(database, topic))

    def require_read_topic(self, topic: str) -> None:
        """Raise TopicAuthorizationFailed unless the caller may read a topic."""
        if not self.may_read_topic(topic):
            raise TopicAuthorizationFailed(f"{self.principal} may not READ topic {shown(topic)}")

    def page(self, title: str, *main: Content, status: int = 200) -> Response:
        """Return a page for the caller."""
        return page(title, *main, principal=self.principal, status=status)


class Pages:
    """The shared parts of the pages: their connections, and the limits on their use."""

    def __init__(self, service: Service) -> None:
        self._service = service
        options = replace(
            service.settings.database,
            pool_size=AT_ONCE,
            statement_timeout_ms=int(STATEMENT_SECONDS * 1000),
            lock_timeout_ms=1000,
        )
        self._database = Database(service.settings.database_url, options=options)
        self._limiter: anyio.CapacityLimiter | None = None

    def close(self) -> None:
        """Close the connections."""
        self._database.close()

    def route(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint of a page. Errors are pages, too."""

        async def endpoint(request: Request) -> Response:
            principal = ANONYMOUS
            try:
                principal = await self._service.admission.principal(request)
                page_request = PageRequest(self._service, self._database, request, principal)
                return await self._in_thread(lambda: handler(page_request))
            except ClientDisconnect:
                return Response(status_code=400)  # the client has closed the connection
            except ShareError as error:
                status = status_of(error)
                response = error_page(_TITLES[status], error.message, status, principal)
                if isinstance(error, TokenRefused):
                    response.headers["WWW-Authenticate"] = _CHALLENGE
                if isinstance(error, Throttled):
                    response.headers["Retry-After"] = error.retry_after
                return response
            except (SQLAlchemyError, TimeoutError) as error:
                _log.warning("%s failed: %s", request.url.path, first_line(error))
                message = "The database did not answer in time, or too many pages are being read. Try again."
                return error_page("Temporarily unavailable", message, 503, principal)
            except Exception:
                _log.exception("%s failed", request.url.path)
                return error_page("Internal error", UnknownServerError().message, 500, principal)

        return endpoint

    async def _in_thread(self, work: Callable[[], Response]) -> Response:
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(AT_ONCE)
        with anyio.fail_after(PAGE_SECONDS):
            return await run_sync(work, limiter=self._limiter, abandon_on_cancel=True)
