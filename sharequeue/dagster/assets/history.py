"""Count past days of a group again, from the journal, and record each as a partition of the asset `history`.

The service counts a day when it is over. The job counts it again, as far back as the journal goes, and also the days
of times without a service. For older days it records the earlier count. It needs no Spark, and does not change the
live group.

The asset is external, and the job has one op: as an asset that can be materialized, its partitions would be in each
job over `AssetSelection.all()` of the code location, and Dagster allows one kind of partitions in a job. The
partitions are dynamic: when definitions are loaded, the day on which the group began is not known. The sensor
`history` adds them.
"""

from collections.abc import Sequence
from datetime import UTC, date

import dagster as dg
from pydantic import Field

from sharequeue.dagster import reports
from sharequeue.dagster.names import QUEUE_TAG
from sharequeue.dagster.resources import StateResource
from sharequeue.dagster.retries import retried_if_useful
from sharequeue.dagster.share_group import ShareGroup
from sharequeue.dagster.yaml_values import day_of
from sharequeue.state.journal import Day, Journal


class Counting(dg.Config):
    """The days to count."""

    days: list[str] = Field(description="Days in UTC that are over, such as `2026-01-31`.")


def partitions_of(group: ShareGroup) -> dg.DynamicPartitionsDefinition:
    """Return the partitions of the asset: the days (UTC) that are over and of which the group has figures."""
    return dg.DynamicPartitionsDefinition(name=f"sharequeue/{group.queue}/history")


def count_days_config(group: ShareGroup, days: Sequence[str]) -> dg.RunConfig:
    """Return the config of a run of the job that counts these days."""
    return dg.RunConfig(ops={_op(group): Counting(days=list(days))})


def count_days_job(group: ShareGroup, asset: dg.AssetKey) -> dg.JobDefinition:
    """Build the job that counts past days of `group`, and records each as a partition of `asset`."""

    @dg.op(name=_op(group))
    @retried_if_useful
    def count_days(context: dg.OpExecutionContext, config: Counting, sharequeue_state: StateResource) -> None:
        """Figures of past days, from the journal. An invalid day does not stop the others."""
        journal = Journal(sharequeue_state.database)
        kept = {partition.day for partition in journal.partitions()}
        today = sharequeue_state.state.now().astimezone(UTC).date()
        days, refused = _days(config.days, today)
        # A day is counted from the end of the previous one.
        for day in days:
            if day in kept:
                journal.roll_up(day)
            found = journal.days(group.group, since=day, until=day)
            metadata = {
                **reports.day(found, journal.outcomes(group.group, day)),
                "counted_from": _source(day in kept, found),
            }
            context.log_event(dg.AssetMaterialization(asset, partition=day.isoformat(), metadata=metadata))
        if refused:
            raise dg.Failure(
                f"days: {'; '.join(refused)}. The other {len(days)} days were counted", allow_retries=False
            )

    @dg.job(
        name=f"{group.name}_count_days",
        executor_def=group.job.executor_def,
        tags={**group.job.run_tags, QUEUE_TAG: group.queue},
        description=f"Counts past days of share group {group.group} from the journal, without Spark.",
    )
    def job() -> None:
        count_days()

    return job


def _op(group: ShareGroup) -> str:
    return f"{group.name}_history"


def _days(given: Sequence[str], today: date) -> tuple[list[date], list[str]]:
    """Return the days before `today` in order, each once, and why others are refused."""
    days, refused = set[date](), list[str]()
    for text in given:
        day = day_of(text)
        if day is None:
            refused.append(f"{text!r} is not a day such as 2026-01-31")
        elif day >= today:
            refused.append(f"{text} is not over: it is {today} in UTC")
        else:
            days.add(day)
    return sorted(days), refused


def _source(kept: bool, days: Sequence[Day]) -> str:
    """Return the source of a day's figures."""
    if kept:
        return "the journal"
    return (
        "the count of that day: its journal was dropped"
        if days
        else "none: the journal of that day was dropped"
    )


__all__ = ["count_days_config", "count_days_job", "partitions_of"]
