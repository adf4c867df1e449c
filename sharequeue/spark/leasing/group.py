"""Open what the work on a group needs, and check the group before leasing.

`opened` makes what a caller has not given. No other pipeline works on the group (`claim_group`); its topics exist
(`living_topics`); records that retention removed before they were processed are reported (`report_losses`). Where
nothing was leased, `why_nothing` gives the
reasons that a person can act on: a topic that does not exist, a group that begins at the end of the log, records that
other members hold or are assigned, records that wait, or records that no member may lease now. There is no reason if
the group has done all its work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC

from pyspark.sql import SparkSession

from sharequeue.database import Database
from sharequeue.domain.errors import PipelineError, UnknownTopicId
from sharequeue.domain.figures import SharePartitionStatus
from sharequeue.domain.names import plural
from sharequeue.domain.results.runs import words_of_losses
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import SharePartition
from sharequeue.groups.configs import GroupConfigs
from sharequeue.groups.membership import Membership
from sharequeue.kafka.topics import TopicInfo, Topics
from sharequeue.spark.leasing.renewal import LeasingMember
from sharequeue.spark.session import refuse_connect, spark_session
from sharequeue.spark.waits import named_wait
from sharequeue.state import State

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenedGroup:
    """The settings, servers and Spark session of a run, a lease or a replay."""

    settings: Settings
    state: State
    topics: Topics
    spark: SparkSession


@contextmanager
def opened(
    settings: Settings | None,
    spark: SparkSession | None,
    state: State | None,
    group: str,
    leased: Sequence[str] = (),
) -> Iterator[OpenedGroup]:
    """Yield what work on a group needs: what is given, the rest created. At the end what was created is closed,
    except the Spark session, which belongs to the process.

    `leased` are the topics to lease from. Raises UnknownTopicOrPartition and UnknownTopicId as `living_topics` does,
    before Spark starts, which takes seconds; SettingMissing and SparkNotReady.
    """
    if spark is not None:
        refuse_connect(spark)
    loaded = settings or Settings.load()
    with ExitStack() as stack:
        topics = stack.enter_context(Topics(loaded))
        with named_wait("Postgres"):
            queue = state or State(stack.enter_context(Database.open(loaded)))
        if leased:
            with named_wait(f"the Kafka broker at {loaded.bootstrap_servers}"):
                living_topics(topics, queue, group, leased)
        yield OpenedGroup(loaded, queue, topics, spark or spark_session(loaded, f"group {group}"))


@contextmanager
def a_member(
    settings: Settings, group: str, topics: Sequence[str], given: LeasingMember | None
) -> Iterator[tuple[LeasingMember, Callable[[], None]]]:
    """Yield the given member, or else a new one, and a function by which it joins through the service.

    Where a group begins is decided when its first member joins, so join after everything that refuses the work. A
    new member leaves at the end.
    """
    if given is not None:
        yield given, lambda: None
        return
    with Membership(settings.service, group, topics) as new:

        def join() -> None:
            with named_wait(f"share-partitions of {', '.join(topics)} in group {group}, from the service"):
                new.join()

        yield new, join


class GroupTaken(PipelineError):
    """Another pipeline works on this group; the message has both names. Nothing, or nothing more, was leased."""


def claim_group(state: State, group: str, pipeline: str, replaces: str | None) -> None:
    """Record that a pipeline works on a group; several runs of one pipeline may work at once.

    Raises GroupTaken where another one does, unless `replaces` is its name.
    """
    found = state.runs.claim(group, pipeline, replaces)
    if found is not None and found != pipeline:
        raise GroupTaken(
            f"pipeline {found} works on group {group}, and this is pipeline {pipeline}: each would get a part of the "
            "records. Nothing was leased. Give this pipeline its own group. If it replaces the other one, for "
            f"example because it was renamed: `sharequeue run --replaces {found}`, `replaces={found!r}` in Python, "
            f"or `run: {{replaces: {found!r}}}` in a defs.yaml"
        )


def refuse_replaced(state: State, group: str, pipeline: str) -> None:
    """Raise GroupTaken if another pipeline has replaced this one since it began. This is one statement."""
    # `replaces` is not passed: of two pipelines that name each other, the one that began last has the group.
    found = state.runs.claim(group, pipeline)
    if found is not None and found != pipeline:
        raise GroupTaken(
            f"pipeline {found} has replaced pipeline {pipeline} on group {group} since this run began. Nothing more "
            "was leased; the earlier rounds count as acknowledged. Stop what starts this pipeline, or give it its "
            "own group"
        )


def living_topics(broker: Topics, state: State, group: str, topics: Sequence[str]) -> dict[str, TopicInfo]:
    """Return these topics as they are now, without those that were deleted or recreated since the group began on
    them. The others can still be leased from.

    Raises InconsistentClusterId if the state is of another cluster, UnknownTopicId if all of them were, and
    UnknownTopicOrPartition for a topic that does not exist and is unknown to the state.
    """
    state.administration.check_cluster(broker.cluster_id())
    lost = state.figures.lost_topics(group, topics)
    if lost and len(lost) == len(set(topics)):
        raise UnknownTopicId(" ".join(map(str, lost.values())))
    return broker.require(topic for topic in topics if topic not in lost)


def why_nothing(
    state: State, configs: GroupConfigs, topics: Sequence[str], assigned: Collection[SharePartition]
) -> str | None:
    """Return the reason why a member with these share-partitions cannot lease the group's records of these topics;
    None when all of them are done.
    """
    statuses = [status for status in state.figures.describe(configs.group_id) if status.topic in topics]
    if not statuses:
        return f"no partition of {', '.join(topics)} is assigned to group {configs.group_id} yet"
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
    # What waits without a time is held behind a released record or a dead letter (order by key).
    if soonest:
        wait = (
            "the time from which they may be delivered again (the first from "
            f"{soonest.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC on)"
        )
    else:
        listed = f"sharequeue groups describe --group {configs.group_id} --keys"
        wait = f"earlier records of their keys (`{listed}` lists them)"
    held = ", or held behind one of their key" if any(status.held_records for status in statuses) else ""
    open_ones = [status for status in statuses if not status.paused_reason]
    free = sum(each.available - each.waiting for each in open_ones if each.share_partition in assigned)
    elsewhere = sum(
        max(0, each.lag - each.acquired - each.archiving - each.waiting)
        for each in open_ones
        if each.share_partition not in assigned
    )
    counted = (
        (sum(status.acquired for status in statuses), "record", "leased by other members"),
        (waiting, "record", f"waiting for {wait}"),
        (elsewhere, "offset", "in share-partitions that are assigned to other members, or not assigned yet"),
        (free, "record", f"released by this run{held}, and left to a later one"),
    )
    reasons += [
        f"{plural(count, noun)} {'is' if count == 1 else 'are'} {what}"
        for count, noun, what in counted
        if count
    ]
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
        f"{plural(before, 'offset')} {'is' if before == 1 else 'are'} before it. To process them: sharequeue offsets "
        f"reset --group {configs.group_id} {named} --to-earliest --execute"
    )


def report_losses(state: State, group: str, topics: Sequence[str]) -> int:
    """Return how many records of these topics the group has lost since the last report by any process; log a warning
    for them.
    """
    lost = state.runs.losses(group, topics)
    if lost:
        _log.warning("%s", words_of_losses(group, lost))
    return lost
