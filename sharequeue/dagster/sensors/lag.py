"""The sensor that requests a run when there is work.

It requests a run if a run could lease something, if dead letters wait that nobody else writes, or if rows wait for
their transfer into a table, and if no run makes the group's assets and the group has no live member. A request's key
has the job's latest run, so that a tick that is repeated after a crash requests no second run. After a run that
failed, was cancelled, or changed nothing, the sensor waits before the next request; each further failure doubles the
pause. While a topic has no state, the broker is queried for what a first run would find.

Dagster shows the beginning of the cursor beside each tick, and the reason only on a click: the cursor begins with the
lag.
"""

import hashlib
import json
import time
from collections.abc import Sequence
from functools import partial
from itertools import takewhile

import dagster as dg

from sharequeue.dagster.automation import LagSensor
from sharequeue.dagster.clocks import has_passed
from sharequeue.dagster.position import awaited, silence
from sharequeue.dagster.resources import StateResource
from sharequeue.dagster.sensors.active_runs import Lifeless, at_work, end_gone, latest_runs, reason_of_failure
from sharequeue.dagster.sensors.outages import SensorAnswer, SensorCursor, keep, sensor_on_state
from sharequeue.dagster.share_group import ShareGroup
from sharequeue.domain.figures import SharePartitionStatus
from sharequeue.domain.names import listed, plural
from sharequeue.reports.waiting_work import GroupWork, work_of

UNKNOWN_TOPIC_SECONDS = 3600.0
"""The pause after a run that left a topic unknown."""
LONGEST_PAUSE_SECONDS = 3600.0
"""The longest pause after failed runs, unless `pause_after_failure_seconds` is longer."""

FAILED = (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)


def lag_sensor(group: ShareGroup, assets: Sequence[dg.AssetKey]) -> dg.SensorDefinition:
    """Build a sensor that keeps the job of `group` running while records wait; `assets` are those of its runs."""
    given = group.automation.sensor
    return sensor_on_state(
        f"{group.name}_lag",
        partial(_tick, group, assets),
        job_name=group.name,
        interval_seconds=given.interval_seconds,
        enabled=given.enabled,
        description=f"Requests a run of {group.name} while {group.group} has work and no active run or member.",
    )


def _tick(
    group: ShareGroup,
    assets: Sequence[dg.AssetKey],
    context: dg.SensorEvaluationContext,
    queue: StateResource,
    kept: SensorCursor,
) -> SensorAnswer:
    given, work, now = group.automation.sensor, work_of(queue.database, group.group), time.time()
    requested_at, since = kept.get("progress"), kept.get("waiting_since", now)
    ended = end_gone(context.instance, group, assets, work)
    unknown = unknown_topics(group, work)
    first = awaited(group, unknown, queue.database, queue.settings.load()) if unknown else []
    lag = work.lag + sum(status.lag for status in first or ())

    def skipped(reason: str, **more: float) -> dg.SkipReason:
        keep(context, {"lag_records": lag, **more, "progress": requested_at})
        return dg.SkipReason(f"lag {lag:,}: {reason}")

    if reason := nothing_to_do(group, work):
        return skipped(reason)
    if work.members:
        return skipped(f"the group has {plural(work.members, 'live member')}")
    if running := at_work(context.instance, group, assets, work):
        return skipped(running)
    runs = latest_runs(context.instance, group)
    latest, progress = runs[0] if runs else None, _progress(work)
    waits = reason_to_wait(context.instance, given, runs, requested_at == progress, now)
    if waits and not _follows_at_once(context.instance, runs, ended):
        return skipped(waits)
    if reason := _unknown_or_few(group, work, latest, now, since) or _not_there(work, unknown, first):
        return skipped(reason, waiting_since=since)
    run_key = f"{group.queue}:{latest.dagster_run.run_id if latest else 'first'}"
    return dg.SensorResult(
        run_requests=[dg.RunRequest(run_key=run_key, tags=group.run_tags)],
        cursor=json.dumps({"lag_records": lag, "waiting_records": work.records, "progress": progress}),
    )


def nothing_to_do(group: ShareGroup, work: GroupWork) -> str | None:
    """Return why a run would find nothing to do, or could not work; None if a run makes sense."""
    if silent := silence(work):
        return silent
    if work.records or unknown_topics(group, work):
        return None
    parts = work.share_partitions
    if not work.lag:
        return "nothing to do"
    reasons = {
        each.blocked_reason: f"{each.topic}: {each.blocked_reason}"
        for each in parts
        if each.blocked_reason
        and each.blocked_by not in ("leased", "waiting", "dead_letters")  # counted below
    }
    if acquired := sum(each.acquired_records for each in parts):
        reasons["held"] = f"members hold {acquired:,} records"
    if waiting := sum(each.waiting_records for each in parts):
        until = min((each.waiting_until for each in parts if each.waiting_until), default=None)
        first = (
            "all of them behind earlier ones of their keys"
            if until is None
            else f"the first until {until:%H:%M:%S} UTC"
        )
        reasons["time"] = f"{waiting:,} records wait for a later time, {first}"
    if letters := sum(each.held_letters for each in parts):
        reasons["letters"] = f"{letters:,} dead letters are held (the reason: `sharequeue groups describe`)"
    return "; ".join(reasons.values()) or "the service is writing the remaining records as dead letters"


def unknown_topics(group: ShareGroup, work: GroupWork) -> list[str]:
    """Return the group's topics without state: the first run creates their share-partitions."""
    return sorted(set(group.topics) - {each.topic for each in work.share_partitions})


def reason_to_wait(
    instance: dg.DagsterInstance,
    given: LagSensor,
    runs: Sequence[dg.RunRecord],
    unchanged: bool,
    now: float,
) -> str | None:
    """Return why no run should be requested yet at `now` (Unix seconds), after `runs`; None if one should.

    The newest run is the first one. With `unchanged`, all figures are the same as when that run was requested.
    """
    if not runs or (ended_at := runs[0].end_time) is None:
        return None
    run, failures = runs[0].dagster_run, _failures(runs)
    pause = pause_after(given, failures)
    if has_passed(pause, ended_at, now) or not (run.status in FAILED or unchanged):
        return None
    left = ended_at + pause - now
    reason = ""
    if run.status == dg.DagsterRunStatus.FAILURE:
        before = "one" if failures == 2 else str(failures - 1)
        how = "failed" if failures == 1 else f"failed, as did the {before} before it"
        reason = reason_of_failure(instance, run)
    else:
        how = "was cancelled" if run.status == dg.DagsterRunStatus.CANCELED else "changed nothing"
    said = f"run {run.run_id} {how}; the next one is requested in {left:.0f} s"
    return f"{said}. The reason: {reason}" if reason else said


def pause_after(given: LagSensor, failures: int) -> float:
    """Return the seconds without a request after so many failed runs in a row."""
    least = given.pause_after_failure_seconds
    return min(least * 2.0 ** max(0, failures - 1), max(LONGEST_PAUSE_SECONDS, least))


def _follows_at_once(
    instance: dg.DagsterInstance, runs: Sequence[dg.RunRecord], ended: Sequence[Lifeless]
) -> bool:
    """Return whether a run follows one that this tick has ended, without a pause: its records are not at fault.

    Not if it is the second failure in a row, nor if Dagster retries it.
    """
    is_ended = runs[0].dagster_run.run_id in [dead.run.run_id for dead in ended]
    return is_ended and _failures(runs) <= 1 and not instance.run_retries_enabled


def _failures(runs: Sequence[dg.RunRecord]) -> int:
    """Return how many of the newest runs have failed, one after the other."""
    failed = (record.dagster_run.status == dg.DagsterRunStatus.FAILURE for record in runs)
    return sum(1 for _ in takewhile(bool, failed))


def _unknown_or_few(
    group: ShareGroup, work: GroupWork, latest: dg.RunRecord | None, now: float, since: float
) -> str | None:
    """Return why the waiting records do not justify a run yet; None if they do."""
    given = group.automation.sensor
    if work.records:
        old = given.max_age_seconds is not None and has_passed(given.max_age_seconds, since, now)
        if work.records >= given.min_lag or old:
            return None
        return f"{work.records:,} records wait; a run is requested from {given.min_lag:,} on"
    if latest is None or latest.dagster_run.status in FAILED:
        return None
    if has_passed(UNKNOWN_TOPIC_SECONDS, latest.create_timestamp.timestamp(), now):
        return None
    unknown = listed(unknown_topics(group, work))
    return f"topic {unknown} has no state, even after the last run: check that it exists. A run is tried every hour"


def _not_there(
    work: GroupWork, unknown: Sequence[str], first: Sequence[SharePartitionStatus] | None
) -> str | None:
    """Return why a run would fail because of topics without state: the broker has none of them.

    None as `first`: the broker could not be read here, but a run may be able to.
    """
    if work.records or first or first is None:
        return None
    return f"the broker has no topic {listed(unknown)}, or does not show it: create it"


def _progress(work: GroupWork) -> str:
    """Return a digest of the figures that change with any effect of a run.

    Dagster stores the cursor with each tick, and a group may have thousands of share-partitions.
    """
    share_partitions = [
        [
            *(each.topic, each.partition, each.spso, each.speo, each.log_end, each.delivery_complete_count),
            *(each.highest_delivery_count, each.ready_records, each.unwritten_letters),
        ]
        for each in work.share_partitions
    ]
    return hashlib.sha256(json.dumps([work.pending_rows, share_partitions]).encode()).hexdigest()[:16]


__all__ = ["FAILED", "lag_sensor", "nothing_to_do", "pause_after", "reason_to_wait", "unknown_topics"]
