"""The world of the chaos: two replicas with 200 members of ten groups, and what must be so after each fault."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.groups.configs import alter_group_configs
from sharequeue.groups.membership import Membership
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.topics import Topics
from sharequeue.local.stack import status, up
from sharequeue.state import State
from tests.deep.service_chaos import (
    HEARTBEAT_MS,
    UNASSIGNED,
    Balancer,
    Ledger,
    Replica,
    Samples,
    Watched,
    at_work,
    get,
)
from tests.fixtures.stack import jars_folder, say
from tests.waiting import wait_until

GROUPS, MEMBERS, WORKERS = 10, 20, 6
CHANGING = "changing"
"""A topic that is deleted and made again, and the group that reads it alone."""
WORKED = ("g0", "g1", CHANGING)
TOPICS = {"orders": 4, "parcels": 4, CHANGING: 3}
UNASSIGNED_S = HEARTBEAT_MS / 1000 + 4.0
"""One heartbeat interval, one look of the watch, and two seconds for a machine at its limit."""
LONG_S = 16.0
"""Longer than the 15 s in which a replica counts as there."""


@dataclass
class World:
    """All there is."""

    settings: Settings
    database: Database
    ledger: Ledger
    replicas: list[Replica]
    balancer: Balancer
    members: list[Membership]
    longest_unassigned: float = 0.0

    def watched(self, name: str, shown_by: Callable[[Samples], bool]) -> Watched:
        return Watched(self.balancer, name, shown_by)

    def up(self) -> None:
        up(self.settings.home, say, service=False, environment={"SHAREQUEUE_JARS": str(jars_folder())})

    def pid(self, server: str) -> int:
        (pid,) = (each.pid for each in status(self.settings.home) if each.name == server)
        assert pid is not None
        return pid

    def create(self, topic: str, partitions: int, number: int) -> None:
        """Make a topic, and name it in the ledger."""
        admin = AdminClient(client_config(self.settings))
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(60)

        def there() -> bool:
            with Topics(self.settings) as topics:
                found = topics.describe([topic]).get(topic)
            if found is None or found.partitions != partitions:
                return False  # not everywhere yet
            self.ledger.incarnation[topic] = f"{topic} {number}", found.topic_id
            return True

        wait_until(there, 60)

    def join(self, reads: Mapping[str, tuple[str, ...]]) -> None:
        """Have so many members join each of these groups, for its topics."""
        url = f"http://127.0.0.1:{self.balancer.port}"
        joining = [
            Membership(url, group, topics, request_timeout=3.0)
            for group, topics in reads.items()
            for _ in range(MEMBERS)
        ]
        with ThreadPoolExecutor(20) as pool:
            list(pool.map(lambda member: member.join(timeout=120), joining))
        self.members += joining

    def recover(self) -> None:
        """The fault is over: within a moment all is as it was, and what is produced now is worked on."""
        for replica in self.replicas:
            replica.send(signal.SIGCONT)
            replica.start()
        wait_until(lambda: len(self.balancer.ready) == len(self.replicas), 90, self.logs)
        began = time.monotonic()
        wait_until(lambda: not self.database.rows(UNASSIGNED), 60, self.unassigned)
        self.longest_unassigned = max(self.longest_unassigned, time.monotonic() - began)
        assert time.monotonic() - began < UNASSIGNED_S
        for topic, partitions in TOPICS.items():
            if topic in self.ledger.incarnation:
                self.ledger.produce(topic, partitions, 20)
        wait_until(self.drained, 120, self.lags)
        assert [each.member_id for each in self.members if each.lost.is_set()] == []
        rows = self.database.rows(sa.text("select group_id, member_id from sharequeue.group_members"))
        there = {(row["group_id"], row["member_id"]) for row in rows}
        assert {(each.group_id, each.member_id) for each in self.members} <= there
        assert self.ledger.wrong == []
        assert self.ledger.doubled() == []
        for group in WORKED:
            assert State(self.database).figures.verify(group) == []

    def drained(self) -> bool:
        return sum(self.lags().values()) == 0

    def lags(self) -> dict[str, int]:
        """What is left to do by what was produced, and not by what the service has seen."""
        left = {}
        for group in WORKED:
            for each in State(self.database).figures.describe(group):
                name, topic_id = self.ledger.incarnation.get(each.topic, ("", ""))
                if each.topic_id == topic_id:
                    done = self.ledger.produced[name, each.partition] - each.spso
                    left[f"{group} {each.topic}-{each.partition}"] = done
        return left or {"nothing is initialised": 1}

    def unassigned(self) -> str:
        return str(self.database.rows(UNASSIGNED)[:5]) + self.logs()

    def described(self, group: str) -> str:
        """What the service says of a group."""
        return "".join(get(each.port, f"/v1/groups/{group}", 5.0) or "" for each in self.replicas)

    def refused(self) -> float:
        """Count the heartbeats that got an error."""
        all_of_them = self.balancer.total("sharequeue_heartbeats_total")
        return all_of_them - self.balancer.total("sharequeue_heartbeats_total", error_code="0")

    def logs(self) -> str:
        return "\n".join(f"--- {each.name}\n{each.log()}" for each in self.replicas)


@contextmanager
def world_at_work(settings: Settings, folder: Path) -> Iterator[World]:
    """Give the world on a stack that runs, with everybody in it, of whom those of three groups are at work."""
    replicas = [Replica(settings, folder, name) for name in ("first", "second")]
    with Database.open(settings) as database:
        ledger = Ledger(database, settings)
        reads = {f"g{n}": ("orders", "parcels") for n in range(GROUPS - 1)} | {CHANGING: (CHANGING,)}
        balancer = Balancer(replicas)
        made = World(settings, database, ledger, replicas, balancer, [])
        try:
            for group in reads:
                alter_group_configs(database, group, {"share.auto.offset.reset": "earliest"})
            for topic, partitions in TOPICS.items():
                made.create(topic, partitions, 1)
            for replica in replicas:
                replica.start()
            wait_until(lambda: len(balancer.ready) == 2, 120, made.logs)
            made.join(reads)
            with at_work(ledger, lambda: [each for each in made.members if each.group_id in WORKED], WORKERS):
                made.recover()
                yield made
        finally:
            balancer.close()
            for replica in replicas:
                replica.send(signal.SIGCONT)
                replica.send(signal.SIGKILL)
