"""Create, alter and delete groups, configs and start offsets.

The in-memory engine's half that touches no record: the clock, who is in a group, where a share-partition
begins (R-IN, R-OR), what the broker says of its log (R-LS), and the admin operations (R-AD).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from sharequeue.domain.errors import (
    FencedStateEpoch,
    GroupIdNotFound,
    InvalidConfig,
    InvalidRequest,
    NonEmptyGroup,
    OffsetNotAvailable,
    ShareError,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from sharequeue.domain.offsets import MAX_OFFSET
from sharequeue.domain.values import SharePartition, Swept
from tests.oracle import order
from tests.oracle.dead_letters import DeadLetters
from tests.oracle.group import InMemoryGroup
from tests.oracle.records import Policy, RecordState
from tests.oracle.share_partition import InMemorySharePartition

START = datetime(2000, 1, 1, tzinfo=UTC)
"""Where the engine's clock begins by default."""


class Administration:
    """Groups and the beginnings of share-partitions; the operations on records are in ``groups``."""

    def __init__(self, start: datetime = START, *, service_configs: Mapping[str, str] | None = None) -> None:
        self._start = start
        self._service = dict(service_configs or {})
        self._seconds = 0.0
        self._groups: dict[str, InMemoryGroup] = {}

    # The clock and the groups

    def now(self) -> datetime:
        """The time by which locks lapse."""
        return self.at_second(self._seconds)

    def at_second(self, seconds: float) -> datetime:
        """A moment on the engine's clock, so many seconds after it began."""
        return self._start + timedelta(seconds=seconds)

    def advance(self, seconds: float) -> None:
        """Move the clock, back if the seconds are negative. Locks that lapse, or that are from the future then, are
        settled by the next operation on their share-partition, or by :meth:`sweep`."""
        self._seconds += seconds

    def _new(self, group_id: str) -> InMemoryGroup:
        return InMemoryGroup(group_id, service=self._service)

    def configure(self, group_id: str, configs: Mapping[str, object]) -> None:
        """Sets group configurations by Kafka's names; None takes one back to its default.

        Locks that have lapsed are settled by the configurations of before. Raises InvalidConfig.
        """
        group = self._groups.setdefault(group_id, self._new(group_id))
        self._settle_group(group)
        before = dict(group.configs)
        for name, value in configs.items():
            group.configs.pop(name, None)
            if value is not None:
                group.configs[name] = str(value)
        try:
            group.policy()
        except InvalidConfig:
            group.configs = before
            raise

    def config(self, group_id: str, name: str) -> str:
        """A group's configuration as it is now, by Kafka's name."""
        return self._groups.get(group_id, self._new(group_id)).config(name)

    def join(self, group_id: str, member_id: str) -> None:
        """Make a member known, and the group with its first one. Altering and deleting wait for its leave."""
        group = self._groups.setdefault(group_id, self._new(group_id))
        group.exists = True
        group.members.add(member_id)

    def leave(self, group_id: str, member_id: str) -> None:
        """The member is no longer known; what it holds stays held until its locks lapse (R-SS)."""
        self._group(group_id).members.discard(member_id)

    def members(self, group_id: str) -> frozenset[str]:
        """Who is in a group. Raises GroupIdNotFound."""
        return frozenset(self._group(group_id).members)

    # Beginning

    def initialize(self, at: SharePartition, topic_id: str, start_offset: int, state_epoch: int) -> bool:
        """Give a share-partition its start offset (R-IN); return whether it was new. A second time changes
        nothing."""
        if not 0 <= start_offset <= MAX_OFFSET:
            raise InvalidRequest(f"{start_offset} is no start offset: expected 0 to {MAX_OFFSET}")
        group = self._groups.setdefault(at.group_id, self._new(at.group_id))
        if (at.topic, at.partition) in group.partitions:
            return False
        group.exists = True
        fresh = InMemorySharePartition(at, topic_id, start_offset, state_epoch)
        group.partitions[at.topic, at.partition] = fresh
        group.dead_letters[at.topic, at.partition] = DeadLetters(fresh)
        return True

    def initialize_by_policy(
        self,
        at: SharePartition,
        topic_id: str,
        state_epoch: int,
        *,
        log_start: int,
        log_end: int,
        first_young: int | None = None,
    ) -> bool:
        """The same, from where ``share.auto.offset.reset`` says (R-OR-2), resolved once and kept.

        ``first_young`` is the first offset with a record young enough for ``by_duration``. Raises
        OffsetNotAvailable when there is none, and InvalidConfig for a policy that Kafka does not know.
        """
        policy = self.config(at.group_id, "share.auto.offset.reset")
        if policy.startswith("by_duration:"):
            if first_young is None:
                raise OffsetNotAvailable
            return self.initialize(at, topic_id, first_young, state_epoch)
        if policy not in ("earliest", "latest"):
            raise InvalidConfig(
                f"share.auto.offset.reset = {policy!r}: expected latest, earliest or by_duration:…"
            )
        return self.initialize(at, topic_id, log_start if policy == "earliest" else log_end, state_epoch)

    def load(self, at: SharePartition, runs: Sequence[tuple[int, int, RecordState, int]]) -> None:
        """In-flight state from elsewhere, for a share-partition just initialised: runs of (first, last, state,
        delivery count), as Kafka keeps them (R-IN-5)."""
        self._find(at).load(runs)

    def observe(
        self,
        at: SharePartition,
        topic_id: str,
        log_start: int,
        log_end: int,
        last_stable_offset: int | None = None,
    ) -> None:
        """What the broker says of the log. A log start past SPSO moves SPSO (R-LS).

        Once the topic was seen under another id, nothing moves any more, whatever an old look at the broker says.
        """
        found = self._find(at)
        if topic_id in found.replaced_topic_ids:
            return
        found.topic_id = found.topic_id or topic_id
        found.recreated = found.recreated or topic_id != found.topic_id
        if found.recreated:
            return
        found.log_end, found.last_stable_offset = log_end, last_stable_offset
        self._settle(found)
        with order.held_again(found, self._seconds):
            found.advance_log_start(log_start)

    def advance_log_start(self, at: SharePartition, log_start: int) -> int:
        """The log now starts here (R-LS); return how many records were lost, unprocessed."""
        found = self._find(at)
        self._settle(found)
        with order.held_again(found, self._seconds):
            return found.advance_log_start(log_start)

    # Offsets, by hand

    def alter_offsets(
        self,
        group_id: str,
        offsets: Mapping[tuple[str, int], int],
        *,
        state_epoch: int = 1,
        topics: Mapping[str, int] | None = None,
        topic_ids: Mapping[str, str] | None = None,
    ) -> dict[tuple[str, int], ShareError | None]:
        """Sets start offsets by (topic, partition); what was in flight is gone, and its holders are fenced.

        The state epoch becomes ``state_epoch`` or the next one, whichever is higher. A group that is not there is
        made. ``topics``, if given, says how many partitions each topic has: others are
        UnknownTopicOrPartition, one by one. ``topic_ids``, if given, has the id that each topic has now: one that it
        had before is UnknownTopicId. Raises NonEmptyGroup, and changes nothing then (R-AD).
        """
        group = self._groups.setdefault(group_id, self._new(group_id))
        if group.members:
            raise NonEmptyGroup
        group.exists = True
        results: dict[tuple[str, int], ShareError | None] = {}
        for (topic, partition), offset in offsets.items():
            results[topic, partition] = None
            if topics is not None and not 0 <= partition < topics.get(topic, 0):
                results[topic, partition] = UnknownTopicOrPartition()
            elif not 0 <= offset <= MAX_OFFSET:
                results[topic, partition] = InvalidRequest(
                    f"{offset} is no offset: expected 0 to {MAX_OFFSET}"
                )
            else:
                at = SharePartition(group_id, topic, partition)
                results[topic, partition] = self._restart(
                    at, (topic_ids or {}).get(topic), offset, state_epoch
                )
        return results

    def _restart(
        self, at: SharePartition, topic_id: str | None, start_offset: int, state_epoch: int
    ) -> ShareError | None:
        group = self._groups[at.group_id]
        before = group.partitions.get((at.topic, at.partition))
        if before is None:
            # Without an id the next look at the log brings it.
            self.initialize(at, topic_id or "", start_offset, state_epoch)
            return None
        gone = {*before.replaced_topic_ids, *([before.topic_id] if before.recreated else [])}
        if topic_id in gone:
            return UnknownTopicId()
        del group.partitions[at.topic, at.partition]
        last_batch = group.dead_letters[at.topic, at.partition].sequence
        after_id = topic_id or ("" if before.recreated else before.topic_id)
        self.initialize(at, after_id, start_offset, max(state_epoch, before.state_epoch + 1))
        after = group.partitions[at.topic, at.partition]
        after.replaced_topic_ids = before.replaced_topic_ids
        group.dead_letters[at.topic, at.partition].sequence = last_batch
        if after_id == before.topic_id:
            after.log_end, after.last_stable_offset = before.log_end, before.last_stable_offset
        else:
            after.replaced_topic_ids += (before.topic_id,)
        after.paused_reason = before.paused_reason
        # What has been, stays counted.
        after.lost_records, after.outcomes = before.lost_records, before.outcomes
        return None

    def delete_offsets(self, group_id: str, topics: Sequence[str]) -> dict[str, ShareError | None]:
        """Forget a group's share-partitions of whole topics. Raises GroupIdNotFound, NonEmptyGroup (R-AD)."""
        group = self._group(group_id)
        if group.members:
            raise NonEmptyGroup
        results: dict[str, ShareError | None] = {}
        for topic in topics:
            names = [name for name in group.partitions if name[0] == topic]
            results[topic] = (
                None if names else UnknownTopicOrPartition("There is no offset information to delete.")
            )
            for name in names:
                del group.partitions[name], group.dead_letters[name]
                group.results.pop(name, None)
        return results

    def delete_topic(self, topic: str) -> None:
        """The topic is gone: so is every group's state on it."""
        for group in self._groups.values():
            for name in [name for name in group.partitions if name[0] == topic]:
                del group.partitions[name], group.dead_letters[name]
                group.results.pop(name, None)

    def delete_group(self, group_id: str) -> None:
        """Forget a group and its state, but not its configs; its holders get GroupIdNotFound. Raises
        NonEmptyGroup (R-AD)."""
        group = self._group(group_id)
        if group.members:
            raise NonEmptyGroup
        self._groups[group_id] = replace(self._new(group_id), deleted=True, configs=group.configs)

    # Finding and settling

    def _group(self, group_id: str) -> InMemoryGroup:
        group = self._groups.get(group_id)
        if group is None or not group.exists:
            raise GroupIdNotFound
        return group

    def _find(self, at: SharePartition, state_epoch: int | None = None) -> InMemorySharePartition:
        group = self._groups.get(at.group_id)
        if group is None or (group.deleted and not group.exists):
            raise GroupIdNotFound
        found = group.partitions.get((at.topic, at.partition))
        if found is None:
            raise UnknownTopicOrPartition
        if state_epoch is not None and state_epoch != found.state_epoch:
            raise FencedStateEpoch
        return found

    def _policy(self, at: SharePartition) -> Policy:
        return self._groups[at.group_id].policy()

    def _settle(self, found: InMemorySharePartition) -> Swept:
        with order.held_again(found, self._seconds):
            leases, records = found.settle(self._seconds, self._policy(found.name))
        return Swept(leases, records)

    def _settle_group(self, group: InMemoryGroup) -> Swept:
        done = [self._settle(found) for found in group.partitions.values()]
        return Swept(sum(d.leases for d in done), sum(d.records for d in done))
