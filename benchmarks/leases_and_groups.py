"""The bytes that a lease writes, and the cost of queries about a whole group; for `docs/explanation/scaling.md`.

Measured are the bytes of write-ahead log and of journal of a lease, and of a million records, by their outcome, and
the queries of a run and of the service about a whole group, by its number of share-partitions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count

import sqlalchemy as sa

from benchmarks.database import connect, server, settle, share_partitions
from benchmarks.harness import Table, case, seconds
from sharequeue.database import Database
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import AcknowledgeType, Lease, LogSeen, SharePartition
from sharequeue.state import State
from sharequeue.state.calls import LeaseAcknowledgement, in_calls

LEASES = ((1_000, 1_000, 0), (100_000, 1_000, 0), (100_000, 100, 100), (1_000_000, 10, 100))
"""Records of a lease, number of leases, and n if every n-th record is released; 0 for none."""
GROUPS = (100, 1_000, 10_000)
CLEAR = "truncate sharequeue.share_partitions cascade"
WRITTEN = sa.text(
    "select pg_current_wal_insert_lsn() - '0/0' as wal, (select count(*) from sharequeue.journal) as rows,"
    " sum(pg_total_relation_size(c.oid)) as bytes from pg_class c join pg_namespace s on s.oid = c.relnamespace"
    " where s.nspname = 'sharequeue' and c.relkind = 'r' and c.relname like 'journal%'"
)
_topics = count()


def log(url: str, records: int, leases: int, released: int) -> tuple[str, ...]:
    """Return a row of the second table."""
    topic, held = f"log{next(_topics)}", list[Lease]()
    share_partitions(connect(url).cursor(), topic, records, leases)
    at = [SharePartition("bench", topic, number) for number in range(leases)]
    few = OffsetSet.from_offsets(range(0, records, released)) if released else OffsetSet.of()
    outcomes = {AcknowledgeType.ACCEPT: OffsetSet.of((0, records)) - few}
    if few:
        outcomes[AcknowledgeType.RELEASE] = few
    with Database(url) as database:
        state, (before,), began = State(database), database.rows(WRITTEN), time.perf_counter()
        for some in in_calls(at):
            held += state.acquire(some, "m", None, records * len(some), lock_duration_ms=60_000).leases
        assert len(held) == leases
        for part in in_calls(held):
            state.acknowledge([LeaseAcknowledgement(lease, outcomes) for lease in part])
        took, (after,) = time.perf_counter() - began, database.rows(WRITTEN)
    wal, rows, size = (float(after[name] - before[name]) / leases for name in ("wal", "rows", "bytes"))
    return (
        f"{leases:,} of {records:,}",
        f"1 in {released}" if released else "none",
        f"{took / leases * 1e6:,.0f}",
        f"{wal:,.0f}",
        f"{wal / records * 1e6:,.0f}",
        f"{rows:.1f}",
        f"{size:,.0f}",
    )


def whole_group(url: str, partitions: int) -> tuple[str, ...]:
    """Return a row of the third table; Postgres has statistics, as a minute after share-partitions were created."""
    cursor = connect(url).cursor()
    cursor.execute(CLEAR)
    share_partitions(cursor, "group", 1_000, partitions)
    settle(url)
    with Database(url) as database:
        state = State(database)
        seen, more = (
            [LogSeen(SharePartition("bench", "group", n), "id", 0, end, end) for n in range(partitions)]
            for end in (1_000, 1_001)
        )
        state.observe(seen)
        asked: list[Callable[[], object]] = [
            lambda: state.figures.describe("bench"),
            lambda: state.observe(seen),
            lambda: state.observe(more),
            state.sweep,
        ]
        return f"{partitions:,}", *(f"{seconds(call) * 1000:,.0f}" for call in asked)


@case("", "none: what docs/explanation/scaling.md computes with")
def leases_and_groups() -> Iterator[Table]:
    """Measure what leases write, and what is asked about a whole group."""
    with server() as url:
        log(url, 1_000, 200, 0)  # warms up
        headings = ["leases", "released", "µs a lease", "WAL B a lease", "WAL B a 10⁶ records"]
        headings += ["journal rows a lease", "journal B a lease"]
        yield Table(
            headings, [log(url, *kind) for kind in LEASES], "log and journal of a lease, acknowledged"
        )
        headings = ["share-partitions", "describe, ms", "observe idle, ms", "observe new, ms", "sweep, ms"]
        yield Table(headings, [whole_group(url, each) for each in GROUPS], "a whole group")
