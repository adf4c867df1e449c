"""What every sink must do. The sinks are those that `sharequeue.spark` exports; a new one is one entry of `SINKS`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.database import Database
from sharequeue.domain.errors import InvalidRecordState, InvalidRequest
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.results.runs import Stored
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import Lease
from sharequeue.outputs.manifest import PENDING
from sharequeue.spark import (
    AtLeastOnce,
    DeltaTable,
    IcebergTable,
    KafkaTopic,
    OutputDamaged,
    ParquetByLease,
    PostgresTable,
    pipeline,
    read_output,
)
from sharequeue.spark.output.folders import SinkNames
from sharequeue.spark.sinks.interface import Sink
from sharequeue.spark.sinks.transfers import Step
from sharequeue.spark.sweep import sweep_outputs
from sharequeue.state import State
from tests.fixtures.lakes import LakeOf
from tests.fixtures.pipelines import Assigned, MakeTable, Produce, RunJob, all_accepted, job_of
from tests.fixtures.results import results_in
from tests.fixtures.stack import MakeTopic
from tools.sinks import registered

COLUMNS = 'topic text, "partition" integer, "offset" bigint, lease_id bigint'
RECORDS = 10
DATABASE = "postgresql+psycopg2://ada:secret@db:5433/queue?sslmode=require"
Found = Counter[tuple[int, int]]
"""How often a record is in the sink, by partition and offset."""


@dataclass
class Place:
    """Where a sink of a test may put its rows."""

    spark: SparkSession
    state: State
    database: Database
    group: str
    make_table: MakeTable
    lake_of: LakeOf
    make_topic: MakeTopic
    settings: Settings
    folder: Path
    """An empty folder of this test alone."""


@pytest.fixture
def place(
    spark: SparkSession,
    state: State,
    database: Database,
    group: str,
    make_table: MakeTable,
    lake_of: LakeOf,
    make_topic: MakeTopic,
    settings: Settings,
    tmp_path: Path,
) -> Place:
    """Give where the sink of this test may put its rows."""
    folder = tmp_path / "rows"
    folder.mkdir()
    return Place(spark, state, database, group, make_table, lake_of, make_topic, settings, folder)


Make = Callable[[Place], tuple[Sink, Callable[[], Found]]]
"""A function that returns a sink, and a function that counts its rows."""


@dataclass(frozen=True)
class Entry:
    """A sink under test."""

    make: Make
    stored: Sequence[tuple[Sink, str, Stored]] = ()
    """A sink, the setting `output`, and where a data catalog finds its rows. Empty if no catalog knows them."""
    at_least_once: bool = False
    """Whether a record may be there more than once after a failure."""
    deep: bool = False
    """Whether only `make test/deep` runs it, because it needs jars of its own."""


def counted(rows: Iterable[Mapping[str, int]]) -> Found:
    return Counter((row["partition"], row["offset"]) for row in rows)


def files(place: Place) -> tuple[Sink, Callable[[], Found]]:
    def found() -> Found:
        if not place.state.outputs.counted(place.group, f"sink-{place.group}"):
            return Counter()
        rows = read_output(place.spark, place.state, place.group, f"sink-{place.group}")
        return counted(row.asDict() for row in rows.collect())

    return ParquetByLease(), found


def postgres(place: Place) -> tuple[Sink, Callable[[], Found]]:
    table = place.make_table(COLUMNS)
    rows = sa.text(f'select "partition", "offset" from {table}')  # noqa: S608 - a name of this test's
    return PostgresTable(table), lambda: counted(dict(row) for row in place.database.rows(rows))


def own_function(place: Place) -> tuple[Sink, Callable[[], Found]]:
    written: Found = Counter()

    def write(rows: DataFrame, lease: Lease) -> None:
        written.update(counted(row.asDict() for row in rows.collect()))

    return AtLeastOnce(write), lambda: written


def topic(place: Place) -> tuple[Sink, Callable[[], Found]]:
    name = place.make_topic(2)
    sent = KafkaTopic(name, value="lease_id")
    return sent, lambda: counted(each.source for each in results_in(place.settings, name))


def lake(kind: str) -> Make:
    def table(place: Place) -> tuple[Sink, Callable[[], Found]]:
        made = place.lake_of(kind)
        made.create()
        return made.sink(), made.found

    return table


SINKS: Mapping[type[Sink], Entry] = {
    ParquetByLease: Entry(
        files,
        stored=[
            (
                ParquetByLease(),
                "/data/out",
                Stored("parquet", uri="file:///data/out/orders", for_the_queue=True),
            ),
            (
                ParquetByLease(),
                "s3a://lake/out",
                Stored("parquet", uri="s3a://lake/out/orders", for_the_queue=True),
            ),
        ],
    ),
    PostgresTable: Entry(
        postgres,
        stored=[
            (
                PostgresTable("sales.orders"),
                "/data/out",
                Stored("postgres", "queue.sales.orders", "postgresql://db:5433/queue"),
            )
        ],
    ),
    KafkaTopic: Entry(
        topic,
        stored=[(KafkaTopic("orders.clean"), "/data/out", Stored("kafka", "orders.clean"))],
    ),
    DeltaTable: Entry(
        lake("delta"),
        stored=[
            (DeltaTable("sales.orders"), "/data/out", Stored("delta", "sales.orders")),
            (DeltaTable("s3a://lake/orders"), "/data/out", Stored("delta", uri="s3a://lake/orders")),
            (DeltaTable("/lake/orders"), "/data/out", Stored("delta", uri="file:///lake/orders")),
        ],
        deep=True,
    ),
    IcebergTable: Entry(
        lake("iceberg"),
        stored=[(IcebergTable("lake.sales.orders"), "/data/out", Stored("iceberg", "lake.sales.orders"))],
        deep=True,
    ),
    AtLeastOnce: Entry(
        own_function,
        stored=[(AtLeastOnce(lambda rows, lease: None), "/data/out", Stored())],
        at_least_once=True,
    ),
}


def for_sinks(*kinds: type[Sink]) -> pytest.MarkDecorator:
    """Return the mark of a test of these sinks."""
    entries = [
        pytest.param(SINKS[kind], id=kind.__name__, marks=[pytest.mark.deep] if SINKS[kind].deep else [])
        for kind in kinds
    ]
    return pytest.mark.parametrize("entry", entries)


every_sink = for_sinks(*SINKS)


def thirds_rejected(records: DataFrame) -> DataFrame:
    outcome = fn.when(fn.col("offset") % 3 == 0, "reject").otherwise("accept")
    return records.select("topic", "partition", "offset", "lease_id", outcome.alias("outcome"))


def test_every_exported_sink_has_a_test_of_the_contract() -> None:
    """A sink that is exported and has none would have no test of the contract."""
    assert {*SINKS} == {*registered()}


@every_sink
def test_each_accepted_record_is_there_once_and_no_other(
    entry: Entry,
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
    destination, found = entry.make(place)
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


@pytest.fixture
def missing_skipped(spark: SparkSession) -> Iterator[None]:
    """The session skips files that are missing."""
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    yield
    spark.conf.unset("spark.sql.files.ignoreMissingFiles")


@for_sinks(KafkaTopic, DeltaTable, IcebergTable)
def test_no_row_is_left_out_because_its_file_is_missing(
    entry: Entry,
    place: Place,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    tmp_path: Path,
    missing_skipped: None,
    short_claims: None,
) -> None:
    """A file that is removed between the acknowledgement and the transfer holds all rows, also in a session that
    skips missing files; when it is back, each is there once."""
    topic = make_topic(2)
    for partition in range(2):
        produce(topic, partition, range(RECORDS))
    holder = assigned(topic)
    sink, found = entry.make(place)
    taken: dict[Path, Path] = {}

    def take_one(step: Step) -> None:
        if step == "begun" and not taken:
            [row, _] = place.state.outputs.counted(place.group, f"sink-{place.group}")
            for file in Path(row.location.removeprefix(PENDING)).glob("*.parquet"):
                taken[file] = tmp_path / file.name
                file.rename(taken[file])

    assert isinstance(sink, KafkaTopic | DeltaTable | IcebergTable)
    first = job_of(place.group, topic, all_accepted, destination=replace(sink, on_step=take_one))
    try:
        said = str(run_job(first, holder).remark)
    except OutputDamaged as damaged:
        said = str(damaged)
    assert "20 rows were acknowledged, and the files have 10" in said
    assert found() == {}
    for at, now in taken.items():
        now.rename(at)
    run_job(job_of(place.group, topic, all_accepted, destination=sink), holder)
    assert found() == {(at, n): 1 for at in range(2) for n in range(RECORDS)}


def third_once_released(records: DataFrame) -> DataFrame:
    outcome = fn.expr("if(offset = 2 and delivery_count = 1, 'release', 'accept')").alias("outcome")
    return records.select("topic", "partition", "offset", "lease_id", "key_hash", outcome)


@every_sink
def test_no_record_of_a_key_is_there_before_an_earlier_one(
    entry: Entry,
    place: Place,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
) -> None:
    """In a group that is ordered by key, an accepted record behind one that was released waits, and is not written
    to the sink before the other one is."""
    topic = make_topic(1)
    produce(topic, 0, ["same key"] * RECORDS)
    holder = assigned(topic, sharequeue_order="key")
    destination, found = entry.make(place)
    job = job_of(place.group, topic, third_once_released, destination=destination, failed_share=None)
    assert run_job(job, holder, max_records=4).held
    assert found() == {(0, 0): 1, (0, 1): 1}
    run_job(job, holder)
    assert found() == {(0, n): 1 for n in range(RECORDS)}


@every_sink
def test_a_lost_lock_leaves_no_record_out(
    entry: Entry,
    place: Place,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
) -> None:
    """The acknowledgement of a lease that was lost is refused, and its rows are not in the sink, unless it is one
    that has them at least once; the next run brings every record."""
    topic = make_topic(1)
    produce(topic, 0, range(RECORDS))
    holder = assigned(topic)
    destination, found = entry.make(place)

    def robbed(records: DataFrame) -> DataFrame:
        place.state.release_member(place.group, holder.member_id)
        return all_accepted(records)

    job = job_of(place.group, topic, robbed, destination=destination)
    with pytest.raises(InvalidRecordState):
        run_job(job, holder)
    assert entry.at_least_once or found() == {}
    job = job_of(place.group, topic, all_accepted, destination=destination)
    assert run_job(job, holder).accepted == RECORDS
    there = found()
    assert {*there} == {(0, n) for n in range(RECORDS)}
    assert entry.at_least_once or {*there.values()} == {1}


@every_sink
def test_a_replay_is_published_or_refused(
    entry: Entry,
    place: Place,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    output_settings: Settings,
) -> None:
    """After it, each record is there once, as before: its rows were replaced, or the sink cannot remove rows."""
    topic = make_topic(1)
    produce(topic, 0, range(RECORDS))
    destination, found = entry.make(place)
    job = pipeline(group=place.group, topics=topic, sink=f"sink-{place.group}", destination=destination)(
        all_accepted
    )
    run_job(job, assigned(topic))
    spark, state = place.spark, place.state
    job.replay(
        output_settings, offsets={(topic, 0): OffsetSet.of((2, 5))}, name="again", spark=spark, state=state
    )
    try:
        published = job.publish("again", output_settings, execute=True, spark=spark, state=state)
        replaced = published.hidden_rows
    except InvalidRequest as error:
        assert f"{type(destination).__name__}, which cannot remove rows" in str(error)  # noqa: PT017
        replaced = 0
    assert replaced == (0 if type(destination).replace is Sink.replace else 3)
    assert found() == {(0, n): 1 for n in range(RECORDS)}


@pytest.mark.parametrize(
    ("sink", "output", "expected"), [row for entry in SINKS.values() for row in entry.stored]
)
def test_each_sink_names_its_table_or_its_address(
    tmp_path: Path, sink: Sink, output: str, expected: Stored
) -> None:
    """No user and no password are in it, and nothing is asked for it."""
    settings = Settings({"home": tmp_path, "database_url": DATABASE, "output": output})
    assert sink.stored(settings, SinkNames("g", "orders")) == expected
