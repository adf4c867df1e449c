"""Carry out an order of Dagster in this process: a run, the merge of a summary, replays, or their publication."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
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
from sharequeue.state import State

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sharequeue.spark import Pipeline
    from sharequeue.spark.job import RunBounds

__all__ = ["carried_out"]


def carried_out(order: Order, settings: Settings, name: str | None, log: logging.Logger) -> Iterator[Answer]:
    """Do what an order says, and yield each answer when it is there. `name` is that of the pipeline, if it has
    another one here than in Dagster. `log` gets what a person wants to know meanwhile.

    Raises CommandRefused if the pipeline or a function is missing, WrongPipeline if it is another group's, and the
    errors of the work.
    """
    job = _pipeline_of(order, name)
    with Database.open(settings) as database:
        here = _Here(job, settings, State(database), log)
        match order:
            case LaunchedRun():
                yield here.run(order)
            case LaunchedSummary():
                yield here.merged(order)
            case LaunchedReplay():
                yield from here.replayed(order)
            case LaunchedPublication():
                yield from here.published(order)


def _pipeline_of(order: Order, name: str | None) -> Pipeline:
    """Import the pipeline of an order, or that of this name."""
    from sharequeue.spark.named_pipelines import named_pipeline

    described: dict[str, Any] = {**order.pipeline, **({} if name is None else {"name": name})}
    return named_pipeline(load_object(described["name"]), **described)


@dataclass(frozen=True, slots=True)
class _Here:
    """A pipeline, and what its orders need in this process."""

    job: Pipeline
    settings: Settings
    state: State
    log: logging.Logger

    def spark(self) -> SparkSession:
        """Return the session; the first call starts it."""
        from sharequeue.spark import spark_session

        return spark_session(self.settings, f"group {self.job.group}")

    def run(self, order: LaunchedRun) -> Answer:
        """Do a run."""
        from sharequeue.spark.full_runs import full_run

        job = self.job
        if order.deliveries_per_run is not None:
            job = replace(job, deliveries_per_run=order.deliveries_per_run)
        return full_run(
            job,
            self.settings,
            state=self.state,
            spark=self.spark,
            log=self.log,
            client_id=order.client_id,
            member_id=order.member_id,
            keep=timedelta(seconds=order.keep_seconds),
            **cast("RunBounds", order.bounds),
        )

    def merged(self, order: LaunchedSummary) -> Answer:
        """Merge a summary."""
        from sharequeue.spark.merged_summaries import merge_summary

        return merge_summary(
            self.job,
            order.summary,
            load_object(order.merge),
            root=self.settings.output,
            output=order.pipeline["output"],
            state=self.state,
            spark=self.spark,
        )

    def replayed(self, order: LaunchedReplay) -> Iterator[Answer]:
        """Replay windows."""
        from sharequeue.spark.full_replays import full_replay

        return full_replay(self.job, self.settings, order, state=self.state, spark=self.spark(), log=self.log)

    def published(self, order: LaunchedPublication) -> Iterator[Answer]:
        """Publish replays."""
        from sharequeue.spark.full_publications import full_publication

        return full_publication(
            self.job,
            self.settings,
            order,
            {summary: load_object(merge) for summary, merge in order.merges.items()},
            root=self.settings.output,
            state=self.state,
            spark=self.spark(),
            log=self.log,
        )
