"""A publication for all tables, the usual set-up of Debezium: every operation works under it."""

from __future__ import annotations

from datetime import timedelta

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.domain.values import AcknowledgeType, SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.state import State
from sharequeue.state.journal import Journal
from tests import single
from tests.operation_calls import call_every_operation
from tests.waiting import pass_time

WITHOUT_IDENTITY = sa.text(
    "select c.relname as name from pg_class c where c.relnamespace = to_regnamespace('sharequeue')"
    " and c.relkind in ('r', 'p') and c.relreplident <> 'f' and not (c.relreplident = 'd' and exists"
    " (select from pg_index i where i.indrelid = c.oid and i.indisprimary)) order by 1"
)


def published(database: Database) -> None:
    with database.transaction() as connection:
        connection.exec_driver_sql("create publication everything for all tables")


def test_every_table_has_a_replica_identity(private_database: Database) -> None:
    """A primary key, or the whole row; the journal's partitions of days to come too."""
    Journal(private_database).keep(retention=timedelta(days=7), ahead=5)
    assert [row["name"] for row in private_database.rows(WITHOUT_IDENTITY)] == []


def test_every_operation_works_under_a_publication_for_all_tables(
    private_database: Database,
) -> None:
    """Also those that delete rows: failed attempts, and rows of the journal, of partitions made later too."""
    published(private_database)
    call_every_operation(private_database)
    state, at = State(private_database), SharePartition("another", "t", 0)
    alter_group_configs(private_database, "another", {"errors.deadletterqueue.topic.name": "dlq.letters"})
    state.initialize(at, "id", 0, 1)
    single.observe(state, at, "id", 0, 1000, 1000)
    for _ in range(3):
        lease = single.acquire(state, at, "m", None, 10)
        assert lease is not None
        single.acknowledge(state, lease, {AcknowledgeType.REJECT: lease.offsets})
        letters = state.dead_letters.open(at, 100)
        assert letters is not None
        state.dead_letters.close(letters)
    single.acquire(state, at, "m", None, 10)
    assert state.release_member("another", "m") == 10
    state.administration.beat()
    journal = Journal(private_database)
    pass_time(state.database, 3 * 86400)
    state.sweep()
    single.acquire(state, at, "m", None, 10)
    made = journal.keep(retention=timedelta(days=7), updates_per_snapshot=1).made
    assert made
    pass_time(state.database, 30 * 86400)
    single.acquire(state, at, "other", None, 10)
    kept = journal.keep(retention=timedelta(days=2), updates_per_snapshot=1)
    assert kept.dropped
    assert kept.waiting is None
    assert state.figures.verify() == []
