"""The Dagster definitions of a share group: assets, checks, a sensor, a schedule and jobs, from one value.

It is a plain function: `ShareGroupComponent` calls it with the content of a `defs.yaml`, and a program without YAML
calls it directly.
"""

from collections.abc import Sequence

import dagster as dg

from sharequeue.dagster.asset_keys import require_own_keys
from sharequeue.dagster.assets.accepted import Execute, accepted_asset, process
from sharequeue.dagster.assets.dead_letters import dead_letters_asset
from sharequeue.dagster.assets.history import count_days_job
from sharequeue.dagster.assets.history import partitions_of as days_of
from sharequeue.dagster.assets.published import publish_job
from sharequeue.dagster.assets.replayed import partitions_of, replayed_asset
from sharequeue.dagster.assets.reports import delivery_counts_asset, spso_and_lag_asset
from sharequeue.dagster.assets.summaries import summary_asset
from sharequeue.dagster.automation import Schedule
from sharequeue.dagster.checks import dead_letter_checks
from sharequeue.dagster.column_checks import column_checks
from sharequeue.dagster.lineage import (
    ACCEPTED,
    DEAD_LETTERS,
    DELIVERY_COUNTS,
    HISTORY,
    PUBLISHED,
    REDRIVEN,
    REPLAYED,
    SPSO_AND_LAG,
    Lineage,
    Translate,
    topics_of,
)
from sharequeue.dagster.redrive import redrive_job
from sharequeue.dagster.resources import StateResource
from sharequeue.dagster.sensors import ObservedAssets, history_sensor, lag_sensor, observe_sensor
from sharequeue.dagster.sensors.active_runs import at_work, end_gone
from sharequeue.dagster.sensors.outages import AWAY
from sharequeue.dagster.share_group import Backfill, ShareGroup
from sharequeue.dagster.state_checks import checks_on_state
from sharequeue.reports.waiting_work import GroupWork, work_of


def share_group_defs(
    group: ShareGroup,
    *,
    execute: Execute = process,
    translate: Translate = lambda spec, data: spec,
    topics: Sequence[dg.AssetSpec] | None = None,
) -> dg.Definitions:
    """Return all definitions of `group` for Dagster. They need `share_group_resources`.

    `execute` does the work of the asset `accepted`; `translate` changes our spec of each asset into the user's.
    `topics` are the external assets of topics; by default those of this group. Several groups of a code location need
    the same list, from `topic_assets`. Raises ValueError if two of its assets have one key.
    """
    lineage = Lineage(group, translate)
    require_own_keys([lineage])
    name, reported = group.name, [lineage.key(SPSO_AND_LAG), lineage.key(DELIVERY_COUNTS)]
    job = dg.define_asset_job(
        name,
        selection=dg.AssetSelection.assets(*lineage.of_a_run),
        executor_def=group.job.executor_def,
        tags={**group.job.run_tags, **group.run_tags},
        description=f"Processes share group {group.group}, then writes dead letters, reports and checks.",
    )
    checks_job = dg.define_asset_job(
        f"{name}_checks",
        selection=dg.AssetSelection.assets(lineage.key(DEAD_LETTERS)),
        executor_def=group.job.executor_def,
        tags={**group.job.run_tags, **group.run_tags},
        description=f"Reports the dead letters of share group {group.group} and checks them, without Spark.",
    )
    checks = [
        dead_letter_checks(group, asset=lineage.key(DEAD_LETTERS), after=reported),
        checks_on_state(group, asset=lineage.key(SPSO_AND_LAG)),
        *column_checks(group, asset=lineage.key(ACCEPTED)),
    ]
    touched = [*lineage.of_a_run, lineage.key(REDRIVEN)]
    observed = ObservedAssets(
        lineage.key(ACCEPTED), lineage.key(SPSO_AND_LAG), lineage.key(DEAD_LETTERS), touched, checks_job.name
    )
    schedule = group.automation.schedule
    backfills = dg.Definitions() if group.backfill is None else _backfills(group, group.backfill, lineage)
    made = dg.Definitions(
        assets=[
            accepted_asset(lineage[ACCEPTED], group, execute),
            *(summary_asset(lineage[summary], group, summary) for summary in group.summaries),
            dead_letters_asset(lineage[DEAD_LETTERS], group),
            lineage[REDRIVEN],
            spso_and_lag_asset(lineage[SPSO_AND_LAG], group),
            delivery_counts_asset(lineage[DELIVERY_COUNTS], group),
            *(topics_of([lineage]) if topics is None else topics),
        ],
        asset_checks=checks,
        jobs=[job, redrive_job(group, lineage.key(REDRIVEN)), checks_job],
        sensors=[lag_sensor(group, touched), observe_sensor(group, observed)],
        schedules=[] if schedule is None else [_schedule(group, schedule, touched)],
    )
    return dg.Definitions.merge(made, backfills)


def _backfills(group: ShareGroup, backfill: Backfill, lineage: Lineage) -> dg.Definitions:
    """Return the definitions of replays, of their publication, and of the history."""
    replayed = replayed_asset(lineage[REPLAYED], group, backfill)
    published = lineage[PUBLISHED].replace_attributes(partitions_def=partitions_of(backfill))
    history = lineage[HISTORY].replace_attributes(partitions_def=days_of(group))
    summaries = {name: lineage.key(name) for name in group.summaries}
    replay_job = dg.define_asset_job(
        f"{group.name}_replay",
        selection=dg.AssetSelection.assets(replayed),
        executor_def=group.job.executor_def,
        tags={**group.job.run_tags, **group.replay_tags},
        description=f"Replays records of share group {group.group} by time; the live group is not changed.",
    )
    history_job = count_days_job(group, history.key)
    return dg.Definitions(
        assets=[replayed, published, history],
        jobs=[replay_job, publish_job(group, backfill, published.key, summaries), history_job],
        sensors=[history_sensor(group, history_job.name, history.key)],
    )


def _schedule(group: ShareGroup, given: Schedule, assets: Sequence[dg.AssetKey]) -> dg.ScheduleDefinition:
    """Build the schedule of the job of `group`; `assets` are those of its runs.

    A tick is skipped, with the reason, while a run or a backfill of the group is active or queued, so that runs that
    take longer than the interval do not fill the queue. It ends runs whose process is gone, as the sensors do. While
    the state cannot be read, the logs of the runs decide, and the run is requested: it may be able to read the state.
    """

    @dg.schedule(
        name=f"{group.name}_schedule",
        job_name=group.name,
        cron_schedule=given.cron,
        execution_timezone=given.timezone,
        default_status=dg.DefaultScheduleStatus.RUNNING
        if given.enabled
        else dg.DefaultScheduleStatus.STOPPED,
        description=f"Processes share group {group.group} at set times, whatever the lag. Skips a time while a run "
        "of the group is active or queued.",
    )
    def schedule(
        context: dg.ScheduleEvaluationContext, sharequeue_state: StateResource
    ) -> dg.RunRequest | dg.SkipReason:
        work: GroupWork | None
        try:
            work = work_of(sharequeue_state.database, group.group)
            end_gone(context.instance, group, assets, work)
        except AWAY:
            work = None
        if running := at_work(context.instance, group, assets, work):
            return dg.SkipReason(running)
        return dg.RunRequest(tags=group.run_tags)

    return schedule


__all__ = ["share_group_defs"]
