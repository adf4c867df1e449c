"""Find the runs that make a share group's assets, and end those whose process is gone.

These are runs of its own jobs, of the UI ("Materialize", not one of our jobs), of a backfill, and of other jobs
with the same assets, queued ones included. The tags of a run are not enough: a run that the UI launches gets them
when its first step begins. Nor is a job's name, nor the group's id: another code location may have both, for another
Kafka cluster. Runs of the group's own jobs have the tags from the beginning, and one of them is the prefix of its
asset keys. A run of checks only does not process records.

The status of a run is not enough: after a reboot it stays `STARTED`, because Dagster's default launcher cannot see
that the process is gone. A run is at work if its member lives, if its member holds a lock that has not lapsed, or if
its log has a sign of life (`signs_of_life`). Without any of them it delays nothing, and if it is certain that its
process is gone, the sensors end it: then it releases its place in a pool, and Dagster may retry it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import dagster as dg

# The statuses of backfills, by which the instance filters them, have no public name (Dagster 1.13).
from dagster._core.execution.backfill import BulkActionsFilter, BulkActionStatus

from sharequeue.dagster.names import CLIENT_ID_PREFIX, MEMBER_TAG, QUEUE_TAG
from sharequeue.dagster.retries import own_tag
from sharequeue.dagster.share_group import ShareGroup
from sharequeue.dagster.signs_of_life import last_sign, seconds_since
from sharequeue.reports.waiting_work import GroupWork

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
QUIET_SECONDS = 600.0
"""A run in a step that is not ours may be alive without an event, but after this time it delays no other run."""
MOST_FAILURES = 10
"""The number of latest runs to examine: with as many failures, a pause has its longest value."""
REASON_CHARACTERS = 300
"""The length of the reason of a failed run in a tick."""


@dataclass(frozen=True, slots=True)
class Lifeless:
    """An active run without a sign of life."""

    run: dg.DagsterRun
    reason: str
    is_gone: bool
    """Whether its process is gone for certain. If not, it may be in a step that is not ours."""

    def __str__(self) -> str:
        """Return the run with the reason."""
        return f"run {self.run.run_id} of {self.run.job_name} is {self.run.status.value.lower()}, but {self.reason}"


def at_work(
    instance: dg.DagsterInstance,
    group: ShareGroup,
    assets: Sequence[dg.AssetKey],
    work: GroupWork | None = None,
) -> str | None:
    """Describe the first active run or backfill of `assets` of `group` that is at work; None if there is none.

    Without `work`, the members of the group are unknown: then only the log of a run decides.
    """
    keys = frozenset(assets)
    for run in _runs_at_work(instance, group):
        if _touches(instance, run, group, keys) and lifeless(instance, run, group, work) is None:
            return f"run {run.run_id} of {run.job_name} is {run.status.value.lower()}"
    for backfill in instance.get_backfills(filters=BulkActionsFilter(statuses=_BACKFILLS_AT_WORK)):
        if keys & set(backfill.asset_selection or ()):
            return f"backfill {backfill.backfill_id} is {backfill.status.value.lower()}"
    return None


def lifeless(
    instance: dg.DagsterInstance, run: dg.DagsterRun, group: ShareGroup, work: GroupWork | None = None
) -> Lifeless | None:
    """Return why an active run is not at work, by its member, its locks and its log; None if it is."""
    if run.status == dg.DagsterRunStatus.QUEUED:
        return None
    client_id, member_id = CLIENT_ID_PREFIX + run.run_id, own_tag(instance, run, MEMBER_TAG)
    if work is not None and work.at_work & {client_id, member_id}:
        return None
    sign = last_sign(instance, run)
    if sign is not None and sign.is_open:
        reason = f"its process is gone: its last sign of life is {sign.seconds_ago:,.0f} s old"
        return Lifeless(run, reason, True) if sign.is_gone else None
    if sign is None and work is not None and (member_id or client_id in work.gone):
        # A run of a version that gave no signs.
        return Lifeless(run, f"its process is gone: its member {member_id or client_id} does not live", True)
    silent = _silent_for(instance, run)
    if silent <= QUIET_SECONDS or instance.run_launcher.supports_check_run_worker_health:
        return None
    # All steps of the group's own jobs give signs, from their beginning.
    own = run.job_name in own_jobs(group) and run.tags.get(QUEUE_TAG) == group.queue
    return Lifeless(run, f"its log has had no event for {silent:,.0f} s", own)


def own_jobs(group: ShareGroup) -> list[str]:
    """Return the names of the group's jobs: their runs have its tags from the beginning, and only our steps."""
    others = ("checks", "redrive", "replay", "publish", "count_days")
    return [group.name, *(f"{group.name}_{other}" for other in others)]


def _silent_for(instance: dg.DagsterInstance, run: dg.DagsterRun) -> float:
    """Return the seconds since the last event of a run, or since its creation if it has none."""
    latest = instance.get_records_for_run(run.run_id, limit=1, ascending=False).records
    if latest:
        return seconds_since(instance, run, latest[0].event_log_entry.timestamp)
    record = instance.get_run_record_by_id(run.run_id)
    return seconds_since(instance, run, record.create_timestamp.timestamp() if record is not None else 0.0)


def end_gone(
    instance: dg.DagsterInstance, group: ShareGroup, assets: Sequence[dg.AssetKey], work: GroupWork
) -> list[Lifeless]:
    """End the active runs of a group whose process is gone: of its jobs, of its assets, and its replays.

    They become failures, with the reason, so that Dagster frees their places in pools and may retry them; a run that
    was being cancelled becomes cancelled. Return these runs.
    """
    keys, found = frozenset(assets), list[Lifeless]()
    for run in instance.get_runs(dg.RunsFilter(statuses=AT_WORK), limit=_MOST_RUNS):
        is_ours = run.tags.get(QUEUE_TAG) == group.queue or _touches(instance, run, group, keys)
        dead = lifeless(instance, run, group, work) if is_ours else None
        if dead is not None and dead.is_gone:
            end(instance, dead)
            found.append(dead)
    return found


def end(instance: dg.DagsterInstance, dead: Lifeless) -> None:
    """End a run whose process is gone, unless it has ended meanwhile."""
    run = instance.get_run_by_id(dead.run.run_id)
    if run is None or run.is_finished:
        return
    said = (
        f"The run was ended by a sensor or the schedule of its share group: {dead.reason}. Its records are leased "
        "again."
    )
    if run.status == dg.DagsterRunStatus.CANCELING:
        instance.report_run_canceled(run, said)
    else:
        instance.report_run_failed(run, said)


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
    return run.tags.items() >= group.run_tags.items()


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
    ours = dg.RunsFilter(job_name=job_name or group.name, tags={QUEUE_TAG: group.queue})
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
    return _short(ends[0].event_log_entry.message) if ends else ""


def _short(text: str) -> str:
    line = next((each.strip() for each in text.splitlines() if each.strip()), "")
    return line if len(line) <= REASON_CHARACTERS else f"{line[: REASON_CHARACTERS - 1]}…"


__all__ = [
    "AT_WORK",
    "Lifeless",
    "at_work",
    "end",
    "end_gone",
    "latest_runs",
    "lifeless",
    "reason_of_failure",
]
