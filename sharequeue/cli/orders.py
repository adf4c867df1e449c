"""Carry out an order of Dagster in this process: a run, the merge of a summary, replays, or their publication."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from sharequeue.cli.objects import load_object
from sharequeue.database import Database
from sharequeue.domain.results.launches import (
    Answer,
    LaunchedPublication,
    LaunchedReplay,
    LaunchedRun,
    LaunchedSummary,
    Order,
)
from sharequeue.domain.settings import Settings
from sharequeue.kafka.topics import Topics
from sharequeue.state import State

if TYPE_CHECKING:
    from sharequeue.spark import Pipeline
    from sharequeue.spark.job import RunBounds

__all__ = ["carried_out"]


def carried_out(order: Order, settings: Settings, name: str | None, log: logging.Logger) -> Iterator[Answer]:
    """Do what an order says, and yield each answer when it is there. `name` is that of the pipeline, if it has
    another one here than in Dagster. `log` gets what a person wants to know meanwhile.

    Raises CommandRefused if the pipeline or a function is missing, WrongPipeline if it is another group's, and the
    errors of the work.
    """
    from sharequeue.spark import spark_session
    from sharequeue.spark.full_publications import full_publication
    from sharequeue.spark.full_runs import full_run
    from sharequeue.spark.merged_summaries import merge_summary
    from sharequeue.spark.replays.replay import replay_windows
    from sharequeue.spark.replays.selection import TimeWindow

    job = _pipeline_of(order, name)
    spark = partial(spark_session, settings, f"group {job.group}")
    with Database.open(settings) as database:
        state = State(database)
        match order:
            case LaunchedRun():
                if order.deliveries_per_run is not None:
                    job = replace(job, deliveries_per_run=order.deliveries_per_run)
                yield full_run(
                    job,
                    settings,
                    state=state,
                    spark=spark,
                    log=log,
                    client_id=order.client_id,
                    member_id=order.member_id,
                    keep=timedelta(seconds=order.keep_seconds),
                    **cast("RunBounds", order.bounds),
                )
            case LaunchedSummary():
                yield merge_summary(
                    job,
                    order.summary,
                    load_object(order.merge),
                    root=settings.output,
                    output=order.pipeline["output"],
                    state=state,
                    spark=spark,
                )
            case LaunchedReplay():
                windows = [TimeWindow(each.since, each.until, each.name) for each in order.windows]
                with Topics(settings) as topics:
                    for report in replay_windows(
                        job,
                        settings,
                        windows,
                        state=state,
                        topics=topics,
                        spark=spark(),
                        allow_missing=order.allow_missing,
                    ):
                        log.info(str(report))
                        yield report
            case LaunchedPublication():
                for done in full_publication(
                    job,
                    settings,
                    order.replays,
                    {summary: load_object(merge) for summary, merge in order.merges.items()},
                    root=settings.output,
                    output=order.pipeline["output"],
                    state=state,
                    spark=spark(),
                    execute=order.execute,
                ):
                    log.info(str(done))
                    yield done


def _pipeline_of(order: Order, name: str | None) -> Pipeline:
    """Import the pipeline of an order, or that of this name."""
    from sharequeue.spark.named_pipelines import named_pipeline

    described: dict[str, Any] = {**order.pipeline, **({} if name is None else {"name": name})}
    return named_pipeline(load_object(described["name"]), **described)
