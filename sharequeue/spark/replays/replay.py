"""Replay past records through a handler, into a separate folder.

A replay reads records again, by offsets or timestamps, passes them to the job's handler, and writes the result to
`<output>/replays/<group>/<sink>/<name>`: `accepted`, `exceptions` (with outcome and error), and `replay.json` with
its figures. It leases nothing and acknowledges nothing: no member, no lease, no delivery count, no SPSO and no dead
letter of the live group changes. The folder is written elsewhere and then moved into place as a whole: a replay of
the same name replaces it, and readers never see a partial folder. Each attempt writes to a separate folder: of two
concurrent attempts, the one that ends last remains.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from uuid import uuid4

import sqlalchemy as sa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.domain.names import folder_name
from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.domain.results.replays import ReplayedPartition, ReplayReport
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import AcknowledgeType, Lease
from sharequeue.groups.configs import GroupConfigs
from sharequeue.kafka.topics import Topics
from sharequeue.spark.handler import ACCEPT, OUTCOMES, call_handler
from sharequeue.spark.job import ShareGroupJob
from sharequeue.spark.ordering.frames import without_order
from sharequeue.spark.outcomes.outcomes import (
    read_back,
    refuse_other_partitions,
    refuse_without_outcome,
    without_outcome,
)
from sharequeue.spark.output.damaged import reads_what_it_wrote
from sharequeue.spark.output.files import Files
from sharequeue.spark.output.shared_folder import Counted, all_read_back, refuse_unusable
from sharequeue.spark.reading.frame import no_records
from sharequeue.spark.reading.options import ReaderOptions
from sharequeue.spark.reading.plan import TopicPartition
from sharequeue.spark.reading.source import TopicSource, by_scan_or_offset
from sharequeue.spark.replays import offsets as log_offsets
from sharequeue.spark.replays.offsets import ChosenRecords, ReplayedLogs
from sharequeue.spark.replays.selection import (
    TimeWindow,
    checked_name,
    name_of_leases,
    name_of_offsets,
)
from sharequeue.spark.signals import forget_interrupted_call
from sharequeue.spark.spark_jobs import cancellable, uncache
from sharequeue.state import State

__all__ = ["replay_folder", "replay_windows", "run_replay"]

REPORT = "replay.json"
STAGING = "_staging"
"""The folder beside the replays for incomplete attempts."""
_PART = "_part"
_STAGED = re.compile(r".*\+(\d+)-[0-9a-f]{32}(-old)?")
"""The name of an attempt's folder: its replay, its start (Unix seconds), and an id."""
DEAD_AFTER_SECONDS = 86_400
"""The age at which an attempt counts as killed, and its folder is removed."""
_ACCEPTED, _EXCEPTIONS = "accepted", "exceptions"
_ALONE = sa.text("select pg_advisory_xact_lock(hashtextextended(:folder, 0))")


def run_replay(
    job: ShareGroupJob,
    settings: Settings,
    *,
    state: State,
    topics: Topics,
    spark: SparkSession,
    since: datetime | None = None,
    until: datetime | None = None,
    offsets: Mapping[TopicPartition, OffsetSet] | None = None,
    leases: Sequence[int] = (),
    name: str | None = None,
    allow_missing: bool = False,
    dry_run: bool = False,
) -> ReplayReport:
    """Run a job's handler again on past records, without a change to the live group.

    The arguments and the errors are those of `Pipeline.replay`, which creates the objects passed here.
    """
    given = [since is not None or until is not None, offsets is not None, bool(leases)]
    if sum(given) != 1:
        raise ValueError("expected exactly one of: a time (since and until), offsets, leases")
    if given[0] and (since is None or until is None):
        raise ValueError("expected both since and until")
    if name is not None:
        checked_name(name)
    with _opened(job, settings, state, topics, spark) as work:
        if since is not None and until is not None:
            window = TimeWindow(since, until, name or "")
            (chosen,) = log_offsets.by_time(work.source, job, work.logs, [window], allow_missing)
            return work.replayed(chosen, window.name, str(window), dry_run)
        if leases:
            ids = sorted(set(leases))
            accepted = log_offsets.accepted_by(work.source, job, ids)
            chosen = log_offsets.by_offsets(work.source, job, work.logs, accepted, allow_missing)
            named = ", ".join(map(str, ids[:5])) + (", …" if len(ids) > 5 else "")
            words = f"accepted by lease{'s' if len(ids) > 1 else ''} {named}"
            return work.replayed(chosen, name or name_of_leases(ids), words, dry_run)
        wanted = offsets or {}
        if not any(wanted.values()):
            raise ValueError("offsets must not be empty: name at least one")
        chosen = log_offsets.by_offsets(work.source, job, work.logs, wanted, allow_missing)
        count = sum(some.count for some in wanted.values())
        return work.replayed(chosen, name or name_of_offsets(wanted), f"at {count:,} offsets", dry_run)


def replay_windows(
    job: ShareGroupJob,
    settings: Settings,
    windows: Sequence[TimeWindow],
    *,
    state: State,
    topics: Topics,
    spark: SparkSession,
    allow_missing: bool = False,
) -> Iterator[ReplayReport]:
    """Replay many windows, each into its own folder, and yield each report when its window is done.

    The log is read once to find the records of all of them. Raises what `run_replay` raises; windows whose reports
    were yielded are complete.
    """
    with _opened(job, settings, state, topics, spark) as work:
        found = log_offsets.by_time(work.source, job, work.logs, windows, allow_missing)
        for window, chosen in zip(windows, found, strict=True):
            yield work.replayed(chosen, window.name, str(window), False)


def replay_folder(settings: Settings, job: ShareGroupJob, name: str) -> str:
    """Return the folder of a replay."""
    return f"{settings.output}/replays/{folder_name(job.group)}/{job.sink}/{name}"


@contextmanager
def _opened(
    job: ShareGroupJob,
    settings: Settings,
    state: State,
    topics: Topics,
    spark: SparkSession,
) -> Iterator[_Work]:
    """Yield the resources of a replay. Spark's jobs of the block are cancelled when it ends with an exception."""
    configs = GroupConfigs.load(state.database, job.group)
    source = TopicSource(settings, state, topics, spark, ReaderOptions.of(job.reader_options), job.headers)
    refuse_unusable(spark, settings, settings.output)
    work = _Work(
        job,
        configs,
        source,
        log_offsets.logs_of(source, job.topics, configs.isolation_level),
        time.monotonic(),
    )
    with cancellable(spark) as jobs:
        try:
            yield work
        except BaseException as error:
            if not isinstance(error, Exception):
                forget_interrupted_call()
            jobs.cancel()
            with suppress(Exception):
                if work.unfinished is not None:
                    Files(spark, work.unfinished).remove(work.unfinished)
            raise


@dataclass(slots=True)
class _Work:
    job: ShareGroupJob
    configs: GroupConfigs
    source: TopicSource
    logs: ReplayedLogs
    began_at: float
    unfinished: str | None = None
    """The folder of the attempt that is being written."""

    def replayed(self, chosen: ChosenRecords, name: str, words: str, dry_run: bool) -> ReplayReport:
        """Replay the chosen records, or only report them."""
        report = ReplayReport(
            self.job.group,
            self.job.sink,
            name,
            words,
            tuple(
                ReplayedPartition(topic, partition, self.logs.infos[topic].topic_id, some)
                for (topic, partition), some in sorted(chosen.offsets.items())
                if some
            ),
            missing=chosen.missing,
            scanned=chosen.scanned,
        )
        if not dry_run:
            group, level = self.job.group, self.logs.isolation_level
            report = self._written(report, log_offsets.first_deliveries(group, chosen.offsets, level))
        report = replace(report, seconds=time.monotonic() - self.began_at)
        self.began_at = time.monotonic()
        return report

    def _written(self, report: ReplayReport, leases: Sequence[Lease]) -> ReplayReport:
        """Run the handler, write its result, read it back, and move it into place."""
        spark, settings = self.source.spark, self.source.settings
        target = replay_folder(settings, self.job, report.name)
        parent, _, _ = target.rpartition("/")
        files = Files(spark, target)
        for left in files.names(f"{parent}/{STAGING}"):
            began = _STAGED.fullmatch(left)
            if began and time.time() - int(began[1]) > DEAD_AFTER_SECONDS:
                files.remove(f"{parent}/{STAGING}/{left}")
        staging = f"{parent}/{STAGING}/{report.name}+{time.time():.0f}-{uuid4().hex}"
        self.unfinished = staging
        columns, rows = by_scan_or_offset(partial(self._handled, files, leases, staging))
        folders = [f"{staging}/{_ACCEPTED}", f"{staging}/{_EXCEPTIONS}"]
        with reads_what_it_wrote(folders, f"replay {report.name}", alone=files.alone):
            seen = read_back(spark, folders, delays="not_before" in columns)
            all_read_back(self.job.sink, rows, sum(of_lease.rows for of_lease in seen.values()))
            refuse_other_partitions(leases, seen)
        missing = {lease.lease_id: without_outcome(lease, seen.get(lease.lease_id)) for lease in leases}
        log_offsets.refuse_changed(
            self.source, self.logs, {_at(lease): missing[lease.lease_id] for lease in leases}
        )
        refuse_without_outcome(leases, seen, missing if self.job.without_row is None else {})
        counts = {
            kind: sum(of_lease.outcomes.get(kind, EMPTY).count for of_lease in seen.values())
            for kind in OUTCOMES.values()
        }
        without_row = sum(some.count for some in missing.values())
        if self.job.without_row is not None:
            counts[OUTCOMES[self.job.without_row]] += without_row
        done = replace(
            report,
            path=target,
            accepted=counts[AcknowledgeType.ACCEPT],
            accepted_rows=sum(of_lease.accepted_rows for of_lease in seen.values()),
            released=counts[AcknowledgeType.RELEASE],
            rejected=counts[AcknowledgeType.REJECT],
            without_row=without_row,
            seconds=time.monotonic() - self.began_at,
        )
        files.write_text(f"{staging}/{REPORT}", json.dumps(done.plain(), indent=2))
        files.flush(*folders, staging)
        self._put(files, staging, target)
        self.unfinished = None
        return done

    def _handled(
        self, files: Files, leases: Sequence[Lease], staging: str, by_offset: bool
    ) -> tuple[list[str], int]:
        """Write the handler's result; return its columns, and how many rows the tasks wrote."""
        source = self.source
        records = source.records(leases, by_offset=by_offset) if leases else no_records(source.spark)
        read = without_order(records, self.configs)
        try:
            handled = call_handler(self.job.handler, read)
            return handled.columns, _write(files, handled, staging)
        finally:
            uncache(read)

    def _put(self, files: Files, staging: str, target: str) -> None:
        """Move a complete folder into place, one process at a time; an older folder is moved aside first, which is
        fast.
        """
        with self.source.state.transaction() as (connection, _):
            # On an object store a folder is copied, which takes time.
            connection.execute(sa.text("set local statement_timeout = 0"))
            connection.execute(sa.text("set local lock_timeout = 0"))
            connection.execute(_ALONE, {"folder": target})
            if files.exists(target):
                aside = f"{staging}-old"
                files.replace(target, aside)
                files.replace(staging, target)
                files.remove(aside)
            else:
                files.replace(staging, target)


def _at(lease: Lease) -> TopicPartition:
    return lease.share_partition.topic, lease.share_partition.partition


def _write(files: Files, handled: DataFrame, staging: str) -> int:
    """Write accepted rows and exceptions in one pass; return how many rows the tasks wrote. Both folders have at
    least one file, with the columns.
    """
    part = fn.when(fn.col("outcome") == ACCEPT, _ACCEPTED).otherwise(_EXCEPTIONS)
    counted = Counted(handled.withColumn(_PART, part))
    counted.records.write.mode("overwrite").partitionBy(_PART).parquet(staging)
    have = files.names(staging)
    empty = handled.sparkSession.createDataFrame([], handled.schema).coalesce(1)
    for folder in (_ACCEPTED, _EXCEPTIONS):
        if f"{_PART}={folder}" in have:
            files.replace(f"{staging}/{_PART}={folder}", f"{staging}/{folder}")
        else:
            empty.write.mode("overwrite").parquet(f"{staging}/{folder}")
    return counted.rows
