"""Why is there nothing to lease?

Only reasons that a person can act on are given: a topic that does not exist, a group that begins at the end of the
log, records that others hold or are assigned, that wait, or that nobody may lease now. For a group that has done all
its work there is no reason to give.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC

from sharequeue.errors import UnknownTopicId
from sharequeue.groups.configs import GroupConfigs
from sharequeue.state import State
from sharequeue.values import SharePartition, SharePartitionStatus


def refuse_lost(state: State, group: str, topics: Sequence[str]) -> None:
    """Raise UnknownTopicId where each of these topics was deleted, or made again, since the group began on it."""
    lost = state.figures.lost_topics(group, topics)
    if lost and len(lost) == len(set(topics)):
        raise UnknownTopicId(" ".join(map(str, lost.values())))


def why_nothing(
    state: State, configs: GroupConfigs, topics: Sequence[str], assigned: Collection[SharePartition]
) -> str | None:
    """Return what keeps a group's records of these topics from being leased by a member with these share-partitions;
    None when all of them are done."""
    statuses = [status for status in state.figures.describe(configs.group_id) if status.topic in topics]
    if not statuses:
        return f"nothing of {', '.join(topics)} is assigned to group {configs.group_id} yet"
    if new := _begins_behind(state, configs, statuses):
        return new
    reasons = [
        f"{status.share_partition} is not leased from: {status.paused_reason}"
        for status in statuses
        if status.paused_reason and status.lag
    ]
    reasons += [f"{each.share_partition}: {each.obstacle}" for each in statuses if each.obstacle]
    waiting = sum(status.waiting for status in statuses)
    soonest = min((status.waiting_until for status in statuses if status.waiting_until), default=None)
    until = f" (the first from {soonest.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC on)" if soonest else ""
    open_ones = [status for status in statuses if not status.paused_reason]
    free = sum(each.available - each.waiting for each in open_ones if each.share_partition in assigned)
    elsewhere = sum(
        max(0, each.lag - each.acquired - each.archiving - each.waiting)
        for each in open_ones
        if each.share_partition not in assigned
    )
    counted = (
        (sum(status.acquired for status in statuses), "held by leases of others"),
        (waiting, f"waiting for the time from which they may be delivered again{until}"),
        (elsewhere, "in share-partitions that are assigned to other members, or to nobody yet"),
        (free, "released by this run, and left to a later one"),
    )
    reasons += [f"{count:,} records are {what}" for count, what in counted if count]
    return "; ".join(reasons) or None


def _begins_behind(
    state: State, configs: GroupConfigs, statuses: Sequence[SharePartitionStatus]
) -> str | None:
    """Return the reason for a group that has never done anything and begins at the end of the log."""
    before = sum(status.spso - status.log_start for status in statuses)
    untouched = all(status.spso == status.speo == status.log_end for status in statuses)
    if configs.auto_offset_reset != "latest" or not (before and untouched):
        return None
    if state.figures.delivery_counts(configs.group_id):
        return None
    named = " ".join(f"--topic {topic}" for topic in sorted({status.topic for status in statuses}))
    return (
        f"group {configs.group_id} is new and starts at the end of the log (share.auto.offset.reset=latest): "
        f"{before:,} records lie before it. To take them: sharequeue offsets reset --group {configs.group_id} "
        f"{named} --to-earliest --execute"
    )
