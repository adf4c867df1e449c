"""Limit the connections of the service, and close those of slow clients.

`Connections.protocol` stands between a connection and uvicorn's own protocol (uvicorn's setting `http`),
`Connections.guard` between uvicorn and the application. Both use the interfaces of asyncio and of ASGI alone: no
method of the server is overridden.

The service accepts connections until it has `max_connections`. Then a new connection replaces one that waits for its
client, as in nginx: of those from the network with the most connections, the one that has waited longest. So a client
that opens many connections and sends or reads nothing loses them before other clients lose one.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sharequeue.domain.errors import InvalidRequest
from sharequeue.domain.settings import ServiceLimits
from sharequeue.service.edge.certificates import principal_of_subject
from sharequeue.service.edge.rates import network_of
from sharequeue.service.edge.response_headers import COMMON

__all__ = ["CONNECTION", "MAX_HEADER_BYTES", "Connection", "Connections"]

_log = logging.getLogger(__name__)

CONNECTION = "sharequeue.connection"
"""The key of a request's `Connection` in its ASGI scope. Absent under servers other than `sharequeue serve`."""
MAX_HEADER_BYTES = 64 << 10
_READ_BYTES = 16 << 10
"""Bytes read at once. They limit how many requests of a client are parsed before the first response."""
_UNSERVED_BYTES = MAX_HEADER_BYTES + 32 * _READ_BYTES
"""Bytes of a request that the application has not begun to serve: its header, and one read of libuv from the body."""
_UNREAD_BYTES = 128 << 10
"""Bytes of a response in the kernel's buffer. The default is megabytes, which hides that the client does not read."""
_OWN_FILES = 256
"""Open files of the process other than its connections: the database's, Kafka's, logs, jars."""
_BODY = (b"content-length", b"transfer-encoding")
"""Headers of a request with a body."""
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
        self.delayed = False
        """Whether the response is delayed on purpose, because the client sends too many requests."""
        self.address: Any = None
        self._held, self._make_http = held, http
        self._http: Any = None
        self._transport: Any = None
        self._handshake: asyncio.Task[None] | None = None
        self._early = b""
        self._unserved = 0
        self._serving = self._idle = self._ended = False
        self._since: float | None = None
        """The time since which it has waited for its client; None while a response is being made."""
        self._unread_since: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Replace another connection if there are too many, and start the TLS handshake."""
        self._transport = transport
        self._since = asyncio.get_running_loop().time()
        client, server = (transport.get_extra_info(name) or ("", 0) for name in ("peername", "sockname"))
        self.network = network_of(str(client[0]))
        self.address = (client[0], client[1]), (server[0], server[1])
        if not self._held.admit(self):
            self._transport.abort()
            return
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
        self._since = asyncio.get_running_loop().time()
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
                self._idle, self._since = False, asyncio.get_running_loop().time()
            self._unserved += len(data)
            if self._unserved > _UNSERVED_BYTES:
                self.abort()
                return
        self._http.data_received(data)

    def eof_received(self) -> bool | None:
        """Keep the connection for the responses to what the client has sent before it finished sending.

        Some clients close their side at once. `overdue` closes the other one, and requests that are not complete.
        """
        now = asyncio.get_running_loop().time()
        # A response that has just ended may be followed by that to the next request, which was sent with the first.
        nothing_sent = self._idle and self._since is not None and now - self._since > _CHECK_SECONDS
        # TLS cannot be kept: asyncio would log a warning.
        self._ended = self._http is not None and self._held.tls is None and not nothing_sent
        return self._ended

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
        """Serve one request whose header was received. Its response waits for the end of its body."""
        complete = False
        self._serving, self._unserved = True, 0
        if not any(name in _BODY for name, _ in scope["headers"]):
            self._since = (
                None  # nothing is expected from the client, even if the application does not request a body
            )

        async def received() -> Message:
            nonlocal complete
            message = await receive()
            if not complete and not message.get("more_body"):
                complete, self._since = True, None
            return message

        async def sent(message: Message) -> None:
            # Otherwise the rest of a refused body would be parsed as the next header.
            while not complete:
                await received()
            await send(message)

        if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADER_BYTES:
            error = InvalidRequest(f"The headers are longer than {MAX_HEADER_BYTES} bytes.")
            app = JSONResponse({"error_code": error.code, "error_message": error.message}, 431, COMMON)
        try:
            await app({**scope, CONNECTION: self}, received, sent)
        finally:
            self._serving, self._idle, self._since = False, True, asyncio.get_running_loop().time()

    @contextmanager
    def waits_for_us(self) -> Iterator[None]:
        """Stop counting the client's time in the block; continue afterwards from the beginning."""
        expected, self._since, self.delayed = self._since is not None, None, True
        try:
            yield
        finally:
            self.delayed = False
            self._since = asyncio.get_running_loop().time() if expected else None

    def overdue(self, now: float, limits: ServiceLimits) -> bool:
        """Return whether the client has taken too long. Called regularly. uvicorn closes idle connections."""
        if self._unread():
            self._unread_since = self._unread_since or now
            return now - self._unread_since > limits.answer_timeout_ms / 1000
        self._unread_since = None
        if self._since is None or (self._idle and not self._ended):
            return False
        return now - self._since > (_CHECK_SECONDS if self._ended else limits.request_timeout_ms / 1000)

    def waits_since(self, now: float) -> float | None:
        """Return the time since which it has waited for its client; None while a response is being made."""
        if self._since is None and (self.delayed or self._unread()):
            return self._unread_since or now
        return self._since

    def _unread(self) -> bool:
        return bool(self._transport.is_closing() or self._transport.get_write_buffer_size())

    def abort(self) -> None:
        """Close the connection and drop unsent data."""
        if self._ended and self._idle:
            self._transport.close()  # all was sent, and may not be read yet
            return
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

    def admit(self, connection: Connection) -> bool:
        """Register a new connection. Return False if there is no room for it."""
        if len(self._held) >= self._most and not self._make_room():
            return False
        self._held[connection.address] = connection
        return True

    def remove(self, connection: Connection) -> None:
        """Unregister a connection."""
        if self._held.get(connection.address) is connection:
            del self._held[connection.address]

    def _make_room(self) -> bool:
        now = asyncio.get_running_loop().time()
        waiting = [
            (since, each) for each in self._held.values() if (since := each.waits_since(now)) is not None
        ]
        crowd = Counter(each.network for each in self._held.values())
        most = max((crowd[each.network] for _, each in waiting), default=0)
        candidates = sorted(
            ((since, each) for since, each in waiting if crowd[each.network] == most),
            key=lambda found: found[0],
        )
        self._close([each for _, each in candidates[: max(1, self._most // _AT_ONCE)]])
        return bool(waiting)

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
