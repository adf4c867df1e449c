"""Name what a program waits for when it takes longer than five seconds, as a warning of Python's logging."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["WAIT_SECONDS", "named_wait"]

_log = logging.getLogger(__name__)

WAIT_SECONDS = 5.0


@contextmanager
def named_wait(what: str) -> Iterator[None]:
    """Log "waiting for <what>" if the block takes longer than five seconds."""
    timer = threading.Timer(WAIT_SECONDS, _log.warning, ("waiting for %s", what))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
