"""The fixtures other tests build on lead to real servers."""

from __future__ import annotations

from datetime import timedelta

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.database.migrations import pending
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.kafka.topics import Topics
from sharequeue.state import State
from tests import single
from tests.fixtures.stack import Copies, MakeTopic, has_share_bounds
from tests.spares import Spare
from tests.waiting import set_clock

OID = sa.text("select oid from pg_database where datname = current_database()")
"""Which database it is, whatever its name."""


def test_settings_lead_to_a_migrated_database_through_psycopg2(
    settings: Settings, database: Database
) -> None:
    """The stack's database is migrated, and its driver is the one Dagster's storage works with."""
    assert database.engine.driver == "psycopg2"
    assert pending(database) == []
    with Database.open(settings) as opened, opened.transaction() as connection:
        assert connection.scalar(sa.text("select current_database()")) == "sharequeue"


def test_a_made_topic_is_seen_by_topics(topics: Topics, make_topic: MakeTopic) -> None:
    """A topic made by the fixture has the partitions that were asked for."""
    name = make_topic(partitions=3, retention_ms="-1")
    assert topics.describe([name])[name].partitions == 3


def test_a_private_database_is_migrated_and_empty(private_database: Database) -> None:
    """A private database has the schema and no groups."""
    assert pending(private_database) == []
    assert State(private_database).figures.describe("anything") == []


def test_the_broker_has_the_bounds_of_the_tests(settings: Settings) -> None:
    """Also when an earlier test had it killed and started again."""
    assert has_share_bounds(settings)


def test_a_database_is_used_again_as_it_was_made(copies: Copies) -> None:
    """Rows that a test wrote or changed and sequences are as before, and the name is another one."""
    with copies.one() as first:
        (made,) = first.rows(OID)
        alter_group_configs(first, "g", {"share.delivery.count.limit": "3"})
        state, at = State(first), SharePartition("g", "t", 0)
        state.initialize(at, "id", 0, 1)
        single.observe(state, at, "id", 0, 10, 10)
        assert single.acquire(state, at, "m", None, 5) is not None
        set_clock(first, timedelta(hours=1))
    with copies.one() as again:
        assert again.rows(OID) == [made]
        assert again.engine.url.database != first.engine.url.database
        assert Spare.of(again.engine.url) == copies.made_like


def test_a_database_with_another_schema_is_not_used_again(copies: Copies) -> None:
    """A function that a test replaced is not there for the next one."""
    with copies.one() as changed:
        (made,) = changed.rows(OID)
        with changed.transaction() as connection:
            connection.exec_driver_sql(
                "create function public.more() returns integer language sql as 'select 1'"
            )
    with copies.one() as other:
        assert other.rows(OID) != [made]
        assert Spare.of(other.engine.url) == copies.made_like
