"""P4: how close does acknowledge_and_acquire, with all rules in, come to a bare two-statement prototype?

Both in the same Postgres, one connection each, 500 records a batch, every commit flushed. Ours: fencing,
lapsed locks, request ids, SPSO, in-flight bound, one call and one commit a batch. The peer:
``benchmarks/bare_fetch.sql``. Sides alternate, the first round warms up, medians are compared. Beside the wall
clock stands the processor time of the server's process: on a busy machine the one figure that holds still.

    .venv/bin/python benchmarks/bench_fetch.py [database URL]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg2
import sqlalchemy as sa
from rich.console import Console
from rich.table import Table

from sharequeue.database import Database, migrate
from sharequeue.local.stack import down, up
from sharequeue.state import SharePartition, State

BATCH = 500
CALLS = 500
ROUNDS = 9  # the first one warms up

Step = Callable[[], None]


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
            **{k: str(v) for k, v in parts.query.items()},
        )
        self.raw.autocommit = True
        self.cursor: Any = self.raw.cursor()
        self.cursor.execute("select pg_backend_pid()")
        self.pid = self.cursor.fetchone()[0]

    def processor_us(self) -> float:
        """Microseconds of processor time so far; 0 where the system does not tell."""
        with suppress(OSError):
            return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[0]) / 1000
        return 0.0


def ours(connection: Connection, *, remembered: bool) -> Step:
    """One acknowledgement of a batch and the acquire of the next."""
    cursor = connection.cursor
    topic = "remembered" if remembered else "plain"
    cursor.execute(
        "select token::text, lower(offsets), upper(offsets) - 1"
        " from sharequeue.acquire('bench', %s, 0, 1, 'member', null, %s)",
        (topic, BATCH),
    )
    held = list(cursor.fetchone())

    def step() -> None:
        cursor.execute(
            "select token::text, lower(offsets), upper(offsets) - 1 from sharequeue.acknowledge_and_acquire("
            "'bench', %s, 0, 1, 'member', null, %s, %s, %s, %s, '{1}', %s, 'kafka')",
            (topic, held[0], str(uuid4()) if remembered else None, [held[1]], [held[2]], BATCH),
        )
        held[:] = cursor.fetchone()

    return step


def bare(connection: Connection) -> Step:
    """The same by the prototype."""
    cursor = connection.cursor
    held = [-1, -1]

    def step() -> None:
        cursor.execute("select * from bare.fetch(1, %s, %s, %s)", (*held, BATCH))
        held[:] = cursor.fetchone()

    return step


def prepare(url: str) -> None:
    """Makes the groups and the prototype."""
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
        for topic in ("plain", "remembered"):
            state.initialize(SharePartition("bench", topic, 0), "id", 0, 1)
            state.observe(SharePartition("bench", topic, 0), "id", 0, 10**12, 10**12)


def measure(url: str) -> None:
    """Runs the sides in turn and prints the table."""
    prepare(url)
    names = ("bare two-statement prototype", "acknowledge_and_acquire", "the same, with request ids")
    connections = [Connection(url) for _ in names]
    steps = [
        bare(connections[0]),
        ours(connections[1], remembered=False),
        ours(connections[2], remembered=True),
    ]
    rates: list[list[float]] = [[] for _ in names]
    costs: list[list[float]] = [[] for _ in names]
    for _ in range(ROUNDS):
        for side, step in enumerate(steps):
            processor, started = connections[side].processor_us(), time.perf_counter()
            for _ in range(CALLS):
                step()
            rates[side].append(CALLS / (time.perf_counter() - started))
            costs[side].append((connections[side].processor_us() - processor) / CALLS)
    table = Table(title=f"P4: {CALLS} calls of {BATCH} records, median of {ROUNDS - 1} rounds")
    for heading in ("side", "calls/s", "records/s", "ratio", "server µs/call"):
        table.add_column(heading, justify="left" if heading == "side" else "right")
    for side, name in enumerate(names):
        rate = statistics.median(rates[side][1:])
        ratio = statistics.median(a / b for a, b in zip(rates[side][1:], rates[0][1:], strict=True))
        cost = statistics.median(costs[side][1:])
        table.add_row(name, f"{rate:,.0f}", f"{rate * BATCH:,.0f}", f"{ratio:.2f}", f"{cost:.0f}")
    Console().print(table)


def main() -> None:
    """On the database given, which must be empty, or on a stack of its own."""
    if len(sys.argv) > 1:
        measure(sys.argv[1])
        return
    home = Path(tempfile.mkdtemp(prefix="sharequeue-bench-"))
    try:
        measure(up(home, lambda line: None, service=False).database_url)
    finally:
        down(home, lambda line: None)


if __name__ == "__main__":
    main()
