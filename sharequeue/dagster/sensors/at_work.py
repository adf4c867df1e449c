"""Which runs touch a share group's assets?

Its own jobs', the UI's ("Materialize", which is no job of ours), a backfill's, another job's over the same assets;
also those that are queued. The tag `sharequeue/group` is not enough: a run that the UI launches gets it when its
first step begins. Nor is a job's name: another code location may have a job that is called the same. What the group's
own jobs launch has the tag from the beginning. A run of nothing but checks touches no record.
"""

from collections.abc import Iterator, Sequence

import dagster as dg
from dagster._core.execution.backfill import BulkActionsFilter, BulkActionStatus

from sharequeue.dagster.names import GROUP_TAG
from sharequeue.dagster.share_group import ShareGroup

AT_WORK = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
_BACKFILLS_AT_WORK = [BulkActionStatus.REQUESTED, BulkActionStatus.CANCELING, BulkActionStatus.FAILING]

_MOST_RUNS = 500
"""Runs at work that are looked at, the newest first."""


def at_work(instance: dg.DagsterInstance, group: ShareGroup, assets: Sequence[dg.AssetKey]) -> str | None:
    """The first run, or backfill, at work on one of `assets` of `group`, in words; None when there is none."""
    keys = frozenset(assets)
    for run in _runs_at_work(instance, group):
        if _touches(instance, run, group, keys):
            return f"run {run.run_id} of {run.job_name} is {run.status.value.lower()}"
    for backfill in instance.get_backfills(filters=BulkActionsFilter(statuses=_BACKFILLS_AT_WORK)):
        if keys & set(backfill.asset_selection or ()):
            return f"backfill {backfill.backfill_id} is {backfill.status.value.lower()}"
    return None


def _touches(
    instance: dg.DagsterInstance, run: dg.DagsterRun, group: ShareGroup, keys: frozenset[dg.AssetKey]
) -> bool:
    """Whether a run makes one of the group's assets: by its selection, its plan, or its tag."""
    if run.asset_selection:
        return bool(keys & run.asset_selection)
    if run.asset_check_selection:
        return False
    planned = instance.get_records_for_run(
        run.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED
    ).records
    if planned:
        return any(record.asset_key in keys for record in planned)
    return run.tags.get(GROUP_TAG) == group.group


def _runs_at_work(instance: dg.DagsterInstance, group: ShareGroup) -> Iterator[dg.DagsterRun]:
    """The group's own first: they are few, and decide at once."""
    for ours in (
        dg.RunsFilter(tags=group.run_tags, statuses=AT_WORK),
        dg.RunsFilter(statuses=AT_WORK),
    ):
        yield from instance.get_runs(ours, limit=_MOST_RUNS)


def latest_run(
    instance: dg.DagsterInstance, group: ShareGroup, job_name: str | None = None
) -> dg.RunRecord | None:
    """The run of the group's job, or of another one of its jobs, that was created last."""
    ours = dg.RunsFilter(job_name=job_name or group.name, tags=group.run_tags)
    records = instance.get_run_records(ours, limit=1)
    return records[0] if records else None


__all__ = ["AT_WORK", "at_work", "latest_run"]
