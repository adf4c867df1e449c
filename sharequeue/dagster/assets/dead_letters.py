"""The asset `dead_letters`: what was given up by the time it began is written when it ends, whoever writes it."""

from datetime import UTC, datetime
from typing import Any

import dagster as dg

from sharequeue.dagster import reports
from sharequeue.dagster.resources import SettingsResource, StateResource
from sharequeue.dagster.share_group import ShareGroup
from sharequeue.deadletters.writer import DeadLetterWriter
from sharequeue.groups.configs import GroupConfigs
from sharequeue.state.group_report import read_causes

WRITTEN_UNTIL = "written_until"
"""The metadata key of the time up to which a materialization reports."""


def dead_letters_asset(spec: dg.AssetSpec, group: ShareGroup) -> dg.AssetsDefinition:
    """The asset of `group`. It drains beside the service, which may write all of it first, and then reports
    everything that was written since its last materialization, by either.
    """

    @dg.multi_asset(specs=[spec], name=f"{group.name}_dead_letters")
    def dead_letters(
        context: dg.AssetExecutionContext, settings: SettingsResource, queue: StateResource
    ) -> Any:
        configs = GroupConfigs.load(queue.database, group.group)
        since = reported_until(context.instance, spec.key)
        report = DeadLetterWriter(settings.load(), queue.state, group.group, configs).drain(
            progress=context.log.info
        )
        for held in report.held:
            context.log.warning(
                f"{held.records:,} dead letters of {held.share_partition} are held: {held.reason}"
            )
        written = [
            run
            for run in queue.state.dead_letters.written(group.group)
            if since is None or run.written_at > since
        ]
        until = max((run.written_at for run in written), default=since)
        return dg.MaterializeResult(
            metadata={
                **reports.dead_letters(report, written, read_causes(queue.database, group.group)),
                **({} if until is None else {WRITTEN_UNTIL: dg.MetadataValue.timestamp(until)}),
            }
        )

    return dead_letters


def reported_until(instance: dg.DagsterInstance, key: dg.AssetKey) -> datetime | None:
    """The time up to which the last materialization of `key` has reported; None before the first one."""
    event = instance.get_latest_materialization_event(key)
    made = event.asset_materialization if event else None
    value = made.metadata.get(WRITTEN_UNTIL) if made else None
    return datetime.fromtimestamp(value.value, UTC) if isinstance(value, dg.TimestampMetadataValue) else None


__all__ = ["dead_letters_asset", "reported_until"]
