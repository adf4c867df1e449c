"""What does it cost to read again the few records that failed (P8)?

One in a hundred of a topic's records was released and comes again. Scattered singly, they are read by a scan
over all and a join with the leased ranges: against a plain scan of the same range with the same reader options.
In clusters, they cost what the clusters cost: against a plain scan of the same number of records in one piece.
What the driver holds of a lease are its ranges, as Postgres sent them.

    .venv/bin/python benchmarks/bench_second_pass.py [--full]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from functools import partial

from leased_rig import PARTITIONS, RECORD_BYTES, Holder, fill, group_on, session, stack
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from rig import in_turn, median, report, seconds, spread

from sharequeue.database import Database
from sharequeue.kafka.clients import spark_options
from sharequeue.kafka.topics import Topics
from sharequeue.offsets import OffsetSet
from sharequeue.settings import Settings
from sharequeue.spark.reading.frame import READER_OPTIONS, leased_records
from sharequeue.state import State
from sharequeue.values import AcknowledgeType, Lease

RECORDS = 2_000_000 if "--full" in sys.argv else 400_000
CLUSTERS = 4
"""By partition."""
TOPIC = "second-pass"


def failed(records: int, *, clustered: bool) -> OffsetSet:
    """One in a hundred of a partition's offsets."""
    if not clustered:
        return OffsetSet.from_offsets(range(0, records, 100))
    size, step = records // 100 // CLUSTERS, records // CLUSTERS
    return OffsetSet.of(*((n * step, n * step + size) for n in range(CLUSTERS)))


def second_leases(settings: Settings, state: State, *, clustered: bool) -> list[Lease]:
    """What a group leases the second time: all was accepted but one in a hundred."""
    holder: Holder = group_on(settings, TOPIC)
    leases = []
    with Topics(settings) as topics:
        info = topics.describe([TOPIC])[TOPIC]
    for at in holder.assignment:
        each = RECORDS // PARTITIONS
        state.observe(at, info.topic_id, 0, each, each)
        lease = state.acquire(at, "bench", None, RECORDS)
        assert lease is not None
        again = failed(each, clustered=clustered)
        state.acknowledge(
            lease, {AcknowledgeType.ACCEPT: lease.offsets - again, AcknowledgeType.RELEASE: again}
        )
        lease = state.acquire(at, "bench", None, RECORDS)
        assert lease is not None
        assert lease.offsets == again
        leases.append(lease)
    return leases


def plain(spark: SparkSession, settings: Settings, records: int) -> DataFrame:
    """The first so many records of each partition, by the connector alone."""
    numbers = dict.fromkeys(map(str, range(PARTITIONS)), 0)
    ends = dict.fromkeys(numbers, records // PARTITIONS)
    options = {
        **spark_options(settings),
        **READER_OPTIONS,
        "assign": json.dumps({TOPIC: [int(number) for number in numbers]}),
        "startingOffsets": json.dumps({TOPIC: numbers}),
        "endingOffsets": json.dumps({TOPIC: ends}),
    }
    return spark.read.format("kafka").options(**options).load()


def read(frame: Callable[[], DataFrame], expected: int) -> float:
    """Seconds of reading a DataFrame to its end."""

    def go() -> None:
        total = frame().agg(fn.sum(fn.length("value")), fn.count("*")).collect()[0]
        assert (total[0], total[1]) == (expected * RECORD_BYTES, expected), total

    return seconds(go)


def sides(
    spark: SparkSession, settings: Settings, state: State
) -> Iterator[tuple[str, int, Callable[[], float]]]:
    """Name, records read and measurement of each side."""
    again = RECORDS // 100
    scattered = second_leases(settings, state, clustered=False)
    clustered = second_leases(settings, state, clustered=True)
    leased = partial(leased_records, spark, settings, headers=False)
    yield (
        "plain scan of the covered range",
        RECORDS,
        lambda: read(lambda: plain(spark, settings, RECORDS), RECORDS),
    )
    yield "leased: 1 % of it, scattered singly", again, lambda: read(lambda: leased(scattered), again)
    yield (
        "plain scan of as many records as the clusters have",
        again,
        lambda: read(lambda: plain(spark, settings, again), again),
    )
    name = f"leased: 1 % of it, in {CLUSTERS * PARTITIONS} clusters"
    yield name, again, lambda: read(lambda: leased(clustered), again)


def main() -> None:
    """Measure the sides in turn and print the table."""
    with stack() as settings, session(settings) as spark, Database.open(settings) as database:
        fill(settings, TOPIC, RECORDS)
        named = list(sides(spark, settings, State(database)))
        taken = in_turn([side for *_, side in named], 5)
        measured = [median(figures) for figures in taken]
        rows = [
            (
                name,
                f"{records:,}",
                f"{middle:.2f}",
                spread(figures),
                f"{middle / measured[at - at % 2]:.2f}" if at % 2 else "",
            )
            for at, ((name, records, _), middle, figures) in enumerate(
                zip(named, measured, taken, strict=True)
            )
        ]
        headings = ("what", "records", "median of 5, s", "range", "× the line above")
        report(
            settings.database_url,
            f"A second pass over {RECORDS:,} records (goal: at most 1.1 ×)",
            headings,
            rows,
        )


if __name__ == "__main__":
    main()
