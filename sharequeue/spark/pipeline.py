"""A pipeline: a handler with its job, which needs only settings to run.

`pipeline` makes a job of a function, and that job runs by itself: it creates the settings, the database, the
membership and the Spark session if they are not given, and closes what it created. The Spark session stays open: it
belongs to the process, as with `lease`, and a DataFrame of the output needs it. `run.py` does the work.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sharequeue.database import Database
from sharequeue.groups.membership import Membership
from sharequeue.kafka.topics import Topics
from sharequeue.spark.following import FollowReport, OnRun, follow_rounds
from sharequeue.spark.handler import Handler
from sharequeue.spark.job import ShareGroupJob, Summary
from sharequeue.spark.leasing.budget import MAX_RECORDS
from sharequeue.spark.leasing.group import living_topics
from sharequeue.spark.leasing.member import Member
from sharequeue.spark.output.manifest import read_output
from sharequeue.spark.progress import ProgressCallback, shown_progress
from sharequeue.spark.reading.isolation_level import one_level
from sharequeue.spark.reading.plan import TopicPartition
from sharequeue.spark.replays.publishing import PublishReport, publish
from sharequeue.spark.replays.replay import replay
from sharequeue.spark.replays.report import ReplayReport
from sharequeue.spark.replays.trial import Trial, try_on
from sharequeue.spark.report import RunReport
from sharequeue.spark.run import run_rounds
from sharequeue.spark.session import refuse_connect, spark_session
from sharequeue.spark.sinks.interface import Sink
from sharequeue.spark.sweep import sweep_outputs
from sharequeue.spark.table import Removed
from sharequeue.state import State
from sharequeue.words.offsets import OffsetSet
from sharequeue.words.settings import Settings

__all__ = ["Pipeline", "pipeline"]


@dataclass(frozen=True, slots=True)
class Pipeline(ShareGroupJob):
    """A job that needs only settings to run. `pipeline` makes one of a function."""

    @one_level
    def run(
        self,
        settings: Settings | None = None,
        *,
        spark: SparkSession | None = None,
        state: State | None = None,
        membership: Member | None = None,
        max_rounds: int | None = None,
        max_records: int = MAX_RECORDS,
        max_bytes: int | None = None,
        max_seconds: float | None = None,
        only: Collection[str] | None = None,
        replaces: str | None = None,
        progress: bool | ProgressCallback = True,
    ) -> RunReport:
        """Lease, handle, write and acknowledge, round by round, until nothing is left to lease.

        Settings, Spark session, state and membership are created when they are not given. A membership that is
        created here joins the group through the service and leaves it at the end. `max_records` and `max_bytes` bound
        one round; `max_bytes` is the job's when None, or else the group's own. `max_rounds` and `max_seconds` bound
        the run. `only` names partitions, such as `orders-0`: of the assigned partitions it leases only from these,
        and the report names the others. Only one pipeline works on a group: `replaces` is the name of the previous
        one, if this one replaces it. `progress` is shown on stderr, or below the cell of a notebook; with False it is
        not shown; a function receives it instead.

        Raises GroupTaken where another pipeline works on the group, or has replaced this one meanwhile, TypeError for
        a bound that is not a number, ValueError for a budget below one record and for a `max_seconds` that is
        negative or not finite, UnknownTopicOrPartition for a topic or partition that does not exist, UnknownTopicId
        if all its topics were deleted or recreated, what the handler, Spark, the state or the broker raised,
        HandlerError, MostFailed, LockLost, OutputNotReachable, OutputNotShared, SinkTaken, SinkRefused,
        SettingMissing, SparkNotReady, and the errors of joining. All leases have then been given back, with their
        deliveries unless a Spark task had run and left records without an outcome.
        """
        loaded = settings or Settings.load()
        with ExitStack() as stack:
            topics = stack.enter_context(Topics(loaded))
            queue = state or State(stack.enter_context(Database.open(loaded)))
            # Before Spark starts, and before joining waits for partitions of a topic that does not exist.
            living_topics(topics, queue, self.group, self.topics)
            _, session, _ = stack.enter_context(self._opened(loaded, spark, queue))
            member = membership
            if member is None:
                joined = stack.enter_context(Membership(loaded.service, self.group, self.topics))
                joined.join()
                member = joined
            shown = stack.enter_context(shown_progress(progress))
            return run_rounds(
                loaded,
                self,
                membership=member,
                state=queue,
                topics=topics,
                spark=session,
                max_rounds=max_rounds,
                max_records=max_records,
                max_bytes=max_bytes,
                max_seconds=max_seconds,
                only=only,
                replaces=replaces,
                progress=shown,
            )

    @one_level
    def follow(
        self,
        settings: Settings | None = None,
        *,
        spark: SparkSession | None = None,
        max_rounds: int | None = None,
        max_records: int = MAX_RECORDS,
        max_bytes: int | None = None,
        max_seconds: float | None = None,
        only: Collection[str] | None = None,
        replaces: str | None = None,
        progress: bool | ProgressCallback = True,
        on_run: OnRun = lambda report: None,
    ) -> FollowReport:
        """Run, wait for records, and run again, with one Spark session and one membership, until a signal ends it.

        A new record is leased about two seconds after it was produced. `max_rounds` and `max_seconds` bound the
        total, the other arguments are those of `run`. `on_run` gets the report of each run that did something. It
        waits for the end of outages of Postgres, the broker, the service and the output, also at the start.

        Raises the other errors of `run`, for example for an unknown host name, and SparkNotReady if the Spark session
        has ended.
        """
        loaded = settings or Settings.load()
        with ExitStack() as stack:
            topics = stack.enter_context(Topics(loaded))
            database = stack.enter_context(Database.open(loaded))
            member = stack.enter_context(Membership(loaded.service, self.group, self.topics))
            shown = stack.enter_context(shown_progress(progress))
            return follow_rounds(
                loaded,
                self,
                membership=member,
                database=database,
                topics=topics,
                spark=spark,
                max_rounds=max_rounds,
                max_records=max_records,
                max_bytes=max_bytes,
                max_seconds=max_seconds,
                only=only,
                replaces=replaces,
                progress=shown,
                on_run=on_run,
            )

    def try_on(
        self,
        records: int = 100,
        settings: Settings | None = None,
        *,
        spark: SparkSession | None = None,
        state: State | None = None,
    ) -> Trial:
        """Run the handler on up to so many records that a run would lease now: nothing is leased, written or
        acknowledged, and no group is created.

        If there are none to lease, the last records of the topics are used instead, and `remark` is set. Raises
        ValueError for less than one record, HandlerError, what the handler raises, SettingMissing and SparkNotReady.
        """
        with self._opened(settings, spark, state) as (loaded, session, queue), Topics(loaded) as topics:
            return try_on(self, records, loaded, queue, topics, session)

    def replay(
        self,
        settings: Settings | None = None,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        offsets: Mapping[TopicPartition, OffsetSet] | None = None,
        leases: Sequence[int] = (),
        name: str | None = None,
        allow_missing: bool = False,
        dry_run: bool = False,
        spark: SparkSession | None = None,
        state: State | None = None,
    ) -> ReplayReport:
        """Run the handler again on past records: by time, by offsets, or those that leases had accepted.

        The live group does not change. The result is in a separate folder, `report.path`. The records are those with
        timestamps at or after `since` and before `until`, or those at `offsets`, by topic and partition, or those
        that `leases`, by their ids, had accepted: exactly one of the three. `name` is the folder's; by default it is
        made from the choice. With `dry_run` the records are only found and counted.

        Raises ValueError unless there is exactly one choice, OffsetOutOfRange if retention has removed records,
        unless `allow_missing`, UnknownTopicOrPartition, InvalidRequest for an unknown lease, HandlerError,
        SettingMissing, SparkNotReady, and what the handler raises: nothing has then been replaced.
        """
        with self._opened(settings, spark, state) as (loaded, session, queue), Topics(loaded) as topics:
            return replay(
                self,
                loaded,
                state=queue,
                topics=topics,
                spark=session,
                since=since,
                until=until,
                offsets=offsets,
                leases=leases,
                name=name,
                allow_missing=allow_missing,
                dry_run=dry_run,
            )

    def publish(
        self,
        name: str,
        settings: Settings | None = None,
        *,
        execute: bool = False,
        spark: SparkSession | None = None,
        state: State | None = None,
    ) -> PublishReport:
        """Replace rows of the live output with a replay's accepted rows of the same records.

        Without `execute` nothing is changed, and the report has what would change. Publishing the same replay again
        changes no row. Released and rejected records and dead letters of the live group do not change.

        Raises InvalidRequest when there is no such replay, when the group has not finished all its records, when a
        compaction committed first, or when the sink cannot remove rows;
        UnknownTopicId when a topic was recreated; CompactionFailed, SettingMissing, SparkNotReady, and what a sink
        raises: nothing has then changed.
        """
        with self._opened(settings, spark, state) as (loaded, session, queue), Topics(loaded) as topics:
            return publish(
                self,
                loaded,
                name,
                state=queue,
                topics=topics,
                spark=session,
                execute=execute,
            )

    def output(
        self,
        settings: Settings | None = None,
        *,
        spark: SparkSession | None = None,
        state: State | None = None,
        sink: str | None = None,
        schema: StructType | str | None = None,
    ) -> DataFrame:
        """Return the accepted records as of now: those whose acknowledgement has committed, each once.

        `sink` is the job's own when None; `exceptions_sink` and `summary_sink(…)` name the others. `schema` names the
        columns where nothing has been accepted yet. Raises NotFiles for a job whose rows are not in files, NoSuchSink
        for a sink that is not one of its own and has no output, ColumnChanged, SettingMissing and SparkNotReady.
        """
        with self._opened(settings, spark, state) as (_, session, queue):
            return read_output(session, queue, self.group, sink or self.sink, schema, known=self.names.all)

    def sweep(
        self,
        settings: Settings | None = None,
        *,
        spark: SparkSession | None = None,
        state: State | None = None,
        dry_run: bool = False,
    ) -> Removed:
        """Remove the output of leases that ended without an acknowledgement; return what was removed.

        With `dry_run` nothing is removed. Raises SinkTaken when the sink is another group's, SettingMissing and
        SparkNotReady.
        """
        with self._opened(settings, spark, state) as (loaded, session, queue):
            return sweep_outputs(session, loaded, queue, self, dry_run=dry_run)

    @contextmanager
    def _opened(
        self, settings: Settings | None, spark: SparkSession | None, state: State | None
    ) -> Iterator[tuple[Settings, SparkSession, State]]:
        """Yield the required resources, created if not given; the database is closed at the end."""
        if spark is not None:
            refuse_connect(spark)
        loaded = settings or Settings.load()
        with ExitStack() as stack:
            # Before Spark starts, which takes seconds: an error here is raised at once.
            queue = state or State(stack.enter_context(Database.open(loaded)))
            yield loaded, spark or spark_session(loaded, f"pipeline of {self.group}"), queue


def pipeline(
    *,
    group: str,
    topics: Sequence[str],
    sink: str | None = None,
    summaries: Sequence[Summary] = (),
    dropped: str | None = None,
    lock_duration_ms: int | None = None,
    headers: bool = True,
    reader_options: Mapping[str, str] | None = None,
    destination: Sink | None = None,
    max_bytes: int | None = None,
    unknown: str | None = None,
    deliveries_per_run: int = 1,
    failed_share: float | None = 0.5,
    failed_records: int = 100,
    try_empty: bool = True,
    name: str | None = None,
) -> Callable[[Handler], Pipeline]:
    """Make a pipeline whose handler is a function from DataFrame to DataFrame.

    Without a sink name, the sink is named after the function, or after the group if the function has no name. The
    function gets `topic, partition, offset, timestamp, timestamp_type, key, value, headers, delivery_count, lease_id`
    and returns the rows to write, with `outcome` (accept, release or reject) and optionally `error` and `not_before`,
    a timestamp before which a released record is not redelivered.
    """

    def mark(handler: Handler) -> Pipeline:
        return Pipeline(
            group=group,
            topics=(topics,) if isinstance(topics, str) else tuple(topics),
            handler=handler,
            sink=sink or _named_after(handler, group),
            summaries=tuple(summaries),
            dropped=dropped,
            lock_duration_ms=lock_duration_ms,
            headers=headers,
            reader_options=dict(reader_options or {}),
            destination=destination,
            max_bytes=max_bytes,
            unknown=unknown,
            deliveries_per_run=deliveries_per_run,
            failed_share=failed_share,
            failed_records=failed_records,
            try_empty=try_empty,
            name=name,
        )

    return mark


def _named_after(handler: Handler, group: str) -> str:
    """Return the function's name, or the group's for a lambda, because all lambdas have the same name."""
    name = str(getattr(handler, "__name__", ""))
    return name if name.isidentifier() else group
