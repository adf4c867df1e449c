"""The asset `replayed`: process the records of a day or hour again with the same handler, apart from the live group.

Its partitions are weeks, days or hours of the records' timestamps, as needed for Dagster's backfills. Every
partition has its own folder, which is replaced as a whole: a backfill may be cancelled, resumed and executed
again. Nothing of the live group is changed, so a replay and its runs do not wait for each other.
"""

import re
from collections.abc import Iterator
from datetime import date
from functools import partial
from typing import Any

import dagster as dg
from pydantic import Field

from sharequeue.dagster.assets.accepted import cancelled_plainly, pipeline_of
from sharequeue.dagster.assets.drivers import Driver
from sharequeue.dagster.assets.processing import described, needed_by, resources_of
from sharequeue.dagster.retries import retried_if_useful
from sharequeue.dagster.share_group import Backfill, ShareGroup
from sharequeue.dagster.tables import table
from sharequeue.domain.errors import ShareError
from sharequeue.domain.results.launches import LaunchedReplay, LaunchedWindow
from sharequeue.domain.results.replays import ReplayReport

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]")


class Replaying(dg.Config):
    """How missing records are treated."""

    allow_missing: bool = Field(
        default=False,
        description="Replay the remaining records of a time from which retention has removed some.",
    )


def partitions_of(backfill: Backfill) -> dg.TimeWindowPartitionsDefinition:
    """Return the partitions of the asset: weeks, days or hours that are over."""
    if backfill.partitions == "weekly":
        # Dagster counts from Sunday; any other weekday would leave out the days before the first week.
        weekday = date.fromisoformat(backfill.start).isoweekday() % 7
        return dg.WeeklyPartitionsDefinition(backfill.start, timezone=backfill.timezone, day_offset=weekday)
    if backfill.partitions == "hourly":
        return dg.HourlyPartitionsDefinition(f"{backfill.start}-00:00", timezone=backfill.timezone)
    return dg.DailyPartitionsDefinition(backfill.start, timezone=backfill.timezone)


def replay_name(backfill: Backfill, partition_key: str) -> str:
    """Return the name of a partition's replay and of its folder: an hour's key has a colon, which they must not, and
    a week's key is also the key of its first day.
    """
    name = _NOT_IN_NAMES.sub("-", partition_key)
    return f"week-{name}" if backfill.partitions == "weekly" else name


def replayed_asset(spec: dg.AssetSpec, group: ShareGroup, backfill: Backfill) -> dg.AssetsDefinition:
    """Build the asset of the replays of `group`.

    One run replays a range of partitions, or without `one_run` a single one.
    """
    partitions = partitions_of(backfill)
    policy = dg.BackfillPolicy.single_run() if backfill.one_run else dg.BackfillPolicy.multi_run(1)

    @dg.multi_asset(
        specs=[spec.replace_attributes(partitions_def=partitions, skippable=True)],
        name=f"{group.name}_replayed",
        partitions_def=partitions,
        backfill_policy=policy,
        pool=group.op.pool,
        op_tags=group.op.tags,
        required_resource_keys=needed_by(group),
    )
    def replayed(context: dg.AssetExecutionContext, config: Replaying) -> Iterator[Any]:
        if context.has_partition_key or context.has_partition_key_range:
            yield replay(context, config)
        else:
            # A run of a user's job over all assets of the code location.
            context.log.info("No partition was selected: nothing is replayed.")

    @partial(retried_if_useful, policy=group.op.retries)
    def replay(context: dg.AssetExecutionContext, config: Replaying) -> Any:
        # Not the tag of the group's runs: replays are not limited with them.
        context.instance.add_run_tags(context.run.run_id, group.replay_tags)
        spans = {key: partitions.time_window_for_partition_key(key) for key in context.partition_keys}
        order = LaunchedReplay(
            pipeline=described(group),
            windows=[
                LaunchedWindow(since=span.start, until=span.end, name=replay_name(backfill, key))
                for key, span in spans.items()
            ],
            allow_missing=config.allow_missing,
        )
        with cancelled_plainly("finished partitions are kept"):
            if group.run.launch is None:
                reports, metadata = list(_replay_here(context, group, order)), {}
            else:
                ended = Driver(context, group.run.launch).do(order)
                ended.require(
                    len(spans), context.log, "finished partitions are kept. Replay the others again"
                )
                reports = [each for each in ended.answers if isinstance(each, ReplayReport)]
                metadata = dict(ended.metadata)
        for key, report in zip(spans, reports, strict=True):
            context.add_asset_metadata(_metadata(report), asset_key=spec.key, partition_key=key)
        return dg.MaterializeResult(asset_key=spec.key, metadata=metadata)

    return replayed


def _replay_here(
    context: dg.AssetExecutionContext, group: ShareGroup, order: LaunchedReplay
) -> Iterator[ReplayReport]:
    """Replay in this process, and yield the report of each window."""
    from sharequeue.spark.full_replays import full_replay

    settings, queue, spark = resources_of(context)
    job, loaded = pipeline_of(group), settings.load()
    try:
        yield from full_replay(
            job,
            loaded,
            order,
            state=queue.state,
            spark=spark.session(f"{group.name} replay {context.run.run_id[:8]}"),
            log=context.log,
        )
    except ShareError as error:
        raise dg.Failure(f"{error.name}: {error}", allow_retries=error.retriable) from error


def _metadata(report: ReplayReport) -> dict[str, Any]:
    """Return the metadata of a partition: records by outcome, their location, and their source."""
    numbers = dict.fromkeys(("partition", "records", "first_offset", "last_offset"), "int")
    rows = (
        (each.topic, each.partition, each.records, each.offsets.first, each.offsets.end - 1)
        for each in report.partitions
    )
    return {
        "dagster/row_count": report.accepted_rows,
        "read_records": report.records,
        "accepted_records": report.accepted,
        "rejected_records": report.rejected,
        "released_records": report.released,
        "without_row_records": report.without_row,
        "missing": "; ".join(report.missing) or "none: retention has removed none of these records",
        "path": dg.MetadataValue.path(str(report.path)),
        "scanned_offsets": report.scanned,
        "replay_seconds": round(report.seconds, 3),
        "by_partition": table({"topic": "string", **numbers}, rows),
    }


__all__ = ["partitions_of", "replay_name", "replayed_asset"]
