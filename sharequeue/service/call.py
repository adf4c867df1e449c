"""An endpoint: one entry of the table in `endpoints`; and one call of it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from sharequeue.domain.errors import InvalidRequest, ShareError
from sharequeue.domain.names import shown
from sharequeue.groups.tokens import SCOPES
from sharequeue.service.admission import throttle_time_ms
from sharequeue.service.context import Service
from sharequeue.service.error_responses import Throttled, UnsupportedBody, error_fields
from sharequeue.service.messages import Answer, RefusedOperation, RequestBody, parsed
from sharequeue.service.principal import Principal

__all__ = ["SOON_S", "Call", "Endpoint", "Handler", "operation"]

SOON_S = 1.0
"""A body that takes longer to arrive is from a caller whose token may have been revoked meanwhile."""
_MAX_BODY_BYTES = 1 << 20
_SEND_JSON = "Send the request as `Content-Type: application/json`."
_SEND_PLAIN = "The body has the Content-Encoding {}, which is not supported: send it without."
_CONVERTOR = re.compile(r":\w+(?=})")

Result = TypeVar("Result")
Handler = Callable[["Call"], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One request that the service serves. Raises TypeError without a scope, ValueError for an unknown one."""

    method: Literal["GET", "POST"]
    path: str
    """As a route of Starlette: `{group_id:group}` is the rest of the path."""
    _: KW_ONLY
    scope: str
    """The scope that a token needs, one of `SCOPES`."""
    handler: Handler
    """Its docstring is the description in the documentation."""
    cost: int = 5
    """What a call takes of its principal's rate, in heartbeats: others read more, and are less frequent."""
    is_open: bool = False
    """Whether the handler also answers callers without that scope; it decides what they get."""
    summary: str = ""
    """The title in the OpenAPI document. Pages have none: the document leaves them out."""
    body: type[RequestBody] | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    """The parameters in the query with their descriptions."""
    answers: tuple[Any, ...] = ()
    """The types of the response with status 200; or its content, as OpenAPI describes it."""
    failures: Mapping[int, tuple[str, Any]] = field(default_factory=dict)
    """Other statuses than those of all endpoints, each with its description and the type of its response."""

    def __post_init__(self) -> None:
        if self.scope not in SCOPES:
            raise ValueError(f"{self.method} {self.path}: the scope {self.scope!r} is not one of {SCOPES}")

    @property
    def template(self) -> str:
        """The path as documentation shows it, with the names of its parameters."""
        return _CONVERTOR.sub("", self.path)

    @property
    def description(self) -> str:
        """The docstring of the handler."""
        return inspect.getdoc(self.handler) or ""


@dataclass(frozen=True, slots=True)
class Call:
    """One request to an endpoint."""

    service: Service
    request: Request
    endpoint: Endpoint

    async def principal(self) -> Principal:
        """Return the principal, by the current state of the database. Raises the errors of `Admission.principal`."""
        name = await self.service.admission.principal(self.request, self.endpoint.scope, self.endpoint.cost)
        return Principal(self.service.database, self.service.topics, name)

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run a synchronous call in a thread. Raises the errors of `Threads.run`."""
        return await self.service.threads.run(work)

    async def group(self) -> str:
        """Return the group in the path. The principal must be allowed to describe it and all its topics.

        Raises InvalidGroupId, GroupAuthorizationFailed, TopicAuthorizationFailed.
        """
        group_id = str(self.request.path_params["group_id"])
        principal = await self.principal()
        await self.run(lambda: principal.require_whole(group_id))
        return group_id

    def require_json(self) -> None:
        """Raise UnsupportedBody if the headers name another body than JSON."""
        headers = self.request.headers
        # Another site can make a browser send any body, but not with this content type without a preflight request.
        kinds = [each.partition(";")[0].strip().lower() for each in headers.getlist("content-type")]
        if kinds != ["application/json"]:
            raise UnsupportedBody(_SEND_JSON)
        encoding = ", ".join(headers.getlist("content-encoding")).strip()
        if encoding.lower() not in ("", "identity"):
            raise UnsupportedBody(_SEND_PLAIN.format(shown(encoding)))

    async def body(self) -> bytes:
        """Return the body. Raises InvalidRequest if it is too long."""
        body = bytearray()
        async for chunk in self.request.stream():
            body += chunk
            if len(body) > _MAX_BODY_BYTES:
                raise InvalidRequest(f"The body is longer than {_MAX_BODY_BYTES} bytes.")
        return bytes(body)


def operation(
    path: str, *, scope: str, do: Callable[[Principal, Any], Answer], body: type[RequestBody], answer: Any
) -> Endpoint:
    """Return the endpoint of an admin operation, which `do` executes with the principal and the validated body.

    An error of the whole operation is its response, as in Kafka, with status 200.
    """

    async def handler(call: Call) -> Response:
        await call.principal()
        call.require_json()
        async with call.service.threads.room_for(call.request):
            asked = parsed(body, await call.body())
            # Checked again: a body may arrive slowly, and its token may be revoked meanwhile.
            principal = await call.principal()
            try:
                done = await call.run(lambda: do(principal, asked))
            except Throttled:
                raise
            except ShareError as error:
                done = error_fields(error)
            return JSONResponse({"throttle_time_ms": throttle_time_ms(call.request), **done})

    handler.__doc__ = do.__doc__
    summary = (body.__doc__ or "").rstrip(".")
    return Endpoint(
        "POST",
        path,
        scope=scope,
        handler=handler,
        summary=summary,
        body=body,
        answers=(answer, RefusedOperation),
    )
