"""The asset `accepted`: lease, read, handle, write and acknowledge, round by round, as a member of the group."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import dagster as dg

from sharequeue.dagster.assets.launched import launched
from sharequeue.dagster.assets.processing import (
    Accepting,
    Processing,
    described,
    member_of,
    metadata_of,
    needed_by,
    resources_of,
)
from sharequeue.dagster.instance import missing_settings
from sharequeue.dagster.names import CLIENT_ID_PREFIX
from sharequeue.dagster.references import NoSuchObject, Reference
from sharequeue.dagster.retries import retried_if_useful
from sharequeue.dagster.share_group import ShareGroup
from sharequeue.dagster.yaml_values import duration
from sharequeue.domain.errors import first_line

if TYPE_CHECKING:
    from sharequeue.spark import Pipeline


Execute = Callable[[Processing], "dg.MaterializeResult[None]"]


def accepted_asset(spec: dg.AssetSpec, group: ShareGroup, execute: Execute) -> dg.AssetsDefinition:
    """Build the asset of the records that `group` accepts; `execute` does the work."""

    @dg.multi_asset(
        specs=[spec],
        name=f"{group.name}_accepted",
        pool=group.op.pool,
        op_tags=group.op.tags,
        required_resource_keys=needed_by(group),
    )
    @partial(retried_if_useful, policy=group.op.retries)
    def accepted(context: dg.AssetExecutionContext, config: Accepting) -> Any:
        context.instance.add_run_tags(context.run.run_id, group.run_tags)
        for missing in missing_settings(context.instance, group.op.pool):
            context.log.warning(missing)
        with cancelled_plainly():
            return execute(Processing(context, group, config, *resources_of(context)))

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

    With `run.launch` in the yaml, the driver does this where a Pipes client starts it. Raises dg.Failure if the
    pipeline is missing or another group's, and the errors of a run.
    """
    if run.group.run.launch is not None:
        return launched(run, run.group.run.launch)
    from sharequeue.spark.full_runs import full_run

    context, group, state = run.context, run.group, run.queue.state
    job = pipeline_of(group)
    group.configure(run.queue.database)
    if (deliveries := run.deliveries_per_run) is not None:
        job = replace(job, deliveries_per_run=deliveries)
    with member_of(run) as member:
        done = full_run(
            job,
            run.settings.load(),
            state=state,
            spark=lambda: run.spark.session(f"{group.name} {context.run.run_id[:8]}"),
            log=context.log,
            client_id=CLIENT_ID_PREFIX + context.run.run_id,
            member_id=member.member_id,
            keep=duration(group.automation.observe.keep),
            **run.run_bounds,
        )
        return dg.MaterializeResult(metadata=metadata_of(done, member))


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
        return named_pipeline(found, **described(group))
    except WrongPipeline as error:
        raise dg.Failure(str(error), allow_retries=False) from error


__all__ = [
    "Execute",
    "accepted_asset",
    "cancelled_plainly",
    "pipeline_of",
    "process",
]
