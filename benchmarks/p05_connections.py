"""P5: eight connections on one share-partition, and on eight; and the number of calls by connections.

A batch of 500 records is acknowledged and the next one acquired, in two calls, by one process, by eight on one
share-partition, by eight on eight. The peer is the bare prototype of `bare_fetch.sql`: two statements, no rules, one
commit. On one share-partition the row lock is held over each commit's flush. Every client is a process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import cycle
from multiprocessing import get_context
from typing import Any

from benchmarks.database import BATCH, accept, connect, fetch, server, share_partitions
from benchmarks.harness import Table, case, in_turn, median, number, percentile, spread
from benchmarks.p04_state_calls import PROTOTYPE

WARM_UP = 50
"""Steps before the measurement, so that plans are cached."""
SHAPES = {"one connection": [[0]], "eight on one": [[0]] * 8, "eight on eight": [[at] for at in range(8)]}
"""The share-partitions of each connection."""
LOADS = ((100, 1), (1_000, 1), (1_000, 2), (1_000, 4), (1_000, 16), (1_000, 64), (10_000, 4), (10_000, 64))
"""Share-partitions and connections."""


def ours(cursor: Any, at: int, held: Any) -> Any:
    """Acknowledge the held records and acquire the next batch."""
    return fetch(cursor, "t", [at], f"m{os.getpid()}", held or {})


def bare(cursor: Any, at: int, held: Any) -> Any:
    """Do the same with the prototype."""
    cursor.execute("select * from bare.fetch(%s, %s, %s, %s)", (at + 1, *(held or (-1, -1)), BATCH))
    return cursor.fetchone()


STEPS = {"acknowledge and acquire": ours, "bare prototype": bare}


def client(url: str, side: str, mine: Sequence[int], duration: float, ready: Any, results: Any) -> None:
    """Record the seconds of each step of one client."""
    cursor, step, held, times = connect(url).cursor(), STEPS[side], dict[int, Any](), list[float]()
    turns = cycle(mine)
    for at in (next(turns) for _ in range(WARM_UP)):
        held[at] = step(cursor, at, held.get(at))
    ready.wait()
    began = time.perf_counter()
    until = began + duration
    while began < until:
        at = next(turns)
        held[at] = step(cursor, at, held.get(at))
        times.append(-(began - (began := time.perf_counter())))
    results.put(times)
    if step is ours:
        # The next round must not have records to deliver again.
        for each in held.values():
            accept(cursor, "t", f"m{os.getpid()}", each)


def times_of(url: str, side: str, clients: Sequence[Sequence[int]], duration: float) -> list[float]:
    """Return the seconds of the steps of all clients together."""
    context = get_context("fork")
    ready, results = context.Barrier(len(clients)), context.Queue()
    running = [
        context.Process(target=client, args=(url, side, mine, duration, ready, results)) for mine in clients
    ]
    for each in running:
        each.start()
    times = [taken for _ in running for taken in results.get()]
    for each in running:
        each.join()
    return times


@case("P5", "eight on one ≥ 0.6 of the bare; eight on eight ≥ 2 of one", duration=1.0, rounds=5)
def connections(duration: float = 4.0, rounds: int = 7) -> Iterator[Table]:
    """Compare eight connections with one, and with eight of the bare prototype."""

    def rate(url: str, side: str, clients: list[list[int]]) -> float:
        return len(times_of(url, side, clients, duration)) / duration

    with server() as url:
        cursor = connect(url).cursor()
        cursor.execute(PROTOTYPE.read_text())
        share_partitions(cursor, "t", 10**15, 8)
        sides = {
            f"{side}, {shape}": partial(rate, url, side, clients)
            for side in STEPS
            for shape, clients in SHAPES.items()
        }
        measured = in_turn(sides, rounds)
    rows = []
    for name, figures in measured.items():
        side, shape = name.split(", ")
        of = (f"{side}, one connection", f"bare prototype, {shape}")
        ratios = (median([a / b for a, b in zip(figures, measured[each], strict=True)]) for each in of)
        rows.append((name, number(median(figures)), spread(figures), *(f"{each:.2f}" for each in ratios)))
    headings = ("side", f"steps/s, median of {rounds}", "range", "of one", "of the bare")
    yield Table(headings, rows, f"steps of {BATCH} records a second")


@case("", "none: what docs/explanation/scaling.md computes with", duration=2.5)
def scaling(duration: float = 6.0) -> Iterator[Table]:
    """Measure calls by connections and share-partitions."""
    rows = []
    with server() as url:
        cursor = connect(url).cursor()
        for count, clients in LOADS:
            cursor.execute("truncate sharequeue.share_partitions cascade")
            share_partitions(cursor, "t", 10**12, count)
            mine = [range(at, count, clients) for at in range(clients)]
            times = times_of(url, "acknowledge and acquire", mine, duration)
            rate, late = len(times) / duration, (f"{percentile(times, each) * 1000:.2f}" for each in (50, 99))
            rows.append((f"{count:,}", str(clients), f"{rate:,.0f}", f"{rate * BATCH:,.0f}", *late))
    headings = ("share-partitions", "connections", "steps/s", "records/s", "p50, ms", "p99, ms")
    yield Table(headings, rows, f"steps of {BATCH} records")
