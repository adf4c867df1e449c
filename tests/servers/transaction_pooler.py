"""A pooler in transaction mode, as PgBouncer is one, as small as it can be and harsher than it.

Every transaction gets the server connection that has been idle longest, so that two in a row of one client never meet
on the same one; nothing is reset in between. A startup parameter that PgBouncer does not know (``options`` among
them) is refused, as PgBouncer refuses it unless told to ignore it; so is the extended protocol, whose prepared
statements would be the session's. Passwords are not checked.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from contextlib import suppress
from queue import SimpleQueue

import psycopg2
import sqlalchemy as sa

__all__ = ["TransactionPooler"]

_KNOWN_PARAMETERS = {
    *("user", "database", "application_name", "client_encoding", "DateStyle", "TimeZone"),
    "standard_conforming_strings",
}
_SSL_OR_GSS = (80877103, 80877104)
_TOLD = ("server_version", "client_encoding", "standard_conforming_strings", "DateStyle", "TimeZone")


class _Server:
    """A connection to Postgres that psycopg2 has logged in, and whose socket we go on with."""

    def __init__(self, url: sa.URL) -> None:
        self._connection = psycopg2.connect(
            host=url.host,
            port=url.port,
            user=url.username,
            password=url.password,
            dbname=url.database,
        )
        self.parameters = {name: self._connection.get_parameter_status(name) for name in _TOLD}
        self.socket = socket.socket(fileno=os.dup(self._connection.fileno()))
        self.socket.setblocking(True)
        self.transactions = 0

    def close(self) -> None:
        self.socket.close()
        self._connection.close()


class TransactionPooler:
    """Listens on a free port; ``url`` leads to it. Every client is logged in as the user of ``target``."""

    def __init__(self, target: sa.URL, servers: int = 2, *, statements: bool = False) -> None:
        self._target = target
        self._statements = statements
        self._servers = [_Server(target) for _ in range(servers)]
        self._idle: SimpleQueue[_Server] = SimpleQueue()
        for server in self._servers:
            self._idle.put(server)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = target.set(host="127.0.0.1", port=self._listener.getsockname()[1])
        self._clients: list[socket.socket] = []
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def transactions(self) -> list[int]:
        """How many transactions each server connection has served."""
        return [server.transactions for server in self._servers]

    def close(self) -> None:
        for each in (self._listener, *self._clients):
            with suppress(OSError):
                each.close()
        for server in self._servers:
            server.close()

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._clients.append(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _replace(self, ended: _Server) -> None:
        """Connect again in place of a server connection that has ended, as PgBouncer does."""
        ended.close()
        server = _Server(self._target)
        self._servers[self._servers.index(ended)] = server
        self._idle.put(server)

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError, EOFError), client:
            if self._start(client):
                self._transactions(client)

    def _start(self, client: socket.socket) -> bool:
        while True:
            (length,) = struct.unpack("!i", _exactly(client, 4))
            body = _exactly(client, length - 4)
            (code,) = struct.unpack("!i", body[:4])
            if code not in _SSL_OR_GSS:
                break
            client.sendall(b"N")
        words = body[4:].rstrip(b"\0").split(b"\0")
        names = {name.decode() for name in words[::2]}
        unknown = names - _KNOWN_PARAMETERS
        if unknown:
            told = f"unsupported startup parameter: {', '.join(sorted(unknown))}".encode()
            client.sendall(_message(b"E", b"SFATAL\0C08P01\0M" + told + b"\0\0"))
            return False
        parameters = {name: value or "" for name, value in self._servers[0].parameters.items()}
        client.sendall(
            _message(b"R", struct.pack("!i", 0))
            + b"".join(_message(b"S", f"{name}\0{value}\0".encode()) for name, value in parameters.items())
            + _message(b"K", struct.pack("!ii", 1, 1))
            + _message(b"Z", b"I")
        )
        return True

    def _transactions(self, client: socket.socket) -> None:
        while (first := _query(client)) is not None:
            server = self._idle.get()
            if not self._transaction(client, server, first):
                return

    def _transaction(self, client: socket.socket, server: _Server, message: bytes | None) -> bool:
        """One transaction on one server connection; False when the client went away in the middle of it."""
        while message is not None:
            server.socket.sendall(message)
            kind, replies = b"", []
            try:
                while kind != b"Z":
                    kind, reply = _read(server.socket)
                    replies.append(reply)
            except (OSError, EOFError):
                self._replace(server)
                return False
            ended = replies[-1][-1:] == b"I"
            if ended:
                # Given back before the client hears of it: its next transaction gets another one.
                server.transactions += 1
                self._idle.put(server)
            # In one piece: of several small ones, the second waits 40 ms for the client to confirm the first.
            client.sendall(b"".join(replies))
            if ended:
                return True
            message = None if self._statements else _query(client)
        server.socket.sendall(_message(b"Q", b"rollback\0"))
        while _read(server.socket)[0] != b"Z":
            pass
        self._idle.put(server)
        return False


def _query(client: socket.socket) -> bytes | None:
    """The next statement; None when the client says goodbye, or speaks the extended protocol."""
    try:
        kind, message = _read(client)
    except (OSError, EOFError):
        return None
    return message if kind == b"Q" else None


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def _read(connection: socket.socket) -> tuple[bytes, bytes]:
    head = _exactly(connection, 5)
    (length,) = struct.unpack("!i", head[1:])
    return head[:1], head + _exactly(connection, length - 4)


def _exactly(connection: socket.socket, length: int) -> bytes:
    parts = []
    while length:
        part = connection.recv(length)
        if not part:
            raise EOFError
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
