"""The asset `accepted`: lease, read, handle, write and acknowledge, round by round, as a member of the group."""

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field
from sqlalchemy.exc import SQLAlchemyError

from sharequeue.dagster import reports
from sharequeue.dagster.instance import missing_settings
from sharequeue.dagster.names import CLIENT_ID_PREFIX, LEASES_TAG, MEMBER_TAG, lease_tag_value
from sharequeue.dagster.references import NoSuchObject, Reference
from sharequeue.dagster.resources import SettingsResource, SparkResource, StateResource
from sharequeue.dagster.retries import retried_if_useful
from sharequeue.dagster.share_group import ShareGroup, duration
from sharequeue.dagster.tables import OF_RECORDS, column_schema
from sharequeue.domain.errors import BrokerNotAvailable, ShareError, first_line
from sharequeue.domain.settings import Settings
from sharequeue.groups.membership import Membership
from sharequeue.kafka.topics import Topics
from sharequeue.reports.history import RunHistory
from sharequeue.state import State
from sharequeue.state.journal import Journal

if TYPE_CHECKING:
    from sharequeue.spark import Pipeline
    from sharequeue.spark.progress import Progress
    from sharequeue.spark.report import RunReport

FIRST_LOOK_S = 3.0
"""After this time without an assignment, a member checks whether its topics exist."""


class Accepting(dg.Config):
    """The limits of this run. Defaults are in the `defs.yaml`; the remaining work is left to the next run."""

    max_seconds: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Seconds after which no new round begins; the current one is finished.",
    )
    max_rounds: int | None = Field(
        default=None, ge=1, description="Maximum number of rounds of lease, read, write and acknowledge."
    )
    max_records: int | None = Field(default=None, ge=1, description="Maximum records leased in one round.")
    max_bytes: int | None = Field(
        default=None, ge=0, description="Maximum bytes leased in one round; 0 for no limit."
    )
    deliveries_per_run: int | None = Field(
        default=None, ge=1, description="How often this run leases a record that it has released."
    )


@dataclass(frozen=True, slots=True)
class Processing:
    """The argument of `ShareGroupComponent.execute`: a run of `accepted`, and the resources that it may need."""

    context: dg.AssetExecutionContext
    group: ShareGroup
    bounds: Accepting
    settings: SettingsResource
    queue: StateResource
    spark: SparkResource


Execute = Callable[[Processing], "dg.MaterializeResult[None]"]


def accepted_asset(spec: dg.AssetSpec, group: ShareGroup, execute: Execute) -> dg.AssetsDefinition:
    """Build the asset of the records that `group` accepts; `execute` does the work."""

    @dg.multi_asset(specs=[spec], name=f"{group.name}_accepted", pool=group.run.pool)
    @retried_if_useful
    def accepted(
        context: dg.AssetExecutionContext,
        config: Accepting,
        sharequeue_settings: SettingsResource,
        sharequeue_state: StateResource,
        sharequeue_spark: SparkResource,
    ) -> Any:
        context.instance.add_run_tags(context.run.run_id, group.run_tags)
        for missing in missing_settings(context.instance, group.run.pool):
            context.log.warning(missing)
        with cancelled_plainly():
            return execute(
                Processing(context, group, config, sharequeue_settings, sharequeue_state, sharequeue_spark)
            )

    return accepted


@contextmanager
def cancelled_plainly(
    consequence: str = "its records are released, and no record is at fault",
) -> Iterator[None]:
    """End a block that Dagster interrupts with its exception, and with the consequence for the block's work.

    The stack trace is left out: a signal interrupts Spark in the middle of a call to its JVM, whose stack trace
    gives no information about the run.
    """
    try:
        yield
    except dg.DagsterExecutionInterruptedError:
        raise dg.DagsterExecutionInterruptedError(f"the run was cancelled: {consequence}") from None


def process(run: Processing) -> "dg.MaterializeResult[None]":
    """Process the group's records within the run's limits; then release expired locks, and remove the files of
    leases that ended without an acknowledgement.

    Raises dg.Failure if the pipeline is missing or another group's, and the errors of a run.
    """
    from sharequeue.spark.output.folders import sink_root

    context, group = run.context, run.group
    settings, state = run.settings.load(), run.queue.state
    job = pipeline_of(group)
    group.configure(run.queue.database)
    history = RunHistory(run.queue.database, group.group, duration(group.automation.observe.keep))
    report, member_id = _rounds(run, job, history)
    swept = state.sweep()
    history.record()
    removed = job.sweep(settings, spark=run.spark.session(group.name), state=state)
    for path in removed:
        context.log.info(f"removed {path}: it does not count")
    files = {"path": dg.MetadataValue.path(sink_root(settings, job.sink))} if job.destination is None else {}
    return dg.MaterializeResult(
        metadata={
            "dagster/row_count": sum(row.records for row in state.outputs.counted(group.group, job.sink)),
            **files,
            **_stored_rows(job, settings, state),
            "member": member_id,
            **reports.run(report, state.figures.describe(group.group)),
            "swept_leases": swept.leases,
            "swept_records": swept.records,
            "removed_folders": len(removed),
        }
    )


def _stored_rows(job: "Pipeline", settings: Settings, state: State) -> dict[str, Any]:
    """Return where the accepted rows of a pipeline are, and the columns that runs have written so far."""
    from pyspark.sql.types import StructType

    from sharequeue.spark.sinks.interface import NEVER
    from sharequeue.spark.sinks.parquet import ParquetByLease

    stored = (job.destination or ParquetByLease()).stored(settings, job.names)
    written = state.outputs.keep_columns(job.group, job.sink)
    columns = [] if written is None else StructType.fromJson(json.loads(written)).fields
    terms = {"uri": stored.uri, "table_name": stored.table, "storage_kind": stored.kind}
    return {
        **{f"dagster/{name}": term for name, term in terms.items() if term is not None},
        **column_schema(
            {
                each.name: each.dataType.simpleString()
                for each in columns
                if stored.for_the_queue or each.name not in NEVER
            },
            OF_RECORDS,
        ),
    }


def pipeline_of(group: ShareGroup) -> "Pipeline":
    """Import the group's pipeline. A plain handler becomes a pipeline, with its output named after the group.

    Raises dg.Failure if it is missing, cannot be imported, is not a function, or has another group, other topics or
    another destination.
    """
    from sharequeue.spark import Pipeline, pipeline

    try:
        found = Reference.parse(group.pipeline).load()
    except NoSuchObject as error:
        raise dg.Failure(f"pipeline: {error}", allow_retries=False) from error
    except Exception as error:
        raise dg.Failure(
            f"pipeline: {group.pipeline} cannot be imported: {type(error).__name__}: {first_line(error)}",
            allow_retries=False,
        ) from error
    if not isinstance(found, Pipeline):
        if not callable(found) or isinstance(found, type):
            raise dg.Failure(
                f"pipeline: {group.pipeline} is of type {type(found).__name__}: expected a function from DataFrame "
                "to DataFrame, or a pipeline made with `@sharequeue.spark.pipeline(…)`",
                allow_retries=False,
            )
        found = pipeline(group=group.group, topics=tuple(group.topics), sink=group.output)(found)
    if found.group != group.group or sorted(found.topics) != sorted(group.topics):
        raise dg.Failure(
            f"pipeline: {group.pipeline} is for group {found.group} and topics {', '.join(found.topics)}, but "
            f"the defs.yaml has group {group.group} and topics {', '.join(group.topics)}: make them the same",
            allow_retries=False,
        )
    return _with_destination(group, found)


def _with_destination(group: ShareGroup, job: "Pipeline") -> "Pipeline":
    """Return the pipeline with the destination of the yaml. Raises dg.Failure if it has another one of its own."""
    from sharequeue.spark import KafkaTopic

    if group.destination is None:
        return job
    topic = KafkaTopic(**group.destination.kafka_topic.model_dump())
    if job.destination == topic:
        return job
    if job.destination is not None:
        raise dg.Failure(
            f"destination: the defs.yaml has topic {topic.topic}, but {group.pipeline} has another destination of "
            f"its own ({type(job.destination).__name__}): remove one of them, or make them the same",
            allow_retries=False,
        )
    return replace(job, destination=topic)


def _rounds(run: Processing, job: "Pipeline", history: RunHistory) -> tuple["RunReport", str]:
    """Join, do the rounds, leave; return the report and the member's id."""
    from sharequeue.spark.leasing.group import words_of_losses

    context, group, bounds, limits = run.context, run.group, run.bounds, run.group.run
    settings = run.settings.load()
    deliveries = bounds.deliveries_per_run or limits.deliveries_per_run
    if deliveries is not None:
        job = replace(job, deliveries_per_run=deliveries)
    client_id = CLIENT_ID_PREFIX + context.run.run_id
    with Membership(settings.service, group.group, job.topics, client_id=client_id) as member:
        session = run.spark.session(f"{group.name} {context.run.run_id[:8]}")
        if not member.join(FIRST_LOOK_S, context.log.info):
            _require_topics(settings, run.queue.state, job)
            member.join(progress=context.log.info)
        context.instance.add_run_tags(context.run.run_id, {MEMBER_TAG: member.member_id})
        assigned = ", ".join(str(share_partition) for share_partition in member.assignment)
        context.log.info(f"member {member.member_id} works on {assigned or 'nothing yet'}")
        since = run.queue.state.now()

        def progressed(progress: "Progress") -> None:
            context.log.info(str(progress))
            history.note(progress.stage)

        try:
            with crashes_logged(context.log):
                report = job.run(
                    settings,
                    spark=session,
                    state=run.queue.state,
                    membership=member,
                    max_seconds=bounds.max_seconds or limits.max_seconds,
                    max_rounds=bounds.max_rounds,
                    max_records=bounds.max_records or limits.max_records,
                    max_bytes=limits.max_bytes if bounds.max_bytes is None else bounds.max_bytes,
                    replaces=limits.replaces,
                    progress=progressed,
                )
        except BaseException:
            # A failed run has no report; its leases are in the journal.
            with suppress(SQLAlchemyError, ShareError):
                _tag_leases(run, Journal(run.queue.database).leases_of(group.group, member.member_id, since))
            raise
        _tag_leases(run, [lease_id for each in report.rounds for lease_id in each.lease_ids])
    for error in report.errors:
        context.log.info(f"first failure: {error}")
    if report.remark:
        # A run that is not drained succeeds, but there is work left.
        (context.log.info if report.drained else context.log.warning)(report.remark)
    if report.lost:
        context.log.warning(words_of_losses(group.group, report.lost))
    if report.dead_letters is not None and report.dead_letters.warning is not None:
        context.log.warning(report.dead_letters.warning)
    return report, member.member_id


class _RunLog(logging.Handler):
    """Passes messages on to the log of a run."""

    def __init__(self, log: dg.DagsterLogManager) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record to the run's log; an error does not fail the run."""
        try:
            self._log.warning(record.getMessage())
        except Exception:
            self.handleError(record)


@contextmanager
def crashes_logged(log: dg.DagsterLogManager) -> Iterator[None]:
    """Write into the log of a run which records ended without an acknowledgement, why, and what follows."""
    from sharequeue.spark import isolated_jobs

    logger, handler = logging.getLogger(isolated_jobs.__name__), _RunLog(log)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _require_topics(settings: Settings, state: State, job: "Pipeline") -> None:
    """Fail now if a topic is missing. A broker that does not answer is waited for as a member."""
    from sharequeue.spark.leasing.group import living_topics

    with suppress(BrokerNotAvailable), Topics(settings) as topics:
        living_topics(topics, state, job.group, job.topics)


def _tag_leases(run: Processing, lease_ids: Sequence[int]) -> None:
    """Add the leases of a run to its tags."""
    if lease_ids:
        tags = {LEASES_TAG: lease_tag_value(lease_ids)}
        run.context.instance.add_run_tags(run.context.run.run_id, tags)


__all__ = [
    "Accepting",
    "Execute",
    "Processing",
    "accepted_asset",
    "cancelled_plainly",
    "pipeline_of",
    "process",
]
