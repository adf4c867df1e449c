"""The sensor that offers the days of a share group's history, and has each counted when it is over.

The partitions of the asset `history` are dynamic: a day becomes one when it is over and the group has figures of it.
The sensor adds them, and requests one run for all that were not counted yet: also for an earlier day whose figures
came later. After a run that failed, it waits as the lag sensor does, and requests the days again. It needs neither
Spark nor the broker.
"""

import time
from functools import partial

import dagster as dg

from sharequeue.dagster.assets.history import count_days_config, partitions_of
from sharequeue.dagster.names import QUEUE_TAG
from sharequeue.dagster.resources import StateResource
from sharequeue.dagster.sensors.active_runs import AT_WORK, end, latest_runs, lifeless
from sharequeue.dagster.sensors.lag import reason_to_wait
from sharequeue.dagster.sensors.outages import SensorAnswer, SensorCursor, keep, sensor_on_state
from sharequeue.dagster.share_group import ShareGroup
from sharequeue.state.journal import Journal

INTERVAL_SECONDS = 600
"""A day is offered at most this long after midnight in UTC."""


def history_sensor(group: ShareGroup, job_name: str, asset: dg.AssetKey) -> dg.SensorDefinition:
    """Build the sensor of the history of `group`; `job_name` records its `asset`. It is on if the observation is."""
    return sensor_on_state(
        f"{group.name}_history",
        partial(_tick, group, job_name, asset),
        job_name=job_name,
        interval_seconds=INTERVAL_SECONDS,
        enabled=group.automation.observe.enabled,
        description=f"Counts each day of {group.group} when it is over, and makes it a partition of its history.",
    )


def _tick(
    group: ShareGroup,
    job_name: str,
    asset: dg.AssetKey,
    context: dg.SensorEvaluationContext,
    queue: StateResource,
    kept: SensorCursor,
) -> SensorAnswer:
    keep(context, kept)
    partitions = partitions_of(group)
    ours = dg.RunsFilter(job_name=job_name, tags={QUEUE_TAG: group.queue}, statuses=AT_WORK)
    for run in context.instance.get_runs(ours):
        dead = lifeless(context.instance, run, group)
        if dead is None:
            return dg.SkipReason("a run counts days at the moment")
        if dead.is_gone:
            end(context.instance, dead)
    days = [day.isoformat() for day in Journal(queue.database).days_with_figures(group.group)]
    new = {*days} - context.instance.get_materialized_partitions(asset)
    if not new:
        return dg.SkipReason(
            f"no further day is over since {days[-1]}" if days else "the group has no day that is over"
        )
    runs = latest_runs(context.instance, group, job_name)
    if waits := reason_to_wait(context.instance, group.automation.sensor, runs, False, time.time()):
        return dg.SkipReason(waits)
    known = context.instance.get_dynamic_partitions(partitions.name or "")
    added = [day for day in sorted(new) if day not in known]
    # Dagster launches one run for a key, whatever its result.
    run_key = f"{group.queue}:history:{runs[0].dagster_run.run_id if runs else 'first'}"
    request = dg.RunRequest(run_key=run_key, run_config=count_days_config(group, sorted(new)))
    return dg.SensorResult(
        dynamic_partitions_requests=[partitions.build_add_request(added)] if added else [],
        run_requests=[request],
    )
