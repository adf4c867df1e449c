"""Which trace does what we do belong to?

Whoever calls may say so by a `traceparent` (W3C Trace Context): a request to the service by the header, a run by the
environment variable `TRACEPARENT`. It is passed on as it came: from a run's heartbeat to the service's log and SQL,
to the run's own SQL, and to the tags of its Spark jobs. No spans are made here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["HEADER", "VARIABLE", "comment", "current", "of_request"]

HEADER = "traceparent"
VARIABLE = "TRACEPARENT"

_FORM = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")

_given: ContextVar[str | None] = ContextVar("traceparent", default=None)
"""Of the request of this task; empty where it has none; None outside of requests."""


def current() -> str | None:
    """Return the traceparent of what is done now: of the request, else of the process."""
    given = _given.get()
    return valid(os.environ.get(VARIABLE)) if given is None else given or None


def valid(text: str | None) -> str | None:
    """Return a traceparent if it is one. Anything else is passed on to nobody."""
    return text if text is not None and _FORM.fullmatch(text) else None


@contextmanager
def of_request(traceparent: str | None) -> Iterator[None]:
    """Have everything in this block belong to the trace of a request, or to none."""
    token = _given.set(valid(traceparent) or "")
    try:
        yield
    finally:
        _given.reset(token)


def comment() -> str:
    """Return the trace as a comment in front of SQL, so that pg_stat_activity and Postgres's log have it; empty where
    there is none."""
    trace = current()
    return f"/*{HEADER}='{trace}'*/ " if trace else ""
