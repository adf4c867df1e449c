"""How does a pipeline run with nothing but settings?

`pipeline` makes a job of a function, and that job runs by itself: it makes the settings, the database, the membership
and the Spark session where they are not given, and closes what it made. The Spark session stays: it is the process's,
as with `lease`, and a DataFrame of the output needs it. `run.py` does the work.
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
from sharequeue.offsets import OffsetSet
from sharequeue.settings import Settings
from sharequeue.spark.contract import Handler
from sharequeue.spark.following import FollowReport, OnRun, follow_rounds
from sharequeue.spark.job import ShareGroupJob, Summary
from sharequeue.spark.leasing.budget import MAX_RECORDS
from sharequeue.spark.leasing.member import Member
from sharequeue.spark.leasing.nothing_leased import refuse_lost
from sharequeue.spark.output.manifest import read_output
from sharequeue.spark.progress import shown_progress
from sharequeue.spark.reading.levels import one_level
from sharequeue.spark.reading.plan import TopicPartition
from sharequeue.spark.replays.publishing import PublishReport, publish
from sharequeue.spark.replays.replay import replay
from sharequeue.spark.replays.report import ReplayReport
from sharequeue.spark.report import ProgressCallback, RunReport
from sharequeue.spark.run import run_rounds
from sharequeue.spark.session import refuse_connect, spark_session
from sharequeue.spark.showing import Removed
from sharequeue.spark.sinks.interface import Sink
from sharequeue.spark.sweeping import sweep_outputs
from sharequeue.spark.trial import Trial, try_on
from sharequeue.state import State

__all__ = ["Pipeline", "pipeline"]


@dataclass(frozen=True, slots=True)
class Pipeline(ShareGroupJob):
    """A job that needs nothing but settings to run. `pipeline` makes one of a function."""

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

        Settings, Spark session, state and membership are made when they are not given. A membership that is made here
        joins the group through the service and leaves it at the end. The bounds are those of `run_rounds`:
        `max_records` and `max_bytes` of one round, `max_rounds` and `max_seconds` of the run, and `only`, the
        partitions that are leased from, such as `orders-0`. One pipeline works on a group: `replaces` is the name of
        the one before, if this one takes its place. `progress` is shown on stderr, or below the cell of a notebook;
        with False it is not, and a function gets it instead.

        Raises what `run_rounds` raises, SettingMissing, SparkNotReady, and the errors of joining.
        """
        loaded = settings or Settings.load()
        with ExitStack() as stack:
            topics = stack.enter_context(Topics(loaded))
            # Before Spark starts, and before joining waits for partitions of a topic that is not there.
            topics.require(self.topics)
            _, session, queue = stack.enter_context(self._opened(loaded, spark, state))
            refuse_lost(queue, self.group, self.topics)
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

        A new record is leased some two seconds after it was produced. `max_rounds` and `max_seconds` bound the whole,
        the other arguments are those of `run`. `on_run` gets the report of each run that did something. Outages of
        Postgres, the broker, the service and the output are waited out, also at the start.

        Raises what `run` raises for all else, such as for a host name that is not known, and SparkNotReady where the
        Spark session has ended.
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
        acknowledged, and no group is made.

        Where there are none to lease, the last records of the topics take their place, and `remark` says so. Raises
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
        member: str | None = None,
        name: str | None = None,
        allow_missing: bool = False,
        output: str | None = None,
        dry_run: bool = False,
        spark: SparkSession | None = None,
        state: State | None = None,
    ) -> ReplayReport:
        """Run the handler again on records of the past: by time, by offsets, or what leases had accepted.

        Nothing of the live group is touched. What comes back is in a folder of its own, `report.path`. Arguments and
        errors are those of `sharequeue.spark.replay`, and SettingMissing and SparkNotReady.
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
                member=member,
                name=name,
                allow_missing=allow_missing,
                output=output,
                dry_run=dry_run,
            )

    def publish(
        self,
        name: str,
        settings: Settings | None = None,
        *,
        output: str | None = None,
        execute: bool = False,
        spark: SparkSession | None = None,
        state: State | None = None,
    ) -> PublishReport:
        """Put a replay's accepted rows into the live output, in the place of those of the same records.

        Without `execute` nothing is changed, and the report says what would be. Errors are those of
        `sharequeue.spark.publish`, and SettingMissing and SparkNotReady.
        """
        with self._opened(settings, spark, state) as (loaded, session, queue), Topics(loaded) as topics:
            return publish(
                self,
                loaded,
                name,
                state=queue,
                topics=topics,
                spark=session,
                output=output,
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
        columns where nothing has been accepted yet. Raises NotFiles for a job whose rows go elsewhere, NoSuchSink
        for a sink that is none of its own and has no output, ColumnChanged, SettingMissing and SparkNotReady.
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
        """Remove what leases left that ended without an acknowledgement; return what.

        With `dry_run` nothing is removed. Raises SinkTaken when the sink is another group's, SettingMissing and
        SparkNotReady.
        """
        with self._opened(settings, spark, state) as (loaded, session, queue):
            return sweep_outputs(session, loaded, queue, self, dry_run=dry_run)

    @contextmanager
    def _opened(
        self, settings: Settings | None, spark: SparkSession | None, state: State | None
    ) -> Iterator[tuple[Settings, SparkSession, State]]:
        """Give what is needed, made where it is not given; the database is closed at the end."""
        if spark is not None:
            refuse_connect(spark)
        loaded = settings or Settings.load()
        with ExitStack() as stack:
            # Before Spark starts, which takes seconds: what is missing here is said at once.
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
    """Make a function from DataFrame to DataFrame the handler of a share group: a job that runs itself.

    The sink is named after the function where no name is given, or after the group where the function has none.
    The function gets `topic, partition, offset, timestamp, timestamp_type, key, value, headers,
    delivery_count, lease_id` and returns the rows to write, with `outcome` (accept, release or reject) and,
    if it likes, `error` and `not_before`, a timestamp before which a released record does not come again.
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
    """The function's name; the group's for a lambda, whose name is everybody's."""
    name = str(getattr(handler, "__name__", ""))
    return name if name.isidentifier() else group
