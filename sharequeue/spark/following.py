"""Run a job continuously as records arrive, with one Spark session and one membership.

It runs until nothing is left to lease (`run.py`), waits until there are records, and runs again. The broker is not
polled meanwhile: the service checks it every two seconds and writes the log ends to the state, and the state notifies
its listeners (`sharequeue.state.listening`). Then one query of Postgres shows whether a run would lease anything;
only then does Spark work. A check every half minute covers lost notifications.

An outage does not end it: it waits for a database, broker, service or output that does not respond, also at the
start, because after a reboot everything starts at once. An error that needs a user's action ends it, as it ends a
run; at the start also wrong settings (`starting`), because waiting would hide them.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pyspark.errors import AnalysisException
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from sharequeue.database.sqlstates import outage_reason
from sharequeue.domain.errors import (
    FencedMemberEpoch,
    FencedStateEpoch,
    InvalidRecordState,
    ShareError,
    UnknownMemberId,
    first_line,
)
from sharequeue.domain.names import finite
from sharequeue.domain.results.runs import FollowReport, RunReport
from sharequeue.domain.settings import Settings
from sharequeue.groups.membership import Membership
from sharequeue.outputs.errors import OutputNotReachable
from sharequeue.reports.waiting_work import GroupWork, work_of
from sharequeue.spark.handler import RegistryNotAvailable
from sharequeue.spark.job import RunBounds, ShareGroupJob
from sharequeue.spark.job_errors import SPARK_ERRORS, cause_of
from sharequeue.spark.leasing.crashes import ProcessKilled
from sharequeue.spark.leasing.group import OpenedGroup
from sharequeue.spark.leasing.renewal import LockLost
from sharequeue.spark.progress import Progress, ProgressCallback
from sharequeue.spark.run import run_rounds
from sharequeue.spark.signals import interruptible
from sharequeue.spark.starting import is_mistake
from sharequeue.state.listening import Listener

__all__ = ["follow_rounds"]

_log = logging.getLogger(__name__)

LOOK_SECONDS = 30.0
"""The longest time between two checks for waiting records."""
UNHEARD_SECONDS = 2.0
"""The longest time between two checks where a connection pooler blocks notifications."""
CHECK_SECONDS = 1.0
"""How often the membership is checked while waiting; this needs no request."""
JOIN_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 30.0
"""The longest time between two attempts during an outage; the first one is after a second."""

_NUMBERS = re.compile(r"\d+")

TAKEN = (FencedMemberEpoch, FencedStateEpoch, InvalidRecordState, UnknownMemberId)
"""Errors for leases that are no longer held by this member: an offset was reset, or the member expired."""

OnRun = Callable[[RunReport], None]


def follow_rounds(
    begin: Callable[[], OpenedGroup],
    settings: Settings,
    job: ShareGroupJob,
    membership: Membership,
    bounds: RunBounds,
    progress: ProgressCallback,
    on_run: OnRun,
) -> FollowReport:
    """Join, and run `job` whenever there is something to lease; return the sums. `begin` opens what runs need.

    It ends after `max_rounds` rounds or `max_seconds`, otherwise only by a signal or an error. It waits for the end
    of an outage, also at the start, and continues after a Spark job that failed while the session lives: the records
    are redelivered. At the start, raises errors for which `is_mistake` is true. Raises the other errors of a run,
    such as HandlerError, MostFailed and SinkRefused, and SparkNotReady when the session has ended.
    """
    woken = threading.Event()
    with interruptible(), ExitStack() as stack:
        follower = Follower(job, membership, woken=woken, progress=progress, on_run=on_run)

        def opened() -> None:
            at = begin()
            listener = Listener(at.state.database, job.group, woken.set)
            listener.start()
            stack.callback(listener.stop)
            follower.run = partial(
                run_rounds,
                at.settings,
                membership=membership,
                state=at.state,
                topics=at.topics,
                spark=at.spark,
            )
            follower.look = lambda: work_of(at.state.database, job.group)
            follower.hears = lambda: listener.active
            follower.lost = lambda: at.state.figures.lost_topics(job.group, job.topics)

        follower.begin = opened
        follower.mistaken = lambda error: is_mistake(error, settings)
        return follower.go(bounds)


def _not_begun(*_: object, **__: object) -> Any:
    raise RuntimeError("following has not begun")


@dataclass(slots=True)
class Follower:
    """The loop of check, run and wait."""

    job: ShareGroupJob
    membership: Membership
    run: Callable[..., RunReport] = _not_begun
    """Called with the job, the remaining bounds and `progress`."""
    look: Callable[[], GroupWork] = _not_begun
    woken: threading.Event = field(default_factory=threading.Event)
    hears: Callable[[], bool] = lambda: False
    """True while notifications arrive."""
    begin: Callable[[], None] = lambda: None
    """A function that opens what runs need, before the member joins. It is called until it succeeds."""
    mistaken: Callable[[Exception], bool] = lambda error: False
    """Whether an error before the member has joined is raised at once, although it may pass."""
    lost: Callable[[], Mapping[str, ShareError]] = dict
    """A function that returns the topics that were deleted or recreated, with their errors."""
    progress: ProgressCallback = lambda progress: None
    on_run: OnRun = lambda report: None
    _done: FollowReport = field(init=False)
    _worked: float = field(init=False, default=0.0)
    """Seconds of the rounds."""
    _lag: int | None = field(init=False, default=None)
    _opened: bool = field(init=False, default=False)
    _begun: bool = field(init=False, default=False)
    """Whether the member has joined once."""
    _joined: bool = field(init=False, default=False)
    _lost: Mapping[str, ShareError] = field(init=False, default_factory=dict)
    _ran: bool = field(init=False, default=False)
    _in_vain: tuple[object, float] | None = field(init=False, default=None)
    """Work that a run could not do, and until when it is not tried again."""
    _outage: str | None = field(init=False, default=None)
    _pause: float = field(init=False, default=0.0)
    _began_at: float = field(init=False, default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._done = FollowReport(group=self.job.group)

    def go(self, bounds: RunBounds) -> FollowReport:
        """Continue until a bound is reached; return the sums."""
        most, seconds = bounds.get("max_rounds"), bounds.get("max_seconds")
        ends_at = None if seconds is None else self._began_at + finite("max_seconds", seconds)
        left = bounds.copy()
        while True:
            rounds = left["max_rounds"] = None if most is None else most - self._done.rounds
            seconds = left["max_seconds"] = None if ends_at is None else ends_at - time.monotonic()
            if (rounds is not None and rounds <= 0) or (seconds is not None and seconds <= 0):
                return replace(self._done, seconds=time.monotonic() - self._began_at)
            try:
                self._stay_member()
                self.woken.clear()
                found = self._worth_a_run()
                if found is not None:
                    self._run(found, left)
                    # It has claimed the group; it does not reclaim it from a pipeline that claims it later.
                    left["replaces"] = None
            except Exception as error:
                if not _can_wait(error) or (not self._begun and self.mistaken(error)):
                    raise
                self._wait_out(error, seconds)
                continue
            if self._outage is not None:
                _log.warning("group %s: recovered", self.job.group)
            self._outage, self._pause = None, 0.0
            if found is None:
                self._wait(seconds)

    def _worth_a_run(self) -> object | None:
        """Return the work that a run would find, as a value to compare; None if there is none. The first run is
        always made, because it tests the handler and the output.
        """
        work = self.look()
        lost = self.lost()
        for topic in lost.keys() - self._lost.keys():
            _log.warning("group %s: %s", self.job.group, lost[topic])
        self._lost = lost
        self._lag = sum(each.lag for each in work.share_partitions if each.topic in self.job.topics)
        mine = {(each.topic, each.partition) for each in self.membership.assignment}
        parts = [
            each
            for each in work.share_partitions
            if each.topic in self.job.topics and (each.topic, each.partition) in mine
        ]
        letters = work.pending_rows + sum(each.unwritten_letters for each in work.share_partitions)
        if self._ran and not letters and not any(each.ready_records for each in parts):
            return None
        found = (letters, tuple((each.spso, each.speo, each.log_end, each.ready_records) for each in parts))
        if self._in_vain is not None and self._in_vain[0] == found and time.monotonic() < self._in_vain[1]:
            return None
        return found

    def _run(self, found: object, bounds: RunBounds) -> None:
        before = self._done.rounds

        def report_progress(progress: Progress) -> None:
            self.progress(replace(progress, round=before + progress.round))

        report = self.run(self.job, progress=report_progress, **bounds)
        self._ran = True
        self._lag = report.lag
        letters = report.dead_letters
        if not report.rounds and not report.lost and not (letters and letters.written):
            self._in_vain = found, time.monotonic() + LOOK_SECONDS
            return
        self._in_vain = None
        self._done = self._done.after(report)
        self._worked += report.seconds - report.start_seconds
        self.on_run(report)

    def _wait(self, seconds: float | None) -> None:
        """Wait until a notification, a change of the membership, or the time of the next check."""
        so_far = self._done
        self.progress(Progress(so_far.rounds, "waiting", 0, so_far.done, self._worked, self._lag))
        assigned = self.membership.assignment
        since = time.monotonic()
        while not self.woken.wait(CHECK_SECONDS):
            waited = time.monotonic() - since
            longest = LOOK_SECONDS if self.hears() else UNHEARD_SECONDS
            if waited >= (longest if seconds is None else min(longest, seconds)):
                return
            if self.membership.lost.is_set() or self.membership.assignment != assigned:
                return

    def _stay_member(self) -> None:
        """Join, also again if the group no longer has this member. Raises the error of a refusal."""
        if self._joined and not self.membership.lost.is_set():
            return
        self._joined = False  # `join` clears the lost state, even when it fails
        if not self._opened:
            self.begin()
            self._opened = True
        self.membership.join(timeout=JOIN_SECONDS)
        if self._begun:
            _log.warning("group %s: member %s has joined again", self.job.group, self.membership.member_id)
        self._begun = self._joined = True

    def _wait_out(self, error: Exception, seconds: float | None) -> None:
        reason = cause_of(error) if isinstance(error, SPARK_ERRORS) else first_line(error)
        if isinstance(error, OperationalError | InterfaceError) and error.orig is not None:
            reason = outage_reason(error)
        news = _NUMBERS.sub("", reason)  # numbers of attempts and seconds differ each time
        if self._outage != news:
            _log.warning("group %s: %s; trying again until it works", self.job.group, reason.rstrip("."))
        self._outage = news
        self._pause = min(LONGEST_PAUSE_SECONDS, max(1.0, 2 * self._pause))
        # Ignore notifications during this wait, which a signal still ends.
        time.sleep(self._pause if seconds is None else min(self._pause, max(0.0, seconds)))


def _can_wait(error: Exception) -> bool:
    """Return whether the error may pass without a change to the job or its session."""
    if isinstance(error, ShareError):
        return error.retriable or isinstance(error, TAKEN)
    if isinstance(error, DBAPIError):
        return error.connection_invalidated or isinstance(error, OperationalError | InterfaceError)
    # A handler that cannot be planned fails on all records.
    if isinstance(error, AnalysisException):
        return False
    outages = PoolTimeout | LockLost | OutputNotReachable | ProcessKilled | RegistryNotAvailable
    return isinstance(error, (outages, *SPARK_ERRORS))
