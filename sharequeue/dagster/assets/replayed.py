"""The asset `replayed`: a day, or an hour, of records once more through the same handler, beside the live group.

Its partitions are days or hours of the records' timestamps, so that Dagster's backfills mean something. Every
partition has a folder of its own, which is replaced as a whole: a backfill may be cancelled, resumed and executed
again. Nothing of the live group is touched, and so a replay neither waits for its runs nor keeps them waiting.
"""

import re
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from sharequeue.dagster.assets.accepted import pipeline_of
from sharequeue.dagster.cancelling import cancelled_plainly
from sharequeue.dagster.names import REPLAY_TAG
from sharequeue.dagster.resources import SettingsResource, SparkResource, StateResource
from sharequeue.dagster.share_group import Backfill, ShareGroup
from sharequeue.errors import ShareError
from sharequeue.kafka.topics import Topics

if TYPE_CHECKING:
    from sharequeue.spark.replays.report import ReplayReport

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]")


class Replaying(dg.Config):
    """How records that are gone are treated."""

    allow_missing: bool = Field(
        default=False, description="Replay what is left of a time of which retention has removed records."
    )


def partitions_of(backfill: Backfill) -> dg.TimeWindowPartitionsDefinition:
    """Return the partitions of the asset: days or hours that are over."""
    if backfill.partitions == "hourly":
        return dg.HourlyPartitionsDefinition(f"{backfill.start}-00:00", timezone=backfill.timezone)
    return dg.DailyPartitionsDefinition(backfill.start, timezone=backfill.timezone)


def replay_name(partition_key: str) -> str:
    """Return what the replay of a partition, and its folder, is called: an hour's key has a colon."""
    return _NOT_IN_NAMES.sub("-", partition_key)


def replayed_asset(spec: dg.AssetSpec, group: ShareGroup, backfill: Backfill) -> dg.AssetsDefinition:
    """The asset of `group`. One run replays one partition, or all that are asked for where `one_run` says so."""
    partitions = partitions_of(backfill)
    policy = dg.BackfillPolicy.single_run() if backfill.one_run else dg.BackfillPolicy.multi_run(1)

    @dg.multi_asset(
        specs=[spec.replace_attributes(partitions_def=partitions)],
        name=f"{group.name}_replayed",
        partitions_def=partitions,
        backfill_policy=policy,
        pool=group.run.pool,
    )
    def replayed(
        context: dg.AssetExecutionContext,
        config: Replaying,
        settings: SettingsResource,
        queue: StateResource,
        spark: SparkResource,
    ) -> Any:
        from sharequeue.spark.replays.replay import replay_windows
        from sharequeue.spark.replays.wanted import Window

        # Not the tag of the group's runs: these are nobody's turn in the queue.
        context.instance.add_run_tags(context.run.run_id, {REPLAY_TAG: group.group})
        job, loaded = pipeline_of(group), settings.load()
        spans = {key: partitions.time_window_for_partition_key(key) for key in context.partition_keys}
        windows = [Window(span.start, span.end, replay_name(key)) for key, span in spans.items()]
        with cancelled_plainly("partitions that are done stay as they are"), Topics(loaded) as topics:
            reports = replay_windows(
                job,
                loaded,
                windows,
                state=queue.state,
                topics=topics,
                spark=spark.session(f"{group.name} replay {context.run.run_id[:8]}"),
                allow_missing=config.allow_missing,
            )
            try:
                for key, report in zip(spans, reports, strict=True):
                    context.log.info(str(report))
                    context.add_asset_metadata(_metadata(report), asset_key=spec.key, partition_key=key)
            except ShareError as error:
                raise dg.Failure(f"{error.name}: {error}", allow_retries=error.retriable) from error
        return dg.MaterializeResult(asset_key=spec.key)

    return replayed


def _metadata(report: "ReplayReport") -> dict[str, Any]:
    """What a partition shows: records by outcome, where they are, and what they came from."""
    columns = [dg.TableColumn("topic", "string")]
    columns += [
        dg.TableColumn(name, "int") for name in ("partition", "records", "first_offset", "last_offset")
    ]
    rows = [
        dg.TableRecord(
            {
                "topic": each.topic,
                "partition": each.partition,
                "records": each.records,
                "first_offset": each.offsets.first,
                "last_offset": each.offsets.end - 1,
            }
        )
        for each in report.partitions
    ]
    return {
        "dagster/row_count": report.accepted_rows,
        "read_records": report.records,
        "accepted_records": report.accepted,
        "rejected_records": report.rejected,
        "released_records": report.released,
        "dropped_records": report.dropped,
        "would_be_dead_letters": report.dead_letters,
        "missing": "; ".join(report.missing) or "nothing: retention has removed none of these records",
        "live_group": "nothing of it was touched: no lease, no delivery count, no SPSO, no dead letter",
        "path": dg.MetadataValue.path(str(report.path)),
        "scanned_offsets": report.scanned,
        "replay_seconds": round(report.seconds, 3),
        "by_partition": dg.MetadataValue.table(records=rows, schema=dg.TableSchema(columns=columns)),
    }


__all__ = ["partitions_of", "replay_name", "replayed_asset"]
