"""A group that is assigned by backlog: by its config, again when the backlog has shifted, not for a small shift."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from sharequeue.database import Database
from sharequeue.groups.configs import GroupConfigs, ServiceConfigs, alter_group_configs
from sharequeue.groups.configs.published import publish_service_configs
from sharequeue.groups.descriptions import describe_group
from sharequeue.groups.heartbeats import HeartbeatRequest, heartbeat
from sharequeue.kafka.topics import Topics
from sharequeue.service.coordinator import Coordinator
from sharequeue.state import State
from sharequeue.words.errors import InvalidConfig
from sharequeue.words.values import SharePartition
from tests import single

MEMBERS = ("m0", "m1", "m2", "m3")


@pytest.fixture
def database(private_database: Database) -> Database:
    """Give a database with group `g`, which has four share-partitions, and in each a thousand records."""
    alter_group_configs(
        private_database, "g", {"share.assignors": "backlog", "share.assignment.interval.ms": 0}
    )
    for partition in range(4):
        State(private_database).initialize(SharePartition("g", "t", partition), "id", 0, 1)
        waits(private_database, partition, 1000)
    return private_database


def waits(database: Database, partition: int, records: int) -> None:
    single.observe(State(database), SharePartition("g", "t", partition), "id", 0, records, records)


def join(database: Database) -> None:
    for member in MEMBERS:
        assert (
            heartbeat(database, HeartbeatRequest("g", member, 0, subscribed_topic_names=("t",))).error_code
            == 0
        )


def assigned(database: Database) -> dict[str, list[int]]:
    members = describe_group(database, "g").members
    return {
        member.member_id: [each for topic in member.assignment for each in topic["partitions"]]
        for member in members
    }


def epoch(database: Database) -> int:
    return describe_group(database, "g").group_epoch


def test_a_shifted_backlog_is_assigned_anew(database: Database, topics: Topics) -> None:
    """Heartbeats alone assign by what waits then. The coordinator assigns anew once it has shifted far: all four
    members share what nearly all waits in, and nothing is left without one; it leaves a small shift alone."""
    join(database)
    assert sorted(assigned(database).values()) == [[0], [1], [2], [3]]
    coordinator = Coordinator(database, topics, rebalance_interval=0)
    before = assigned(database), epoch(database)
    waits(database, 2, 1100)
    coordinator.settle()
    assert (assigned(database), epoch(database)) == before
    waits(database, 2, 100_000)
    coordinator.settle()
    after = assigned(database)
    assert sum(2 in share for share in after.values()) == 4
    assert {each for share in after.values() for each in share} == {0, 1, 2, 3}
    assert epoch(database) == before[1] + 1
    # The members are told at their next heartbeat.
    moved = next(member for member, share in after.items() if share != before[0][member])
    known = {member.member_id: member.member_epoch for member in describe_group(database, "g").members}
    told = heartbeat(database, HeartbeatRequest("g", moved, known[moved]))
    assert told.assignment is not None
    assert told.assignment[0]["partitions"] == after[moved]
    before = after, epoch(database)
    coordinator.settle()
    assert (assigned(database), epoch(database)) == before


def test_not_oftener_than_the_interval(database: Database, topics: Topics) -> None:
    """Within the interval the backlog is not looked at again; a group of the simple assignor never is."""
    join(database)
    coordinator = Coordinator(database, topics)
    waits(database, 2, 100_000)
    before = assigned(database)
    coordinator.settle()
    assert assigned(database) == before
    alter_group_configs(database, "g", {"share.assignors": "simple"})
    Coordinator(database, topics, rebalance_interval=0).settle()
    assert assigned(database) == before


def test_the_config(database: Database) -> None:
    """The group's own value, else the service's, else `simple`; a name that there is not is refused."""
    assert describe_group(database, "g").assignor_name == "backlog"
    alter_group_configs(database, "g", {"share.assignors": None})
    assert describe_group(database, "g").assignor_name == "simple"
    configs = ServiceConfigs.of({"group.share.assignors": "backlog"})
    publish_service_configs(database, configs)
    assert GroupConfigs.load(database, "g").values["share.assignors"] == "backlog"
    assert describe_group(database, "g").assignor_name == "backlog"
    waits(database, 2, 100_000)
    join(database)
    assert sum(2 in share for share in assigned(database).values()) > 1
    with pytest.raises(InvalidConfig, match="simple, backlog"):
        alter_group_configs(database, "g", {"share.assignors": "range"})
    assert (
        database.rows(text("select sharequeue.backlog_assignment('g') as found"))[0]["found"]["assignor"]
        == "backlog"
    )
