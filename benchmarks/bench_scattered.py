"""P18: what do failures cost that are scattered singly over very many records?

First the state: of one lease one record in a hundred is released, all others are accepted; then what was released is
leased again. Against the same acknowledgement with its sets written as text, as anybody may call the SQL functions.
Goal for 10⁸ records: at most 5 s each.

Then the second pass: one record in ten thousand was released, less than one in a log batch. Against a plain scan of
the range in which they lie, and against our own scan of it. Goal: at most 0.3 × the plain scan.

    .venv/bin/python benchmarks/bench_scattered.py [--full] [state|read]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

from leased_rig import PARTITIONS, RECORD_BYTES, fill, group_on, session, stack
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from rig import FULL, connect, in_turn, median, report, seconds, server, share_partition, spread

from sharequeue.database import Database
from sharequeue.kafka.clients import spark_options
from sharequeue.kafka.topics import Topics
from sharequeue.offsets import OffsetSet
from sharequeue.settings import Settings
from sharequeue.spark.reading.frame import READER_OPTIONS, leased_records
from sharequeue.spark.reading.seeking import SEEK
from sharequeue.state import State
from sharequeue.values import AcknowledgeType, Lease, SharePartition

OFFSETS = 10**8 if FULL else 10**7
RECORDS = 4_000_000 if FULL else 2_000_000
BATCH_BYTES = 65_536
TOPIC = "scattered"
ROUNDS = 5 if FULL else 3
_topics = count()


def state_once(cursor: Any, database: Database, released: OffsetSet, *, as_text: bool) -> tuple[float, float]:
    """Seconds of the acknowledgement, and of the acquire after it."""
    state, at = State(database), SharePartition("bench", f"t{next(_topics)}", 0)
    share_partition(cursor, at.topic, OFFSETS)
    (lease,) = state.many.acquire([at], "m", None, OFFSETS, lock_duration_ms=600_000).leases
    accepted = lease.offsets - released

    def acknowledge() -> None:
        if as_text:
            cursor.execute(
                "select error_code from sharequeue.acknowledge('bench', %s, 0, %s, 'm', null, %s, null,"
                " %s, %s, '{}', '{}')",
                (at.topic, lease.state_epoch, str(lease.token), str(accepted), str(released)),
            )
            assert cursor.fetchone() == (0,)
        else:
            outcomes = {AcknowledgeType.ACCEPT: accepted, AcknowledgeType.RELEASE: released}
            assert state.acknowledge(lease, outcomes).released == released.count

    def acquire() -> None:
        if as_text:
            cursor.execute(
                "select offsets from sharequeue.acquire('bench', %s, 0, null, 'm', null, %s,"
                " p_redelivery => 'fan_out')",
                (at.topic, OFFSETS),
            )
            assert OffsetSet.parse(cursor.fetchone()[0]) == released
        else:
            (again,) = state.many.acquire([at], "m", None, OFFSETS, lock_duration_ms=600_000).leases
            assert again.offsets == released

    taken = seconds(acknowledge), seconds(acquire)
    # What is kept of it would be in the way of the next.
    cursor.execute("select sharequeue.delete_offsets('bench', %s)", (at.topic,))
    return taken


def the_state() -> None:
    """Measure acknowledgement and acquire, as text and as they are sent, and print the table."""
    with server() as url, Database(url) as database:
        cursor = connect(url).cursor()
        released = OffsetSet.from_offsets(range(0, OFFSETS, 100))
        taken: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        for round_ in range(2 if FULL else 4):
            for as_text, figures in taken.items():
                figure = state_once(cursor, database, released, as_text=as_text)
                if round_ > 0 or FULL:
                    figures.append(figure)
        rows = []
        for at, what in enumerate(("acknowledge", "next acquire")):
            text, ours = ([each[at] for each in taken[as_text]] for as_text in (True, False))
            ratio = f"{median(ours) / median(text):.2f}"
            rows += [
                (f"{what}, sets as text", f"{median(text):.2f}", spread(text), ""),
                (f"{what}, as State sends them", f"{median(ours):.2f}", spread(ours), ratio),
            ]
        title = f"P18: {OFFSETS:,} records, 1 % released singly (goal: 5 s each for 100,000,000)"
        report(url, title, ("what", "median, s", "range", "× as text"), rows)


def second_leases(settings: Settings, state: State) -> list[Lease]:
    """What a group leases the second time: all was accepted but one in ten thousand."""
    leases = []
    with Topics(settings) as topics:
        info = topics.describe([TOPIC])[TOPIC]
    for at in group_on(settings, TOPIC).assignment:
        each = RECORDS // PARTITIONS
        state.observe(at, info.topic_id, 0, each, each)
        lease = state.acquire(at, "bench", None, RECORDS)
        assert lease is not None
        again = OffsetSet.from_offsets(range(5_000, each, 10_000))
        state.acknowledge(
            lease, {AcknowledgeType.ACCEPT: lease.offsets - again, AcknowledgeType.RELEASE: again}
        )
        lease = state.acquire(at, "bench", None, RECORDS)
        assert lease is not None
        leases.append(lease)
    return leases


def plain(spark: SparkSession, settings: Settings, leases: list[Lease]) -> DataFrame:
    """The range in which these offsets lie, by the connector alone."""
    numbers = {str(lease.share_partition.partition): lease.offsets for lease in leases}
    options = {
        **spark_options(settings),
        **READER_OPTIONS,
        "assign": json.dumps({TOPIC: [int(number) for number in numbers]}),
        "startingOffsets": json.dumps({TOPIC: {number: each.first for number, each in numbers.items()}}),
        "endingOffsets": json.dumps({TOPIC: {number: each.end for number, each in numbers.items()}}),
    }
    return spark.read.format("kafka").options(**options).load()


def read(frame: Callable[[], DataFrame], expected: int) -> float:
    """Seconds of planning and reading a DataFrame to its end."""

    def go() -> None:
        total = frame().agg(fn.sum(fn.length("value")), fn.count("*")).collect()[0]
        assert (total[0], total[1]) == (expected * RECORD_BYTES, expected), total

    return seconds(go)


def the_second_pass() -> None:
    """Measure the ways to read what was released, and print the table."""
    with stack() as settings, session(settings) as spark, Database.open(settings) as database:
        fill(settings, TOPIC, RECORDS, batch_bytes=BATCH_BYTES)
        leases = second_leases(settings, State(database))
        wanted = sum(lease.offsets.count for lease in leases)
        hull = sum(lease.offsets.end - lease.offsets.first for lease in leases)
        leased = partial(leased_records, spark, settings, leases, headers=False)
        named = [
            ("plain scan of the range", hull, lambda: read(lambda: plain(spark, settings, leases), hull)),
            ("leased, scanned", wanted, lambda: read(lambda: leased(options={SEEK: "never"}), wanted)),
            ("leased, as chosen: sought", wanted, lambda: read(leased, wanted)),
        ]
        measured = in_turn([side for *_, side in named], ROUNDS)
        rows = [
            (
                name,
                f"{records:,}",
                f"{median(one):.2f}",
                spread(one),
                f"{median(one) / median(measured[0]):.2f}",
            )
            for (name, records, _), one in zip(named, measured, strict=True)
        ]
        report(
            settings.database_url,
            f"P18: a second pass over one in 10,000 of {RECORDS:,} records (goal: at most 0.3 ×)",
            ("what", "records", f"median of {ROUNDS}, s", "range", "× the plain scan"),
            rows,
        )


def main() -> None:
    """Print one table, or both."""
    if "read" not in sys.argv:
        the_state()
    if "state" not in sys.argv:
        the_second_pass()


if __name__ == "__main__":
    main()
