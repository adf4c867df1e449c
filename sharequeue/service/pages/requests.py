"""Requests for pages, with the caller's rights and a time limit.

A page is made in a thread, with a connection of the pages' own small pool, so that pages never take connections from
heartbeats. Each statement may take `STATEMENT_SECONDS`, and after `PAGE_SECONDS` no statement is started; a part that
was not read is left out, and the page shows this.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import anyio
from anyio.to_thread import run_sync
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from sharequeue.database import Database
from sharequeue.database.pool import Joined
from sharequeue.database.sqlstates import QUERY_CANCELLED, sqlstate
from sharequeue.groups.acls import authorized_operations, authorized_topic_operations, on_behalf_of
from sharequeue.groups.group_names import require_there
from sharequeue.groups.tokens import TokenRefused
from sharequeue.reports.html import Content, Html, element
from sharequeue.service.admin import Admin
from sharequeue.service.callers import ANONYMOUS, Throttled
from sharequeue.service.context import Service
from sharequeue.service.pages.layout import UPDATE_SECONDS, document, error_document
from sharequeue.words.errors import (
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    GroupIdNotFound,
    InvalidGroupId,
    ShareError,
    TopicAuthorizationFailed,
    UnknownServerError,
    UnknownTopicOrPartition,
)
from sharequeue.words.settings import Settings

__all__ = ["PageRequest", "Pages"]

_log = logging.getLogger(__name__)

STATEMENT_SECONDS = 3.0
PAGE_SECONDS = 6.0
"""After this time no more statements are started for a page."""
AT_ONCE = 3
"""The maximum number of concurrent pages; each has a connection."""
_WAIT_SECONDS, _LONGEST_SECONDS = 10.0, 60.0
"""How long a request waits for its turn; a request that asks the broker must also be done by then."""

_ERRORS: tuple[tuple[type[ShareError] | tuple[type[ShareError], ...], int, str], ...] = (
    (TokenRefused, 401, "Sign in"),
    (Throttled, 429, "Too many requests"),
    (
        (ClusterAuthorizationFailed, GroupAuthorizationFailed, TopicAuthorizationFailed),
        403,
        "Not allowed",
    ),
    ((GroupIdNotFound, InvalidGroupId, UnknownTopicOrPartition), 404, "Not found"),
    (ShareError, 400, "Bad request"),
)
"""The status and the title of an error page; the first class that matches counts."""

_CHALLENGE = 'Basic realm="sharequeue: any name, and a token as the password", charset="UTF-8"'
"""The header that makes a browser prompt for a token, and send it with each request until it is closed."""

Found = TypeVar("Found")
Handler = Callable[["PageRequest"], Response]


@dataclass(slots=True)
class PageRequest:
    """One request for a page, with its caller."""

    service: Service
    database: Database
    settings: Settings
    request: Request
    principal: str
    """The caller, whose rights apply."""
    began: float = field(default_factory=time.monotonic)
    late: list[str] = field(default_factory=list)
    """The parts that could not be read in time."""

    def asked(self, name: str) -> str:
        """Return a field of the query; an empty text if it is missing."""
        return self.request.query_params.get(name, "")

    def number(self, name: str, least: int, most: int, otherwise: int) -> int:
        """Return a field of the query as a number within bounds."""
        text = self.asked(name)
        return min(max(int(text), least), most) if text.isdecimal() and len(text) < 19 else otherwise

    def group(self) -> str:
        """Return the group in the path. It must exist, and the caller must be allowed to describe it and all its
        topics.

        Raises InvalidGroupId, GroupIdNotFound, GroupAuthorizationFailed, TopicAuthorizationFailed.
        """
        group_id = str(self.request.path_params["group_id"])
        if group_id == "-" and self.asked("name"):
            group_id = self.asked("name")
        return self.described(group_id)

    def described(self, group_id: str) -> str:
        """Return a group, if it exists and the caller is allowed to describe it and all its topics; else raise as
        `group` does.
        """
        if "\x00" in group_id:
            raise InvalidGroupId("The group id has a NUL character: no group can have such an id.")
        Admin(self.database, self.service.topics, self.principal).require_whole(group_id)
        require_there(self.database, group_id)
        return group_id

    def as_caller(self, work: Callable[[Database], Found]) -> Found:
        """Return the result of a function that reads with the caller's rights."""
        with on_behalf_of(self.database, self.principal) as connection:
            return work(Joined(connection))

    def may(self, operation: str, group_id: str) -> bool:
        """Return whether the caller is authorized for an operation on a group."""
        return operation in self.as_caller(lambda database: authorized_operations(database, group_id))

    def may_topic(self, operation: str, topic: str) -> bool:
        """Return whether the caller is authorized for an operation on a topic."""
        return operation in self.as_caller(lambda database: authorized_topic_operations(database, topic))

    def read(self, what: str, work: Callable[[], Found]) -> Found | None:
        """Return the result of a read if there is time for it; else None, and the page names the missing part."""
        if time.monotonic() - self.began < PAGE_SECONDS:
            try:
                return work()
            except DBAPIError as error:
                if sqlstate(error) != QUERY_CANCELLED:
                    raise
        self.late.append(what)
        return None

    def read_as_caller(self, what: str, work: Callable[[Database], Found]) -> Found | None:
        """Return the result of a read with the caller's rights, as `read` does."""
        return self.read(what, lambda: self.as_caller(work))

    def late_note(self) -> Html | None:
        """Return a note on the parts that were left out; None if the page is complete."""
        if not self.late:
            return None
        what = ", ".join(dict.fromkeys(self.late))
        return element(
            "p", f"Not read in time, and left out: {what}. The views in SQL have it.", class_="wrong"
        )

    def document(self, title: str, *main: Content, live: bool = True, status: int = 200) -> Response:
        """Return a page for the caller; if it is `live`, it updates itself."""
        query = self.request.query_params.multi_items() if live else None
        # A slow page is updated less often: at most a tenth of the time is spent on it.
        every = max(UPDATE_SECONDS, math.ceil(10 * (time.monotonic() - self.began)))
        return document(title, main, principal=self.principal, status=status, query=query, every=every)


class Pages:
    """The shared parts of the pages: their connections, and the limits on their use."""

    def __init__(self, service: Service, settings: Settings) -> None:
        self._service, self._settings = service, settings
        options = replace(
            settings.database,
            pool_size=AT_ONCE,
            statement_timeout_ms=int(STATEMENT_SECONDS * 1000),
            lock_timeout_ms=1000,
        )
        self._database = Database(settings.database_url, options=options)
        self._limiters: dict[bool, anyio.CapacityLimiter] = {}

    def close(self) -> None:
        """Close the connections."""
        self._database.close()

    def route(self, handler: Handler, *, slow: bool = False) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint of a page. A `slow` page asks the broker, and does not delay the others. Errors are
        pages, too."""

        async def endpoint(request: Request) -> Response:
            principal = ANONYMOUS
            try:
                principal = await self._service.admission.principal(request)
                page_request = PageRequest(self._service, self._database, self._settings, request, principal)
                return await self._in_thread(lambda: handler(page_request), slow)
            except ClientDisconnect:
                return Response(status_code=400)  # the client has closed the connection
            except ShareError as error:
                status, title = next(
                    (code, heading) for kind, code, heading in _ERRORS if isinstance(error, kind)
                )
                response = error_document(title, error.message, status, principal=principal)
                if isinstance(error, TokenRefused):
                    response.headers["WWW-Authenticate"] = _CHALLENGE
                if isinstance(error, Throttled):
                    response.headers["Retry-After"] = str(math.ceil(error.seconds))
                return response
            except SQLAlchemyError as error:
                _log.warning("%s failed: %s", request.url.path, str(error).splitlines()[0])
                return _away(
                    request, "The database did not answer in time. The page tries again automatically."
                )
            except TimeoutError:
                return _away(
                    request,
                    "Too many pages are being read at the same time. The page tries again automatically.",
                )
            except Exception:
                _log.exception("%s failed", request.url.path)
                return error_document("This failed", UnknownServerError().message, 500, principal=principal)

        return endpoint

    async def _in_thread(self, work: Callable[[], Response], slow: bool) -> Response:
        if slow not in self._limiters:
            self._limiters[slow] = anyio.CapacityLimiter(AT_ONCE)
        with anyio.fail_after(_LONGEST_SECONDS if slow else _WAIT_SECONDS + PAGE_SECONDS + STATEMENT_SECONDS):
            return await run_sync(work, limiter=self._limiters[slow], abandon_on_cancel=True)


def _away(request: Request, message: str) -> Response:
    return error_document("Not now", message, 503, query=request.query_params.multi_items())
