"""How many records a second does the share-partition state handle, against a bare row-per-record queue?

Both sides in the same Postgres, one connection, 500 records a batch, every commit flushed. Ours: one
acquire and one acknowledgement per batch, with all rules in. The peer: the fastest thing a row-per-record
queue can do, `select … for update skip locked limit 500` and a delete, no delivery counts, no locks that
lapse. Sides alternate, the first round is a warm-up, medians are compared.

    make bench        or        .venv/bin/python benchmarks/bench_state.py
"""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa
from rich.console import Console
from rich.table import Table

from sharequeue.database import Database
from sharequeue.local.stack import down, up
from sharequeue.settings import Settings
from sharequeue.state import AcknowledgeType, SharePartition, State

BATCH = 500
BATCHES = 200
ROUNDS = 6  # the first one warms up


def prepare(database: Database) -> None:
    """Makes a group and the peer's table."""
    with database.transaction() as connection:
        connection.execute(sa.text("insert into sharequeue.share_groups (group_id) values ('bench')"))
        connection.execute(
            sa.text(
                "insert into sharequeue.group_configs values ('bench', 'share.partition.max.record.locks', '100000')"
            )
        )
        connection.execute(sa.text("create table bare_queue (id bigint primary key, payload text)"))


def leased(database: Database, number: int) -> float:
    """Records a second through acquire and acknowledge."""
    state, at = State(database), SharePartition("bench", "t", number)
    state.initialize(at, "id", 0, 1)
    state.observe(at, "id", 0, BATCH * BATCHES, BATCH * BATCHES)
    started = time.perf_counter()
    for _ in range(BATCHES):
        lease = state.acquire(at, "member", None, BATCH)
        assert lease is not None
        state.acknowledge(lease, {AcknowledgeType.ACCEPT: lease.offsets})
    return BATCH * BATCHES / (time.perf_counter() - started)


def bare(database: Database, number: int) -> float:
    """Records a second through a row-per-record table."""
    with database.transaction() as connection:
        connection.execute(
            sa.text("insert into bare_queue select g, 'x' from generate_series(1, :rows) as g"),
            {"rows": BATCH * BATCHES},
        )
    take = sa.text(
        "delete from bare_queue where id in"
        " (select id from bare_queue order by id limit :batch for update skip locked) returning id"
    )
    started = time.perf_counter()
    for _ in range(BATCHES):
        with database.transaction() as connection:
            connection.execute(take, {"batch": BATCH}).all()
    return BATCH * BATCHES / (time.perf_counter() - started)


def main() -> None:
    """Measures both sides and prints the table."""
    console = Console()
    home = Path(tempfile.mkdtemp(prefix="sharequeue-bench-"))
    try:
        # The jars of the checkout, so that a benchmark does not fetch its own.
        environment = {**os.environ, "SHAREQUEUE_JARS": str(Settings.load().jars)}
        info = up(home, lambda line: None, service=False, environment=environment)
        with Database(info.database_url) as database:
            prepare(database)
            figures: dict[Callable[[Database, int], float], list[float]] = {leased: [], bare: []}
            for round_ in range(ROUNDS):
                for side, measured in figures.items():
                    measured.append(side(database, round_))
            version = database.rows(sa.text("show server_version"))[0]["server_version"]
        medians = {side: statistics.median(measured[1:]) for side, measured in figures.items()}
        table = Table(
            title=f"{BATCHES} batches of {BATCH}, PostgreSQL {version}, {platform.processor() or platform.machine()}"
        )
        table.add_column("side")
        table.add_column("records/s, median", justify="right")
        table.add_column("all rounds", justify="right")
        for name, side in (
            ("sharequeue: acquire + acknowledge", leased),
            ("bare row-per-record queue", bare),
        ):
            rounds = ", ".join(f"{value:,.0f}" for value in figures[side][1:])
            table.add_row(name, f"{medians[side]:,.0f}", rounds)
        console.print(table)
        console.print(f"ratio {medians[leased] / medians[bare]:.2f}")
    finally:
        down(home, lambda line: None)
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
