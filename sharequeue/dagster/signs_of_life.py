"""Show in Dagster that the process of a run is alive, and read that.

A run whose machine goes down keeps its status: Dagster's default launcher cannot see that its process is gone. So a
run that has opened the state of share groups adds an event to its log every 30 s until it closes the state. Events
are only added, so this changes nothing that others write, as a tag would. Between opening and closing, a log without
a new event means that the process is gone. A process that is only stopped would be judged like one that is gone; that
is harmless, because its locks lapse, too.

An event that is ahead of the clock is from before the clock was set back. It does not show whether the process is
alive: the next event of a live one is up to 30 s away, and the clock catches up with a dead one much later. So a
check that finds such an event adds an event, and the silence counts from there.
"""

import threading
import time
from contextlib import suppress
from dataclasses import dataclass

import dagster as dg

from sharequeue.dagster.clocks import is_ahead

AT_WORK = "This run is at work on a share group."
CLOSED = "This run has finished its work on a share group."
CLOCK_SET_BACK = (
    "The last event of this run is in the future: the clock was set back. If no other one follows, it is judged from "
    "now on."
)
SECONDS_BETWEEN = 30.0
GONE_AFTER_SECONDS = 120.0
"""A process without an event for this time is gone: it has left out four."""
_MOST_EVENTS = 20
"""The latest engine events of a run to examine: other events are few while a step is at work."""


class SignsOfLife:
    """Adds an event when a run opens the state, every 30 s, and when it closes it.

    A run never fails because of them: while Dagster's storage is away, the next event is another attempt.
    """

    def __init__(self, instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
        self._instance, self._run = instance, run
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="signs-of-life", daemon=True)

    def begin(self) -> None:
        """Add the first event, and go on in a thread."""
        self._report(AT_WORK)
        self._thread.start()

    def end(self) -> None:
        """Stop the thread, and add the last event."""
        self._ends.set()
        self._thread.join()
        self._report(CLOSED)

    def _beat(self) -> None:
        while not self._ends.wait(SECONDS_BETWEEN):
            self._report(AT_WORK)

    def _report(self, message: str) -> None:
        with suppress(Exception):
            self._instance.report_engine_event(message, self._run)


@dataclass(frozen=True, slots=True)
class Sign:
    """The last sign of life of a run."""

    is_open: bool
    """Whether the run is between opening and closing the state of share groups."""
    seconds_ago: float

    @property
    def is_gone(self) -> bool:
        """Whether the process of the run is gone."""
        return self.is_open and self.seconds_ago > GONE_AFTER_SECONDS


def last_sign(instance: dg.DagsterInstance, run: dg.DagsterRun) -> Sign | None:
    """Return the last sign of life of a run; None if it has never opened the state of share groups."""
    events = instance.get_records_for_run(
        run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT, limit=_MOST_EVENTS, ascending=False
    ).records
    latest: float | None = None
    for record in events:
        event = record.event_log_entry.dagster_event
        if event is None or event.message not in (AT_WORK, CLOSED, CLOCK_SET_BACK):
            continue
        latest = latest or record.event_log_entry.timestamp
        if event.message != CLOCK_SET_BACK:
            return Sign(event.message == AT_WORK, seconds_since(instance, run, latest))
    return None


def seconds_since(instance: dg.DagsterInstance, run: dg.DagsterRun, stored: float) -> float:
    """Return the seconds since an event of a run that was stored at this time (Unix seconds), 0 or more.

    If that is in the future, add an event to the run's log, from which on it can be judged.
    """
    now = time.time()
    if is_ahead(stored, now):
        instance.report_engine_event(CLOCK_SET_BACK, run)
    return max(0.0, now - stored)


__all__ = ["AT_WORK", "CLOSED", "GONE_AFTER_SECONDS", "Sign", "SignsOfLife", "last_sign", "seconds_since"]
