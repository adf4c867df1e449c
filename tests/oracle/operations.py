"""Operations of a person on share-partitions, beyond Kafka's.

Pause and resume leasing, move stuck records by hand, extend locks, fence everybody after a restore. A holder is
fenced for what was taken from it; the rest of its lease stays its own.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from sharequeue.domain.errors import InvalidRequest, UnknownTopicOrPartition
from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.domain.values import ForcedRun, SharePartition
from tests.oracle import order
from tests.oracle.administration import Administration
from tests.oracle.records import Policy, Record, RecordState
from tests.oracle.share_partition import InMemorySharePartition

Act = Literal["release", "dead_letter"]

DONE_WITH = {RecordState.ACKNOWLEDGED: "acknowledged", RecordState.ARCHIVED: "archived"}


class Operations(Administration):
    """The operators' part of the engine."""

    def pause(
        self, group_id: str, reason: str | None, topic: str | None = None, partition: int | None = None
    ) -> int:
        """Stop leasing from a group, a topic of it, or one share-partition; what is leased may be acknowledged.

        None resumes, and closes the circuit breaker. Return 1, or how many share-partitions the topic has. Raises
        InvalidRequest, GroupIdNotFound, UnknownTopicOrPartition.
        """
        if reason == "" or (topic is None and partition is not None):
            raise InvalidRequest("the reason must not be empty, and a partition needs a topic")
        group = self._group(group_id)
        concerned = [
            found
            for found in group.partitions.values()
            if topic in (None, found.name.topic) and partition in (None, found.name.partition)
        ]
        if topic is not None and not concerned:
            raise UnknownTopicOrPartition
        if reason is None:
            for found in concerned:
                found.circuit = None
        if topic is None:
            group.paused_reason = reason
            return 1
        for found in concerned:
            found.paused_reason = reason
        return len(concerned)

    def paused_by_hand(self, at: SharePartition) -> str | None:
        """The word of the person who has paused a share-partition or its group."""
        return self._find(at).paused_reason or self._groups[at.group_id].paused_reason

    def force_release(
        self, at: SharePartition, offsets: OffsetSet, *, execute: bool = False
    ) -> list[ForcedRun]:
        """Make chosen offsets available at once, whoever holds them and whatever they wait for.

        Records that are finished, being written to the dead-letter topic or never delivered are refused, and do not
        stop the rest. Without ``execute`` nothing changes and the result says what would. Raises InvalidRequest
        for an empty set, UnknownTopicOrPartition, GroupIdNotFound.
        """
        return self._force(at, offsets, "release", execute)

    def force_dead_letter(
        self, at: SharePartition, offsets: OffsetSet, *, execute: bool = False
    ) -> list[ForcedRun]:
        """Make chosen offsets dead letters as rejected ones, whoever holds them; archives them where the group has
        no dead-letter topic. Otherwise as :meth:`force_release`."""
        return self._force(at, offsets, "dead_letter", execute)

    def _force(self, at: SharePartition, offsets: OffsetSet, act: Act, execute: bool) -> list[ForcedRun]:
        found = self._find(at)
        if not offsets:
            raise InvalidRequest("expected release or dead_letter, and a set of offsets")
        if execute:
            self._settle(found)
        policy = self._policy(at)
        plans: dict[tuple[str, int, int, str | None, str | None], list[int]] = {}
        moved = False
        asked = [o for o in sorted(found.records) if o >= found.spso and o in offsets]
        refused = _never_there(found, offsets, asked)
        with order.held_again(found, self._seconds):
            for offset in asked:
                record = found.records[offset]
                does, reason = _plan(record, act, policy)
                holder = None if record.lease_id is None else found.leases[record.lease_id].member_id
                key = (does, int(record.state), record.delivery_count, holder, reason)
                plans.setdefault(key, []).append(offset)
                if execute and does not in ("none", "refuse"):
                    _move(found, record, does, policy)
                    moved = True
            if moved and act == "release":
                order.forced(found, asked)
        if moved:
            found.forget_ended_leases()
            found.advance_spso()
        done = [
            ForcedRun(does, OffsetSet.from_offsets(chosen), state, count, holder, reason)
            for (does, state, count, holder, reason), chosen in plans.items()
        ]
        return sorted(done + refused, key=lambda run: run.offsets.first)

    def extend_locks(self, amount: timedelta) -> int:
        """Every lock of every group lasts so much longer, those not yet settled too; return how many leases."""
        if amount < timedelta(0):
            raise InvalidRequest(f"locks are extended by a positive amount of time, not by {amount}")
        extended = 0
        for found in [each for group in self._groups.values() for each in group.partitions.values()]:
            extended += len(found.leases)
            for record in found.records.values():
                if record.expires_at is not None:
                    record.expires_at += amount.total_seconds()
        return extended

    def raise_state_epochs(self) -> int:
        """After a restore: every holder is fenced, what was leased comes again. Return how many share-partitions."""
        everywhere = [each for group in self._groups.values() for each in group.partitions.values()]
        for found in everywhere:
            with order.held_again(found, self._seconds):
                found.end_unanswered(list(found.leases), self._policy(found.name), self._seconds)
            found.advance_spso()
            found.state_epoch += 1
        return len(everywhere)


def _plan(record: Record, act: Act, policy: Policy) -> tuple[str, str | None]:
    """What is to be done with one record, and why, where that needs a word."""
    if record.state in DONE_WITH:
        return "refuse", f"finished: {DONE_WITH[record.state]}"
    if record.state is RecordState.ARCHIVING:
        return "refuse", "being written to the dead-letter topic"
    if act == "dead_letter":
        return ("dead_letter" if policy.dead_letters else "archive"), None
    used_up = record.delivery_count >= policy.delivery_count_limit
    held_back = record.part is not None or record.not_before is not None
    if record.state is RecordState.AVAILABLE and not held_back and not used_up:
        return "none", "already available"
    return "release", "no delivery was left: it gets the last one back" if used_up else None


def _move(found: InMemorySharePartition, record: Record, does: str, policy: Policy) -> None:
    if does == "release":
        record.delivery_count = min(record.delivery_count, policy.delivery_count_limit - 1)
        if record.state is not RecordState.AVAILABLE:
            found.move(record, RecordState.AVAILABLE)
        record.part = record.not_before = None
    else:
        found.give_up(record, "rejected", policy)


def _never_there(found: InMemorySharePartition, offsets: OffsetSet, asked: list[int]) -> list[ForcedRun]:
    """What of the offsets is no record that could be moved."""
    below = OffsetSet.of((0, found.spso)) if found.spso else EMPTY
    flight = OffsetSet.of((found.spso, found.speo)) if found.speo > found.spso else EMPTY
    there = OffsetSet.from_offsets(asked)
    refused = (
        (offsets & below, f"finished: SPSO was at {found.spso}"),
        ((offsets & flight) - there, "not in flight: no record was at the offset"),
        (offsets - below - flight, f"never delivered: SPEO is {found.speo}"),
    )
    return [ForcedRun("refuse", which, None, None, None, why) for which, why in refused if which]
