"""Have so many records of a round failed that the handler is wrong, and not the records?

A mistake in a handler fails every record alike. Acknowledged, it would cost each of them a delivery, and a few runs
later the whole topic would be dead letters. So the outcomes of a round are checked before they are acknowledged. Only
records at their first delivery are counted: a bad record that comes again must be able to use up its deliveries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

from sharequeue.offsets import EMPTY, OffsetSet
from sharequeue.spark.contract import MostFailed
from sharequeue.spark.outcomes.read_back import Seen
from sharequeue.spark.output.lease_files import Written
from sharequeue.values import AcknowledgeType, Lease


@dataclass(frozen=True, slots=True)
class Limits:
    """A run stops when `share` of the records of a round have failed, of at least `records`; never when `share` is
    None.
    """

    share: float | None
    records: int

    def check(
        self, spark: SparkSession, written: Written, leases: Sequence[Lease], seen: Mapping[int, Seen]
    ) -> None:
        """Raise MostFailed when a round is over these limits."""
        if self.share is None:
            return
        given = failed = 0
        for lease in leases:
            first = OffsetSet.union(d.offsets for d in lease.deliveries if d.delivery_count == 1)
            outcomes = seen[lease.lease_id].outcomes if lease.lease_id in seen else {}
            given += sum((offsets & first).count for offsets in outcomes.values())
            failed += (outcomes.get(AcknowledgeType.RELEASE, EMPTY) & first).count
            failed += (outcomes.get(AcknowledgeType.REJECT, EMPTY) & first).count
        if given >= self.records and failed >= self.share * given:
            raise MostFailed(
                f"{failed:,} of {given:,} records failed at their first delivery; the limit is {self.share:.0%}. "
                "Nothing of this round was acknowledged, and its deliveries were given back. "
                f"{_most_frequent(spark, written)} Mend the handler; where so many failures are right, raise "
                "the job's `failed_share`, or switch it off with None."
            )


def _most_frequent(spark: SparkSession, written: Written) -> str:
    failed = spark.read.parquet(*written.exceptions.values())
    errors = failed.groupBy("outcome", "error").agg(
        fn.count("*").alias("times"),
        fn.min_by(fn.struct("topic", "partition", "offset"), "offset").alias("at"),
    )
    row = errors.orderBy(fn.desc("times"), "error").limit(1).collect()[0]
    what = row["error"] or f"{row['outcome']}, without an error"
    topic, partition, offset = row["at"]
    return f"Most often, {row['times']:,} times: {what} (such as {topic}-{partition} offset {offset})."
