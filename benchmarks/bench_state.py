"""How many records a second does the share-partition state handle, against queues that keep a row a record?

All sides in the same Postgres, every commit flushed, 500 records a batch where the side knows batches. Ours, all
rules and the journal in: an acquire and an acknowledgement a batch, two calls; and the call that does both. The bare
row-per-record queue: `for update skip locked` and a delete, no delivery counts, no locks that lapse: the ceiling of
every queue of that kind. procrastinate and pgqueuer as ``peers.py`` says. Ours and the bare queue use one
connection.

    .venv/bin/python benchmarks/bench_state.py [--full]
"""

from __future__ import annotations

import time
from functools import partial
from itertools import count
from typing import Any

import peers
from rig import FULL, connect, in_turn, median, report, server, share_partition, spread

BATCH = 500
BATCHES = 400 if FULL else 200
JOBS = 20_000 if FULL else 5_000
_topics = count()


def leased(cursor: Any) -> float:
    """Records a second through acquire and acknowledge."""
    topic = f"t{next(_topics)}"
    share_partition(cursor, topic, BATCH * BATCHES)
    started = time.perf_counter()
    for _ in range(BATCHES):
        cursor.execute(
            "select token::text, offsets::text from sharequeue.acquire('bench', %s, 0, 1, 'm', null, %s)",
            (topic, BATCH),
        )
        token, offsets = cursor.fetchone()
        cursor.execute(
            "select error_code"
            " from sharequeue.acknowledge('bench', %s, 0, 1, 'm', null, %s, null, %s, '{}', '{}', '{}')",
            (topic, token, offsets),
        )
    return BATCH * BATCHES / (time.perf_counter() - started)


def fetched(cursor: Any) -> float:
    """Records a second through acknowledge_and_acquire."""
    topic = f"t{next(_topics)}"
    share_partition(cursor, topic, BATCH * (BATCHES + 1))
    cursor.execute(
        "select token::text, lower(offsets), upper(offsets) - 1"
        " from sharequeue.acquire('bench', %s, 0, 1, 'm', null, %s)",
        (topic, BATCH),
    )
    token, first, last = cursor.fetchone()
    started = time.perf_counter()
    for _ in range(BATCHES):
        cursor.execute(
            "select token::text, lower(offsets), upper(offsets) - 1 from sharequeue.acknowledge_and_acquire("
            "'bench', %s, 0, 1, 'm', null, %s, null, %s, %s, '{1}', %s, 'kafka')",
            (topic, token, [first], [last], BATCH),
        )
        token, first, last = cursor.fetchone()
    return BATCH * BATCHES / (time.perf_counter() - started)


def bare(cursor: Any) -> float:
    """Records a second through a row-per-record table."""
    cursor.execute(
        "insert into public.bare_queue select g, 'x' from generate_series(1, %s) as g", (BATCH * BATCHES,)
    )
    started = time.perf_counter()
    for _ in range(BATCHES):
        cursor.execute(
            "delete from public.bare_queue where id in (select id from public.bare_queue order by id limit %s"
            " for update skip locked) returning id",
            (BATCH,),
        )
        cursor.fetchall()
    return BATCH * BATCHES / (time.perf_counter() - started)


def main() -> None:
    """Measure the sides in turn and print the table."""
    with server() as url:
        connection = connect(url)
        cursor = connection.cursor()
        cursor.execute("create table public.bare_queue (id bigint primary key, payload text)")
        sides = [
            (f"sharequeue: acknowledge_and_acquire, {BATCH} a batch", partial(fetched, cursor)),
            (f"sharequeue: acquire + acknowledge, {BATCH} a batch", partial(leased, cursor)),
            (f"bare row-per-record queue, {BATCH} a batch", partial(bare, cursor)),
        ]
        absent = peers.missing()
        if not absent:
            sides += [
                (f"pgqueuer, {peers.BATCH} a fetch", partial(peers.pgqueuer_rate, url, JOBS)),
                (
                    f"procrastinate, {peers.CONCURRENCY} side by side",
                    partial(peers.procrastinate_rate, url, JOBS // 10),
                ),
            ]
        measured = in_turn([side for _, side in sides], 5)
        rows = [
            (
                name,
                f"{median(figures):,.0f}",
                spread(figures),
                f"{median([ours / f for ours, f in zip(measured[0], figures, strict=True)]):,.1f}",
            )
            for (name, _), figures in zip(sides, measured, strict=True)
        ]
        report(
            url,
            "Records a second through the state, and through queues of rows",
            ("side", "records/s, median of 5", "range", "the first is × this"),
            rows,
        )
        print(f"not installed, not measured: {', '.join(absent)}" if absent else peers.versions())


if __name__ == "__main__":
    main()
