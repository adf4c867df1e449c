"""One order of locks: pairs that met a deadlock once. All operations at once: `tests/deep/deep_lock_order.py`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.domain.values import SharePartition
from sharequeue.groups.acls import Acl, Acls
from sharequeue.groups.configs import alter_group_configs
from sharequeue.groups.group_names import all_group_names
from sharequeue.groups.heartbeats import HeartbeatRequest, ensure_group, expire_members_of, heartbeat
from sharequeue.service.coordinator.watched_topics import start_grown
from sharequeue.state import State
from sharequeue.state.journal import Journal
from tests import single
from tests.operations_at_once import deadlocks
from tests.waiting import PATIENCE_S, wait_for_locks


def test_a_config_and_an_acl_that_wait_for_the_same_settings_meet_no_deadlock(
    private_database: Database,
) -> None:
    """Both wait for a group's settings, the config first; when these are free, both go on."""
    ensure_group(private_database, "g")
    with ThreadPoolExecutor(2) as pool:
        with private_database.transaction() as holder:
            holder.execute(sa.text("select from sharequeue.group_settings where group_id = 'g' for update"))
            config = pool.submit(
                alter_group_configs, private_database, "g", {"share.delivery.count.limit": 3}
            )
            wait_for_locks(private_database, 1)
            acl = pool.submit(Acls(private_database).add, Acl("User:worker", "READ", "ALLOW", "LITERAL", "g"))
            wait_for_locks(private_database, 2)
        config.result(timeout=PATIENCE_S)
        assert acl.result(timeout=PATIENCE_S)
    assert deadlocks(private_database) == 0


def test_members_that_expire_together_are_released_in_the_order_of_locks(private_database: Database) -> None:
    """The first of two members holds the second share-partition, the second one the first: who has the first
    locked and comes to the second meets nobody there."""
    ensure_group(private_database, "g")
    state = State(private_database)
    at = [SharePartition("g", "t", partition) for partition in range(2)]
    for each, member in zip(at, ("m1", "m0"), strict=True):
        state.initialize(each, "id-t", 0, 1)
        single.observe(state, each, "id-t", 0, 10, 10)
        assert heartbeat(private_database, HeartbeatRequest("g", member, 0, subscribed_topic_names=("t",)))
        assert single.acquire(state, each, member, None, 10) is not None
    with private_database.transaction() as connection:
        connection.exec_driver_sql("update sharequeue.members set session_expires_at = sharequeue.clock()")
    lock = sa.text("select from sharequeue.share_partitions where partition = :p for update")
    with ThreadPoolExecutor(1) as pool:
        with private_database.transaction() as holder:
            holder.execute(lock, {"p": 0})
            expired = pool.submit(expire_members_of, private_database, "g")
            wait_for_locks(private_database, 1)
            holder.execute(lock, {"p": 1})
        assert expired.result(timeout=PATIENCE_S) == ["m0", "m1"]
    assert deadlocks(private_database) == 0
    assert state.figures.leases("g") == []


def test_a_group_made_again_while_its_grown_topics_are_forgotten(private_database: Database) -> None:
    """Partitions of a deleted group are to be started. The group is made again between the steps of that, and locked
    by somebody who wants its grown topics next: nobody waits behind these for the group's row."""
    with private_database.transaction() as connection:
        connection.exec_driver_sql("insert into sharequeue.grown_topics values ('g', 't', 'id-t', 1, 2)")
    service = Database(private_database.engine.url.render_as_string(hide_password=False))
    with ThreadPoolExecutor(1) as pool, private_database.engine.connect() as holder:

        def make_group_again(_: object, __: object, statement: str, *___: object) -> None:
            if statement.startswith("delete from sharequeue.grown_topics"):
                ensure_group(private_database, "g")
                heartbeat(private_database, HeartbeatRequest("g", "m", 0, subscribed_topic_names=("t",)))
                holder.exec_driver_sql("update sharequeue.share_groups set metadata_hash = null")
                holder.commit()
                holder.exec_driver_sql("select from sharequeue.share_groups where group_id = 'g' for update")

        sa.event.listen(service.engine, "before_cursor_execute", make_group_again)
        started = pool.submit(start_grown, service, "g")
        try:
            assert started.result(timeout=PATIENCE_S) == 0
            assert holder.exec_driver_sql("delete from sharequeue.grown_topics").rowcount == 0
        finally:
            holder.rollback()
    service.close()


def test_a_group_deleted_while_it_is_configured_is_made_again(private_database: Database) -> None:
    """Its configs without its row would be locked before it, by whoever changes them next."""
    ensure_group(private_database, "g")
    operator = Database(private_database.engine.url.render_as_string(hide_password=False))
    deleted: list[bool] = []

    def delete(_: object, __: object, statement: str, *___: object) -> None:
        if statement.startswith("select from sharequeue.share_groups") and not deleted:
            deleted.append(True)
            State(private_database).administration.delete_group("g")

    sa.event.listen(operator.engine, "before_cursor_execute", delete)
    alter_group_configs(operator, "g", {"share.delivery.count.limit": 3})
    operator.close()
    assert deleted
    assert all_group_names(private_database) == ["g"]


def test_deleted_topics_of_all_groups_are_removed_in_the_order_of_locks(private_database: Database) -> None:
    """All groups first, then all share-partitions by id: who has a later group locked and comes to the
    share-partitions meets nobody there."""
    state = State(private_database)
    for group in ("g1", "g0"):
        ensure_group(private_database, group)
        state.initialize(SharePartition(group, "t", 0), "id-t", 0, 1)
    state.administration.note_topics({"t": None})
    with ThreadPoolExecutor(1) as pool:
        with private_database.transaction() as holder:
            holder.execute(sa.text("select from sharequeue.share_groups where group_id = 'g1' for update"))
            removed = pool.submit(state.administration.remove_deleted_topics, timedelta(0), execute=True)
            wait_for_locks(private_database, 1)
            holder.execute(
                sa.text("select from sharequeue.share_partitions order by share_partition_id for update")
            )
        assert [each.group_id for each in removed.result(timeout=PATIENCE_S)] == ["g0", "g1"]
    assert deadlocks(private_database) == 0


def test_who_skips_locked_rows_keeps_the_order_of_locks(private_database: Database) -> None:
    """SKIP LOCKED waits where a later version of a row is locked. So sweeps and snapshots go by share-partition,
    though the second one's lock lapsed first, and its journal has grown more."""
    ensure_group(private_database, "g")
    state, journal = State(private_database), Journal(private_database)
    at = [SharePartition("g", "t", partition) for partition in range(2)]
    for each in at:
        state.initialize(each, "id-t", 0, 1)
        single.observe(state, each, "id-t", 0, 100, 100)
    for each, lock_ms in zip(at, (2000, 1000), strict=True):
        assert single.acquire(state, each, "m", None, 10, lock_duration_ms=lock_ms) is not None
    before = _last_of_journal(private_database)
    private_database.rows(sa.text("select sharequeue.set_clock_offset(interval '3 seconds')"))
    assert state.sweep().leases == 2
    assert _in_order(private_database, before) == [1, 2]
    for _ in range(5):
        lease = single.acquire(state, at[1], "m", None, 10)
        assert lease is not None
        single.release(state, lease)
    before = _last_of_journal(private_database)
    assert journal.keep(retention=timedelta(days=7), updates_per_snapshot=1).snapshots == 2
    assert _in_order(private_database, before) == [1, 2]


def _last_of_journal(database: Database) -> int:
    [row] = database.rows(sa.text("select max(journal_id) as last from sharequeue.journal"))
    return int(row["last"])


def _in_order(database: Database, after: int) -> list[int]:
    """Return the share-partitions, by number, in the order in which the journal met them."""
    rows = database.rows(
        sa.text(
            "select share_partition_id as id from sharequeue.journal where journal_id > :after"
            " group by 1 order by min(journal_id)"
        ),
        after=after,
    )
    return [row["id"] for row in rows]
