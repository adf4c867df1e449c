"""P6: acquire and acknowledge of one lease as the backlog, the lease and the window grow.

The backlog: 500 records leased from logs of 1,000 to 10⁹. The lease: 1 to 10⁷ records. The window: 500 records leased
and acknowledged while many batches are in flight after a fixed first record, held by other members (they cannot
merge) or acknowledged (they can). In addition a description of each of these share-partitions, whose time may grow.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.database import connect, server, share_partitions
from benchmarks.harness import Side, Table, case, in_turn, median, number, seconds, spread

CALLS = 100
ACQUIRE = (
    "select token::text, lower(offsets), upper(offsets) from sharequeue.acquire('bench', %s, 0, 1, %s, null, %s,"
    " 600000)"
)
ACCEPT = (
    "select error_code from sharequeue.acknowledge('bench', %s, 0, 1, 'm', null, %s, null,"
    " int8multirange(int8range(%s, %s)), '{}', '{}', '{}')"
)


def pair(cursor: Any, topic: str, records: int, member: str = "m") -> None:
    """Lease this number of records; acknowledge them if they are the member's own."""
    cursor.execute(ACQUIRE, (topic, member, records))
    if member == "m":
        cursor.execute(ACCEPT, (topic, *cursor.fetchone()))


def pairs(cursor: Any, topic: str, records: int) -> float:
    """Return the microseconds of one acquire and one acknowledgement."""

    def run() -> None:
        for _ in range(CALLS):
            pair(cursor, topic, records)

    return seconds(run) / CALLS * 1e6


def describe(cursor: Any, topic: str) -> float:
    """Return the microseconds of a description of the share-partition."""
    query = "select * from sharequeue.share_partition_status where topic = %s"
    return seconds(lambda: cursor.execute(query, (topic,))) * 1e6


def sides_of(cursor: Any, most_batches: int, step: int) -> dict[tuple[str, str], Side]:
    """Create the share-partitions; return each measurement by the growing quantity and its value."""
    sides: dict[tuple[str, str], Side] = {}
    for exponent in range(3, 10, 2):
        # The log must be long enough for all rounds: the smallest one is leased completely many times.
        topic, most = f"backlog{exponent}", 10**exponent // (CALLS * 8) or 1
        share_partitions(cursor, topic, 10**exponent)
        sides["backlog", f"10^{exponent} records"] = partial(pairs, cursor, topic, min(500, most))
    for exponent in range(0, 8, step):
        share_partitions(cursor, f"lease{exponent}", 10**12)
        sides["lease", f"10^{exponent} records"] = partial(pairs, cursor, f"lease{exponent}", 10**exponent)
    for kind, member in (("held by others", "other"), ("acknowledged", "m")):
        batches = 100
        while batches <= most_batches:
            topic, size = f"window-{member}-{batches}", f"{batches:,} batches"
            share_partitions(cursor, topic, 10**12)
            pair(cursor, topic, 500, "head")
            for _ in range(batches):
                pair(cursor, topic, 500, member)
            sides[f"window, {kind}", size] = partial(pairs, cursor, topic, 500)
            sides[f"describe: window, {kind}", size] = partial(describe, cursor, topic)
            batches *= 10
    return sides


@case(
    "P6", "every acquire + acknowledge within 0.85 … 1.15 of the smallest of its kind", batches=10_000, step=3
)
def growth(batches: int = 100_000, step: int = 1, rounds: int = 7) -> Iterator[Table]:
    """Measure an operation as the backlog, the lease and the window grow."""
    with server() as url:
        cursor = connect(url).cursor()
        sides = sides_of(cursor, batches, step)
        cursor.execute("vacuum analyze sharequeue.in_flight_batches, sharequeue.leases")
        measured = in_turn({" to ".join(names): side for names, side in sides.items()}, rounds)
    smallest: dict[str, float] = {}
    rows = []
    for (kind, size), figures in zip(sides, measured.values(), strict=True):
        base = smallest.setdefault(kind, median(figures))
        rows.append((kind, size, number(median(figures)), spread(figures), f"{median(figures) / base:.2f}"))
    yield Table(("what grows", "to", f"µs, median of {rounds}", "range", "× the smallest"), rows)
