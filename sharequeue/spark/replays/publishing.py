"""Publish a replay: its rows replace the live group's rows of the same records.

Publishing is a separate, explicit step: a replay changes nothing by itself. To publish it, the sink (`Sink.replace`)
takes the accepted rows of its records out of the live output and puts the replay's rows in: a reader finds each
record once, both before and after.

Only records that the group has finished are published: any other would be redelivered, and be in the output twice.
For the same reason a record is left out whose dead letter was put back into the topic. While such a redrive is under
way, nothing is published, and while a replay is published, no redrive of its records begins. Later redrives leave
out what was published. Publishing the same replay again changes no row.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from uuid import UUID

import psycopg2
from pyspark.sql import SparkSession

from sharequeue.deadletters.redrive.redriven_records import find_redriven_records
from sharequeue.domain.errors import InvalidRequest, UnknownTopicId
from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.domain.results.replays import PublishReport, ReplayReport
from sharequeue.domain.settings import Settings
from sharequeue.kafka.topics import Topics, is_same
from sharequeue.spark.job import ShareGroupJob
from sharequeue.spark.outcomes.offset_sets import reduce_to_offset_sets
from sharequeue.spark.output.files import Files
from sharequeue.spark.output.shared_folder import refuse_unusable
from sharequeue.spark.reading.plan import TopicPartition
from sharequeue.spark.replays.offsets import in_flight
from sharequeue.spark.replays.replay import REPORT, replay_folder
from sharequeue.spark.sinks.interface import Replacement, SinkContext
from sharequeue.spark.sinks.parquet import ParquetByLease
from sharequeue.state import State

__all__ = ["publish"]


def publish(
    job: ShareGroupJob,
    settings: Settings,
    name: str,
    *,
    state: State,
    topics: Topics,
    spark: SparkSession,
    execute: bool = False,
) -> PublishReport:
    """Replace rows of the live output with a replay's accepted rows of the same records.

    The arguments and the errors are those of `Pipeline.publish`, which creates the objects passed here.
    """
    refuse_unusable(spark, settings, settings.output)
    report = _report(job, settings, name, spark)
    _refuse_other_topics(report, topics)
    _refuse_unfinished(job, state, report)
    _refuse_other_lives(job, state, report)
    announced = _announced if execute else _could_be_announced
    with announced(job, state, report) as with_rows:
        redriven = find_redriven_records(settings, state, topics, job.group, job.topics)
        replacement = _replacement(job, report, redriven)
        if replacement.left_out:
            replacement = replace(replacement, accepted_rows=replacement.rows(spark).count())
        with_rows.update(_with_rows(replacement, spark) if execute else {})
        done = (job.destination or ParquetByLease()).replace(
            SinkContext(settings, state, spark, job.names), replacement, execute=execute
        )
    return PublishReport(
        report.group,
        report.sink,
        report.name,
        report.records,
        sum(some.count for some in replacement.left_out.values()),
        done.hidden_rows,
        replacement.accepted_rows,
        done.folders,
        done.summaries,
        done.where,
        execute,
    )


_WithRows = dict[TopicPartition, OffsetSet]
"""The records that have rows once a replay is published."""


@contextmanager
def _announced(job: ShareGroupJob, state: State, report: ReplayReport) -> Iterator[_WithRows]:
    """Announce a publication during a block, so that no redrive of its records begins meanwhile, and end it with what
    the block yields.

    Raises InvalidRequest if such a redrive has begun. A publication that was killed, or has lost its connection,
    stays announced until it is published again: nobody knows whether its rows count.
    """
    begun = _begin(job, state, report)
    with_rows: _WithRows = {}
    try:
        yield with_rows
    except Exception as error:
        if not _is_lost(error):
            state.outputs.forget_publication(begun)
        raise
    state.outputs.end_publication(begun, with_rows)


@contextmanager
def _could_be_announced(job: ShareGroupJob, state: State, report: ReplayReport) -> Iterator[_WithRows]:
    """Raise InvalidRequest as `_announced`, and announce nothing."""
    with suppress(_Undone), state.transaction() as (_, joined):
        _begin(job, joined, report)
        raise _Undone
    yield {}


def _is_lost(error: Exception) -> bool:
    """Return whether the connection to Postgres was lost, so that a transaction may have been committed."""
    original = getattr(error, "orig", None) or error
    return isinstance(original, psycopg2.Error) and original.pgcode is None


class _Undone(Exception):
    """Rolls back what a dry run has tried."""


def _begin(job: ShareGroupJob, state: State, report: ReplayReport) -> UUID:
    records = {(each.topic, each.partition): (each.topic_id, each.offsets) for each in report.partitions}
    return state.outputs.begin_publication(job.group, job.sink, report.name, records)


def _with_rows(replacement: Replacement, spark: SparkSession) -> _WithRows:
    return {
        (topic, partition): offsets
        for (topic, partition), offsets, _ in reduce_to_offset_sets(
            replacement.rows(spark), "topic", "partition"
        )
    }


def _report(job: ShareGroupJob, settings: Settings, name: str, spark: SparkSession) -> ReplayReport:
    folder = replay_folder(settings, job, name)
    text = Files(spark, folder).read_text(f"{folder}/{REPORT}")
    if text is None:
        raise InvalidRequest(f"There is no replay in {folder}: replay the records first.")
    return ReplayReport.of_plain(json.loads(text))


def _replacement(
    job: ShareGroupJob, report: ReplayReport, redriven: Mapping[TopicPartition, OffsetSet]
) -> Replacement:
    """Return the replacement of all records of a replay but those that were redriven."""
    of_replay = {(each.topic, each.partition): each.offsets for each in report.partitions}
    left_out = {at: some & redriven.get(at, EMPTY) for at, some in of_replay.items()}
    return Replacement(
        {at: rest for at, some in of_replay.items() if (rest := some - left_out[at])},
        str(report.accepted_path),
        report.accepted_rows,
        {job.summary_sink(summary): summary.partial for summary in job.summaries},
        {at: some for at, some in left_out.items() if some},
    )


def _refuse_other_topics(report: ReplayReport, topics: Topics) -> None:
    now = topics.describe({each.topic for each in report.partitions})
    for each in report.partitions:
        if not is_same(now, each.topic, each.topic_id):
            raise UnknownTopicId(
                f"Topic {each.topic!r} was deleted or recreated since it was replayed: replay it again."
            )


def _refuse_other_lives(job: ShareGroupJob, state: State, report: ReplayReport) -> None:
    """Raise UnknownTopicId if the output has records of an earlier topic of the same name: they have the same
    offsets, and their rows would be removed too.
    """
    ids = {(each.topic, each.partition): each.topic_id for each in report.partitions}
    for row in state.outputs.counted(job.group, job.sink):
        at = row.topic, row.partition
        if row.records and row.topic_id != ids.get(at, row.topic_id):
            raise UnknownTopicId(
                f"Output {job.sink} also has records of an earlier topic {row.topic!r}, which was deleted: a replay "
                "of the present topic cannot replace its rows. Publish with a program of your own, or give the "
                "pipeline another sink."
            )


def _refuse_unfinished(job: ShareGroupJob, state: State, report: ReplayReport) -> None:
    """Raise InvalidRequest if the live group would still deliver or redeliver a record of the replay."""
    ends = {(each.topic, each.partition): each.speo for each in state.figures.describe(job.group)}
    waiting: dict[TopicPartition, OffsetSet] = {}
    for each in in_flight(state, job.group):
        waiting[each.at] = waiting.get(each.at, EMPTY) | each.offsets
    left = []
    for part in report.partitions:
        at = part.topic, part.partition
        done = part.offsets & OffsetSet.of((0, ends[at])) if ends.get(at) else EMPTY
        if unfinished := part.offsets - (done - waiting.get(at, EMPTY)):
            left.append(
                f"{unfinished.count:,} of {part.topic}-{part.partition}, from offset {unfinished.first} on"
            )
    if left:
        raise InvalidRequest(
            f"Group {job.group} has not finished all records of replay {report.name} ({'; '.join(left[:5])}): they "
            "would be delivered again, and be in the output twice. Publish when the group has finished them."
        )
