"""The sensor that records a share group's figures while nothing runs.

At every tick, without a run and without Spark, it writes a row of history to Postgres, and an observation of the
report asset with the same figures as in its materializations, so that plots have no gaps. Freshness policies count
only materializations, so the sensor records one if the last is older than a third of the window: an idle queue is
fresh, a state that cannot be read is not. If dead letters were written while no run was active, it requests a run of
their checks, and once more after a pause if that run fails or is cancelled.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from sharequeue.dagster import reports
from sharequeue.dagster.assets.dead_letters import reported_until
from sharequeue.dagster.assets.reports import standing
from sharequeue.dagster.resources import StateResource
from sharequeue.dagster.sensors.at_work import at_work, latest_run
from sharequeue.dagster.sensors.lag import FAILED, reason_to_wait, unknown_topics
from sharequeue.dagster.sensors.outages import keep, waiting_out
from sharequeue.dagster.share_group import ShareGroup, duration
from sharequeue.reports.history import Reports
from sharequeue.reports.read import read_figures
from sharequeue.reports.waiting_work import GroupWork, bounded, work_of
from sharequeue.state import State
from sharequeue.words.names import listed

Event = dg.AssetObservation | dg.AssetMaterialization


@dataclass(frozen=True, slots=True)
class Observed:
    """What the sensor reads, as asset keys, and the job that it requests."""

    report: dg.AssetKey
    dead_letters: dg.AssetKey
    made_by_runs: Sequence[dg.AssetKey]
    checks_job: str


def observe_sensor(group: ShareGroup, observed: Observed) -> dg.SensorDefinition:
    """Build a sensor that records the position of `group`, and requests checks of new dead letters."""
    given = group.automation.observe

    @dg.sensor(
        name=f"{group.name}_observe",
        job_name=observed.checks_job,
        minimum_interval_seconds=given.interval_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING if given.enabled else dg.DefaultSensorStatus.STOPPED,
        description=f"Records SPSO and lag of {group.group} without a run; requests checks of new dead letters.",
    )
    def sensor(
        context: dg.SensorEvaluationContext, sharequeue_state: StateResource
    ) -> dg.SensorResult | dg.SkipReason:
        def tick(kept: dict[str, Any]) -> dg.SensorResult | dg.SkipReason:
            with bounded(sharequeue_state.database) as database:
                statuses = State(database).figures.describe(group.group)
                if statuses:
                    Reports(database).record(group.group, duration(given.keep))
                work = work_of(database, group.group)
                due = bool(statuses) and _due(context.instance, group, observed.report)
                report = standing(database, group, sharequeue_state.settings.load()) if due else None
                figures = reports.figures(statuses, read_figures(database, group.group))
            if not statuses:
                keep(context, kept)
                return dg.SkipReason("the group has no state yet: its first run creates it")
            now = [str(status.share_partition) for status in statuses]
            events: list[Event] = [
                dg.AssetObservation(observed.report, metadata={**figures, **_seen(group, work, now, kept)})
            ]
            if report is not None:
                description = "Recorded by the sensor, without a run."
                events.append(
                    dg.AssetMaterialization(observed.report, description=description, metadata=report)
                )
            return dg.SensorResult(
                run_requests=_checks(context.instance, group, observed, work),
                asset_events=events,
                cursor=json.dumps({"share_partitions": now}),
            )

        return waiting_out(context, given.interval_seconds, tick)

    return sensor


def _seen(group: ShareGroup, work: GroupWork, now: list[str], kept: dict[str, Any]) -> dict[str, str | int]:
    """Return what is new since the last tick, and the topics without state: no member has subscribed to them."""
    known = kept.get("share_partitions", now)
    new = [each for each in now if each not in known]
    unknown = unknown_topics(group, work)
    return {
        "share_partition_count": len(now),
        **({"new_share_partitions": listed(new, 20)} if new else {}),
        **({"unknown_topics": f"{listed(unknown, 20)}: known after the next run"} if unknown else {}),
    }


def _due(instance: dg.DagsterInstance, group: ShareGroup, report: dg.AssetKey) -> bool:
    """Return whether the report's last materialization is older than a third of its freshness policy's window."""
    if group.freshness is None:
        return False
    event = instance.get_latest_materialization_event(report)
    window = duration(group.freshness.warn_window or group.freshness.fail_window)
    return event is None or time.time() - event.timestamp >= window.total_seconds() / 3


def _checks(
    instance: dg.DagsterInstance, group: ShareGroup, observed: Observed, work: GroupWork
) -> list[dg.RunRequest]:
    """Request a run of the checks for letters that no materialization has reported, or whose checks have no result.

    An active run does that itself.
    """
    written_at = work.letters_written_at
    if written_at is None:
        return []
    reported = reported_until(instance, observed.dead_letters)
    latest = latest_run(instance, group, observed.checks_job)
    failed = latest is not None and latest.dagster_run.status in FAILED
    is_reported = reported is not None and written_at.timestamp() <= reported.timestamp()
    # The report is made before the checks.
    if is_reported and (latest is None or not failed or _has_results(instance, latest)):
        return []
    if at_work(instance, group, observed.made_by_runs) or reason_to_wait(
        group.automation.sensor, latest, False, time.time()
    ):
        return []
    # Dagster launches nothing for a key that already had a run, whatever its result.
    after = f":after:{latest.dagster_run.run_id}" if latest is not None and failed else ""
    return [
        dg.RunRequest(run_key=f"{group.group}:letters:{written_at.isoformat()}{after}", tags=group.run_tags)
    ]


def _has_results(instance: dg.DagsterInstance, run: dg.RunRecord) -> bool:
    evaluations = instance.get_records_for_run(
        run.dagster_run.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION, limit=1
    )
    return bool(evaluations.records)


__all__ = ["Observed", "observe_sensor"]
