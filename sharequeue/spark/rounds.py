"""What does one round of a run do?

It asks the broker where the logs end, acquires within the budget, reads exactly what was leased, handles and writes
it, reads back what was written, and acknowledges each lease accordingly. The locks are renewed meanwhile
(`leasing/renewal.py`); a lost one stops the round before it writes or acknowledges more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame

from sharequeue.errors import InvalidRequest
from sharequeue.groups.configs import GroupConfigs
from sharequeue.kafka.topics import TopicInfo
from sharequeue.offsets import EMPTY
from sharequeue.spark.job import ShareGroupJob
from sharequeue.spark.leasing.budget import Budget
from sharequeue.spark.leasing.isolation import Ended, Isolation, SparkJob, apart, parts_each
from sharequeue.spark.leasing.member import Member
from sharequeue.spark.leasing.renewal import LeaseKeeper, release_held
from sharequeue.spark.outcomes.acknowledging import ToAcknowledge, acknowledge_all
from sharequeue.spark.outcomes.failure_limits import Limits
from sharequeue.spark.outcomes.handler_result import call_handler
from sharequeue.spark.outcomes.missing import Acknowledgement, acknowledgements
from sharequeue.spark.outcomes.read_back import Seen, read_back, refuse_other_partitions
from sharequeue.spark.outcomes.retries import Backoff, Releases
from sharequeue.spark.output.files import Files, literal
from sharequeue.spark.output.folders import no_files, refuse_taken
from sharequeue.spark.output.lease_files import Written, durable, intact, write_leases, write_summary
from sharequeue.spark.output.shared_folder import all_read_back
from sharequeue.spark.reading.sizes import RecordSizes
from sharequeue.spark.reading.source import Source
from sharequeue.spark.report import Progress, ProgressCallback, RoundReport
from sharequeue.spark.session import Jobs, uncache_all
from sharequeue.spark.sinks.interface import Accepted, OpenSink, SinkContext
from sharequeue.spark.sinks.parquet import ParquetByLease
from sharequeue.values import (
    Acknowledged,
    AcknowledgeType,
    Lease,
    LeaseOutput,
    SharePartition,
    SharePartitionStatus,
)

ALONE_EVERY = 8
"""Of so many rounds in a row one is leased only when the round before it has ended."""


class Stopped(Exception):
    """Nothing more is written or acknowledged for a round: the one before it has failed, or the run is stopped."""


@dataclass(slots=True)
class Run:
    """What the rounds of one run have in common."""

    job: ShareGroupJob
    member: Member
    source: Source
    context: SinkContext
    sink: OpenSink
    configs: GroupConfigs
    budget: Budget
    """Of one round, without the mean sizes, which are measured anew for each."""
    sizes: RecordSizes
    progress: ProgressCallback
    max_rounds: int | None = None
    only: frozenset[str] | None = None
    """The share-partitions that are leased from, such as `orders-0`; None for all that are assigned."""
    files: Files = field(init=False)
    """Of the output: made once, because that takes longer than most of what is asked of it."""
    releases: Releases = field(init=False)
    began_at: float = field(init=False, default_factory=time.monotonic)
    records_done: int = field(init=False, default=0)
    leasing: threading.Lock = field(init=False, default_factory=threading.Lock)
    """Held while a round is leased, and while one is acknowledged and its releases are noted."""
    telling: threading.Lock = field(init=False, default_factory=threading.Lock)
    left: int | None = field(init=False, default=None)
    """Records that the run may still lease, as it last looked."""

    def __post_init__(self) -> None:
        self.files = Files(self.source.spark, self.source.settings.output)
        self.releases = Releases(self.job.deliveries_per_run)

    @property
    def files_alone(self) -> bool:
        """Whether the files by lease are the output, and no sink has anything else to do."""
        return self.job.destination is None or isinstance(self.job.destination, ParquetByLease)

    def assigned(self) -> list[SharePartition]:
        """Return what the member is assigned of this job's topics, and may lease from."""
        return [each for each in self.of_topics() if self.only is None or str(each) in self.only]

    def left_out(self) -> tuple[str, ...]:
        """Return what the member is assigned and does not lease from, because others were chosen."""
        return tuple(str(each) for each in self.of_topics() if self.only and str(each) not in self.only)

    def not_assigned(self) -> tuple[str, ...]:
        """Return what was chosen and is not assigned to the member."""
        return tuple(sorted((self.only or frozenset()) - set(map(str, self.of_topics()))))

    def of_topics(self) -> list[SharePartition]:
        """Return what the member is assigned of this job's topics."""
        return sorted(sp for sp in self.member.assignment if sp.topic in self.job.topics)

    def lag(self) -> int:
        """Return the lag of the group in this job's topics."""
        return sum(status.lag for status in self._statuses())

    def look(self, rounds_done: int, held: Sequence[Lease] = ()) -> int:
        """Return the lag, and note what is `left` of it for this run after so many rounds; what it has `held` of the
        next one is among it.
        """
        statuses = self._statuses()
        left = sum(
            max(0, each.lag - each.acquired - each.archiving - each.waiting)
            for each in statuses
            if self.only is None or str(each.share_partition) in self.only
        ) + sum(lease.offsets.count for lease in held)
        if self.max_rounds is not None:
            # A budget of bytes is known by what the rounds so far have leased.
            a_round = self.records_done // rounds_done if rounds_done else self.budget.max_records
            left = min(left, (self.max_rounds - rounds_done) * a_round)
        self.left = left
        return sum(status.lag for status in statuses)

    def fitting(self, handled: DataFrame) -> DataFrame:
        """Return what the handler made as the sink can take it. Raises SinkRefused."""
        self.context.columns_fit(handled.schema)
        return self.sink.fits(handled)

    def _statuses(self) -> list[SharePartitionStatus]:
        statuses = self.source.state.figures.describe(self.job.group)
        return [status for status in statuses if status.topic in self.job.topics]

    def isolation(self, keeper: LeaseKeeper) -> Isolation:
        """Return what runs the Spark jobs of each round, and writes what the handler makes of its records."""
        source, names = self.source, self.job.names
        return Isolation(
            source.spark,
            keeper,
            lambda handled, leases: write_leases(
                self.files, source.settings, source.state, names, handled, leases
            ),
            stop_alike=self.job.failed_share is not None,
        )


class Round:
    """One round of a run, whose number begins at 1."""

    def __init__(self, run: Run, keeper: LeaseKeeper, isolation: Isolation, jobs: Jobs, number: int) -> None:
        self.run = run
        self.isolation = isolation
        self.keeper = keeper
        self.jobs = jobs
        self.number = number
        self.leases: list[Lease] = []
        self.records: list[DataFrame] = []
        self.planned: list[SparkJob] = []
        self.infos: Mapping[str, TopicInfo] = {}
        self.leased = 0
        self.full = False
        """Whether it leased as much as its budget allows."""
        self.stopped = False
        """Set by another thread: it writes and acknowledges nothing more."""
        self.seconds: dict[str, float] = {}

    def prepare(self, *, ahead: bool = False) -> bool:
        """Lease and plan; return whether there was anything to lease. A round `ahead` is leased while the one before
        it is held.
        """
        run = self.run
        with self._stage("observe"):
            share_partitions = self._assigned()
            self.infos = run.source.observe(run.of_topics())
            if run.left is None:
                run.look(0)
        with self._stage("acquire"), run.leasing:
            self.leases = self._acquire(share_partitions, ahead)
        if not self.leases:
            return False
        self.leased = sum(lease.offsets.count for lease in self.leases)
        with self._stage("plan"):
            for some in apart(self.leases):
                self.records.append(run.source.records(some))
                handled = call_handler(run.job.handler, self.records[-1], run.job.unknown)
                self.planned.append(SparkJob(some, run.fitting(handled)))
        return True

    def may_be_followed(self) -> bool:
        """Return whether the next round may be leased and planned, and then written, before this one has ended.

        Not by a round that took all there was: the next one would lease what comes in meanwhile, bit by bit. Not with
        suspects, which may end the driver, and the next round's records would be suspects too. Not where a sink does
        more than to leave the files where they are: its writer would be called beside the handler. Each
        `ALONE_EVERY`th is not, so that a last attempt, which is alone in its round, comes to its turn.
        """
        return (
            self.full
            and self.run.files_alone
            and self.number % ALONE_EVERY != 0
            and not any(lease.suspects or lease.last_attempt for lease in self.leases)
        )

    def write(self) -> Ended:
        """Have Spark read, handle and write the records."""
        topics = {lease.share_partition.topic for lease in self.leases}
        with self._stage("write"), self.run.source.changed_topics_are_named(topics, self.infos):
            return self.isolation.write(self.planned)

    def finish(self, ended: Ended) -> RoundReport:
        """Read back what was written, and acknowledge each lease by that; return the round's figures."""
        run, job = self.run, self.run.job
        leases, written = ended.leases, ended.written
        with self._stage("summarise"), intact(run.files, written, leases):
            summaries = self._summarise(written, leases)
        with self._stage("read back"), intact(run.files, written, leases), durable(run.files, written):
            seen = read_back(
                run.source.spark,
                written.folders,
                delays="not_before" in self.planned[0].handled.schema.names,
                files=run.files,
            )
            all_read_back(job.sink, written.rows, sum(of_lease.rows for of_lease in seen.values()))
            refuse_other_partitions(leases, seen)
            wanted = acknowledgements(run.source, leases, seen, self.infos, job.dropped)
        Limits(job.failed_share, job.failed_records).check(run.source.spark, written, leases, seen)
        backoff, now = Backoff.of(run.configs), run.source.state.now()
        wanted = {lease.lease_id: backoff.apply(lease, wanted[lease.lease_id], now) for lease in leases}
        if run.sink.stages:
            with self._stage("stage"):
                run.sink.stage(written)
        if written.folders:
            run.context.columns_fit(self.planned[0].handled.schema, keep=True)
        # What is released must not be leased by the next round before it is noted.
        with self._stage("acknowledge"), run.leasing, self._sink_taken_is_named():
            acknowledged = self._acknowledge(leases, wanted, written, seen, summaries)
            for lease in leases:
                released = wanted[lease.lease_id].outcomes.get(AcknowledgeType.RELEASE, EMPTY)
                run.releases.add(lease.share_partition, released, acknowledged[lease.lease_id].spso)
        if run.sink.transfers:
            with self._stage("transfer"):
                run.sink.transfer()
        run.records_done += self.leased
        return self._report(leases, wanted, list(acknowledged.values()), ended.failed)

    def forget(self) -> None:
        """Remove from Spark's cache what the handler has cached of the round, however far it came."""
        for each in self.records:
            uncache_all(each)
        self.records.clear()

    def _assigned(self) -> list[SharePartition]:
        """Return what is assigned of this job's topics; each round begins at another one, so that none starves."""
        assigned = self.run.assigned()
        turn = (self.number - 1) % len(assigned) if assigned else 0
        return assigned[turn:] + assigned[:turn]

    def _acquire(self, share_partitions: Sequence[SharePartition], ahead: bool) -> list[Lease]:
        run = self.run
        means: Mapping[str, float] = {}
        if run.budget.max_bytes:
            means = run.sizes.measure(share_partitions, run.source.state.figures.describe(run.job.group))
        budget = replace(run.budget, mean_bytes=means)
        parts = parts_each(len(share_partitions))
        leases = self.keeper.acquire_within(
            budget,
            share_partitions,
            run.job.lock_duration_ms,
            run.releases.spent,
            parts,
            last_attempts=not ahead,
        )
        self.full = budget.is_used_up(leases)
        return leases

    def _summarise(self, written: Written, leases: Sequence[Lease]) -> dict[str, dict[int, str]]:
        """Write partial sums of what was accepted, from the files, not from a second pass over the topic."""
        run, job = self.run, self.run.job
        summaries: dict[str, dict[int, str]] = {}
        for summary in job.summaries:
            name = job.summary_sink(summary)
            summaries[name] = {}
            if written.accepted:
                schema = self.planned[0].handled.schema  # or a job would look for it in the files
                folders = map(literal, written.accepted.values())
                accepted = run.source.spark.read.schema(schema).parquet(*folders)
                summaries[name] = write_summary(
                    run.files,
                    run.source.settings,
                    run.source.state,
                    name,
                    summary.partial(accepted),
                    [lease.lease_id for lease in leases],
                )
        return summaries

    def _acknowledge(
        self,
        leases: Sequence[Lease],
        wanted: Mapping[int, Acknowledgement],
        written: Written,
        seen: Mapping[int, Seen],
        summaries: Mapping[str, Mapping[int, str]],
    ) -> dict[int, Acknowledged]:
        """Acknowledge the leases; return what the state replied, by lease id."""
        run = self.run
        given: list[ToAcknowledge] = []
        acknowledged: dict[int, Acknowledged] = {}
        for lease in leases:
            acknowledgement = wanted[lease.lease_id]
            others = self._other_outputs(lease, written, seen, summaries)
            rows = seen[lease.lease_id].accepted_rows if lease.lease_id in seen else 0
            accepted = Accepted(lease, written.accepted.get(lease.lease_id), rows)
            output = run.sink.output(accepted)
            if output is not None:
                given.append(ToAcknowledge(lease, acknowledgement, [output, *others]))
                continue
            with self.keeper.acknowledging(lease) as kept:
                acknowledged[lease.lease_id] = run.sink.acknowledge(
                    replace(accepted, lease=kept), acknowledgement, others
                )
        plain = acknowledge_all(run.source.state, self.keeper, given)
        acknowledged |= {each.lease.lease_id: result for each, result in zip(given, plain, strict=True)}
        # Below the log start nothing can be acknowledged any more; such a lease ends without it.
        release_held(run.source.state, [lease for lease in leases if wanted[lease.lease_id].lost])
        return acknowledged

    @contextmanager
    def _sink_taken_is_named(self) -> Iterator[None]:
        """Raise SinkTaken where an acknowledgement was refused because another group has counted in the sink
        since the run began.
        """
        source = self.run.source
        try:
            yield
        except InvalidRequest:
            refuse_taken(self.run.files, source.settings, source.state, self.run.job.names)
            raise

    def _other_outputs(
        self,
        lease: Lease,
        written: Written,
        seen: Mapping[int, Seen],
        summaries: Mapping[str, Mapping[int, str]],
    ) -> list[LeaseOutput]:
        """Return what counts with a lease's acknowledgement in addition to its accepted rows."""
        run, job = self.run, self.run.job
        of_lease = seen.get(lease.lease_id)
        return [
            LeaseOutput(
                job.exceptions_sink,
                written.exceptions.get(lease.lease_id)
                or no_files(run.source.settings, run.source.state, job.exceptions_sink, lease.lease_id),
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
        wanted: Mapping[int, Acknowledgement],
        acknowledged: Sequence[Acknowledged],
        failed: Sequence[Lease],
    ) -> RoundReport:
        run = self.run
        lag = run.look(self.number, held=self.keeper.held)
        self._tell("done", lag)
        return RoundReport(
            number=self.number,
            lease_ids=tuple(lease.lease_id for lease in (*leases, *failed)),
            leased=self.leased,
            accepted=sum(a.accepted for a in acknowledged),
            released=sum(a.released for a in acknowledged),
            rejected=sum(a.rejected for a in acknowledged),
            gaps=sum(a.gaps for a in acknowledged),
            exhausted=sum(a.exhausted for a in acknowledged),
            dropped=sum(a.dropped for a in wanted.values()),
            lost=sum(a.lost.count for a in wanted.values()),
            lag=lag,
            stage_seconds=self.seconds,
            unacknowledged=sum(lease.offsets.count for lease in failed),
        )

    def _tell(self, stage: str, lag: int | None = None) -> None:
        run = self.run
        seconds = time.monotonic() - run.began_at
        with run.telling:
            run.progress(Progress(self.number, stage, self.leased, run.records_done, seconds, lag, run.left))

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        self._check()
        self._tell(name)
        self.jobs.describe(f"{self.run.job.group}, round {self.number}: {name}")
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = time.monotonic() - began
        self._check()

    def _check(self) -> None:
        self.keeper.check()
        if self.stopped:
            raise Stopped
