"""P7: what does one acknowledgement of many alternating runs cost?

Accept and release take turns, one record a run: nothing merges. In one in-flight batch, and over a lease of many
batches of ten records; as sets (`acknowledge`) and as Kafka's arrays (`acknowledge_batches`). The goal: 100,000 runs
in at most 0.7 s, and near-linear, which is a flat last column.

    .venv/bin/python benchmarks/bench_acknowledge.py [--full]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

from rig import FULL, connect, in_turn, median, report, seconds, server, share_partition, spread

RUNS = (1_000, 10_000, 100_000, 1_000_000) if FULL else (1_000, 10_000, 100_000)
BATCH = 10
_topics = count()


def leased(cursor: Any, runs: int, batches: int) -> tuple[str, str]:
    """A lease of so many records in so many batches; gives topic and token."""
    topic = f"t{next(_topics)}"
    share_partition(cursor, topic, runs)
    firsts = range(0, runs, runs // batches)
    lasts = [first + runs // batches - 1 for first in firsts]
    cursor.execute(
        "select token::text from sharequeue.acquire('bench', %s, 0, 1, 'm', null, %s, 600000, null, 'kafka',"
        " 'batch_optimized', 1, cast(%s as bigint[]), cast(%s as bigint[]))",
        (topic, runs, _array(firsts), _array(lasts)),
    )
    return topic, cursor.fetchone()[0]


def as_sets(cursor: Any, runs: int, batches: int) -> float:
    """Seconds of one acknowledgement by sets."""
    topic, token = leased(cursor, runs, batches)
    accept = "{" + ",".join(f"[{at},{at + 1})" for at in range(0, runs, 2)) + "}"
    release = "{" + ",".join(f"[{at},{at + 1})" for at in range(1, runs, 2)) + "}"
    return _acknowledged(
        cursor,
        "select error_code from sharequeue.acknowledge('bench', %s, 0, 1, 'm', null, %s, null, %s, %s, '{}', '{}')",
        (topic, token, accept, release),
    )


def as_arrays(cursor: Any, runs: int, batches: int) -> float:
    """Seconds of one acknowledgement by arrays."""
    topic, token = leased(cursor, runs, batches)
    offsets, types = _array(range(runs)), _array([1, 2] * (runs // 2))
    return _acknowledged(
        cursor,
        "select error_code from sharequeue.acknowledge_batches('bench', %s, 0, 1, 'm', null, %s, null,"
        " cast(%s as bigint[]), cast(%s as bigint[]), cast(%s as smallint[]))",
        (topic, token, offsets, offsets, types),
    )


def _array(values: Any) -> str:
    # As text: an ARRAY[…] of 100,000 elements costs Postgres' parser 0.4 s.
    return "{" + ",".join(map(str, values)) + "}"


def _acknowledged(cursor: Any, query: str, parameters: tuple[object, ...]) -> float:
    taken = seconds(lambda: cursor.execute(query, parameters))
    assert cursor.fetchone() == (0,)
    return taken


def main() -> None:
    """Measure every shape in turn and print the table."""
    shapes: list[tuple[str, Callable[[Any, int, int], float], int, int]] = [
        (f"{how}, {'one batch' if one else f'batches of {BATCH}'}", side, runs, 1 if one else runs // BATCH)
        for how, side in (("sets", as_sets), ("arrays", as_arrays))
        for one in (True, False)
        for runs in RUNS
        # A million batches are a million rows: minutes, and nobody's lease.
        if one or runs <= 100_000
    ]
    with server() as url:
        connection = connect(url)
        cursor = connection.cursor()
        measured = in_turn([partial(side, cursor, runs, n) for _, side, runs, n in shapes], 5)
        rows = [
            (name, f"{runs:,}", f"{median(m) * 1e3:,.1f}", spread(m, 1e3), f"{median(m) * 1e6 / runs:.2f}")
            for (name, _, runs, _), m in zip(shapes, measured, strict=True)
        ]
        report(
            url,
            "P7: one acknowledgement of alternating runs (goal: 100,000 in 700 ms)",
            ("how", "runs", "ms, median of 5", "ms, range", "µs a run"),
            rows,
        )


if __name__ == "__main__":
    main()
