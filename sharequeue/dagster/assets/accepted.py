"""The asset `accepted`: lease, read, handle, write and acknowledge, round by round, as a member of the group."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

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
from sharequeue.domain.errors import ShareError, first_line
from sharequeue.state import State
from sharequeue.state.journal import Journal

if TYPE_CHECKING:
    from sharequeue.spark import Pipeline
    from sharequeue.spark.full_runs import FullRun
    from sharequeue.spark.job import RunBounds


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

    @property
    def deliveries_per_run(self) -> int | None:
        """How often the run leases a record that it has released; None: as the pipeline says."""
        return self.bounds.deliveries_per_run or self.group.run.deliveries_per_run

    @property
    def run_bounds(self) -> "RunBounds":
        """The bounds of the run: those of its config, or else of the yaml."""
        bounds, limits = self.bounds, self.group.run
        return {
            "max_seconds": bounds.max_seconds or limits.max_seconds,
            "max_rounds": bounds.max_rounds,
            "max_records": bounds.max_records or limits.max_records,
            "max_bytes": limits.max_bytes if bounds.max_bytes is None else bounds.max_bytes,
            "replaces": limits.replaces,
        }


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
    from sharequeue.spark.full_runs import full_run

    context, group, state = run.context, run.group, run.queue.state
    job = pipeline_of(group)
    group.configure(run.queue.database)
    if (deliveries := run.deliveries_per_run) is not None:
        job = replace(job, deliveries_per_run=deliveries)
    with member_of(run) as member_id:
        done = full_run(
            job,
            run.settings.load(),
            state=state,
            spark=lambda: run.spark.session(f"{group.name} {context.run.run_id[:8]}"),
            log=context.log,
            client_id=CLIENT_ID_PREFIX + context.run.run_id,
            member_id=member_id,
            keep=duration(group.automation.observe.keep),
            **run.run_bounds,
        )
    return dg.MaterializeResult(metadata=metadata_of(done, member_id, group, state))


@contextmanager
def member_of(run: Processing) -> Iterator[str]:
    """Yield the id of the run's member, which its tags name; at the end of the block, they name its leases, too.

    A run that fails has no report; its leases are in the journal.
    """
    instance, run_id, member_id = run.context.instance, run.context.run.run_id, str(uuid4())
    instance.add_run_tags(run_id, {MEMBER_TAG: member_id})
    since = run.queue.state.now()
    try:
        yield member_id
    finally:
        with suppress(SQLAlchemyError, ShareError):
            leases = Journal(run.queue.database).leases_of(run.group.group, member_id, since)
            if leases:
                instance.add_run_tags(run_id, {LEASES_TAG: lease_tag_value(leases)})


def metadata_of(done: "FullRun", member_id: str, group: ShareGroup, state: State) -> dict[str, Any]:
    """Return the metadata of a materialization of `accepted` by a run."""
    stored = done.stored
    terms = {"uri": stored.uri, "table_name": stored.table, "storage_kind": stored.kind}
    return {
        "dagster/row_count": sum(row.records for row in state.outputs.counted(group.group, done.sink)),
        **({} if done.path is None else {"path": dg.MetadataValue.path(done.path)}),
        **{f"dagster/{name}": term for name, term in terms.items() if term is not None},
        **column_schema(done.columns, OF_RECORDS),
        "member": member_id,
        **reports.run(done.report, state.figures.describe(group.group)),
        "swept_leases": done.swept_leases,
        "swept_records": done.swept_records,
        "removed_folders": done.removed_folders,
    }


def pipeline_of(group: ShareGroup) -> "Pipeline":
    """Import the group's pipeline. A plain handler becomes a pipeline, with its output named after the group.

    Raises dg.Failure if it is missing, cannot be imported, is not a function, or has another group, other topics or
    another destination.
    """
    from sharequeue.spark.named_pipelines import WrongPipeline, named_pipeline

    try:
        found = Reference.parse(group.pipeline).load()
    except NoSuchObject as error:
        raise dg.Failure(f"pipeline: {error}", allow_retries=False) from error
    except Exception as error:
        raise dg.Failure(
            f"pipeline: {group.pipeline} cannot be imported: {type(error).__name__}: {first_line(error)}",
            allow_retries=False,
        ) from error
    try:
        return named_pipeline(found, **group.described)
    except WrongPipeline as error:
        raise dg.Failure(str(error), allow_retries=False) from error


__all__ = [
    "Accepting",
    "Execute",
    "Processing",
    "accepted_asset",
    "cancelled_plainly",
    "member_of",
    "metadata_of",
    "pipeline_of",
    "process",
]
