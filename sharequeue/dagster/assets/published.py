"""Publish replayed partitions into the live output, in place of the rows of the same records.

It is a job of its own, with one op: the asset `published` is external, so that "Materialize all" never publishes
anything. Without `execute` the job only counts what would change, as observations of that asset; a partition that was
published is a materialization, recorded at once. `sharequeue publish` does the same with the same function.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import dagster as dg
from pydantic import Field

from sharequeue.dagster.assets.accepted import cancelled_plainly, pipeline_of
from sharequeue.dagster.assets.drivers import Driver
from sharequeue.dagster.assets.processing import described, needed_by, resources_of
from sharequeue.dagster.assets.replayed import partitions_of, replay_name
from sharequeue.dagster.assets.summaries import merges_of, metadata_of_summary
from sharequeue.dagster.io_manager import summaries_root
from sharequeue.dagster.retries import retried_if_useful
from sharequeue.dagster.share_group import Backfill, ShareGroup
from sharequeue.domain.errors import ShareError
from sharequeue.domain.results.launches import Answer, LaunchedPublication
from sharequeue.domain.results.replays import PublishReport
from sharequeue.domain.results.summaries import MergedSummary


class Publishing(dg.Config):
    """The partitions to publish, and whether to publish them."""

    first: str = Field(description="The first partition of `replayed` to publish, such as `2013-01-01`.")
    last: str | None = Field(default=None, description="The last partition; default: only the first one.")
    execute: bool = Field(
        default=False, description="Publish them; without this the run only counts what would change."
    )


def publish_job(
    group: ShareGroup, backfill: Backfill, asset: dg.AssetKey, summaries: Mapping[str, dg.AssetKey]
) -> dg.JobDefinition:
    """Build the job that publishes replays of `group`, and records that as events of `asset`.

    It then merges the summaries, by name, again: their files would otherwise be those of before until the next run.
    """

    @dg.op(
        name=f"{group.name}_published",
        pool=group.op.pool,
        tags=group.op.tags,
        required_resource_keys=needed_by(group),
    )
    @partial(retried_if_useful, policy=group.op.retries)
    def published(context: dg.OpExecutionContext, config: Publishing) -> None:
        """Replayed partitions in the live output; a dry run unless the config has `execute`."""
        keys = {replay_name(backfill, key): key for key in _keys(backfill, config)}
        order = LaunchedPublication(
            pipeline=described(group),
            replays=list(keys),
            execute=config.execute,
            merges=group.summaries if config.execute else {},
        )

        def record(done: Answer, metadata: Mapping[str, Any]) -> None:
            if isinstance(done, PublishReport):
                event = dg.AssetMaterialization if config.execute else dg.AssetObservation
                shown = {**metadata, **_metadata(done)}
                context.log_event(event(asset, partition=keys[done.name], metadata=shown))
            elif isinstance(done, MergedSummary):
                shown = {**metadata, **metadata_of_summary(done)}
                context.log_event(dg.AssetMaterialization(summaries[done.summary], metadata=shown))

        with cancelled_plainly("published partitions stay published"):
            if group.run.launch is None:
                for done in _publish_here(context, group, order):
                    record(done, {})
                return
            ended = Driver(context, group.run.launch).do(order)
            # Also those of a driver that has failed then.
            for answer in ended.answers:
                record(answer, ended.metadata)
            ended.require(
                len(keys) + len(order.merges),
                context.log,
                "partitions that it has published stay published. Publish the whole range again",
            )

    @dg.job(
        name=f"{group.name}_publish",
        executor_def=group.job.executor_def,
        tags={**group.job.run_tags, **group.replay_tags},
        description=f"Publishes replayed partitions of share group {group.group} into its live output; a dry run by "
        "default.",
    )
    def job() -> None:
        published()

    return job


def _publish_here(
    context: dg.OpExecutionContext, group: ShareGroup, order: LaunchedPublication
) -> Iterator[PublishReport | MergedSummary]:
    """Publish in this process, and yield each report."""
    from sharequeue.spark.full_publications import full_publication
    from sharequeue.spark.named_pipelines import WrongPipeline

    settings, queue, spark = resources_of(context)
    try:
        yield from full_publication(
            pipeline_of(group),
            loaded := settings.load(),
            order,
            merges_of(group, order.merges),
            root=summaries_root(loaded, launched=False),
            state=queue.state,
            spark=spark.session(f"{group.name} publish {context.run.run_id[:8]}"),
            log=context.log,
        )
    except ShareError as error:
        raise dg.Failure(f"{error.name}: {error}", allow_retries=error.retriable) from error
    except WrongPipeline as error:
        raise dg.Failure(str(error), allow_retries=False) from error


def _keys(backfill: Backfill, config: Publishing) -> Sequence[str]:
    """Return the partitions from the first to the last. Raises dg.Failure for a key that is not a partition."""
    partitions, last = partitions_of(backfill), config.last or config.first
    for field, key in (("first", config.first), ("last", last)):
        if not partitions.has_partition_key(key):
            raise dg.Failure(
                f"{field}: {key!r} is not a partition of `replayed`: expected one such as "
                f"{partitions.get_first_partition_key()}, which is over",
                allow_retries=False,
            )
    keys = partitions.get_partition_keys_in_range(dg.PartitionKeyRange(config.first, last))
    if not keys:
        raise dg.Failure(f"last: {last!r} is before first {config.first!r}", allow_retries=False)
    return keys


def _metadata(report: PublishReport) -> dict[str, Any]:
    """Return the metadata of a partition; keys and units are the same for a dry run."""
    return {
        "dry_run": not report.published,
        "replayed_records": report.records,
        "redriven_records_left_out": report.redriven,
        "rows_out": report.hidden_rows,
        "rows_in": report.added_rows,
        "rewritten_folders": report.folders,
        "summaries": ", ".join(report.summaries) or "none",
        "output": report.where,
    }


__all__ = ["publish_job"]
