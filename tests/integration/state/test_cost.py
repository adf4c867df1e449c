"""What an operation touches: rows read and written, counted by Postgres itself; never the clock.

How long it takes is the benchmarks' matter (docs/evidence/benchmarks.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.domain.values import SharePartition
from sharequeue.state import State
from tests import single

TABLES = "in_flight_batches", "leases"
AT = SharePartition("g", "t", 0)


@dataclass
class Touched:
    """Rows of in_flight_batches and leases that one transaction read, and that it wrote."""

    read: int = 0
    written: int = 0


@pytest.fixture
def state(private_database: Database) -> State:
    """A group with a window of any length, and a share-partition whose log never ends."""
    with private_database.transaction() as connection:
        connection.execute(sa.text("insert into sharequeue.share_groups (group_id) values ('g')"))
        connection.execute(
            sa.text(
                "insert into sharequeue.group_configs values ('g', 'share.partition.max.record.locks', '2147483647')"
            )
        )
    state = State(private_database)
    state.initialize(AT, "id", 0, 1)
    single.observe(state, AT, "id", 0, 10**12, 10**12)
    return state


@contextmanager
def touching(database: Database) -> Iterator[tuple[sa.Connection, Touched]]:
    """A transaction, and at its end what it touched."""
    touched = Touched()
    with database.transaction() as connection:
        before = _counted(connection)
        yield connection, touched
        after = _counted(connection)
        touched.read, touched.written = after[0] - before[0], after[1] - before[1]


def _counted(connection: sa.Connection) -> tuple[int, int]:
    # Of this session since it last handed its counts in, which may be before this transaction.
    row = connection.execute(
        sa.text(
            "select sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), sum(n_tup_ins + n_tup_upd + n_tup_del)"
            " from pg_stat_xact_user_tables where schemaname = 'sharequeue' and relname = any(:tables)"
        ),
        {"tables": list(TABLES)},
    ).one()
    return int(row[0]), int(row[1])


def call(connection: sa.Connection, query: str, **parameters: Any) -> sa.RowMapping | None:
    return connection.execute(sa.text(query), parameters).mappings().first()


def acquire(connection: sa.Connection, records: int, member: str = "m") -> tuple[str, int, int]:
    """Leases so many fresh records; token, first offset, and the one past the last."""
    row = call(
        connection,
        "select token::text as token, lower(offsets) as first, upper(offsets) as past"
        " from sharequeue.acquire('g', 't', 0, 1, :member, null, :records, 600000)",
        member=member,
        records=records,
    )
    assert row is not None
    return row["token"], row["first"], row["past"]


def accept(connection: sa.Connection, first: int, past: int) -> None:
    row = call(
        connection,
        "select error_code, error_message from sharequeue.acknowledge('g', 't', 0, 1, 'm', null, null, null,"
        " int8multirange(int8range(:first, :past)), '{}', '{}', '{}')",
        first=first,
        past=past,
    )
    assert row is not None
    assert row["error_code"] == 0, row


def settled(database: Database) -> None:
    """No dead rows, and statistics as they are."""
    engine = sa.create_engine(database.engine.url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql("vacuum analyze sharequeue.in_flight_batches, sharequeue.leases")
    engine.dispose()


def rows_in_flight(database: Database) -> int:
    return int(database.rows(sa.text("select count(*) as n from sharequeue.in_flight_batches"))[0]["n"])


def test_behind_a_pinned_head_a_call_reads_as_much_with_20_batches_in_flight_as_with_500(
    private_database: Database, state: State
) -> None:
    """Neither acquire nor acknowledge walks the window, though no two batches in it may merge (P6)."""
    reads = []
    for more in (20, 480):
        with private_database.transaction() as connection:
            for _ in range(more):
                acquire(connection, 500, "other")
        settled(private_database)
        with touching(private_database) as (connection, touched):
            _, first, past = acquire(connection, 500)
            accept(connection, first, past)
        reads.append(touched.read)
    assert reads[1] <= reads[0] + 2, reads


def test_what_is_acknowledged_behind_a_pinned_head_is_one_row(
    private_database: Database, state: State
) -> None:
    """Adjacent finished batches merge, acknowledged one by one or all at once: the head, and one row behind it."""
    with private_database.transaction() as connection:
        acquire(connection, 500, "head")
        held = [acquire(connection, 500) for _ in range(40)]
        for _, first, past in held[1:20:2] + held[:20:2]:
            accept(connection, first, past)
    assert rows_in_flight(private_database) == 22
    with private_database.transaction() as connection:
        accept(connection, held[20][1], held[-1][2])
    assert rows_in_flight(private_database) == 2
    assert not state.figures.verify("g")


def test_an_acknowledgement_writes_by_batches_not_by_runs(private_database: Database, state: State) -> None:
    """20,000 alternating runs over 20 batches write as many rows as 200 do: three a batch (P7)."""
    written = []
    for partition, runs in ((1, 200), (2, 20_000)):
        at = SharePartition("g", "t", partition)
        state.initialize(at, "id", 0, 1)
        single.observe(state, at, "id", 0, runs, runs)
        firsts = list(range(0, runs, runs // 20))
        with private_database.transaction() as connection:
            call(
                connection,
                "select from sharequeue.acquire('g', 't', :partition, 1, 'm', null, :runs, 600000, null, 'kafka',"
                " 'batch_optimized', 1, cast(:firsts as bigint[]), cast(:lasts as bigint[]))",
                partition=partition,
                runs=runs,
                firsts=firsts,
                lasts=[first + runs // 20 - 1 for first in firsts],
            )
        with touching(private_database) as (connection, touched):
            result = call(
                connection,
                "select error_code, accepted, released from sharequeue.acknowledge_batches('g', 't', :partition, 1,"
                " 'm', null, null, null, cast(:offsets as bigint[]), cast(:offsets as bigint[]),"
                " cast(:types as smallint[]))",
                partition=partition,
                offsets=list(range(runs)),
                types=[1, 2] * (runs // 2),
            )
            assert result is not None
            assert dict(result) == {"error_code": 0, "accepted": runs // 2, "released": runs // 2}
        written.append(touched.written)
    # A batch's row goes, two come; and the lease goes.
    assert written == [20 * 3 + 1] * 2
    assert not state.figures.verify("g")


def test_a_sweep_reads_and_writes_by_its_limit(private_database: Database, state: State) -> None:
    """50 of 100 lapsed leases, and 50 of 1,000: two rows written a lease, and no more read (bounded work a call)."""
    read = []
    for more in (100, 950):
        with private_database.transaction() as connection:
            for _ in range(more):
                acquire(connection, 500)
        with private_database.transaction() as connection:
            connection.execute(
                sa.text("select sharequeue.set_clock_offset(:time)"), {"time": timedelta(minutes=more)}
            )
        settled(private_database)
        with touching(private_database) as (connection, touched):
            swept = call(connection, "select * from sharequeue.sweep(50)")
            assert swept is not None
            assert dict(swept) == {"leases": 50, "records": 25_000, "stuck": {}}
        assert touched.written == 100
        read.append(touched.read)
    assert read[1] <= 2 * read[0], read
    with touching(private_database) as (connection, touched):
        acquire(connection, 1)
    # The 950 batches still lapsed and their leases, one record split off, one lease: an operation settles all.
    assert touched.written <= 2 * 950 + 4, touched
    assert not state.figures.verify("g")
