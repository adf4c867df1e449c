"""Run a job continuously as records arrive, with one Spark session and one membership.

It runs until nothing is left to lease (`run.py`), waits until there are records, and runs again. The broker is not
polled meanwhile: the service checks it every two seconds and writes the log ends to the state, and the state notifies
its listeners (`sharequeue.state.listening`). Then one query of Postgres shows whether a run would lease anything;
only then does Spark work. A check every half minute covers lost notifications.

An outage does not end it: it waits for a database, broker, service or output that does not respond, also at the
start, because after a reboot everything starts at once. An error that needs a user's action ends it, as it ends a
run. At the start these include an unknown host name, a login or database that Postgres refuses, a topic that does not
exist, and topics that were all deleted (`is_mistake`): waiting would hide them.
"""

from __future__ import annotations

import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

import sqlalchemy as sa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from sharequeue.database import Database
from sharequeue.database.logins import is_login_refused
from sharequeue.groups.membership import Membership
from sharequeue.kafka.topics import Topics
from sharequeue.reports.waiting_work import GroupWork, work_of
from sharequeue.spark.handler import RegistryNotAvailable
from sharequeue.spark.job import ShareGroupJob
from sharequeue.spark.leasing.budget import MAX_RECORDS
from sharequeue.spark.leasing.group import living_topics
from sharequeue.spark.leasing.renewal import LockLost
from sharequeue.spark.output.reachable import OutputNotReachable
from sharequeue.spark.progress import Progress, ProgressCallback
from sharequeue.spark.report import RunReport
from sharequeue.spark.run import run_rounds
from sharequeue.spark.session import spark_session
from sharequeue.spark.signals import interruptible
from sharequeue.spark.table import Shown, Table
from sharequeue.state import State
from sharequeue.state.listening import Listener
from sharequeue.words.errors import (
    BrokerNotAvailable,
    CoordinatorNotAvailable,
    FencedMemberEpoch,
    FencedStateEpoch,
    InvalidRecordState,
    ShareError,
    UnknownMemberId,
    UnknownTopicId,
    UnknownTopicOrPartition,
    first_line,
)
from sharequeue.words.names import finite
from sharequeue.words.settings import Settings

__all__ = ["FollowReport", "follow_rounds"]

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


@dataclass(frozen=True, slots=True)
class FollowReport(Shown):
    """The totals of all runs until following ended, in records."""

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
        """Return the figures as a table."""
        names = ("runs", "rounds", "leased", "accepted", "released", "rejected", "unacknowledged", "lost")
        title = f"followed group {self.group} for {self.seconds:,.0f} s"
        return Table(title, names, [[getattr(self, name) for name in names]])

    def after(self, run: RunReport) -> FollowReport:
        """Return the sums with one more run."""
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

    It ends after `max_rounds` rounds or `max_seconds`, otherwise only by a signal or an error. The other arguments
    are those of `Pipeline.run`. `on_run` gets the report of each run that did something, when it has ended.

    It waits for the end of an outage, also at the start, and continues after a Spark job that failed while the
    session lives: the records are redelivered. Without `spark` a session is made once the servers have responded. At
    the start, raises errors for which `is_mistake` is true. Raises the other errors of a run, such as HandlerError,
    MostFailed and SinkRefused; SparkNotReady when the session has ended; and TypeError or ValueError for a
    `max_seconds` that is not a finite number.
    """
    max_seconds = None if max_seconds is None else finite("max_seconds", max_seconds)
    woken = threading.Event()
    listener = Listener(database, job.group, woken.set)
    state, session = State(database), spark
    before = replaces

    def begin() -> None:
        nonlocal session
        living_topics(topics, state, job.group, job.topics)
        state.administration.check_cluster(topics.cluster_id())
        session = session or spark_session(settings, f"pipeline of {job.group}")

    def run(
        again: ShareGroupJob, rounds: int | None, seconds: float | None, on_progress: ProgressCallback
    ) -> RunReport:
        nonlocal before
        assert session is not None  # noqa: S101  (it has begun)
        report = run_rounds(
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
            replaces=before,
            progress=on_progress,
        )
        # It has claimed the group; it does not reclaim it from a pipeline that claims it later.
        before = None
        return report

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
"""A function that runs a job for at most so many rounds and seconds."""


@dataclass(slots=True)
class Follower:
    """The loop of check, run and wait."""

    job: ShareGroupJob
    membership: Membership
    run: Run
    look: Callable[[], GroupWork]
    woken: threading.Event
    hears: Callable[[], bool]
    """True while notifications arrive."""
    begin: Callable[[], None] = lambda: None
    """A function that sends one request to each server, before the member joins."""
    mistaken: Callable[[Exception], bool] = lambda error: False
    """Return whether an error before the member has joined is raised at once, and not waited out."""
    lost: Callable[[], Mapping[str, ShareError]] = dict
    """A function that returns the topics that were deleted or recreated, with their errors."""
    chosen: frozenset[str] | None = None
    progress: ProgressCallback = lambda progress: None
    on_run: OnRun = lambda report: None
    _done: FollowReport = field(init=False)
    _lag: int | None = field(init=False, default=None)
    _begun: bool = field(init=False, default=False)
    """True once the member has joined."""
    _joined: bool = field(init=False, default=False)
    _lost: Mapping[str, ShareError] = field(init=False, default_factory=dict)
    _ran: bool = field(init=False, default=False)
    _in_vain: tuple[object, float] | None = field(init=False, default=None)
    """Work that a run could not do, and until when it is not tried again."""
    _outage: str | None = field(init=False, default=None)
    _pause: float = field(init=False, default=0.0)
    _began_at: float = field(init=False, default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._done = FollowReport(self.job.group)

    def go(self, max_rounds: int | None, max_seconds: float | None) -> FollowReport:
        """Continue until a bound is reached; return the sums."""
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
        """Return the work that a run would find, as a value to compare; None if there is none. The first run is
        always made, because it tests the handler and the output.
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

        def report_progress(progress: Progress) -> None:
            self.progress(replace(progress, round=before + progress.round))

        report = self.run(self.job, rounds, seconds, report_progress)
        if not self._ran:
            # It has handled no records; one such run is enough.
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
        """Wait until a notification, a change of the membership, or the time of the next check."""
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
        """Join, or rejoin if the group no longer has this member. Raises the error of a refusal."""
        if self._joined and not self.membership.lost.is_set():
            return
        self._joined = False  # `join` clears the lost state, even when it fails
        if not self._begun:
            self.begin()
        self.membership.join(timeout=JOIN_SECONDS)
        if self._begun:
            _log.warning("group %s: member %s has joined again", self.job.group, self.membership.member_id)
        self._begun = self._joined = True

    def _can_wait(self, error: Exception) -> bool:
        """Return whether the error may pass without a change to the job or its session."""
        if not self._begun and self.mistaken(error):
            return False
        if isinstance(error, ShareError):
            return error.retriable or isinstance(error, TAKEN)
        if isinstance(error, DBAPIError):
            return error.connection_invalidated or isinstance(error, OperationalError | InterfaceError)
        # A handler that cannot be planned fails on all records.
        if isinstance(error, AnalysisException):
            return False
        outages = PoolTimeout | LockLost | OutputNotReachable | RegistryNotAvailable
        return isinstance(error, outages | PySparkException | Py4JError)

    def _wait_out(self, error: Exception, seconds: float | None) -> None:
        reason = first_line(error)
        if isinstance(error, OperationalError | InterfaceError) and error.orig is not None:
            reason = f"the database does not answer: {first_line(error.orig)}"
        news = _NUMBERS.sub("", reason)  # numbers of attempts and seconds differ each time
        if self._outage != news:
            _log.warning("group %s: %s; trying again until it works", self.job.group, reason.rstrip("."))
        self._outage = news
        self._pause = min(LONGEST_PAUSE_SECONDS, max(1.0, 2 * self._pause))
        # Ignore notifications during this wait, which a signal still ends.
        time.sleep(self._pause if seconds is None else min(self._pause, max(0.0, seconds)))


_UNKNOWN = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))


def is_mistake(error: Exception, settings: Settings) -> bool:
    """Return whether an error means that a setting is wrong, not that a server is unavailable."""
    if isinstance(error, UnknownTopicOrPartition | UnknownTopicId):
        return True
    if isinstance(error, DBAPIError):
        return is_login_refused(error) or _unknown(_hosts_of(settings.database_url))
    if isinstance(error, BrokerNotAvailable):
        servers = settings.bootstrap_servers.split(",")
        return _unknown([urlsplit(f"//{each.rpartition('://')[2].strip()}").hostname for each in servers])
    if isinstance(error, CoordinatorNotAvailable):
        return _unknown([urlsplit(settings.service.url).hostname])
    return False


def _hosts_of(url: str) -> list[str | None]:
    """Return the hosts of a Postgres URL: one, several from `host=`, or the folder of a socket."""
    parsed = sa.make_url(url)
    named = parsed.query.get("host", ())
    several = (named,) if isinstance(named, str) else named
    hosts = [host.strip("[]") if host.startswith("[") else host.partition(":")[0] for host in several]
    return [parsed.host, *(None if host.startswith("/") else host for host in hosts)]


def _unknown(hosts: Sequence[str | None]) -> bool:
    """Return whether there are host names and none of them is known. A lookup without a response does not count as
    unknown.
    """
    named = [host for host in hosts if host]
    return bool(named) and not any(map(_is_known, named))


def _is_known(host: str) -> bool:
    try:
        socket.getaddrinfo(host, None)
    except socket.gaierror as error:
        return error.errno not in _UNKNOWN
    except UnicodeError:  # not a name that a host can have
        return False
    return True
