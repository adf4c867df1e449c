"""A pipeline: a handler with its job, which needs only settings to run.

`pipeline` makes a job of a function, and that job runs by itself: it creates the settings, the database, the
membership and the Spark session if they are not given, and closes what it created. The Spark session stays open: it
belongs to the process, as with `lease`, and a DataFrame of the output needs it. `run.py` does the work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import Unpack

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.results.replays import PublishReport, ReplayReport
from sharequeue.domain.results.runs import FollowReport, RunReport
from sharequeue.domain.results.table import Removed
from sharequeue.domain.settings import Settings
from sharequeue.groups.membership import Membership
from sharequeue.spark.following import OnRun, follow_rounds
from sharequeue.spark.handler import Handler
from sharequeue.spark.job import RunBounds, ShareGroupJob, Summary
from sharequeue.spark.leasing.group import OpenedGroup, a_member, opened
from sharequeue.spark.leasing.renewal import LeasingMember
from sharequeue.spark.output.manifest import read_output
from sharequeue.spark.progress import ProgressCallback, shown_progress
from sharequeue.spark.reading.plan import TopicPartition
from sharequeue.spark.replays.publishing import publish
from sharequeue.spark.replays.replay import run_replay
from sharequeue.spark.replays.trial import Trial, try_on
from sharequeue.spark.run import run_rounds
from sharequeue.spark.sinks.interface import Sink
from sharequeue.spark.sweep import sweep_outputs
from sharequeue.state import State

__all__ = ["Pipeline", "pipeline"]


@dataclass(frozen=True, slots=True)
class Pipeline(ShareGroupJob):
    """A job that needs only settings to run. `pipeline` makes one of a function."""

    def run(
        self,
        settings: Settings | None = None,
        *,
        spark: SparkSession | None = None,
        state: State | None = None,
        membership: LeasingMember | None = None,
        progress: bool | ProgressCallback = True,
        **bounds: Unpack[RunBounds],
    ) -> RunReport:
        """Lease, handle, write and acknowledge, round by round, until nothing is left to lease.

        Settings, Spark session, state and membership are created when they are not given. A membership that is
        created here joins the group through the service, once nothing refuses the run, and leaves it at the end.
        `max_records` and `max_bytes` bound one round; `max_bytes` is the group's own when None. `max_rounds` and
        `max_seconds` bound the run. Only one pipeline works on a group: `replaces` is the name of the previous one,
        if this one replaces it. `progress` is shown on stderr; with False it is not shown; a function receives it
        instead.

        Raises GroupTaken where another pipeline works on the group, or has replaced this one meanwhile, TypeError for
        a bound that is not a number, ValueError for a budget below one record and for a `max_seconds` that is
        negative or not finite, UnknownTopicOrPartition for a topic that does not exist, UnknownTopicId if all its
        topics were deleted or recreated, what the handler, Spark, the state or the broker raised, HandlerError,
        MostFailed, LockLost, OutputNotReachable, OutputNotShared, SinkTaken, SinkRefused, SettingMissing,
        SparkNotReady, and the errors of joining. All leases have then been given back, with their deliveries unless a
        Spark task had run and left records without an outcome.
        """
        with (
            opened(settings, spark, state, self.group, self.topics) as place,
            a_member(place.settings, self.group, self.topics, membership) as (member, join),
            shown_progress(progress) as shown,
        ):
            return run_rounds(
                place.settings,
                self,
                membership=member,
                join=join,
                state=place.state,
                topics=place.topics,
                spark=place.spark,
                progress=shown,
                **bounds,
            )

    def follow(
        self,
        settings: Settings | None = None,
        *,
        spark: SparkSession | None = None,
        progress: bool | ProgressCallback = True,
        on_run: OnRun = lambda report: None,
        **bounds: Unpack[RunBounds],
    ) -> FollowReport:
        """Run, wait for records, and run again, with one Spark session and one membership, until a signal ends it.

        A new record is leased about two seconds after it was produced. `max_rounds` and `max_seconds` bound the
        total, the other arguments are those of `run`. `on_run` gets the report of each run that did something. It
        waits for the end of outages of Postgres, the broker, the service and the output, also at the start.

        Raises the errors of `run` that need a user's action, at the start also those of wrong settings
        (`is_mistake`), and SparkNotReady if the Spark session has ended.
        """
        loaded = settings or Settings.load()
        with (
            ExitStack() as stack,
            Membership(loaded.service, self.group, self.topics) as member,
            shown_progress(progress) as shown,
        ):

            def begin() -> OpenedGroup:
                return stack.enter_context(opened(loaded, spark, None, self.group, self.topics))

            return follow_rounds(begin, loaded, self, member, bounds, shown, on_run)

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
        with opened(settings, spark, state, self.group) as at:
            return try_on(self, records, at.settings, at.state, at.topics, at.spark)

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
        with opened(settings, spark, state, self.group) as at:
            return run_replay(
                self,
                at.settings,
                state=at.state,
                topics=at.topics,
                spark=at.spark,
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
        with opened(settings, spark, state, self.group) as at:
            return publish(
                self,
                at.settings,
                name,
                state=at.state,
                topics=at.topics,
                spark=at.spark,
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
        with opened(settings, spark, state, self.group) as at:
            return read_output(
                at.spark, at.state, self.group, sink or self.sink, schema, known=self.names.all
            )

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
        with opened(settings, spark, state, self.group) as at:
            return sweep_outputs(at.spark, at.settings, at.state, self, dry_run=dry_run)


def pipeline(
    *,
    group: str,
    topics: Sequence[str],
    sink: str | None = None,
    summaries: Sequence[Summary] = (),
    without_row: str | None = None,
    headers: bool = True,
    reader_options: Mapping[str, str] | None = None,
    destination: Sink | None = None,
    deliveries_per_run: int = 1,
    failed_share: float | None = 0.5,
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
            without_row=without_row,
            headers=headers,
            reader_options=dict(reader_options or {}),
            destination=destination,
            deliveries_per_run=deliveries_per_run,
            failed_share=failed_share,
            try_empty=try_empty,
            name=name,
        )

    return mark


def _named_after(handler: Handler, group: str) -> str:
    """Return the function's name, or the group's for a lambda, because all lambdas have the same name."""
    name = str(getattr(handler, "__name__", ""))
    return name if name.isidentifier() else group
