"""Queues in every trouble that an alert is for, behind two replicas of the service."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic
from sqlalchemy.exc import SQLAlchemyError

from sharequeue.database import Database
from sharequeue.domain.errors import ShareError
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import AcknowledgeType, LeaseOutput, SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.groups.membership import Membership
from sharequeue.kafka.clients import client_config
from sharequeue.reports.history import Reports
from sharequeue.state import State
from tests import single
from tests.deep.service_chaos import Balancer, Replica
from tests.deep.threads import beside
from tests.waiting import wait_until

SETTINGS = {"SHAREQUEUE_GROUP_SHARE_MAX_RECORD_LOCK_DURATION_MS": "3600000"}
"""What these replicas are set to, besides what those of the chaos are."""
STEADY = "steady"
GROUPS: dict[str, dict[str, str | int]] = {
    STEADY: {"errors.deadletterqueue.topic.name": "dlq.steady"},
    "old": {},
    "slow": {},
    "near": {},
    "lost": {},
    "lapsing": {"share.record.lock.duration.ms": 1_000},
    "paused": {},
    "held": {"errors.deadletterqueue.topic.name": "dlq.held"},
    "poison": {"errors.deadletterqueue.topic.name": "dlq.poison"},
    "results": {},
    "late": {},
    "restless": {},
    "locked": {"share.session.timeout.ms": 6_000, "share.record.lock.duration.ms": 3_600_000},
}
"""The groups and their configs. Each has a topic of its name, of one partition."""
RECORDS = {"slow": 2_000, "near": 200, "lapsing": 1_200, "poison": 1_100}
HEARTBEAT = "/v1/share-group-heartbeat"


@dataclass
class Queues:
    """The groups at work."""

    settings: Settings
    database: Database
    replicas: list[Replica]
    balancer: Balancer
    members: dict[str, Membership] = field(default_factory=dict)

    @property
    def state(self) -> State:
        """The state of all groups."""
        return State(self.database)

    def logs(self) -> str:
        """Return the ends of the replicas' logs."""
        return "\n".join(each.log() for each in self.replicas)

    def begin(self) -> None:
        """Make topics and groups, have a member join each, and fill the topics. Two groups then have what is a day
        old."""
        self.create(*GROUPS, "dlq.steady", "dlq.poison", "dlq.held")
        self.open_to_letters("dlq.steady", "dlq.poison")
        # They publish the bounds of configs.
        for replica in self.replicas:
            replica.start()
        wait_until(lambda: len(self.balancer.ready) == len(self.replicas), 120, self.logs)
        for group, configs in GROUPS.items():
            given: dict[str, str | int] = {
                "share.auto.offset.reset": "earliest",
                "share.partition.max.record.locks": 10_000,
            }
            alter_group_configs(self.database, group, given | configs)
            self.produce(group, RECORDS.get(group, 100))
        for group in GROUPS:
            member = Membership(
                f"http://127.0.0.1:{self.balancer.port}", group, (group,), request_timeout=8.0
            )
            member.join(timeout=120)
            self.members[group] = member
        wait_until(lambda: all(self._end(group) for group in GROUPS), 120, self.logs)
        Reports(self.database).record("old")
        self.accept_results("late")
        for replica in self.replicas:
            replica.send(signal.SIGKILL)
        self.database.rows(
            sa.text("select sharequeue.set_clock_offset(:ahead)"), ahead=timedelta(hours=24, minutes=10)
        )
        for replica in self.replicas:
            replica.start()
        wait_until(lambda: len(self.balancer.ready) == len(self.replicas), 120, self.logs)

    def _end(self, group: str) -> int:
        found = self.state.figures.one(SharePartition(group, group, 0))
        return found.log_end or 0 if found else 0

    def create(self, *topics: str) -> None:
        """Make topics of one partition."""
        admin = AdminClient(client_config(self.settings))
        made = admin.create_topics([NewTopic(each, 1, 1) for each in topics])
        for each in made.values():
            each.result(60)

    def open_to_letters(self, *topics: str) -> None:
        """Let groups write their dead letters to topics."""
        admin = AdminClient(client_config(self.settings))
        entry = ConfigEntry(
            "errors.deadletterqueue.group.enable", "true", incremental_operation=AlterConfigOpType.SET
        )
        resources = [ConfigResource(ResourceType.TOPIC, each, incremental_configs=[entry]) for each in topics]
        for each in admin.incremental_alter_configs(resources).values():
            each.result(60)

    def produce(self, topic: str, records: int) -> None:
        """Put so many records into a topic."""
        producer = Producer(client_config(self.settings))
        for _ in range(records):
            producer.produce(topic, b"x", partition=0)
        assert producer.flush(60) == 0

    def remove_before(self, topic: str, offset: int) -> None:
        """Remove the records below an offset, as retention does."""
        admin = AdminClient(client_config(self.settings))
        for each in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
            each.result(60)

    def settle(self, group: str, how: AcknowledgeType, most: int) -> int:
        """Lease once for the group's member and acknowledge all of it; return how many records."""
        member = self.members[group]
        at = SharePartition(group, group, 0)
        lease = single.acquire(self.state, at, member.member_id, member.member_epoch, most)
        if lease is None:
            return 0
        single.acknowledge(self.state, lease, {how: lease.offsets})
        return lease.offsets.count

    def drain(self, group: str) -> None:
        """Accept all that there is."""

        def drained() -> bool:
            self.settle(group, AcknowledgeType.ACCEPT, 10_000)
            found = self.state.figures.one(SharePartition(group, group, 0))
            return found is not None and found.lag == 0

        wait_until(drained, 60, lambda: f"{group} does not drain")

    def accept_results(self, group: str) -> None:
        """Accept records whose rows wait in files."""
        member = self.members[group]
        at = SharePartition(group, group, 0)
        lease = single.acquire(self.state, at, member.member_id, member.member_epoch, 10)
        assert lease is not None
        outputs = [LeaseOutput("results", f"sink:pending:/data/{group}", lease.offsets.count)]
        single.acknowledge(self.state, lease, {AcknowledgeType.ACCEPT: lease.offsets}, outputs=outputs)

    def hold_results(self, group: str) -> None:
        """Have it that they cannot be written."""
        transfer = self.state.outputs.begin_transfer(group, "results", timedelta(seconds=1))
        assert transfer is not None
        self.state.outputs.hold_transfer(group, "results", transfer.number, "the topic is not there")

    def write_results(self, group: str) -> None:
        """Write them, as the next run does."""

        def written() -> bool:
            transfer = self.state.outputs.begin_transfer(group, "results", timedelta(seconds=1))
            return transfer is None or (
                not transfer.busy
                and self.state.outputs.end_transfer(group, "results", transfer.number, "/table") > 0
            )

        wait_until(written, 30, "the transfer stays claimed")

    def keep(self, group: str) -> int:
        """Lease records and leave them; return how many."""
        member = self.members[group]
        at = SharePartition(group, group, 0)
        lease = single.acquire(self.state, at, member.member_id, member.member_epoch, 10_000)
        assert lease is not None
        return lease.offsets.count

    def rebalance(self, times: int) -> None:
        """Have members join and leave, so many of each."""
        with httpx.Client(base_url=f"http://127.0.0.1:{self.replicas[0].port}", trust_env=False) as client:
            for number in range(times):
                for epoch in (0, -1):
                    body = {"group_id": "restless", "member_id": f"m{number}", "member_epoch": epoch}
                    joins = {"subscribed_topic_names": ["restless"]} if epoch == 0 else {}
                    assert client.post(HEARTBEAT, json=body | joins).json()["error_code"] == 0

    @contextmanager
    def heartbeats(self, group: str) -> Iterator[None]:
        """Have two senders ask to join the group, again when they are answered: unlike a member's, their heartbeats
        always need the group's row.
        """
        stop = threading.Event()
        body = {"group_id": group, "member_id": "joins", "member_epoch": 0, "subscribed_topic_names": [group]}

        def send() -> None:
            url = f"http://127.0.0.1:{self.replicas[0].port}{HEARTBEAT}"
            while not stop.wait(0.1):
                with suppress(httpx.HTTPError):
                    httpx.post(url, json=body, trust_env=False, timeout=30)

        with beside(stop, [send, send]):
            yield

    @contextmanager
    def lock(self, group: str) -> Iterator[None]:
        """Hold a group's row, as a transaction that somebody forgot does."""
        with self.database.transaction() as connection:
            row = sa.text("select from sharequeue.share_groups where group_id = :group for update")
            connection.execute(row, {"group": group})
            yield


@contextmanager
def at_work(queues: Queues) -> Iterator[None]:
    """Have records come and be worked on all the time in the steady group: accepted, released, a few rejected."""
    stop = threading.Event()

    def work() -> None:
        turn = 0
        while not stop.wait(0.3):
            turn += 1
            how = {7: AcknowledgeType.RELEASE, 17: AcknowledgeType.REJECT}.get(
                turn % 20, AcknowledgeType.ACCEPT
            )
            with suppress(ShareError, SQLAlchemyError):
                queues.settle(STEADY, how, 5 if how is AcknowledgeType.REJECT else 40)

    def produce() -> None:
        producer = Producer(client_config(queues.settings) | {"log_level": 0})
        while not stop.wait(0.5):
            for _ in range(40):
                with suppress(BufferError):
                    producer.produce(STEADY, b"x", partition=0)
            producer.poll(0)
        producer.flush(10)

    with beside(stop, [work, produce]):
        yield


@contextmanager
def queues_at_work(settings: Settings, folder: Path) -> Iterator[Queues]:
    """Give the groups on a stack that runs, behind two replicas."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SETTINGS.items():
            patch.setenv(name, value)
        replicas = [Replica(settings, folder, name) for name in ("first", "second")]
    balancer = Balancer(replicas)
    with Database.open(settings) as database:
        made = Queues(settings, database, replicas, balancer)
        try:
            made.begin()
            with at_work(made):
                yield made
        finally:
            for member in made.members.values():
                member.abandon()
            balancer.close()
            for replica in replicas:
                replica.send(signal.SIGKILL)
