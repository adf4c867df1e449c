"""Run the Spark jobs of a round, each separate from the others, so that a record that kills its worker fails only its
own lease.

Suspects, whose last delivery ended without an acknowledgement, are leased in parts, one lease each
(``30_state/take_fan_out.sql``). A round runs every part as a Spark job of its own, side by side with the other parts
and with one job for all records that are not suspect. A Python worker belongs to one task, and a task to one job. So
a record that kills its worker fails only its own job; that lease ends without an acknowledgement and is divided
further, and the others are acknowledged. A record that kills the driver or an executor may end all jobs of the round.
So a suspect's last attempt is alone in its lease and in its round (``30_state/acquire_many.sql``), and no record is
given up because of another.

The death of a process need not end the run, even if all jobs of the round failed: the next round has the parts, and
so on, until the record is alone and given up. So it costs rounds, and no failed run.

A mistake in the handler, or a machine without memory, fails every job alike. The first job that fails may be a
record's fault, so its lease is redelivered in parts. When every part fails with the same error, and no job of that
run has succeeded, or none since the first failure, no record is the cause: the run stops, and the parts get their
delivery back. So restarting such a run does not bring records closer to the dead-letter topic. Any other exception of
a task ends the run at the first round of which every job fails.

A job that fails because of how its records are read is run again, with its records read in another way
(`job_reads.py`).

A job that fails because a partition has lost its leader shows nothing about records or handler: its leases are given
back without a delivery, and the round goes on with the other jobs.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.util import inheritable_thread_target

from sharequeue.domain.errors import first_line
from sharequeue.domain.values import Lease, SharePartition
from sharequeue.spark.handler import MostFailed
from sharequeue.spark.job_errors import SPARK_ERRORS, WORKER_EXITED, cause_of, killed_by, lines_of
from sharequeue.spark.leasing.crashes import (
    WHAT_TO_CHECK,
    ProcessKilled,
    reason_for_letters,
    words_of_records,
    words_of_suspects,
)
from sharequeue.spark.leasing.renewal import LeaseKeeper
from sharequeue.spark.output.lease_files import LeaseFiles, WrittenFiles
from sharequeue.spark.reading.source import TopicSource
from sharequeue.spark.spark_jobs import Jobs

_log = logging.getLogger(__name__)

MOST_PARTS = 256
"""The most parts of suspects in a round, over all share-partitions; every share-partition may have one. A million
records divide into 32 parts.
"""
JOBS_AT_ONCE = 32
"""The most parallel jobs; there are never more than Spark has cores for tasks."""
LAST_ATTEMPTS_FAILED = 3
"""The number of last attempts failing in a row that ends the run: then the records are not the cause."""
MOST_IN_VAIN = 3
"""The most rounds in a row of which every job fails although none of their records had failed before: after a crash,
such a round may have been leased already, or be of other share-partitions.
"""
PARTS_FAILED = (
    "The rounds before have failed in the same way, so no record is known to be the cause: the deliveries of this "
    "round were given back"
)


def parts_each(share_partitions: int) -> int:
    """Return how many parts of suspects each share-partition may have in a round, given the number of
    share-partitions.
    """
    return max(1, MOST_PARTS // max(1, share_partitions))


def apart(leases: Sequence[Lease]) -> list[list[Lease]]:
    """Group the leases by the job that reads them: each lease of suspects alone, all others together."""
    together = [lease for lease in leases if not lease.suspects]
    return [*([together] if together else []), *([lease] for lease in leases if lease.suspects)]


@dataclass(frozen=True, slots=True)
class SparkJob:
    """One job of a round: leases, and the handler's result for their records."""

    leases: list[Lease]
    handled: DataFrame
    otherwise: Callable[[Exception], DataFrame | None]
    """Returns the result to write instead after an error of the job; None if the job has failed."""

    def reads(self, share_partitions: Collection[SharePartition]) -> bool:
        """Return whether the job reads one of these."""
        return any(lease.share_partition in share_partitions for lease in self.leases)


@dataclass(frozen=True, slots=True)
class EndedJobs:
    """The result of a round's jobs: leases and files of those that succeeded, the leases of the others."""

    leases: list[Lease]
    written: WrittenFiles
    failed: list[Lease]
    leaderless: frozenset[SharePartition] = frozenset()
    """The partitions that have lost their leader meanwhile."""


class IsolatedJobs:
    """The Spark jobs of a run's rounds, which write the handler's results.

    With `stop_alike` a run ends as soon as all its jobs fail alike; otherwise each such failure costs the records a
    delivery, under the group's `delivery_limit`.
    """

    def __init__(
        self,
        source: TopicSource,
        files: LeaseFiles,
        keeper: LeaseKeeper,
        jobs: Jobs,
        *,
        delivery_limit: int,
        stop_alike: bool = True,
    ) -> None:
        self.given_up: list[Lease] = []
        """The last attempts in which a process died: one record in each lease."""
        self._source = source
        self._files = files
        self._keeper = keeper
        self._jobs = jobs
        self._stop_alike = stop_alike
        self._delivery_limit = delivery_limit
        self._failed_alone = 0
        self._in_vain = 0
        """The rounds in a row of which every job failed."""
        self._worked = False
        self._explained = False

    def write(self, planned: Sequence[SparkJob]) -> EndedJobs:
        """Run the jobs in parallel; the leases of a failed job are given back at once, as suspects. If one of its
        partitions has lost its leader, they are not suspects, and the delivery does not count.

        Raises the first job's error when all of them failed: the leases are given back when the run ends. If their
        processes died, the run goes on with the parts instead, if there are any; otherwise raises ProcessKilled.
        Raises MostFailed when there were several, all failed alike, and no job has succeeded in the run or since the
        round before. A last attempt, which is alone in its round, may fail: its record is then given up. Three last
        attempts that fail one after the other end the run too. Raises LockLost, and BrokerNotAvailable if no broker
        responds.
        """
        results = self._side_by_side(planned)
        self._keeper.check()
        ended_jobs = list(zip(planned, results, strict=True))
        succeeded = [(job, result) for job, result in ended_jobs if isinstance(result, WrittenFiles)]
        unsuccessful = [(job, result) for job, result in ended_jobs if isinstance(result, Exception)]
        self._worked |= bool(succeeded)
        leaderless = self._leaderless(unsuccessful)
        not_read = [job for job, _ in unsuccessful if job.reads(leaderless)]
        failed = [job for job, _ in unsuccessful if not job.reads(leaderless)]
        errors = [error for job, error in unsuccessful if not job.reads(leaderless)]
        self._refuse(failed, errors, others_went_on=bool(succeeded or not_read))
        ended = [lease for job in failed for lease in job.leases]
        for job, error in zip(failed, errors, strict=True):
            self._explain(job.leases, error)
        self._give_back(failed, errors)
        given_back = [lease for job in not_read for lease in job.leases]
        if given_back:
            self._keeper.give_back(given_back, refund=True)
        return EndedJobs(
            [lease for job, _ in succeeded for lease in job.leases],
            WrittenFiles(
                {at: folder for _, written in succeeded for at, folder in written.accepted.items()},
                {at: folder for _, written in succeeded for at, folder in written.exceptions.items()},
                sum(written.rows for _, written in succeeded),
                {at: folder for _, written in succeeded for at, folder in written.kept.items()},
            ),
            [*ended, *given_back],
            leaderless,
        )

    def _refuse(
        self, failed: Sequence[SparkJob], errors: Sequence[Exception], *, others_went_on: bool
    ) -> None:
        """Raise the error that ends the run if every job of a round failed, and the run cannot go on with parts."""
        leases = [lease for job in failed for lease in job.leases]
        last_attempt = bool(failed) and all(lease.last_attempt for lease in leases)
        self._failed_alone = self._failed_alone + 1 if last_attempt and not others_went_on else 0
        self._in_vain = 0 if others_went_on else self._in_vain + 1
        if not errors or others_went_on or (last_attempt and self._failed_alone < LAST_ATTEMPTS_FAILED):
            return
        alone = all(lease.offsets.count == 1 for lease in leases)
        suspects = any(lease.suspects for lease in leases)
        # The parts have failed like the whole, so nothing shows that a record is the cause.
        in_vain = not alone and self._in_vain > (1 if suspects else MOST_IN_VAIN)
        if self._stop_alike and _are_alike(errors) and (in_vain or not self._worked):
            raise _most_failed(errors) from errors[0]
        for job, error in zip(failed, errors, strict=True):
            if killed_by(error) is None:
                error.add_note(f"{words_of_records(job.leases)} ended without an outcome")
                raise error
        can_be_divided = not alone and not suspects
        if not (in_vain or last_attempt) and (self._worked or can_be_divided):
            return
        refund = in_vain and self._stop_alike
        self._give_back(failed, errors, refund=refund)
        fate = PARTS_FAILED if refund else words_of_suspects(leases, self._delivery_limit)
        message = (
            f"A process died with {words_of_records(leases)}: {cause_of(errors[0])}. {fate}. {WHAT_TO_CHECK}."
        )
        raise ProcessKilled("\n".join([message, *lines_of(errors[0])])) from errors[0]

    def _explain(self, leases: Sequence[Lease], error: Exception) -> None:
        """Log that the leases of a job ended; what becomes of the first ones that a dead process had held, too."""
        more = ""
        if killed_by(error) is not None and not self._explained:
            self._explained = True
            more = f". {words_of_suspects(leases, self._delivery_limit)}; the run goes on. {WHAT_TO_CHECK}"
        _log.warning(
            "%s ended without an acknowledgement: %s%s", words_of_records(leases), cause_of(error), more
        )

    def _give_back(
        self, failed: Sequence[SparkJob], errors: Sequence[Exception], *, refund: bool = False
    ) -> None:
        ended: dict[str, list[Lease]] = {}
        for job, error in zip(failed, errors, strict=True):
            ended.setdefault(reason_for_letters(error), []).extend(job.leases)
            if killed_by(error) is not None:
                self.given_up += (lease for lease in job.leases if lease.last_attempt)
        for reason, leases in ended.items():
            self._keeper.give_back(leases, refund=refund, reason=reason)

    def _leaderless(self, unsuccessful: Sequence[tuple[SparkJob, Exception]]) -> frozenset[SharePartition]:
        if not unsuccessful:
            return frozenset()
        leases = (lease for job, _ in unsuccessful for lease in job.leases)
        errors = [error for _, error in unsuccessful]
        return self._source.unread(errors, (lease.share_partition for lease in leases))

    def _side_by_side(self, planned: Sequence[SparkJob]) -> list[WrittenFiles | Exception]:
        if len(planned) == 1:
            return [self._one(planned[0])]
        # A plain thread would not inherit the tag by which a lost lock cancels its job.
        spark = self._source.spark
        with ThreadPoolExecutor(self._at_once(len(planned))) as pool:
            running = [pool.submit(inheritable_thread_target(spark)(self._one), job) for job in planned]
            try:
                return [each.result() for each in running]
            except BaseException:
                for each in running:
                    each.cancel()
                self._jobs.cancel()
                raise

    def _one(self, job: SparkJob) -> WrittenFiles | Exception:
        self._keeper.check()
        try:
            return self._written(job, job.handled)
        except SPARK_ERRORS as error:
            return error

    def _written(self, job: SparkJob, handled: DataFrame) -> WrittenFiles:
        try:
            return self._files.write(handled, job.leases)
        except SPARK_ERRORS as error:
            if (other := job.otherwise(error)) is None:
                raise
        return self._written(job, other)

    def _at_once(self, jobs: int) -> int:
        return min(jobs, JOBS_AT_ONCE, max(2, self._source.spark.sparkContext.defaultParallelism))


def _are_alike(errors: Sequence[Exception]) -> bool:
    """Return whether these are several errors of the same kind."""
    kinds = {kind_of(str(error)) for error in errors}
    return len(errors) > 1 and len(kinds) == 1 and None not in kinds


def _most_failed(errors: Sequence[Exception]) -> MostFailed:
    killed = killed_by(errors[0]) is not None
    message = (
        f"all {len(errors)} Spark jobs of the round failed with the same error, and no job has succeeded "
        f"{'in this run, or since the process died before' if killed else 'in this run'}: the handler"
        f"{', or the place where it runs,' if killed else ''} is the cause, not a record. Nothing of this round was "
        f"acknowledged, and its deliveries were given back. The error: {cause_of(errors[0])}. "
        f"{f'{WHAT_TO_CHECK}; correct' if killed else 'Correct'} the handler; if the records are the cause, switch "
        "this check off with `failed_share=None`."
    )
    return MostFailed("\n".join([message, *lines_of(errors[0])]))


def kind_of(error: str) -> str | None:
    """Return the kind of an error of a Spark job.

    The kind is the class of a Python exception, the name of a Spark error, or else its first words. It is None for
    the loss of an executor, which fails all jobs of a round.
    """
    if "ExecutorLostFailure" in error or "SparkContext was shut down" in error:
        return None
    if WORKER_EXITED in error:
        return WORKER_EXITED
    if raised := re.findall(
        r"^Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*([\w.]+)", error, re.MULTILINE
    ):
        return str(raised[-1])
    if named := re.findall(r"\[([A-Z][A-Z0-9_.]+)\]", error):
        return str(named[-1])
    return first_line(error).partition(":")[0]
