"""Stop a run on a signal so that it ends as cancelled and no record becomes a suspect.

Ctrl-C and Dagster's "terminate" send SIGINT, a stopped container gets SIGTERM. Python raises it as an exception in
the main thread, at any point. There are four problems. SparkContext replaces the signal handler with its own, which
calls the JVM from inside the interrupted call. An interrupted call to the JVM leaves its reply on the connection, and
the next call would read that reply as its own. A second Ctrl-C would interrupt giving back the leases. And Python
ignores an exception that is raised in a finalizer; Py4J has one for each object of the JVM, and the signal would be
lost.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from pyspark import SparkContext

__all__ = ["Terminated", "deferred", "forget_interrupted_call", "interruptible", "kept_handlers"]

SIGNALS = (signal.SIGINT, signal.SIGTERM)
AGAIN_SECONDS = 0.1
"""How long after it was ignored a signal is sent again."""
_PYSPARK = "pyspark.core.context"


class Terminated(SystemExit):
    """SIGTERM: a requested exit of this process. Any other SystemExit is an error of the code that ran."""


@contextmanager
def kept_handlers() -> Iterator[None]:
    """Preserve the current signal handlers over a block that starts a SparkContext."""
    if not _in_main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: not set by Python, so Python cannot restore it
                signal.signal(number, handler)


@contextmanager
def interruptible() -> Iterator[None]:
    """Make SIGINT and SIGTERM end the block with an exception, KeyboardInterrupt and Terminated, unless the program
    has its own handlers, as Dagster has.
    """
    if not _in_main_thread():
        yield
        return
    with kept_handlers():
        if _is_pysparks(signal.SIGINT):
            signal.signal(signal.SIGINT, signal.default_int_handler)
        # Dagster sets the handler of SIGINT for SIGTERM, too.
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL or _is_pysparks(signal.SIGTERM):
            signal.signal(signal.SIGTERM, _terminated)
        # The stack of the interruption is of no use to the user.
        log = [logging.getLogger(name) for name in (None, "py4j.clientserver", "py4j.java_gateway")]
        for each in log:
            each.addFilter(_no_interruption)
        try:
            with _sent_again():
                yield
        finally:
            for each in log:
                each.removeFilter(_no_interruption)


@contextmanager
def _sent_again() -> Iterator[None]:
    """Send a signal again whose exception was ignored because it was raised in a finalizer."""
    before = sys.unraisablehook

    def ignored(what: sys.UnraisableHookArgs) -> None:
        number = _signal_of(what.exc_value)
        if number is None or not _in_main_thread():
            before(what)
            return
        # Later, from another thread: here, in the finalizer, it would be ignored once more.
        again = threading.Timer(AGAIN_SECONDS, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()

    sys.unraisablehook = ignored
    try:
        yield
    finally:
        sys.unraisablehook = before


def _signal_of(raised: BaseException | None) -> int | None:
    """Return the signal that an exception stands for, if any."""
    if isinstance(raised, Terminated):
        return signal.SIGTERM
    return signal.SIGINT if isinstance(raised, KeyboardInterrupt) else None


def _no_interruption(record: logging.LogRecord) -> bool:
    """Return False for Py4J's log record on an interrupted call, True for all others."""
    raised = record.exc_info[1] if record.exc_info and "py4j" in record.pathname else None
    while raised is not None:
        if isinstance(raised, KeyboardInterrupt | SystemExit):
            return False
        raised = raised.__context__
    return True


@contextmanager
def deferred() -> Iterator[None]:
    """Delay SIGINT and SIGTERM until the end of a short block that must not be interrupted."""
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
    """Close this thread's connection to the JVM, where the reply to an interrupted call may still arrive.

    The next call opens another. Py4J does so itself after a KeyboardInterrupt, and only then.
    """
    client: Any = getattr(SparkContext._gateway, "_gateway_client", None)
    connection = client.get_thread_connection() if hasattr(client, "get_thread_connection") else None
    if connection is not None:
        connection.close()


def _terminated(number: int, frame: FrameType | None) -> None:
    raise Terminated(128 + number)


def _is_pysparks(number: int) -> bool:
    return getattr(signal.getsignal(number), "__module__", None) == _PYSPARK


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
