"""The interface of an engine that is held to the recorded scenarios and the worked examples.

One protocol, in the words of the rules and in the values of ``tests.oracle``; an engine is plugged in by
an adapter to it and an entry in ``ENGINES``. Refusals are raised as the errors of ``sharequeue.domain.errors``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sharequeue.domain.errors import InvalidRequest, ShareError
from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.domain.values import AcknowledgeType
from tests.fixtures.stack import LOCK_BOUNDS
from tests.oracle import (
    AcknowledgementBatch,
    Acquired,
    AcquireMode,
    Description,
    InMemoryShareGroups,
    LogBatch,
    Redelivery,
    SharePartition,
)


@dataclass(frozen=True, slots=True)
class LogEnds:
    """Where a log starts and ends, and the first offset that is young enough for the group's reset policy."""

    start: int
    end: int
    last_stable: int
    first_young: int | None = None


@dataclass(frozen=True, slots=True)
class FetchOf:
    """What one fetch of one share-partition carries. ``log`` None: no boundaries are known."""

    max_records: int
    mode: AcquireMode = "batch_optimized"
    batch_size: int | None = None
    log: Sequence[LogBatch] | None = None
    aborted: OffsetSet = EMPTY
    log_start: int | None = None
    redelivery: Redelivery = "kafka"


class Engine(Protocol):
    """An engine under test, with a clock of its own and nothing in it."""

    def advance(self, seconds: float) -> None:
        """Move the clock."""

    def configure(self, group_id: str, configs: Mapping[str, object]) -> None:
        """Set group configurations by Kafka's names; None takes one back."""

    def lock_duration_ms(self, group_id: str) -> int:
        """The group's lock duration as it is now."""

    def join(self, group_id: str, member_id: str) -> None:
        """Make a member known."""

    def leave(self, group_id: str, member_id: str) -> None:
        """Make it unknown; what it holds stays held."""

    def members(self, group_id: str) -> int:
        """How many members a group has. Raises GroupIdNotFound."""

    def initialize(self, at: SharePartition, ends: LogEnds, state_epoch: int) -> None:
        """Begin where the group's reset policy says; a second time does nothing. Raises OffsetNotAvailable."""

    def initialize_at(self, at: SharePartition, offset: int, state_epoch: int) -> None:
        """Begin at an offset; a second time does nothing."""

    def observe(self, at: SharePartition, ends: LogEnds) -> None:
        """What the broker says of the log's end; a moved log start is not to be noticed by this."""

    def acquire(self, at: SharePartition, member_id: str, fetch: FetchOf) -> Acquired:
        """One fetch of one share-partition."""

    def acknowledge(
        self,
        at: SharePartition,
        member_id: str,
        batches: Sequence[AcknowledgementBatch],
        state_epoch: int | None,
        renew_allowed: bool,
    ) -> None:
        """One share-partition's part of an acknowledgement."""

    def release_member(
        self, group_id: str, member_id: str, share_partitions: Sequence[SharePartition] | None
    ) -> None:
        """A member's session ended."""

    def sweep(self) -> None:
        """Settle every lapsed lock."""

    def alter_offsets(
        self,
        group_id: str,
        offsets: Mapping[tuple[str, int], int],
        state_epoch: int,
        topics: Mapping[str, int],
    ) -> Mapping[tuple[str, int], ShareError | None]:
        """Set start offsets; ``topics`` are those that exist, with their numbers of partitions."""

    def delete_offsets(self, group_id: str, topics: Sequence[str]) -> Mapping[str, ShareError | None]:
        """Forget whole topics."""

    def delete_topic(self, topic: str) -> None:
        """The topic is gone."""

    def delete_group(self, group_id: str) -> None:
        """Forget a group."""

    def write_dead_letters(self, at: SharePartition) -> None:
        """Take every dead letter that waits through its two phases."""

    def share_partitions(self, group_id: str) -> list[SharePartition]:
        """What is initialised."""

    def describe(self, at: SharePartition) -> Description:
        """One share-partition, offset by offset. Raises UnknownTopicOrPartition or GroupIdNotFound."""

    def verify(self) -> list[str]:
        """The invariants that do not hold."""


def topic_id(at: SharePartition) -> str:
    """The id a topic has in a scenario."""
    return f"id-of-{at.topic}"


def fetch_with_acknowledgements(
    engine: Engine,
    at: SharePartition,
    member_id: str,
    batches: Sequence[AcknowledgementBatch],
    state_epoch: int | None,
    max_wait_ms: int,
    fetch: FetchOf,
) -> tuple[ShareError | None, Acquired]:
    """Acknowledge, then acquire, as a ShareFetch does: a refused acknowledgement does not stop the acquire.

    A fetch that renews acquires nothing and may not ask to (R-RN-1, R-AK-1): InvalidRequest if it does.
    """
    renews = any(AcknowledgeType.RENEW in batch.types for batch in batches)
    if renews and (fetch.max_records or max_wait_ms):
        raise InvalidRequest("a fetch that renews locks asks for no records and does not wait")
    refusal: ShareError | None = None
    try:
        engine.acknowledge(at, member_id, batches, state_epoch, renews)
    except ShareError as error:
        refusal = error
    return refusal, Acquired() if renews else engine.acquire(at, member_id, fetch)


class InMemoryEngine:
    """The adapter of ``tests.oracle``."""

    def __init__(self) -> None:
        self.groups = InMemoryShareGroups(service_configs=LOCK_BOUNDS)

    def advance(self, seconds: float) -> None:
        self.groups.advance(seconds)

    def configure(self, group_id: str, configs: Mapping[str, object]) -> None:
        self.groups.configure(group_id, configs)

    def lock_duration_ms(self, group_id: str) -> int:
        return int(self.groups.config(group_id, "share.record.lock.duration.ms"))

    def join(self, group_id: str, member_id: str) -> None:
        self.groups.join(group_id, member_id)

    def leave(self, group_id: str, member_id: str) -> None:
        self.groups.leave(group_id, member_id)

    def members(self, group_id: str) -> int:
        return len(self.groups.members(group_id))

    def initialize(self, at: SharePartition, ends: LogEnds, state_epoch: int) -> None:
        self.groups.initialize_by_policy(
            at,
            topic_id(at),
            state_epoch,
            log_start=ends.start,
            log_end=ends.end,
            first_young=ends.first_young,
        )

    def initialize_at(self, at: SharePartition, offset: int, state_epoch: int) -> None:
        self.groups.initialize(at, topic_id(at), offset, state_epoch)

    def observe(self, at: SharePartition, ends: LogEnds) -> None:
        self.groups.observe(at, topic_id(at), 0, ends.end, ends.last_stable)

    def acquire(self, at: SharePartition, member_id: str, fetch: FetchOf) -> Acquired:
        return self.groups.acquire(
            at,
            member_id,
            fetch.max_records,
            mode=fetch.mode,
            batch_size=fetch.batch_size,
            log_batches=fetch.log,
            aborted=fetch.aborted,
            log_start=fetch.log_start,
            redelivery=fetch.redelivery,
        )

    def acknowledge(
        self,
        at: SharePartition,
        member_id: str,
        batches: Sequence[AcknowledgementBatch],
        state_epoch: int | None,
        renew_allowed: bool,
    ) -> None:
        self.groups.acknowledge(at, member_id, batches, state_epoch=state_epoch, renew_allowed=renew_allowed)

    def release_member(
        self, group_id: str, member_id: str, share_partitions: Sequence[SharePartition] | None
    ) -> None:
        self.groups.release_member(group_id, member_id, share_partitions)

    def sweep(self) -> None:
        self.groups.sweep()

    def alter_offsets(
        self,
        group_id: str,
        offsets: Mapping[tuple[str, int], int],
        state_epoch: int,
        topics: Mapping[str, int],
    ) -> Mapping[tuple[str, int], ShareError | None]:
        return self.groups.alter_offsets(group_id, offsets, state_epoch=state_epoch, topics=topics)

    def delete_offsets(self, group_id: str, topics: Sequence[str]) -> Mapping[str, ShareError | None]:
        return self.groups.delete_offsets(group_id, topics)

    def delete_topic(self, topic: str) -> None:
        self.groups.delete_topic(topic)

    def delete_group(self, group_id: str) -> None:
        self.groups.delete_group(group_id)

    def write_dead_letters(self, at: SharePartition) -> None:
        while batch := self.groups.open_dead_letters(at):
            self.groups.close_dead_letters(at, batch.sequence)

    def share_partitions(self, group_id: str) -> list[SharePartition]:
        return self.groups.share_partitions(group_id)

    def describe(self, at: SharePartition) -> Description:
        return self.groups.describe(at)

    def verify(self) -> list[str]:
        return self.groups.verify()


def _postgres() -> Engine:
    from tests.conformance.postgres_engine import PostgresEngine

    return PostgresEngine.on_its_database()


ENGINES: dict[str, Callable[[], Engine]] = {"in memory": InMemoryEngine, "postgres": _postgres}
"""Every engine that is held to the scenarios, by the name its tests carry."""
