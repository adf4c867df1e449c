"""A record that kills the Python worker that reads it, or takes all its memory, goes to the dead letters alone, and
those that died with it are through in a few rounds."""

from __future__ import annotations

import math
import os
import re
import resource
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import StringType, StructField, StructType

from sharequeue.deadletters.letters import read_dead_letters
from sharequeue.domain.results.runs import RunReport
from sharequeue.domain.settings import Settings
from sharequeue.spark.handler import Handler, MostFailed
from sharequeue.spark.output.manifest import read_output
from sharequeue.spark.progress import Progress
from sharequeue.spark.row_handlers import by_row
from sharequeue.state import State
from tests.fixtures.pipelines import Assigned, Holder, Produce, RunJob, all_accepted, job_of
from tests.fixtures.stack import MakeTopic

pytestmark = [pytest.mark.slow]

POISON = 77
DELIVERIES = 5
GIB = 1 << 30


def fatal(record: dict[str, Any]) -> Mapping[str, Any]:
    """Take any record but one, which ends the process: no exception can be caught of that."""
    if record["offset"] == POISON:
        os._exit(86)
    return {"value": record["value"].decode()}


KILLED = by_row(fatal, "value string")
WORKER_EXITED = "Python worker exited unexpectedly"


def hungry(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Take any batch but that of one record, for which there is not memory enough: the limit is set as Spark's
    workers set the one of ``spark.executor.pyspark.memory``, and taken back, because others use the worker."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (4 * GIB, before[1]))
    try:
        for batch in batches:
            if POISON in batch.column("offset").to_pylist():
                bytearray(8 * GIB)
            yield batch.append_column("outcome", pa.array(["accept"] * batch.num_rows))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def within_a_limit(records: DataFrame) -> DataFrame:
    """A handler on Arrow batches, in which nothing catches what is raised."""
    kept = records.select("topic", "partition", "offset", "lease_id")
    return kept.mapInArrow(hungry, StructType([*kept.schema, StructField("outcome", StringType())]))


def one_record_takes_only_itself_along(
    topic: str,
    records: int,
    handler: Handler,
    says: str,
    holder: Holder,
    run_job: RunJob,
    spark: SparkSession,
    state: State,
    settings: Settings,
    logged: pytest.LogCaptureFixture,
) -> RunReport:
    """The run gives back the leases of the round that it kills, and takes the suspects in parts, side by side, each a
    Spark job: of every round only the job that has it fails, and its part comes again in smaller ones; at the default
    limit of five deliveries the fifth holds it alone. All others are accepted, each once. Partition 0 has so many
    records, partition 1 has 16; gives the report of the run."""
    group = holder.assignment[0].group_id
    job = job_of(group, topic, handler)
    parts = math.ceil(records ** (1 / (DELIVERIES - 1)))
    killed = says == WORKER_EXITED
    if not killed:
        # An exception ends the run, and the next one begins with the parts.
        with pytest.raises(Exception, match=says):
            run_job(job, holder)
    said: list[Progress] = []
    report = run_job(job, holder, progress=said.append)
    rounds = list(report.rounds)
    done = [each.records_done for each in said if each.stage == "done"]
    assert done[-1] == report.done == report.leased - report.unacknowledged
    if killed:
        whole = rounds.pop(0)
        assert (whole.leased, whole.unacknowledged, whole.accepted) == (records + 16, records + 16, 0)
        assert done[0] == 0
    packed, alone = rounds[: DELIVERIES - 2], rounds[DELIVERIES - 2 :]
    assert len(packed[0].lease_ids) == parts + 2  # 16 records in two parts
    assert [each.leased for each in alone] == [1] * len(alone)
    assert len(alone) <= parts
    assert [each.unacknowledged > 0 for each in packed + alone].count(True) == DELIVERIES - 1
    warnings = [line for line in logged.messages if "ended without an acknowledgement: " in line]
    assert len(warnings) == DELIVERIES - 1 + killed
    assert all(says in line for line in warnings)
    assert killed == (f"delivered again in {parts + 2} parts" in warnings[0])
    given_up = rf"given up, because it killed its process alone .*: {re.escape(topic)}-0 offset {POISON}"
    assert killed == (re.search(given_up, report.remark or "") is not None)
    status, neighbour = state.figures.describe(group)
    assert (neighbour.lag, neighbour.archiving) == (0, 0)
    assert (status.lag, status.spso) == (0, records)
    assert (status.archiving, status.acquired, status.available) == (0, 0, 0)
    # No service is there: the run has written it at its end.
    assert report.dead_letters is not None
    assert report.dead_letters.written == 1
    (letter,) = state.dead_letters.written(group)
    assert (letter.cause, letter.delivery_count) == ("exhausted", DELIVERIES)
    assert list(letter.offsets.iter_offsets()) == [POISON]
    (died,) = read_dead_letters(settings, f"dlq.{topic}")
    assert died.source_offset == POISON
    assert died.error is not None
    assert died.error.startswith("ProcessKilled: killed its process: " if killed else says)
    output = read_output(spark, state, group, job.sink).where("partition = 0").select("offset")
    offsets = [row["offset"] for row in output.collect()]
    assert sorted(offsets) == [offset for offset in range(records) if offset != POISON]
    assert state.figures.verify(group) == []
    return report


@pytest.mark.parametrize(
    ("records", "handler", "says"),
    [
        pytest.param(81, KILLED, WORKER_EXITED, id="exit"),
        pytest.param(600, within_a_limit, "MemoryError", id="memory", marks=pytest.mark.deep),
    ],
)
def test_a_record_that_kills_its_worker_fails_alone(
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    spark: SparkSession,
    state: State,
    settings: Settings,
    records: int,
    handler: Handler,
    says: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Eighty died with it in one round; all but it are through in the next ones. Deep runs have 60,000 and a
    million."""
    topic = make_topic(2)
    produce(topic, 0, range(records))
    produce(topic, 1, range(16))
    holder = assigned(topic, errors_deadletterqueue_topic_name=f"dlq.{topic}")
    one_record_takes_only_itself_along(
        topic, records, handler, says, holder, run_job, spark, state, settings, caplog
    )


def raising(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Take no batch: each has an error with a message of its own."""
    for batch in batches:
        raise ValueError(f"no value at {batch.column('offset')[0].as_py()}")
    yield from ()


def broken(records: DataFrame) -> DataFrame:
    kept = records.select("topic", "partition", "offset", "lease_id")
    return kept.mapInArrow(raising, StructType([*kept.schema, StructField("outcome", StringType())]))


def broken_expression(records: DataFrame) -> DataFrame:
    at = fn.col("offset").cast("string")
    raised = fn.raise_error(fn.concat(fn.lit("no value at "), at))
    return all_accepted(records).withColumn("outcome", raised.cast("string"))


@pytest.mark.deep
@pytest.mark.parametrize("handler", [broken, broken_expression])
def test_a_handler_that_fails_for_every_record_makes_no_dead_letters(
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    handler: Handler,
) -> None:
    """The first job that fails may be one record's fault. From then on all parts of it fail alike: each run stops
    there, names the error, and no count rises any more. Mended, everything is accepted."""
    topic = make_topic(1)
    produce(topic, 0, range(40))
    holder = assigned(topic, errors_deadletterqueue_topic_name=f"dlq.{topic}")
    group = holder.assignment[0].group_id
    job = job_of(group, topic, handler)
    with pytest.raises(Exception, match="no value at") as first:
        run_job(job, holder)
    assert not isinstance(first.value, MostFailed)
    for turn in range(2):
        if turn:
            produce(topic, 0, range(10))
        with pytest.raises(MostFailed, match=r"the same error.*no value at"):
            run_job(job, holder)
        (status,) = state.figures.describe(group)
        assert (status.highest_delivery_count, status.acquired, status.archiving) == (1, 0, 0)
    with pytest.raises(Exception, match="no value at") as meant:
        run_job(job_of(group, topic, handler, failed_share=None), holder)
    assert not isinstance(meant.value, MostFailed)
    assert state.figures.describe(group)[0].highest_delivery_count == 2
    assert run_job(job_of(group, topic, all_accepted), holder).accepted == 50
    assert state.dead_letters.written(group) == []
    assert state.figures.verify(group) == []
