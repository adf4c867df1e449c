"""Run a share group's job through its topics, round by round.

Each round requests the log ends from the broker, acquires within the budget, reads exactly the leased records,
handles and writes them, reads the output back, and acknowledges each lease accordingly (`rounds.py`). The run ends
when there is nothing left to acquire. Locks are renewed meanwhile (`leasing/renewal.py`); a lost lock stops the run
before it writes or acknowledges more. If a run ends early for any reason, its leases are given back at once. The
caller creates the member and runs the sweeps; dead letters are written at the end, unless a service writes
them (`dead_letters.py`).

The next round is leased and planned while the current one is written; it is written while the current one is read
back and acknowledged. So Spark is never idle. At most two rounds are held at any time.

- The handler is called in the run's own thread. A round is written, read back and acknowledged in a separate thread,
  one round after the other: no round is written or acknowledged before the previous one.
- The releases of a round are recorded before anything is leased after its acknowledgement. So a record is delivered
  at most `deliveries_per_run` times in a run.
- When a round fails, the work for the next one is cancelled. Both are given back. The records of the next round do
  not become suspects; it costs them a delivery only if a Spark task had run.
- The next round starts early only if that is useful and safe: `Round.may_be_followed`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from pyspark.sql import SparkSession
from pyspark.util import InheritableThread

from sharequeue.domain.errors import BrokerNotAvailable, InvalidTimestamp
from sharequeue.domain.names import finite, whole_number
from sharequeue.domain.settings import Settings
from sharequeue.groups.configs import GroupConfigs
from sharequeue.kafka.reading import RecordReader
from sharequeue.kafka.topics import Topics
from sharequeue.spark.dead_letters import about_letters, write_letters_at_end
from sharequeue.spark.handler import HandlerError, MostFailed, RegistryNotAvailable, call_handler
from sharequeue.spark.job import ShareGroupJob
from sharequeue.spark.leasing.budget import MAX_RECORDS, Budget, RecordSizes
from sharequeue.spark.leasing.group import claim_group, living_topics, report_losses, why_nothing
from sharequeue.spark.leasing.isolation import Isolation
from sharequeue.spark.leasing.renewal import LeaseKeeper, LockLost, Member
from sharequeue.spark.output.manifest import refuse_gone
from sharequeue.spark.output.owners import SinkTaken, claim
from sharequeue.spark.output.reachable import OutputNotReachable, failed_by_store
from sharequeue.spark.output.shared_folder import refuse_unusable
from sharequeue.spark.progress import Progress, ProgressCallback
from sharequeue.spark.reading.frame import no_records
from sharequeue.spark.reading.options import ReaderOptions
from sharequeue.spark.reading.source import TopicSource, words_of_leaderless
from sharequeue.spark.report import RoundReport, RunReport, total
from sharequeue.spark.rounds import Round, Run, Stopped
from sharequeue.spark.signals import deferred, forget_interrupted_call
from sharequeue.spark.sinks.interface import SinkContext, SinkRefused
from sharequeue.spark.sinks.parquet import ParquetByLease
from sharequeue.spark.spark_jobs import JVM_GONE, Jobs, cancellable, ended_session_is_named, uncache
from sharequeue.state import State

__all__ = ["RoundReport", "RunReport", "run_rounds"]

_log = logging.getLogger(__name__)


def run_rounds(
    settings: Settings,
    job: ShareGroupJob,
    *,
    membership: Member,
    state: State,
    topics: Topics,
    spark: SparkSession,
    join: Callable[[], None] = lambda: None,
    max_rounds: int | None = None,
    max_records: int = MAX_RECORDS,
    max_bytes: int | None = None,
    max_seconds: float | None = None,
    replaces: str | None = None,
    progress: ProgressCallback = lambda progress: None,
) -> RunReport:
    """Process the member's assigned partitions until drained, out of rounds, or no further round may begin.

    The arguments and the errors are those of `Pipeline.run`, which creates the objects passed here. `join` lets the
    member join, if it has not: it is called when nothing has refused the run.
    """
    max_records = whole_number("max_records", max_records, 1)
    max_rounds = None if max_rounds is None else whole_number("max_rounds", max_rounds, 0)
    max_bytes = None if max_bytes is None else whole_number("max_bytes", max_bytes, 0)
    max_seconds = None if max_seconds is None else finite("max_seconds", max_seconds)
    configs = GroupConfigs.load(state.database, job.group)
    budget = Budget(max_records, configs.fetch_max_bytes if max_bytes is None else max_bytes)
    living_topics(topics, state, job.group, job.topics)
    claim_group(state, job.group, job.pipeline_name, replaces)
    with ended_session_is_named(spark, f"group {job.group}"), RecordReader(settings) as records:
        refuse_unusable(spark, settings, settings.output)
        source = TopicSource(
            settings, state, topics, spark, ReaderOptions.of(job.reader_options), job.headers
        )
        context = SinkContext(settings, state, spark, job.names)
        # Before the first lease, each may take minutes: killed runs have left something, the handler reads tables.
        progress(Progress(1, "opening the output", 0, 0, 0.0, None))
        # The sink is closed last, when no lease is held.
        with (job.destination or ParquetByLease()).open(context) as sink:
            run = Run(
                job,
                membership,
                source,
                context,
                sink,
                configs,
                budget,
                RecordSizes(records),
                progress,
                max_rounds,
            )
            refuse_gone(run.files, settings, state, job.names)
            try:
                reports, ended = _rounds(run, join, max_seconds)
            except Exception:
                write_letters_at_end(settings, state, configs)
                raise
    seconds = time.monotonic() - run.began_at
    # A member without an assignment does not know the partitions.
    leaderless = run.leaderless | {(sp.topic, sp.partition) for sp in run.lost_leader}
    drained, lost = ended and bool(run.assigned()), state.figures.lost_topics(job.group, job.topics)
    why: str | None = None
    if ended and not drained:
        why = (
            f"no partition of {', '.join(job.topics)} is assigned to this member of group {job.group}: it has not "
            "joined, or the service has not assigned any to it yet"
        )
    elif ended and (there := [topic for topic in job.topics if topic not in lost]):
        why = why_nothing(state, configs, there, run.assigned())
    why = " ".join(filter(None, (why, *map(str, lost.values()))))
    if leaderless:
        why = "; ".join(filter(None, (words_of_leaderless(leaderless), why)))
    if why and not reports:
        _log.warning("nothing was leased: %s", why)
    letters, about = write_letters_at_end(settings, state, configs), None
    # A warning of the writer becomes the remark on waiting letters.
    if letters is None or letters.warning is None:
        given_up = sum(each.rejected + each.exhausted for each in reports)
        about = about_letters(settings, state, configs, job.topics, given_up)
    lag, new = run.left()
    drained = drained and not new
    limited = (
        f"the run ended at its limit with lag {lag:,}: the next run continues" if lag and not ended else None
    )
    if ended and new:
        limited = f"records came at the end of the run, and the lag is {lag:,}: the next run continues"
    return RunReport(
        group=job.group,
        rounds=tuple(reports),
        lag=lag,
        drained=drained and not leaderless,
        leaderless=tuple(f"{topic}-{partition}" for topic, partition in sorted(leaderless)),
        seconds=seconds,
        remark="; ".join(filter(None, (limited, why, run.about_killers(), about, context.written.remark)))
        or None,
        dead_letters=letters,
        errors=() if run.failure is None else (run.failure,),
        **{**total(reports), "lost": report_losses(state, job.group, job.topics)},
    )


def _rounds(run: Run, join: Callable[[], None], max_seconds: float | None) -> tuple[list[RoundReport], bool]:
    """Run the rounds; return their reports, and whether nothing was left to lease."""
    source = run.source
    with cancellable(source.spark) as jobs, LeaseKeeper(source.state, run.member, jobs) as keeper:
        if run.job.try_empty:
            since = time.monotonic() - run.began_at
            run.progress(Progress(1, "calling the handler without records", 0, 0, since, None))
            _try_empty(run)
        with failed_by_store(source.settings.output):
            claim(run.files, source.settings, source.state, run.job.names)
        asked_at = time.monotonic()
        # Where a new group begins is decided now: a run that is refused must not decide it.
        join()
        run.began_at += time.monotonic() - asked_at  # a wait for an assignment is no work
        rounds = Rounds(run, keeper, run.isolation(keeper), jobs)
        return rounds.reports, rounds.work(max_seconds)


def _try_empty(run: Run) -> None:
    """Call the handler on no records before anything is leased: an error there would occur on all records."""
    records = no_records(run.source.spark)
    handled = call_handler(run.job.handler, records)
    run.fitting(handled).collect()
    uncache(records)


STOP_SECONDS = 30.0
"""Longest wait for the end of a round's cancelled work. Then its leases are given back while it still runs: the state
accepts no acknowledgement after that.
"""
NO_RECORDS_FAULT = (
    BrokerNotAvailable,
    HandlerError,
    InvalidTimestamp,
    MostFailed,
    OutputNotReachable,
    RegistryNotAvailable,
    SinkRefused,
    SinkTaken,
)
"""After these errors all records get their delivery back, even if tasks had run."""


class AtWork:
    """A round whose records are written, read back and acknowledged by a separate thread."""

    def __init__(self, of: Round, last: AtWork | None) -> None:
        self.round = of
        self.written = threading.Event()
        """Set when its Spark job has ended, with or without an error."""
        self.ended = threading.Event()
        """Set when all its work has ended: there is either a report or an error."""
        self.report: RoundReport | None = None
        self.error: BaseException | None = None
        self._last = last
        # A plain thread would not inherit the tags by which its jobs are cancelled.
        thread = InheritableThread(
            target=self._run, session=of.run.source.spark, name=f"round-{of.number}", daemon=True
        )
        thread.start()

    def _run(self) -> None:
        try:
            ended = self.round.write()
            self.written.set()
            if self._last is not None:
                self._last.ended.wait()
                if self._last.error is not None:
                    raise Stopped
            self.report = self.round.finish(ended)
        except BaseException as error:
            self.error = error
        finally:
            self._last = None
            self.ended.set()
            self.written.set()


class Rounds:
    """The rounds of one run, until there is nothing to lease, or no further round may begin."""

    def __init__(self, run: Run, keeper: LeaseKeeper, isolation: Isolation, jobs: Jobs) -> None:
        self.reports: list[RoundReport] = []
        self._run = run
        self._keeper = keeper
        self._isolation = isolation
        self._jobs = jobs
        self._at_work: list[AtWork] = []
        """The rounds that have not ended, in order: at most two."""
        self._begun: list[Round] = []
        """The rounds that may have DataFrames in Spark's cache."""

    def work(self, max_seconds: float | None) -> bool:
        """Run the rounds; return whether nothing was left to lease. Raises the error of a round."""
        try:
            while self._in_time(max_seconds) and self._one_more():
                if self._at_work and not self._at_work[0].round.may_be_followed():
                    self._first_ended()
                elif not self._began(max_seconds):
                    if not self._at_work:
                        return True
                    # Its releases, and the space that it frees in the window, may allow another lease.
                    self._first_ended()
            while self._at_work:
                self._first_ended()
        except BaseException as error:
            with deferred():
                if not isinstance(error, Exception):
                    forget_interrupted_call()
                self._cancel(self._at_work)
            raise
        finally:
            # A JVM that has ended has an empty cache.
            with suppress(*JVM_GONE):
                self._forget(*self._begun)
        return False

    def _forget(self, *rounds: Round) -> None:
        for each in rounds:
            each.forget()
        self._begun = [each for each in self._begun if each not in rounds]

    def _one_more(self) -> bool:
        return self._run.max_rounds is None or len(self.reports) + len(self._at_work) < self._run.max_rounds

    def _in_time(self, max_seconds: float | None) -> bool:
        return max_seconds is None or time.monotonic() - self._run.began_at < max_seconds

    def _began(self, max_seconds: float | None) -> bool:
        """Lease and plan a round, and start it after the previous write; return False if nothing was leased."""
        last = self._at_work[0] if self._at_work else None
        number = len(self.reports) + len(self._at_work) + 1
        following = Round(self._run, self._keeper, self._isolation, number)
        self._begun.append(following)
        with self._jobs.of_round(number):
            try:
                if not following.prepare(ahead=last is not None):
                    return False
            except LockLost:
                raise
            except Exception as error:
                # The previous round is not affected: it is acknowledged.
                self._give_back(error, following)
                while self._at_work:
                    self._first_ended()
                raise
            if last is not None:
                last.written.wait()
                if last.error is not None or not self._in_time(max_seconds):
                    ran = self._jobs.tasks_ran(number)
                    self._keeper.give_back(following.leases, cancelled=ran, refund=not ran)
                    self._forget(following)
                    self._first_ended()
                    return True
            # A signal between the start of its thread and its registration would leave a thread that nothing stops.
            with deferred():
                self._at_work.append(AtWork(following, last))
        if last is not None:
            self._first_ended()
        return True

    def _first_ended(self) -> None:
        """Wait for the end of a round. Raises its error; in that case the next round is cancelled, and both are given
        back.
        """
        first, *others = self._at_work
        first.ended.wait()
        if first.error is None:
            assert first.report is not None  # noqa: S101 - one of the two
            self.reports.append(first.report)
            self._forget(first.round)
            del self._at_work[0]
            return
        self._cancel(others)
        self._give_back(first.error, first.round, *(each.round for each in others))
        raise first.error

    def _give_back(self, error: BaseException, failed: Round, *others: Round) -> None:
        """Give back leases before the end of the run, which would make them suspects: those of rounds of which no
        task ran, because no record can have caused an earlier error, and those of rounds other than the failed one.
        """
        if isinstance(error, LockLost) or not isinstance(error, Exception):
            return
        for each in (failed, *others):
            if isinstance(error, NO_RECORDS_FAULT) or not self._jobs.tasks_ran(each.number):
                self._keeper.give_back(each.leases, refund=True)
            elif each is not failed:
                self._keeper.give_back(each.leases, cancelled=True)

    def _cancel(self, rounds: Sequence[AtWork]) -> None:
        """Cancel the work for these rounds and wait for its end; it then acknowledges nothing more."""
        for each in rounds:
            each.round.stopped = True
        deadline = time.monotonic() + STOP_SECONDS
        while not all(each.ended.is_set() for each in rounds):
            # Repeated, because a cancellation reaches only running jobs, and another may be about to start.
            self._keeper.cancel_jobs()
            if time.monotonic() > deadline:
                _log.warning(
                    "the work for a round continues although it was cancelled; its leases are given back"
                )
                return
            rounds[-1].ended.wait(0.1)
