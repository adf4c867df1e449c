"""State written under the first layout, one row per distinct state of a share-partition, is carried over whole."""

from __future__ import annotations

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.database.migrations import migrate
from sharequeue.database.schema_files import migrations, sql_root
from sharequeue.offsets import OffsetSet
from sharequeue.state import State
from sharequeue.values import READ_UNCOMMITTED, AcknowledgeType, Lease, SharePartition

AT = SharePartition("g", "t", 0)
FIRST_LAYOUT = """
insert into sharequeue.share_groups (group_id) values ('g');
insert into sharequeue.group_configs values ('g', 'share.delivery.count.limit', '3');
insert into sharequeue.share_partitions (group_id, topic, partition, topic_id, state_epoch, spso, speo, log_end,
    delivery_complete_count) values ('g', 't', 0, 'id', 4, 5, 30, 40, 5);
insert into sharequeue.leases (share_partition_id, member_id, member_epoch, token, lock_duration_ms, acquired_at,
    expires_at) values (1, 'm1', 1, '00000000-0000-0000-0000-000000000001', 30000, clock_timestamp(),
    clock_timestamp() + interval '1 hour');
insert into sharequeue.in_flight (share_partition_id, state, delivery_count, lease_id, cause, isolate, offsets) values
    (1, 0, 1, null, null, 2, '{[5,8)}'), (1, 1, 2, 1, null, null, '{[8,12),[20,30)}'),
    (1, 2, 1, null, null, null, '{[12,17)}'), (1, 3, 1, null, 'rejected', null, '{[17,20)}');
"""


def test_state_of_the_first_layout_goes_on_under_the_second(private_database: Database) -> None:
    """Available, leased, finished and archiving records keep state, count, lease and token; SPSO goes on."""
    with private_database.transaction() as connection:
        connection.exec_driver_sql("drop schema sharequeue, sharequeue_internal cascade")
        connection.exec_driver_sql((sql_root() / "migrations" / "0001_share_groups.sql").read_text())
        connection.exec_driver_sql(FIRST_LAYOUT)
        connection.exec_driver_sql(
            "create table sharequeue.schema_migrations (name text constraint schema_migrations_pkey primary key,"
            " checksum text not null, applied_at timestamptz not null default clock_timestamp())"
        )
    first = next(m for m in migrations() if m.name.endswith("0001_share_groups.sql"))
    with private_database.transaction() as connection:
        connection.execute(
            sa.text("insert into sharequeue.schema_migrations (name, checksum) values (:name, :checksum)"),
            {"name": first.name, "checksum": first.checksum},
        )
    assert "migrations/0002_in_flight_batches.sql" in migrate(private_database)
    state = State(private_database)
    assert state.figures.verify() == []
    status = state.figures.describe("g")[0]
    assert (status.spso, status.speo, status.available, status.acquired, status.archiving) == (
        5,
        30,
        3,
        14,
        3,
    )
    suspects = state.acquire(AT, "m2", None, 100)
    assert suspects is not None
    assert [(d.delivery_count, d.offsets) for d in suspects.deliveries] == [(2, OffsetSet.of((5, 7)))]
    row = private_database.rows(sa.text("select * from sharequeue.leases where member_id = 'm1'"))[0]
    held = OffsetSet.of((8, 12), (20, 30))
    lease = Lease(
        row["lease_id"], AT, 4, "m1", None, row["token"], row["expires_at"], 30000, (), READ_UNCOMMITTED
    )
    assert state.acknowledge(lease, {AcknowledgeType.ACCEPT: held}).accepted == held.count
    state.acknowledge(suspects, {AcknowledgeType.ACCEPT: suspects.offsets})
    assert state.figures.describe("g")[0].spso == 7
    assert state.figures.verify() == []
