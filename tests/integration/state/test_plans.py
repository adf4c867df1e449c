"""The plans of the hot statements: what an operation reads does not grow with what there is.

With 10,000 share-partitions, 99,000 rows in flight, 70,000 leases, 100,000 rows of kept records, 100,000 remembered
answers and 100,000 open records whose keys are known, Postgres counts what each operation read: no table from end to
end, and only a bounded number of rows by index. Counted (pg_stat_xact_*), not explained: that is what was executed,
in every nested function, with the plans of the first calls and with the generic ones that PL/pgSQL goes over to after
five.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from uuid import UUID

import pytest
import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.database.migrations import migrate
from sharequeue.database.pool import Joined
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.record_bytes import key_hash
from sharequeue.domain.values import Acknowledged, AcknowledgeType, KeptRecords, SharePartition
from sharequeue.local.stack import StackInfo
from sharequeue.state import State
from sharequeue.state.calls import LeaseAcknowledgement
from tests import single

CALLS = 8
"""More than the five after which PL/pgSQL may take the generic plan."""

OF_ONE_ROW = {
    "clock_offset",
    "service_beat",
    "service_run",
    "journal_counted",
    "authorizer",
    "state_identity",
}
"""Tables that hold one row or none: read whole, on one page."""

# Ten batches of a hundred records each: 0 leased (the head), 1 acknowledged, 2 available again, 3 archiving, 4 to 9
# leased, each by a member of its own.
LOAD = """
insert into sharequeue.share_groups (group_id) select 'group-' || g from generate_series(0, 999) g;
insert into sharequeue.group_configs select 'group-' || g, 'errors.deadletterqueue.topic.name', 'dlq.letters'
from generate_series(0, 999) g;
select sharequeue.set_service_configs('{"group.share.max.record.lock.duration.ms": "3600000"}');
insert into sharequeue.share_partitions (group_id, topic, partition, topic_id, state_epoch, spso, speo, log_end,
    last_stable_offset, delivery_complete_count, redeliverable, next_expiry)
select 'group-' || i / 10, 'topic', mod(i, 10), 'id', 1, 0, 1000, 1000000, 1000000, 100, true,
    clock_timestamp() + interval '1 hour'
from generate_series(0, 9999) i;
insert into sharequeue.observations (group_id, topic, observed_at)
select 'group-' || g, 'topic', clock_timestamp() from generate_series(0, 999) g;
insert into sharequeue.leases (lease_id, share_partition_id, member_id, member_epoch, token, lock_duration_ms,
    acquired_at, locked_at, expires_at, fan_out)
select nextval('sharequeue.leases_lease_id_seq'), share_partition_id, 'member-' || b, -1,
    cast(md5(group_id || partition || '/' || b) as uuid), 3600000, clock_timestamp(), clock_timestamp(),
    clock_timestamp() + interval '1 hour', false
from sharequeue.share_partitions, unnest(array[0, 4, 5, 6, 7, 8, 9]) b;
insert into sharequeue.in_flight_batches (share_partition_id, first_offset, last_offset, state, delivery_count,
    lease_id, cause)
select sp.share_partition_id, b * 100, b * 100 + 99, case b when 1 then 2 when 2 then 0 when 3 then 3 else 1 end, 1,
    l.lease_id, case b when 3 then 'rejected' end
from sharequeue.share_partitions sp cross join generate_series(0, 9) b
left join sharequeue.leases l on l.share_partition_id = sp.share_partition_id and l.member_id = 'member-' || b
    and b not in (1, 2, 3);
insert into sharequeue.dead_letter_batches (share_partition_id, sequence, opened_at, written_at)
select share_partition_id, s - 10, clock_timestamp(), clock_timestamp()
from sharequeue.share_partitions, generate_series(1, 5) s;
insert into sharequeue.dead_letter_runs (share_partition_id, sequence, cause, delivery_count, offsets)
select share_partition_id, sequence, 'rejected', 1, '{[0,1)}' from sharequeue.dead_letter_batches;
insert into sharequeue.failed_attempts (share_partition_id, lease_id, member_id, client_id, acquired_at, past,
    offsets)
select share_partition_id, -share_partition_id, 'member-3', '', clock_timestamp(), 400, '{[300,400)}'
from sharequeue.share_partitions;
insert into sharequeue.lease_outputs (lease_id, sink, group_id, topic, partition, topic_id, location, records,
    acknowledged_at)
select -share_partition_id, 'sink-exceptions', group_id, topic, partition, 'id', '/exceptions', 1, clock_timestamp()
from sharequeue.share_partitions;
insert into sharequeue.group_configs select 'group-' || g, c.name, c.value
from generate_series(950, 999) g,
    (values ('sharequeue.order', 'key'), ('sharequeue.order.on.dead.letter', 'hold')) as c (name, value);
create temporary table ordered on commit drop as
select share_partition_id from sharequeue.share_partitions where cast(substr(group_id, 7) as integer) >= 950;
alter table sharequeue.open_key_records disable trigger user;
insert into sharequeue.open_key_records (share_partition_id, "offset", key_hash, since, archiving)
select share_partition_id, 200 + k, cast(md5('k') as uuid), clock_timestamp(), k >= 100
from ordered, generate_series(0, 199) k;
alter table sharequeue.open_key_records enable trigger user;
delete from sharequeue.leases where share_partition_id in (table ordered);
delete from sharequeue.in_flight_batches where share_partition_id in (table ordered) and first_offset < 200;
update sharequeue.in_flight_batches set state = 2, lease_id = null
where share_partition_id in (table ordered) and state = 1;
update sharequeue.share_partitions set spso = 200, delivery_complete_count = 600, next_expiry = null, open_keys = 1,
    open_key_records = 200, keys_unknown = false
where share_partition_id in (table ordered);
insert into sharequeue.kept_records (lease_id, share_partition_id, read_committed, location, first_offset, past,
    offsets, kept_at)
select -10 * share_partition_id - k, share_partition_id, false, '/kept', 200 + 10 * k, 205 + 10 * k,
    int8multirange(int8range(200 + 10 * k, 205 + 10 * k)), clock_timestamp()
from sharequeue.share_partitions, generate_series(0, 9) k;
insert into sharequeue.requests (request_key, operation, result, finished_at)
select gen_random_uuid(), 'acquire', '[]', clock_timestamp() - interval '1 minute' + i * interval '1 microsecond'
from generate_series(1, 100000) i;
"""

LAPSE = """
update sharequeue.leases set expires_at = clock_timestamp() - interval '1 minute' where share_partition_id in (
    select share_partition_id from sharequeue.share_partitions where group_id in ('group-8', 'group-18'));
update sharequeue.share_partitions set next_expiry = clock_timestamp() - interval '1 minute'
where group_id in ('group-8', 'group-18')
"""
FIND = "'group-7', 'topic', :n, 1, 'member-0', null"
OPERATIONS = {
    "acquire": "acquire(" + FIND + ", 10, null, gen_random_uuid(), 'kafka')",
    "acquire fan_out": "acquire(" + FIND + ", 10, null, gen_random_uuid(), 'fan_out')",
    "acknowledge": "acknowledge(" + FIND + ", null, gen_random_uuid(), '{[0,50)}', '{[50,60)}', '{[60,70)}',"
    " '{[70,100)}')",
    "acknowledge_batches": "acknowledge_batches(" + FIND + ", null, gen_random_uuid(), '{0}', '{99}', '{1}')",
    "renew": "renew(" + FIND + ", cast(md5('group-7' || :n || '/0') as uuid))",
    "open_dead_letters": "open_dead_letters('group-7', 'topic', :n, 100)",
    "close_dead_letters": "close_dead_letters('group-7', 'topic', :n, 1)",
    "observe": "observe('group-7', 'topic', :n, 'id', 0, 1000000, 1000000)",
    "sweep with nothing due": "sweep(100)",
}
"""How each is called; n is another share-partition each time, and member-0 holds its head."""


@pytest.fixture(scope="module", params=["analyzed", "never analyzed"])
def loaded(request: pytest.FixtureRequest, stack: StackInfo) -> Iterator[Database]:
    """Give a database with all that in it, with statistics and without."""
    name = f"plans_{request.param.replace(' ', '_')}"
    engine = sa.create_engine(stack.database_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"create database {name}")
    url = sa.make_url(stack.database_url).set(database=name)
    opened = Database(url.render_as_string(hide_password=False), pool_size=1)
    try:
        migrate(opened)
        with opened.transaction() as connection:
            for table in ("share_partitions", "in_flight_batches", "leases", "requests", "open_key_records"):
                connection.exec_driver_sql(f"alter table sharequeue.{table} set (autovacuum_enabled = false)")
            connection.exec_driver_sql(LOAD)
            if request.param == "analyzed":
                connection.exec_driver_sql("analyze")
        assert (
            opened.rows(sa.text("select count(*) as n from sharequeue.in_flight_batches"))[0]["n"] == 99_000
        )
        yield opened
    finally:
        opened.close()
        with engine.connect() as connection:
            connection.exec_driver_sql(f"drop database {name} with (force)")
        engine.dispose()


@contextmanager
def _bounded(connection: sa.Connection, calls: int, most: int, only: str = "") -> Iterator[None]:
    """What the block does reads no table from end to end, and a call at most so many rows of any by index; then it
    is undone. With one table only, that is counted, and nothing is undone."""
    savepoint = connection.begin_nested()
    before = _read(connection)
    yield
    after = _read(connection)
    if only:
        savepoint.commit()
    else:
        savepoint.rollback()
    read = {
        name: tuple(now - then for now, then in zip(counts, before.get(name, (0, 0)), strict=True))
        for name, counts in after.items()
        if only in ("", name)
    }
    scanned = {name: scans for name, (scans, _) in read.items() if scans and name not in OF_ONE_ROW}
    assert scanned == {}, f"read from end to end: {scanned}"
    fetched = {name: rows / calls for name, (_, rows) in read.items() if rows / calls > most}
    assert fetched == {}, f"rows by index, per call: {fetched}"


def _read(connection: sa.Connection) -> dict[str, tuple[int, int]]:
    """By table: scans from end to end, and rows fetched by index, of this session so far."""
    rows = connection.exec_driver_sql(
        "select relname, seq_scan, coalesce(idx_tup_fetch, 0) from pg_stat_xact_user_tables"
        " where schemaname = 'sharequeue'"
    )
    return {name: (scans, fetched) for name, scans, fetched in rows}


def _call(connection: sa.Connection, name: str, number: int) -> list[dict[str, object]]:
    query = sa.text(f"select * from sharequeue.{OPERATIONS[name]}")  # noqa: S608 - one of those above
    bound = {"n": number} if ":n" in OPERATIONS[name] else {}
    return [dict(row) for row in connection.execute(query, bound).mappings()]


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_reads_its_own_share_partition(loaded: Database, name: str) -> None:
    """No table from end to end and at most 120 rows of any by index, on each of eight share-partitions in turn."""
    with loaded.transaction() as connection, _bounded(connection, CALLS, 120):
        for number in range(CALLS):
            if name == "close_dead_letters":
                _call(connection, "open_dead_letters", number)
            rows = _call(connection, name, number)
            assert rows
            assert not any(rows[0].get(code) for code in ("error_code", "acknowledge_error_code")), rows[0]


def test_lapsed_locks_are_settled_without_reading_the_others(loaded: Database) -> None:
    """A sweep of the seven leases of one share-partition, and an operation that finds its own locks lapsed, read what
    these hold."""
    acquire = sa.text(
        "select offsets from sharequeue.acquire('group-18', 'topic', :n, 1, 'other', null, 10, null, null, 'kafka')"
    )
    with loaded.transaction() as connection:
        connection.exec_driver_sql(LAPSE)
        with _bounded(connection, 2 * CALLS, 300):
            for number in range(CALLS):
                swept = connection.exec_driver_sql("select leases, records from sharequeue.sweep(7)").one()
                assert tuple(swept) == (7, 700)
                assert connection.execute(acquire, {"n": number}).all()
        connection.rollback()


def test_release_reads_what_the_member_holds(loaded: Database) -> None:
    """Of a group of ten share-partitions with seventy leases: those of one member, and the group's own rows."""
    with loaded.transaction() as connection, _bounded(connection, 5, 10 * 40):
        for number in range(4, 9):
            released = connection.exec_driver_sql(f"select sharequeue.release('group-9', 'member-{number}')")
            assert released.scalar() == 1000


def test_order_by_key_reads_the_open_keys_of_its_share_partition(loaded: Database) -> None:
    """Of 100,000 rows each operation reads those of one share-partition, 200 of one key, three times at most, and who
    looks at a group those of the group, 2,000."""
    accept, release, reject = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
    released, rejected, held = OffsetSet.of((200, 210)), OffsetSet.of((210, 220)), OffsetSet.of((220, 300))
    with loaded.transaction() as connection:
        state = State(Joined(connection))

        @contextmanager
        def few(most: int = 3 * 200) -> Iterator[None]:
            with _bounded(connection, 1, most, "open_key_records"):
                yield

        for number in range(CALLS):
            at = SharePartition("group-957", "topic", number)
            with _bounded(connection, 1, 3 * 200):
                assert single.acquire(state, at, "m", None, 300, leave_out=OffsetSet.of((200, 300)))
            with few():
                lease = single.acquire(state, at, "m", None, 300)
            assert lease is not None
            assert lease.offsets == OffsetSet.of((200, 300), (1000, 1200))
            with few():
                assert len(state.blocked_keys(at.group_id, [lease.token])[lease.token].hashes) == 1
            with few():
                (result,) = state.acknowledge(
                    [
                        LeaseAcknowledgement(
                            lease,
                            {accept: OffsetSet.of((1000, 1200)), release: released, reject: rejected},
                            not_before=state.now() + timedelta(hours=1),
                            holds=held,
                            keys=_keys(200, 300),
                        )
                    ]
                )
            assert isinstance(result, Acknowledged)
            with few():
                batch = state.dead_letters.open(at, 50)
            assert batch is not None
            with few():
                assert state.dead_letters.close(batch, keys=_keys(210, 220)) == 50
            with few():
                letters = state.dead_letters.holding()
            with few():
                would = state.dead_letters.close_letters(letters, execute=False)
            with few():
                assert state.dead_letters.close_letters(letters) == would
            with few():
                assert state.figures.one(at) is not None
            with few(3 * 2_000):
                assert len(state.figures.open_keys(at.group_id, 20)) == 10
            with few():
                single.observe(state, at, "id", 205, 2_000_000, 2_000_000)
            with few():
                state.administration.force_release(at, OffsetSet.of((205, 208)), execute=True)
            with few():
                again = single.acquire(state, at, "m", None, 300)
            assert again is not None
            with few():
                state.release([again])
        connection.rollback()


def test_what_is_kept_is_found_without_reading_what_others_have_kept(loaded: Database) -> None:
    """Of 100,000 rows: those of the share-partition, ten, and for the sweep those of the group, a hundred."""
    with loaded.transaction() as connection:
        state = State(Joined(connection))
        for number in range(CALLS):
            at = SharePartition("group-11", "topic", number)
            head = single.acquire(state, at, "m", None, 50, leave_out=OffsetSet.of((200, 300)))
            lease = single.acquire(state, at, "m", None, 100)
            assert head is not None
            assert lease is not None
            assert lease.offsets == OffsetSet.of((200, 300))
            with _bounded(connection, 1, 5):
                assert state.kept.of([head]) == {}
            with _bounded(connection, 1, 30):
                assert len(state.kept.of([lease])[lease.lease_id]) == 10
            given = LeaseAcknowledgement(
                lease,
                {
                    AcknowledgeType.RELEASE: OffsetSet.of((200, 210)),
                    AcknowledgeType.ACCEPT: OffsetSet.of((210, 300)),
                },
                kept=KeptRecords("/kept", OffsetSet.of((200, 210))),
            )
            with _bounded(connection, 1, 60, "kept_records"):
                (result,) = state.acknowledge([given])
            assert isinstance(result, Acknowledged)
            with _bounded(connection, 1, 4 * 100):
                removable = state.kept.removable(at.group_id)
            assert len(removable) == 10 * (number + 1)
            with _bounded(connection, 1, 30):
                assert state.kept.drop(at.group_id, [row.lease_id for row in removable[:10]]) == 10
        connection.rollback()


def test_what_is_done_to_the_first_and_to_a_fresh_record_reads_no_open_key_between(loaded: Database) -> None:
    """Of 200 open records the first is accepted, with a fresh one, and another two are held: few rows are read."""
    with loaded.transaction() as connection:
        state = State(Joined(connection))
        for number in range(CALLS):
            lease = single.acquire(state, SharePartition("group-958", "topic", number), "m", None, 300)
            assert lease is not None
            assert lease.offsets == OffsetSet.of((200, 300), (1000, 1200))
            held = OffsetSet.of((201, 202), (1001, 1002))
            given = LeaseAcknowledgement(
                lease,
                {AcknowledgeType.ACCEPT: OffsetSet.of((200, 201), (1000, 1001))},
                holds=held,
                keys={key_hash(b"k"): held},
            )
            with _bounded(connection, 1, 20, "open_key_records"):
                (result,) = state.acknowledge([given])
            assert isinstance(result, Acknowledged)
        connection.rollback()


def _keys(first: int, end: int) -> dict[UUID | None, OffsetSet]:
    """Return offsets by their key, the one that all rows above have."""
    return {key_hash(b"k"): OffsetSet.of((first, end))}
