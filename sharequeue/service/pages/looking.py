"""Make a page as its caller, in a bounded time.

A page is made in a thread, from a small pool of connections of the pages' own: however many people look, and however
slow a figure is, heartbeats have theirs. Each statement may take `STATEMENT_SECONDS`, and after `PAGE_SECONDS` none
is begun; what is not read is left out, and the page says so.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import anyio
from anyio.to_thread import run_sync
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from sharequeue.database import Database
from sharequeue.database.pool import Joined
from sharequeue.errors import (
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    InvalidGroupId,
    ShareError,
    TopicAuthorizationFailed,
    UnknownServerError,
)
from sharequeue.groups.acls import (
    authorized_operations,
    authorized_topic_operations,
    on_behalf_of,
    refused_topics,
)
from sharequeue.groups.descriptions import GroupSummary, list_groups
from sharequeue.groups.known import require_there
from sharequeue.groups.tokens import TokenRefused
from sharequeue.reporting.html import Content, Html, element
from sharequeue.service.admin import Admin
from sharequeue.service.callers import ANONYMOUS, Throttled
from sharequeue.service.context import Service
from sharequeue.service.pages import reads
from sharequeue.service.pages.frame import UPDATE_SECONDS, document, error_document
from sharequeue.settings import Settings

__all__ = ["Look", "Pages"]

_log = logging.getLogger(__name__)

STATEMENT_SECONDS = 3.0
PAGE_SECONDS = 6.0
"""After this time nothing more is read for a page."""
AT_ONCE = 3
"""Pages that are made at a time; each has a connection."""
_WAIT_SECONDS, _LONGEST_SECONDS = 10.0, 60.0
"""How long a request waits for its turn; and for one that asks the broker, till it is done."""

_CANCELLED = "57014"
"""SQLSTATE of a statement that took longer than it may."""
_NOT_FOUND = frozenset(("GROUP_ID_NOT_FOUND", "INVALID_GROUP_ID", "UNKNOWN_TOPIC_OR_PARTITION"))

_CHALLENGE = 'Basic realm="sharequeue: any name, and a token as the password", charset="UTF-8"'
"""Makes a browser ask for a token, and send it with each request until it is closed."""

Found = TypeVar("Found")
Handler = Callable[["Look"], Response]


@dataclass(slots=True)
class Look:
    """One request for a page, as somebody."""

    service: Service
    database: Database
    settings: Settings
    request: Request
    principal: str
    """As whom the page is made."""
    began: float = field(default_factory=time.monotonic)
    late: list[str] = field(default_factory=list)
    """What could not be read in time."""

    @property
    def admin(self) -> Admin:
        """The admin operations as the caller."""
        return Admin(self.database, self.service.topics, self.principal)

    def asked(self, name: str) -> str:
        """Return a field of the query; an empty text where it has none."""
        return self.request.query_params.get(name, "")

    def number(self, name: str, least: int, most: int, otherwise: int) -> int:
        """Return a field of the query as a number within bounds."""
        text = self.asked(name)
        return min(max(int(text), least), most) if text.isdecimal() and len(text) < 19 else otherwise

    def group(self) -> str:
        """Return the group of the path, which is there and which the caller may look at, with all its topics.

        Raises InvalidGroupId, GroupIdNotFound, GroupAuthorizationFailed, TopicAuthorizationFailed.
        """
        group_id = str(self.request.path_params["group_id"])
        if group_id == "-" and self.asked("name"):
            group_id = self.asked("name")
        if "\x00" in group_id:
            raise InvalidGroupId("The group id has a NUL character in it: no group is called so.")
        self.admin.require_whole(group_id)
        require_there(self.database, group_id)
        return group_id

    def listed(self, part: str, after: str, most: int) -> list[GroupSummary]:
        """Return the groups that the caller may describe, as `list_groups`."""
        with on_behalf_of(self.database, self.principal) as connection:
            return list_groups(Joined(connection), part, after, most)

    def whole(self, group_ids: Sequence[str]) -> set[str]:
        """Return those of some groups of which the caller may look at all topics."""
        with on_behalf_of(self.database, self.principal) as connection:
            return reads.whole(Joined(connection), group_ids)

    def may(self, group_id: str) -> list[str]:
        """Return what the caller may do with a group."""
        with on_behalf_of(self.database, self.principal) as connection:
            return authorized_operations(Joined(connection), group_id)

    def closed(self, topics: Iterable[str]) -> set[str]:
        """Return those of some topics that the caller may not DESCRIBE."""
        with on_behalf_of(self.database, self.principal) as connection:
            return refused_topics(Joined(connection), topics, "DESCRIBE")

    def may_topic(self, topic: str, operation: str) -> bool:
        """Return whether the caller may do something with a topic."""
        with on_behalf_of(self.database, self.principal) as connection:
            return operation in authorized_topic_operations(Joined(connection), topic)

    def read(self, what: str, work: Callable[[], Found]) -> Found | None:
        """Return what is read, if there is time for it; else None, and the page names what it lacks."""
        if time.monotonic() - self.began < PAGE_SECONDS:
            try:
                return work()
            except DBAPIError as error:
                if getattr(error.orig, "pgcode", None) != _CANCELLED:
                    raise
        self.late.append(what)
        return None

    def said_late(self) -> Html | None:
        """Return what the page lacks; None where it is whole."""
        if not self.late:
            return None
        what = ", ".join(dict.fromkeys(self.late))
        return element(
            "p", f"Not read in time, and left out: {what}. The views in SQL have it.", class_="wrong"
        )

    def document(self, title: str, *main: Content, live: bool = True, status: int = 200) -> Response:
        """Return a page for the caller, one that updates by itself unless it is not `live`."""
        query = self.request.query_params.multi_items() if live else None
        # A page that takes long is asked for less often: a tenth of the time at most is spent on it.
        every = max(UPDATE_SECONDS, math.ceil(10 * (time.monotonic() - self.began)))
        return document(title, main, principal=self.principal, status=status, query=query, every=every)


class Pages:
    """What the pages share: their connections, and turns at them."""

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
        """Let go of the connections."""
        self._database.close()

    def route(self, handler: Handler, *, slow: bool = False) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint of a page. One that is `slow` asks the broker: such pages hold up none of the others.
        What is wrong is a page, too."""

        async def endpoint(request: Request) -> Response:
            principal = ANONYMOUS
            try:
                principal = await self._service.principal(request)
                look = Look(self._service, self._database, self._settings, request, principal)
                return await self._in_thread(lambda: handler(look), slow)
            except ClientDisconnect:
                return Response(status_code=400)  # which nobody reads
            except TokenRefused as error:
                response = error_document("Sign in", error.message, 401)
                response.headers["WWW-Authenticate"] = _CHALLENGE
                return response
            except Throttled as error:
                response = error_document("Too many requests", error.message, 429, principal=principal)
                response.headers["Retry-After"] = str(math.ceil(error.seconds))
                return response
            except (ClusterAuthorizationFailed, GroupAuthorizationFailed, TopicAuthorizationFailed) as error:
                return error_document("This is not open to you", error.message, 403, principal=principal)
            except ShareError as error:
                status = 404 if error.name in _NOT_FOUND else 400
                title = "There is no such thing" if status == 404 else "This cannot be done"
                return error_document(title, error.message, status, principal=principal)
            except SQLAlchemyError as error:
                _log.warning("%s failed: %s", request.url.path, str(error).splitlines()[0])
                return _away(
                    request, "The database does not answer, or not in time. The page tries again by itself."
                )
            except TimeoutError:
                return _away(request, "Too many people look at once. The page tries again by itself.")
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
