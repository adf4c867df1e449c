"""What does a run with a thousand share-partitions ask of the state, one by one and many in a call (P17)?

Both sides in the same Postgres, taking turns, each on a thousand share-partitions of its own: what a run does around
its Spark job, that is observe, acquire 100 records of each, one turn of renewals, acknowledge. One by one: a call for
each share-partition, one after the other. Many in a call: observe in one, the others by 200. And the idle watch: how
much write-ahead log it makes to look at all of them again when nothing has changed.

    .venv/bin/python benchmarks/bench_many.py [--full]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count

import sqlalchemy as sa
from rig import FULL, connect, in_turn, median, report, server, spread

from sharequeue.database import Database
from sharequeue.state import State
from sharequeue.state.many import LeaseAcknowledgement, in_calls
from sharequeue.values import AcknowledgeType, Lease, LogSeen, SharePartition

PARTITIONS = 1_000
RECORDS = 100
ROUNDS = 7 if FULL else 3
STEPS = ("observe", "acquire", "renew", "acknowledge")
_topics = count()


def started(state: State) -> list[SharePartition]:
    """A topic of a thousand partitions that group ``bench`` has just begun with."""
    topic = f"t{next(_topics)}"
    with state.transaction() as (connection, _):
        connection.execute(
            sa.text(
                "select sharequeue.initialize('bench', :topic, n, 'id', 0, 1) from generate_series(0, :last) as n"
            ),
            {"topic": topic, "last": PARTITIONS - 1},
        )
    return [SharePartition("bench", topic, number) for number in range(PARTITIONS)]


def one_by_one(state: State, at: list[SharePartition]) -> list[Callable[[], object]]:
    """The four steps, a call for each share-partition."""
    leases: list[Lease] = []

    def acquire() -> None:
        for each in at:
            lease = state.acquire(each, "m", None, RECORDS, lock_duration_ms=60_000)
            assert lease is not None
            leases.append(lease)

    return [
        lambda: [state.observe(each, "id", 0, RECORDS, RECORDS) for each in at],
        acquire,
        lambda: [state.renew(lease) for lease in leases],
        lambda: [state.acknowledge(lease, {AcknowledgeType.ACCEPT: lease.offsets}) for lease in leases],
    ]


def many(state: State, at: list[SharePartition]) -> list[Callable[[], object]]:
    """The four steps, many share-partitions in a call."""
    leases: list[Lease] = []

    def acquire() -> None:
        for some in in_calls(at):
            acquired = state.many.acquire(some, "m", None, RECORDS * len(some), lock_duration_ms=60_000)
            leases.extend(acquired.leases)

    def acknowledge() -> None:
        for some in in_calls(leases):
            state.many.acknowledge(
                [LeaseAcknowledgement(lease, {AcknowledgeType.ACCEPT: lease.offsets}) for lease in some]
            )

    return [
        lambda: state.many.observe([LogSeen(each, "id", 0, RECORDS, RECORDS) for each in at]),
        acquire,
        lambda: [state.many.renew(some) for some in in_calls(leases)],
        acknowledge,
    ]


def logged(database: Database, look: Callable[[], object]) -> float:
    """Bytes of write-ahead log that ten looks make."""

    def position() -> int:
        at = database.rows(sa.text("select pg_current_wal_insert_lsn() - '0/0' as at"))[0]["at"]
        return int(at)

    before = position()
    for _ in range(10):
        look()
    return (position() - before) / 10


def main() -> None:
    """Take turns, and print the table."""
    with server() as url, Database(url) as database:
        state = State(database)
        times: dict[str, list[list[float]]] = {"one by one": [], "many in a call": []}

        def side(
            name: str, steps: Callable[[State, list[SharePartition]], list[Callable[[], object]]]
        ) -> float:
            taken = []
            for step in steps(state, started(state)):
                began = time.perf_counter()
                step()
                taken.append(time.perf_counter() - began)
            times[name].append(taken)
            return sum(taken)

        sums = in_turn([lambda: side("one by one", one_by_one), lambda: side("many in a call", many)], ROUNDS)
        rows = []
        for (name, taken), of_side in zip(times.items(), sums, strict=True):
            medians = [median([each[step] for each in taken[1:]]) for step in range(len(STEPS))]
            ratio = median(of_side) / median(sums[0])
            rows.append(
                [
                    name,
                    *(f"{value * 1000:,.0f}" for value in medians),
                    f"{median(of_side) * 1000:,.0f}",
                    spread(of_side, 1000),
                    f"{ratio:.2f}",
                ]
            )
        at = started(state)
        seen = [LogSeen(each, "id", 0, RECORDS, RECORDS) for each in at]
        state.many.observe(seen)
        # What the rounds have left behind is written down now, and not while it is measured.
        with connect(url).cursor() as cursor:
            cursor.execute("vacuum analyze")
            cursor.execute("checkpoint")
        state.many.observe(seen)
        idle = [
            logged(database, lambda: [state.observe(each, "id", 0, RECORDS, RECORDS) for each in at]),
            logged(database, lambda: state.many.observe(seen)),
        ]
        for row, size in zip(rows, idle, strict=True):
            row.append(f"{size / 1024:,.1f}")
        report(
            url,
            f"P17: {PARTITIONS:,} share-partitions, ms, median of {ROUNDS} (goal: 1,000 ms together)",
            ["side", *STEPS, "together", "range", "of one by one", "idle look, kB of WAL"],
            rows,
        )


if __name__ == "__main__":
    main()
