"""What is left when something ends: offsets that are reset, a group, a topic."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from sharequeue.configs import GroupConfigs, alter_group_configs
from sharequeue.database import Database
from sharequeue.groups import HeartbeatRequest, ensure_group, heartbeat
from sharequeue.offsets import OffsetSet
from sharequeue.state import AcknowledgeType, SharePartition, State

AT = SharePartition("g", "t", 0)


@pytest.fixture
def state(private_database: Database) -> State:
    """Group g, with a dead-letter topic and 100 records."""
    state = State(private_database)
    ensure_group(private_database, "g")
    alter_group_configs(private_database, "g", {"errors.deadletterqueue.topic.name": "dlq.g"})
    state.initialize(AT, "id", 0, 1)
    state.observe(AT, "id", 0, 100, 100)
    return state


def count(database: Database, table: str) -> int:
    rows = database.rows(sa.text(f"select count(*) as n from sharequeue.{table}"))  # noqa: S608 - names below
    return int(rows[0]["n"])


def test_a_reset_leaves_nothing_of_the_dead_letters_before_it(
    state: State, private_database: Database
) -> None:
    """Attempts of records, the open batch, and why it was held are of before the reset: they go with it."""
    lease = state.acquire(AT, "m", None, 10)
    assert lease is not None
    state.acknowledge(lease, {AcknowledgeType.REJECT: OffsetSet.of((0, 5))})
    assert state.open_dead_letters(AT, 10) is not None
    state.hold_dead_letters(AT, "the topic is not there")
    tables = ("failed_attempts", "held_dead_letters", "dead_letter_batches")
    assert [count(private_database, table) > 0 for table in tables] == [True, True, True]
    state.alter_offsets(AT, "id", 0)
    assert {table: count(private_database, table) for table in tables} == dict.fromkeys(tables, 0)


def test_a_group_that_comes_back_is_configured_as_before(state: State, private_database: Database) -> None:
    """Deleting a group leaves its configs, as on a broker: it starts where its own reset policy says."""
    alter_group_configs(
        private_database, "g", {"share.auto.offset.reset": "earliest", "share.delivery.count.limit": 3}
    )
    assert state.delete_group("g")
    joined = heartbeat(private_database, HeartbeatRequest("g", "m1", 0, subscribed_topic_names=("t",)))
    assert joined.error_code == 0
    configs = GroupConfigs.load(private_database, "g")
    assert (configs.auto_offset_reset, configs.delivery_count_limit) == ("earliest", 3)
    limits = sa.text("select delivery_count_limit from sharequeue.group_settings where group_id = 'g'")
    assert private_database.rows(limits)[0]["delivery_count_limit"] == 3
