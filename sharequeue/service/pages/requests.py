"""Requests for pages, with the caller's rights and a time limit.

A page is made in a thread, with a connection of the pages' own small pool (`admission`), so that pages never take
connections from heartbeats.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

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
from sharequeue.service.admission import ANONYMOUS
from sharequeue.service.call import Call, Handler
from sharequeue.service.context import Service
from sharequeue.service.error_responses import Throttled, status_of
from sharequeue.service.pages.layout import error_page, page
from sharequeue.service.principal import Principal

__all__ = ["PageRequest", "made_by"]

_log = logging.getLogger(__name__)

_TITLES = {
    400: "Bad request",
    401: "Sign in",
    403: "Not allowed",
    404: "Not found",
    429: "Too many requests",
    503: "Temporarily unavailable",
}
"""The titles of error pages by status."""

_CHALLENGE = 'Basic realm="sharequeue: any name, and a token as the password", charset="UTF-8"'
"""The header that makes a browser prompt for a token, and send it with each request until it is closed."""

Found = TypeVar("Found")


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
        Principal(self.database, self.service.topics, self.principal).require_whole(group_id)
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


def made_by(handler: Callable[[PageRequest], Response]) -> Handler:
    """Return the handler of a page. Errors are pages, too."""

    async def page_handler(call: Call) -> Response:
        principal = ANONYMOUS
        path, service = call.request.url.path, call.service
        try:
            principal = (await call.principal()).name
            request = PageRequest(service, service.pages, call.request, principal)
            return await service.threads.run_page(lambda: handler(request))
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
            _log.warning("%s failed: %s", path, first_line(error))
            message = "The database did not answer in time, or too many pages are being read. Try again."
            return error_page(_TITLES[503], message, 503, principal)
        except Exception:
            _log.exception("%s failed", path)
            return error_page("Internal error", UnknownServerError().message, 500, principal)

    page_handler.__doc__ = handler.__doc__
    return page_handler
