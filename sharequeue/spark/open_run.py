"""What the rounds of one run share: its resources, and its totals."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from sharequeue.domain.values import SharePartition
from sharequeue.groups.configs import GroupConfigs
from sharequeue.reports.waiting_work import waiting_work_of
from sharequeue.spark.job import ShareGroupJob
from sharequeue.spark.kept_records import KeptFiles
from sharequeue.spark.known_handlers import known_handler
from sharequeue.spark.leasing.budget import Budget, RecordSizes
from sharequeue.spark.leasing.releases import Releases
from sharequeue.spark.leasing.renewal import LeasingMember
from sharequeue.spark.output.files import Files
from sharequeue.spark.output.lease_files import LeaseFiles
from sharequeue.spark.progress import ProgressCallback
from sharequeue.spark.raw_column import HandlerCalls
from sharequeue.spark.reading.plan import TopicPartition
from sharequeue.spark.reading.source import TopicSource
from sharequeue.spark.sinks.interface import OpenSink
from sharequeue.spark.sinks.written_columns import WrittenColumns


@dataclass(slots=True)
class OpenRun:
    """The resources and totals of one run."""

    job: ShareGroupJob
    member: LeasingMember
    source: TopicSource
    sink: OpenSink
    configs: GroupConfigs
    budget: Budget
    """The budget of one round, without the mean sizes, which are measured again for each round."""
    sizes: RecordSizes
    progress: ProgressCallback
    max_rounds: int | None = None
    max_seconds: float | None = None
    asked_at: float = field(default_factory=time.monotonic)
    """When the run was called; a wait for an assignment is left out."""
    lease_files: LeaseFiles = field(init=False)
    columns: WrittenColumns = field(init=False)
    kept: KeptFiles | None = field(init=False)
    """The raw records that the group keeps; None if it keeps none."""
    handler: HandlerCalls = field(init=False)
    """Calls the job's handler."""
    releases: Releases = field(init=False)
    leaderless: frozenset[TopicPartition] = field(init=False, default=frozenset())
    """The partitions of the topics that had no leader when a round was last leased."""
    lost_leader: frozenset[SharePartition] = field(init=False, default=frozenset())
    """The share-partitions that have lost it during a round: the run leases nothing more from them, so it ends."""
    began_at: float = field(init=False, default_factory=time.monotonic)
    """When the output was open, from which `max_seconds` count; a wait for an assignment is left out."""
    rounds_at: float = field(init=False, default_factory=time.monotonic)
    """When the first round began."""
    records_done: int = field(init=False, default=0)
    sink_waits: str | None = field(init=False, default=None)
    """Why the sink allows no further lease."""
    failure: str | None = field(init=False, default=None)
    """The first record of the run that failed with an error."""
    leasing: threading.Lock = field(init=False, default_factory=threading.Lock)
    """Held while a round is leased, and while one is acknowledged and its releases are noted."""
    reporting: threading.Lock = field(init=False, default_factory=threading.Lock)

    def __post_init__(self) -> None:
        spark, settings, state = self.source.spark, self.source.settings, self.source.state
        files = Files(spark, settings.output)
        self.kept = KeptFiles.of(self.source, self.configs, self.job.topics, files=files)
        keep = None if self.kept is None else self.kept.keep
        self.lease_files = LeaseFiles(spark, settings, state, self.job.names, files, keep)
        self.columns = WrittenColumns(spark, state, self.job.names)
        keeping = None if self.kept is None else self.kept.topics
        known = known_handler(spark, self.job.handler)
        self.handler = HandlerCalls(self.job.handler, known, keeping, self.sink.passes_traces)
        self.releases = Releases(self.job.deliveries_per_run)

    @property
    def files(self) -> Files:
        """The file system of the output."""
        return self.lease_files.files

    def assigned(self) -> list[SharePartition]:
        """Return the assigned share-partitions of this job's topics."""
        return [each for each in self.member.assignment if each.topic in self.job.topics]

    def left(self) -> tuple[int, bool]:
        """Return the lag, and whether records that were never leased wait for this member: as of one moment."""
        parts = [
            each
            for each in waiting_work_of(self.source.state.database, self.job.group)
            if each.topic in self.job.topics
        ]
        mine = {(each.topic, each.partition) for each in self.assigned()}
        new = (
            each.ready_records and each.log_end > each.speo
            for each in parts
            if (each.topic, each.partition) in mine
        )
        return sum(each.lag for each in parts), any(new)
