"""One round of a run: observe, acquire, plan, write, read back, acknowledge, report.

A round requests the log ends from the broker, acquires within the budget, reads exactly the leased records, handles
and writes them, reads the output back, and acknowledges each lease accordingly (`lease_results.py`). The locks are
renewed meanwhile (`leasing/renewal.py`); a lost lock stops the round before it writes or acknowledges more.

A round is prepared (its first three steps) while the previous one is written, in the run's own thread. It is written,
read back and acknowledged in a thread of its own (`rounds.py`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

from pyspark.sql import DataFrame

from sharequeue.domain.errors import InvalidRequest
from sharequeue.domain.results.runs import RoundReport
from sharequeue.domain.values import Lease, SharePartition
from sharequeue.kafka.topics import TopicInfo
from sharequeue.outputs.errors import named_leases
from sharequeue.spark.isolated_jobs import EndedJobs, IsolatedJobs, SparkJob, apart, parts_each
from sharequeue.spark.job_reads import JobReads
from sharequeue.spark.kept_records import NOTHING_KEPT, KeptReads, keep_scanned
from sharequeue.spark.lease_results import LeaseResults
from sharequeue.spark.leasing.group import refuse_replaced
from sharequeue.spark.leasing.renewal import LeaseKeeper, in_turn
from sharequeue.spark.open_run import OpenRun
from sharequeue.spark.ordering.cut import Cut, find_cut, rows_of
from sharequeue.spark.ordering.frames import KeyOrder, Offered
from sharequeue.spark.outcomes.acknowledging import counted
from sharequeue.spark.outcomes.most_failed import refuse_most_failed
from sharequeue.spark.outcomes.outcomes import Acknowledgement
from sharequeue.spark.output.damaged import reads_what_it_wrote
from sharequeue.spark.output.files import literal
from sharequeue.spark.output.lease_files import WrittenFiles, rejected
from sharequeue.spark.output.owners import refuse_taken
from sharequeue.spark.progress import Progress
from sharequeue.spark.reading.source import by_scan_or_offset
from sharequeue.spark.sinks.interface import Refused, SinkStep
from sharequeue.spark.spark_jobs import uncache

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
    infos: Mapping[str, TopicInfo] = field(default_factory=dict)
    leases: list[Lease] = field(default_factory=list)
    leased: int = 0
    full: bool = False
    """Whether the round leased as much as its budget allows."""
    order: KeyOrder | None = None
    """The order of its records by key, if the group is ordered."""
    cut: Cut | None = None
    records: list[DataFrame] = field(default_factory=list)
    planned: list[SparkJob] = field(default_factory=list)
    stopped: bool = False
    """Set by another thread: the round then writes and acknowledges nothing more."""
    seconds: dict[str, float] = field(default_factory=dict)
    results: LeaseResults = field(init=False)
    written: threading.Event = field(default_factory=threading.Event)
    """Set when its Spark jobs have ended, with or without an error."""
    ended: threading.Event = field(default_factory=threading.Event)
    """Set when all its work has ended: there is either a report or an error."""
    report: RoundReport | None = None
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self.results = LeaseResults(self.run, self.keeper)

    def prepare(self, *, ahead: bool = False) -> bool:
        """Lease and plan; return whether there was anything to lease. A round `ahead` is leased while the previous
        one is held.
        """
        self.run.sink_waits = self.run.sink.waits()
        if self.run.sink_waits is not None:
            return False
        share_partitions = self._observe()
        self._acquire(share_partitions, ahead)
        if not self.leases:
            return False
        self._plan()
        return True

    def work(self, previous: Round | None) -> None:
        """Write, read back and acknowledge, in a thread of its own. A round that has failed, or whose `previous` one
        has, acknowledges nothing more.

        A lease of which the sink refuses records is written again, with these rejected, and comes again.
        """
        try:
            ended = self._write()
            self.written.set()
            if previous is not None:
                previous.ended.wait()
                if previous.error is not None:
                    raise Stopped
            left, written = ended.leases, ended.written
            while left:
                written = self._cut(written, left)
                with self._intact(written, left):
                    summaries = self._summarise(written, left)
                    wanted = self._read_back(written, left)
                refused = self._acknowledge(written, left, wanted, summaries)
                left = [lease for lease in left if lease.lease_id in refused]
                if left:
                    written = self._write_again(written, left, refused)
            self.report = self._report([*ended.leases, *ended.failed])
        except BaseException as error:
            self.error = error
        finally:
            self.ended.set()
            self.written.set()

    def may_be_followed(self) -> bool:
        """Return whether the next round may be leased, planned and written before this one has ended.

        It may not if this round leased all records: the next one would lease new records in small portions. It may
        not with suspects, which may kill the driver and so make the next round's records suspects too. It may not if
        the sink does more than leave the files in place: its writer would run in parallel with the handler. It may
        not after every `ALONE_EVERY`th round, so that a last attempt, which is alone in its round, gets its turn. It
        may not in a group that is ordered by key, where a share-partition has one lease at a time.
        """
        return (
            self.full
            and self.order is None
            and self.run.sink.overlaps
            and self.number % ALONE_EVERY != 0
            and not any(lease.suspects or lease.last_attempt for lease in self.leases)
        )

    def forget(self) -> None:
        """Remove the handler's cached DataFrames of the round from Spark's cache, at any stage."""
        for each in self.records:
            uncache(each)
        self.records.clear()

    def _observe(self) -> list[SharePartition]:
        """Write the log ends to the state; return the assigned share-partitions that can be read."""
        run = self.run
        with self._stage("observe"):
            assigned = in_turn(run.member, run.job.topics)
            observed = run.source.observe(
                [each for each in assigned if each not in run.lost_leader], run.job.topics
            )
        self.infos = observed.infos
        run.leaderless = observed.leaderless
        return observed.led

    def _acquire(self, share_partitions: Sequence[SharePartition], ahead: bool) -> None:
        """Lease within the budget, but not what the run has released too often."""
        run, state = self.run, self.run.source.state
        with self._stage("acquire"), run.leasing:
            means: Mapping[str, float] = {}
            if run.budget.max_bytes:
                means = run.sizes.measure(share_partitions, state.figures.describe(run.job.group))
            budget = replace(run.budget, mean_bytes=means)
            # Checked in each round, just before its lease: a run may take hours.
            refuse_replaced(state, run.job.group, run.job.pipeline_name)
            self.leases = self.keeper.acquire_within(
                *(budget, share_partitions, run.releases.spent, parts_each(len(share_partitions))),
                last_attempts=not ahead,
            )
            self.order = KeyOrder.of(state, self.leases, run.configs)
        self.full = budget.is_used_up(self.leases)
        self.leased = sum(lease.offsets.count for lease in self.leases)

    def _plan(self) -> None:
        """Call the handler once for each Spark job. It may read while it plans."""
        with self._stage("plan"):
            kept = self._find_kept()
            for some in apart(self.leases):
                reads = JobReads(some, self.run.kept, kept, partial(self._handled, some))
                self.planned.append(SparkJob(some, reads.handled(), reads.otherwise))

    def _find_kept(self) -> KeptReads:
        """Return what is kept of the leases; what comes again may be kept now."""
        run = self.run
        if run.kept is None:
            return NOTHING_KEPT
        kept = run.kept.find(self.leases)
        if run.handler.known.takes_raw is False:
            kept, self.results.raw = keep_scanned(run.kept, run.lease_files, self.leases, kept)
        return kept

    def _handled(self, leases: Sequence[Lease], kept: KeptReads, by_offset: bool) -> DataFrame:
        """Return the handler's result for the records of these leases, with rows for raw records to keep."""
        files, source = self.run.kept, self.run.source
        records = (
            source.records(leases, by_offset=by_offset)
            if files is None
            else files.records(leases, kept, by_offset=by_offset)
        )
        self.records.append(records)
        offered = Offered(records) if self.order is None else self.order.offered(records, leases)
        handled = self.run.handler(offered.records)
        self.run.columns.check(handled.schema)
        return offered.with_held(self.run.sink.fits(handled))

    def _write(self) -> EndedJobs:
        """Read, handle and write the records with Spark."""
        topics = {lease.share_partition.topic for lease in self.leases}
        with self._stage("write"), self.run.source.changed_topics_are_named(topics, self.infos):
            ended = self.jobs.write(self.planned)
        self.run.lost_leader |= ended.leaderless
        folders = {at: of.location for at, of in self.results.raw.items()} | ended.written.kept
        self.results.raw_folders = folders
        return replace(ended, written=replace(ended.written, kept=folders))

    def _intact(self, written: WrittenFiles, leases: Sequence[Lease]) -> AbstractContextManager[None]:
        """Return a context manager that raises OutputDamaged if the files of these leases were removed or changed,
        and OutputNotShared if an executor does not find files that the driver finds.
        """
        whose = named_leases([lease.lease_id for lease in leases])
        return reads_what_it_wrote(written.folders, whose, alone=self.run.files.alone)

    def _cut(self, written: WrittenFiles, leases: Sequence[Lease]) -> WrittenFiles:
        """Hold the records behind the first one of their key that was not accepted, in a group ordered by key."""
        if self.order is None:
            return written
        run, columns = self.run, self.planned[0].handled.schema
        with self._stage("read back"), self._intact(written, leases), run.source.outages_are_named(leases):
            rows = partial(rows_of, run.source, leases, written, run.job.without_row)
            order = self.order
            self.cut = by_scan_or_offset(lambda by_offset: find_cut(order, leases, rows(by_offset)))
            some = [lease for lease in leases if lease.lease_id in self.cut.changed]
            if not some:
                return written
            return written.with_rewritten(
                some, run.lease_files.rewrite(written, columns, some, self.cut.made_in)
            )

    def _summarise(self, written: WrittenFiles, leases: Sequence[Lease]) -> dict[str, dict[int, str]]:
        """Write partial sums of the accepted rows, from the files, without a second pass over the topic."""
        job, files = self.run.job, self.run.lease_files
        summaries: dict[str, dict[int, str]] = {job.summary_sink(summary): {} for summary in job.summaries}
        with self._stage("summarise"):
            if not (summaries and written.accepted):
                return summaries
            schema = self.planned[0].handled.schema  # otherwise a Spark job would infer it from the files
            accepted = files.spark.read.schema(schema).parquet(*map(literal, written.accepted.values()))
            lease_ids = [lease.lease_id for lease in leases]
            for summary in job.summaries:
                name = job.summary_sink(summary)
                summaries[name] = files.write_summary(name, summary.partial(accepted), lease_ids)
        return summaries

    def _read_back(self, written: WrittenFiles, leases: Sequence[Lease]) -> dict[int, Acknowledgement]:
        """Return the acknowledgements of these leases by what their files have, by lease id. Raise MostFailed if too
        many records of the round have failed.
        """
        run, job, results = self.run, self.run.job, self.results
        columns = self.planned[0].handled.schema
        with self._stage("read back"), run.lease_files.durable(written):
            wanted = results.read_back(leases, written, columns.names, self.cut, self.infos)
        if wanted and job.failed_share is not None:
            refuse_most_failed(
                *(run.source.spark, job.failed_share, written, self.leases, results.seen),
                nothing_yet=not results.acknowledged,
            )
        if wanted and written.folders:
            run.columns.keep(columns)
        return wanted

    def _acknowledge(
        self,
        written: WrittenFiles,
        leases: Sequence[Lease],
        wanted: Mapping[int, Acknowledgement],
        summaries: Mapping[str, Mapping[int, str]],
    ) -> Refused:
        """Acknowledge the leases that are `wanted`, each with the outputs that count from then on; return the records
        that the sink refuses.

        Raises SinkTaken if it was refused because another group has counted an output in the sink since the run
        began.
        """
        run, source = self.run, self.run.source
        ready = [
            self.results.result(lease, written, wanted[lease.lease_id], summaries)
            for lease in leases
            if lease.lease_id in wanted
        ]
        if not ready:
            return {}
        with self._step("stage"):
            refused = dict(run.sink.stage([each.rows for each in ready]))
        ready = [each for each in ready if each.rows.lease.lease_id not in refused]
        try:
            # Releases must be recorded before the next round leases.
            with run.leasing:
                with self._stage("acknowledge"):
                    refused.update(self.results.send(ready))
                self.results.note_releases([each.rows.lease for each in ready])
        except InvalidRequest:
            refuse_taken(run.files, source.settings, source.state, run.job.names)
            raise
        with self._step("transfer"):
            run.sink.transfer()
        return refused

    def _write_again(self, written: WrittenFiles, leases: Sequence[Lease], refused: Refused) -> WrittenFiles:
        """Write these leases again, with the records rejected that the sink refused."""
        files, columns = self.run.lease_files, self.planned[0].handled.schema
        with self._stage("write"), self._intact(written, leases):
            return files.rewrite(written, columns, leases, partial(rejected, refused=refused))

    def _report(self, leases: Sequence[Lease]) -> RoundReport:
        run = self.run
        statuses = run.source.state.figures.describe(run.job.group)
        lag = sum(status.lag for status in statuses if status.topic in run.job.topics)
        acknowledged, sent = self.results.acknowledged, self.results.sent
        left = (lease for lease in leases if lease.lease_id not in acknowledged)
        report = RoundReport(
            number=self.number,
            lease_ids=tuple(lease.lease_id for lease in leases),
            leased=self.leased,
            **counted(list(acknowledged.values()), sent.values()),
            lag=lag,
            stage_seconds=self.seconds,
            unacknowledged=sum(lease.offsets.count for lease in left),
        )
        run.records_done += report.done
        self._show("done", lag)
        return report

    def _show(self, stage: str, lag: int | None = None) -> None:
        run = self.run
        seconds = time.monotonic() - run.rounds_at
        with run.reporting:
            run.progress(Progress(self.number, stage, self.leased, run.records_done, seconds, lag))

    def _step(self, name: SinkStep) -> AbstractContextManager[None]:
        """Return the stage of this name if the sink has such a step."""
        return self._stage(name) if name in self.run.sink.steps else nullcontext()

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        self._check()
        self._show(name)
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
