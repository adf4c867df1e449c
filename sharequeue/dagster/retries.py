"""The retries of failed runs: which errors a retry may cure, and what a retry must not inherit.

Dagster retries a failed run as often as the instance allows (`run_retries`), unless the run's tag
`dagster/max_retries` has another number. `Failure(allow_retries=False)` concerns retries of a step, not of a run. A
retry gets all tags of the failed run, except some of Dagster's own.
"""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn

import dagster as dg

from sharequeue.dagster.names import LEASES_TAG, MEMBER_TAG
from sharequeue.domain import final_errors
from sharequeue.domain.errors import first_line

MAX_RETRIES_TAG = "dagster/max_retries"
BACKFILL_TAG = "dagster/backfill"
RETRY_NUMBER_TAG = "dagster/retry_number"
NOT_RETRIED_TAG = "sharequeue/not_retried"
"""On a run that must not be retried: the error."""
REASON_CHARACTERS = 200
OF_ANOTHER_RUN = "none"
"""The value of a tag that a retry has inherited, before it has its own: Dagster cannot remove a tag."""


def is_final(error: BaseException) -> bool:
    """Return whether a retry of a run cannot succeed until something else is changed."""
    return final_errors.is_final(
        error, lambda each: not each.allow_retries if isinstance(each, dg.Failure) else None
    )


def retried_if_useful(work: Callable[..., Any], policy: dg.RetryPolicy | None = None) -> Callable[..., Any]:
    """Retry a step by `policy`. If an error is one that a retry cannot cure, tag the run, and retry neither.

    A policy of Dagster's own would also retry such errors, and steps that somebody has cancelled.

    The same if the run is a part of a backfill that was cancelled meanwhile. A retry for such a backfill fails before
    it does anything.
    """

    @wraps(work)
    def done(context: dg.AssetExecutionContext, *given: Any, **named: Any) -> Any:
        instance, run = context.instance, context.run
        try:
            if RETRY_NUMBER_TAG in run.tags and (reason := _of_cancelled_backfill(instance, run)):
                raise dg.Failure(f"{reason}: nothing was done", allow_retries=False)
            return work(context, *given, **named)
        except dg.RetryRequested:
            raise
        except Exception as error:
            reason = _reason(error) if is_final(error) else _of_cancelled_backfill(instance, run)
            if reason:
                instance.add_run_tags(run.run_id, {MAX_RETRIES_TAG: "0", NOT_RETRIED_TAG: reason})
            elif policy is not None and (number := context.retry_number) < policy.max_retries:
                context.log.warning(f"the step is tried again: {_reason(error)}")
                raise dg.RetryRequested(policy.max_retries, policy.calculate_delay(number + 1)) from error
            _raise_without_jvm(context, error)

    return done


def _raise_without_jvm(context: dg.AssetExecutionContext, error: Exception) -> NoReturn:
    """Raise an error without the stack of Spark's JVM, which is written to the run's log as debug."""
    # Only a process that has imported Spark can have an error of it.
    if (job_errors := sys.modules.get("sharequeue.spark.job_errors")) is not None:
        shown, whole = job_errors.for_user(error)
        if whole:
            context.log.debug(f"the whole error of Spark:\n{whole}")
            raise shown from None
    raise error


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"[:REASON_CHARACTERS]


def _of_cancelled_backfill(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str:
    """Return that the backfill of a run, or of the run that it retries, was cancelled; empty if it was not."""
    parent = instance.get_run_by_id(run.parent_run_id) if run.parent_run_id else None
    # A retry that begins while its backfill is cancelled does not belong to it any more.
    tags = run.tags if parent is None or BACKFILL_TAG in run.tags else parent.tags
    backfill = instance.get_backfill(tags[BACKFILL_TAG]) if BACKFILL_TAG in tags else None
    if backfill is None or backfill.status.value not in ("CANCELING", "CANCELED"):
        return ""
    return f"backfill {backfill.backfill_id} was cancelled"


def own_tag(instance: dg.DagsterInstance, run: dg.DagsterRun, tag: str) -> str | None:
    """Return the value of a tag that a run has written itself; None if it has not, or has inherited the value."""
    value = run.tags.get(tag, OF_ANOTHER_RUN)
    if value == OF_ANOTHER_RUN:
        return None
    parent = instance.get_run_by_id(run.parent_run_id) if run.parent_run_id else None
    return None if parent is not None and parent.tags.get(tag) == value else value


def forget_parent(instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
    """Replace the tags that a run has inherited from the run that it repeats: its member, its leases, its retries.

    What the run itself has written already is kept: each step of it may have a process of its own.
    """
    inherited = {
        tag: OF_ANOTHER_RUN
        for tag in (MEMBER_TAG, LEASES_TAG, NOT_RETRIED_TAG)
        if run.tags.get(tag, OF_ANOTHER_RUN) != OF_ANOTHER_RUN and own_tag(instance, run, tag) is None
    }
    if NOT_RETRIED_TAG in inherited:
        # Somebody repeats the run after a change: this one may be retried again.
        inherited[MAX_RETRIES_TAG] = str(instance.run_retries_max_retries)
    if inherited:
        instance.add_run_tags(run.run_id, inherited)


__all__ = ["MAX_RETRIES_TAG", "NOT_RETRIED_TAG", "forget_parent", "is_final", "own_tag", "retried_if_useful"]
