"""Limit the connections of the service, and close those of slow clients.

`Connections.protocol` stands between a connection and uvicorn's own protocol (uvicorn's setting `http`),
`Connections.guard` between uvicorn and the application. Both use the interfaces of asyncio and of ASGI alone: no
method of the server is overridden.

There are two deadlines: one for a request, from the handshake or the first byte until its response is sent, and one
for the time between requests. The service accepts connections until it has `max_connections`. Then a new one replaces
another one, as in nginx: of those from the network with the most connections, the one whose request, or whose idle
time, began first. So a client that opens many connections and sends or reads nothing loses them before other clients
lose one.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from sharequeue.service.edge.certificates import principal_of_subject
from sharequeue.service.edge.rates import network_of
from sharequeue.words.errors import InvalidRequest
from sharequeue.words.settings import ServiceLimits

__all__ = ["CONNECTION", "MAX_HEADER_BYTES", "Connection", "Connections"]

_log = logging.getLogger(__name__)

CONNECTION = "sharequeue.connection"
"""The key of a request's `Connection` in its ASGI scope. Absent under servers other than `sharequeue serve`."""
MAX_HEADER_BYTES = 64 << 10
_READ_BYTES = 16 << 10
"""Bytes read at once. They limit how many requests of a client are parsed before the first response."""
_UNSERVED_BYTES = MAX_HEADER_BYTES + 32 * _READ_BYTES
"""Bytes received while no request is served: a header with the beginning of its body, or the rest of a refused body."""
_UNREAD_BYTES = 128 << 10
"""Bytes of a response in the kernel's buffer; the default is megabytes for each client that does not read."""
_OWN_FILES = 256
"""Open files of the process other than its connections: the database's, Kafka's, logs, jars."""
_CHECK_SECONDS = 0.5
_AT_ONCE = 50
"""One connection in this many is closed at once to make room: finding them needs a pass over all connections."""

_buffer = memoryview(bytearray(_READ_BYTES))
"""One buffer for all connections: its content is copied before the next read."""


class Connection(asyncio.BufferedProtocol):
    """One connection, in front of uvicorn's protocol for it, which `http` makes."""

    def __init__(self, held: Connections, http: Callable[[], Any]) -> None:
        self.network = ""
        """The network of the client."""
        self.principal: str | None = None
        """The principal of the client's certificate."""
        self.address: Any = None
        self.since = asyncio.get_running_loop().time()
        """When the current request, or the time without one, began."""
        self._idle = False
        self._held, self._make_http = held, http
        self._http: Any = None
        self._transport: Any = None
        self._handshake: asyncio.Task[None] | None = None
        self._early = b""
        self._serving, self._unserved = False, 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Replace another connection if there are too many, and start the TLS handshake."""
        self._transport = transport
        client, server = (transport.get_extra_info(name) or ("", 0) for name in ("peername", "sockname"))
        self.network = network_of(str(client[0]))
        self.address = (client[0], client[1]), (server[0], server[1])
        self._held.add(self)
        self._set_option(socket.SO_SNDBUF, _UNREAD_BYTES)
        if self._held.tls is None:
            self._open(transport)
        else:
            self._transport.pause_reading()
            self._handshake = asyncio.get_running_loop().create_task(self._shake_hands(self._held.tls))

    async def _shake_hands(self, tls: ssl.SSLContext) -> None:
        try:
            transport = await asyncio.get_running_loop().start_tls(
                self._transport, self, tls, server_side=True
            )
        except OSError:
            transport = None  # a client without TLS, or an untrusted certificate
        if transport is None or self._transport.is_closing():
            self._held.remove(self)
            self._transport.abort()
        else:
            self._open(transport)

    def _open(self, transport: asyncio.BaseTransport) -> None:
        if shown := transport.get_extra_info("peercert"):
            self.principal = principal_of_subject(shown["subject"])
        self._transport = transport
        self._http = self._make_http()
        self._http.connection_made(_OpenTransport(transport))
        if self._early:
            self._receive(self._early)
            self._early = b""

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next read."""
        return _buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Pass on the bytes that were read, unless the header is too long."""
        data = bytes(_buffer[:nbytes])
        if self._http is None:
            self._early += data  # bytes sent together with the end of the handshake
        else:
            self._receive(data)

    def _receive(self, data: bytes) -> None:
        if not self._serving:
            if self._idle:
                self._idle, self.since = False, asyncio.get_running_loop().time()
            self._unserved += len(data)
            if self._unserved > _UNSERVED_BYTES:
                self.abort()
                return
        self._http.data_received(data)

    def eof_received(self) -> bool | None:
        """Pass on that the client has finished sending."""
        return None if self._http is None else self._http.eof_received()

    def pause_writing(self) -> None:
        """Pass on that the client does not read."""
        self._http.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that the client reads again."""
        self._http.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the connection's place."""
        self._held.remove(self)
        if self._http is not None:
            self._http.connection_lost(exc)

    async def serve(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request whose header was received."""
        if self._idle:  # it was received together with the one before
            self._idle, self.since = False, asyncio.get_running_loop().time()
        self._serving = True
        if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADER_BYTES:
            error = InvalidRequest(f"The headers are longer than {MAX_HEADER_BYTES} bytes.")
            app = JSONResponse({"error_code": error.code, "error_message": error.message}, 431)
        try:
            await app({**scope, CONNECTION: self}, receive, send)
        finally:
            self._serving, self._unserved = False, 0
            self._idle, self.since = True, asyncio.get_running_loop().time()

    def overdue(self, now: float, limits: ServiceLimits) -> bool:
        """Return whether a deadline has passed."""
        limit = limits.idle_timeout_ms if self._idle else limits.request_timeout_ms
        return now - self.since > limit / 1000

    def abort(self) -> None:
        """Close the connection and drop unsent data."""
        if self._handshake is not None:
            self._handshake.cancel()
        # Otherwise the kernel keeps unread data, and tries to send it for minutes.
        self._set_option(socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def _set_option(self, option: int, value: int | bytes) -> None:
        with suppress(OSError, ValueError):  # already closed; ValueError with uvloop
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, option, value)


class _OpenTransport:
    """A transport that drops writes after it was closed; uvloop would raise RuntimeError."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write the data, unless the transport is closed."""
        if not self._transport.is_closing():
            self._transport.write(data)


class Connections:
    """The connections of one process; with `tls` they are encrypted. `http` is uvicorn's protocol of one."""

    def __init__(
        self, limits: ServiceLimits, http: Callable[..., asyncio.Protocol], tls: ssl.SSLContext | None = None
    ) -> None:
        self.tls = tls
        self._limits = limits
        self._http = http
        self._most = _most_connections(limits.max_connections)
        self._held: dict[Any, Connection] = {}

    def protocol(self, **of_uvicorn: Any) -> Connection:
        """Return the protocol for a new connection."""
        return Connection(self, lambda: self._http(**of_uvicorn))

    def guard(self, app: ASGIApp) -> ASGIApp:
        """Return the application whose requests have their `CONNECTION` in the scope."""

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "lifespan":
                checking = asyncio.create_task(self._check())
                try:
                    await app(scope, receive, send)
                finally:
                    checking.cancel()
            elif (connection := self._held.get((scope["client"], scope["server"]))) is None:
                await app(scope, receive, send)  # the connection is closed
            else:
                await connection.serve(app, scope, receive, send)

        return guarded

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            now = asyncio.get_running_loop().time()
            self._close([each for each in self._held.values() if each.overdue(now, self._limits)])

    def add(self, connection: Connection) -> None:
        """Register a new connection. If there are too many, close others."""
        if len(self._held) >= self._most:
            crowd = Counter(each.network for each in self._held.values())
            network, _ = crowd.most_common(1)[0]
            oldest = sorted(
                (each for each in self._held.values() if each.network == network), key=lambda each: each.since
            )
            self._close(oldest[: max(1, self._most // _AT_ONCE)])
        self._held[connection.address] = connection

    def remove(self, connection: Connection) -> None:
        """Unregister a connection."""
        if self._held.get(connection.address) is connection:
            del self._held[connection.address]

    def _close(self, connections: list[Connection]) -> None:
        for each in connections:
            self.remove(each)
            each.abort()


def _most_connections(wanted: int) -> int:
    """Return how many connections the process may have; raise its limit of open files as far as needed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _OWN_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    most = max(soft - _OWN_FILES, soft // 2)
    _log.warning("the limit is %d connections, not %d: the process may open %d files", most, wanted, soft)
    return most
