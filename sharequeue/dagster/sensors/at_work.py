"""Find the runs that make a share group's assets.

These are runs of its own jobs, of the UI ("Materialize", which is no job of ours), of a backfill, and of other jobs
with the same assets, queued ones included. The tag `sharequeue/group` is not enough: a run that the UI launches gets
it when its first step begins. Nor is a job's name: another code location may have a job with the same name. Runs of
the group's own jobs have the tag from the beginning. A run of checks only does not process records.
"""

from collections.abc import Iterator, Sequence

import dagster as dg

# The statuses of backfills, by which the instance filters them, have no public name (Dagster 1.13).
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
"""The number of active runs to examine, the newest first."""


def at_work(instance: dg.DagsterInstance, group: ShareGroup, assets: Sequence[dg.AssetKey]) -> str | None:
    """Describe the first active run or backfill of `assets` of `group`; None if there is none."""
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
    """Return whether a run makes one of the group's assets: by its selection, its plan, or its tag."""
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
    """Yield the active runs, the group's own first: they are few, and decide at once."""
    for ours in (
        dg.RunsFilter(tags=group.run_tags, statuses=AT_WORK),
        dg.RunsFilter(statuses=AT_WORK),
    ):
        yield from instance.get_runs(ours, limit=_MOST_RUNS)


def latest_run(
    instance: dg.DagsterInstance, group: ShareGroup, job_name: str | None = None
) -> dg.RunRecord | None:
    """Return the newest run of the group's job, or of another one of its jobs."""
    ours = dg.RunsFilter(job_name=job_name or group.name, tags=group.run_tags)
    records = instance.get_run_records(ours, limit=1)
    return records[0] if records else None


__all__ = ["AT_WORK", "at_work", "latest_run"]
