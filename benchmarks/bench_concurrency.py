"""P5: what do eight connections do that one does not?

One call (acknowledge a batch of 500 and lease the next) by one process, by eight on one share-partition, by eight
on eight. The bare prototype of ``bare_fetch.sql`` beside it: two statements, no rules. Goals: on one share-partition,
where the row lock is held over each commit's flush, 0.6 of eight of the bare prototype; on eight, twice one
connection. Every client is a process.

    .venv/bin/python benchmarks/bench_concurrency.py [--full]
"""

from __future__ import annotations

import multiprocessing
import time
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from rig import FULL, connect, in_turn, median, report, server, share_partition, spread

BATCH = 500
SECONDS = 4.0 if FULL else 1.0
ROUNDS = 7 if FULL else 5


class Ours:
    """A worker on share-partition ``number``: each step answers its batch and leases the next."""

    def __init__(self, cursor: Any, number: int) -> None:
        self.cursor, self.number, self.member = cursor, number, f"m{multiprocessing.current_process().pid}"
        cursor.execute(
            "select token::text, lower(offsets), upper(offsets) - 1"
            " from sharequeue.acquire('bench', 't', %s, 1, %s, null, %s)",
            (number, self.member, BATCH),
        )
        self.held = cursor.fetchone()

    def step(self) -> None:
        """One call."""
        token, first, last = self.held
        self.cursor.execute(
            "select token::text, lower(offsets), upper(offsets) - 1 from sharequeue.acknowledge_and_acquire("
            "'bench', 't', %s, 1, %s, null, %s, null, %s, %s, '{1}', %s, 'kafka')",
            (self.number, self.member, token, [first], [last], BATCH),
        )
        self.held = self.cursor.fetchone()

    def end(self) -> None:
        """Acknowledge what is left, so that the next round finds nothing to redeliver."""
        token, first, last = self.held
        self.cursor.execute(
            "select sharequeue.acknowledge_batches('bench', 't', %s, 1, %s, null, %s, null, %s, %s, '{1}')",
            (self.number, self.member, token, [first], [last]),
        )


class Bare:
    """The same by the prototype."""

    def __init__(self, cursor: Any, number: int) -> None:
        self.cursor, self.number, self.held = cursor, number, (-1, -1)

    def step(self) -> None:
        """One call."""
        self.cursor.execute("select * from bare.fetch(%s, %s, %s, %s)", (self.number + 1, *self.held, BATCH))
        self.held = self.cursor.fetchone()

    def end(self) -> None:
        """Leave its last batch: the prototype knows no lapse."""


SIDES: dict[str, type[Ours] | type[Bare]] = {"ours": Ours, "bare": Bare}


def worker(url: str, side: str, number: int, ready: Barrier, counted: Any) -> None:
    """One client: a process with a connection of its own, its plans warm before the clock starts."""
    client = SIDES[side](connect(url).cursor(), number)
    for _ in range(50):
        client.step()
    ready.wait()
    calls, until = 0, time.perf_counter() + SECONDS
    while time.perf_counter() < until:
        client.step()
        calls += 1
    counted.put(calls)
    client.end()


def calls_per_second(url: str, side: str, share_partitions: list[int]) -> float:
    """Calls a second of as many clients as there are numbers, each on its share-partition."""
    context = multiprocessing.get_context("fork")
    ready, counted = context.Barrier(len(share_partitions)), context.Queue()
    clients = [
        context.Process(target=worker, args=(url, side, number, ready, counted))
        for number in share_partitions
    ]
    for client in clients:
        client.start()
    total: int = sum(counted.get() for _ in clients)
    for client in clients:
        client.join()
    return total / SECONDS


def main() -> None:
    """Measure each shape in turn and print the table."""
    shapes = [("one connection", [0]), ("eight on one", [0] * 8), ("eight on eight", list(range(8)))]
    with server() as url:
        with connect(url) as connection, connection.cursor() as cursor:
            cursor.execute((Path(__file__).parent / "bare_fetch.sql").read_text())
            for number in range(8):
                share_partition(cursor, "t", 10**15, number)
        measured = in_turn(
            [
                partial(calls_per_second, url, side, numbers)
                for side in ("ours", "bare")
                for _, numbers in shapes
            ],
            ROUNDS,
        )
        rows = []
        for at, side in enumerate(("acknowledge_and_acquire", "bare prototype")):
            alone = measured[at * 3]
            for shape, (name, _) in enumerate(shapes):
                figures, bare = measured[at * 3 + shape], measured[3 + shape]
                of_one, of_bare = (
                    f"{median([f / p for f, p in zip(figures, peer, strict=True)]):.2f}"
                    for peer in (alone, bare)
                )
                rows.append((side, name, f"{median(figures):,.0f}", spread(figures), of_one, of_bare))
        report(
            url,
            f"P5: calls of {BATCH} records a second (goals: eight on one 0.60 of bare, eight on eight 2.00 of one)",
            (
                "side",
                "connections",
                f"calls/s, median of {ROUNDS}",
                "calls/s, range",
                "of one",
                "of the bare",
            ),
            rows,
        )


if __name__ == "__main__":
    main()
