"""The asset `history`: the figures of each past day of a group, counted again from the journal.

The service counts a day when it is over. This asset counts it again, as far back as the journal goes, and
shows it as a partition of its own, so that a backfill fills the gaps of times without a service. For older
days it shows the earlier count. It needs no Spark, and does not change the live group.

Its partitions are dynamic, and the sensor `history` adds them: when definitions are loaded, nobody knows on which day
the group began.
"""

from collections.abc import Sequence
from datetime import date
from typing import Any

import dagster as dg

from sharequeue.dagster import reports
from sharequeue.dagster.resources import StateResource
from sharequeue.dagster.share_group import ShareGroup
from sharequeue.state.journal import Day, Journal


def partitions_of(group: ShareGroup) -> dg.DynamicPartitionsDefinition:
    """Return the partitions of the asset: the days (UTC) that are over and of which the group has figures."""
    return dg.DynamicPartitionsDefinition(name=f"sharequeue/{group.name}/history")


def history_asset(spec: dg.AssetSpec, group: ShareGroup) -> dg.AssetsDefinition:
    """Build the asset of the history of `group`: a partition for each day in UTC, from the journal.

    One run makes all requested partitions.
    """
    partitions = partitions_of(group)

    @dg.multi_asset(
        specs=[spec.replace_attributes(partitions_def=partitions)],
        name=f"{group.name}_history",
        partitions_def=partitions,
        backfill_policy=dg.BackfillPolicy.single_run(),
    )
    def history(context: dg.AssetExecutionContext, sharequeue_state: StateResource) -> Any:
        journal = Journal(sharequeue_state.database)
        kept = {partition.day for partition in journal.partitions()}
        # A day is counted from the end of the previous one.
        for key in sorted(context.partition_keys):
            day = date.fromisoformat(key)
            if day in kept:
                journal.roll_up(day)
            days = journal.days(group.group, since=day, until=day)
            metadata = {
                **reports.day(days, journal.outcomes(group.group, day)),
                "counted_from": _source(day in kept, days),
            }
            context.add_asset_metadata(metadata, asset_key=spec.key, partition_key=key)
        return dg.MaterializeResult(asset_key=spec.key)

    return history


def _source(kept: bool, days: Sequence[Day]) -> str:
    """Return the source of a day's figures."""
    if kept:
        return "the journal"
    return (
        "the count of that day: its journal was dropped"
        if days
        else "none: the journal of that day was dropped"
    )


__all__ = ["history_asset", "partitions_of"]
