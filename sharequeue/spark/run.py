"""Run a share group's job through its topics, round by round.

Each round requests the log ends from the broker, acquires within the budget, reads exactly the leased records,
handles and writes them, reads the output back, and acknowledges each lease accordingly (`round.py`). The run ends
when there is nothing left to acquire. Locks are renewed meanwhile (`leasing/renewal.py`); a lost lock stops the run
before it writes or acknowledges more. If a run ends early for any reason, its leases are given back at once. The
caller creates the member and runs the sweeps; dead letters are written at the end, unless a service writes
them (`dead_letters.py`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Set

from pyspark.sql import SparkSession

from sharequeue.domain.errors import first_line
from sharequeue.domain.names import finite, whole_number
from sharequeue.domain.results.runs import RoundReport, RunReport, WrittenAtEnd, total
from sharequeue.domain.settings import Settings
from sharequeue.groups.configs import GroupConfigs
from sharequeue.kafka.reading import RecordReader
from sharequeue.kafka.topics import Topics
from sharequeue.spark.dead_letters import about_letters, write_letters_at_end
from sharequeue.spark.job import ShareGroupJob
from sharequeue.spark.kept_records import sweep_kept
from sharequeue.spark.leasing.budget import MAX_RECORDS, Budget, RecordSizes
from sharequeue.spark.leasing.crashes import words_of_given_up
from sharequeue.spark.leasing.group import (
    claim_group,
    living_topics,
    report_losses,
    why_nothing,
)
from sharequeue.spark.leasing.renewal import LeaseKeeper, LeasingMember
from sharequeue.spark.open_run import OpenRun
from sharequeue.spark.ordering.frames import hashed
from sharequeue.spark.output.manifest import refuse_gone
from sharequeue.spark.output.owners import claim
from sharequeue.spark.output.reachable import failed_by_store
from sharequeue.spark.output.shared_folder import refuse_unusable
from sharequeue.spark.progress import Progress, ProgressCallback
from sharequeue.spark.reading.frame import no_records
from sharequeue.spark.reading.options import ReaderOptions
from sharequeue.spark.reading.plan import TopicPartition
from sharequeue.spark.reading.source import TopicSource, words_of_leaderless
from sharequeue.spark.rounds import Rounds
from sharequeue.spark.sinks.interface import SinkContext
from sharequeue.spark.sinks.parquet import ParquetByLease
from sharequeue.spark.spark_jobs import cancellable, ended_session_is_named, uncache
from sharequeue.state import State

__all__ = ["RoundReport", "RunReport", "run_rounds"]

_log = logging.getLogger(__name__)


def run_rounds(
    settings: Settings,
    job: ShareGroupJob,
    *,
    membership: LeasingMember,
    state: State,
    topics: Topics,
    spark: SparkSession,
    join: Callable[[], None] = lambda: None,
    max_rounds: int | None = None,
    max_records: int = MAX_RECORDS,
    max_bytes: int | None = None,
    max_seconds: float | None = None,
    replaces: str | None = None,
    progress: ProgressCallback = lambda progress: None,
) -> RunReport:
    """Process the member's assigned partitions until drained, out of rounds, or no further round may begin.

    The arguments and the errors are those of `Pipeline.run`, which creates the objects passed here. `join` lets the
    member join, if it has not: it is called when nothing has refused the run.
    """
    asked_at = time.monotonic()
    max_records = whole_number("max_records", max_records, 1)
    max_rounds = None if max_rounds is None else whole_number("max_rounds", max_rounds, 0)
    max_bytes = None if max_bytes is None else whole_number("max_bytes", max_bytes, 0)
    max_seconds = None if max_seconds is None else finite("max_seconds", max_seconds)
    configs = GroupConfigs.load(state.database, job.group)
    budget = Budget(max_records, configs.fetch_max_bytes if max_bytes is None else max_bytes)
    living_topics(topics, state, job.group, job.topics)
    claim_group(state, job.group, job.pipeline_name, replaces)
    with ended_session_is_named(spark, f"group {job.group}"), RecordReader(settings) as records:
        refuse_unusable(spark, settings, settings.output)
        source = TopicSource(
            settings, state, topics, spark, ReaderOptions.of(job.reader_options), job.headers
        )
        context = SinkContext(settings, state, spark, job.names, tuple(job.topics))
        # Before the first lease, each may take minutes: killed runs have left something, the handler reads tables.
        progress(Progress(1, "opening the output", 0, 0, 0.0, None))
        # The sink is closed last, when no lease is held.
        with (job.destination or ParquetByLease()).open(context) as sink:
            run = OpenRun(
                *(job, membership, source, sink, configs, budget, RecordSizes(records), progress),
                max_rounds,
                max_seconds,
                asked_at,
            )
            refuse_gone(run.files, settings, state, job.names)
            try:
                rounds, ended = _rounds(run, join)
            except Exception:
                write_letters_at_end(settings, state, configs)
                raise
    return _report(run, rounds, ended, time.monotonic() - run.asked_at)


def _rounds(run: OpenRun, join: Callable[[], None]) -> tuple[Rounds, bool]:
    """Run the rounds; return them, and whether nothing was left to lease."""
    source, job = run.source, run.job
    with (
        cancellable(source.spark) as jobs,
        LeaseKeeper(source.state, run.member, jobs) as keeper,
        run.handler.known.needs_trial(job.group, run.configs.ordered) as untried,
    ):
        if job.try_empty and untried:
            run.progress(Progress(1, "calling the handler without records", 0, 0, 0.0, None))
            _try_empty(run)
        with failed_by_store(source.settings.output):
            claim(run.files, source.settings, source.state, job.names)
        asked_at = time.monotonic()
        # Where a new group begins is decided now: a run that is refused must not decide it.
        join()
        run.rounds_at = time.monotonic()
        waited = run.rounds_at - asked_at  # for an assignment, which is no work
        run.asked_at += waited
        run.began_at += waited
        rounds = Rounds(run, keeper, jobs)
        ended = rounds.work()
        _sweep_kept(run)
        return rounds, ended


def _sweep_kept(run: OpenRun) -> None:
    """Remove the kept records that no lease needs any more. The work of the run is done: an error is a warning."""
    source = run.source
    try:
        sweep_kept(source.spark, source.settings, source.state, run.configs, files=run.files)
    except Exception as error:
        _log.warning(
            "kept records were not removed; the next run or sweep removes them: %s", first_line(error)
        )


def _try_empty(run: OpenRun) -> None:
    """Call the handler on no records before anything is leased: an error there would occur on all records."""
    records = no_records(run.source.spark)
    if run.configs.ordered:
        records = hashed(records)
    handled = run.handler(records)
    run.columns.check(handled.schema)
    run.sink.fits(handled).collect()
    uncache(records)


def _report(run: OpenRun, rounds: Rounds, ended: bool, seconds: float) -> RunReport:
    """Write the dead letters, and return the report of the run. `ended`: nothing was left to lease."""
    job, settings, state, configs = run.job, run.source.settings, run.source.state, run.configs
    # A member without an assignment does not know the partitions.
    leaderless = run.leaderless | {(sp.topic, sp.partition) for sp in run.lost_leader}
    drained = ended and bool(run.assigned()) and run.sink_waits is None
    why = run.sink_waits or _why_nothing(run, leaderless, ended, drained)
    if why and not rounds.reports:
        _log.warning("nothing was leased: %s", why)
    letters, about = write_letters_at_end(settings, state, configs), None
    if rounds.letters != WrittenAtEnd():
        letters = rounds.letters + (letters or WrittenAtEnd())
    # A warning of the writer becomes the remark on waiting letters.
    if letters is None or letters.warning is None:
        letterless = sum(each.rejected + each.exhausted for each in rounds.reports)
        about = about_letters(settings, state, configs, job.topics, letterless)
    lag, new = run.left()
    limited = (
        f"the run ended at its limit with lag {lag:,}: the next run continues" if lag and not ended else None
    )
    if ended and new and run.sink_waits is None:
        limited = f"records came at the end of the run, and the lag is {lag:,}: the next run continues"
    given_up = words_of_given_up(rounds.isolated.given_up)
    remarks = (limited, why, run.sink.held, run.sink.remark, given_up, about, run.columns.remark)
    return RunReport(
        group=job.group,
        rounds=tuple(rounds.reports),
        lag=lag,
        drained=drained and not new and not leaderless,
        leaderless=tuple(f"{topic}-{partition}" for topic, partition in sorted(leaderless)),
        seconds=seconds,
        start_seconds=run.rounds_at - run.asked_at,
        remark="; ".join(filter(None, remarks)) or None,
        dead_letters=letters,
        errors=() if run.failure is None else (run.failure,),
        **{**total(rounds.reports), "lost": report_losses(state, job.group, job.topics)},
    )


def _why_nothing(run: OpenRun, leaderless: Set[TopicPartition], ended: bool, drained: bool) -> str:
    """Return why nothing more was leased; an empty text without a reason."""
    job, state = run.job, run.source.state
    lost = state.figures.lost_topics(job.group, job.topics)
    why: str | None = None
    if ended and not drained:
        why = (
            f"no partition of {', '.join(job.topics)} is assigned to this member of group {job.group}: it has not "
            "joined, or the service has not assigned any to it yet"
        )
    elif ended and (there := [topic for topic in job.topics if topic not in lost]):
        why = why_nothing(state, run.configs, there, run.assigned())
    why = " ".join(filter(None, (why, *map(str, lost.values()))))
    return "; ".join(filter(None, (words_of_leaderless(leaderless) if leaderless else None, why)))
