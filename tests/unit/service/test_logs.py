"""The lines of the service's log: whatever a name holds, one line each, in UTC, with what it speaks of as fields."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from sharequeue.domain import traces
from sharequeue.service.logs import JsonLine, OneLine

NAME = 'a"b\n2026-01-01 INFO forged\x1b[2J' + "d" * 200
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def record(message: str, *values: object, failed: bool = False, **extra: object) -> logging.LogRecord:
    """Return a record of a logger, with fields."""
    logger = logging.getLogger("sharequeue.test")
    found = sys.exc_info() if failed else None
    made = logger.makeRecord("sharequeue.test", logging.WARNING, "", 0, message, values, found, extra=extra)
    made.created, made.msecs = 1_700_000_000.125, 125.0
    return made


def test_json() -> None:
    """One object on one line, in ASCII; fields that nobody knows stay out."""
    line = JsonLine().format(record("group %s waits", NAME, group=NAME, partition=3, secret="no"))
    assert "\n" not in line
    assert line.isascii()
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.125+00:00",
        "level": "WARNING",
        "logger": "sharequeue.test",
        "message": f"group {NAME} waits",
        "group": NAME,
        "partition": 3,
    }


def test_json_of_a_traceback_is_one_line() -> None:
    """The traceback is a field, its line ends escaped."""
    try:
        raise ValueError(NAME)
    except ValueError:
        line = JsonLine().format(record("a step failed", failed=True))
    assert "\n" not in line
    assert NAME in json.loads(line)["exception"]


def test_text_is_in_utc_and_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time zone of the machine changes nothing."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    line = OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s").format(record("group %s", NAME))
    assert line.startswith("2023-11-14T22:13:20.125Z WARNING sharequeue.test: group a")
    assert "\n" not in line


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", TRACE.upper(), TRACE + "\n", f"{TRACE}'*/ select 1 --", TRACE.replace("00-", "ff-", 1)),
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01",
    ],
)
def test_what_is_no_trace_goes_nowhere(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A header or a variable that is no traceparent is not passed on, least of all into SQL."""
    monkeypatch.setenv(traces.VARIABLE, TRACE)
    with traces.of_request(text):
        assert (traces.current(), traces.comment()) == (None, "")
    monkeypatch.setenv(traces.VARIABLE, text)
    assert (traces.current(), traces.comment()) == (None, "")


def test_a_trace_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the process, and in a request that of the request; in the log as two fields."""
    monkeypatch.setenv(traces.VARIABLE, TRACE)
    assert traces.comment() == f"/*traceparent='{TRACE}'*/ "
    found = json.loads(JsonLine().format(record("said")))
    assert (found["trace_id"], found["span_id"]) == tuple(TRACE.split("-")[1:3])
    with traces.of_request(None):
        assert "trace_id" not in json.loads(JsonLine().format(record("said")))
    assert traces.current() == TRACE
