"""How is HTTP spoken to a client that may not be well?

As uvicorn speaks it, and each connection knows since when it has waited for its client: for a request to be complete,
for an answer to be read, for the next request. `connections` ends those that wait too long, or have to make room.
A client with a certificate calls as its subject (`tls`).
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from sharequeue.errors import InvalidRequest
from sharequeue.service.callers import CONNECTION
from sharequeue.service.edge.tls import done_as, principal_of_subject
from sharequeue.settings import ServiceLimits

__all__ = ["MAX_HEADER_BYTES", "Connection"]

if TYPE_CHECKING:
    # It has the same attributes as the other one, httptools', which is taken where that is installed.
    from uvicorn.protocols.http.h11_impl import H11Protocol as HttpProtocol
else:
    HttpProtocol = AutoHTTPProtocol

MAX_HEADER_BYTES = 64 << 10
_MAX_PIPELINED = 100
"""Requests that a client may send before it has read the answer to the first. Each is an object of some kilobytes."""


class Connection(HttpProtocol):
    """One connection; `network` is whose it is."""

    def __init__(self, *args: Any, limits: ServiceLimits, network: str, **more: Any) -> None:
        super().__init__(*args, **more)
        self.network = network
        self.ended = asyncio.Event()
        self.delayed = False
        """Whether the answer waits on purpose, because who calls asks too often."""
        self._request_s, self._answer_s = limits.request_timeout_ms / 1000, limits.answer_timeout_ms / 1000
        self._idle_s = limits.idle_timeout_ms / 1000
        self._reading = True
        self._since = self.loop.time()
        self._unread_since: float | None = None
        self._header = 0
        self._running: Any = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Look at the certificate, once for all requests of a connection."""
        super().connection_made(transport)
        self.app = _knowing(self.app, self)
        shown = transport.get_extra_info("peercert")
        if shown:
            self.app = done_as(self.app, principal_of_subject(shown["subject"]))

    def data_received(self, data: bytes) -> None:
        """Read on; note when a request begins, and when it is complete."""
        known = self.cycle
        between = known is None or known.response_complete
        if between and not self._reading:
            self._reading, self._since = True, self.loop.time()
        super().data_received(data)
        if self.cycle is known:
            # What comes after an early answer is the rest of that request, which nobody keeps.
            if between and not (known and known.more_body):
                self._header += len(data)
                if self._header > MAX_HEADER_BYTES:
                    self.abort()
        else:
            self._header = 0
            if len(getattr(self, "pipeline", ())) > _MAX_PIPELINED:
                self.abort()
        if self.cycle is not None and not self.cycle.response_complete:
            self._reading = self.cycle.more_body

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, as every error is answered: in JSON."""
        body = json.dumps({"error_code": InvalidRequest.code, "error_message": msg}).encode()
        head = (
            f"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        )
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()

    def on_response_complete(self) -> None:
        """Wait for the next request, or the rest of this one."""
        if not self._reading:
            self._since = self.loop.time()
        super().on_response_complete()
        # `overdue` sees to it that nobody is silent for ever: a timer of each request is one thing more to keep.
        self._unset_keepalive_if_required()
        cycle = self.cycle
        if (
            cycle is not None
            and cycle.response_complete
            and not cycle.more_body
            and cycle.scope is self.scope
        ):
            # uvicorn keeps the last request until the next one comes. Of 10,000 members these are 250,000 objects,
            # which Python's collector would look through again and again while everybody waits.
            self._running = self.cycle = None  # type: ignore[assignment]
            self.scope = self.headers = None  # type: ignore[assignment]

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)  # type: ignore[misc] # httptools' alone

    def connection_lost(self, exc: Exception | None) -> None:
        """Say so."""
        self._give_up()
        super().connection_lost(exc)
        self.ended.set()

    def abort(self) -> None:
        """End the connection, whatever is still to be sent."""
        self._give_up()
        self.transport.abort()

    def _give_up(self) -> None:
        # With httptools, `cycle` is the last request received, not the one that is being answered.
        for each in (self._running, self.cycle):
            if each is not None and not each.response_complete:
                each.disconnected = True
        self.pipeline: Any = deque()

    def overdue(self, now: float) -> bool:
        """Whether the client has taken too long. Asked every now and then."""
        if self.transport is None:
            return False  # a TLS handshake, which ends by itself
        if self.unread():
            self._unread_since = self._unread_since or now
            return now - self._unread_since > self._answer_s
        self._unread_since = None
        if self._reading:
            return now - self._since > self._request_s
        return not self._answering() and now - self._since > self._idle_s

    def waits_since(self) -> float | None:
        """Since when it has waited for its client; None while an answer is being made."""
        if self.unread():
            return self._unread_since or self._since
        return None if self._answering() and not self._reading and not self.delayed else self._since

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def unread(self) -> bool:
        """Whether the client has not read all of its answers. A connection that is closing waits for that, too."""
        return self.transport is not None and (
            self.transport.is_closing() or self.transport.get_write_buffer_size() > 0
        )


def _knowing(app: Any, connection: Connection) -> Any:
    async def known(scope: Any, receive: Any, send: Any) -> None:
        if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADER_BYTES:
            # What came in one piece.
            error = InvalidRequest(f"The headers are longer than {MAX_HEADER_BYTES} bytes.")
            app_of = JSONResponse({"error_code": error.code, "error_message": error.message}, 431)
        else:
            app_of = app
        try:
            await app_of({**scope, CONNECTION: connection}, receive, send)
        except RuntimeError:
            # uvloop's word for a client that went while it was answered: no error of ours, and no traceback.
            if not connection.transport.is_closing():
                raise
            connection.abort()

    return known
