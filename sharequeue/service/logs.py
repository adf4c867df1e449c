"""The service's log: a line for each message, as text or as JSON, in UTC.

Names in a message cannot forge a line. In JSON the group, member, run, topic and partition of a message are fields,
and so is the trace of its request.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime
from typing import Literal

from sharequeue.domain import traces
from sharequeue.domain.names import printable

__all__ = ["FIELDS", "JsonLine", "LogFormat", "OneLine", "log_to_stderr"]

LogFormat = Literal["text", "json"]

FIELDS = ("group", "member", "run", "topic", "partition")
"""The fields of a message, passed as `extra`."""


class OneLine(logging.Formatter):
    """A log format with one line of text per message: names in a message cannot forge a line.

    The lines of a traceback are indented. Times are UTC.
    """

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def format(self, record: logging.LogRecord) -> str:
        """Return the line with escaped control characters, and the traceback below it."""
        text = super().format(record)
        if not record.exc_info:
            return printable(text)
        first, *rest = text.split("\n")
        return "\n".join((printable(first), *(f"    {printable(line)}" for line in rest)))


class JsonLine(logging.Formatter):
    """A log format with one JSON object per line, which includes the traceback. Times are UTC."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line in ASCII: other characters are escaped."""
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
