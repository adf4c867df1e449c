"""What the operations read of the open keys of one large share-partition: by index, and in proportion to its size.

The same work at a size and at ten times that size, in transactions that are taken back: Postgres counts the rows of
``open_key_records`` that each operation read (pg_stat_xact_*), in every nested function.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

import pytest
import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.database.pool import Joined
from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.domain.record_bytes import key_hash
from sharequeue.domain.values import Acknowledged, AcknowledgeType, Lease, SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.groups.heartbeats import ensure_group
from sharequeue.state import State
from sharequeue.state.calls import LeaseAcknowledgement
from tests import single

RECORDS = int(os.environ.get("SHAREQUEUE_TEST_RECORDS", "100000"))
A_LEASE = 1_000
HOUR = timedelta(hours=1)
AT = SharePartition("ordered", "topic", 0)
ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
CONFIGS: dict[str, str | int | bool | None] = {
    "sharequeue.order": "key",
    "sharequeue.order.on.dead.letter": "hold",
    "sharequeue.order.max.open.keys": 10_000_000,
    "errors.deadletterqueue.topic.name": "dlq.letters",
    "share.partition.max.record.locks": 10_000_000,
    "share.delivery.count.limit": 10,
}
OTHERS = """
with off as (select set_config('session_replication_role', 'replica', true) as role)
insert into sharequeue.open_key_records (share_partition_id, "offset", key_hash, since)
select -1 - mod(k, 100), k, gen_random_uuid(), clock_timestamp()
from off, generate_series(1, cast(:records as bigint)) k
on conflict do nothing returning 1
"""
"""Nine times as many rows, of other share-partitions."""
MOST_ROWS = 12
"""How often each open key may be read in an operation on all of them."""

SHAPES: Mapping[str, Callable[[int], int]] = {
    "a key each": lambda offset: offset,
    "ten a key": lambda offset: offset // 10_000 * 1_000 + offset % 1_000,
    "one hot key": lambda offset: 0,
}
"""The number of the key of each offset."""


@dataclass
class Ordered:
    """A share-partition with so many open records, in a transaction that is taken back."""

    connection: sa.Connection
    state: State
    records: int
    number: Callable[[int], int]
    hashes: dict[int, UUID] = field(default_factory=dict)

    def key(self, offset: int) -> UUID:
        """Return the hash of the key of an offset."""
        number = self.number(offset)
        if number not in self.hashes:
            self.hashes[number] = key_hash(str(number).encode())
        return self.hashes[number]

    def keys(self, offsets: OffsetSet) -> dict[UUID | None, OffsetSet]:
        """Return these offsets by the hash of their key."""
        found: dict[UUID | None, list[int]] = {}
        for offset in offsets.iter_offsets():
            found.setdefault(self.key(offset), []).append(offset)
        return {key: OffsetSet.from_offsets(some) for key, some in found.items()}

    def take(self, most: int | None = None, leave_out: OffsetSet = EMPTY) -> Lease:
        """Lease, by default all that is open."""
        lease = single.acquire(self.state, AT, "m", None, most or self.records, leave_out=leave_out)
        assert lease is not None
        return lease

    def end(
        self,
        lease: Lease,
        outcomes: Mapping[AcknowledgeType, OffsetSet],
        holds: OffsetSet = EMPTY,
        wait: timedelta | None = HOUR,
    ) -> None:
        """Acknowledge with the keys of what is not accepted."""
        named = holds
        for kind, offsets in outcomes.items():
            named |= EMPTY if kind is ACCEPT else offsets
        not_before = None if wait is None else self.state.now() + wait
        given = LeaseAcknowledgement(
            lease, outcomes, not_before=not_before, holds=holds, keys=self.keys(named)
        )
        (result,) = self.state.acknowledge([given])
        assert isinstance(result, Acknowledged), result

    def pass_time(self, much: timedelta = 2 * HOUR) -> None:
        """Move the clock on."""
        self.rows(
            "select sharequeue.set_clock_offset("
            " coalesce((select amount from sharequeue.clock_offset), '0') + :much)",
            much=much,
        )

    def config(self, name: str, value: str) -> None:
        """Change a config of the group."""
        self.rows(
            "update sharequeue.group_configs set value = :value where name = :name returning 1",
            name=name,
            value=value,
        )

    def rows(self, statement: str, **values: object) -> list[dict[str, object]]:
        """Execute a statement to its end."""
        return [dict(row) for row in self.connection.execute(sa.text(statement), values).mappings()]

    def open(self) -> int:
        """Count the open records."""
        (row,) = self.rows("select open_key_records as n from sharequeue.share_partitions")
        return int(str(row["n"]))


def fill(ordered: Ordered) -> None:
    """Release the first record of every key for an hour, and hold the others."""
    first: set[UUID] = set()
    while ordered.open() < ordered.records:
        lease = ordered.take(min(A_LEASE, ordered.records - ordered.open()))
        released = []
        for offset in lease.offsets.iter_offsets():
            if ordered.key(offset) not in first:
                first.add(ordered.key(offset))
                released.append(offset)
        chosen = OffsetSet.from_offsets(released)
        ordered.end(lease, {RELEASE: chosen}, lease.offsets - chosen)


# Each prepares without being counted, and returns what is.
Counted = Callable[[], object]


def small_lease(o: Ordered) -> Counted:
    def counted() -> None:
        lease = o.take(100)
        assert lease.offsets.first == o.records
        hashes = [key_hash(b"another"), key_hash(b"one more")]
        o.state.blocked_keys(AT.group_id, [lease.token], hashes)
        o.end(lease, {ACCEPT: lease.offsets})

    return counted


def head_and_tail(o: Ordered) -> Counted:
    o.state.administration.force_release(AT, OffsetSet.of((0, 1)), execute=True)
    o.rows("update sharequeue.share_partitions set keys_unknown = false returning 1")

    def counted() -> None:
        lease = o.take(100)
        assert lease.offsets.first == 0
        assert lease.offsets.end >= o.records or o.number(1) == 0
        o.end(lease, {ACCEPT: lease.offsets})

    return counted


def blocked(o: Ordered) -> Counted:
    lease = o.take(100)
    return lambda: o.state.blocked_keys(AT.group_id, [lease.token])


def leave_all_out(o: Ordered) -> Counted:
    o.pass_time()
    return lambda: o.take(100, OffsetSet.of((0, o.records)))


def unknown(o: Ordered) -> Counted:
    o.rows("update sharequeue.share_partitions set keys_unknown = true returning 1")
    return lambda: o.take(100)


def accept_all(o: Ordered) -> Counted:
    o.pass_time()

    def counted() -> None:
        for _ in range(2):  # what is held behind the first records of the keys comes after them
            if o.open():
                lease = o.take()
                o.state.blocked_keys(AT.group_id, [lease.token])
                o.end(lease, {ACCEPT: lease.offsets})
        assert o.open() == 0

    return counted


def leased(o: Ordered) -> Lease:
    """Lease all that is open; what is held, after the first records of its keys were accepted."""
    o.pass_time()
    lease = o.take()
    if (lease.offsets & OffsetSet.of((0, o.records))).count < o.records:
        o.end(lease, {ACCEPT: lease.offsets})
        lease = o.take()
    return lease


def release_all(o: Ordered) -> Counted:
    lease = leased(o)
    return lambda: o.end(lease, {RELEASE: lease.offsets})


def hold_all_but_first(o: Ordered) -> Counted:
    lease = leased(o)
    first: dict[UUID, int] = {}
    for offset in lease.offsets.iter_offsets():
        first.setdefault(o.key(offset), offset)
    chosen = OffsetSet.from_offsets(sorted(first.values()))
    return lambda: o.end(lease, {RELEASE: chosen}, lease.offsets - chosen)


def lapse(o: Ordered) -> Counted:
    leased(o)
    o.pass_time()
    return lambda: o.rows("select * from sharequeue.sweep(100)")


def give_back(o: Ordered) -> Counted:
    lease = leased(o)
    return lambda: o.state.release([lease])


def rejected_half(o: Ordered) -> OffsetSet:
    lease = leased(o)
    half = lease.offsets & OffsetSet.of((0, o.records // 2))
    o.end(lease, {REJECT: half}, lease.offsets - half)
    return half


def reject_half(o: Ordered) -> Counted:
    lease = leased(o)
    half = lease.offsets & OffsetSet.of((0, o.records // 2))
    return lambda: o.end(lease, {REJECT: half}, lease.offsets - half)


def written_half(o: Ordered) -> None:
    half = rejected_half(o)
    batch = o.state.dead_letters.open(AT, o.records)
    assert batch is not None
    assert o.state.dead_letters.close(batch) == half.count


def close_batch(o: Ordered) -> Counted:
    rejected_half(o)

    def counted() -> None:
        batch = o.state.dead_letters.open(AT, o.records)
        assert batch is not None
        o.state.dead_letters.close(batch)

    return counted


def drop_batch(o: Ordered) -> Counted:
    rejected_half(o)
    batch = o.state.dead_letters.open(AT, o.records)
    assert batch is not None
    return lambda: o.state.dead_letters.close(batch, dropped=True)


def letters_dry(o: Ordered) -> Counted:
    written_half(o)
    holding = o.state.dead_letters.holding()
    return lambda: o.state.dead_letters.close_letters(holding, execute=False)


def letters_go(o: Ordered) -> Counted:
    written_half(o)
    holding = o.state.dead_letters.holding()
    return lambda: o.state.dead_letters.close_letters(holding)


def letters_continue(o: Ordered) -> Counted:
    written_half(o)
    o.config("sharequeue.order.on.dead.letter", "continue")
    return lambda: o.take(100)


def log_start(o: Ordered) -> Counted:
    return lambda: single.observe(o.state, AT, "id", o.records // 2, 2 * o.records, 2 * o.records)


def forced_release(o: Ordered) -> Counted:
    return lambda: o.state.administration.force_release(AT, OffsetSet.of((0, o.records)), execute=True)


def forced_letters(o: Ordered) -> Counted:
    half = OffsetSet.of((0, o.records // 2))
    return lambda: o.state.administration.force_dead_letter(AT, half, execute=True)


def off(o: Ordered) -> Counted:
    o.config("sharequeue.order", "none")
    return lambda: o.take(100)


def reset(o: Ordered) -> Counted:
    return lambda: single.alter_offsets(o.state, AT, "id", 0)


def delete_group(o: Ordered) -> Counted:
    return lambda: o.state.administration.delete_group(AT.group_id)


def reads(o: Ordered) -> Counted:
    return lambda: [
        o.rows(f"select * from sharequeue.{name}")  # noqa: S608 - names of this file
        for name in (
            "share_partition_status",
            "group_figures",
            "monitored_share_partitions",
            "holding_letters",
        )
    ]


def listed(o: Ordered) -> Counted:
    return lambda: o.state.figures.open_keys(AT.group_id, 20)


def verify(o: Ordered) -> Counted:
    return lambda: o.rows("select * from sharequeue.verify()")


def verify_with_letters(o: Ordered) -> Counted:
    written_half(o)
    return lambda: o.rows("select * from sharequeue.verify()")


def replay(o: Ordered) -> Counted:
    return lambda: o.rows("select * from sharequeue.verify_journal()")


def snapshot(o: Ordered) -> Counted:
    return lambda: o.rows(
        "select sharequeue.take_snapshot(share_partition_id) from sharequeue.share_partitions"
    )


CASES: tuple[Callable[[Ordered], Counted], ...] = (
    small_lease, head_and_tail, blocked, leave_all_out, unknown, accept_all, release_all, hold_all_but_first, lapse,
    give_back, reject_half, close_batch, drop_batch, letters_dry, letters_go, letters_continue, log_start,
    forced_release, forced_letters, off, reset, delete_group, reads, listed, verify, verify_with_letters, replay,
    snapshot,
)  # fmt: skip
CHECKS = {verify, verify_with_letters, replay, reads}
"""What may look at all share-partitions."""
FEW = {small_lease, head_and_tail}
"""What has to do with a hundred records only."""


@pytest.mark.timeout(0)
@pytest.mark.parametrize("shape", SHAPES)
def test_open_keys_are_read_in_proportion(private_database: Database, told: list[str], shape: str) -> None:
    """No operation reads the table from end to end, or a row of it more than twelve times."""
    lines, faults = in_proportion(private_database, shape)
    told += lines
    assert faults == []


def in_proportion(private_database: Database, shape: str) -> tuple[list[str], list[str]]:
    """Do every case at both sizes; return what it read, and what is wrong."""
    ensure_group(private_database, AT.group_id)
    alter_group_configs(private_database, AT.group_id, CONFIGS)
    state = State(private_database)
    state.initialize(AT, "id", 0, 1)
    found: dict[str, list[str]] = {}
    faults: list[str] = []
    for records in (RECORDS // 10, RECORDS):
        single.observe(state, AT, "id", 0, 2 * records, 2 * records)
        with state.transaction() as (connection, inside):
            o = Ordered(connection, inside, records, SHAPES[shape])
            began = time.monotonic()
            fill(o)
            o.rows(OTHERS, records=9 * records)
            print(f"{shape}, {records:,} filled in {time.monotonic() - began:.1f} s", flush=True)
        for case in CASES:
            vacuum(private_database)
            line, fault = measured(private_database, records, SHAPES[shape], case)
            found.setdefault(case.__name__, []).append(line)
            print(f"{shape} {records:,} {case.__name__}: {line}", flush=True)
            faults += [f"{shape}, {records}, {case.__name__}: {fault}"] if fault else []
    return [f"| {shape} | {name} | {' | '.join(lines)} |" for name, lines in found.items()], faults


def vacuum(database: Database) -> None:
    """Remove what transactions that were taken back have left, and analyze."""
    engine = sa.create_engine(database.engine.url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql("vacuum analyze sharequeue.open_key_records, sharequeue.in_flight_batches")
    engine.dispose()


def measured(
    database: Database, records: int, number: Callable[[int], int], case: Callable[[Ordered], Counted]
) -> tuple[str, str]:
    """Do a case; return what it read and how long it took, and what is wrong."""
    with database.engine.connect() as connection:
        o = Ordered(connection, State(Joined(connection)), records, number)
        counted = case(o)
        before, began = _read(connection), time.monotonic()
        counted()
        seconds = time.monotonic() - began
        scans, rows = (now - then for now, then in zip(_read(connection), before, strict=True))
        connection.rollback()
    most = 1_000 if case in FEW else MOST_ROWS * records + 1_000
    whole = scans if case not in CHECKS and records == RECORDS else 0  # the smaller table has few pages
    fault = f"{whole} scans from end to end" if whole else f"{rows} rows read" if rows > most else ""
    return f"{rows:,} | {seconds:.2f}", fault


def _read(connection: sa.Connection) -> tuple[int, int]:
    """Scans of the table from end to end, and rows of it that were read by index, of this transaction so far."""
    row = connection.exec_driver_sql(
        "select pg_stat_get_xact_numscans(t), pg_stat_get_xact_tuples_fetched(t)"
        " from (select cast('sharequeue.open_key_records' as regclass) as t) as t"
    ).one()
    return int(row[0]), int(row[1])
