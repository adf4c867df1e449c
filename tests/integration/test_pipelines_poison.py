"""A record that kills the Python worker that reads it, or takes all its memory, goes to the dead letters alone."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from pipelines.job import Handler
from pipelines.rows import by_row
from pipelines.write import read_output
from sharequeue.state import State
from tests.fix_pipelines import Assigned, Produce, RunJob, job_of
from tests.fix_stack import MakeTopic

pytestmark = pytest.mark.timeout(600)

RECORDS = 10_000
POISON = 4_321
DELIVERIES = 5
GIB = 1 << 30


def fatal(record: dict[str, Any]) -> Mapping[str, Any]:
    """Take any record but one, which ends the process: no exception can be caught of that."""
    if record["offset"] == POISON:
        os._exit(86)
    return {"value": record["value"].decode()}


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


@pytest.mark.parametrize(
    ("handler", "says"),
    [
        pytest.param(by_row(fatal, "value string"), "Python worker exited unexpectedly", id="exit"),
        pytest.param(within_a_limit, "MemoryError", id="memory"),
    ],
)
def test_a_record_that_kills_its_worker_takes_only_itself_along(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    spark: SparkSession,
    state: State,
    handler: Handler,
    says: str,
) -> None:
    """Each run that it kills gives back its lease, which comes again in smaller parts: at the default limit of five
    deliveries the fifth holds it alone. The 9,999 others are accepted, each once."""
    topic = make_topic(1)
    produce(topic, 0, range(RECORDS))
    job = job_of(group, topic, handler)
    holder = assigned(topic, errors_deadletterqueue_topic_name=f"dlq.{topic}")
    reasons: list[str] = []
    while len(reasons) <= DELIVERIES:
        try:
            run_job(job, holder)
            break
        except Exception as error:
            reasons.append(str(error))
    assert [says in reason for reason in reasons] == [True] * DELIVERIES
    (status,) = state.describe(group)
    assert (status.lag, status.spso) == (1, POISON)
    assert (status.archiving, status.acquired, status.available) == (1, 0, 0)
    batch = state.open_dead_letters(holder.assignment[0], 10)
    assert batch is not None
    (letter,) = batch.letters
    assert (letter.cause, letter.delivery_count) == ("exceeded", DELIVERIES)
    assert list(letter.offsets.iter_offsets()) == [POISON]
    offsets = [row["offset"] for row in read_output(spark, state, group, job.sink).select("offset").collect()]
    assert sorted(offsets) == [offset for offset in range(RECORDS) if offset != POISON]
    assert state.verify(group) == []
