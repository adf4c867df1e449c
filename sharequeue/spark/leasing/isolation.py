"""Isolate a record that kills its worker, so that only its own lease fails.

Suspects, whose last delivery ended without an acknowledgement, are leased in parts, one lease each
(``30_state/take_fan_out.sql``). A round runs every part as a Spark job of its own, side by side with the other parts
and with one job for all records that are not suspect. A Python worker belongs to one task, and a task to one job. So
a record that kills its worker fails only its own job; that lease ends without an acknowledgement and is divided
further, and the others are acknowledged. A record that kills the driver or an executor may end all jobs of the round.
So a suspect's last attempt is alone in its lease and in its round (``30_state/many.sql``), and no record is given up
because of another.

A mistake in the handler fails every job alike. The first job that fails may be a record's fault, so its lease is
redelivered in parts. When every part fails with the same error, and no job of that run has succeeded, no record is
the cause: the run stops, and the parts get their delivery back. So restarting such a run does not bring records
closer to the dead-letter topic.

A job whose records Spark's connector cannot represent is run again, with its records sought.

A job that fails because a partition has lost its leader shows nothing about records or handler: its leases are given
back without a delivery, and the round goes on with the other jobs.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.util import inheritable_thread_target

from sharequeue.spark.handler import MostFailed
from sharequeue.spark.leasing.renewal import LeaseKeeper
from sharequeue.spark.output.lease_files import Written
from sharequeue.spark.reading.source import cannot_be_scanned, sought_instead
from sharequeue.words.names import plural
from sharequeue.words.values import Lease, SharePartition

_log = logging.getLogger(__name__)

MOST_PARTS = 256
"""The most parts of suspects in a round, over all share-partitions; every share-partition may have one. A million
records divide into 32 parts.
"""
JOBS_AT_ONCE = 32
"""The most parallel jobs; there are never more than Spark has cores for tasks."""
LAST_ATTEMPTS_FAILED = 3
"""The number of last attempts failing in a row that ends the run: then the records are not the cause."""


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
    sought: Callable[[], DataFrame]
    """Returns the same for records that Spark's connector cannot represent."""

    def reads(self, share_partitions: Collection[SharePartition]) -> bool:
        """Return whether the job reads one of these."""
        return any(lease.share_partition in share_partitions for lease in self.leases)


@dataclass(frozen=True, slots=True)
class Ended:
    """The result of a round's jobs: leases and files of those that succeeded, the leases of the others."""

    leases: list[Lease]
    written: Written
    failed: list[Lease]
    leaderless: frozenset[SharePartition] = frozenset()
    """The partitions that have lost their leader meanwhile."""


Write = Callable[[DataFrame, Sequence[Lease]], Written]
Unread = Callable[[Sequence[Exception], Iterable[SharePartition]], frozenset[SharePartition]]
"""Returns which partitions have no leader, after errors of jobs that read them (`Source.unread`)."""


class Isolation:
    """A runner of the Spark jobs of a run's rounds, each separate from the others.

    With `stop_alike` a run ends as soon as all its jobs fail alike; otherwise each such failure costs the records a
    delivery.
    """

    def __init__(
        self,
        spark: SparkSession,
        keeper: LeaseKeeper,
        write: Write,
        unread: Unread,
        *,
        stop_alike: bool = True,
    ) -> None:
        self._spark = spark
        self._keeper = keeper
        self._write = write
        self._unread = unread
        self._stop_alike = stop_alike
        self._failed_alone = 0
        self._worked = False

    def write(self, planned: Sequence[SparkJob]) -> Ended:
        """Run the jobs in parallel; the leases of a failed job are given back at once, as suspects. If one of its
        partitions has lost its leader, they are no suspects, and the delivery does not count.

        Raises the first job's error when all of them failed: the leases are given back when the run ends. Raises
        MostFailed when there were several, all failed alike, and no job of the run has succeeded. A last attempt,
        which is alone in its round, may fail: its record is then given up. Three last attempts that fail one after
        the other end the run too. Raises LockLost, and BrokerNotAvailable if no broker responds.
        """
        results = self._side_by_side(planned)
        self._keeper.check()
        ended_jobs = list(zip(planned, results, strict=True))
        succeeded = [(job, result) for job, result in ended_jobs if isinstance(result, Written)]
        unsuccessful = [(job, result) for job, result in ended_jobs if isinstance(result, Exception)]
        self._worked |= bool(succeeded)
        leaderless = self._leaderless(unsuccessful)
        not_read = [job for job, _ in unsuccessful if job.reads(leaderless)]
        failed = [job for job, _ in unsuccessful if not job.reads(leaderless)]
        errors = [error for job, error in unsuccessful if not job.reads(leaderless)]
        if self._stop_alike and not self._worked:
            _refuse_alike(errors)
        last_attempt = bool(failed) and all(lease.last_attempt for job in failed for lease in job.leases)
        self._failed_alone = self._failed_alone + 1 if last_attempt and not succeeded else 0
        may_go_on = succeeded or not_read or (last_attempt and self._failed_alone < LAST_ATTEMPTS_FAILED)
        if errors and not may_go_on:
            raise errors[0]
        ended = [lease for job in failed for lease in job.leases]
        for job, error in zip(failed, errors, strict=True):
            _log.warning(
                "%s of %s (leases %s) ended without an acknowledgement: %s",
                plural(sum(lease.offsets.count for lease in job.leases), "record"),
                ", ".join(sorted({str(lease.share_partition) for lease in job.leases})),
                ", ".join(str(lease.lease_id) for lease in job.leases),
                _cause(error),
            )
        self._keeper.give_back(ended)
        given_back = [lease for job in not_read for lease in job.leases]
        self._keeper.give_back(given_back, refund=True)
        return Ended(
            [lease for job, _ in succeeded for lease in job.leases],
            Written(
                {at: folder for _, written in succeeded for at, folder in written.accepted.items()},
                {at: folder for _, written in succeeded for at, folder in written.exceptions.items()},
                sum(written.rows for _, written in succeeded),
            ),
            [*ended, *given_back],
            leaderless,
        )

    def _leaderless(self, unsuccessful: Sequence[tuple[SparkJob, Exception]]) -> frozenset[SharePartition]:
        if not unsuccessful:
            return frozenset()
        leases = (lease for job, _ in unsuccessful for lease in job.leases)
        return self._unread([error for _, error in unsuccessful], (lease.share_partition for lease in leases))

    def _side_by_side(self, planned: Sequence[SparkJob]) -> list[Written | Exception]:
        if len(planned) == 1:
            return [self._one(planned[0])]
        # A plain thread would not inherit the tag by which a lost lock cancels its job.
        with ThreadPoolExecutor(self._at_once(len(planned))) as pool:
            running = [pool.submit(inheritable_thread_target(self._spark)(self._one), job) for job in planned]
            try:
                return [each.result() for each in running]
            except BaseException:
                for each in running:
                    each.cancel()
                self._keeper.cancel_jobs()
                raise

    def _one(self, job: SparkJob) -> Written | Exception:
        self._keeper.check()
        try:
            try:
                return self._write(job.handled, job.leases)
            except (PySparkException, Py4JError) as error:
                if not cannot_be_scanned(error):
                    raise
            with sought_instead():
                return self._write(job.sought(), job.leases)
        except (PySparkException, Py4JError) as error:
            return error

    def _at_once(self, jobs: int) -> int:
        return min(jobs, JOBS_AT_ONCE, max(2, self._spark.sparkContext.defaultParallelism))


def _refuse_alike(errors: Sequence[Exception]) -> None:
    """Raise MostFailed for several errors of the same kind."""
    kinds = {kind_of(str(error)) for error in errors}
    if len(errors) < 2 or len(kinds) > 1 or None in kinds:
        return
    raise MostFailed(
        f"all {len(errors)} Spark jobs of the round failed with the same error, and no job of this run has "
        "succeeded: the handler is the cause, not a record. Nothing was acknowledged, and the deliveries of this "
        f"round were given back. The error: {_cause(errors[0])}. Correct the handler; if the records are the cause, "
        "switch this check off with `failed_share=None`."
    ) from errors[0]


def kind_of(error: str) -> str | None:
    """Return the kind of an error of a Spark job.

    The kind is the class of a Python exception, the name of a Spark error, or else its first words. It is None for
    the loss of an executor, which fails all jobs of a round.
    """
    if "ExecutorLostFailure" in error or "SparkContext was shut down" in error:
        return None
    if raised := re.findall(
        r"^Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*([\w.]+)", error, re.MULTILINE
    ):
        return str(raised[-1])
    if named := re.findall(r"\[([A-Z][A-Z0-9_.]+)\]", error):
        return str(named[-1])
    return error.partition("\n")[0].partition(":")[0]


def _cause(error: Exception) -> str:
    """Return the cause of a failed job in one line: the message of its lost task, or the last line of a traceback."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    lost = next((line for line in lines if "Lost task" in line), None)
    return lost.partition("Lost task")[2].partition("): ")[2] if lost else lines[-1]
