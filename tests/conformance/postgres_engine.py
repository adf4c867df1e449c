"""The engine in Postgres, as the conformance suite uses it.

The adapter of the SQL functions, called as any SQL client would: no tokens, no member epochs, Kafka's arrays of
batches. A group, a member or a topic that the functions do not know of is the adapter's to know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import ClassVar

from sharequeue.database import Database
from sharequeue.domain.errors import (
    GroupIdNotFound,
    NonEmptyGroup,
    OffsetNotAvailable,
    ShareError,
    UnknownTopicOrPartition,
)
from sharequeue.domain.offsets import OffsetSet
from tests import single
from tests.conformance.engines import LogEnds
from tests.conformance.postgres_fetches import PostgresFetches
from tests.oracle import Description, OffsetState, RecordState, SharePartition

EMPTIED = (
    *("share_groups", "group_configs", "in_flight_batches", "leases", "requests", "topics", "grown_topics"),
    *("gone_topics", "kafka_cluster", "service_beat", "service_replicas", "service_leases"),
)
"""Tables of what a scenario makes; what belongs to a group goes with it."""


class PostgresEngine(PostgresFetches):
    """One database, emptied when an engine is made, with the clock back at real time."""

    shared: ClassVar[Database | None] = None
    """Where engines are made; set by the suite's fixture for as long as its servers run."""

    @classmethod
    def on_its_database(cls) -> PostgresEngine:
        """An engine on the suite's own database."""
        assert cls.shared is not None, "tests/conformance/conftest.py sets it"
        return cls(cls.shared)

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.known: set[str] = set()
        self.joined: dict[str, set[str]] = {}
        self.clock = 0.0
        # Of tables this small DELETE takes a tenth of the time of TRUNCATE.
        self._run("; ".join(f"delete from sharequeue.{table}" for table in EMPTIED))  # noqa: S608
        self._run("select sharequeue.set_clock_offset(interval '0')")

    def advance(self, seconds: float) -> None:
        self.clock += seconds
        self._run("select sharequeue.set_clock_offset(:amount)", amount=timedelta(seconds=self.clock))

    def configure(self, group_id: str, configs: Mapping[str, object]) -> None:
        self._group(group_id)
        self.sweep()
        for name, value in configs.items():
            self._run(
                "delete from sharequeue.group_configs where group_id = :group and name = :name",
                group=group_id,
                name=name,
            )
            if value is not None:
                self._run(
                    "insert into sharequeue.group_configs values (:group, :name, :value)",
                    group=group_id,
                    name=name,
                    value=str(value),
                )

    def _group(self, group_id: str) -> None:
        self._run(
            "insert into sharequeue.share_groups (group_id) values (:group) on conflict do nothing",
            group=group_id,
        )

    def _config(self, group_id: str, name: str) -> str:
        return str(
            self._run(
                "select sharequeue_internal.group_config(:group, :name) as value", group=group_id, name=name
            )[0]["value"]
        )

    def lock_duration_ms(self, group_id: str) -> int:
        return int(self._config(group_id, "share.record.lock.duration.ms"))

    def join(self, group_id: str, member_id: str) -> None:
        self._group(group_id)
        self.known.add(group_id)
        self.joined.setdefault(group_id, set()).add(member_id)

    def leave(self, group_id: str, member_id: str) -> None:
        self.joined.get(group_id, set()).discard(member_id)

    def members(self, group_id: str) -> int:
        if group_id not in self.known:
            raise GroupIdNotFound
        return len(self.joined.get(group_id, ()))

    def initialize(self, at: SharePartition, ends: LogEnds, state_epoch: int) -> None:
        policy = self._config(at.group_id, "share.auto.offset.reset")
        start = ends.start if policy == "earliest" else ends.end
        if policy.startswith("by_duration:"):
            if ends.first_young is None:
                raise OffsetNotAvailable
            start = ends.first_young
        self.initialize_at(at, start, state_epoch)

    def initialize_at(self, at: SharePartition, offset: int, state_epoch: int) -> None:
        self._group(at.group_id)
        self.known.add(at.group_id)
        self.state.initialize(at, self.topic_id(at), offset, state_epoch)

    def observe(self, at: SharePartition, ends: LogEnds) -> None:
        single.observe(self.state, at, self.topic_id(at), 0, ends.end, ends.last_stable)

    def release_member(
        self, group_id: str, member_id: str, share_partitions: Sequence[SharePartition] | None
    ) -> None:
        tokens = [None]
        if share_partitions is not None:
            names = {(at.topic, at.partition) for at in share_partitions}
            rows = self._run(
                "select l.token, sp.topic, sp.partition from sharequeue.leases l"
                " join sharequeue.share_partitions sp using (share_partition_id)"
                " where sp.group_id = :group and l.member_id = :member",
                group=group_id,
                member=member_id,
            )
            tokens = [row["token"] for row in rows if (row["topic"], row["partition"]) in names]
        self.sweep()
        for token in tokens:
            self._run(
                "select sharequeue.release(:group, :member, cast(:token as uuid))",
                group=group_id,
                member=member_id,
                token=None if token is None else str(token),
            )

    def alter_offsets(
        self,
        group_id: str,
        offsets: Mapping[tuple[str, int], int],
        state_epoch: int,
        topics: Mapping[str, int],
    ) -> Mapping[tuple[str, int], ShareError | None]:
        if self.joined.get(group_id):
            raise NonEmptyGroup
        self._group(group_id)
        self.known.add(group_id)
        results: dict[tuple[str, int], ShareError | None] = {}
        for (topic, partition), offset in offsets.items():
            at = SharePartition(group_id, topic, partition)
            if not 0 <= partition < topics.get(topic, 0):
                results[topic, partition] = UnknownTopicOrPartition()
                continue
            self._run(
                "select sharequeue.alter_offsets(:group, :topic, :partition, :topic_id, :offset, :epoch)",
                group=group_id,
                topic=topic,
                partition=partition,
                topic_id=self.topic_id(at),
                offset=offset,
                epoch=state_epoch,
            )
            results[topic, partition] = None
        return results

    def delete_offsets(self, group_id: str, topics: Sequence[str]) -> Mapping[str, ShareError | None]:
        if group_id not in self.known:
            raise GroupIdNotFound
        if self.joined.get(group_id):
            raise NonEmptyGroup
        return {
            topic: None
            if self._run(
                "select sharequeue.delete_offsets(:group, :topic) as n", group=group_id, topic=topic
            )[0]["n"]
            else UnknownTopicOrPartition()
            for topic in topics
        }

    def delete_group(self, group_id: str) -> None:
        if self.members(group_id):
            raise NonEmptyGroup
        self._run("select sharequeue.delete_group(:group)", group=group_id)
        self.known.discard(group_id)

    def delete_topic(self, topic: str) -> None:
        self._run(
            "select sharequeue.delete_offsets(group_id, :topic) from sharequeue.share_groups", topic=topic
        )

    def write_dead_letters(self, at: SharePartition) -> None:
        self.sweep()
        while batch := self.state.dead_letters.open(at, 1000):
            self.state.dead_letters.close(batch)

    def share_partitions(self, group_id: str) -> list[SharePartition]:
        rows = self._run(
            "select topic, partition from sharequeue.share_partitions where group_id = :group", group=group_id
        )
        return sorted(SharePartition(group_id, row["topic"], row["partition"]) for row in rows)

    def describe(self, at: SharePartition) -> Description:
        found = [s for s in self.state.figures.describe(at.group_id) if s.share_partition == at]
        if not found:
            if at.group_id not in self.known:
                raise GroupIdNotFound
            raise UnknownTopicOrPartition
        status = found[0]
        rows = self._run(
            "select f.state, f.delivery_count, f.isolate, f.offsets, l.member_id from sharequeue.in_flight_offsets f"
            " join sharequeue.share_partitions sp using (share_partition_id)"
            " left join sharequeue.leases l using (lease_id)"
            " where sp.group_id = :group and sp.topic = :topic and sp.partition = :partition",
            group=at.group_id,
            topic=at.topic,
            partition=at.partition,
        )
        offsets, overtaken = {}, {}
        for row in rows:
            state = RecordState(row["state"])
            seen = OffsetState(
                state, row["delivery_count"], row["member_id"] or "", row["isolate"] is not None
            )
            for offset in OffsetSet.parse(row["offsets"]).iter_offsets():
                if offset >= status.spso:
                    offsets[offset] = seen
                elif not state.terminal:
                    overtaken[offset] = seen
        available = [o for o, s in offsets.items() if s.state is RecordState.AVAILABLE]
        return Description(
            status.spso,
            status.speo,
            status.state_epoch,
            status.delivery_complete_count,
            status.in_flight,
            status.lag,
            dict(sorted(offsets.items())),
            dict(sorted(overtaken.items())),
            min(available, default=status.speo),
            status.lost_records,
            status.fault,
        )

    def verify(self) -> list[str]:
        return self.state.figures.verify()
