"""What every sink must do. A new sink is one entry of `SINKS`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import pytest
import sqlalchemy as sa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.database import Database
from sharequeue.spark import AtLeastOnce, ParquetByLease, PostgresTable, read_output
from sharequeue.spark.sinks.interface import Sink
from sharequeue.spark.sweep import sweep_outputs
from sharequeue.state import State
from sharequeue.words.settings import Settings
from sharequeue.words.values import Lease
from tests.fixtures.lakes import LakeOf
from tests.fixtures.pipelines import Assigned, MakeTable, Produce, RunJob, job_of
from tests.fixtures.stack import MakeTopic

COLUMNS = 'topic text, "partition" integer, "offset" bigint, lease_id bigint'
RECORDS = 10
Found = Counter[tuple[int, int]]


@dataclass
class Place:
    """Where a sink of a test may put its rows."""

    spark: SparkSession
    state: State
    database: Database
    group: str
    make_table: MakeTable
    lake_of: LakeOf


@pytest.fixture
def place(
    spark: SparkSession,
    state: State,
    database: Database,
    group: str,
    make_table: MakeTable,
    lake_of: LakeOf,
) -> Place:
    """Give where the sink of this test may put its rows."""
    return Place(spark, state, database, group, make_table, lake_of)


def counted(rows: Iterable[Mapping[str, int]]) -> Found:
    return Counter((row["partition"], row["offset"]) for row in rows)


def files(place: Place) -> tuple[Sink, Callable[[], Found]]:
    def found() -> Found:
        rows = read_output(place.spark, place.state, place.group, f"sink-{place.group}")
        return counted(row.asDict() for row in rows.collect())

    return ParquetByLease(), found


def postgres(place: Place) -> tuple[Sink, Callable[[], Found]]:
    table = place.make_table(COLUMNS)
    rows = sa.text(f'select "partition", "offset" from {table}')  # noqa: S608 - a name of this test's
    return PostgresTable(table), lambda: counted(dict(row) for row in place.database.rows(rows))


def at_least_once(place: Place) -> tuple[Sink, Callable[[], Found]]:
    written: Found = Counter()

    def write(rows: DataFrame, lease: Lease) -> None:
        written.update(counted(row.asDict() for row in rows.collect()))

    return AtLeastOnce(write), lambda: written


def lake(kind: str) -> Callable[[Place], tuple[Sink, Callable[[], Found]]]:
    def table(place: Place) -> tuple[Sink, Callable[[], Found]]:
        made = place.lake_of(kind)
        made.create()
        return made.sink(), made.found

    return table


SINKS = [
    files,
    postgres,
    at_least_once,
    pytest.param(lake("delta"), id="delta", marks=pytest.mark.deep),
    pytest.param(lake("iceberg"), id="iceberg", marks=pytest.mark.deep),
]


def thirds_rejected(records: DataFrame) -> DataFrame:
    outcome = fn.when(fn.col("offset") % 3 == 0, "reject").otherwise("accept")
    return records.select("topic", "partition", "offset", "lease_id", outcome.alias("outcome"))


@pytest.mark.parametrize("sink", SINKS)
def test_each_accepted_record_is_there_once_and_no_other(
    sink: Callable[[Place], tuple[Sink, Callable[[], Found]]],
    place: Place,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    output_settings: Settings,
) -> None:
    """Over rounds and runs, accepted rows are where the sink puts them, the others in the exceptions, and the sweep
    finds nothing left over."""
    topic = make_topic(2)
    holder = assigned(topic)
    destination, found = sink(place)
    job = job_of(place.group, topic, thirds_rejected, destination=destination, failed_share=None)
    for partition in range(2):
        produce(topic, partition, range(RECORDS))
        run_job(job, holder, max_records=6)
    assert found() == {(at, n): 1 for at in range(2) for n in range(RECORDS) if n % 3}
    exceptions = read_output(place.spark, place.state, place.group, job.exceptions_sink)
    assert counted(row.asDict() for row in exceptions.collect()) == {
        (at, n): 1 for at in range(2) for n in range(0, RECORDS, 3)
    }
    assert sweep_outputs(place.spark, output_settings, place.state, job) == []
