"""Record the duration and the trace of every request."""

from __future__ import annotations

import time

from prometheus_client import Histogram
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from sharequeue.words import traces

__all__ = ["RequestDurations"]


class RequestDurations:
    """ASGI middleware. `durations` has one label: the operation."""

    def __init__(self, app: ASGIApp, durations: Histogram) -> None:
        self._app = app
        self._durations = durations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request and record its duration."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        try:
            with traces.of_request(Headers(scope=scope).get(traces.HEADER)):
                await self._app(scope, receive, send)
        finally:
            self._durations.labels(operation_of(scope)).observe(time.monotonic() - began)


def operation_of(scope: Scope) -> str:
    """Return the operation of a request. The number of operations is limited: an unknown path is `other`."""
    if "endpoint" not in scope:
        return "other"
    first, _, rest = str(scope["path"]).removeprefix("/v1").removeprefix("/").partition("/")
    return f"{first}/{{group_id}}" if rest else first
