"""When does a share group want a run?

When something is left that nobody holds, and no run of its job is at work. The sensor reads Postgres only: a
sensor that polled Kafka would hold up the daemon's heartbeats. It names a request after the job's latest run,
so that a tick that is repeated after a crash requests nothing twice, and after a run that failed it waits
before it asks again.
"""

import json
import time
from collections.abc import Sequence

import dagster as dg

from sharequeue.dagster.names import GROUP_TAG
from sharequeue.dagster.resources import StateResource
from sharequeue.dagster.share_group import ShareGroup
from sharequeue.values import SharePartitionStatus

PAUSE_AFTER_FAILURE_SECONDS = 300

AT_WORK = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


def lag_sensor(group: ShareGroup) -> dg.SensorDefinition:
    """A sensor that keeps the group's job running while the group lags."""
    group_id, job_name, given = group.group, group.name, group.automation.sensor

    @dg.sensor(
        name=f"{group.name}_lag",
        job_name=job_name,
        minimum_interval_seconds=given.interval_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING if given.enabled else dg.DefaultSensorStatus.STOPPED,
        description=f"Requests a run of {job_name} while {group_id} has records that nobody holds.",
    )
    def sensor(context: dg.SensorEvaluationContext, queue: StateResource) -> dg.SensorResult | dg.SkipReason:
        statuses = queue.state.figures.describe(group_id)
        lag, waiting = sum(s.lag for s in statuses), waiting_records(statuses)
        if waiting == 0:
            return dg.SkipReason(
                f"lag {lag}: " + ("nothing to do" if lag == 0 else "all of it is held by members")
            )
        latest = _latest_run(context.instance, job_name)
        if reason := reason_to_wait(latest, time.time()):
            return dg.SkipReason(f"lag {lag}: {reason}")
        run_key = f"{group_id}:{latest.dagster_run.run_id if latest else 'first'}"
        return dg.SensorResult(
            run_requests=[dg.RunRequest(run_key=run_key, tags={GROUP_TAG: group_id})],
            cursor=json.dumps({"lag_records": lag, "waiting_records": waiting, "run_key": run_key}),
        )

    return sensor


def waiting_records(statuses: Sequence[SharePartitionStatus]) -> int:
    """How many unfinished records no member holds: a run would find them, or their dead letters to write."""
    return sum(max(0, status.lag - status.acquired) for status in statuses)


def reason_to_wait(latest: dg.RunRecord | None, now: float) -> str | None:
    """Why no run should be requested after ``latest`` at ``now`` (Unix seconds); None when one should."""
    if latest is None:
        return None
    run = latest.dagster_run
    if run.status in AT_WORK:
        return f"run {run.run_id} is at work"
    if run.status == dg.DagsterRunStatus.FAILURE and latest.end_time is not None:
        left = latest.end_time + PAUSE_AFTER_FAILURE_SECONDS - now
        if left > 0:
            return f"run {run.run_id} failed; the next one is requested in {left:.0f} s"
    return None


def _latest_run(instance: dg.DagsterInstance, job_name: str) -> dg.RunRecord | None:
    """A run at work, else the one that was created last."""
    at_work = instance.get_run_records(dg.RunsFilter(job_name=job_name, statuses=AT_WORK), limit=1)
    records = at_work or instance.get_run_records(dg.RunsFilter(job_name=job_name), limit=1)
    return records[0] if records else None
