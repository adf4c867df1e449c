"""Publish replayed partitions into the live output, in place of the rows of the same records.

It is a job of its own, with one op: the asset `published` is external, so that "Materialize all" never publishes
anything. Without `execute` the job only counts what would change, as observations of that asset; a partition that was
published is a materialization, recorded at once. `sharequeue publish` does the same with the same function.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from sharequeue.dagster.assets.accepted import cancelled_plainly, pipeline_of
from sharequeue.dagster.assets.replayed import partitions_of, replay_name
from sharequeue.dagster.assets.summaries import merge_summary
from sharequeue.dagster.resources import SettingsResource, SparkResource, StateResource
from sharequeue.dagster.retries import retried_if_useful
from sharequeue.dagster.share_group import Backfill, ShareGroup
from sharequeue.domain.errors import ShareError
from sharequeue.kafka.topics import Topics

if TYPE_CHECKING:
    from sharequeue.spark.replays.publishing import PublishReport


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

    @dg.op(name=f"{group.name}_published", pool=group.op.pool, tags=group.op.tags)
    @partial(retried_if_useful, policy=group.op.retries)
    def published(
        context: dg.OpExecutionContext,
        config: Publishing,
        sharequeue_settings: SettingsResource,
        sharequeue_state: StateResource,
        sharequeue_spark: SparkResource,
    ) -> None:
        """Replayed partitions in the live output; a dry run unless the config has `execute`."""
        from sharequeue.spark.replays.publishing import publish

        keys = _keys(backfill, config)
        job, loaded = pipeline_of(group), sharequeue_settings.load()
        session = sharequeue_spark.session(f"{group.name} publish {context.run.run_id[:8]}")
        with cancelled_plainly("published partitions stay published"), Topics(loaded) as topics:

            def publish_one(key: str, execute: bool) -> "PublishReport":
                return publish(
                    job,
                    loaded,
                    replay_name(backfill, key),
                    state=sharequeue_state.state,
                    topics=topics,
                    spark=session,
                    execute=execute,
                )

            try:
                # All are checked before the first one is published.
                plans = {key: publish_one(key, False) for key in keys}
                if not config.execute:
                    for key, plan in plans.items():
                        context.log.info(str(plan))
                        context.log_event(dg.AssetObservation(asset, partition=key, metadata=_metadata(plan)))
                    return
                for key in keys:
                    report = publish_one(key, True)
                    context.log.info(str(report))
                    context.log_event(
                        dg.AssetMaterialization(asset, partition=key, metadata=_metadata(report))
                    )
                for name, of_summary in summaries.items():
                    merged = merge_summary(group, name, loaded, sharequeue_state.state, session)
                    context.log_event(dg.AssetMaterialization(of_summary, metadata=merged))
            except ShareError as error:
                raise dg.Failure(f"{error.name}: {error}", allow_retries=error.retriable) from error

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


def _metadata(report: "PublishReport") -> dict[str, Any]:
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
