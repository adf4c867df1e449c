"""Publish replays and merge the summaries again, as Dagster has it, in its own process or elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping

from pyspark.sql import DataFrame, SparkSession

from sharequeue.domain.results.launches import LaunchedPublication
from sharequeue.domain.results.replays import PublishReport
from sharequeue.domain.results.summaries import MergedSummary
from sharequeue.domain.settings import Settings
from sharequeue.kafka.topics import Topics
from sharequeue.spark.merged_summaries import merge_summary
from sharequeue.spark.pipelines import Pipeline
from sharequeue.spark.replays.publishing import publish
from sharequeue.state import State

__all__ = ["full_publication"]

Done = PublishReport | MergedSummary
"""A step of a publication that is done."""


def full_publication(
    job: Pipeline,
    settings: Settings,
    order: LaunchedPublication,
    merges: Mapping[str, Callable[[DataFrame], DataFrame]],
    *,
    root: str,
    state: State,
    spark: SparkSession,
    log: logging.Logger,
) -> Iterator[Done]:
    """Publish the replays of an order; log and yield the report of each when it is done. All are checked before the
    first one is published; without `execute`, they are only checked.

    Then merge the summaries again, below `root` by `merge_summary`: their files would otherwise be those of before
    until the next run. `merges` has the functions that the order names. Raises what `publish` raises.
    """

    def told(done: Done) -> Done:
        log.info(str(done))
        return done

    with Topics(settings) as topics:

        def publish_one(name: str, execute: bool) -> PublishReport:
            return publish(job, settings, name, state=state, topics=topics, spark=spark, execute=execute)

        plans = [publish_one(name, False) for name in order.replays]
        if not order.execute:
            yield from map(told, plans)
            return
        for name in order.replays:
            yield told(publish_one(name, True))
    output = order.pipeline["output"]
    for summary, merge in merges.items():
        yield told(
            merge_summary(job, summary, merge, root=root, output=output, state=state, spark=lambda: spark)
        )
