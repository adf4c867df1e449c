"""How does a share group's job work its way through the topic?

Round by round: ask the broker where the logs end, acquire within the budget, read exactly what was leased,
handle and write it, read back what was written, acknowledge each lease by that, and again, until there is
nothing to acquire. Locks are renewed meanwhile (`renewal.py`); a lost one stops the run before it writes or
acknowledges more. Whatever ends a run early, what it still held is given back at once. Joining and leaving
the group and the sweeps are the caller's; dead letters are written at the end where no service does (`draining.py`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from pyspark.sql import SparkSession

from sharequeue.database import Database
from sharequeue.groups.configs import GroupConfigs
from sharequeue.kafka.topics import TopicInfo, Topics
from sharequeue.offsets import EMPTY
from sharequeue.settings import Settings
from sharequeue.spark.draining import drain_at_end
from sharequeue.spark.job import HandlerError, ShareGroupJob
from sharequeue.spark.leasing.isolation import Isolation, Planned, apart, parts_each
from sharequeue.spark.leasing.nothing import require_topics, why_nothing
from sharequeue.spark.leasing.renewal import Budget, LeaseKeeper, LockLost, Member, release_held
from sharequeue.spark.outcomes.acknowledging import Given, acknowledge_all
from sharequeue.spark.outcomes.failing import Limits, MostFailed
from sharequeue.spark.outcomes.outcomes import Answer, Seen, read_back, with_outcomes
from sharequeue.spark.outcomes.retries import Backoff, Releases
from sharequeue.spark.output.files import literal
from sharequeue.spark.output.leases import Written, durable, lease_folder, write_leases, write_summary
from sharequeue.spark.output.sharing import all_read_back, read_where_written, refuse_unshared
from sharequeue.spark.reading.frame import no_records
from sharequeue.spark.reading.sizes import RecordSizes
from sharequeue.spark.reading.source import Source
from sharequeue.spark.report import Progress, ProgressCallback, RoundReport, RunReport
from sharequeue.spark.session import Jobs, cancellable, uncache
from sharequeue.spark.sinks.sinks import Accepted, ParquetByLease, Place
from sharequeue.state import State
from sharequeue.values import Acknowledged, AcknowledgeType, Lease, LeaseOutput, SharePartition

__all__ = ["RoundReport", "RunReport", "run_rounds"]

_log = logging.getLogger(__name__)

MAX_RECORDS = 10_000_000
"""Records leased in a round unless the caller says otherwise."""


def run_rounds(
    settings: Settings,
    job: ShareGroupJob,
    *,
    membership: Member,
    state: State,
    topics: Topics,
    spark: SparkSession,
    max_rounds: int | None = None,
    max_records: int = MAX_RECORDS,
    max_bytes: int | None = None,
    max_seconds: float | None = None,
    isolation_level: str | None = None,
    progress: ProgressCallback = lambda progress: None,
) -> RunReport:
    """Process what the member is assigned, until drained, or out of rounds, or no round may begin any more.

    `max_records` and `max_bytes` are the budget of one round; `max_bytes` is the job's when None, or else the group's
    own, as `isolation_level` is. Raises ValueError for a budget below one record, UnknownTopicOrPartition for a topic
    that is not there, what the handler, Spark, the state or the broker raised, HandlerError, MostFailed, LockLost,
    and SinkRefused; everything held has then been given back, with its deliveries unless a task of Spark's had run
    and left it unanswered.
    """
    if max_records < 1:
        raise ValueError(f"max_records is {max_records}: expected how many records a round leases, 1 or more")
    max_bytes = job.max_bytes if max_bytes is None else max_bytes
    with Database.open(settings) as database:
        State(database).check_cluster(topics.cluster_id())
        configs = GroupConfigs.load(database, job.group)
    isolation_level = isolation_level or configs.isolation_level
    max_bytes = configs.fetch_max_bytes if max_bytes is None else max_bytes
    require_topics(topics, job.topics)
    with RecordSizes(settings, isolation_level) as sizes:
        run = _Run(
            settings,
            job,
            membership,
            state,
            topics,
            spark,
            max_records,
            max_bytes,
            isolation_level,
            sizes,
            progress,
            configs,
        )
        try:
            report = run.rounds(max_rounds, max_seconds)
        except Exception:
            drain_at_end(settings, state, configs)
            raise
    return replace(report, dead_letters=drain_at_end(settings, state, configs))


class _Run:
    def __init__(
        self,
        settings: Settings,
        job: ShareGroupJob,
        member: Member,
        state: State,
        topics: Topics,
        spark: SparkSession,
        max_records: int,
        max_bytes: int,
        isolation_level: str,
        sizes: RecordSizes,
        progress: ProgressCallback,
        configs: GroupConfigs,
    ) -> None:
        refuse_unshared(spark, settings, settings.output)
        self.settings = settings
        self.job = job
        self.member = member
        self.state = state
        self.spark = spark
        self.max_records = max_records
        self.max_bytes = max_bytes
        self.sizes = sizes
        self.source = Source(
            settings, state, topics, spark, isolation_level, job.reader_options, job.headers, job.max_scans
        )
        self.sink = (job.output or ParquetByLease()).open(Place(settings, state, spark, job))
        self.progress = progress
        self.configs = configs
        self.backoff = Backoff.of(configs)
        self.releases = Releases(job.deliveries_per_run)
        self.limits = Limits(job.failed_share, job.failed_records)
        self.began_at = time.monotonic()
        self.records_done = 0

    def rounds(self, max_rounds: int | None, max_seconds: float | None) -> RunReport:
        reports: list[RoundReport] = []
        drained = ended = False
        with cancellable(self.spark) as jobs, LeaseKeeper(self.state, self.member, jobs) as keeper:
            self.isolation = Isolation(
                self.spark,
                keeper,
                lambda handled, leases: write_leases(
                    self.spark, self.settings, self.state, self.job, handled, leases
                ),
            )
            if self.job.try_empty:
                self.try_empty()
            while not ended and (max_rounds is None or len(reports) < max_rounds):
                if max_seconds is not None and time.monotonic() - self.began_at >= max_seconds:
                    break
                report = _Round(self, keeper, jobs, len(reports) + 1).go()
                if report is None:
                    # Who has nothing assigned does not know what there is.
                    ended, drained = True, bool(self.assigned())
                else:
                    reports.append(report)
        seconds = time.monotonic() - self.began_at
        remark = why_nothing(self.state, self.configs, self.job.topics) if ended else None
        if ended and not drained:
            remark = (
                f"nothing of {', '.join(self.job.topics)} is assigned to this member of group {self.job.group}: "
                "it has not joined, or the service has assigned it nothing yet"
            )
        if remark and not reports:
            _log.warning("nothing was leased: %s", remark)
        return RunReport(self.job.group, tuple(reports), self.lag(), drained, seconds, remark)

    def try_empty(self) -> None:
        """Call the handler before anything is leased: what is wrong with it on no records is so on all."""
        records = no_records(self.spark)
        handled = with_outcomes(self.job.handler(records), self.job.unknown)
        self.sink.fits(handled.schema)
        handled.collect()
        uncache(handled, of=records)

    def assigned(self) -> list[SharePartition]:
        """What the member is assigned of this job's topics."""
        return sorted(sp for sp in self.member.assignment if sp.topic in self.job.topics)

    def lag(self) -> int:
        return sum(
            status.lag for status in self.state.describe(self.job.group) if status.topic in self.job.topics
        )


class _Round:
    def __init__(self, run: _Run, keeper: LeaseKeeper, jobs: Jobs, number: int) -> None:
        self.run = run
        self.keeper = keeper
        self.jobs = jobs
        self.number = number
        self.leased = 0
        self.seconds: dict[str, float] = {}

    def go(self) -> RoundReport | None:
        """One round; None when there was nothing to acquire."""
        run = self.run
        with self._stage("observe"):
            share_partitions = self._assigned()
            infos = run.source.observe(share_partitions)
        with self._stage("acquire"):
            leases = self._acquire(share_partitions)
        if not leases:
            return None
        self.leased = sum(lease.offsets.count for lease in leases)
        self.jobs.mark()
        try:
            return self._work(leases, infos)
        except LockLost:
            raise
        except (HandlerError, MostFailed):
            self.keeper.give_back(refund=True)
            raise
        except Exception:
            # What went wrong before a task has run is no record's doing.
            if not self.jobs.tasks_ran():
                self.keeper.give_back(refund=True)
            raise

    def _work(self, leases: Sequence[Lease], infos: Mapping[str, TopicInfo]) -> RoundReport:
        run, job = self.run, self.run.job
        with self._stage("plan"):
            planned = [
                Planned(some, with_outcomes(job.handler(run.source.records(some)), job.unknown))
                for some in apart(leases)
            ]
            for each in planned:
                run.sink.fits(each.handled.schema)
        with self._stage("write"):
            ended = run.isolation.write(planned)
        leases, written = ended.leases, ended.written
        with self._stage("summarise"), read_where_written():
            summaries = self._summarise(written, leases)
        with (
            self._stage("read back"),
            read_where_written(),
            durable(run.spark, run.settings, written),
        ):
            seen = read_back(run.spark, written.folders, delays="not_before" in planned[0].handled.columns)
            all_read_back(job.sink, written.rows, sum(of_lease.rows for of_lease in seen.values()))
            answers = run.source.answers(leases, seen, infos, job.dropped)
        run.limits.check(run.spark, written, leases, seen)
        now = run.state.now()
        answers = {lease.lease_id: run.backoff.apply(lease, answers[lease.lease_id], now) for lease in leases}
        if run.sink.stages:
            with self._stage("stage"):
                run.sink.stage(written)
        with self._stage("acknowledge"):
            acknowledged = self._acknowledge(leases, answers, written, seen, summaries)
        for each in planned:
            uncache(each.handled)
        run.records_done += self.leased
        for lease in leases:
            released = answers[lease.lease_id].outcomes.get(AcknowledgeType.RELEASE, EMPTY)
            run.releases.add(lease.share_partition, released, acknowledged[lease.lease_id].spso)
        return self._report(leases, answers, list(acknowledged.values()), ended.failed)

    def _assigned(self) -> list[SharePartition]:
        """What is assigned and of this job's topics, beginning elsewhere each round so that none starves."""
        assigned = self.run.assigned()
        turn = (self.number - 1) % len(assigned) if assigned else 0
        return assigned[turn:] + assigned[:turn]

    def _acquire(self, share_partitions: Sequence[SharePartition]) -> list[Lease]:
        run = self.run
        means: Mapping[str, float] = {}
        if run.max_bytes:
            means = run.sizes.measure(share_partitions, run.state.describe(run.job.group))
        budget = Budget(run.max_records, run.max_bytes, means)
        parts = parts_each(len(share_partitions))
        return self.keeper.acquire_within(
            budget, share_partitions, run.job.lock_duration_ms, run.releases.spent, parts
        )

    def _summarise(self, written: Written, leases: Sequence[Lease]) -> dict[str, dict[int, str]]:
        """Partial sums of what was accepted, from the files, not from a second pass over the topic."""
        run, job = self.run, self.run.job
        summaries: dict[str, dict[int, str]] = {}
        for summary in job.summaries:
            name = job.summary_sink(summary)
            summaries[name] = {}
            if written.accepted:
                accepted = run.spark.read.parquet(*map(literal, written.accepted.values()))
                lease_ids = [lease.lease_id for lease in leases]
                summaries[name] = write_summary(
                    run.spark, run.settings, run.state, name, summary.partial(accepted), lease_ids
                )
        return summaries

    def _acknowledge(
        self,
        leases: Sequence[Lease],
        answers: Mapping[int, Answer],
        written: Written,
        seen: Mapping[int, Seen],
        summaries: Mapping[str, Mapping[int, str]],
    ) -> dict[int, Acknowledged]:
        """Answer the leases; what was answered, by lease id."""
        run = self.run
        given: list[Given] = []
        acknowledged: dict[int, Acknowledged] = {}
        for lease in leases:
            answered, beside = answers[lease.lease_id], self._beside(lease, seen, summaries)
            rows = seen[lease.lease_id].accepted_rows if lease.lease_id in seen else 0
            accepted = Accepted(lease, written.accepted.get(lease.lease_id), rows)
            output = run.sink.output(accepted)
            if output is not None:
                given.append(Given(lease, answered, [output, *beside]))
                continue
            with self.keeper.answering(lease) as kept:
                answer = run.sink.acknowledge(replace(accepted, lease=kept), answered, beside)
            acknowledged[lease.lease_id] = answer
        plain = acknowledge_all(run.state, self.keeper, given)
        acknowledged |= {each.lease.lease_id: answer for each, answer in zip(given, plain, strict=True)}
        # Below the log start nothing can be answered any more; such a lease ends without it.
        release_held(run.state, [lease for lease in leases if answers[lease.lease_id].lost])
        return acknowledged

    def _beside(
        self, lease: Lease, seen: Mapping[int, Seen], summaries: Mapping[str, Mapping[int, str]]
    ) -> list[LeaseOutput]:
        """What counts with a lease's acknowledgement beside its accepted rows."""
        run, job = self.run, self.run.job
        of_lease = seen.get(lease.lease_id)
        return [
            LeaseOutput(
                job.exceptions_sink,
                lease_folder(run.settings, run.state, job.exceptions_sink, lease.lease_id),
                of_lease.exceptions if of_lease else 0,
            ),
            *(
                LeaseOutput(name, folders[lease.lease_id], of_lease.accepted_rows if of_lease else 0)
                for name, folders in summaries.items()
                if lease.lease_id in folders
            ),
        ]

    def _report(
        self,
        leases: Sequence[Lease],
        answers: Mapping[int, Answer],
        acknowledged: Sequence[Acknowledged],
        failed: Sequence[Lease],
    ) -> RoundReport:
        run = self.run
        lag = run.lag()
        seconds = time.monotonic() - run.began_at
        run.progress(Progress(self.number, "done", self.leased, run.records_done, seconds, lag))
        return RoundReport(
            number=self.number,
            lease_ids=tuple(lease.lease_id for lease in (*leases, *failed)),
            leased=self.leased,
            accepted=sum(a.accepted for a in acknowledged),
            released=sum(a.released for a in acknowledged),
            rejected=sum(a.rejected for a in acknowledged),
            gaps=sum(a.gaps for a in acknowledged),
            exhausted=sum(a.exhausted for a in acknowledged),
            dropped=sum(a.dropped for a in answers.values()),
            lost=sum(a.lost.count for a in answers.values()),
            lag=lag,
            stage_seconds=self.seconds,
            unanswered=sum(lease.offsets.count for lease in failed),
        )

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        self.keeper.check()
        run = self.run
        began = time.monotonic()
        run.progress(Progress(self.number, name, self.leased, run.records_done, began - run.began_at, None))
        try:
            yield
        finally:
            self.seconds[name] = time.monotonic() - began
        self.keeper.check()
