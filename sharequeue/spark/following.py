"""How does a job go on working as records come, with the same Spark session and the same membership?

It runs until nothing is left to lease (`run.py`), waits until there is something, and runs again. Nothing is asked
again and again meanwhile: the service, which looks at the broker every two seconds, tells the state where the logs
end, and the state notifies whoever listens (`sharequeue.consumer.listening`). Then one look at Postgres says whether
a run would lease anything; only then Spark has something to do. A look every half minute is the net below that.

An outage does not end it: a database, broker, service or output that does not answer is waited out, also before it
has begun (`starting.py`). What a person has to mend does, as it ends a run.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from sharequeue.consumer.listening import Listener
from sharequeue.database import Database
from sharequeue.errors import (
    FencedMemberEpoch,
    FencedStateEpoch,
    InvalidRecordState,
    ShareError,
    UnknownMemberId,
    first_line,
)
from sharequeue.groups.membership import Membership
from sharequeue.kafka.topics import Topics
from sharequeue.settings import Settings
from sharequeue.spark.contract import RegistryNotAvailable
from sharequeue.spark.interrupts import interruptible
from sharequeue.spark.job import ShareGroupJob
from sharequeue.spark.leasing.budget import MAX_RECORDS
from sharequeue.spark.leasing.renewal import LockLost
from sharequeue.spark.output.reachable import OutputNotReachable
from sharequeue.spark.report import Progress, ProgressCallback, RunReport
from sharequeue.spark.run import run_rounds
from sharequeue.spark.session import spark_session
from sharequeue.spark.showing import Shown, Table
from sharequeue.spark.starting import is_mistake
from sharequeue.state import State
from sharequeue.state.waiting_work import GroupWork, work_of

__all__ = ["FollowReport", "follow_rounds"]

_log = logging.getLogger(__name__)

LOOK_SECONDS = 30.0
"""The longest time between two looks at what waits."""
UNHEARD_SECONDS = 2.0
"""The same where no notification arrives, because a pooler is in between."""
CHECK_SECONDS = 1.0
"""How often the membership is looked at meanwhile; that asks nobody."""
JOIN_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 30.0
"""Between two attempts during an outage; the first one is after a second."""

_NUMBERS = re.compile(r"\d+")

TAKEN = (FencedMemberEpoch, FencedStateEpoch, InvalidRecordState, UnknownMemberId)
"""What was leased is somebody else's now, or nobody's: an offset was set back, or the member had expired."""

OnRun = Callable[[RunReport], None]


@dataclass(frozen=True, slots=True)
class FollowReport(Shown):
    """What was done until following ended, in records."""

    group: str
    runs: int = 0
    """Runs that leased something, wrote dead letters, or found that records were lost."""
    rounds: int = 0
    leased: int = 0
    accepted: int = 0
    released: int = 0
    rejected: int = 0
    unacknowledged: int = 0
    lost: int = 0
    seconds: float = 0.0

    def table(self) -> Table:
        """Return its figures."""
        names = ("runs", "rounds", "leased", "accepted", "released", "rejected", "unacknowledged", "lost")
        title = f"followed group {self.group} for {self.seconds:,.0f} s"
        return Table(title, names, [[getattr(self, name) for name in names]])

    def after(self, run: RunReport) -> FollowReport:
        """Return the sums with one run more."""
        return replace(
            self,
            runs=self.runs + 1,
            rounds=self.rounds + len(run.rounds),
            leased=self.leased + run.leased,
            accepted=self.accepted + run.accepted,
            released=self.released + run.released,
            rejected=self.rejected + run.rejected,
            unacknowledged=self.unacknowledged + run.unacknowledged,
            lost=self.lost + run.lost,
        )


def follow_rounds(
    settings: Settings,
    job: ShareGroupJob,
    *,
    membership: Membership,
    database: Database,
    topics: Topics,
    spark: SparkSession | None = None,
    max_rounds: int | None = None,
    max_records: int = MAX_RECORDS,
    max_bytes: int | None = None,
    max_seconds: float | None = None,
    only: Collection[str] | None = None,
    replaces: str | None = None,
    progress: ProgressCallback = lambda progress: None,
    on_run: OnRun = lambda report: None,
) -> FollowReport:
    """Join, and run `job` whenever there is something to lease; return the sums.

    It ends after `max_rounds` rounds or `max_seconds`, else only by a signal or an error. The other arguments are
    those of `run_rounds`. `on_run` gets the report of each run that did something, when it has ended.

    An outage is waited out, from the beginning on, and so is a Spark job that failed while the session lives: its
    records come again. Without `spark` a session is made once the servers have answered.
    Raises what `is_mistake` calls one, where it has not begun yet; what else `run_rounds` raises, such as
    HandlerError, MostFailed and SinkRefused; and SparkNotReady where the session has ended.
    """
    woken = threading.Event()
    listener = Listener(database, job.group, woken.set)
    state, session = State(database), spark

    def begin() -> None:
        nonlocal session
        topics.require(job.topics)
        state.administration.check_cluster(topics.cluster_id())
        session = session or spark_session(settings, f"pipeline of {job.group}")

    def run(
        again: ShareGroupJob, rounds: int | None, seconds: float | None, tell: ProgressCallback
    ) -> RunReport:
        assert session is not None  # noqa: S101  (it has begun)
        return run_rounds(
            settings,
            again,
            membership=membership,
            state=state,
            topics=topics,
            spark=session,
            max_rounds=rounds,
            max_records=max_records,
            max_bytes=max_bytes,
            max_seconds=seconds,
            only=only,
            replaces=replaces,
            progress=tell,
        )

    follower = Follower(
        job,
        membership,
        run,
        look=lambda: work_of(database, job.group),
        woken=woken,
        hears=lambda: listener.active,
        begin=begin,
        mistaken=lambda error: is_mistake(error, settings),
        lost=lambda: state.figures.lost_topics(job.group, job.topics),
        chosen=frozenset(only) if only else None,
        progress=progress,
        on_run=on_run,
    )
    with interruptible():
        listener.start()
        try:
            return follower.go(max_rounds, max_seconds)
        finally:
            listener.stop()


Run = Callable[[ShareGroupJob, int | None, float | None, ProgressCallback], RunReport]
"""Runs a job for so many rounds and seconds at most."""


@dataclass(slots=True)
class Follower:
    """The loop: look, run, wait."""

    job: ShareGroupJob
    membership: Membership
    run: Run
    look: Callable[[], GroupWork]
    woken: threading.Event
    hears: Callable[[], bool]
    """Whether notifications arrive."""
    begin: Callable[[], None] = lambda: None
    """Asks each server once, before the member joins."""
    mistaken: Callable[[Exception], bool] = lambda error: False
    """Whether nobody is to wait for the end of an outage before the member has joined."""
    lost: Callable[[], Mapping[str, ShareError]] = dict
    """Topics that were deleted or made again, with the error that says so."""
    chosen: frozenset[str] | None = None
    progress: ProgressCallback = lambda progress: None
    on_run: OnRun = lambda report: None
    _done: FollowReport = field(init=False)
    _lag: int | None = field(init=False, default=None)
    _begun: bool = field(init=False, default=False)
    """Whether it has joined once."""
    _joined: bool = field(init=False, default=False)
    _lost: Mapping[str, ShareError] = field(init=False, default_factory=dict)
    _ran: bool = field(init=False, default=False)
    _in_vain: tuple[object, float] | None = field(init=False, default=None)
    """What a run could do nothing about, and until when it is not tried again."""
    _outage: str | None = field(init=False, default=None)
    _pause: float = field(init=False, default=0.0)
    _began_at: float = field(init=False, default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._done = FollowReport(self.job.group)

    def go(self, max_rounds: int | None, max_seconds: float | None) -> FollowReport:
        """Go on until a bound is reached; return the sums."""
        ends_at = None if max_seconds is None else self._began_at + max_seconds
        while True:
            rounds = None if max_rounds is None else max_rounds - self._done.rounds
            seconds = None if ends_at is None else ends_at - time.monotonic()
            if (rounds is not None and rounds <= 0) or (seconds is not None and seconds <= 0):
                return replace(self._done, seconds=time.monotonic() - self._began_at)
            try:
                self._stay_member()
                self.woken.clear()
                found = self._worth_a_run()
                if found is not None:
                    self._run(found, rounds, seconds)
            except Exception as error:
                if not self._can_wait(error):
                    raise
                self._wait_out(error, seconds)
                continue
            if self._outage is not None:
                _log.warning("group %s: works again", self.job.group)
            self._outage, self._pause = None, 0.0
            if found is None:
                self._wait(seconds)

    def _worth_a_run(self) -> object | None:
        """Return what a run would find, to compare; None where it would find nothing. The first run is always worth
        it: it tries the handler and the output.
        """
        work = self.look()
        lost = self.lost()
        for topic in lost.keys() - self._lost.keys():
            _log.warning("group %s: %s", self.job.group, lost[topic])
        self._lost = lost
        self._lag = sum(each.lag for each in work.share_partitions if each.topic in self.job.topics)
        mine = {
            (each.topic, each.partition)
            for each in self.membership.assignment
            if each.topic in self.job.topics and (self.chosen is None or str(each) in self.chosen)
        }
        parts = [each for each in work.share_partitions if (each.topic, each.partition) in mine]
        letters = work.pending_rows + sum(each.unwritten_letters for each in work.share_partitions)
        if self._ran and not letters and not any(each.ready_records for each in parts):
            return None
        found = (letters, tuple((each.spso, each.speo, each.log_end, each.ready_records) for each in parts))
        if self._in_vain is not None and self._in_vain[0] == found and time.monotonic() < self._in_vain[1]:
            return None
        return found

    def _run(self, found: object, rounds: int | None, seconds: float | None) -> None:
        before = self._done.rounds

        def tell(progress: Progress) -> None:
            self.progress(replace(progress, round=before + progress.round))

        report = self.run(self.job, rounds, seconds, tell)
        if not self._ran:
            # It has worked on no records; once is enough.
            self._ran, self.job = True, replace(self.job, try_empty=False)
        self._lag = report.lag
        letters = report.dead_letters
        if not report.rounds and not report.lost and not (letters and letters.written):
            self._in_vain = found, time.monotonic() + LOOK_SECONDS
            return
        self._in_vain = None
        self._done = self._done.after(report)
        self.on_run(report)

    def _wait(self, seconds: float | None) -> None:
        """Wait until somebody wakes us, the membership changes, or it is time to look."""
        done = self._done
        passed = time.monotonic() - self._began_at
        self.progress(Progress(done.rounds, "waiting", 0, done.leased, passed, self._lag))
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
        """Join, also again where the group no longer knows us. Raises the error of a refusal."""
        if self._joined and not self.membership.lost.is_set():
            return
        self._joined = False  # `join` forgets that we were lost, also when it fails
        if not self._begun:
            self.begin()
        self.membership.join(timeout=JOIN_SECONDS)
        if self._begun:
            _log.warning("group %s: member %s has joined again", self.job.group, self.membership.member_id)
        self._begun = self._joined = True

    def _can_wait(self, error: Exception) -> bool:
        """Return whether it may be over in a while, without anybody mending the job or its session."""
        if not self._begun and self.mistaken(error):
            return False
        if isinstance(error, ShareError):
            return error.retriable or isinstance(error, TAKEN)
        if isinstance(error, DBAPIError):
            return error.connection_invalidated or isinstance(error, OperationalError | InterfaceError)
        # A handler that cannot be planned is wrong on all records.
        if isinstance(error, AnalysisException):
            return False
        outages = PoolTimeout | LockLost | OutputNotReachable | RegistryNotAvailable
        return isinstance(error, outages | PySparkException | Py4JError)

    def _wait_out(self, error: Exception, seconds: float | None) -> None:
        reason = first_line(error)
        news = _NUMBERS.sub("", reason)  # how often and how long is said anew each time
        if self._outage != news:
            _log.warning("group %s: %s; trying again until it works", self.job.group, reason.rstrip("."))
        self._outage = news
        self._pause = min(LONGEST_PAUSE_SECONDS, max(1.0, 2 * self._pause))
        # What wakes us now is no reason to hurry. By the clock: a signal ends it.
        time.sleep(self._pause if seconds is None else min(self._pause, max(0.0, seconds)))
