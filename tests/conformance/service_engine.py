"""The engine in Postgres, used through the service.

The state's functions as in ``postgres_engine``, but groups and members are the product's own: heartbeats, the
coordinator's turns, and an administrator's operations as the service serves them, with the topics of the scenario in
place of a broker's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sharequeue.database import Database
from sharequeue.domain.errors import InvalidRequest, OffsetNotAvailable, ShareError, error_for
from sharequeue.domain.values import SharePartition
from sharequeue.groups.configs import ServiceConfigs
from sharequeue.groups.descriptions import GroupDescription, describe_group
from sharequeue.groups.heartbeats import HeartbeatRequest, HeartbeatResponse
from sharequeue.service.admission import ANONYMOUS, Threads
from sharequeue.service.coordinator import Coordinator
from sharequeue.service.heartbeat_processor import HeartbeatProcessor
from sharequeue.service.operations.groups import (
    DeleteGroupsBody,
    DescribeBody,
    delete_groups,
    describe_groups,
)
from sharequeue.service.operations.offsets import (
    AlterOffsetsBody,
    DeleteOffsetsBody,
    StartOffset,
    TopicName,
    TopicStarts,
    alter_offsets,
    delete_offsets,
)
from sharequeue.service.principal import Principal
from tests.conformance.engines import LogEnds
from tests.conformance.postgres_engine import PostgresEngine
from tests.conformance.recorded_topics import RecordedTopics

RECORDED = {
    "group.share.heartbeat.interval.ms": "200",
    "group.share.min.heartbeat.interval.ms": "200",
    "group.share.min.session.timeout.ms": "2000",
    "group.share.assignment.interval.ms": "0",
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.max.delivery.count.limit": "25",
    "group.share.initialize.retry.interval.ms": "1",
}
"""What the recorded broker was configured to; a topic without a young record is asked for again at each turn."""


class RecordedService:
    """The service without its routes, on a scenario's topics. Its turns are taken by the replay."""

    def __init__(self, database: Database, topics: RecordedTopics) -> None:
        configs = ServiceConfigs.of(RECORDED)
        self.coordinator = Coordinator(database, topics, configs)
        self.heartbeats = HeartbeatProcessor(database, configs, topics, self.coordinator, Threads())
        self.admin = Principal(database, topics)


class ServiceEngine(PostgresEngine):
    """One database with the service on it. `serve` it the topics before anything is asked."""

    service: RecordedService

    def serve(self, topics: RecordedTopics) -> None:
        """Begin, with these topics."""
        self.service = RecordedService(self.database, topics)

    @property
    def coordinator(self) -> Coordinator:
        """What must happen by itself, one turn at a time."""
        return self.service.coordinator

    def _group(self, group_id: str) -> None:
        """A group is made by its first member, or by an administrator."""

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResponse:
        """One ShareGroupHeartbeat."""
        return self.service.heartbeats.heartbeat(request, ANONYMOUS)

    def group(self, group_id: str) -> GroupDescription:
        """Kafka's ShareGroupDescribe. Raises GroupIdNotFound."""
        return describe_group(self.database, group_id)

    def authorized_operations(self, group_id: str) -> list[str]:
        """What of ShareGroupDescribe an administrator asks for."""
        body = DescribeBody(group_ids=[group_id], include_authorized_operations=True)
        return sorted(describe_groups(self.service.admin, body)["groups"][0]["authorized_operations"])

    def members(self, group_id: str) -> int:
        return len(self.group(group_id).members)

    def initialize(self, at: SharePartition, ends: LogEnds, state_epoch: int) -> None:
        """The coordinator's to do; this is what a fetch meets before it could."""
        self.coordinator.watch()
        if (at.group_id, at.topic) in self.coordinator.waiting:
            raise OffsetNotAvailable

    def alter_offsets(
        self,
        group_id: str,
        offsets: Mapping[tuple[str, int], int],
        state_epoch: int,
        topics: Mapping[str, int],
    ) -> Mapping[tuple[str, int], ShareError | None]:
        starts: dict[str, list[StartOffset]] = {}
        for (topic, partition), offset in offsets.items():
            start = StartOffset(partition_index=partition, start_offset=offset)
            starts.setdefault(topic, []).append(start)
        named = [TopicStarts(topic_name=topic, partitions=of) for topic, of in starts.items()]
        told = alter_offsets(self.service.admin, AlterOffsetsBody(group_id=group_id, topics=named))
        return {
            (topic["topic_name"], each["partition_index"]): _error(each)
            for topic in told["responses"]
            for each in topic["partitions"]
        }

    def delete_offsets(self, group_id: str, topics: Sequence[str]) -> Mapping[str, ShareError | None]:
        named = [TopicName(topic_name=topic) for topic in topics]
        told = delete_offsets(self.service.admin, DeleteOffsetsBody(group_id=group_id, topics=named))
        return {topic["topic_name"]: _error(topic) for topic in told["responses"]}

    def delete_topic(self, topic: str) -> None:
        """The watch finds it gone."""

    def delete_group(self, group_id: str) -> None:
        told = delete_groups(self.service.admin, DeleteGroupsBody(groups_names=[group_id]))
        if error := _error(told["results"][0]):
            raise error

    def join(self, group_id: str, member_id: str) -> None:
        raise InvalidRequest("members join by heartbeats here")

    def leave(self, group_id: str, member_id: str) -> None:
        raise InvalidRequest("members leave by heartbeats here")


def _error(told: Mapping[str, Any]) -> ShareError | None:
    """The error of a response, or of a part of one."""
    return error_for(told["error_code"], told["error_message"]) if told["error_code"] else None
