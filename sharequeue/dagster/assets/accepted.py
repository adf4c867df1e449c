"""The asset `accepted`: lease, read, handle, write and acknowledge, round by round, as a member of the group."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field
from sqlalchemy.exc import SQLAlchemyError

from sharequeue.dagster import reports
from sharequeue.dagster.cancelling import cancelled_plainly
from sharequeue.dagster.names import LEASES_TAG, MEMBER_TAG, lease_tag_value
from sharequeue.dagster.resources import SettingsResource, SparkResource, StateResource
from sharequeue.dagster.share_group import ShareGroup, duration
from sharequeue.errors import BrokerNotAvailable, ShareError
from sharequeue.groups.membership import Membership
from sharequeue.kafka.topics import Topics
from sharequeue.references import NoSuchObject, Reference
from sharequeue.settings import Settings
from sharequeue.state.journal import Journal

if TYPE_CHECKING:
    from sharequeue.spark import Pipeline
    from sharequeue.spark.report import RunReport

FIRST_LOOK_S = 3.0
"""A member that has been assigned nothing for so long looks whether its topics are there."""
CLIENT_ID_PREFIX = "dagster-run-"
"""By this and the run's id the group knows a run's member; whoever finds it there can look the run up."""


class Bounds(dg.Config):
    """How much this run does at most. What is not given is as the `defs.yaml` says; the rest is the next run's."""

    max_seconds: float | None = Field(
        default=None, gt=0, description="No round begins after so many seconds; the last one is finished."
    )
    max_rounds: int | None = Field(
        default=None, ge=1, description="Rounds of lease, read, write and acknowledge."
    )
    max_records: int | None = Field(default=None, ge=1, description="Records leased in one round.")
    max_bytes: int | None = Field(
        default=None, ge=0, description="Bytes leased in one round, 0 without a bound."
    )
    deliveries_per_run: int | None = Field(
        default=None, ge=1, description="How often this run leases a record that it has released."
    )
    partitions: list[str] = Field(
        default=[],
        description="Lease from these partitions alone, such as `orders-0`; empty for all that are assigned.",
    )


@dataclass(frozen=True, slots=True)
class Processing:
    """What `ShareGroupComponent.execute` gets: a run of `accepted`, and what it may need."""

    context: dg.AssetExecutionContext
    group: ShareGroup
    bounds: Bounds
    settings: SettingsResource
    queue: StateResource
    spark: SparkResource


Execute = Callable[[Processing], "dg.MaterializeResult[None]"]


def accepted_asset(spec: dg.AssetSpec, group: ShareGroup, execute: Execute) -> dg.AssetsDefinition:
    """The asset of `group`; `execute` does its work."""

    @dg.multi_asset(specs=[spec], name=f"{group.name}_accepted", pool=group.run.pool)
    def accepted(
        context: dg.AssetExecutionContext,
        config: Bounds,
        settings: SettingsResource,
        queue: StateResource,
        spark: SparkResource,
    ) -> Any:
        context.instance.add_run_tags(context.run.run_id, group.run_tags)
        with cancelled_plainly():
            return execute(Processing(context, group, config, settings, queue, spark))

    return accepted


def process(run: Processing) -> "dg.MaterializeResult[None]":
    """Work through what the group has, within the run's bounds; then settle lapsed locks, and remove the files of
    leases that ended without an acknowledgement.

    Raises dg.Failure where the pipeline is missing or another group's, and what `run_rounds` raises.
    """
    from sharequeue.spark.output.folders import sink_root
    from sharequeue.spark.sweeping import sweep_outputs

    context, group = run.context, run.group
    settings, state = run.settings.load(), run.queue.state
    job = pipeline_of(group)
    group.configure(run.queue.database)
    if state.figures.describe(group.group):
        # How fast this run is, is counted from here.
        run.queue.reports.record(group.group, duration(group.automation.observe.keep))
    report, member_id = _rounds(run, job)
    swept = state.sweep()
    removed = sweep_outputs(run.spark.session(group.name), settings, state, job)
    for path in removed:
        context.log.info(f"removed {path}: its lease ended without an acknowledgement")
    files = {"path": dg.MetadataValue.path(sink_root(settings, job.sink))} if job.destination is None else {}
    return dg.MaterializeResult(
        metadata={
            "dagster/row_count": sum(row.records for row in state.outputs.counted(group.group, job.sink)),
            **files,
            "member": member_id,
            **({"left_to_other_runs": list(report.left_out)} if report.left_out else {}),
            **({"not_assigned": list(report.not_assigned)} if report.not_assigned else {}),
            **reports.run(report),
            "swept_leases": swept.leases,
            "swept_records": swept.records,
            "removed_folders": len(removed),
        }
    )


def pipeline_of(group: ShareGroup) -> "Pipeline":
    """Import the group's pipeline. A handler that is no pipeline yet becomes one, its output named after the group.

    Raises dg.Failure where it is missing, no function, or made for another group or other topics.
    """
    from sharequeue.spark import Pipeline, pipeline

    try:
        found = Reference.parse(group.pipeline).load()
    except NoSuchObject as error:
        raise dg.Failure(f"pipeline: {error}", allow_retries=False) from error
    if not isinstance(found, Pipeline):
        if not callable(found) or isinstance(found, type):
            raise dg.Failure(
                f"pipeline: {group.pipeline} is of type {type(found).__name__}: expected a function from DataFrame "
                "to DataFrame, or what `@sharequeue.spark.pipeline(…)` makes of one",
                allow_retries=False,
            )
        found = pipeline(group=group.group, topics=tuple(group.topics), sink=group.name)(found)
    if found.group != group.group or sorted(found.topics) != sorted(group.topics):
        raise dg.Failure(
            f"pipeline: {group.pipeline} is made for group {found.group} and topics {', '.join(found.topics)}, but "
            f"the defs.yaml names group {group.group} and topics {', '.join(group.topics)}: make them the same",
            allow_retries=False,
        )
    return found


def _rounds(run: Processing, job: "Pipeline") -> tuple["RunReport", str]:
    """Join, do the rounds, leave; return the report and the member's id."""
    from sharequeue.spark.leasing.losses import words_of_losses

    context, group, bounds, limits = run.context, run.group, run.bounds, run.group.run
    settings = run.settings.load()
    deliveries = bounds.deliveries_per_run or limits.deliveries_per_run
    if deliveries is not None:
        job = replace(job, deliveries_per_run=deliveries)
    client_id = CLIENT_ID_PREFIX + context.run.run_id
    with Membership(settings.service, group.group, job.topics, client_id=client_id) as member:
        session = run.spark.session(f"{group.name} {context.run.run_id[:8]}")
        if not member.join(FIRST_LOOK_S, context.log.info):
            _require_topics(settings, job)
            member.join(progress=context.log.info)
        context.instance.add_run_tags(context.run.run_id, {MEMBER_TAG: member.member_id})
        assigned = ", ".join(str(share_partition) for share_partition in member.assignment)
        context.log.info(f"member {member.member_id} works on {assigned or 'nothing yet'}")
        since = run.queue.state.now()
        try:
            report = job.run(
                settings,
                spark=session,
                state=run.queue.state,
                membership=member,
                max_seconds=bounds.max_seconds or limits.max_seconds,
                max_rounds=bounds.max_rounds,
                max_records=bounds.max_records or limits.max_records,
                max_bytes=limits.max_bytes if bounds.max_bytes is None else bounds.max_bytes,
                only=bounds.partitions or None,
                replaces=limits.replaces,
                progress=lambda progress: context.log.info(str(progress)),
            )
        except BaseException:
            # Where it did not get further there is no report; the journal knows what it has leased.
            with suppress(SQLAlchemyError, ShareError):
                _tag_leases(run, Journal(run.queue.database).leases_of(group.group, member.member_id, since))
            raise
        _tag_leases(run, [lease_id for each in report.rounds for lease_id in each.lease_ids])
    if report.remark:
        context.log.info(report.remark)
    if report.lost:
        context.log.warning(words_of_losses(group.group, report.lost))
    if report.dead_letters is not None and report.dead_letters.warning is not None:
        context.log.warning(str(report.dead_letters.warning))
    return report, member.member_id


def _require_topics(settings: Settings, job: "Pipeline") -> None:
    """Fail now where a topic is not there. A broker that does not answer is waited for as a member."""
    with suppress(BrokerNotAvailable), Topics(settings) as topics:
        topics.require(job.topics)


def _tag_leases(run: Processing, lease_ids: Sequence[int]) -> None:
    """Name the leases of a run among its tags."""
    if lease_ids:
        tags = {LEASES_TAG: lease_tag_value(lease_ids)}
        run.context.instance.add_run_tags(run.context.run.run_id, tags)


__all__ = ["Bounds", "Execute", "Processing", "accepted_asset", "pipeline_of", "process"]
