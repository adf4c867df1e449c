"""Who is connected, and who has to go?

The service takes every connection until it has `max_connections`. Then a new one takes the place of one that waits
for its client (nginx does so, too): of those from the network that has most, the one that has waited longest. So a
client that opens many, and says nothing on them, or reads nothing, loses them before another client loses one.
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

import uvicorn

from sharequeue.service.edge.protocol import Connection
from sharequeue.service.edge.rates import network_of
from sharequeue.settings import ServiceLimits

__all__ = ["BoundedServer", "Connections", "most_connections"]

_log = logging.getLogger(__name__)

_OWN_FILES = 256
"""Files that the process has open beside its connections: the database's, Kafka's, logs, jars."""
_LOOK_S = 0.5
_BACKLOG = 2048
_UNREAD_BYTES = 128 << 10
"""Of an answer, in the kernel. Left to itself it takes megabytes, and nobody sees whether they are read."""
_AT_ONCE = 50
"""One in so many goes at once to make room, so that a flood of new connections does not pay a look at all of them
each."""

Speak = Callable[[str], Connection]


class Connections:
    """The connections of one process."""

    def __init__(self, limits: ServiceLimits) -> None:
        self._limits = limits
        self._most = most_connections(limits.max_connections)
        self._held: dict[Connection, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        """How many there are."""
        return len(self._held)

    async def accept(self, listener: socket.socket, speak: Speak, tls: ssl.SSLContext | None) -> None:
        """Take connections for ever. `speak` makes what speaks to a client of a network."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNREAD_BYTES)  # of each that it accepts
        while True:
            try:
                accepted, address = await loop.sock_accept(listener)
            except OSError as error:
                # Out of files, for one: what others opened. Or the client has gone again.
                _log.warning("a connection cannot be taken: %s", error)
                self._make_room()
                await asyncio.sleep(0.05)
                continue
            if len(self._held) >= self._most and not self._make_room():
                accepted.close()
                continue
            connection = speak(network_of(str(address[0])))
            self._held[connection] = loop.create_task(self._hold(connection, accepted, tls))

    async def look(self) -> None:
        """End, for ever, what waits too long for its client."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_LOOK_S)
            now = loop.time()
            for connection in list(self._held):
                if connection.overdue(now):
                    self._end(connection)

    async def _hold(
        self, connection: Connection, accepted: socket.socket, tls: ssl.SSLContext | None
    ) -> None:
        loop = asyncio.get_running_loop()
        timeout = None if tls is None else self._limits.request_timeout_ms / 1000
        try:
            await loop.connect_accepted_socket(
                lambda: connection, accepted, ssl=tls, ssl_handshake_timeout=timeout
            )
            await connection.ended.wait()
        except OSError:
            pass  # no handshake: a client without TLS, a certificate that is not trusted, silence
        except asyncio.CancelledError:
            if connection.unread():
                # Else the kernel keeps what nobody reads, and tries for minutes.
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raise
        finally:
            self._held.pop(connection, None)
            if connection.transport is None:
                accepted.close()
            else:
                connection.abort()

    def _end(self, connection: Connection) -> None:
        task = self._held.pop(connection)
        task.cancel()

    def _make_room(self) -> bool:
        """End some that wait, the longest first, of the network that has most. Return whether there were any."""
        waiting = [(since, each) for each in self._held if (since := each.waits_since()) is not None]
        if not waiting:
            return False
        crowd = Counter(each.network for each in self._held)
        most = max(crowd[each.network] for _, each in waiting)
        theirs = [(since, each) for since, each in waiting if crowd[each.network] == most]
        theirs.sort(key=lambda found: found[0])
        for _, connection in theirs[: max(1, self._most // _AT_ONCE)]:
            self._end(connection)
        return True


class BoundedServer(uvicorn.Server):
    """uvicorn's server, with these bounds on its connections."""

    def __init__(self, config: uvicorn.Config, limits: ServiceLimits) -> None:
        config.ws = "none"  # there are no websockets here, whatever is installed
        super().__init__(config)
        self.limits = limits
        self._bounded: list[asyncio.Task[None]] = []
        self._listeners: list[socket.socket] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and take connections once the application has started. Exits the process with 1 when the address
        cannot be had."""
        try:
            self._listeners = _listening(self.config.host, self.config.port) if sockets is None else sockets
        except OSError as error:
            _log.error("%s", error)
            raise SystemExit(1) from None
        await super().startup(sockets=[])
        connections, tls = Connections(self.limits), self.config.ssl
        loop = asyncio.get_running_loop()
        self._bounded = [loop.create_task(connections.look())]
        self._bounded += [
            loop.create_task(connections.accept(each, self._speak, tls)) for each in self._listeners
        ]

    def _speak(self, network: str) -> Connection:
        return Connection(
            self.config, self.server_state, self.lifespan.state, limits=self.limits, network=network
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more connections, and end as uvicorn does."""
        for task in self._bounded:
            task.cancel()
        for each in self._listeners:
            each.close()
        await super().shutdown(sockets)


def _listening(host: str, port: int) -> list[socket.socket]:
    """Listen on every address that a name has. Raises OSError."""
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    addresses = dict.fromkeys((family, address) for family, _, _, _, address in found)
    return [socket.create_server(address, family=family, backlog=_BACKLOG) for family, address in addresses]


def most_connections(wanted: int) -> int:
    """Return how many connections the process may have, and raise its limit of open files as far as that needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _OWN_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    most = max(soft - _OWN_FILES, soft // 2)
    _log.warning("at most %d connections, not %d: the process may open %d files", most, wanted, soft)
    return most
