"""When may a consumer be called? By one thread at a time, not from within its callback, not after close."""

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
    """The process that this is: another object after a fork. Compared for each record, and a system call is slow."""

    current: _Process

    def __init__(self) -> None:
        self.pid = os.getpid()
        _Process.current = self


_Process()
os.register_at_fork(after_in_child=_Process)


class OneCaller:
    """Refuses calls that are not allowed now, with confluent's exceptions and in its words."""

    def __init__(self) -> None:
        self._calling = threading.Lock()
        self._caller: int | None = None
        self._in_callback = False
        self._closed = False
        self._process = _Process.current

    @property
    def _elsewhere(self) -> bool:
        """Whether this is a forked process: threads, connections and records are the parent's."""
        return self._process is not _Process.current

    def _check_call(self, prefix: str = "") -> None:
        if self._caller is None and not self._closed and self._process is _Process.current:
            return
        self._check_open(prefix)
        if self._caller is not None:
            if self._in_callback and self._caller == threading.get_ident():
                raise IllegalStateException(f"{prefix}{_STATE}" if prefix else _IN_CALLBACK)
            raise ConcurrentModificationException(
                f"{prefix}Local: Conflicting use"
                if prefix
                else "Share consumer is not safe for multi-threaded access. "
                f"currentThread(id: {threading.get_ident()}) otherThread(id: {self._caller})"
            )

    def _check_open(self, prefix: str = "") -> None:
        if self._elsewhere:
            raise IllegalStateException(
                f"{prefix}the share consumer was made in process {self._process.pid}, before a fork: "
                "make one in each process"
            )
        if self._closed:
            raise IllegalStateException("Share consumer closed")

    @contextmanager
    def _call(self, prefix: str = "") -> Iterator[None]:
        """One call at a time, none after close, none from within the callback."""
        self._check_call(prefix)
        if not self._calling.acquire(blocking=False):
            self._check_call(prefix)
            raise ConcurrentModificationException(f"{prefix}Local: Conflicting use")
        self._caller = threading.get_ident()
        try:
            yield
        finally:
            self._caller = None
            self._calling.release()
