"""A proxy that cuts a connection in the middle of a reply.

A TCP proxy between a test and its Postgres. Armed with a text, it waits until a client sends a message with that text
in it; of the server's bytes from there on it lets so many through, then both ends are cut.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self


class CuttingProxy:
    """Listens on a free port of the loopback; `port` is what a client connects to."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._marker: bytes | None = None
        self._after = 0
        self._open: list[socket.socket] = []
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def arm(self, marker: str, after: int) -> None:
        """Of the reply to the next message with this text in it, ``after`` bytes arrive."""
        with self._lock:
            self._marker, self._after = marker.encode(), after

    @property
    def armed(self) -> bool:
        """Whether the message is still to come."""
        return self._marker is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cut(self._listener, *self._open)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                self._open += [client, server]
                left: list[int] = []  # how many bytes of the server's may still pass, once that is known
                for pump in (self._to_server, self._to_client):
                    threading.Thread(target=pump, args=(client, server, left), daemon=True).start()

    def _to_server(self, client: socket.socket, server: socket.socket, left: list[int]) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                with self._lock:
                    if self._marker is not None and self._marker in data:
                        self._marker = None
                        left.append(self._after)
                server.sendall(data)
        self._cut(client, server)

    def _to_client(self, client: socket.socket, server: socket.socket, left: list[int]) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                if left:
                    client.sendall(data[: left[0]])
                    left[0] -= len(data)
                    if left[0] <= 0:
                        self.cuts += 1
                        break
                else:
                    client.sendall(data)
        self._cut(client, server)

    @staticmethod
    def _cut(*ends: socket.socket) -> None:
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
