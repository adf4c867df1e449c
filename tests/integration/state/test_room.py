"""What a transaction left open elsewhere does to the tables of the state, and what is done about it."""

from __future__ import annotations

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.domain.values import AcknowledgeType, SharePartition
from sharequeue.state import State
from tests import single
from tests.schema_text import schema_of
from tests.waiting import wait_until

GIVEN_BACK = sa.text("select sharequeue.give_back_room(1000000)")
BYTES = sa.text("select pg_relation_size('sharequeue.share_partitions')")


def _given_back(database: Database) -> list[str]:
    with database.transaction() as connection:
        return list(connection.execute(GIVEN_BACK).scalar_one())


def _bytes(database: Database) -> int:
    with database.transaction() as connection:
        return int(connection.execute(BYTES).scalar_one())


def test_free_space_is_returned_when_no_transaction_needs_it(
    private_database: Database, group: str, topic: str
) -> None:
    """While a transaction elsewhere holds the horizon nothing is written anew, nor while an operation is at work;
    afterwards the table is as small as what is in it, and neither state nor schema has changed."""
    with private_database.transaction() as connection:
        connection.execute(sa.text("insert into sharequeue.share_groups values (:group)"), {"group": group})
    state = State(private_database)
    for partition in range(300):
        state.initialize(SharePartition(group, topic, partition), "id", 0, 0)
        single.observe(state, SharePartition(group, topic, partition), "id", 0, 1000, 1000)
    lease = single.acquire(state, SharePartition(group, topic, 7), "member", None, 10)
    before, schema, small = (
        state.figures.describe(group),
        schema_of(private_database),
        _bytes(private_database),
    )
    plain = sa.create_engine(private_database.engine.url)
    vacuumed = plain.execution_options(isolation_level="AUTOCOMMIT").connect()
    elsewhere = plain.execution_options(isolation_level="REPEATABLE READ").connect()
    try:
        elsewhere.exec_driver_sql("select from sharequeue.share_groups")
        for _ in range(20):
            with private_database.transaction() as connection:
                connection.exec_driver_sql("update sharequeue.share_partitions set spso = spso")
        vacuumed.exec_driver_sql("vacuum sharequeue.share_partitions")
        large = _bytes(private_database)
        assert large > 5 * small
        assert _given_back(private_database) == []
        elsewhere.rollback()
        vacuumed.exec_driver_sql("vacuum sharequeue.share_partitions")
        elsewhere.exec_driver_sql("select from sharequeue.share_partitions limit 1 for update")
        assert _given_back(private_database) == []
        elsewhere.rollback()
        given_back: list[str] = []

        def asked_again() -> bool:
            """An autovacuum at work is somebody who holds the table: the service asks again, too."""
            given_back.extend(_given_back(private_database))
            if not given_back:
                vacuumed.exec_driver_sql("vacuum sharequeue.share_partitions")
            return bool(given_back)

        wait_until(asked_again)
        assert given_back == ["share_partitions"]
    finally:
        elsewhere.close()
        vacuumed.close()
        plain.dispose()
    assert _bytes(private_database) <= 2 * small
    assert _given_back(private_database) == []
    assert schema_of(private_database) == schema
    assert state.figures.describe(group) == before
    assert state.figures.verify(group) == []
    assert lease is not None
    assert single.acknowledge(state, lease, {AcknowledgeType.ACCEPT: lease.offsets}).accepted == 10
