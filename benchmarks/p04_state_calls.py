"""P4: acknowledge and acquire by the calls of consumers and runs, compared with bare statements and row queues.

All sides use the same Postgres, one connection each, 500 records per batch, every commit flushed. Ours:
`State.acknowledge` and `State.acquire`, two calls and two commits, over one share-partition and over
sixteen, with fencing, lapsed locks, request ids, SPSO, in-flight limit and journal. The peers: the prototype of
`bare_fetch.sql`, one call and one commit; and two queues with a row per record, one of which deletes a record when it
delivers it, while the other keeps it leased until it is acknowledged. Sides alternate in short slices. The table has
the wall time and the CPU time of the server's process: on a busy machine only the CPU time is stable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from benchmarks.database import BATCH, connect, server, share_partitions, window
from benchmarks.harness import REPOSITORY, Table, case, in_turn, median, number, seconds
from sharequeue.database import Database
from sharequeue.domain.values import AcknowledgeType, Lease, SharePartition
from sharequeue.state import State
from sharequeue.state.calls import LeaseAcknowledgement

MANY = 16
"""Share-partitions in one call."""
PROTOTYPE = REPOSITORY / "benchmarks" / "bare_fetch.sql"
ROW_QUEUES = (
    "create table rows_deleted (id bigint generated always as identity primary key, payload text);"
    "create table rows_leased (id bigint generated always as identity primary key, payload text, lease_id bigint,"
    " taken_at timestamptz) with (fillfactor = 50);"
    "create index on rows_leased (lease_id) where lease_id is not null"
)
DELETE_ROWS = (
    "delete from rows_deleted where id in"
    " (select id from rows_deleted order by id limit %s for update skip locked) returning id"
)
LEASE_ROWS = (
    "with gone as (delete from rows_leased where lease_id = %s)"
    " update rows_leased set lease_id = %s, taken_at = clock_timestamp() where id in"
    " (select id from rows_leased where lease_id is null order by id limit %s for update skip locked) returning id"
)
Step = Callable[[], object]


class Side:
    """One side, its slices, and the CPU time of its server process."""

    def __init__(
        self, pid: int, step: Step, times: int, batches: int = 1, prepare: Step = lambda: None
    ) -> None:
        self.pid, self.step, self.times, self.batches, self.prepare = pid, step, times, batches, prepare
        self.costs: list[float] = []

    def slice(self) -> float:
        """Return the microseconds of a batch over one slice."""

        def run() -> None:
            for _ in range(self.times):
                self.step()

        self.prepare()
        before = self._processor_us()
        taken = seconds(run)
        each = self.times * self.batches
        self.costs.append((self._processor_us() - before) / each)
        return taken / each * 1e6

    def _processor_us(self) -> float:
        with suppress(OSError):
            return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[0]) / 1000
        return 0.0


def ours(database: Database, share_partitions: int, batches: int) -> Side:
    """Acknowledge a batch of each share-partition, and acquire the next of each."""
    state = State(database)
    names = [SharePartition("bench", f"{share_partitions}", number) for number in range(share_partitions)]

    def acquire() -> Sequence[Lease]:
        # A call distributes its records over the share-partitions in order; the window limits each of them.
        leases = state.acquire(names, "member", None, BATCH * share_partitions).leases
        assert len(leases) == share_partitions
        return leases

    held = [acquire()]

    def step() -> None:
        state.acknowledge(
            [LeaseAcknowledgement(lease, {AcknowledgeType.ACCEPT: lease.offsets}) for lease in held[0]]
        )
        held[0] = acquire()

    pid = int(database.rows(sa.text("select pg_backend_pid() as pid"))[0]["pid"])
    return Side(pid, step, max(1, batches // share_partitions), share_partitions)


def bare(url: str, batches: int) -> Side:
    """Do the same with the prototype, on one share-partition."""
    connection = connect(url)
    cursor: Any = connection.cursor()
    held = [-1, -1]

    def step() -> None:
        cursor.execute("select * from bare.fetch(1, %s, %s, %s)", (*held, BATCH))
        held[:] = cursor.fetchone()

    return Side(connection.info.backend_pid, step, batches)


def rows(url: str, table: str, batches: int) -> Side:
    """Take a batch of rows: deleted at once, or leased in the commit that deletes the previous batch."""
    connection = connect(url)
    cursor, leases = connection.cursor(), count(1)

    def step() -> None:
        if table == "rows_deleted":
            cursor.execute(DELETE_ROWS, (BATCH,))
        else:
            lease = next(leases)
            cursor.execute(LEASE_ROWS, (lease - 1, lease, BATCH))
        assert len(cursor.fetchall()) == BATCH

    def fill() -> None:
        insert = f"insert into {table} (payload) select 'x' from generate_series(1, %s)"  # noqa: S608
        cursor.execute(insert, (BATCH * batches,))

    return Side(connection.info.backend_pid, step, batches, prepare=fill)


@case("P4", "ours ≥ 0.6 × bare, ≥ 12 × leased rows", slices=10)
def state_calls(slices: int = 60, batches: int = 100) -> Iterator[Table]:
    """Compare the calls of consumers and runs with bare statements and with queues of rows."""
    with ExitStack() as closing:
        url = closing.enter_context(server())
        cursor = connect(url).cursor()
        cursor.execute(PROTOTYPE.read_text())
        cursor.execute(ROW_QUEUES)
        window(cursor, BATCH)
        sides = {"bare prototype": bare(url, batches)}
        for number_of in (1, MANY):
            share_partitions(cursor, f"{number_of}", 10**12, number_of)
            database = closing.enter_context(Database(url, pool_size=1))
            sides[f"ours, {number_of} a call"] = ours(database, number_of, batches)
        sides["rows, deleted when taken"] = rows(url, "rows_deleted", max(1, batches // 10))
        sides["rows, leased"] = rows(url, "rows_leased", max(1, batches // 10))
        for side in sides.values():
            side.slice()
        measured = in_turn({name: side.slice for name, side in sides.items()}, slices)
    peers = ("bare prototype", "rows, deleted when taken", "rows, leased")
    table = []
    for name, figures in measured.items():
        # Neighbouring slices are compared.
        ratios = (median([a / b for a, b in zip(measured[peer], figures, strict=True)]) for peer in peers)
        records = f"{BATCH / median(figures) * 1e6:,.0f}"
        cost = f"{median(sides[name].costs[2:]):.0f}"
        table.append((name, number(median(figures)), records, *(f"{each:.2f}" for each in ratios), cost))
    headings = ("side", "µs/batch", "records/s", "× bare", "× rows", "× leased rows", "server µs/batch")
    title = f"batches of {BATCH} records, median of {slices} slices of {batches} batches"
    yield Table(headings, table, title)
