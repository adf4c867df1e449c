"""Replay spans of time, as Dagster has it, in its own process or elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from pyspark.sql import SparkSession

from sharequeue.domain.results.launches import LaunchedReplay
from sharequeue.domain.results.replays import ReplayReport
from sharequeue.domain.settings import Settings
from sharequeue.kafka.topics import Topics
from sharequeue.spark.pipelines import Pipeline
from sharequeue.spark.replays.replay import replay_windows
from sharequeue.spark.replays.selection import TimeWindow
from sharequeue.state import State

__all__ = ["full_replay"]


def full_replay(
    job: Pipeline,
    settings: Settings,
    order: LaunchedReplay,
    *,
    state: State,
    spark: SparkSession,
    log: logging.Logger,
) -> Iterator[ReplayReport]:
    """Replay the windows of an order; log and yield the report of each when it is done. Raises what `replay_windows`
    raises.
    """
    windows = [TimeWindow(each.since, each.until, each.name) for each in order.windows]
    with Topics(settings) as topics:
        for report in replay_windows(
            job,
            settings,
            windows,
            state=state,
            topics=topics,
            spark=spark,
            allow_missing=order.allow_missing,
        ):
            log.info(str(report))
            yield report
