"""P6: does an operation cost more as the backlog, the lease or the window grows?

Acquire and acknowledge of one lease, in three questions. The backlog: 500 records leased out of logs of 1,000 to 10⁹.
The lease: 1 to 10⁷ records in one. The window: 500 records leased and acknowledged while so many other batches are in
flight behind a pinned head, held by others (they cannot merge), or acknowledged (they can). Goal: flat, ± 15 %.

    .venv/bin/python benchmarks/bench_growth.py [--full]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rig import FULL, connect, in_turn, median, report, seconds, server, share_partition, spread

CALLS = 100
WINDOWS = (100, 1_000, 10_000, 100_000) if FULL else (100, 1_000, 10_000)
ACQUIRE = (
    "select token::text, lower(offsets), upper(offsets) from sharequeue.acquire('bench', %s, 0, 1, %s, null, %s,"
    " 600000)"
)
ACCEPT = (
    "select error_code from sharequeue.acknowledge('bench', %s, 0, 1, 'm', null, %s, null,"
    " int8multirange(int8range(%s, %s)), '{}', '{}', '{}')"
)


def pairs(cursor: Any, topic: str, records: int) -> float:
    """Microseconds of one acquire and one acknowledgement of so many records, over CALLS of them."""

    def run() -> None:
        for _ in range(CALLS):
            cursor.execute(ACQUIRE, (topic, "m", records))
            token, first, past = cursor.fetchone()
            cursor.execute(ACCEPT, (topic, token, first, past))

    return seconds(run) / CALLS * 1e6


def window(cursor: Any, topic: str, batches: int, *, acknowledged: bool) -> None:
    """A pinned head and so many batches of 500 behind it: acknowledged, or each held by somebody else."""
    share_partition(cursor, topic, 10**12)
    cursor.execute(ACQUIRE, (topic, "head", 500))
    for _ in range(batches):
        cursor.execute(ACQUIRE, (topic, "m" if acknowledged else "other", 500))
        if acknowledged:
            token, first, past = cursor.fetchone()
            cursor.execute(ACCEPT, (topic, token, first, past))


def describe(cursor: Any, topic: str) -> float:
    """Microseconds of a description of the share-partition."""
    return (
        seconds(
            lambda: cursor.execute(
                "select * from sharequeue.share_partition_status where topic = %s", (topic,)
            )
        )
        * 1e6
    )


def main() -> None:
    """Measure every size in turn and print the table."""
    with server() as url:
        connection = connect(url)
        cursor = connection.cursor()
        sides: list[tuple[str, str, Callable[[], float]]] = []
        for exponent in range(3, 10, 2):
            # So many rounds of calls must fit in: the smallest log is leased whole again and again.
            topic, most = f"backlog{exponent}", 10**exponent // (CALLS * 8) or 1
            share_partition(cursor, topic, 10**exponent)
            sides.append(("backlog", f"10^{exponent} records", partial(pairs, cursor, topic, min(500, most))))
        for exponent in range(0, 8, 1 if FULL else 3):
            topic = f"lease{exponent}"
            share_partition(cursor, topic, 10**12)
            sides.append(("lease", f"10^{exponent} records", partial(pairs, cursor, topic, 10**exponent)))
        for acknowledged in (False, True):
            for batches in WINDOWS:
                topic = f"window{acknowledged}{batches}"
                window(cursor, topic, batches, acknowledged=acknowledged)
                kind = "window, acknowledged" if acknowledged else "window, held by others"
                sides.append((kind, f"{batches:,} batches", partial(pairs, cursor, topic, 500)))
                sides.append((f"describe: {kind}", f"{batches:,} batches", partial(describe, cursor, topic)))
        cursor.execute("vacuum analyze sharequeue.in_flight_batches, sharequeue.leases")
        measured = in_turn([side for _, _, side in sides], 7)
        smallest: dict[str, float] = {}
        rows = []
        for (question, size, _), figures in zip(sides, measured, strict=True):
            base = smallest.setdefault(question, median(figures))
            rows.append(
                (question, size, f"{median(figures):,.0f}", spread(figures), f"{median(figures) / base:.2f}")
            )
        report(
            url,
            "P6: acquire + acknowledge of one lease, as things grow (goal: within 0.85 … 1.15 of the smallest)",
            ("what grows", "to", "µs, median of 7", "µs, range", "of the smallest"),
            rows,
        )


if __name__ == "__main__":
    main()
