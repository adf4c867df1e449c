"""How does the service write its log: a line for each message, as text or as JSON, in UTC?

Nobody forges a line, whatever the names in a message hold. In JSON the group, member, run, topic and partition that a
message speaks of are fields, and so is the trace of the request in which it was written.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime
from typing import Literal

from sharequeue import traces

__all__ = ["FIELDS", "JsonLine", "LogFormat", "OneLine", "log_to_stderr"]

LogFormat = Literal["text", "json"]

FIELDS = ("group", "member", "run", "topic", "partition")
"""What a message may speak of, by `extra`."""


class OneLine(logging.Formatter):
    """A log in which each message is one line of text, whatever the names in it hold: nobody forges a line.

    The lines of a traceback are indented. Times are UTC.
    """

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def format(self, record: logging.LogRecord) -> str:
        """The line, with control characters as in a literal, and the traceback below it."""
        text = super().format(record)
        if not record.exc_info:
            return _escaped(text)
        first, *rest = text.split("\n")
        return "\n".join((_escaped(first), *(f"    {_escaped(line)}" for line in rest)))


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


class JsonLine(logging.Formatter):
    """A log in which each message is a JSON object on a line of its own, a traceback included. Times are UTC."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, in ASCII: what it does not have is escaped."""
        found: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        found |= {name: value for name in FIELDS if (value := getattr(record, name, None)) is not None}
        trace = traces.current()
        if trace is not None:
            _, found["trace_id"], found["span_id"], _ = trace.split("-")
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return json.dumps(found, default=str)


def log_to_stderr(form: LogFormat) -> None:
    """Write the log of this process to stderr, from INFO on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonLine() if form == "json" else OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("httpx").setLevel(logging.WARNING)
