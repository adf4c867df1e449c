"""One round of a run.

A round requests the log ends from the broker, acquires within the budget, reads exactly the leased records, handles
and writes them, reads the output back, and acknowledges each lease accordingly. The locks are renewed meanwhile
(`leasing/renewal.py`); a lost lock stops the round before it writes or acknowledges more.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from sharequeue.kafka.topics import TopicInfo
from sharequeue.spark.handler import call_handler
from sharequeue.spark.isolated_jobs import EndedJobs, IsolatedJobs, SparkJob, apart, parts_each
from sharequeue.spark.leasing.group import refuse_replaced
from sharequeue.spark.leasing.renewal import LeaseKeeper, in_turn, release_held
from sharequeue.spark.open_run import OpenRun
from sharequeue.spark.outcomes.first_failure import first_failure
from sharequeue.spark.outcomes.most_failed import refuse_most_failed
from sharequeue.spark.outcomes.outcomes import (
    UNSEEN,
    Acknowledgement,
    Seen,
    acknowledgements,
    read_back,
    refuse_other_partitions,
)
from sharequeue.spark.output.files import literal
from sharequeue.spark.output.folders import no_files
from sharequeue.spark.output.lease_files import WrittenFiles
from sharequeue.spark.output.owners import refuse_taken
from sharequeue.spark.output.shared_folder import all_read_back
from sharequeue.spark.progress import Progress
from sharequeue.spark.reading.source import timestamps_are_named
from sharequeue.spark.report import RoundReport, counted
from sharequeue.spark.sinks.interface import Accepted, Refused, WrittenRound
from sharequeue.spark.spark_jobs import uncache
from sharequeue.domain.errors import BrokerNotAvailable, InvalidRequest
from sharequeue.domain.offsets import EMPTY
from sharequeue.domain.values import (
    Acknowledged,
    AcknowledgeType,
    Lease,
    LeaseOutput,
    SharePartition,
)

ALONE_EVERY = 8
"""One in this many rounds is leased only after the previous round has ended."""


class Stopped(Exception):
    """Nothing more may be written or acknowledged for a round: the previous one failed, or the run is stopped."""


@dataclass(slots=True, eq=False)
class Round:
    """One round of a run, whose number begins at 1."""

    run: OpenRun
    keeper: LeaseKeeper
    jobs: IsolatedJobs
    number: int
    leases: list[Lease] = field(default_factory=list)
    records: list[DataFrame] = field(default_factory=list)
    planned: list[SparkJob] = field(default_factory=list)
    infos: Mapping[str, TopicInfo] = field(default_factory=dict)
    leased: int = 0
    full: bool = False
    """Whether the round leased as much as its budget allows."""
    stopped: bool = False
    """Set by another thread: the round then writes and acknowledges nothing more."""
    seconds: dict[str, float] = field(default_factory=dict)

    def prepare(self, *, ahead: bool = False) -> bool:
        """Lease and plan; return whether there was anything to lease. A round `ahead` is leased while the previous
        one is held.
        """
        run = self.run
        with self._stage("observe"):
            assigned = in_turn(run.member, run.job.topics)
            observed = run.source.observe(
                [each for each in assigned if each not in run.lost_leader], run.job.topics
            )
            self.infos, share_partitions = observed.infos, observed.led
            run.leaderless = observed.leaderless
        with self._stage("acquire"), run.leasing:
            self.leases = self._acquire(share_partitions, ahead)
        if not self.leases:
            return False
        self.leased = sum(lease.offsets.count for lease in self.leases)
        with self._stage("plan"), timestamps_are_named():  # a handler may read while it plans
            for some in apart(self.leases):
                self.planned.append(
                    SparkJob(some, self._handled(some), partial(self._handled, some, seek=True))
                )
        return True

    def _handled(self, leases: Sequence[Lease], *, seek: bool = False) -> DataFrame:
        """Return the handler's result for the records of these leases."""
        records = self.run.source.records(leases, seek=seek)
        self.records.append(records)
        return self.run.fitting(call_handler(self.run.job.handler, records))

    def may_be_followed(self) -> bool:
        """Return whether the next round may be leased, planned and written before this one has ended.

        It may not if this round leased all records: the next one would lease new records in small portions. It may
        not with suspects, which may kill the driver and so make the next round's records suspects too. It may not if
        the sink does more than leave the files in place: its writer would run in parallel with the handler. It may
        not after every `ALONE_EVERY`th round, so that a last attempt, which is alone in its round, gets its turn.
        """
        return (
            self.full
            and self.run.sink.overlaps
            and self.number % ALONE_EVERY != 0
            and not any(lease.suspects or lease.last_attempt for lease in self.leases)
        )

    def write(self) -> EndedJobs:
        """Read, handle and write the records with Spark."""
        topics = {lease.share_partition.topic for lease in self.leases}
        with self._stage("write"), self.run.source.changed_topics_are_named(topics, self.infos):
            ended = self.jobs.write(self.planned)
        self.run.lost_leader |= ended.leaderless
        return ended

    def finish(self, ended: EndedJobs) -> RoundReport:
        """Read back the written output, and acknowledge each lease accordingly; return the round's figures.

        A lease with records that the sink refuses is written again, with these rejected, and passed to it again.
        """
        run = self.run
        left, written, seen = ended.leases, ended.written, dict[int, Seen]()
        acknowledged: list[Acknowledged] = []
        sent: list[Acknowledgement] = []
        given_back = list(ended.failed)
        while left:
            summaries = self._summarise(written, left)
            wanted = self._read_back(written, left, seen)
            given_back += [lease for lease in left if lease.lease_id not in wanted]
            left = [lease for lease in left if lease.lease_id in wanted]
            if not left:
                break
            if run.job.failed_share is not None:
                refuse_most_failed(run.source.spark, run.job.failed_share, written, ended.leases, seen, left)
            if written.folders:
                run.context.columns_fit(self.planned[0].handled.schema, keep=True)
            results = self._acknowledge(written, left, wanted, seen, summaries)
            refused = {}
            for lease, result in zip(left, results, strict=True):
                if isinstance(result, Refused):
                    refused[lease.lease_id] = result.reasons
                else:
                    acknowledged.append(result)
                    sent.append(wanted[lease.lease_id])
            left = [lease for lease in left if lease.lease_id in refused]
            if left:
                written = self._rejected(written, left, refused)
        run.records_done += self.leased
        lag = run.lag()
        self._report_progress("done", lag)
        return RoundReport(
            number=self.number,
            lease_ids=tuple(lease.lease_id for lease in (*ended.leases, *ended.failed)),
            leased=self.leased,
            **counted(acknowledged, sent),
            lag=lag,
            stage_seconds=self.seconds,
            unacknowledged=sum(lease.offsets.count for lease in given_back),
        )

    def _read_back(
        self, written: WrittenFiles, leases: Sequence[Lease], seen: dict[int, Seen]
    ) -> dict[int, Acknowledgement]:
        """Return the acknowledgements of these leases by what their files have, and add that to `seen`.

        Leases of partitions that have lost their leader are given back without a delivery if a record may be missing:
        whether it is a gap is not known. They have no acknowledgement.
        """
        run, job, files = self.run, self.run.job, self.run.lease_files
        with self._stage("read back"), files.intact(written, leases), files.durable(written):
            found = read_back(
                run.source.spark,
                written.folders,
                delays="not_before" in self.planned[0].handled.schema.names,
                files=run.files,
            )
            all_read_back(job.sink, written.rows, sum(of_lease.rows for of_lease in found.values()))
            refuse_other_partitions(leases, found)
            wanted = self._to_acknowledge(leases, found)
            if run.failure is None:
                run.failure = first_failure(run.source.spark, run.files, written.exceptions.values())
        seen.update({lease.lease_id: found.get(lease.lease_id, UNSEEN) for lease in leases})
        return wanted

    def _to_acknowledge(
        self, leases: Sequence[Lease], seen: Mapping[int, Seen]
    ) -> dict[int, Acknowledgement]:
        run = self.run
        try:
            return acknowledgements(run.source, leases, seen, self.infos, run.job.dropped)
        except (BrokerNotAvailable, PySparkException, Py4JError) as error:
            away = run.source.unread([error], (lease.share_partition for lease in leases))
            if not away:
                raise
        run.lost_leader |= away
        self.keeper.give_back([lease for lease in leases if lease.share_partition in away], refund=True)
        return self._to_acknowledge([lease for lease in leases if lease.share_partition not in away], seen)

    def _rejected(
        self, written: WrittenFiles, leases: Sequence[Lease], refused: Mapping[int, Mapping[int, str]]
    ) -> WrittenFiles:
        """Write these leases again, with the records rejected that the sink refused."""
        files, columns = self.run.lease_files, self.planned[0].handled.schema
        with self._stage("write"), files.intact(written, leases):
            return files.write_without(written, columns, leases, refused)

    def forget(self) -> None:
        """Remove the handler's cached DataFrames of the round from Spark's cache, at any stage."""
        for each in self.records:
            uncache(each)
        self.records.clear()

    def _acquire(self, share_partitions: Sequence[SharePartition], ahead: bool) -> list[Lease]:
        run = self.run
        means: Mapping[str, float] = {}
        if run.budget.max_bytes:
            means = run.sizes.measure(share_partitions, run.source.state.figures.describe(run.job.group))
        budget = replace(run.budget, mean_bytes=means)
        # Checked in each round, just before its lease: a run may take hours.
        refuse_replaced(run.source.state, run.job.group, run.job.pipeline_name)
        parts = parts_each(len(share_partitions))
        leases = self.keeper.acquire_within(
            budget,
            share_partitions,
            run.releases.spent,
            parts,
            last_attempts=not ahead,
        )
        self.full = budget.is_used_up(leases)
        return leases

    def _summarise(self, written: WrittenFiles, leases: Sequence[Lease]) -> dict[str, dict[int, str]]:
        """Write partial sums of the accepted rows, from the files, without a second pass over the topic."""
        run, job = self.run, self.run.job
        summaries: dict[str, dict[int, str]] = {job.summary_sink(summary): {} for summary in job.summaries}
        with self._stage("summarise"), run.lease_files.intact(written, leases):
            if not (summaries and written.accepted):
                return summaries
            schema = self.planned[0].handled.schema  # otherwise a Spark job would infer it from the files
            accepted = run.source.spark.read.schema(schema).parquet(*map(literal, written.accepted.values()))
            for summary in job.summaries:
                name = job.summary_sink(summary)
                summaries[name] = run.lease_files.write_summary(
                    name, summary.partial(accepted), [lease.lease_id for lease in leases]
                )
        return summaries

    def _acknowledge(
        self,
        written: WrittenFiles,
        leases: Sequence[Lease],
        wanted: Mapping[int, Acknowledgement],
        seen: Mapping[int, Seen],
        summaries: Mapping[str, Mapping[int, str]],
    ) -> Sequence[Acknowledged | Refused]:
        """Let the sink acknowledge the leases, each with the outputs that count from then on.

        Raises SinkTaken if it was refused because another group has counted an output in the sink since the run
        began.
        """
        run, job, source = self.run, self.run.job, self.run.source
        accepted = []
        for lease in leases:
            of_lease, at = seen.get(lease.lease_id, UNSEEN), lease.lease_id
            exceptions = written.exceptions.get(at) or no_files(
                source.settings, source.state, job.exceptions_sink, at
            )
            others = [
                LeaseOutput(job.exceptions_sink, exceptions, of_lease.exceptions),
                *(
                    LeaseOutput(name, folders[at], of_lease.accepted_rows)
                    for name, folders in summaries.items()
                    if at in folders
                ),
            ]
            accepted.append(
                Accepted(lease, written.accepted.get(at), of_lease.accepted_rows, wanted[at], others)
            )
        try:
            # Releases must be recorded before the next round leases.
            with run.leasing:
                results = run.sink.acknowledge(WrittenRound(accepted, self.keeper, self._stage))
                self._note_releases(leases, wanted, results)
            return results
        except InvalidRequest:
            refuse_taken(run.files, source.settings, source.state, job.names)
            raise

    def _note_releases(
        self,
        leases: Sequence[Lease],
        wanted: Mapping[int, Acknowledgement],
        results: Sequence[Acknowledged | Refused],
    ) -> None:
        lost = []
        for lease, result in zip(leases, results, strict=True):
            if isinstance(result, Refused):
                continue
            sent = wanted[lease.lease_id]
            released = sent.outcomes.get(AcknowledgeType.RELEASE, EMPTY)
            self.run.releases.add(lease.share_partition, released, result.spso)
            if sent.lost:
                lost.append(lease)
        # Offsets below the log start can no longer be acknowledged; such a lease ends without an acknowledgement.
        release_held(self.run.source.state, lost)

    def _report_progress(self, stage: str, lag: int | None = None) -> None:
        run = self.run
        seconds = time.monotonic() - run.began_at
        with run.reporting:
            run.progress(Progress(self.number, stage, self.leased, run.records_done, seconds, lag))

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        self._check()
        self._report_progress(name)
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - began
        self._check()

    def _check(self) -> None:
        self.keeper.check()
        if self.stopped:
            raise Stopped
