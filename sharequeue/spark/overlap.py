"""How do the rounds of a run overlap?

The next round is leased and planned while the last is written; it is written while the last is read back and
acknowledged. So Spark works without a break. At most two rounds are held at any time.

- The handler is called in the run's own thread. A round is written, read back and acknowledged in a thread of its
  own, one round after the other: none is written before the last one has been, and none is acknowledged before it.
- What a round releases is noted before anything is leased after its acknowledgement. So a record comes no more often
  than the job's `deliveries_per_run`.
- When a round fails, the work for the next one is cancelled. Both are given back. The next one's records are no
  suspects; it costs them a delivery only where a task of Spark's had run.
- A round is followed by another only where that brings something and harms nothing: `Round.may_be_followed`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from pyspark.util import InheritableThread

from sharequeue.spark.contract import HandlerError, MostFailed, RegistryNotAvailable
from sharequeue.spark.interrupts import deferred, forget_interrupted_call
from sharequeue.spark.leasing.isolation import Isolation
from sharequeue.spark.leasing.renewal import LeaseKeeper, LockLost
from sharequeue.spark.output.folders import SinkTaken
from sharequeue.spark.output.reachable import OutputNotReachable
from sharequeue.spark.report import RoundReport
from sharequeue.spark.rounds import Round, Run, Stopped
from sharequeue.spark.session import JVM_GONE, Jobs
from sharequeue.spark.sinks.interface import SinkRefused

_log = logging.getLogger(__name__)

STOP_SECONDS = 30.0
"""Longest wait for the end of a round's work that was cancelled. What it held is then given back under it: the state
takes no acknowledgement after that.
"""
NO_RECORDS_FAULT = (
    HandlerError,
    MostFailed,
    OutputNotReachable,
    RegistryNotAvailable,
    SinkRefused,
    SinkTaken,
)
"""After these all records get their delivery back, whatever had run."""


class AtWork:
    """A round whose records a thread of its own writes, reads back and acknowledges."""

    def __init__(self, of: Round, last: AtWork | None) -> None:
        self.round = of
        self.written = threading.Event()
        """Its Spark job has ended, however it did."""
        self.ended = threading.Event()
        """Nothing is at work for it any more: there is either a report or an error."""
        self.report: RoundReport | None = None
        self.error: BaseException | None = None
        self._last = last
        # A plain thread would not have the tags by which its jobs are cancelled.
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
    """The rounds of one run, until there is nothing to lease, or no other may begin."""

    def __init__(self, run: Run, keeper: LeaseKeeper, isolation: Isolation, jobs: Jobs) -> None:
        self.reports: list[RoundReport] = []
        self._run = run
        self._keeper = keeper
        self._isolation = isolation
        self._jobs = jobs
        self._at_work: list[AtWork] = []
        """Those that have not ended, in order: two at most."""
        self._begun: list[Round] = []
        """Those of which Spark may have something in its cache."""
        self._process = os.getpid()

    def work(self, max_seconds: float | None) -> bool:
        """Do the rounds; return whether nothing was left to lease. Raises what one of them raised."""
        try:
            while self._in_time(max_seconds) and self._one_more():
                if self._at_work and not self._at_work[0].round.may_be_followed():
                    self._first_ended()
                elif not self._began(max_seconds):
                    if not self._at_work:
                        return True
                    # What it releases, or frees in the window, may be there to lease.
                    self._first_ended()
            while self._at_work:
                self._first_ended()
        except BaseException as error:
            if os.getpid() == self._process:  # and no forked child
                with deferred():
                    if not isinstance(error, Exception):
                        forget_interrupted_call()
                    self._cancel(self._at_work)
            raise
        finally:
            if os.getpid() == self._process:
                # A JVM that is gone has nothing in its cache.
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
        """Lease and plan a round, and have it at work once the last one is written; False if nothing was leased."""
        last = self._at_work[0] if self._at_work else None
        number = len(self.reports) + len(self._at_work) + 1
        following = Round(self._run, self._keeper, self._isolation, self._jobs, number)
        self._begun.append(following)
        with self._jobs.of_round(number):
            try:
                if not following.prepare(ahead=last is not None):
                    return False
            except LockLost:
                raise
            except Exception as error:
                # The last one is not concerned: it is acknowledged.
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
            # A signal between the start of its thread and the note of it would leave one that nobody stops.
            with deferred():
                self._at_work.append(AtWork(following, last))
        if last is not None:
            self._first_ended()
        return True

    def _first_ended(self) -> None:
        """Wait for the end of a round. Raises its error; then the one that follows it is cancelled, and both are
        given back.
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
        """Give back what does not wait for the end of the run, which makes suspects of what is held: rounds of which
        no task ran, because no record can have caused an error that came before, and what others than the failed
        round hold.
        """
        if isinstance(error, LockLost) or not isinstance(error, Exception):
            return
        for each in (failed, *others):
            if isinstance(error, NO_RECORDS_FAULT) or not self._jobs.tasks_ran(each.number):
                self._keeper.give_back(each.leases, refund=True)
            elif each is not failed:
                self._keeper.give_back(each.leases, cancelled=True)

    def _cancel(self, rounds: Sequence[AtWork]) -> None:
        """Cancel the work for these rounds, and wait for its end: it acknowledges nothing more."""
        for each in rounds:
            each.round.stopped = True
        deadline = time.monotonic() + STOP_SECONDS
        while not all(each.ended.is_set() for each in rounds):
            # Again and again: a cancellation finds only the jobs that run by now, and the next may be about to start.
            self._keeper.cancel_jobs()
            if time.monotonic() > deadline:
                _log.warning(
                    "the work for a round goes on although it was cancelled: it is given back under it"
                )
                return
            rounds[-1].ended.wait(0.1)
