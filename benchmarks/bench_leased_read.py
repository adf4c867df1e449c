"""P2, P3: what does a lease add to Spark's read of a topic, and how far is that from a share consumer?

Topic of four partitions, records of 100 bytes, summed up and thrown away. The plain side reads it with Spark's
connector and the reader options that leased reads have. The leased side asks the broker where the logs end, leases
all of it, keeps the locks, reads, sees that every offset was there, and acknowledges: nothing is left out but the
start of Spark. The peers are the broker's own share groups, with confluent-kafka in one process and in two, and
with four Java consumers; they are timed from their first record to their last.

    .venv/bin/python benchmarks/bench_leased_read.py [--records 4000000] [--rounds 5] [--no-peers]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

from leased_rig import (
    confluent_seconds,
    fill,
    group_on,
    java_runs_sources,
    java_seconds,
    say,
    session,
    stack,
    versions,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from rig import in_turn, median, report, seconds, spread

from sharequeue.database import Database
from sharequeue.kafka.clients import spark_options
from sharequeue.kafka.topics import Topics
from sharequeue.settings import Settings
from sharequeue.spark.leasing.budget import Budget
from sharequeue.spark.leasing.renewal import LeaseKeeper
from sharequeue.spark.reading.frame import READER_OPTIONS
from sharequeue.spark.reading.source import Source
from sharequeue.spark.session import cancellable
from sharequeue.state import State
from sharequeue.values import AcknowledgeType

TOPIC = "bench"


def total(records: DataFrame) -> int:
    """Read every value and count the records."""
    row = records.agg(fn.sum(fn.length("value")), fn.count("*")).first()
    assert row is not None
    return int(row[1])


def plain(settings: Settings, spark: SparkSession, records: int, options: dict[str, str]) -> float:
    """Seconds of the connector by itself."""
    reader = spark.read.format("kafka").options(**{**spark_options(settings), **options})
    return seconds(lambda: _all(total(reader.option("subscribe", TOPIC).load()), records))


def leased(settings: Settings, spark: SparkSession, records: int) -> float:
    """Seconds of the same read under a lease, acquired, kept and acknowledged."""
    holder = group_on(settings, TOPIC)
    with Database.open(settings) as database, Topics(settings) as topics:
        state = State(database)
        state.figures.describe(
            holder.assignment[0].group_id
        )  # connected: a job's connection is there before its first lease
        source = Source(settings, state, topics, spark, headers=False)

        def run() -> None:
            with cancellable(spark) as cancel, LeaseKeeper(state, holder, cancel) as keeper:
                source.observe(holder.assignment)
                leases = keeper.acquire_within(Budget(records), holder.assignment, None)
                _all(total(source.records(leases)), records)
                for lease in leases:
                    keeper.check()
                    state.acknowledge(keeper.current(lease), {AcknowledgeType.ACCEPT: lease.offsets})
                    keeper.drop(lease)

        taken = seconds(run)
        assert sum(status.lag for status in state.figures.describe(holder.assignment[0].group_id)) == 0
    return taken


def _all(seen: int, expected: int) -> None:
    assert seen == expected, f"{seen} of {expected} records"


def main() -> None:
    """Measure the sides in turn and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=4_000_000, help="records in the topic")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds of each side")
    parser.add_argument("--no-peers", action="store_true", help="without the broker's own share groups")
    given = parser.parse_args()
    with stack() as settings:
        say(f"producing {given.records:,} records")
        fill(settings, TOPIC, given.records)
        with session(settings) as spark:
            sides: list[tuple[str, Callable[[], float]]] = [
                (
                    "Spark's connector, our reader options",
                    partial(plain, settings, spark, given.records, dict(READER_OPTIONS)),
                ),
                ("leased, read, acknowledged", partial(leased, settings, spark, given.records)),
                ("Spark's connector, its own options", partial(plain, settings, spark, given.records, {})),
            ]
            if not given.no_peers:
                peer = partial(confluent_seconds, settings, TOPIC, given.records)
                sides += [
                    ("share group, confluent-kafka × 1, implicit", partial(peer, 1)),
                    ("share group, confluent-kafka × 1, explicit", partial(peer, 1, explicit=True)),
                    ("share group, confluent-kafka × 2, implicit", partial(peer, 2)),
                ]
                if java_runs_sources():
                    sides.append(
                        (
                            "share group, Java × 4, implicit",
                            partial(java_seconds, settings, TOPIC, given.records, 4),
                        )
                    )
            measured = in_turn([_told(name, side) for name, side in sides], given.rounds)
        base = median(measured[0])
        rows = [
            (
                name,
                f"{median(figures):,.2f}",
                spread(figures),
                f"{given.records / median(figures):,.0f}",
                f"{base / median(figures):,.2f}",
                f"{median(figures) / median(measured[1]):,.2f}",
            )
            for (name, _), figures in zip(sides, measured, strict=True)
        ]
        report(
            settings.database_url,
            f"P2, P3: {given.records:,} records of 100 bytes, median of {given.rounds}",
            ("side", "seconds", "range", "records/s", "× connector", "leased is × faster"),
            rows,
        )
        print(versions())


def _told(name: str, side: Callable[[], float]) -> Callable[[], float]:
    def run() -> float:
        taken = side()
        say(f"{name}: {taken:.2f} s")
        return taken

    return run


if __name__ == "__main__":
    main()
