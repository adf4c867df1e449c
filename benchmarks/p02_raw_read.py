"""P2, P3: a leased raw read, compared with Spark's connector and the broker's share consumers.

A topic of four partitions, records of 100 bytes, summed up and discarded. The leased side asks the broker for the
ends of the logs, leases all records, renews the locks, reads, checks that every offset was read, and acknowledges.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from pyspark.sql import SparkSession

from benchmarks.database import acknowledge
from benchmarks.harness import Side, Table, case, in_turn, say, seconds, side_table
from benchmarks.share_groups import confluent_seconds, java_runs_sources, java_seconds
from benchmarks.stack import RECORD_BYTES, connector, fill, group_on, session, stack, total
from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import AcknowledgeType
from sharequeue.kafka.topics import Topics
from sharequeue.spark.leasing.budget import Budget
from sharequeue.spark.leasing.renewal import LeaseKeeper
from sharequeue.spark.reading.options import READER_OPTIONS
from sharequeue.spark.reading.source import TopicSource
from sharequeue.spark.spark_jobs import cancellable
from sharequeue.state import State

TOPIC, LEASED = "bench", "leased, read, acknowledged"


def plain(settings: Settings, spark: SparkSession, records: int, options: dict[str, str]) -> float:
    """Return the seconds of the connector alone."""

    def run() -> None:
        assert total(connector(settings, spark, TOPIC, options=options))[1] == records

    return seconds(run)


def leased(settings: Settings, spark: SparkSession, records: int) -> float:
    """Return the seconds of the same read under leases, with acquire, renewals and acknowledgement."""
    holder = group_on(settings, TOPIC)
    with Database.open(settings) as database, Topics(settings) as topics:
        state = State(database)
        state.figures.describe(holder.group)  # connect first, as a job does before its first lease
        source = TopicSource(settings, state, topics, spark, headers=False)

        def run() -> None:
            with cancellable(spark) as jobs, LeaseKeeper(state, holder, jobs) as keeper:
                source.observe(holder.assignment)
                leases = keeper.acquire_within(Budget(records), holder.assignment)
                assert total(source.records(leases))[1] == records
                with keeper.acknowledging(leases) as held:
                    for lease in held:
                        acknowledge(state, lease, {AcknowledgeType.ACCEPT: lease.offsets})
                        keeper.forget(lease)

        taken = seconds(run)
        assert sum(status.lag for status in state.figures.describe(holder.group)) == 0
    return taken


@case(
    "P2 P3",
    "ours ≥ 0.93 × as fast as the connector with our reader options, ≥ 1 × as fast as any share consumer",
    records=400_000,
    rounds=2,
)
def raw_read(records: int = 4_000_000, rounds: int = 5, peers: bool = True) -> Iterator[Table]:
    """Compare a leased read of a topic with Spark's connector and with share consumers."""
    with stack() as settings:
        say(f"producing {records:,} records")
        fill(settings, TOPIC, records)
        with session(settings) as spark:
            sides: dict[str, Side] = {
                "Spark's connector, our reader options": partial(
                    plain, settings, spark, records, dict(READER_OPTIONS)
                ),
                LEASED: partial(leased, settings, spark, records),
                "Spark's connector, its own options": partial(plain, settings, spark, records, {}),
            }
            if peers:
                peer = partial(confluent_seconds, settings, TOPIC, records)
                sides["share group, confluent-kafka × 1, implicit"] = partial(peer, 1)
                sides["share group, confluent-kafka × 1, explicit"] = partial(peer, 1, explicit=True)
                sides["share group, confluent-kafka × 2, implicit"] = partial(peer, 2)
                if java_runs_sources():
                    java = partial(java_seconds, settings, TOPIC, records, 4)
                    sides["share group, Java × 4, implicit"] = java
            measured = in_turn(sides, rounds)
        title = f"{records:,} records of {RECORD_BYTES} bytes"
        yield side_table(measured, base=LEASED, records=records, title=title)
