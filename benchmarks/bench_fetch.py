"""P4: how close does acknowledge_and_acquire, all rules and journal in, come to a bare prototype?

All sides in the same Postgres, one connection each, 500 records a batch, every commit flushed. Ours: fencing,
lapsed locks, request ids, SPSO, in-flight bound, journal, one call and one commit a batch. The peers: the
prototype in ``benchmarks/bare_fetch.sql``, and two queues with a row per record: that of ``bench_state.py``, which
forgets a record when it hands it out, and one that keeps it leased until it is acknowledged. Each side as a
plain query and, where a session may keep one, as a prepared statement. Sides alternate in short slices, so that
whatever else the machine does falls on all of them; the first slices warm up, medians are compared. Beside
the wall clock stands the processor time of the server's process: on a busy machine the one figure that holds still.

    .venv/bin/python benchmarks/bench_fetch.py [--slices 60] [--calls 100] [--database URL]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg2
import sqlalchemy as sa
from psycopg2 import sql
from rich.console import Console
from rich.table import Table

from sharequeue.database import Database
from sharequeue.database.migrations import migrate
from sharequeue.local.stack import down, up
from sharequeue.settings import Settings
from sharequeue.state import State
from sharequeue.values import SharePartition

BATCH = 500
WARM_UP = 3

Step = Callable[[], None]

FETCH = (
    "select token::text, lower(offsets), upper(offsets) - 1 from sharequeue.acknowledge_and_acquire("
    "'bench', %s, 0, 1, 'member', null, %s, %s, %s, %s, '{1}', %s, 'kafka')"
)
PREPARE_FETCH = (
    "prepare next_batch (text, text, integer, integer, text, integer, uuid, uuid, bigint[], bigint[], smallint[],"
    " bigint, text) as select token, lower(offsets), upper(offsets) - 1"
    " from sharequeue.acknowledge_and_acquire($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)"
)
PREPARED_FETCH = (
    "execute next_batch ('bench', %s, 0, 1, 'member', null, %s, %s, '{%s}', '{%s}', '{1}', %s, 'kafka')"
)


class Connection:
    """One connection and the processor time its server process has used."""

    def __init__(self, url: str) -> None:
        parts = sa.make_url(url)
        self.raw = psycopg2.connect(
            host=parts.host,
            port=parts.port,
            user=parts.username,
            password=parts.password,
            dbname=parts.database,
        )
        self.raw.autocommit = True
        self.cursor: Any = self.raw.cursor()
        self.pid = self.raw.get_backend_pid()

    def processor_us(self) -> float:
        """Microseconds of processor time so far; 0 where the system does not tell."""
        with suppress(OSError):
            return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[0]) / 1000
        return 0.0


def ours(connection: Connection, topic: str, *, prepared: bool, remembered: bool) -> Step:
    """One acknowledgement of a batch and the acquire of the next; with a request id where it is to be remembered."""
    cursor = connection.cursor
    cursor.execute(
        "select token::text, lower(offsets), upper(offsets) - 1"
        " from sharequeue.acquire('bench', %s, 0, 1, 'member', null, %s)",
        (topic, BATCH),
    )
    held = list(cursor.fetchone())
    if prepared:
        cursor.execute(PREPARE_FETCH)
    query = PREPARED_FETCH if prepared else FETCH

    def step() -> None:
        bounds = (held[1], held[2]) if prepared else ([held[1]], [held[2]])
        cursor.execute(query, (topic, held[0], str(uuid4()) if remembered else None, *bounds, BATCH))
        held[:] = cursor.fetchone()

    return step


def bare(connection: Connection, number: int, *, prepared: bool) -> Step:
    """The same by the prototype."""
    cursor = connection.cursor
    held = [-1, -1]
    query = "select * from bare.fetch(%s, %s, %s, %s)"
    if prepared:
        cursor.execute(
            "prepare next_batch (integer, bigint, bigint, bigint) as select * from bare.fetch($1, $2, $3, $4)"
        )
        query = "execute next_batch (%s, %s, %s, %s)"

    def step() -> None:
        cursor.execute(query, (number, *held, BATCH))
        held[:] = cursor.fetchone()

    return step


def row_per_record(connection: Connection) -> Step:
    """A batch taken from a table with a row per record and forgotten at once: nothing is leased, a crash loses it."""
    cursor = connection.cursor

    def step() -> None:
        cursor.execute(
            "delete from bare_queue where id in"
            " (select id from bare_queue order by id limit %s for update skip locked) returning id",
            (BATCH,),
        )
        assert len(cursor.fetchall()) == BATCH

    return step


def leased_row_per_record(connection: Connection) -> Step:
    """What ours does, a row per record: the batch before is deleted, the next one marked as taken, in one commit."""
    cursor = connection.cursor
    leases = count(1)
    held = [0]

    def step() -> None:
        lease = next(leases)
        cursor.execute(
            "with gone as (delete from bare_leased_queue where lease_id = %s)"
            " update bare_leased_queue set lease_id = %s, taken_at = clock_timestamp() where id in"
            " (select id from bare_leased_queue where lease_id is null order by id limit %s for update skip locked)"
            " returning id",
            (held[0], lease, BATCH),
        )
        held[0] = lease
        assert len(cursor.fetchall()) == BATCH

    return step


def fill(connection: Connection, table: str, batches: int) -> None:
    """Put records into one of those tables; not part of what is measured."""
    insert = sql.SQL("insert into {} (payload) select 'x' from generate_series(1, %s)").format(
        sql.Identifier(table)
    )
    connection.cursor.execute(insert, (BATCH * batches,))


def prepare(url: str) -> None:
    """Make the groups and the prototype."""
    with Database(url) as database:
        migrate(database)
        state = State(database)
        with database.transaction() as connection:
            connection.execute(sa.text("insert into sharequeue.share_groups (group_id) values ('bench')"))
            connection.execute(
                sa.text(
                    "insert into sharequeue.group_configs"
                    " values ('bench', 'share.partition.max.record.locks', '100000')"
                )
            )
            connection.exec_driver_sql((Path(__file__).parent / "bare_fetch.sql").read_text())
            connection.exec_driver_sql(
                "create table bare_queue (id bigint generated always as identity primary key, payload text);"
                "create table bare_leased_queue (id bigint generated always as identity primary key, payload text,"
                " lease_id bigint, taken_at timestamptz) with (fillfactor = 50);"
                "create index on bare_leased_queue (lease_id) where lease_id is not null"
            )
        for topic in ("plain", "remembered", "prepared"):
            state.initialize(SharePartition("bench", topic, 0), "id", 0, 1)
            state.observe(SharePartition("bench", topic, 0), "id", 0, 10**12, 10**12)


def measure(url: str, slices: int, calls: int) -> None:
    """Runs the sides in turn and prints the table."""
    prepare(url)
    connections = [Connection(url) for _ in range(7)]
    # The row-per-record queue's slices are shorter: it takes ten times as long.
    few = max(1, calls // 10)
    sides: list[tuple[str, Step, int]] = [
        ("bare prototype", bare(connections[0], 1, prepared=False), calls),
        ("bare prototype, prepared", bare(connections[1], 2, prepared=True), calls),
        ("ours", ours(connections[2], "plain", prepared=False, remembered=False), calls),
        ("ours, request ids", ours(connections[3], "remembered", prepared=False, remembered=True), calls),
        (
            "ours, request ids, prepared",
            ours(connections[4], "prepared", prepared=True, remembered=True),
            calls,
        ),
        ("row per record, deleted when taken", row_per_record(connections[5]), few),
        ("row per record, leased", leased_row_per_record(connections[6]), few),
    ]
    walls: list[list[float]] = [[] for _ in sides]
    costs: list[list[float]] = [[] for _ in sides]
    for _ in range(slices + WARM_UP):
        fill(connections[5], "bare_queue", few)
        fill(connections[6], "bare_leased_queue", few)
        for side, (_, step, times) in enumerate(sides):
            processor, started = connections[side].processor_us(), time.perf_counter()
            for _ in range(times):
                step()
            walls[side].append((time.perf_counter() - started) / times * 1e6)
            costs[side].append((connections[side].processor_us() - processor) / times)
    table = Table(title=f"P4: {BATCH} records a call, median of {slices} slices of {calls} calls")
    for heading in (
        "side",
        "µs/call",
        "records/s",
        "× bare",
        "× bare, prepared",
        "× rows",
        "× leased rows",
        "server µs/call",
    ):
        table.add_column(heading, justify="left" if heading == "side" else "right")
    for side, (name, _, _) in enumerate(sides):
        wall = statistics.median(walls[side][WARM_UP:])
        table.add_row(
            name,
            f"{wall:,.0f}",
            f"{BATCH / wall * 1e6:,.0f}",
            *(f"{_ratio(walls[peer], walls[side]):.2f}" for peer in (0, 1, 5, 6)),
            f"{statistics.median(costs[side][WARM_UP:]):.0f}",
        )
    Console(width=132).print(table)


def _ratio(peer: list[float], side: list[float]) -> float:
    """How much faster a side is than its peer: the median over slices that ran next to each other."""
    return statistics.median(a / b for a, b in zip(peer[WARM_UP:], side[WARM_UP:], strict=True))


def main() -> None:
    """On the database given, which must be empty, or on a stack of its own."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--slices", type=int, default=60)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--database", help="URL of an empty database; a stack of its own by default")
    options = parser.parse_args()
    if options.database:
        measure(options.database, options.slices, options.calls)
        return
    home = Path(tempfile.mkdtemp(prefix="sharequeue-bench-"))
    try:
        environment = {**os.environ, "SHAREQUEUE_JARS": str(Settings.load().jars)}
        url = up(home, lambda line: None, service=False, environment=environment).database_url
        measure(url, options.slices, options.calls)
    finally:
        down(home, lambda line: None)
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
