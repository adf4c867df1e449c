"""The trace context of the current work.

Callers may pass a `traceparent` (W3C Trace Context): a request to the service in the header, a run in the
environment variable `TRACEPARENT`. It is passed on unchanged: from a run's heartbeat to the service's log and SQL,
to the run's own SQL, and to the tags of its Spark jobs. No spans are created. The trace of a record, in its header of
the same name, is another one (`sharequeue.spark.trace_headers`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["FORM", "HEADER", "VARIABLE", "comment", "current", "of_request", "valid"]

HEADER = "traceparent"
VARIABLE = "TRACEPARENT"

FORM = "(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
"""A regular expression for valid ones, in Python and in Java."""
_FORM = re.compile(FORM)

_given: ContextVar[str | None] = ContextVar("traceparent", default=None)
"""The current request's traceparent; empty if it has none; None outside of requests."""


def current() -> str | None:
    """Return the traceparent of the current request, outside of requests that of the process."""
    given = _given.get()
    return valid(os.environ.get(VARIABLE)) if given is None else given or None


def valid(text: str | None) -> str | None:
    """Return a traceparent if it is valid. Invalid ones are dropped."""
    return text if text is not None and _FORM.fullmatch(text) else None


@contextmanager
def of_request(traceparent: str | None) -> Iterator[None]:
    """Set the trace for this block to that of a request, or to none."""
    token = _given.set(valid(traceparent) or "")
    try:
        yield
    finally:
        _given.reset(token)


def comment() -> str:
    """Return the trace as an SQL comment, so that pg_stat_activity and Postgres's log show it; empty without a
    trace."""
    trace = current()
    return f"/*{HEADER}='{trace}'*/ " if trace else ""
