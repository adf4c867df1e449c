"""What does it cost when locks lapse at scale?

The sweep of one lapsed lease, of 10⁷ records in one batch and of 100,000 alternating runs in another; the settling of
1,000 and 10,000 lapsed leases inside an operation, which may not go on before, and by `sweep(100)`, whose work is
bounded; the division of a million suspects under fan_out until every record is alone, acquire and lapse by turns.

    .venv/bin/python benchmarks/bench_redelivery.py [--full]
"""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import Any

from rig import FULL, connect, in_turn, median, report, seconds, server, share_partition, spread

LEASES = (100, 1_000, 10_000) if FULL else (100, 1_000)
_topics = count()
_hours = count(1)


def leased(cursor: Any, records: int, leases: int = 1, redelivery: str = "kafka") -> str:
    """A share-partition with so many leases of so many records each."""
    topic = f"t{next(_topics)}"
    share_partition(cursor, topic, records * leases)
    for _ in range(leases):
        cursor.execute(
            "select error_message from sharequeue.acquire('bench', %s, 0, 1, 'm', null, %s, 600000, null, %s)",
            (topic, records, redelivery),
        )
        assert cursor.fetchone() == (None,)
    return topic


def lapse(cursor: Any) -> None:
    """An hour passes, and the service was at work: a silence would be an outage, which locks outlast."""
    cursor.execute("select sharequeue.set_clock_offset(make_interval(hours => %s))", (next(_hours),))
    cursor.execute("select sharequeue.beat(interval '1000 days')")


def one_lease(cursor: Any, records: int, *, scattered: bool) -> float:
    """Milliseconds of the sweep of one lapsed lease; scattered: every other record of it was accepted."""
    topic = leased(cursor, records)
    if scattered:
        accept = "{" + ",".join(f"[{at},{at + 1})" for at in range(1, records, 2)) + "}"
        cursor.execute(
            "select from sharequeue.acknowledge('bench', %s, 0, 1, 'm', null, null, null, %s, '{}', '{}', '{}')",
            (topic, accept),
        )
    lapse(cursor)
    return seconds(lambda: cursor.execute("select sharequeue.sweep(1000)")) * 1e3


def many_leases(cursor: Any, leases: int, *, inside: bool) -> float:
    """Milliseconds a lease of their settling: inside an acquire, or by sweeps of 100."""
    topic = leased(cursor, 500, leases)
    lapse(cursor)
    if inside:
        taken = seconds(
            lambda: cursor.execute(
                "select from sharequeue.acquire('bench', %s, 0, 1, 'other', null, 1, null, null, 'fan_out')",
                (topic,),
            )
        )
        # What it leased lapses before the next side is measured.
        lapse(cursor)
        cursor.execute("select sharequeue.sweep(1000)")
    else:

        def sweeps() -> None:
            for _ in range(leases // 100):
                cursor.execute("select leases from sharequeue.sweep(100)")
                assert cursor.fetchone() == (100,)

        taken = seconds(sweeps)
    return taken / leases * 1e3


def division(cursor: Any, suspects: int) -> tuple[int, float]:
    """One poison among so many suspects: leases until it is alone at its last delivery, and milliseconds of one of
    those leases, acquire and sweep."""
    topic, steps = leased(cursor, suspects, redelivery="fan_out"), 0
    lapse(cursor)
    cursor.execute("select sharequeue.sweep(1000)")

    def divide() -> None:
        nonlocal steps
        while True:
            cursor.execute(
                "select token::text, delivery_count, offsets::text, lower(offsets)"
                " from sharequeue.acquire('bench', %s, 0, 1, 'm', null, %s, 600000, null, 'fan_out')",
                (topic, suspects),
            )
            row = cursor.fetchone()
            if row is None:
                return
            steps += 1
            token, deliveries, offsets, first = row
            if first == 0:
                # The poison kills its worker again and again, until it is given up alone.
                lapse(cursor)
                cursor.execute("select sharequeue.sweep(1000)")
                if deliveries == 5:
                    assert offsets == "{[0,1)}"
            else:
                cursor.execute(
                    "select from sharequeue.acknowledge('bench', %s, 0, 1, 'm', null, %s, null, %s,"
                    " '{}', '{}', '{}')",
                    (topic, token, offsets),
                )

    taken = seconds(divide)
    return steps, taken / steps * 1e3


def main() -> None:
    """Measure each shape in turn and print the table."""
    with server() as url:
        connection = connect(url)
        cursor = connection.cursor()
        sides = [
            ("sweep of a lease of 10^3 records", "ms", partial(one_lease, cursor, 10**3, scattered=False)),
            ("sweep of a lease of 10^7 records", "ms", partial(one_lease, cursor, 10**7, scattered=False)),
            (
                "sweep of a lease with 50,000 single records left",
                "ms",
                partial(one_lease, cursor, 10**5, scattered=True),
            ),
        ]
        for leases in LEASES:
            sides += [
                (
                    f"{leases:,} leases settled by an acquire",
                    "ms a lease",
                    partial(many_leases, cursor, leases, inside=True),
                ),
                (
                    f"{leases:,} leases settled by sweep(100)",
                    "ms a lease",
                    partial(many_leases, cursor, leases, inside=False),
                ),
            ]
        measured = in_turn([side for _, _, side in sides], 5)
        rows = [
            (name, f"{median(figures):,.2f}", unit, spread(figures))
            for (name, unit, _), figures in zip(sides, measured, strict=True)
        ]
        steps, taken = division(cursor, 10**6)
        rows.append((f"a million suspects, one poison: {steps} leases", f"{taken:,.2f}", "ms a lease", ""))
        report(url, "Redelivery at scale", ("what", "median of 5", "unit", "range"), rows)


if __name__ == "__main__":
    main()
