"""Refuse a round of which most records have failed.

A mistake in a handler fails every record alike. If such a round were acknowledged, it would cost each record a
delivery, until the whole topic were dead letters. So the outcomes of a round are checked before they are
acknowledged. Only records at their first delivery are counted: a bad record that is redelivered must be able to use
up its deliveries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.domain.values import AcknowledgeType, Lease
from sharequeue.spark.handler import HOLD, MostFailed
from sharequeue.spark.outcomes.outcomes import UNSEEN, SeenOutcomes
from sharequeue.spark.output.files import literal
from sharequeue.spark.output.lease_files import WrittenFiles

FAILED_RECORDS = 100
"""The fewest records of a round of which the failed ones are counted."""


def refuse_most_failed(
    spark: SparkSession,
    share: float,
    written: WrittenFiles,
    leases: Sequence[Lease],
    seen: Mapping[int, SeenOutcomes],
    *,
    nothing_yet: bool,
) -> None:
    """Raise MostFailed if this share of the records of a round has failed. `written` are the files of leases that are
    not acknowledged yet. `nothing_yet`: no other lease of the round is.
    """
    given = failed = 0
    for lease in leases:
        first = OffsetSet.union(d.offsets for d in lease.deliveries if d.delivery_count == 1)
        outcomes = seen.get(lease.lease_id, UNSEEN).outcomes
        given += sum((offsets & first).count for offsets in outcomes.values())
        failed += (outcomes.get(AcknowledgeType.RELEASE, EMPTY) & first).count
        failed += (outcomes.get(AcknowledgeType.REJECT, EMPTY) & first).count
    if given >= FAILED_RECORDS and failed >= share * given:
        nothing = "Nothing of this round" if nothing_yet else "Nothing more of this round"
        raise MostFailed(
            f"{failed:,} of {given:,} records failed at their first delivery; the limit is {share:.0%}. "
            f"{nothing} was acknowledged, and its deliveries were given back. "
            f"{_most_frequent(spark, written)} Correct the handler; if so many failures are expected, raise the "
            "job's `failed_share`, or switch it off with None."
        )


def _most_frequent(spark: SparkSession, written: WrittenFiles) -> str:
    failed = spark.read.parquet(*map(literal, written.exceptions.values()))
    failed = failed.where(fn.col("outcome") != HOLD)
    errors = failed.groupBy("outcome", "error").agg(
        fn.count("*").alias("times"),
        fn.min_by(fn.struct("topic", "partition", "offset"), "offset").alias("at"),
    )
    row = errors.orderBy(fn.desc("times"), "error").limit(1).collect()[0]
    what = row["error"] or f"{row['outcome']}, without an error"
    topic, partition, offset = row["at"]
    return f"Most often, {row['times']:,} times: {what} (such as {topic}-{partition} offset {offset})."
