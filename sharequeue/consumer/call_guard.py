"""Refuse calls of a consumer from a second thread, from within its callback, and after close."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from confluent_kafka import (
    ConcurrentModificationException,
    IllegalStateException,
    KafkaException,
    TopicPartition,
)

_IN_CALLBACK = "Share consumer methods are not accessible from user-defined acknowledgement commit callback"
_STATE = "Local: Erroneous state"


AcknowledgementCommitCallback = Callable[[dict[TopicPartition, set[int]], KafkaException | None], None]


class _Process:
    """The current process: a fork makes a new object. It is compared for each record; a system call would be slow."""

    current: _Process

    def __init__(self) -> None:
        self.pid = os.getpid()
        _Process.current = self


_Process()
os.register_at_fork(after_in_child=_Process)


class CallGuard:
    """Refuses calls that are not allowed now, with confluent's exceptions and messages."""

    def __init__(self) -> None:
        self._calling = threading.Lock()
        self._caller: int | None = None
        self.in_callback = False
        self.closed = False
        self._process = _Process.current

    @property
    def elsewhere(self) -> bool:
        """Whether this is a forked process: threads, connections and records belong to the parent."""
        return self._process is not _Process.current

    def check(self, prefix: str = "") -> None:
        """Raise if no call may begin now; ``prefix`` begins the message."""
        if self._caller is None and not self.closed and self._process is _Process.current:
            return
        self.check_open(prefix)
        if self._caller is not None:
            if self.in_callback and self._caller == threading.get_ident():
                raise IllegalStateException(f"{prefix}{_STATE} ({_IN_CALLBACK})" if prefix else _IN_CALLBACK)
            raise ConcurrentModificationException(
                f"{prefix}Local: Conflicting use"
                if prefix
                else "Share consumer is not safe for multi-threaded access. "
                f"currentThread(id: {threading.get_ident()}) otherThread(id: {self._caller})"
            )

    def check_open(self, prefix: str = "") -> None:
        """Raise after close, and in a forked process."""
        if self.elsewhere:
            raise IllegalStateException(
                f"{prefix}the share consumer was created in process {self._process.pid}, before a fork: "
                "create one in each process"
            )
        if self.closed:
            raise IllegalStateException("Share consumer closed")

    @contextmanager
    def call(self, prefix: str = "") -> Iterator[None]:
        """Enter a call: one at a time, none after close, none from within the callback."""
        self.check(prefix)
        if not self._calling.acquire(blocking=False):
            self.check(prefix)
            raise ConcurrentModificationException(f"{prefix}Local: Conflicting use")
        self._caller = threading.get_ident()
        try:
            yield
        finally:
            self._caller = None
            self._calling.release()
