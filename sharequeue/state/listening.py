"""Wait for a notification that records can be leased, instead of polling the database.

It uses LISTEN on a connection of its own: the state notifies when records become available (``wake_consumers`` in
``sql/functions/30_state``), on a channel for each group. A process that is stopped does not read, and Postgres ends
its session after 30 s: it would keep old rows and the notifications of the whole server. Behind a pooler nothing
listens: LISTEN would stay in a server connection that others use. The consumer then polls every half second, and also
if a probe finds that notifications do not arrive. A notification may be lost together with a connection, so a
consumer with notifications still polls every two seconds.
"""

from __future__ import annotations

import heapq
import logging
import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from typing import Any
from uuid import uuid4

import sqlalchemy as sa
from psycopg2 import sql

from sharequeue.database import Database

_log = logging.getLogger(__name__)

PROBE_S = 2.0
AGAIN_S = 1.0
_PROBE_AGAIN_S = 60.0
STOPPED_MS = 30_000
"""How long Postgres waits for this process to read notifications before it ends the session. Postgres ignores it on
a Unix socket."""


def channel_of(group_id: str) -> str:
    """Return the channel of a group's notifications."""
    return f"sharequeue_{sha256(group_id.encode()).hexdigest()[:32]}"


class Listener:
    """Calls ``wake`` when records of a group may be available. It has a thread and a connection of its own."""

    def __init__(self, database: Database, group_id: str, wake: Callable[[], None]) -> None:
        self.active = False
        """Whether notifications arrive."""
        self._database = database
        self._channel = channel_of(group_id)
        self._wake = wake
        self._due: list[float] = []
        self._stop_reading, self._stop_writing = os.pipe()
        self._stopping = False
        self._ended = threading.Lock()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._name = f"listen-{group_id}"

    def start(self) -> None:
        """Start to listen, unless it has started."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop listening. Returns at once."""
        with self._ended:
            if not self._stopping and not self._closed:
                os.write(self._stop_writing, b"x")
            self._stopping = True
        if self._thread is None:
            self._close()

    def _run(self) -> None:
        while not self._stopping:
            try:
                wait = self._listen()
            except Exception as error:
                # Any error: meanwhile the consumer polls.
                _log.debug("not listening: %s", error)
                wait = AGAIN_S
            self.active = False
            self._sleep(wait)
        self._close()

    def _close(self) -> None:
        # Under the lock: once closed, the descriptor's number may belong to another file.
        with self._ended:
            if not self._closed:
                self._closed = True
                os.close(self._stop_reading)
                os.close(self._stop_writing)

    def _listen(self) -> float:
        """Listen until the connection ends; return the seconds until the next attempt."""
        pooled = self._database.engine.raw_connection()
        connection: Any = pooled.driver_connection
        pooled.detach()
        try:
            connection.autocommit = True
            if not _is_direct(connection) or not self._listens(connection):
                _log.info("no notifications arrive (perhaps behind a pooler): polling every half second")
                return _PROBE_AGAIN_S
            with connection.cursor() as cursor:
                # A setting of the session, which is this connection's own: behind a pooler the probe had failed.
                cursor.execute("select set_config('tcp_user_timeout', %s, false)", (str(STOPPED_MS),))
            self.active = True
            self._wake()  # earlier notifications are not repeated
            while not self._stopping:
                self._take(connection, self._until_due())
        finally:
            connection.close()
        return AGAIN_S

    def _listens(self, connection: Any) -> bool:
        """Listen; return whether a notification from another connection arrives here."""
        connection.notifies = []
        with connection.cursor() as cursor:
            cursor.execute(sql.SQL("listen {}").format(sql.Identifier(self._channel)))
        probe = f"probe {uuid4()}"
        self._database.rows(sa.text("select pg_notify(:channel, :probe)"), channel=self._channel, probe=probe)
        deadline = time.monotonic() + PROBE_S
        while not self._stopping and (left := deadline - time.monotonic()) > 0:
            if probe in self._take(connection, left):
                return True
        return False

    def _take(self, connection: Any, wait: float) -> set[str]:
        """Wait up to `wait` seconds for notifications; return their contents."""
        _wait_for((connection, self._stop_reading), wait)
        connection.poll()
        payloads = {notification.payload for notification in connection.notifies}
        connection.notifies.clear()
        now = time.monotonic()
        for payload in payloads:
            with suppress(ValueError):  # the probe of another listener
                heapq.heappush(self._due, now + (max(0.0, float(payload)) if payload else 0.0))
        due = False
        while self._due and self._due[0] <= now:
            heapq.heappop(self._due)
            due = True
        if due:
            self._wake()
        return payloads

    def _until_due(self) -> float:
        return min(60.0, max(0.0, self._due[0] - time.monotonic())) if self._due else 60.0

    def _sleep(self, seconds: float) -> None:
        if not self._stopping:
            _wait_for((self._stop_reading,), seconds)


def _is_direct(connection: Any) -> bool:
    """Return whether no pooler is between: it has process ids of its own."""
    with connection.cursor() as cursor:
        cursor.execute("select pg_backend_pid()")
        (pid,) = cursor.fetchone()
    return bool(pid == connection.info.backend_pid)


def _wait_for(readable: tuple[Any, ...], seconds: float) -> None:
    """Wait up to `seconds` for something to read. With poll, because select fails for descriptors above 1024."""
    waiting = select.poll()
    for each in readable:
        waiting.register(each, select.POLLIN)
    waiting.poll(1000 * seconds)
