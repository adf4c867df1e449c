"""P13: do speed and sizes stay as they are, with 10,000 share-partitions at work, for ten minutes and longer?

Each share-partition does one acknowledge + acquire every ten seconds, at an even pace over a few connections; the
service's coordinator (watch, expiry, sweep, journal) runs beside it in a process of its own, over a stand-in for the
broker in which a fifth of the logs has grown at each look. Every minute: p50 and p99 of a call, what the tables of
the state take on disk, bytes of journal per call, the share of updates that were HOT. Then the same while an idle
transaction holds the horizon back, and after it has gone. The first minute warms up.

    .venv/bin/python benchmarks/bench_endurance.py            10 + 10 + 3 minutes, 1,000 calls a second
    .venv/bin/python benchmarks/bench_endurance.py --short    2 + 1 + 1 minutes, 100 calls a second
    others: --minutes 10 --idle-minutes 10 --after-minutes 3 --share-partitions 10000 --seconds-apart 10
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg2
import sqlalchemy as sa
from bench_idle import StandIn
from rich.console import Console
from rich.table import Table

from sharequeue.database import Database
from sharequeue.database.migrations import migrate
from sharequeue.groups.configs import ServiceConfigs
from sharequeue.kafka.topics import LogOffsets, TopicInfo, TopicsFound
from sharequeue.local.stack import down, up
from sharequeue.service.coordinator import Coordinator
from sharequeue.settings import Settings

BATCH = 500
CONNECTIONS = 4
MINUTE = 60.0

FETCH = (
    "select token, offsets from sharequeue.acknowledge_and_acquire("
    "'bench', 't', %s, 1, 'member', null, %s, %s, %s, %s, '{1}', %s, 'kafka')"
)
SIZES = sa.text(
    "select sum(pg_total_relation_size(c.oid)) filter (where c.relname not like 'journal%') as state,"
    " sum(pg_total_relation_size(c.oid)) filter (where c.relname like 'journal%') as journal"
    " from pg_class c join pg_namespace n on n.oid = c.relnamespace"
    " where n.nspname = 'sharequeue' and c.relkind = 'r'"
)
UPDATES = sa.text(
    "select n_tup_upd as updates, n_tup_hot_upd as hot from pg_stat_user_tables"
    " where schemaname = 'sharequeue' and relname = 'share_partitions'"
)


@dataclass(slots=True)
class Minute:
    """What one minute saw; times in seconds, sizes in bytes."""

    phase: str
    calls: list[float] = field(default_factory=list)
    late: int = 0
    state: int = 0
    journal: int = 0
    journal_growth: int = 0
    hot: float = 0.0


class Load:
    """Calls at an even pace, until it is stopped; the latencies of the present minute can be taken away."""

    def __init__(self, url: str, share_partitions: int, seconds_apart: float) -> None:
        self._url = url
        self._share_partitions = share_partitions
        self._seconds_apart = seconds_apart
        self._lock = threading.Lock()
        self._minute = Minute("")
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(n,)) for n in range(CONNECTIONS)]
        self.failed: list[BaseException] = []

    def start(self) -> None:
        """Begins."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends; raises what a worker died of."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        for error in self.failed:
            raise error

    def take(self, phase: str) -> Minute:
        """The latencies so far, and a new minute from here on."""
        with self._lock:
            taken, self._minute = self._minute, Minute(phase)
        return taken

    def _work(self, number: int) -> None:
        try:
            connection = connect(self._url)
            mine = range(number, self._share_partitions, CONNECTIONS)
            pause = self._seconds_apart / len(mine)
            held: dict[int, tuple[str, int, int]] = {}
            due = time.perf_counter() + number * pause / CONNECTIONS
            while not self._stop.is_set():
                for partition in mine:
                    if self._stop.is_set():
                        break
                    wait = due - time.perf_counter()
                    if wait > 0:
                        time.sleep(wait)
                    started = time.perf_counter()
                    held[partition] = fetch(connection, partition, held.get(partition))
                    took = time.perf_counter() - started
                    with self._lock:
                        self._minute.calls.append(took)
                        self._minute.late += wait < -1.0
                    due += pause
        except BaseException as error:
            self.failed.append(error)


def connect(url: str) -> Any:
    """One connection, every statement its own transaction."""
    parts = sa.make_url(url)
    connection = psycopg2.connect(
        host=parts.host, port=parts.port, user=parts.username, password=parts.password, dbname=parts.database
    )
    connection.autocommit = True
    return connection


def fetch(connection: Any, partition: int, held: tuple[str, int, int] | None) -> tuple[str, int, int]:
    """Accept what the share-partition's last call gave, and take the next batch."""
    token, first, last = held or (None, None, None)
    bounds = ([first], [last]) if held else ([], [])
    cursor = connection.cursor()
    cursor.execute(FETCH, (partition, token, str(uuid4()), *bounds, BATCH))
    token, offsets = cursor.fetchone()
    low, past = offsets.strip("{[)}").split(",")
    return token, int(low), int(past) - 1


def prepare(database: Database, share_partitions: int) -> None:
    """Make the group and its share-partitions."""
    migrate(database)
    for query in (
        "insert into sharequeue.share_groups (group_id) values ('bench')",
        "insert into sharequeue.group_configs values ('bench', 'share.record.lock.duration.ms', '60000')",
    ):
        with database.transaction() as connection:
            connection.exec_driver_sql(query)
    with database.transaction() as connection:
        connection.execute(
            sa.text(
                "select sharequeue.initialize('bench', 't', n, 'id', 0, 1),"
                " sharequeue.observe('bench', 't', n, 'id', 0, 1000000000000, 1000000000000)"
                " from generate_series(0, :last) as n"
            ),
            {"last": share_partitions - 1},
        ).all()


class Growing(StandIn):
    """A broker with one topic, of which a fifth of the logs has grown at each look."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self._looks = 0

    def ask(self, names: list[str]) -> TopicsFound:
        """The one topic, under the id that the state has."""
        return TopicsFound({name: TopicInfo("id", self.partitions) for name in names}, {})

    def offsets_of(
        self, partitions: Mapping[str, int], refused: Any = None
    ) -> dict[tuple[str, int], LogOffsets]:
        """Each log grows at every fifth look."""
        self._looks += 1
        return {
            (name, partition): LogOffsets(0, end, end)
            for name, count in partitions.items()
            for partition in range(count)
            for end in [10**12 + (self._looks + partition) // 5]
        }


def serve(url: str, share_partitions: int) -> None:
    """Be the service's coordinator, until the input ends; then say what it could not do."""
    growing: Any = Growing(share_partitions)
    stop = threading.Event()
    with Database(url) as database:
        coordinator = Coordinator(database, growing, ServiceConfigs())
        worker = threading.Thread(target=coordinator.run, args=(stop,))
        worker.start()
        sys.stdin.read()
        problems = {**coordinator.faults, **coordinator.groups.stuck}
        stop.set()
        worker.join()
    print(problems or "well", growing._looks, flush=True)


def measure(
    url: str, phases: list[tuple[str, int]], share_partitions: int, seconds_apart: float
) -> list[Minute]:
    """Runs the phases, each so many minutes long; return what every minute saw."""
    minutes: list[Minute] = []
    with Database(url) as database:
        prepare(database, share_partitions)
        load = Load(url, share_partitions, seconds_apart)
        keeper = subprocess.Popen(
            [sys.executable, __file__, "--serve", url, str(share_partitions)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        before, updates = database.rows(SIZES)[0], database.rows(UPDATES)[0]
        load.start()
        try:
            for phase, length in phases:
                idle = connect(url) if phase == "horizon held" else None
                if idle is not None:
                    idle.autocommit = False
                    idle.set_session(isolation_level="REPEATABLE READ")
                    idle.cursor().execute("select count(*) from sharequeue.share_groups")
                for _ in range(length):
                    load.take(phase)
                    time.sleep(MINUTE)
                    minute = load.take(phase)
                    minute.phase = phase
                    after, now = database.rows(SIZES)[0], database.rows(UPDATES)[0]
                    minute.state, minute.journal = int(after["state"]), int(after["journal"])
                    minute.journal_growth = int(after["journal"]) - int(before["journal"])
                    written = now["updates"] - updates["updates"]
                    minute.hot = (now["hot"] - updates["hot"]) / written if written else 0.0
                    before, updates = after, now
                    minutes.append(minute)
                if idle is not None:
                    idle.close()
        finally:
            load.stop()
            said, _ = keeper.communicate("", timeout=60)
            print(f"the service was {said.split()[0]} after {said.split()[-1]} looks at the broker")
    return minutes


def show(minutes: list[Minute], share_partitions: int) -> None:
    """Print a row a minute, and how far p99 and size went from the second minute's."""
    table = Table(title=f"P13: {share_partitions:,} share-partitions, {BATCH} records a call")
    for heading in (
        "min",
        "phase",
        "calls/s",
        "p50 ms",
        "p99 ms",
        "state MB",
        "journal B/call",
        "HOT",
        "late",
    ):
        table.add_column(heading, justify="left" if heading == "phase" else "right")
    for number, minute in enumerate(minutes, 1):
        quantiles = statistics.quantiles(minute.calls, n=100)
        table.add_row(
            str(number),
            minute.phase,
            f"{len(minute.calls) / MINUTE:,.0f}",
            f"{quantiles[49] * 1000:.2f}",
            f"{quantiles[98] * 1000:.2f}",
            f"{minute.state / 1e6:.1f}",
            f"{minute.journal_growth / len(minute.calls):.0f}",
            f"{minute.hot:.0%}",
            str(minute.late),
        )
    console = Console(width=120)
    console.print(table)
    steady = [m for m in minutes if m.phase == "steady"][1:]
    if len(steady) > 1:
        p99 = [statistics.quantiles(m.calls, n=100)[98] for m in steady]
        console.print(
            f"steady, after the first minute: p99 within {min(p99) / statistics.median(p99) - 1:+.0%} and"
            f" {max(p99) / statistics.median(p99) - 1:+.0%} of its median; state {steady[0].state / 1e6:.1f} to"
            f" {steady[-1].state / 1e6:.1f} MB"
        )


def main() -> None:
    """On a stack of its own, or on the database given, which must be empty."""
    if "--serve" in sys.argv:
        serve(sys.argv[2], int(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--minutes", type=int, default=10)
    parser.add_argument("--idle-minutes", type=int, default=10)
    parser.add_argument("--after-minutes", type=int, default=3)
    parser.add_argument("--share-partitions", type=int, default=10_000)
    parser.add_argument("--seconds-apart", type=float, default=10.0)
    parser.add_argument("--database", help="URL of an empty database; a stack of its own by default")
    options = parser.parse_args()
    lengths = (2, 1, 1) if options.short else (options.minutes, options.idle_minutes, options.after_minutes)
    share_partitions = 1000 if options.short else options.share_partitions
    phases = list(zip(("steady", "horizon held", "after"), lengths, strict=True))
    home = Path(tempfile.mkdtemp(prefix="sharequeue-bench-"))
    try:
        environment = {**os.environ, "SHAREQUEUE_JARS": str(Settings.load().jars)}
        url = (
            options.database
            or up(home, lambda line: None, service=False, environment=environment).database_url
        )
        show(measure(url, phases, share_partitions, options.seconds_apart), share_partitions)
    finally:
        down(home, lambda line: None)
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
