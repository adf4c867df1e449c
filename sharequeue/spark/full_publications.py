"""Publish replays and merge the summaries again, as Dagster has it, in its own process or elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession

from sharequeue.domain.results.replays import PublishReport
from sharequeue.domain.results.summaries import MergedSummary
from sharequeue.domain.settings import Settings
from sharequeue.kafka.topics import Topics
from sharequeue.spark.merged_summaries import merge_summary
from sharequeue.spark.pipelines import Pipeline
from sharequeue.spark.replays.publishing import publish
from sharequeue.state import State

__all__ = ["full_publication"]


def full_publication(
    job: Pipeline,
    settings: Settings,
    replays: Sequence[str],
    merges: Mapping[str, Callable[[DataFrame], DataFrame]],
    *,
    root: str,
    output: str,
    state: State,
    spark: SparkSession,
    execute: bool,
) -> Iterator[PublishReport | MergedSummary]:
    """Publish the replays of these names, and yield the report of each when it is done. All are checked before the
    first one is published; without `execute`, they are only checked.

    Then merge these summaries again, with the arguments of `merge_summary`: their files would otherwise be those of
    before until the next run. Raises what `publish` raises.
    """
    with Topics(settings) as topics:

        def publish_one(name: str, execute: bool) -> PublishReport:
            return publish(job, settings, name, state=state, topics=topics, spark=spark, execute=execute)

        plans = [publish_one(name, False) for name in replays]
        if not execute:
            yield from plans
            return
        for name in replays:
            yield publish_one(name, True)
    for summary, merge in merges.items():
        yield merge_summary(job, summary, merge, root=root, output=output, state=state, spark=lambda: spark)
