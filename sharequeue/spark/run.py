"""How does a share group's job work its way through the topic?

Round by round: ask the broker where the logs end, acquire within the budget, read exactly what was leased,
handle and write it, read back what was written, acknowledge each lease by that, and again, until there is
nothing to acquire. A round is leased and planned while the one before it is written (`overlap.py`). Locks are
renewed meanwhile (`renewal.py`); a lost one stops the run before it writes or acknowledges more. Whatever ends a run
early, what it still held is given back at once. Joining and leaving the group and the sweeps are the caller's; dead
letters are written at the end where no service does (`draining.py`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from pyspark.sql import SparkSession

from sharequeue.database import Database
from sharequeue.errors import UnknownTopicOrPartition
from sharequeue.groups.configs import GroupConfigs
from sharequeue.kafka.topics import TopicInfo, Topics
from sharequeue.names import nearest, whole_number
from sharequeue.settings import Settings
from sharequeue.spark.draining import about_letters, drain_at_end
from sharequeue.spark.interrupts import deferred
from sharequeue.spark.job import ShareGroupJob
from sharequeue.spark.leasing.budget import MAX_RECORDS, Budget
from sharequeue.spark.leasing.claiming import claim_group
from sharequeue.spark.leasing.losses import report_losses
from sharequeue.spark.leasing.member import Member
from sharequeue.spark.leasing.nothing_leased import refuse_lost, why_nothing
from sharequeue.spark.leasing.renewal import LeaseKeeper
from sharequeue.spark.outcomes.handler_result import call_handler
from sharequeue.spark.output.folders import claim
from sharequeue.spark.output.gone import refuse_gone
from sharequeue.spark.output.reachable import failed_by_store
from sharequeue.spark.output.shared_folder import refuse_unusable
from sharequeue.spark.overlap import Rounds
from sharequeue.spark.reading.frame import no_records
from sharequeue.spark.reading.levels import one_level
from sharequeue.spark.reading.sizes import RecordSizes
from sharequeue.spark.reading.source import Source
from sharequeue.spark.report import ProgressCallback, RoundReport, RunReport
from sharequeue.spark.rounds import Run
from sharequeue.spark.session import cancellable, ended_session_is_named, uncache
from sharequeue.spark.sinks.interface import OpenSink, SinkContext
from sharequeue.spark.sinks.parquet import ParquetByLease
from sharequeue.state import State

__all__ = ["RoundReport", "RunReport", "run_rounds"]

_log = logging.getLogger(__name__)


@one_level
def run_rounds(
    settings: Settings,
    job: ShareGroupJob,
    *,
    membership: Member,
    state: State,
    topics: Topics,
    spark: SparkSession,
    max_rounds: int | None = None,
    max_records: int = MAX_RECORDS,
    max_bytes: int | None = None,
    max_seconds: float | None = None,
    only: Collection[str] | None = None,
    replaces: str | None = None,
    progress: ProgressCallback = lambda progress: None,
) -> RunReport:
    """Process what the member is assigned, until drained, or out of rounds, or no round may begin any more.

    `max_records` and `max_bytes` are the budget of one round; `max_bytes` is the job's when None, or else the group's
    own. `only` names partitions, such as `orders-0`: of those that are assigned to the
    member it then leases from these alone, and the report names the others. `replaces` names the pipeline that worked
    on the group before, if this one takes its place. Raises GroupTaken where another pipeline works on the group,
    TypeError for a number that is none, ValueError for a budget below one record, UnknownTopicOrPartition for a topic
    or partition that is not there, UnknownTopicId where all its topics were made again, what the handler, Spark, the
    state or the broker raised, HandlerError, MostFailed, LockLost, OutputNotReachable, OutputNotShared, SinkTaken,
    SinkRefused, and SparkNotReady where the session has ended meanwhile; everything held has then been given back,
    with its deliveries unless a task of Spark's had run and left it without an outcome.
    """
    max_records = whole_number("max_records", max_records, 1)
    max_rounds = None if max_rounds is None else whole_number("max_rounds", max_rounds, 0)
    max_bytes = job.max_bytes if max_bytes is None else whole_number("max_bytes", max_bytes, 0)
    if max_seconds is not None and not isinstance(max_seconds, int | float):
        raise TypeError(f"max_seconds is {max_seconds!r}: expected a number of seconds")
    with Database.open(settings) as database:
        State(database).administration.check_cluster(topics.cluster_id())
        configs = GroupConfigs.load(database, job.group)
    max_bytes = configs.fetch_max_bytes if max_bytes is None else max_bytes
    infos = topics.require(job.topics)
    refuse_lost(state, job.group, job.topics)
    claim_group(state, job.group, job.pipeline_name, replaces)
    chosen = _chosen(only, job, infos) if only else None
    with ended_session_is_named(spark, f"group {job.group}"), RecordSizes(settings) as sizes:
        refuse_unusable(spark, settings, settings.output)
        source = Source(settings, state, topics, spark, job.reader_options, job.headers, job.max_scans)
        context = SinkContext(settings, state, spark, job.names)
        sink = (job.destination or ParquetByLease()).open(context)
        run = Run(
            job,
            membership,
            source,
            context,
            sink,
            configs,
            Budget(max_records, max_bytes),
            sizes,
            progress,
            max_rounds,
            chosen,
        )
        gone = refuse_gone(run.files, settings, state, job.names)
        try:
            report = _rounds(run, max_seconds)
        except Exception:
            drain_at_end(settings, state, configs)
            raise
    letters = drain_at_end(settings, state, configs)
    # A warning of the drain says of the letters that wait what is to be said.
    about = None
    if letters is None or letters.warning is None:
        given_up = report.rejected + report.exhausted
        about = about_letters(settings, state, configs, job.topics, given_up)
    said = [each for each in (report.remark, about, context.written.remark, *gone) if each]
    return replace(report, dead_letters=letters, remark="; ".join(said) or None)


def _chosen(only: Collection[str], job: ShareGroupJob, infos: Mapping[str, TopicInfo]) -> frozenset[str]:
    """Return the names of chosen partitions. Raises UnknownTopicOrPartition for one that the job does not read."""
    there = [f"{topic}-{partition}" for topic, info in infos.items() for partition in range(info.partitions)]
    for name in only:
        if name not in there:
            raise UnknownTopicOrPartition(
                f"Group {job.group} reads no partition {name}. {nearest(name, there, 'partitions')}"
            )
    return frozenset(only)


def _rounds(run: Run, max_seconds: float | None) -> RunReport:
    job, state, spark = run.job, run.source.state, run.source.spark
    # The sink is closed last: by then nothing is held any more.
    with _closed(run.sink), cancellable(spark) as jobs, LeaseKeeper(state, run.member, jobs) as keeper:
        isolation = run.isolation(keeper)
        if job.try_empty:
            _try_empty(run)
        with failed_by_store(run.source.settings.output):
            claim(run.files, run.source.settings, state, job.names)
        rounds = Rounds(run, keeper, isolation, jobs)
        ended = rounds.work(max_seconds)
        # Who has nothing assigned does not know what there is.
        drained = ended and bool(run.assigned())
    reports = rounds.reports
    seconds = time.monotonic() - run.began_at
    lost = state.figures.lost_topics(job.group, job.topics)
    there = [topic for topic in job.topics if topic not in lost]
    remark = why_nothing(state, run.configs, there, run.of_topics()) if ended and there else None
    if ended and not drained:
        remark = (
            f"nothing of {', '.join(job.topics)} is assigned to this member of group {job.group}: "
            "it has not joined, or the service has assigned it nothing yet"
        )
        if run.only is not None:
            remark = f"{', '.join(run.not_assigned())} of group {job.group} is not assigned to this member"
    remark = " ".join(filter(None, (remark, *map(str, lost.values())))) or None
    if remark and not reports:
        _log.warning("nothing was leased: %s", remark)
    return RunReport(
        job.group,
        tuple(reports),
        run.lag(),
        drained,
        seconds,
        remark,
        lost=report_losses(state, job.group, job.topics),
        left_out=run.left_out(),
        not_assigned=run.not_assigned(),
    )


@contextmanager
def _closed(sink: OpenSink) -> Iterator[None]:
    """Close the sink at the end of the block, also when a signal ends it, and before another one."""
    try:
        yield
    finally:
        with deferred():
            sink.close()


def _try_empty(run: Run) -> None:
    """Call the handler before anything is leased: what is wrong with it on no records is wrong on all of them."""
    records = no_records(run.source.spark)
    handled = call_handler(run.job.handler, records, run.job.unknown)
    run.fitting(handled).collect()
    uncache(handled, of=records)
