"""P13: speed and sizes with 10,000 share-partitions at work, for ten minutes and longer.

Each share-partition does one acknowledge + acquire every ten seconds, twenty share-partitions per call, at an even
pace over a few connections; the service's coordinator (watch, expiry, sweep, journal) runs in a separate process,
with a stand-in for the broker in which a fifth of the logs has grown at each check. Every minute: p50 and p99 of the
two calls, the size of the state's tables on disk, bytes of journal for each share-partition and turn, the share of
HOT updates, and the number of calls that began a second late. Then the same while an idle transaction holds back the
vacuum horizon, and after it has ended. The first minute is a warm-up.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import sqlalchemy as sa

from benchmarks.database import BATCH, Held, StandIn, connect, fetch, server, share_partitions, window
from benchmarks.harness import Table, case, median, part, percentile
from sharequeue.database import Database
from sharequeue.groups.configs import ServiceConfigs
from sharequeue.kafka.topics import LogOffsets, TopicInfo, TopicsFound
from sharequeue.service.coordinator import Coordinator

CONNECTIONS = 4
A_CALL = 20
"""The number of share-partitions whose records are acknowledged in one call, and acquired in one call."""
MINUTE = 60.0
LOCKS = (
    "insert into sharequeue.group_configs values ('bench', 'share.record.lock.duration.ms', '60000')"
    " on conflict (group_id, name) do update set value = excluded.value"
)
FIGURES = sa.text(
    "select sum(pg_total_relation_size(c.oid)) filter (where c.relname not like 'journal%') as state,"
    " sum(pg_total_relation_size(c.oid)) filter (where c.relname like 'journal%') as journal,"
    " sum(n_tup_upd) filter (where c.relname = 'share_partitions') as updates,"
    " sum(n_tup_hot_upd) filter (where c.relname = 'share_partitions') as hot"
    " from pg_class c join pg_namespace n on n.oid = c.relnamespace"
    " left join pg_stat_user_tables u on u.relid = c.oid"
    " where n.nspname = 'sharequeue' and c.relkind = 'r'"
)


class Growing(StandIn):
    """A broker with one topic, in which a fifth of the logs has grown at each check."""

    looks = 0

    def ask(self, names: list[str]) -> TopicsFound:
        """Return the one topic, with the id in the state."""
        return TopicsFound({name: TopicInfo("id", self.partitions) for name in names}, {})

    def offsets_of(
        self, partitions: Mapping[str, Iterable[int]], refused: Any = None
    ) -> dict[tuple[str, int], LogOffsets]:
        """Let each log grow at every fifth check."""
        self.looks += 1
        ends = (10**12 + (self.looks + partition) // 5 for partition in range(self.partitions))
        return {
            (name, partition): LogOffsets(0, end, end)
            for name in partitions
            for partition, end in enumerate(ends)
        }


def serve(url: str, count: str) -> None:
    """Run the service's coordinator until the input ends; then print its errors."""
    growing: Any = Growing(int(count))
    stop = threading.Event()
    with Database(url) as database:
        coordinator = Coordinator(database, growing, ServiceConfigs())
        worker = threading.Thread(target=coordinator.run, args=(stop,))
        worker.start()
        sys.stdin.read()
        problems = [*coordinator.faults.items(), *coordinator.groups.stuck.items()]
        stop.set()
        worker.join()
    print(f"the coordinator: {growing.looks} looks at the broker, problems: {problems or 'none'}", flush=True)


class Load:
    """Calls at an even pace until stopped."""

    def __init__(self, url: str, count: int, seconds_apart: float) -> None:
        self.url, self.count, self.seconds_apart = url, count, seconds_apart
        self.stop = threading.Event()
        self.times: list[float] = []
        self.late = 0

    def take(self) -> tuple[list[float], int]:
        """Return the seconds of the calls so far and the number of late ones, and reset both."""
        (times, self.times), (late, self.late) = (self.times, []), (self.late, 0)
        return times, late

    def work(self, number: int) -> None:
        """Run the calls of one connection."""
        cursor = connect(self.url).cursor()
        mine = range(number * A_CALL, self.count, CONNECTIONS * A_CALL)
        pause = self.seconds_apart / len(mine)
        held: dict[int, Held] = {}
        due = time.perf_counter() + number * pause / CONNECTIONS
        while True:
            for first in mine:
                wait = due - time.perf_counter()
                if self.stop.wait(max(0.0, wait)):
                    return
                partitions = range(first, min(first + A_CALL, self.count))
                started = time.perf_counter()
                held[first] = fetch(cursor, "t", partitions, "member", held.get(first, {}))
                self.times.append(time.perf_counter() - started)
                self.late += wait < -1.0
                due += pause


def minutes(
    url: str, load: Load, phases: Mapping[str, int]
) -> Iterator[tuple[str, list[float], int, list[int]]]:
    """Yield for each minute: phase, seconds of its calls, number of late calls; state, journal, updates, HOT
    updates."""
    with Database(url) as database:
        for phase, length in phases.items():
            idle = connect(url) if phase == "horizon held" else None
            if idle is not None:
                idle.autocommit = False
                idle.set_session(isolation_level="REPEATABLE READ")
                idle.cursor().execute("select count(*) from sharequeue.share_groups")
            for _ in range(length):
                load.take()
                time.sleep(MINUTE)
                (row,) = database.rows(FIGURES)
                yield phase, *load.take(), [int(row[name]) for name in ("state", "journal", "updates", "hot")]
            if idle is not None:
                idle.close()


@case("P13", "p99 flat ± 20 %, sizes flat after the first minute", count=1_000, steady=2, held=1, after=1)
def endurance(
    count: int = 10_000, seconds_apart: float = 10.0, steady: int = 10, held: int = 10, after: int = 3
) -> Iterator[Table]:
    """Measure speed and sizes with 10,000 share-partitions at work."""
    phases = {"steady": steady, "horizon held": held, "after": after}
    rows, p99s, states = [], [], []
    with ExitStack() as closing:
        url = closing.enter_context(server())
        cursor = connect(url).cursor()
        window(cursor, BATCH)
        cursor.execute(LOCKS)
        share_partitions(cursor, "t", 10**12, count)
        coordinator = closing.enter_context(part("p13_endurance:serve", url, count))
        load, before = Load(url, count, seconds_apart), [0, 0, 0, 0]
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            working = [pool.submit(load.work, number) for number in range(CONNECTIONS)]
            try:
                for at, (phase, times, late, figures) in enumerate(minutes(url, load, phases)):
                    _, journal, updates, hot = (b - a for a, b in zip(before, figures, strict=True))
                    before = figures
                    p50, p99 = (percentile(times, each) * 1000 for each in (50, 99))
                    if phase == "steady" and at > 0:
                        p99s.append(p99)
                        states.append(figures[0] / 1e6)
                    speed = (f"{len(times) / MINUTE:,.0f}", f"{p50:.2f}", f"{p99:.2f}")
                    sizes = (f"{figures[0] / 1e6:.1f}", f"{journal / len(times) / A_CALL:.0f}")
                    share = f"{hot / updates if updates else 0:.0%}"
                    rows.append((str(at + 1), phase, *speed, *sizes, share, str(late)))
            finally:
                load.stop.set()
        for each in working:
            each.result()
        output, _ = coordinator.communicate("", timeout=60)
    low, high = (each / median(p99s) - 1 for each in (min(p99s), max(p99s)))
    flat = (
        f"p99 within {low:+.0%} and {high:+.0%} of its median; state {states[0]:.1f} to {states[-1]:.1f} MB"
    )
    headings = ("min", "phase", "calls/s", "p50 ms", "p99 ms", "state MB", "journal B/turn", "HOT", "late")
    title = f"{count:,} share-partitions, {A_CALL} a call, {BATCH} records each"
    yield Table(headings, rows, title, [output.strip(), f"steady, after the first minute: {flat}"])
