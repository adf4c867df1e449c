"""P18: single failures scattered over very many records, in the state.

One record in a hundred of a lease is released, all others are accepted; then the released records are leased again.
Compared with the same acknowledgement with its sets as text, as other callers may use the SQL functions. The cost of
reading the records again is in `p08_second_pass`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from benchmarks.database import acknowledge, connect, server, share_partitions
from benchmarks.harness import Table, case, median, number, seconds, spread
from sharequeue.database import Database
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import AcknowledgeType, SharePartition
from sharequeue.state import State

_topics = count()


def once(
    cursor: Any, database: Database, released: OffsetSet, as_text: bool, records: int
) -> tuple[float, float]:
    """Return the seconds of the acknowledgement, and of the acquire after it."""
    state, at = State(database), SharePartition("bench", f"t{next(_topics)}", 0)
    share_partitions(cursor, at.topic, records)
    (lease,) = state.acquire([at], "m", None, records, lock_duration_ms=600_000).leases
    accepted = lease.offsets - released

    def first() -> None:
        if as_text:
            cursor.execute(
                "select error_code from sharequeue.acknowledge('bench', %s, 0, %s, 'm', null, %s, null,"
                " %s, %s, '{}', '{}')",
                (at.topic, lease.state_epoch, str(lease.token), str(accepted), str(released)),
            )
            assert cursor.fetchone() == (0,)
        else:
            outcomes = {AcknowledgeType.ACCEPT: accepted, AcknowledgeType.RELEASE: released}
            assert acknowledge(state, lease, outcomes).released == released.count

    def then() -> None:
        if as_text:
            cursor.execute(
                "select offsets from sharequeue.acquire('bench', %s, 0, null, 'm', null, %s,"
                " p_redelivery => 'fan_out')",
                (at.topic, records),
            )
            assert OffsetSet.parse(cursor.fetchone()[0]) == released
        else:
            (again,) = state.acquire([at], "m", None, records, lock_duration_ms=600_000).leases
            assert again.offsets == released

    taken = seconds(first), seconds(then)
    # The remaining state would affect the next measurement.
    cursor.execute("select sharequeue.delete_offsets('bench', %s)", (at.topic,))
    return taken


@case(
    "P18", "10⁸ records, as State sends them: acknowledge ≤ 5 s, next acquire ≤ 5 s", records=10**7, rounds=3
)
def scattered(records: int = 10**8, rounds: int = 2) -> Iterator[Table]:
    """Measure what failures cost the state that are scattered singly over very many records."""
    warm_up = 1 if records < 10**8 else 0
    taken: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    with server() as url, Database(url) as database:
        cursor, released = connect(url).cursor(), OffsetSet.from_offsets(range(0, records, 100))
        for round_ in range(rounds + warm_up):
            for as_text, figures in taken.items():
                figure = once(cursor, database, released, as_text, records)
                if round_ >= warm_up:
                    figures.append(figure)
    rows = []
    for at, what in enumerate(("acknowledge", "next acquire")):
        text, ours = ([each[at] for each in taken[as_text]] for as_text in (True, False))
        ratio = f"{median(ours) / median(text):.2f}"
        rows.append((f"{what}, sets as text", number(median(text)), spread(text), ""))
        rows.append((f"{what}, as State sends them", number(median(ours)), spread(ours), ratio))
    headings = ("what", f"seconds, median of {rounds}", "range", "× the time as text")
    yield Table(headings, rows, f"{records:,} records, 1 % released singly")
