"""A run with what surrounds it: its member, its history, its sweeps, and where its rows are.

Dagster's asset `accepted` does this in its own process. A run that Dagster has launched elsewhere does the same
there, and sends the result as a message.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Unpack

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from sharequeue.domain.errors import BrokerNotAvailable
from sharequeue.domain.results.runs import FullRun, RunReport, Stored, words_of_losses
from sharequeue.domain.settings import Settings
from sharequeue.groups.membership import Membership
from sharequeue.kafka.topics import Topics
from sharequeue.reports.history import RunHistory
from sharequeue.spark import isolated_jobs
from sharequeue.spark.handled_columns import HandledColumns
from sharequeue.spark.job import RunBounds
from sharequeue.spark.known_handlers import known_handler
from sharequeue.spark.leasing.group import living_topics
from sharequeue.spark.output.folders import sink_root
from sharequeue.spark.pipelines import Pipeline
from sharequeue.spark.progress import Progress
from sharequeue.spark.sinks.interface import NEVER
from sharequeue.spark.sinks.parquet import ParquetByLease
from sharequeue.state import State

__all__ = ["crashes_logged", "full_run"]

FIRST_LOOK_S = 3.0
"""After this time without an assignment, a member checks whether its topics exist."""


def full_run(
    job: Pipeline,
    settings: Settings,
    *,
    state: State,
    spark: Callable[[], SparkSession],
    log: logging.Logger,
    client_id: str,
    member_id: str,
    keep: timedelta,
    **bounds: Unpack[RunBounds],
) -> FullRun:
    """Join the group, do the rounds and leave; then release expired locks, and remove the files of leases that ended
    without an acknowledgement.

    `spark` gives the session when it is needed, `log` gets what a person wants to know meanwhile. The member has
    these ids, and the history of the group keeps its rows for so long. The bounds and the errors are those of
    `Pipeline.run`.
    """
    history = RunHistory(state.database, job.group, keep)

    def progressed(progress: Progress) -> None:
        log.info(str(progress))
        history.note(progress.stage)

    with Membership(settings.service, job.group, job.topics, member_id, client_id) as member:
        session = spark()
        known = known_handler(session, job.handler)
        known.columns_wanted = True
        if not member.join(FIRST_LOOK_S, log.info):
            _require_topics(settings, state, job)
            member.join(progress=log.info)
        assigned = ", ".join(str(share_partition) for share_partition in member.assignment)
        log.info(f"member {member.member_id} works on {assigned or 'nothing yet'}")
        with crashes_logged(log):
            report = job.run(
                settings, spark=session, state=state, membership=member, progress=progressed, **bounds
            )
    _log_remarks(report, log)
    swept = state.sweep()
    history.record()
    removed = job.sweep(settings, spark=session, state=state)
    for path in removed:
        log.info(f"removed {path}: it does not count")
    stored = (job.destination or ParquetByLease()).stored(settings, job.names)
    columns = _columns(job, state, stored)
    return FullRun(
        report=report,
        sink=job.sink,
        path=str(sink_root(settings, job.sink)) if job.destination is None else None,
        stored=stored,
        columns=columns,
        **_said_of(columns, known.columns),
        swept_leases=swept.leases,
        swept_records=swept.records,
        removed_folders=len(removed),
    )


def _require_topics(settings: Settings, state: State, job: Pipeline) -> None:
    """Fail now if a topic is missing. A broker that does not answer is waited for as a member."""
    with suppress(BrokerNotAvailable), Topics(settings) as topics:
        living_topics(topics, state, job.group, job.topics)


def _log_remarks(report: RunReport, log: logging.Logger) -> None:
    for error in report.errors:
        log.info(f"first failure: {error}")
    if report.remark:
        # A run that is not drained succeeds, but there is work left.
        (log.info if report.drained else log.warning)(report.remark)
    if report.lost:
        log.warning(words_of_losses(report.group, report.lost))
    if report.dead_letters is not None and report.dead_letters.warning is not None:
        log.warning(report.dead_letters.warning)


def _columns(job: Pipeline, state: State, stored: Stored) -> dict[str, str]:
    """Return the columns that runs have written so far."""
    written = state.outputs.keep_columns(job.group, job.sink)
    fields = [] if written is None else StructType.fromJson(json.loads(written)).fields
    return {
        each.name: each.dataType.simpleString()
        for each in fields
        if stored.for_the_queue or each.name not in NEVER
    }


def _said_of(columns: Collection[str], handled: HandledColumns | None) -> dict[str, Any]:
    """Return what the handler's result says of these columns."""
    found = {} if handled is None else {"comments": handled.comments, "sources": handled.sources}
    return {
        kind: {name: each for name, each in some.items() if name in columns} for kind, some in found.items()
    }


class _Passed(logging.Handler):
    """Passes messages on to the log of a run."""

    def __init__(self, log: logging.Logger) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record to the run's log; an error does not fail the run."""
        try:
            self._log.warning(record.getMessage())
        except Exception:
            self.handleError(record)


@contextmanager
def crashes_logged(log: logging.Logger) -> Iterator[None]:
    """Write into the log of a run which records ended without an acknowledgement, why, and what follows."""
    logger, handler = logging.getLogger(isolated_jobs.__name__), _Passed(log)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
