"""The sensor that offers the days of a share group's history, and has each counted when it is over.

The partitions of the asset `history` are dynamic: a day becomes one when it is over and the group has figures of it.
The sensor adds them and requests one run for all new ones. It needs neither Spark nor the broker.
"""

import json
from typing import Any

import dagster as dg

from sharequeue.dagster.assets.history import partitions_of
from sharequeue.dagster.resources import StateResource
from sharequeue.dagster.sensors.outages import keep, waiting_out
from sharequeue.dagster.share_group import ShareGroup
from sharequeue.state.journal import Journal

INTERVAL_SECONDS = 600
"""A day is offered at most this long after midnight in UTC."""

COUNTED = "counted_until"
"""The key of the cursor that has the last day whose count was requested."""


def history_sensor(group: ShareGroup, job_name: str) -> dg.SensorDefinition:
    """Build the sensor of the history of `group`; `job_name` makes its asset. It is on if the observation is."""
    partitions = partitions_of(group)

    @dg.sensor(
        name=f"{group.name}_history",
        job_name=job_name,
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING
        if group.automation.observe.enabled
        else dg.DefaultSensorStatus.STOPPED,
        description=f"Counts each day of {group.group} when it is over, and makes it a partition of its history.",
    )
    def sensor(
        context: dg.SensorEvaluationContext, sharequeue_state: StateResource
    ) -> dg.SensorResult | dg.SkipReason:
        def tick(kept: dict[str, Any]) -> dg.SensorResult | dg.SkipReason:
            days = [
                day.isoformat() for day in Journal(sharequeue_state.database).days_with_figures(group.group)
            ]
            # A tick that is repeated after a crash of the daemon has the old cursor.
            new = [day for day in days if day > kept.get(COUNTED, "")]
            if not new:
                keep(context, kept)
                return dg.SkipReason(
                    f"no further day is over since {days[-1]}"
                    if days
                    else "the group has no day that is over"
                )
            return dg.SensorResult(
                dynamic_partitions_requests=[partitions.build_add_request(new)],
                run_requests=[_request(group, new)],
                cursor=json.dumps({**kept, COUNTED: new[-1]}),
            )

        return waiting_out(context, INTERVAL_SECONDS, tick)

    return sensor


def _request(group: ShareGroup, days: list[str]) -> dg.RunRequest:
    """Request one run for days that follow each other among the partitions."""
    run_key = f"{group.group}:history:{days[-1]}"
    if len(days) == 1:
        return dg.RunRequest(run_key=run_key, partition_key=days[0])
    return dg.RunRequest(
        run_key=run_key,
        tags={
            "dagster/asset_partition_range_start": days[0],
            "dagster/asset_partition_range_end": days[-1],
        },
    )


__all__ = ["history_sensor"]
