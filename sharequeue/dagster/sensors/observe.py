"""The sensor that records a share group's figures while nothing runs.

At every tick, without a run and without Spark, it writes a row of history to Postgres, an observation of the
report asset with the same figures as in its materializations, so that plots have no gaps, and the results of the
state checks if they have changed, so that a queue is judged while its runs fail. Freshness policies count only
materializations, so the sensor records one if the last is older than a third of the window: of the report at any
time, of `accepted` only while nothing waits. So an idle queue is fresh; one whose runs fail is not, nor is a state
that cannot be read. If dead letters were written while no run was active, it requests a run of their checks, and once
more after a pause if that run fails or is cancelled. A topic is observed when its end offsets have changed. The
reason of a tick lists what it has recorded: Dagster shows it unless the tick requests a run.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import dagster as dg
from sqlalchemy.exc import DBAPIError

from sharequeue.dagster import reports
from sharequeue.dagster.assets.dead_letters import reported_until
from sharequeue.dagster.assets.reports import standing
from sharequeue.dagster.clocks import has_passed
from sharequeue.dagster.position import Position, seen_by_broker, settled, silence, state_of
from sharequeue.dagster.resources import StateResource
from sharequeue.dagster.sensors.active_runs import at_work, end_gone, latest_runs
from sharequeue.dagster.sensors.lag import FAILED, reason_to_wait, unknown_topics
from sharequeue.dagster.sensors.outages import SensorAnswer, SensorCursor, keep, sensor_on_state
from sharequeue.dagster.share_group import ShareGroup
from sharequeue.dagster.state_checks import AGE_BOUNDED, LAG_BOUNDED, evaluation, state_results
from sharequeue.dagster.topics import observed_topics, written_offsets
from sharequeue.dagster.yaml_values import duration
from sharequeue.database import Database
from sharequeue.database.sqlstates import QUERY_CANCELLED, sqlstate
from sharequeue.domain.names import listed
from sharequeue.reports.ages import with_a_record
from sharequeue.reports.history import Reports
from sharequeue.reports.read import read_figures
from sharequeue.reports.waiting_work import GroupWork, bounded
from sharequeue.state import State

VERDICT_SECONDS = 3600.0
"""After this time, the result of a check is recorded again although it is the same."""

MOST_EXECUTIONS = 10
"""The latest executions of a check to examine."""
CATALOG = ("dagster/uri", "dagster/table_name", "dagster/storage_kind", "dagster/column_schema", "path")
"""The metadata that a materialization without a run repeats."""

Event = dg.AssetObservation | dg.AssetMaterialization | dg.AssetCheckEvaluation


@dataclass(frozen=True, slots=True)
class ObservedAssets:
    """What the sensor reads, as asset keys, and the job that it requests."""

    accepted: dg.AssetKey
    report: dg.AssetKey
    dead_letters: dg.AssetKey
    made_by_runs: Sequence[dg.AssetKey]
    checks_job: str


def observe_sensor(group: ShareGroup, observed: ObservedAssets) -> dg.SensorDefinition:
    """Build a sensor that records the position of `group`, and requests checks of new dead letters."""
    given = group.automation.observe
    return sensor_on_state(
        f"{group.name}_observe",
        partial(_tick, group, observed),
        job_name=observed.checks_job,
        interval_seconds=given.interval_seconds,
        enabled=given.enabled,
        description=f"Records and checks SPSO and lag of {group.group} without a run; requests checks of letters.",
    )


def _tick(
    group: ShareGroup,
    observed: ObservedAssets,
    context: dg.SensorEvaluationContext,
    queue: StateResource,
    kept: SensorCursor,
) -> SensorAnswer:
    instance, settings = context.instance, queue.settings.load()
    # No transaction is open while this waits for the service, nor while the broker is read.
    violations, _ = _violations(queue.database, group), settled(queue.database, group.group)
    with bounded(queue.database) as database:
        position = state_of(database, group.group, violations)
        if position.statuses:
            Reports(database).record(group.group, duration(group.automation.observe.keep))
    position, work = seen_by_broker(position, group, queue.database, settings), position.work
    gone = end_gone(instance, group, observed.made_by_runs, work)
    position = replace(position, gone_runs=[str(dead) for dead in gone])
    if not position.everything:
        keep(context, kept)
        return dg.SkipReason(
            "the group has no state yet, and the broker "
            + ("shows none of its topics" if position.first_known else "cannot be read")
        )
    with bounded(queue.database) as database:
        sums = read_figures(database, group.group, position.ages, position.first)
    now = [str(status.share_partition) for status in position.statuses]
    seen = {**reports.figures(position.everything, sums), **_seen(group, work, now, kept)}
    # Without the records' timestamps it would be another figure, since the first report: a plot would drop.
    unknown = () if _ages_known(position) else ("oldest_age_seconds",)

    def known(metadata: reports.Metadata) -> reports.Metadata:
        return {name: value for name, value in metadata.items() if name not in unknown}

    events: list[Event] = [dg.AssetObservation(observed.report, metadata=known(seen))]
    if is_due := _due(instance, group, observed.report):
        report = known(standing(queue.database, group, settings))
        events.append(_without_run(observed.report, "Recorded by the sensor", report))
    shown = instance.get_latest_materialization_event(observed.report)
    verdicts = map(evaluation, state_results(group, observed.report, position))
    news = [each for each in verdicts if _is_sure(position, each) and _is_news(instance, each, shown, is_due)]
    events += news
    if not position.lag and position.is_current and _due(instance, group, observed.accepted):
        empty = {"lag_records": 0, "archiving_records": 0, **_catalog(instance, observed.accepted)}
        events.append(_without_run(observed.accepted, "Nothing waits: recorded by the sensor", empty))
    requests, waits_for = _checks(instance, group, observed, work)
    made = [each.asset_key.path[-1] for each in events if isinstance(each, dg.AssetMaterialization)]
    recorded = _recorded(news, made, waits_for)
    reason = f"lag {position.lag:,}: {'; '.join(filter(None, (silence(work), recorded)))}"
    return dg.SensorResult(
        run_requests=requests,
        # Dagster refuses a reason beside a request.
        skip_reason=None if requests else reason,
        asset_events=[*events, *observed_topics(group, position.everything, kept.get("topics"))],
        # Dagster shows the beginning beside each tick, and the reason only on a click.
        cursor=json.dumps(
            {
                "lag_records": position.lag,
                "share_partitions": now,
                "topics": written_offsets(position.everything),
            }
        ),
    )


def _recorded(news: Sequence[dg.AssetCheckEvaluation], made: Sequence[str], waits_for: str) -> str:
    """Return what a tick has recorded, and why new dead letters are not checked yet."""
    results = [f"{each.check_name} {'passed' if each.passed else 'failed'}" for each in news]
    parts = ["SPSO and lag recorded", f"new results of checks: {', '.join(results)}" if results else ""]
    parts.append(f"materialized without a run: {', '.join(made)}" if made else "")
    parts.append(f"new dead letters are not checked yet: {waits_for}" if waits_for else "")
    return "; ".join(filter(None, parts))


def _violations(database: Database, group: ShareGroup) -> Sequence[str] | None:
    """Return the violated invariants of the state; None if a check of all takes too long for a tick."""
    try:
        with bounded(database) as joined:
            return State(joined).figures.verify(group.group)
    except DBAPIError as error:
        if sqlstate(error) != QUERY_CANCELLED:
            raise
        return None


def _seen(group: ShareGroup, work: GroupWork, now: list[str], kept: SensorCursor) -> dict[str, str | int]:
    """Return what is new since the last tick, and the topics without state: no member has subscribed to them."""
    known = kept.get("share_partitions", now)
    new = [each for each in now if each not in known]
    unknown = unknown_topics(group, work)
    return {
        "share_partition_count": len(now),
        **({"new_share_partitions": listed(new, 20)} if new else {}),
        **({"unknown_topics": f"{listed(unknown, 20)}: known after the next run"} if unknown else {}),
    }


def _is_sure(position: Position, verdict: dg.AssetCheckEvaluation) -> bool:
    """Return whether a check has its result for another reason than that the broker cannot be read: a check that
    failed must not pass because of an outage."""
    if verdict.passed and verdict.check_name in (LAG_BOUNDED, AGE_BOUNDED) and not position.is_current:
        return False
    return not verdict.passed or verdict.check_name != AGE_BOUNDED or _ages_known(position)


def _ages_known(position: Position) -> bool:
    """Return whether records that wait could be read, if there are any."""
    return bool(position.ages) or not with_a_record(position.everything)


def _is_news(
    instance: dg.DagsterInstance,
    verdict: dg.AssetCheckEvaluation,
    shown: dg.EventLogEntry | None,
    is_due: bool,
) -> bool:
    """Return whether a check's last result was another one, is old, or is hidden: Dagster shows the results for the
    newest materialization alone, which is `shown` or, if `is_due`, made by this tick. A result a minute would only
    fill Dagster's storage.

    An active run has planned its checks already. Dagster stores the run's result in the place of the plan: a result
    recorded meanwhile would count as the later one, so the plan alone is no reason for one.
    """
    is_planned = False
    executions = instance.event_log_storage.get_asset_check_execution_history(
        verdict.asset_check_key, MOST_EXECUTIONS
    )
    for record in executions:
        event = record.event.dagster_event if record.event is not None else None
        if record.event is None or event is None:
            return True
        if event.event_type == dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            if event.asset_check_evaluation_data.passed != verdict.passed:
                return True
            made_at = record.event.timestamp
            later = shown is not None and shown.run_id != record.run_id and shown.timestamp > made_at
            is_hidden = not is_planned and (is_due or later)
            return is_hidden or has_passed(VERDICT_SECONDS, made_at, time.time())
        run = instance.get_run_by_id(record.run_id)
        # A run that failed before its checks leaves the event that they were planned.
        if run is None or run.is_finished:
            return True
        is_planned = True
    return True


def _catalog(instance: dg.DagsterInstance, asset: dg.AssetKey) -> reports.Metadata:
    """Return where an asset's rows are, and their columns, from its last materialization: Dagster's catalog shows
    those of the newest one alone. The number of rows is left out, because others may have added some."""
    event = instance.get_latest_materialization_event(asset)
    made = event.asset_materialization if event is not None else None
    return {name: made.metadata[name] for name in CATALOG if name in made.metadata} if made else {}


def _without_run(asset: dg.AssetKey, description: str, metadata: reports.Metadata) -> dg.AssetMaterialization:
    return dg.AssetMaterialization(asset, description=f"{description}, without a run.", metadata=metadata)


def _due(instance: dg.DagsterInstance, group: ShareGroup, asset: dg.AssetKey) -> bool:
    """Return whether an asset's last materialization is older than a third of its freshness policy's window."""
    fresh = group.stale_after
    if fresh is None:
        return False
    event = instance.get_latest_materialization_event(asset)
    window = duration(fresh.warn_window or fresh.fail_window)
    return event is None or has_passed(window.total_seconds() / 3, event.timestamp, time.time())


def _checks(
    instance: dg.DagsterInstance, group: ShareGroup, observed: ObservedAssets, work: GroupWork
) -> tuple[list[dg.RunRequest], str]:
    """Request a run of the checks for letters that no materialization has reported, or whose checks have no result.

    An active run does that itself, and a run that failed is followed by a pause: then the second value is the reason
    why there is no request.
    """
    written_at = work.letters_written_at
    if written_at is None:
        return [], ""
    reported = reported_until(instance, observed.dead_letters, work.at)
    runs = latest_runs(instance, group, observed.checks_job)
    latest = runs[0] if runs else None
    failed = latest is not None and latest.dagster_run.status in FAILED
    is_reported = reported is not None and written_at.timestamp() <= reported.timestamp()
    # The report is made before the checks.
    if is_reported and (latest is None or not failed or _has_results(instance, latest)):
        return [], ""
    waits_for = at_work(instance, group, observed.made_by_runs, work) or reason_to_wait(
        instance, group.automation.sensor, runs, False, time.time()
    )
    if waits_for:
        return [], waits_for
    # Dagster launches nothing for a key that already had a run, whatever its result.
    after = f":after:{latest.dagster_run.run_id}" if latest is not None and failed else ""
    run_key = f"{group.queue}:letters:{written_at.isoformat()}{after}"
    return [dg.RunRequest(run_key=run_key, tags=group.run_tags)], ""


def _has_results(instance: dg.DagsterInstance, run: dg.RunRecord) -> bool:
    evaluations = instance.get_records_for_run(
        run.dagster_run.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION, limit=1
    )
    return bool(evaluations.records)


__all__ = ["ObservedAssets", "observe_sensor"]
