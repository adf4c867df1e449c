"""P7: one acknowledgement of many alternating runs.

Accept and release alternate, one record per run, so that no runs merge. Measured in one in-flight batch, and over a
lease of batches of ten records; as sets (`acknowledge`) and as Kafka's arrays (`acknowledge_batches`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

from benchmarks.database import connect, server, share_partitions
from benchmarks.harness import Table, case, in_turn, median, number, seconds, spread

BATCH = 10
_topics = count()


def leased(cursor: Any, runs: int, batches: int) -> tuple[str, str]:
    """Lease the given number of records in the given number of batches; return topic and token."""
    topic = f"t{next(_topics)}"
    share_partitions(cursor, topic, runs)
    firsts = range(0, runs, runs // batches)
    lasts = [first + runs // batches - 1 for first in firsts]
    cursor.execute(
        "select token::text from sharequeue.acquire('bench', %s, 0, 1, 'm', null, %s, 600000, null, 'kafka',"
        " 'batch_optimized', 1, cast(%s as bigint[]), cast(%s as bigint[]))",
        (topic, runs, array(firsts), array(lasts)),
    )
    return topic, cursor.fetchone()[0]


def as_sets(cursor: Any, runs: int, batches: int) -> float:
    """Return the seconds of one acknowledgement by sets."""
    accept = "{" + ",".join(f"[{at},{at + 1})" for at in range(0, runs, 2)) + "}"
    release = "{" + ",".join(f"[{at},{at + 1})" for at in range(1, runs, 2)) + "}"
    query = (
        "select error_code from sharequeue.acknowledge('bench', %s, 0, 1, 'm', null, %s, null, %s, %s,"
        " '{}', '{}')"
    )
    return acknowledged(cursor, query, (*leased(cursor, runs, batches), accept, release))


def as_arrays(cursor: Any, runs: int, batches: int) -> float:
    """Return the seconds of one acknowledgement by arrays."""
    offsets, types = array(range(runs)), array([1, 2] * (runs // 2))
    query = (
        "select error_code from sharequeue.acknowledge_batches('bench', %s, 0, 1, 'm', null, %s, null,"
        " cast(%s as bigint[]), cast(%s as bigint[]), cast(%s as smallint[]))"
    )
    return acknowledged(cursor, query, (*leased(cursor, runs, batches), offsets, offsets, types))


def array(values: Any) -> str:
    """Format an array as text: Postgres needs 0.4 s to parse an ARRAY[…] of 100,000 elements."""
    return "{" + ",".join(map(str, values)) + "}"


def acknowledged(cursor: Any, query: str, parameters: tuple[object, ...]) -> float:
    """Return the seconds of an acknowledgement, which must succeed."""
    taken = seconds(lambda: cursor.execute(query, parameters))
    assert cursor.fetchone() == (0,)
    return taken


@case(
    "P7",
    "100,000 runs: ≤ 700 ms in one batch, ≤ 1,000 ms in 10,000 batches; near-linear: a flat last column",
    most=100_000,
)
def acknowledgement(most: int = 1_000_000, rounds: int = 5) -> Iterator[Table]:
    """Measure one acknowledgement of many alternating runs."""
    hows: dict[str, Callable[[Any, int, int], float]] = {"sets": as_sets, "arrays": as_arrays}
    shapes = {
        (f"{how}, {'one batch' if one else f'batches of {BATCH}'}", runs): (side, 1 if one else runs // BATCH)
        for how, side in hows.items()
        for one in (True, False)
        for runs in (1_000, 10_000, 100_000, 1_000_000)
        # A million batches are a million rows: they take minutes, and no real lease has so many.
        if runs <= (most if one else min(most, 100_000))
    }
    with server() as url:
        cursor = connect(url).cursor()
        sides = {
            f"{name}, {runs}": partial(side, cursor, runs, batches)
            for (name, runs), (side, batches) in shapes.items()
        }
        measured = in_turn(sides, rounds)
    rows = [
        (name, f"{runs:,}", number(median(m) * 1e3), spread(m, 1e3), f"{median(m) * 1e6 / runs:.2f}")
        for (name, runs), m in zip(shapes, measured.values(), strict=True)
    ]
    yield Table(("how", "runs", f"ms, median of {rounds}", "range", "µs a run"), rows)
