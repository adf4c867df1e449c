"""How does a replay take the place of what the live group had made of the same records?

Apart and on purpose: a replay changes nothing by itself. To publish it, the accepted rows of its records are taken
out of the live output and the replay's rows are put in: a reader finds each record once, before and after.

- Files: the folders that hold such rows are written anew without them and with the replay's rows, and the summaries
  of the leases concerned are computed anew. Then the manifest moves to the new folders in one transaction, as a
  compaction does it. The old folders stay for the grace period, for who still reads them.
- A table in Postgres: rows are deleted and inserted by topic, partition and offset, in one transaction.

Only records that the group has done with are published: another one would come again, and be there twice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID, uuid4

import pyarrow as pa
import sqlalchemy as sa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.errors import InvalidRequest, UnknownTopicId
from sharequeue.kafka.topics import Topics, is_same
from sharequeue.offsets import EMPTY, OffsetSet
from sharequeue.settings import Settings
from sharequeue.spark.job import ShareGroupJob
from sharequeue.spark.outcomes.offset_sets import offset_sets
from sharequeue.spark.output.compaction import CompactionFailed
from sharequeue.spark.output.files import Files, literal
from sharequeue.spark.output.folders import sink_root
from sharequeue.spark.output.manifest import ELSEWHERE, read_counted
from sharequeue.spark.output.shared_folder import Counted, all_read_back, refuse_unusable
from sharequeue.spark.reading.plan import TopicPartition
from sharequeue.spark.replays.replay import REPORT, replay_folder
from sharequeue.spark.replays.report import ReplayReport
from sharequeue.spark.replays.table import replace_in_table
from sharequeue.spark.showing import Shown, Table
from sharequeue.spark.sinks.parquet import ParquetByLease
from sharequeue.spark.sinks.postgres import PostgresTable
from sharequeue.state import State
from sharequeue.values import OutputRow

__all__ = ["PublishReport", "publish"]

AT = ["topic", "partition", "offset"]
_IN_FLIGHT = sa.text(
    "select s.topic, s.partition, cast(f.offsets as text) as offsets"
    " from sharequeue.share_partition_status s join sharequeue.in_flight_offsets f using (share_partition_id)"
    " where s.group_id = :group_id and f.state in (0, 1)"
)


@dataclass(frozen=True, slots=True)
class PublishReport(Shown):
    """What publishing a replay did, or would do, in rows."""

    group: str
    sink: str
    name: str
    records: int
    """Records that the replay had read."""
    hidden_rows: int
    """Rows taken out of the live output."""
    added_rows: int
    """Rows of the replay that were put in."""
    folders: int
    """Folders that were written anew; 0 for a table."""
    summaries: tuple[str, ...]
    """Summaries that were computed anew."""
    where: str
    published: bool

    def table(self) -> Table:
        """Return its figures."""
        done = "published" if self.published else "would publish"
        return Table(
            f"{done} replay {self.name} of group {self.group} into {self.where}",
            ("records", "rows out", "rows in", "folders"),
            [(self.records, self.hidden_rows, self.added_rows, self.folders)],
            (
                f"computed anew: {', '.join(self.summaries)}" if self.summaries else None,
                None if self.published else "nothing was changed: execute to publish",
            ),
        )


def publish(
    job: ShareGroupJob,
    settings: Settings,
    name: str,
    *,
    state: State,
    topics: Topics,
    spark: SparkSession,
    output: str | None = None,
    execute: bool = False,
) -> PublishReport:
    """Put a replay's accepted rows into the live output, in the place of those of the same records.

    Without `execute` it only counts. Published once more, the output is the same. Released and rejected records and
    dead letters of the live group stay as they are. `output` is the folder of all replays.

    Raises InvalidRequest when there is no such replay, when the group has not done with all its records, when a
    compaction was quicker, or when the sink is one that cannot take rows out; UnknownTopicId when a topic was made
    again; CompactionFailed and what a sink raises: nothing has then changed.
    """
    refuse_unusable(spark, settings, settings.output)
    report = _report(job, settings, name, spark, output)
    _refuse_other_topics(report, topics)
    _refuse_unfinished(job, state, report)
    _refuse_other_lives(job, state, report)
    if isinstance(job.destination, PostgresTable):
        if job.summaries:
            raise InvalidRequest(
                f"The summaries of {job.sink} cannot be computed anew, because its rows are in a table: "
                "compute them from the table."
            )
        hidden, added = replace_in_table(job, job.destination, settings, state, spark, report, execute)
        return _done(report, hidden, added, 0, (), f"table {job.destination.table}", execute)
    if not isinstance(job.destination, ParquetByLease | None):
        raise InvalidRequest(
            f"The rows of {job.sink} went to {type(job.destination).__name__}, which gives none back: what "
            f"{report.path} has must be published by your own program."
        )
    return _Files(job, settings, state, spark, report).publish(execute)


def _done(
    report: ReplayReport,
    hidden: int,
    added: int,
    folders: int,
    summaries: Sequence[str],
    where: str,
    published: bool,
) -> PublishReport:
    return PublishReport(
        report.group,
        report.sink,
        report.name,
        report.records,
        hidden,
        added,
        folders,
        tuple(summaries),
        where,
        published,
    )


def _report(
    job: ShareGroupJob, settings: Settings, name: str, spark: SparkSession, output: str | None
) -> ReplayReport:
    folder = replay_folder(settings, job, name, output)
    text = Files(spark, folder).read_text(f"{folder}/{REPORT}")
    if text is None:
        raise InvalidRequest(f"There is no replay in {folder}: replay the records first.")
    return ReplayReport.of_plain(json.loads(text))


def _refuse_other_topics(report: ReplayReport, topics: Topics) -> None:
    now = topics.describe({each.topic for each in report.partitions})
    for each in report.partitions:
        if not is_same(now, each.topic, each.topic_id):
            raise UnknownTopicId(
                f"Topic {each.topic!r} was deleted, or made again, since it was replayed: replay it again."
            )


def _refuse_other_lives(job: ShareGroupJob, state: State, report: ReplayReport) -> None:
    """Raise UnknownTopicId when the output has records of an earlier topic of the name: they have the same offsets,
    and their rows would go out too.
    """
    ids = {(each.topic, each.partition): each.topic_id for each in report.partitions}
    for row in state.outputs.counted(job.group, job.sink):
        at = row.topic, row.partition
        if row.records and row.topic_id != ids.get(at, row.topic_id):
            raise UnknownTopicId(
                f"Output {job.sink} also has records of an earlier topic {row.topic!r}, which was deleted: a replay "
                "of the present topic cannot take the place of its rows. Publish by a program of your own, or give "
                "the pipeline another sink."
            )


def _refuse_unfinished(job: ShareGroupJob, state: State, report: ReplayReport) -> None:
    """Raise InvalidRequest when the live group would deliver a record of the replay still, or again."""
    ends = {(each.topic, each.partition): each.speo for each in state.figures.describe(job.group)}
    waiting: dict[TopicPartition, OffsetSet] = {}
    for row in state.database.rows(_IN_FLIGHT, group_id=job.group):
        at = row["topic"], row["partition"]
        waiting[at] = waiting.get(at, EMPTY) | OffsetSet.parse(row["offsets"])
    left = []
    for each in report.partitions:
        at = each.topic, each.partition
        done = each.offsets & OffsetSet.of((0, ends[at])) if ends.get(at) else EMPTY
        if unfinished := each.offsets - (done - waiting.get(at, EMPTY)):
            left.append(
                f"{unfinished.count:,} of {each.topic}-{each.partition}, from offset {unfinished.first} on"
            )
    if left:
        raise InvalidRequest(
            f"Group {job.group} has not done with all records of replay {report.name} ({'; '.join(left[:5])}): they "
            "would come again and be in the output twice. Let the group work through them, then publish."
        )


class _Files:
    """The live output of a job in files, and a replay that goes into it."""

    def __init__(
        self, job: ShareGroupJob, settings: Settings, state: State, spark: SparkSession, report: ReplayReport
    ) -> None:
        self.job, self.settings, self.state, self.spark, self.report = job, settings, state, spark, report
        self.files = Files(spark, settings.output)

    def publish(self, execute: bool) -> PublishReport:
        report, job = self.report, self.job
        counted = self.state.outputs.counted(job.group, job.sink)
        owners, hidden = self._owners(counted)
        touched = set(owners)
        folders = sorted({row.location for row in counted if row.lease_id in touched and row.records})
        # Leases that have accepted nothing have no folder; their row points to where the replay's rows go.
        replaced = sorted({row.location for row in counted if row.lease_id in touched} | set(folders))
        summaries = [job.summary_sink(summary) for summary in job.summaries] if touched else []
        if execute and touched:
            self._replace(counted, owners, replaced, folders, hidden)
        return _done(
            report,
            hidden,
            report.accepted_rows,
            len(folders),
            summaries,
            sink_root(self.settings, job.sink),
            execute,
        )

    def _owners(self, counted: Sequence[OutputRow]) -> tuple[dict[int, dict[TopicPartition, OffsetSet]], int]:
        """Return which lease each record of the replay belongs to from now on, and how many rows are hidden.

        That is the lease that had accepted it; of the others the last one of the same partition.
        """
        wanted = {(each.topic, each.partition): each.offsets for each in self.report.partitions}
        rows = [row for row in counted if (row.topic, row.partition) in wanted]
        folders = sorted({row.location for row in rows if row.records})
        if elsewhere := next((folder for folder in folders if folder.startswith(ELSEWHERE)), None):
            raise InvalidRequest(
                f"Rows of {self.job.sink} are in {elsewhere.removeprefix(ELSEWHERE)}, others in files: publish into "
                "both by your own program."
            )
        owners: dict[int, dict[TopicPartition, OffsetSet]] = {}
        left = dict(wanted)
        hidden = 0
        if folders:
            live = read_counted(self.spark, folders)
            for (lease_id, topic, partition), offsets, _ in sorted(
                offset_sets(live, "lease_id", *AT[:2]), key=lambda group: group[0]
            ):
                at = topic, partition
                if at in wanted and (both := offsets & wanted[at]):
                    owners.setdefault(lease_id, {})[at] = both & left[at]
                    left[at] = left[at] - both
            if owners:
                hidden = live.join(self._records(owners), AT, "left_semi").count()
        for at, some in left.items():
            if not some:
                continue
            home = max((row.lease_id for row in rows if (row.topic, row.partition) == at), default=None)
            near = max((lease_id for lease_id, found in owners.items() if at in found), default=home)
            if near is None:
                raise InvalidRequest(
                    f"Group {self.job.group} has acknowledged no output of {at[0]}-{at[1]} in {self.job.sink}: there "
                    "is nothing that the replay could take the place of."
                )
            place = owners.setdefault(near, {})
            place[at] = place.get(at, EMPTY) | some
        return owners, hidden

    def _records(self, owners: Mapping[int, Mapping[TopicPartition, OffsetSet]]) -> DataFrame:
        """Return `topic, partition, offset` of every record of the replay, and its `owner`."""
        runs = [
            (topic, partition, first, end - 1, lease_id)
            for lease_id, found in owners.items()
            for (topic, partition), offsets in found.items()
            for first, end in offsets.ranges
        ]
        names = ("topic", "partition", "first", "last", "owner")
        kinds = (pa.string(), pa.int32(), pa.int64(), pa.int64(), pa.int64())
        columns = [pa.array([run[at] for run in runs], kind) for at, kind in enumerate(kinds)]
        table = pa.table(dict(zip(names, columns, strict=True)))
        return self.spark.createDataFrame(table).selectExpr(
            "topic", "partition", "explode(sequence(first, last)) as offset", "owner"
        )

    def _replace(
        self,
        counted: Sequence[OutputRow],
        owners: Mapping[int, Mapping[TopicPartition, OffsetSet]],
        replaced: Sequence[str],
        folders: Sequence[str],
        hidden: int,
    ) -> None:
        job, report, touched = self.job, self.report, set(owners)
        records = self._records(owners)
        replayed = self.spark.read.parquet(literal(str(report.accepted_path))).drop("lease_id")
        added = replayed.join(records.withColumnRenamed("owner", "lease_id"), AT)
        before = sum(row.records for row in counted if row.location in set(replaced))
        rows = added
        if folders:
            every = sorted({row.location for row in counted if row.location in set(replaced) and row.records})
            live = read_counted(self.spark, every)
            if (found := live.count()) != before:
                raise CompactionFailed(
                    f"{len(every)} folders of {job.sink} count {before} rows, and {found} were read from them: were "
                    "files removed or added by hand? Nothing was published."
                )
            rows = live.join(records, AT, "left_anti").unionByName(added, allowMissingColumns=True)
        new = self._write(job.sink, rows, before - hidden + report.accepted_rows)
        by_lease = {row["lease_id"]: row["count"] for row in new.rows.groupBy("lease_id").count().collect()}
        moves = [self._move(counted, new, replaced, before, by_lease)]
        for summary in job.summaries:
            moves.append(
                self._summary(job.summary_sink(summary), summary.partial, new.rows, touched, by_lease)
            )
        with self.state.transaction() as (_, joined):
            for move in moves:
                joined.outputs.commit_replacement(
                    move.compaction_id, move.replaced, move.before, move.records
                )

    def _summary(
        self, name: str, partial: object, accepted: DataFrame, touched: set[int], by_lease: Mapping[int, int]
    ) -> _Move:
        """Write the partial sums of the leases concerned anew, beside those of others in the same folders."""
        counted = self.state.outputs.counted(self.job.group, name)
        replaced = sorted({row.location for row in counted if row.lease_id in touched})
        if not replaced:
            raise InvalidRequest(
                f"The summary {name} has nothing of these leases yet: the replay's rows cannot be added to it."
            )
        old = read_counted(self.spark, replaced).filter(~fn.col("lease_id").isin(list(touched)))
        sums = partial(accepted.filter(fn.col("lease_id").isin(list(touched))))  # type: ignore[operator]
        new = self._write(name, old.unionByName(sums, allowMissingColumns=True), None)
        before = sum(row.records for row in counted if row.location in set(replaced))
        others = {row.lease_id: row.records for row in counted if row.location in set(replaced)}
        return self._move(
            counted, new, replaced, before, {**others, **{at: by_lease.get(at, 0) for at in touched}}
        )

    def _write(self, sink: str, rows: DataFrame, expected: int | None) -> _New:
        """Write a folder that no manifest has yet, announced, so that a sweep finds it whatever happens."""
        compaction_id = uuid4()
        location = f"{sink_root(self.settings, sink)}/compacted={compaction_id}"
        self.state.outputs.begin_compaction(compaction_id, self.job.group, sink, location)
        counted = Counted(rows)
        counted.records.write.mode("append").parquet(location)
        written = counted.rows
        all_read_back(sink, written, self.files.rows(location))
        if expected is not None and written != expected:
            raise CompactionFailed(
                f"{expected} rows of {sink} were expected and {written} were written: did the replay or the output "
                "change meanwhile? Nothing was published."
            )
        self.files.flush(location)
        return _New(compaction_id, self.spark.read.parquet(literal(location)))

    def _move(
        self,
        counted: Sequence[OutputRow],
        new: _New,
        replaced: Sequence[str],
        before: int,
        by_lease: Mapping[int, int],
    ) -> _Move:
        leases = {row.lease_id for row in counted if row.location in set(replaced)}
        records = {lease_id: by_lease.get(lease_id, 0) for lease_id in sorted(leases)}
        return _Move(new.compaction_id, tuple(replaced), before, records)


@dataclass(frozen=True, slots=True)
class _New:
    """A folder that was written, and its rows."""

    compaction_id: UUID
    rows: DataFrame


@dataclass(frozen=True, slots=True)
class _Move:
    """What the manifest of one sink changes: from these folders, with so many records, to records by lease."""

    compaction_id: UUID
    replaced: tuple[str, ...]
    before: int
    records: Mapping[int, int]
