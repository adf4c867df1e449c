"""The sequence of the rounds of a run, of which two may be held at once.

The next round is leased and planned while the current one is written; it is written while the current one is read
back and acknowledged. So Spark is never idle. At most two rounds are held at any time.

- The handler is called in the run's own thread. A round is written, read back and acknowledged in a separate thread,
  one round after the other: no round is written or acknowledged before the previous one.
- The releases of a round are recorded before anything is leased after its acknowledgement. So a record is delivered
  at most `deliveries_per_run` times in a run.
- When a round fails, the work for the next one is cancelled. Both are given back. The records of the next round do
  not become suspects; it costs them a delivery only if a Spark task had run.
- The next round starts early only if that is useful and safe: `Round.may_be_followed`.
- A run does not end because dead letters on their way fill a window: it has them written, and goes on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress

from pyspark.util import InheritableThread

from sharequeue.domain.errors import BrokerNotAvailable, InvalidTimestamp
from sharequeue.domain.results.runs import RoundReport, WrittenAtEnd
from sharequeue.outputs.errors import OutputNotReachable
from sharequeue.spark.dead_letters import make_room
from sharequeue.spark.handler import HandlerError, MostFailed, RegistryNotAvailable
from sharequeue.spark.isolated_jobs import IsolatedJobs
from sharequeue.spark.leasing.renewal import LeaseKeeper, LockLost
from sharequeue.spark.open_run import OpenRun
from sharequeue.spark.output.owners import SinkTaken
from sharequeue.spark.round import Round
from sharequeue.spark.signals import deferred, forget_interrupted_call
from sharequeue.spark.sinks.interface import SinkRefused
from sharequeue.spark.spark_jobs import JVM_GONE, Jobs

_log = logging.getLogger(__name__)

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


class Rounds:
    """The rounds of one run, until there is nothing to lease, or no further round may begin."""

    def __init__(self, run: OpenRun, keeper: LeaseKeeper, jobs: Jobs) -> None:
        self.reports: list[RoundReport] = []
        self.letters = WrittenAtEnd()
        """The dead letters that were written because they filled a window."""
        self.isolated = IsolatedJobs(
            *(run.source, run.lease_files, keeper, jobs),
            delivery_limit=run.configs.delivery_count_limit,
            stop_alike=run.job.failed_share is not None,
        )
        self._run = run
        self._keeper = keeper
        self._jobs = jobs
        self._at_work: list[Round] = []
        """The rounds that have not ended, in order: at most two."""
        self._begun: list[Round] = []
        """The rounds that may have DataFrames in Spark's cache."""

    def work(self) -> bool:
        """Run the rounds; return whether nothing was left to lease. Raises the error of a round."""
        try:
            while self._in_time() and self._one_more():
                if self._at_work and not self._at_work[0].may_be_followed():
                    self._first_ended()
                elif not self._began():
                    if not self._at_work:
                        if self._made_room():
                            continue
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

    def _made_room(self) -> bool:
        run = self._run
        made, letters = make_room(run.source.settings, run.source.state, run.configs, run.assigned())
        self.letters += letters
        return made

    def _forget(self, *rounds: Round) -> None:
        for each in rounds:
            each.forget()
        self._begun = [each for each in self._begun if each not in rounds]

    def _one_more(self) -> bool:
        return self._run.max_rounds is None or len(self.reports) + len(self._at_work) < self._run.max_rounds

    def _in_time(self) -> bool:
        most = self._run.max_seconds
        return most is None or time.monotonic() - self._run.began_at < most

    def _began(self) -> bool:
        """Lease and plan a round, and start it after the previous write; return False if nothing was leased."""
        last = self._at_work[0] if self._at_work else None
        number = len(self.reports) + len(self._at_work) + 1
        following = Round(self._run, self._keeper, self.isolated, number)
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
                if last.error is not None or not self._in_time():
                    ran = self._jobs.tasks_ran(number)
                    self._keeper.give_back(following.leases, cancelled=ran, refund=not ran)
                    self._forget(following)
                    self._first_ended()
                    return True
            # A signal between the start of its thread and its registration would leave a thread that nothing stops.
            with deferred():
                self._at_work.append(following)
                # A plain thread would not inherit the tags by which its jobs are cancelled.
                InheritableThread(
                    target=following.work,
                    args=(last,),
                    session=self._run.source.spark,
                    name=f"round-{number}",
                    daemon=True,
                ).start()
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
            self._forget(first)
            del self._at_work[0]
            return
        self._cancel(others)
        self._give_back(first.error, first, *others)
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

    def _cancel(self, rounds: Sequence[Round]) -> None:
        """Cancel the work for these rounds and wait for its end; it then acknowledges nothing more."""
        for each in rounds:
            each.stopped = True
        deadline = time.monotonic() + STOP_SECONDS
        while not all(each.ended.is_set() for each in rounds):
            # Repeated, because a cancellation reaches only running jobs, and another may be about to start.
            self._jobs.cancel()
            if time.monotonic() > deadline:
                _log.warning(
                    "the work for a round continues although it was cancelled; its leases are given back"
                )
                return
            rounds[-1].ended.wait(0.1)
