"""Asset selections, and schedules of them, built from a share group."""

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any

import dagster as dg

from sharequeue.dagster.lineage import REPLAYED
from sharequeue.dagster.names import ASSET_TAG, GROUP_TAG, asset_tag_value
from sharequeue.dagster.share_group import ShareGroup


def build_share_group_asset_selection(
    group: ShareGroup | str, assets: Sequence[str] | None = None
) -> dg.AssetSelection:
    """Return the selection of a group's assets by their names here, such as `accepted`, whatever their keys are; by
    default those of a run. A group may be named by its id.
    """
    of_group = dg.AssetSelection.tag(
        GROUP_TAG, asset_tag_value(group if isinstance(group, str) else group.group)
    )
    if assets is None:
        return of_group - _named([REPLAYED])
    return of_group & _named(assets)


def build_schedule_from_share_group_selection(
    group: ShareGroup | str,
    job_name: str,
    cron_schedule: str | Sequence[str],
    assets: Sequence[str] | None = None,
    *,
    downstream: bool = False,
    schedule_name: str | None = None,
    tags: Mapping[str, Any] | None = None,
    config: dg.RunConfig | None = None,
    executor_def: dg.ExecutorDefinition | None = None,
    execution_timezone: str | None = None,
    default_status: dg.DefaultScheduleStatus = dg.DefaultScheduleStatus.STOPPED,
) -> dg.ScheduleDefinition:
    """Return a schedule with a job of its own over assets of a group, and, with `downstream`, over all assets that
    depend on them. Unlike the schedule of a `defs.yaml`, it requests a run also while another one works on the group.
    """
    chosen = build_share_group_asset_selection(group, assets)
    if downstream:
        chosen = chosen.downstream().materializable()
        if REPLAYED not in (assets or ()):
            # Partitions of their own, which no other asset of the job has.
            chosen -= _named([REPLAYED])
    return dg.ScheduleDefinition(
        name=schedule_name,
        cron_schedule=cron_schedule,
        job=dg.define_asset_job(
            job_name,
            selection=chosen,
            config=config,
            tags=tags,
            executor_def=executor_def,
        ),
        execution_timezone=execution_timezone,
        default_status=default_status,
    )


def _named(names: Sequence[str]) -> dg.AssetSelection:
    return reduce(or_, (dg.AssetSelection.tag(ASSET_TAG, name) for name in names))


__all__ = ["build_schedule_from_share_group_selection", "build_share_group_asset_selection"]
