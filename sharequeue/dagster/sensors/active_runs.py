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
MOST_FAILURES = 10
"""The number of latest runs to examine: with as many failures, a pause has its longest value."""
REASON_CHARACTERS = 300
"""The length of the reason of a failed run in a tick."""


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


def latest_runs(
    instance: dg.DagsterInstance, group: ShareGroup, job_name: str | None = None
) -> Sequence[dg.RunRecord]:
    """Return the newest runs of the group's job, or of another one of its jobs, the newest first."""
    ours = dg.RunsFilter(job_name=job_name or group.name, tags=group.run_tags)
    return instance.get_run_records(ours, limit=MOST_FAILURES)


def reason_of_failure(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str:
    """Return why a run failed, on one line; empty if the run has no event with a reason."""
    steps = instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE).records
    for record in steps:
        event = record.event_log_entry.dagster_event
        failure = event.step_failure_data if event is not None else None
        if failure is not None and failure.user_failure_data is not None:
            return _short(failure.user_failure_data.description or "")
        if failure is not None and failure.error is not None:
            return _short((failure.error.cause or failure.error).message)
    ends = instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.RUN_FAILURE).records
    return _short(ends[0].event_log_entry.user_message) if ends else ""


def _short(text: str) -> str:
    line = next((each.strip() for each in text.splitlines() if each.strip()), "")
    return line if len(line) <= REASON_CHARACTERS else f"{line[: REASON_CHARACTERS - 1]}…"


__all__ = ["AT_WORK", "at_work", "latest_runs", "reason_of_failure"]
