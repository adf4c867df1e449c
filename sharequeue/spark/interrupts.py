"""How does somebody stop a run, so that it ends as cancelled and no record is at fault?

By a signal: Ctrl-C and Dagster's "terminate" send SIGINT, a container that is stopped gets SIGTERM. Python raises it
as an exception in the main thread, at whatever point that is. Three things are in the way. SparkContext replaces the
signal handler by one of its own, which calls the JVM from inside the call that it interrupts. An interrupted call to
the JVM leaves its reply on the connection, and the next call would take it for its own. And a second Ctrl-C would
interrupt the giving back of leases.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from pyspark import SparkContext

__all__ = ["deferred", "forget_interrupted_call", "interruptible", "kept_handlers"]

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_PYSPARK = "pyspark.core.context"


@contextmanager
def kept_handlers() -> Iterator[None]:
    """Keep the present signal handlers over a block that starts a SparkContext."""
    if not _in_main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: not set by Python, and not to be put back by it
                signal.signal(number, handler)


@contextmanager
def interruptible() -> Iterator[None]:
    """Have SIGINT and SIGTERM end the block by an exception: KeyboardInterrupt and SystemExit, unless the program has
    handlers of its own, as Dagster has.
    """
    if not _in_main_thread():
        yield
        return
    with kept_handlers():
        if _is_pysparks(signal.SIGINT):
            signal.signal(signal.SIGINT, signal.default_int_handler)
        # Dagster gives SIGTERM the handler of SIGINT, whosever that is.
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL or _is_pysparks(signal.SIGTERM):
            signal.signal(signal.SIGTERM, _terminated)
        # Where it was interrupted is of no use to whoever did it.
        log = [logging.getLogger(name) for name in (None, "py4j.clientserver", "py4j.java_gateway")]
        for each in log:
            each.addFilter(_no_interruption)
        try:
            yield
        finally:
            for each in log:
                each.removeFilter(_no_interruption)


def _no_interruption(record: logging.LogRecord) -> bool:
    """Whether a record is anything but Py4J's on a call that was interrupted."""
    raised = record.exc_info[1] if record.exc_info and "py4j" in record.pathname else None
    while raised is not None:
        if isinstance(raised, KeyboardInterrupt | SystemExit):
            return False
        raised = raised.__context__
    return True


@contextmanager
def deferred() -> Iterator[None]:
    """Delay SIGINT and SIGTERM until the end of a short block, which must be done as a whole."""
    if not _in_main_thread():
        yield
        return
    came: list[tuple[int, FrameType | None]] = []

    def wait(number: int, frame: FrameType | None) -> None:
        came.append((number, frame))

    try:
        with kept_handlers():
            for number in SIGNALS:
                if callable(signal.getsignal(number)):
                    signal.signal(number, wait)
            yield
    finally:
        for received, frame in came[:1]:
            handler = signal.getsignal(received)
            if callable(handler):
                handler(received, frame)


def forget_interrupted_call() -> None:
    """Close this thread's connection to the JVM, on which the reply to an interrupted call may still come.

    The next call opens another. Py4J does so itself after a KeyboardInterrupt, and only then.
    """
    client: Any = getattr(SparkContext._gateway, "_gateway_client", None)
    connection = client.get_thread_connection() if hasattr(client, "get_thread_connection") else None
    if connection is not None:
        connection.close()


def _terminated(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _is_pysparks(number: int) -> bool:
    return getattr(signal.getsignal(number), "__module__", None) == _PYSPARK


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
