"""How long does an upgrade hold up those who work?

Four processes acquire and acknowledge without a pause, each on a share-partition of its own; meanwhile the schema is
upgraded again and again. New text of functions alone; with a trigger and a view that differ; with a table that gets a
column; the same while a transaction elsewhere is idle, which makes the upgrade give up. Goal: no call takes a second.
Every worker is a process, and a call is an acquire and its acknowledgement.

    .venv/bin/python benchmarks/bench_upgrades.py [--full]
"""

from __future__ import annotations

import multiprocessing
import time
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.synchronize import Event
from typing import Any

import sqlalchemy as sa
from rig import FULL, report, server

from sharequeue.database import Database, schema_files
from sharequeue.database.migrations import SchemaBusy, migrate
from sharequeue.database.schema_files import Migration, migrations
from sharequeue.settings import DatabaseOptions
from sharequeue.state import State
from sharequeue.values import AcknowledgeType, SharePartition

WORKERS = 4
UPGRADES = 20 if FULL else 5


def work(url: str, partition: int, stop: Event, longest: Any, calls: Any) -> None:
    """One worker: the longest of its calls, in milliseconds, and how many there were."""
    at = SharePartition("bench", "t", partition)
    with Database(url) as database:
        state = State(database)
        while not stop.is_set():
            began = time.perf_counter()
            lease = state.acquire(at, f"m{partition}", None, 10)
            assert lease is not None
            state.acknowledge(lease, {AcknowledgeType.ACCEPT: lease.offsets})
            longest[partition] = max(longest[partition], (time.perf_counter() - began) * 1000)
            calls[partition] += 1


@contextmanager
def workers(url: str) -> Any:
    """Workers at work; return their longest calls and their numbers of calls."""
    longest, calls = multiprocessing.Array("d", WORKERS), multiprocessing.Array("q", WORKERS)
    stop = multiprocessing.Event()
    running = [
        multiprocessing.Process(target=work, args=(url, n, stop, longest, calls)) for n in range(WORKERS)
    ]
    for each in running:
        each.start()
    while not all(calls):
        time.sleep(0.01)
    for partition in range(WORKERS):
        longest[partition] = 0.0
    try:
        yield longest, calls
    finally:
        stop.set()
        for each in running:
            each.join()
            assert each.exitcode == 0, "a worker met an error"


def files_of(kind: str, number: int, columns: list[Migration]) -> list[Migration]:
    """The files of a release that differs from this one in so much."""
    files = migrations()
    numbered = [f for f in files if not f.repeatable]
    if kind == "a table":
        name = f"migrations/9{number:03}_wider.sql"
        text = f"alter table sharequeue.share_partitions add column wider{number} integer;"
        columns.append(Migration(name, text, repeatable=False))
    texts = [replace(f, text=f"-- {kind} {number}\n{f.text}") for f in files[len(numbered) :]]
    if kind == "a trigger and a view":
        more = " or update" if number % 2 else ""
        texts = [
            replace(
                f,
                text=f.text.replace(
                    "after insert on sharequeue.leases", f"after insert{more} on sharequeue.leases"
                ).replace(
                    "select audit_id, happened_at,",
                    f"select audit_id, happened_at + '{number} s' as happened_at,",
                ),
            )
            for f in texts
        ]
    return [*numbered, *columns, *texts]


def main() -> None:
    """Measure and print."""
    rows = []
    with server() as url, Database(url, options=DatabaseOptions(lock_timeout_ms=10_000)) as database:
        state, columns = State(database), list[Migration]()
        for partition in range(WORKERS):
            at = SharePartition("bench", "t", partition)
            state.initialize(at, "id", 0, 1)
            state.observe(at, "id", 0, 10**12, 10**12)
        original, number = schema_files.migrations, 0
        with workers(url) as (longest, calls):
            time.sleep(2)
            rows.append(["no upgrade", "", "", f"{max(longest):.0f} ms", f"{sum(calls):,}"])
        for kind in ("functions", "a trigger and a view", "a table"):
            took, ended = [], 0
            with workers(url) as (longest, calls):
                for _ in range(UPGRADES):
                    number += 1
                    files = files_of(kind, number, columns)
                    schema_files.migrations = lambda files=files: files
                    began = time.perf_counter()
                    migrate(database)
                    took.append(time.perf_counter() - began)
                    ended += 1
                    schema_files.migrations = original
                    time.sleep(0.5)
                pause = max(longest)
            rows.append(
                [kind, f"{ended} of {UPGRADES}", f"{max(took):.1f} s", f"{pause:.0f} ms", f"{sum(calls):,}"]
            )
        with database.engine.connect() as idle, workers(url) as (longest, calls):
            idle.execute(sa.text("select from sharequeue.share_partitions"))
            files = files_of("a table", number + 1, columns)
            schema_files.migrations = lambda: files
            began = time.perf_counter()
            try:
                migrate(database)
                gave_up = "no"
            except SchemaBusy:
                gave_up = "gave up"
            rows.append(
                ["a table, an idle transaction elsewhere", gave_up, f"{time.perf_counter() - began:.1f} s",
                 f"{max(longest):.0f} ms", f"{sum(calls):,}"]
            )  # fmt: skip
            idle.rollback()
        [met] = database.rows(
            sa.text("select deadlocks from pg_stat_database where datname = current_database()")
        )
        report(
            url,
            f"Upgrades while {WORKERS} workers work: {met['deadlocks']} deadlocks",
            ["what differs", "upgrades", "longest upgrade", "longest call of a worker", "calls"],
            rows,
        )


if __name__ == "__main__":
    main()
