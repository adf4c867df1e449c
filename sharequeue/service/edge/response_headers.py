"""The headers of all responses: a browser must not guess their type, and nothing may keep them.

Responses show groups, members and records of the caller. Pages have further headers (`pages.layout`).
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["COMMON", "CommonHeaders"]

COMMON = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
_ENCODED = [(name.lower().encode(), value.encode()) for name, value in COMMON.items()]


class CommonHeaders:
    """ASGI middleware that adds these headers to every response that does not have them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request."""

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                message["headers"] += [header for header in _ENCODED if header[0] not in given]
            await send(message)

        await self._app(scope, receive, sent if scope["type"] == "http" else send)
