"""The asset `history`: what each day that is over brought to a group, counted anew from the journal.

The service counts a day when it is over. This asset counts it again, for days as far back as the journal goes, and
shows it as a partition of its own, so that a backfill fills the holes of a time in which no service ran. Of older
days it shows what was counted then. No Spark, and nothing of the live group is touched.
"""

from collections.abc import Sequence
from datetime import date
from typing import Any

import dagster as dg

from sharequeue.dagster import reports
from sharequeue.dagster.resources import StateResource
from sharequeue.dagster.share_group import Backfill, ShareGroup
from sharequeue.state.journal import Day, Journal


def history_asset(spec: dg.AssetSpec, group: ShareGroup, backfill: Backfill) -> dg.AssetsDefinition:
    """The asset of `group`, a partition for each day in UTC, as the journal has them; one run for all that are asked
    for."""
    partitions = dg.DailyPartitionsDefinition(backfill.start, timezone="UTC")

    @dg.multi_asset(
        specs=[spec.replace_attributes(partitions_def=partitions)],
        name=f"{group.name}_history",
        partitions_def=partitions,
        backfill_policy=dg.BackfillPolicy.single_run(),
    )
    def history(context: dg.AssetExecutionContext, queue: StateResource) -> Any:
        journal = Journal(queue.database)
        kept = {partition.day for partition in journal.partitions()}
        # A day is counted from where the one before it ended.
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
    """Where the figures of a day come from."""
    if kept:
        return "the journal"
    return "the count of that day: its journal is gone" if days else "nothing: no journal is left of that day"


__all__ = ["history_asset"]
