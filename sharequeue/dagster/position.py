"""The position of a share group: the figures from which its reports, its state checks and its sensors are made.

Before a group has state for a topic, its position there is what its first run would find.
"""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from confluent_kafka import KafkaException

from sharequeue.dagster.share_group import ShareGroup
from sharequeue.database import Database
from sharequeue.domain.errors import ShareError
from sharequeue.domain.figures import SharePartitionStatus
from sharequeue.domain.settings import SettingInvalid, SettingMissing, Settings
from sharequeue.domain.values import LeaseRow
from sharequeue.groups.configs import GroupConfigs
from sharequeue.groups.configs.texts import reset_duration
from sharequeue.reports.ages import Ages, read_ages
from sharequeue.reports.first_run import first_run_statuses
from sharequeue.reports.waiting_work import GroupWork, work_of
from sharequeue.state import State

SILENT = timedelta(seconds=60)
"""After this time without the service, or without the broker, the stored ends of the logs are old."""
SETTLE_SECONDS = 6.0
"""How long to wait for a share-partition that is ahead of its log. The service refreshes it every 2 s."""


@dataclass(frozen=True, slots=True)
class Position:
    """A group as of `work.at` by the database's clock."""

    statuses: Sequence[SharePartitionStatus]
    violations: Sequence[str] | None
    """The invariants of the state that do not hold; None if they were not checked."""
    stuck: Sequence[LeaseRow]
    work: GroupWork
    first: Sequence[SharePartitionStatus] = ()
    """What the first run would find in topics without state."""
    first_known: bool = True
    """Whether that could be read from the broker."""
    ages: Ages = field(default_factory=dict)
    gone_runs: Sequence[str] = ()
    """The runs of Dagster whose process was found gone just now, each with the reason."""

    @property
    def everything(self) -> Sequence[SharePartitionStatus]:
        """The share-partitions with state, and those that the first run initialises."""
        return [*self.statuses, *self.first]

    @property
    def is_current(self) -> bool:
        """Whether the ends of all logs were read lately; otherwise the lag is an old one."""
        return self.first_known and not silence(self.work)

    @property
    def lag(self) -> int:
        """The records that are not done."""
        return sum(status.lag for status in self.everything)


def silence(work: GroupWork) -> str:
    """Return why the lag of a group is an old one: nothing has read the ends of its logs. Empty if it is known."""
    if (silent := work.service_silent_for()) > SILENT:
        return (
            f"no service was running for {silent.total_seconds():.0f} s, and members cannot join without one"
        )
    if (silent := work.broker_silent_for()) > SILENT:
        return f"the service has not reached the broker for {silent.total_seconds():.0f} s"
    return ""


def state_of(database: Database, group_id: str, violations: Sequence[str] | None) -> Position:
    """Return the position of a group as the database has it, without the broker's part."""
    state = State(database)
    stuck = state.figures.leases(group_id, stuck=True)
    work = work_of(database, group_id)
    return Position(state.figures.describe(group_id), violations, stuck, work)


def seen_by_broker(position: Position, group: ShareGroup, database: Database, settings: Settings) -> Position:
    """Return the position with the broker's part: the first run, and the ages of records.

    Without it if the broker cannot be read: then neither the ages nor the first run are known.
    """
    known = {status.topic for status in position.statuses}
    first = awaited(group, set(group.topics) - known, database, settings)
    ages = read_ages(settings, [*position.statuses, *(first or ())], position.work.at)
    return replace(position, first=first or (), first_known=first is not None, ages=ages)


def position_of(group: ShareGroup, database: Database, settings: Settings) -> Position:
    """Return the whole position of a group."""
    violations, _ = State(database).figures.verify(group.group), settled(database, group.group)
    return seen_by_broker(state_of(database, group.group, violations), group, database, settings)


def awaited(
    group: ShareGroup, topics: Collection[str], database: Database, settings: Settings
) -> list[SharePartitionStatus] | None:
    """Return what the group's first run would find in topics without state; None if the broker cannot be read.

    A run may be able to read it: it may be on another machine, or have other rights.
    """
    if not topics:
        return []
    configs = GroupConfigs.load(database, group.group)
    policy = configs.auto_offset_reset
    if "share.auto.offset.reset" not in configs.own:
        # The first run sets it.
        policy = group.reset_policy or policy
    now = State(database).now()
    try:
        return first_run_statuses(settings, group.group, topics, policy, reset_duration(policy), now)
    except (KafkaException, ShareError, SettingMissing, SettingInvalid):
        return None


def settled(database: Database, group_id: str) -> bool:
    """Wait until no share-partition of a group is ahead of its log, for seconds at most; return whether that is so.

    The service reads log ends from the broker while runs do the same, so an older response may replace a newer one;
    its next request, within seconds, corrects it. A truncated log stays as it is.
    """
    until = time.monotonic() + SETTLE_SECONDS
    while any(map(is_ahead, State(database).figures.describe(group_id))):
        if time.monotonic() >= until:
            return False
        time.sleep(0.2)
    return True


def is_ahead(status: SharePartitionStatus) -> bool:
    """Return whether a group has done more of a share-partition than its log holds."""
    return status.log_end - status.spso - status.delivery_complete_count < 0


__all__ = [
    "Position",
    "awaited",
    "is_ahead",
    "position_of",
    "seen_by_broker",
    "settled",
    "silence",
    "state_of",
]
