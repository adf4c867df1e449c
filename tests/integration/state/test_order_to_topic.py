"""Order by key in a chain of queues: the order of a key in the input is its order in the topic of the results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta
from random import Random

import pyarrow as pa
import pytest

from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import Lease, LeaseOutput, SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.kafka.clients import portable_config
from sharequeue.kafka.topics import Topics
from sharequeue.spark.sinks.kafka.records import BY_KEY, SOURCE_HEADERS
from sharequeue.spark.sinks.kafka.sending import Names, TopicSender, TransferToSend, commit_first_marker
from sharequeue.state import State
from tests.fixtures.results import results_in
from tests.fixtures.stack import MakeTopic
from tests.integration.state.test_order_scenarios import BACKOFF_S, Worker, fails
from tests.waiting import pass_time

RECORDS, KEYS = 60, 5
CLAIM = timedelta(seconds=30)


class Sending(Worker):
    """Its accepted records are results on their way to a topic."""

    def __init__(self, database: Database, at: SharePartition, settings: Settings, target: str) -> None:
        super().__init__(database, at, lambda offset: b"%d" % (offset * 7 % KEYS))
        self.client, self.target = portable_config(settings), target
        self.rows: dict[str, Sequence[int]] = {}
        with Topics(settings) as topics:
            self.target_id = topics.info(target).topic_id
        commit_first_marker(self.to_send(0), at.topic, at.partition, lambda: True)

    def outputs(self, lease: Lease, accepted: Sequence[int]) -> list[LeaseOutput]:
        """Return the output of a lease, which waits for the topic."""
        location = f"sink:pending:/{lease.lease_id}"
        self.rows[location] = accepted
        return [LeaseOutput("results", location, len(accepted))] if accepted else []

    def to_send(self, number: int) -> TransferToSend:
        """Return what the sender has to know."""
        names, producer = Names(self.at.group_id, "results", "origin"), {"partitioner": "murmur2_random"}
        return TransferToSend(
            self.client, names, self.target, self.target_id, producer, number, SOURCE_HEADERS
        )

    def transfer(self, *, is_sent: bool) -> None:
        """Begin a transfer, or go on with it, and end it if it is sent."""
        found = self.state.outputs.begin_transfer(self.at.group_id, "results", CLAIM)
        if found is None or not is_sent:
            return
        accepted = sorted(offset for location in found.sources for offset in self.rows[location])
        rows = [
            {
                "topic": self.at.topic,
                "partition": self.at.partition,
                "offset": offset,
                "lease_id": 1,
                "key": self.key_of(offset),
                "value": b"%d" % offset,
                "headers": None,
                "to_partition": BY_KEY,
                "timestamp": 0,
            }
            for offset in accepted
        ]
        (report,) = TopicSender(self.to_send(found.number))([pa.RecordBatch.from_pylist(rows)])
        assert report["problem"].to_pylist() == [None]
        self.state.outputs.end_transfer(self.at.group_id, "results", found.number, "sink:kafka:target")


@pytest.fixture
def worker(settings: Settings, private_database: Database, make_topic: MakeTopic) -> Sending:
    """Give a worker on an ordered share-partition, whose results go to a topic of three partitions."""
    at = SharePartition("g", make_topic(1), 0)
    alter_group_configs(private_database, "g", {"sharequeue.order": "key"})
    State(private_database).initialize(at, "id", 0, 1)
    return Sending(private_database, at, settings, make_topic(3))


@pytest.mark.parametrize("seed", range(2))
def test_the_order_of_a_key_is_kept_in_the_topic_of_the_results(
    worker: Sending, settings: Settings, seed: int
) -> None:
    """Records fail and come again, leases are of different sizes, and transfers begin while others are not sent: each
    key is in one partition, and all its records are there once, in the order of the input."""
    chance = Random(seed)  # noqa: S311 - a repeatable choice
    worker.produce(RECORDS)
    outcome = fails(*chance.sample(range(RECORDS), RECORDS // 3), times=1)
    rounds = 0
    while len(worker.accepted) < RECORDS:
        worker.work(outcome, most=chance.randint(3, 20))
        worker.transfer(is_sent=chance.random() < 0.5)
        pass_time(worker.database, max(CLAIM.total_seconds(), BACKOFF_S) + 1)
        rounds += 1
        assert rounds < 100
    # The transfer that is open, and what was accepted after it had begun.
    worker.transfer(is_sent=True)
    worker.transfer(is_sent=True)
    assert worker.accepted != sorted(worker.accepted)
    found = defaultdict[bytes | None, list[tuple[int, int]]](list)
    for each in results_in(settings, worker.target):
        found[each.key].append((each.partition, each.source["offset"]))
    for key, places in found.items():
        assert len({partition for partition, _ in places}) == 1
        offsets = [offset for _, offset in places]
        assert offsets == [offset for offset in range(RECORDS) if worker.key_of(offset) == key]
    assert len(found) == KEYS
