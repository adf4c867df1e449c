"""How does a share group's job work its way through the topic?

Round by round: ask the broker where the logs end, acquire within the budget, read exactly what was leased,
handle and write it, read back what was written, acknowledge each lease by that, and again, until there is
nothing to acquire. Locks are renewed meanwhile (`renewal.py`); a lost one stops the run before it writes or
acknowledges more. Whatever ends a run early, what it still held is given back at once. Joining and leaving
the group, the sweeps and the dead letters are the caller's.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from pyspark.sql import SparkSession

from pipelines.job import ShareGroupJob
from pipelines.outcomes import Answer, Seen, answer, missing, present, read_back, with_outcomes
from pipelines.plan import TopicPartition
from pipelines.read import leased_records
from pipelines.renewal import LeaseKeeper, Member, release_held
from pipelines.report import Progress, ProgressCallback, RoundReport, RunReport
from pipelines.write import Written, lease_folder, write_leases, write_summary
from sharequeue.configs import GroupConfigs
from sharequeue.database import Database
from sharequeue.errors import BrokerNotAvailable, OffsetOutOfRange, UnknownTopicId
from sharequeue.offsets import EMPTY, OffsetSet
from sharequeue.settings import Settings
from sharequeue.state import Acknowledged, Lease, LeaseOutput, SharePartition, State
from sharequeue.topics import LogOffsets, TopicInfo, Topics

__all__ = ["RoundReport", "RunReport", "run_rounds"]

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
    max_seconds: float | None = None,
    isolation_level: str | None = None,
    progress: ProgressCallback = lambda progress: None,
) -> RunReport:
    """Process what the member is assigned, until drained, or out of rounds, or no round may begin any more.

    `max_records` is the budget of one round. `isolation_level` is the group's own when None. Raises what the
    handler, Spark, the state or the broker raised, and LockLost; everything held has then been given back.
    """
    if isolation_level is None:
        with Database.open(settings) as database:
            isolation_level = GroupConfigs.load(database, job.group).isolation_level
    run = _Run(settings, job, membership, state, topics, spark, max_records, isolation_level, progress)
    return run.rounds(max_rounds, max_seconds)


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
        isolation_level: str,
        progress: ProgressCallback,
    ) -> None:
        self.settings = settings
        self.job = job
        self.member = member
        self.state = state
        self.topics = topics
        self.spark = spark
        self.max_records = max_records
        self.isolation_level = isolation_level
        self.progress = progress
        self.began_at = time.monotonic()
        self.records_done = 0
        self.job_tag = f"sharequeue-{uuid.uuid4().hex[:12]}"

    def rounds(self, max_rounds: int | None, max_seconds: float | None) -> RunReport:
        reports: list[RoundReport] = []
        drained = False
        with self._cancellable() as cancel, LeaseKeeper(self.state, self.member, cancel) as keeper:
            try:
                while not drained and (max_rounds is None or len(reports) < max_rounds):
                    if max_seconds is not None and time.monotonic() - self.began_at >= max_seconds:
                        break
                    report = _Round(self, keeper, len(reports) + 1).go()
                    if report is None:
                        drained = True
                    else:
                        reports.append(report)
            except BaseException as error:
                cancel()
                held = keeper.held
                for lease in held:
                    keeper.drop(lease)
                # Ctrl-C, SIGTERM and Dagster's own interruption are no Exceptions: somebody stopped the run.
                release_held(self.state, held, cancelled=not isinstance(error, Exception))
                # Spark's answer to the cancelled job is not the reason; the lost lock is.
                if isinstance(error, Exception):
                    keeper.check()
                raise
        seconds = time.monotonic() - self.began_at
        return RunReport(self.job.group, tuple(reports), self.lag(), drained, seconds)

    def lag(self) -> int:
        return sum(
            status.lag for status in self.state.describe(self.job.group) if status.topic in self.job.topics
        )

    @contextmanager
    def _cancellable(self) -> Iterator[Callable[[], None]]:
        """Spark's jobs of this run carry a tag, by which another thread can cancel them and nobody else's."""
        context = self.spark.sparkContext
        context.addJobTag(self.job_tag)
        context.setInterruptOnCancel(True)
        try:
            yield lambda: context.cancelJobsWithTag(self.job_tag)
        finally:
            context.removeJobTag(self.job_tag)


class _Round:
    def __init__(self, run: _Run, keeper: LeaseKeeper, number: int) -> None:
        self.run = run
        self.keeper = keeper
        self.number = number
        self.leased = 0
        self.seconds: dict[str, float] = {}

    def go(self) -> RoundReport | None:
        """One round; None when there was nothing to acquire."""
        run, job = self.run, self.run.job
        with self._stage("observe"):
            share_partitions = self._assigned()
            infos = self._observe(share_partitions)
        with self._stage("acquire"):
            leases = self._acquire(share_partitions)
        if not leases:
            return None
        self.leased = sum(lease.offsets.count for lease in leases)
        with self._stage("plan"):
            records = leased_records(
                run.spark,
                run.settings,
                leases,
                options=job.reader_options,
                isolation_level=run.isolation_level,
                headers=job.headers,
                max_scans=job.max_scans,
            )
            handled = with_outcomes(job.handler(records))
        with self._stage("write"):
            written = write_leases(run.spark, run.settings, job, handled, leases)
        with self._stage("summarise"):
            summaries = self._summarise(written, leases)
        with self._stage("read back"):
            seen = read_back(run.spark, written.folders)
            answers = self._answers(leases, seen, infos)
        with self._stage("acknowledge"):
            acknowledged = [
                self._acknowledge(lease, answers[lease.lease_id], seen, summaries) for lease in leases
            ]
        run.records_done += self.leased
        return self._report(leases, answers, acknowledged)

    def _assigned(self) -> list[SharePartition]:
        """What is assigned and of this job's topics, beginning elsewhere each round so that none starves."""
        assigned = sorted(sp for sp in self.run.member.assignment if sp.topic in self.run.job.topics)
        turn = (self.number - 1) % len(assigned) if assigned else 0
        return assigned[turn:] + assigned[:turn]

    def _observe(self, share_partitions: Sequence[SharePartition]) -> dict[str, TopicInfo]:
        """Have the state know where the logs end now; it leases nothing beyond."""
        infos = self.run.topics.describe({sp.topic for sp in share_partitions})
        offsets = self.run.topics.offsets_of({topic: info.partitions for topic, info in infos.items()})
        for sp in share_partitions:
            seen = offsets.get((sp.topic, sp.partition))
            if seen is not None:
                self._tell(sp, infos[sp.topic], seen)
        return infos

    def _tell(self, sp: SharePartition, info: TopicInfo, seen: LogOffsets) -> None:
        self.run.state.observe(sp, info.topic_id, seen.log_start, seen.log_end, seen.last_stable_offset)

    def _acquire(self, share_partitions: Sequence[SharePartition]) -> list[Lease]:
        run, leases, budget = self.run, list[Lease](), self.run.max_records
        for sp in share_partitions:
            if budget <= 0:
                break
            self.keeper.check()
            asked_at = time.monotonic()
            lease = run.state.acquire(
                sp,
                run.member.member_id,
                run.member.member_epoch,
                budget,
                lock_duration_ms=run.job.lock_duration_ms,
            )
            if lease is not None:
                self.keeper.hold(lease, asked_at)
                leases.append(lease)
                budget -= lease.offsets.count
        return leases

    def _summarise(self, written: Written, leases: Sequence[Lease]) -> dict[str, dict[int, str]]:
        """Partial sums of what was accepted, from the files, not from a second pass over the topic."""
        run, job = self.run, self.run.job
        summaries: dict[str, dict[int, str]] = {}
        for summary in job.summaries:
            name = job.summary_sink(summary)
            summaries[name] = {}
            if written.accepted:
                accepted = run.spark.read.parquet(*written.accepted.values())
                lease_ids = [lease.lease_id for lease in leases]
                summaries[name] = write_summary(
                    run.spark, run.settings, job, name, summary.partial(accepted), lease_ids
                )
        return summaries

    def _answers(
        self, leases: Sequence[Lease], seen: Mapping[int, Seen], infos: Mapping[str, TopicInfo]
    ) -> dict[int, Answer]:
        """The answer of each lease; the log is asked again only about offsets that have no outcome."""
        run = self.run
        wanted: dict[TopicPartition, OffsetSet] = {}
        for lease in leases:
            at = (lease.share_partition.topic, lease.share_partition.partition)
            if silent := missing(lease, seen.get(lease.lease_id)):
                wanted[at] = wanted.get(at, EMPTY) | silent
        in_log: dict[TopicPartition, OffsetSet] = {}
        starts: dict[TopicPartition, int] = {}
        if wanted:
            # Before the log is asked: it may be another one by now, and offsets past its end are waited for.
            self._log_starts(wanted, leases, infos)
            in_log = present(
                run.spark,
                run.settings,
                wanted,
                isolation_level=run.isolation_level,
                options=run.job.reader_options,
            )
            # Asked after the reading: what was absent because of retention lies below this log start.
            starts = self._log_starts(wanted, leases, infos)
        return {
            lease.lease_id: answer(
                lease,
                seen.get(lease.lease_id),
                in_log.get((lease.share_partition.topic, lease.share_partition.partition), EMPTY),
                starts.get((lease.share_partition.topic, lease.share_partition.partition), 0),
                run.job.dropped,
            )
            for lease in leases
        }

    def _log_starts(
        self,
        wanted: Mapping[TopicPartition, OffsetSet],
        leases: Sequence[Lease],
        infos: Mapping[str, TopicInfo],
    ) -> dict[TopicPartition, int]:
        """Where the logs of missing offsets start now, which the state is told; refuses what is no gap."""
        names = {topic for topic, _ in wanted}
        now = self.run.topics.describe(names)
        for name in names:
            if name not in now or now[name].topic_id != infos[name].topic_id:
                raise UnknownTopicId(
                    f"Topic {name!r} was deleted, or made again, while its records were read: what is "
                    "missing was not acknowledged. See what became of the topic; the records are delivered again."
                )
        offsets = self.run.topics.offsets_of({name: now[name].partitions for name in names})
        starts: dict[TopicPartition, int] = {}
        for sp in {lease.share_partition for lease in leases}:
            at = (sp.topic, sp.partition)
            if at not in wanted:
                continue
            seen = offsets.get(at)
            if seen is None:
                raise BrokerNotAvailable(
                    f"{sp} has no leader: whether its missing records are gaps is not known."
                )
            if wanted[at].end > seen.log_end:
                last = wanted[at].end - 1
                raise OffsetOutOfRange(
                    f"The log of {sp} ends at {seen.log_end}, before leased offset {last}: it was truncated. What is "
                    "missing was not acknowledged; reset the group's offsets once the cause is known."
                )
            starts[at] = seen.log_start
            self._tell(sp, now[sp.topic], seen)
        return starts

    def _acknowledge(
        self,
        lease: Lease,
        answered: Answer,
        seen: Mapping[int, Seen],
        summaries: Mapping[str, Mapping[int, str]],
    ) -> Acknowledged:
        run, job = self.run, self.run.job
        self.keeper.check()
        of_lease = seen.get(lease.lease_id)
        accepted_rows = of_lease.accepted_rows if of_lease else 0
        exceptions = of_lease.exceptions if of_lease else 0
        outputs = [
            LeaseOutput(job.sink, lease_folder(run.settings, job.sink, lease.lease_id), accepted_rows),
            LeaseOutput(
                job.exceptions_sink,
                lease_folder(run.settings, job.exceptions_sink, lease.lease_id),
                exceptions,
            ),
            *(
                LeaseOutput(name, folders[lease.lease_id], accepted_rows)
                for name, folders in summaries.items()
                if lease.lease_id in folders
            ),
        ]
        acknowledged = run.state.acknowledge(self.keeper.current(lease), answered.outcomes, outputs=outputs)
        self.keeper.drop(lease)
        if answered.lost:
            # Below the log start nothing can be answered any more; the lease ends without it.
            run.state.release_lease(lease)
        return acknowledged

    def _report(
        self, leases: Sequence[Lease], answers: Mapping[int, Answer], acknowledged: Sequence[Acknowledged]
    ) -> RoundReport:
        run = self.run
        lag = run.lag()
        seconds = time.monotonic() - run.began_at
        run.progress(Progress(self.number, "done", self.leased, run.records_done, seconds, lag))
        return RoundReport(
            number=self.number,
            lease_ids=tuple(lease.lease_id for lease in leases),
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
