"""What a run says of records that it could not lease."""

from __future__ import annotations

from uuid import UUID

from sharequeue.database import Database
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import AcknowledgeType, SharePartition
from sharequeue.groups.configs import GroupConfigs, alter_group_configs
from sharequeue.spark.dead_letters import write_letters_at_end
from sharequeue.spark.leasing.group import why_nothing
from sharequeue.state import State
from sharequeue.state.calls import LeaseAcknowledgement
from tests import single

OWN, OTHER = SharePartition("g", "t", 0), SharePartition("g", "t", 1)


def test_records_of_other_members_are_not_reported_as_released(private_database: Database) -> None:
    """A killed run keeps its share-partitions until its session ends: what is left of them, never delivered or given
    back, is not this run's."""
    alter_group_configs(private_database, "g", {"share.auto.offset.reset": "earliest"})
    state, configs = State(private_database), GroupConfigs.load(private_database, "g")
    for at in (OWN, OTHER):
        state.initialize(at, "id", 0, 1)
        single.observe(state, at, "id", 0, 100, 100)
        lease = single.acquire(state, at, "killed", None, 10)
        assert lease is not None
    state.release_member("g", "killed")
    told = why_nothing(state, configs, ["t"], [OWN])
    assert told is not None
    assert "100 offsets are in share-partitions that are assigned to other members" in told
    assert "10 records are released by this run" in told
    assert "other members" not in str(why_nothing(state, configs, ["t"], [OWN, OTHER]))


def test_held_records_are_said_to_wait_for_earlier_ones(private_database: Database) -> None:
    """They have no time from which they may be delivered, behind a dead letter and behind a released record, and are
    not said to be released."""
    configs = {"sharequeue.order": "key", "errors.deadletterqueue.topic.name": "dlq.g"}
    alter_group_configs(private_database, "g", configs)
    state, at = State(private_database), OWN
    state.initialize(at, "id", 0, 1)
    single.observe(state, at, "id", 0, 4, 4)
    lease = single.acquire(state, at, "m", None, 4)
    assert lease is not None
    first, second = (UUID(int=number) for number in (1, 2))
    one, two, three, four = (OffsetSet.of((offset, offset + 1)) for offset in range(4))
    outcomes = {AcknowledgeType.REJECT: one, AcknowledgeType.RELEASE: three}
    keys: dict[UUID | None, OffsetSet] = {first: one | two, second: three | four}
    state.acknowledge([LeaseAcknowledgement(lease, outcomes, holds=two | four, keys=keys)])
    told = why_nothing(state, GroupConfigs.load(private_database, "g"), ["t"], [at])
    assert told is not None
    assert "2 records are waiting for earlier records of their keys" in told
    assert "1 record is released by this run, or held behind one of their key" in told


def test_an_unavailable_database_causes_no_warning_of_dead_letters(private_database: Database) -> None:
    """At the end of a block nobody knows whether any wait: the warning does not say that they do."""
    url = private_database.engine.url.set(port=1)
    settings = Settings.load().replace(database_url=url.render_as_string(hide_password=False))
    configs = GroupConfigs.load(private_database, "g")
    with Database.open(settings) as away:
        written = write_letters_at_end(settings, State(away), configs)
    assert written is not None
    assert "could not check for waiting dead letters of group g" in str(written.warning)
