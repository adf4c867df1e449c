"""The fixtures other tests build on lead to real servers."""

from __future__ import annotations

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.database.migrations import pending
from sharequeue.kafka.topics import Topics
from sharequeue.state import State
from sharequeue.words.settings import Settings
from tests.fixtures.stack import MakeTopic, has_share_bounds


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
