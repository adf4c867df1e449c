"""P8: a second read of failed records, compared with plain scans by Spark's connector.

One in a hundred of a topic's records was released. Nothing of it is kept, and single scattered records are read by a
scan over all and a join with the leased ranges, compared with a plain scan of the same range with the same reader
options. Records in clusters are read from the files in which a run keeps them, and from the log, of which only the
clusters are read; compared with a plain scan of as many contiguous records.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from pyspark.sql import DataFrame

from benchmarks.harness import WARM_UP, Side, Table, case, in_turn, seconds, side_rows
from benchmarks.p24_kept_records import TOPIC, from_files, kept_files, output, released_before
from benchmarks.stack import PARTITIONS, RECORD_BYTES, connector, fill, second_leases, session, stack, total
from sharequeue.database import Database
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import Lease
from sharequeue.kafka.topics import Topics
from sharequeue.spark.reading.frame import leased_records
from sharequeue.spark.reading.source import TopicSource
from sharequeue.state import State

CLUSTERS = 4
"""By partition."""


def clusters(records: int) -> OffsetSet:
    """Return one in a hundred of a partition's offsets, in clusters."""
    size, step = records // 100 // CLUSTERS, records // CLUSTERS
    return OffsetSet.of(*((n * step, n * step + size) for n in range(CLUSTERS)))


def in_clusters(records: int) -> str:
    """Return the condition of these records."""
    return f"offset % {records // CLUSTERS} < {records // 100 // CLUSTERS}"


def read(expected: int, frame: DataFrame) -> None:
    """Read a DataFrame to its end."""
    found = total(frame)
    assert found == (expected * RECORD_BYTES, expected), found


@case(
    "P8",
    "scattered singly ≤ 1.1 ×, clusters that are kept ≤ 1.5 × the plain scan's time",
    records=400_000,
    rounds=3,
)
def second_pass(records: int = 2_000_000, rounds: int = 5) -> Iterator[Table]:
    """Compare reading the few records that failed with a plain scan."""
    again = records // 100
    with stack() as stacked, output(stacked) as settings, session(settings) as spark:
        fill(settings, TOPIC, records)
        scattered = second_leases(
            settings, TOPIC, records, lambda each: OffsetSet.from_offsets(range(0, each, 100))
        )
        clustered = second_leases(settings, TOPIC, records, clusters)
        group, kept = released_before(settings, spark, records, in_clusters(records // PARTITIONS))

        def plain(count: int) -> float:
            ranges = dict.fromkeys(range(PARTITIONS), (0, count // PARTITIONS))
            return seconds(lambda: read(count, connector(settings, spark, TOPIC, ranges)))

        def again_from_files() -> float:
            with Database.open(settings) as database, Topics(settings) as topics:
                source = TopicSource(settings, State(database), topics, spark, headers=False)
                files = kept_files(source, database, group)
                files.find(kept)  # connect first, as a job does before its first lease
                return seconds(lambda: read(again, from_files(files, kept)))

        def leased(leases: list[Lease]) -> float:
            return seconds(lambda: read(again, leased_records(spark, settings, leases, headers=False)))

        sides: dict[str, Side] = {
            "plain scan of the covered range": partial(plain, records),
            "leased: 1 % of it, scattered singly": partial(leased, scattered),
            "plain scan of as many records as the clusters have": partial(plain, again),
            f"leased: 1 % of it, in {CLUSTERS * PARTITIONS} clusters, from kept files": again_from_files,
            f"leased: 1 % of it, in {CLUSTERS * PARTITIONS} clusters, from the log": partial(
                leased, clustered
            ),
        }
        measured = in_turn(sides, rounds, warm_up=WARM_UP)
    names = list(measured)
    rows = [
        row
        for base, end in ((0, 2), (2, 5))
        for row in side_rows({name: measured[name] for name in names[base:end]}, base=names[base])
    ]
    title = f"a second pass over {records:,} records"
    yield Table(("side", f"seconds, median of {rounds}", "range", "× the plain scan's time"), rows, title)
