"""A session of the user's own, set up otherwise than ours: everything works in it, and nothing of it is changed."""

from __future__ import annotations

import io
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

from sharequeue.domain.settings import Settings
from sharequeue.outputs.errors import ColumnChanged
from sharequeue.spark import lease, session, spark_session
from sharequeue.spark.handler import HandlerError, with_outcomes
from sharequeue.spark.output.manifest import read_output
from sharequeue.spark.output.parquet import read_parquet
from sharequeue.spark.output.shared_folder import OutputNotShared, refuse_unshared
from sharequeue.spark.row_handlers import Release, by_row
from sharequeue.spark.session import SparkNotReady
from sharequeue.spark.sinks.postgres.copy import as_csv
from sharequeue.state import State
from tests.fixtures.pipelines import Assigned, Produce, RunJob, all_accepted, job_of
from tests.fixtures.stack import MakeTopic

CONF = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "true",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.session.timeZone": "UTC+2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "3",
}
RECORD = "topic string, partition int, offset long, lease_id long"


@pytest.fixture
def foreign(spark: SparkSession) -> SparkSession:
    """Give a session that somebody else has set up, otherwise than we would."""
    made = spark.newSession()
    for name, value in CONF.items():
        made.conf.set(name, value)
    return made


def unchanged(foreign: SparkSession) -> bool:
    return {name: foreign.conf.get(name) for name in CONF} == CONF


def test_a_pipeline_and_a_lease_work_in_a_foreign_session(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    foreign: SparkSession,
    state: State,
    settings: Settings,
    tmp_path: Path,
) -> None:
    """Record by record in Python, with times not before; redelivered, scattered ones in a block, by files of which
    the older has no `not_before`. Under a name that looks like a pattern."""
    topic = make_topic(1)
    produce(topic, 0, range(20))
    holder = assigned(topic)

    def odd(record: dict[str, object]) -> dict[str, object] | None:
        time, offset = record["timestamp"], record["offset"]
        assert isinstance(time, datetime)
        assert isinstance(offset, int)
        assert time.utcoffset() == UTC.utcoffset(None)
        if offset == 4:
            raise Release("later", not_before=datetime(2100, 1, 1, tzinfo=UTC))
        if offset % 2 == 0:
            raise Release("even")
        return {"number": offset}

    job = replace(job_of(group, topic, by_row(odd, "number int")), sink=f"orders[v2]-{group}")
    report = run_job(job, holder, spark=foreign, max_rounds=1)
    assert (report.accepted, report.released) == (10, 10)
    assert state.figures.describe(group)[0].waiting == 1
    read = read_output(foreign, state, group, job.sink)
    assert sorted(row["number"] for row in read.collect()) == list(range(1, 20, 2))

    folder = str(tmp_path / "answers[1]")
    for records in (5, 100):
        with lease(
            group,
            [topic],
            settings=settings,
            spark=foreign,
            state=state,
            membership=holder,
            max_records=records,
        ) as leased:
            all_returned = leased.records.withColumn("outcome", fn.lit("accept"))
            if records == 100:
                late = fn.expr("timestamp_ltz'2100-01-01 00:00:00'")
                all_returned = all_returned.withColumns({"outcome": fn.lit("release"), "not_before": late})
            all_returned.write.mode("append").parquet(folder)
            acknowledged = leased.acknowledge(folder)
        assert acknowledged.accepted + acknowledged.released == acknowledged.leased > 0
        assert acknowledged.without_row == 0
    assert state.figures.describe(group)[0].waiting == 5
    assert state.figures.verify(group) == []
    assert unchanged(foreign)


def test_an_existing_session_is_used_unchanged(spark: SparkSession, settings: Settings) -> None:
    """Also from a thread, which has no active one: no setting of it is changed."""
    names = ("spark.sql.session.timeZone", "spark.sql.shuffle.partitions", "spark.app.name")
    before = [spark.conf.get(name) for name in names]
    taken: list[SparkSession] = []
    other = {"spark.sql.shuffle.partitions": "99", "spark.sql.session.timeZone": "Asia/Tokyo"}
    thread = threading.Thread(target=lambda: taken.append(spark_session(settings, "another", other)))
    thread.start()
    thread.join()
    assert taken[0].sparkContext is spark.sparkContext
    assert [spark.conf.get(name) for name in names] == before


def test_without_the_connector_nothing_is_leased(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    spark: SparkSession,
    settings: Settings,
    state: State,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A session of the user's own that cannot read topics is told so first."""
    topic = make_topic(1)
    produce(topic, 0, range(3))
    holder = assigned(topic)
    monkeypatch.setattr(session, "CONNECTOR", "no.such.connector")
    with pytest.raises(SparkNotReady, match="has no Kafka connector"):
        run_job(job_of(group, topic, all_accepted), holder)
    given = lease(group, [topic], settings=settings, spark=spark, state=state, membership=holder)
    with pytest.raises(SparkNotReady, match="Nothing was leased"), given:
        pass
    (status,) = state.figures.describe(group)
    # Not by the log's end, which a service may have looked at meanwhile.
    assert (status.highest_delivery_count, status.speo, state.figures.leases(group)) == (0, 0, [])


def test_a_path_on_a_cluster_is_refused_unless_declared_as_shared(
    spark: SparkSession, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a block acknowledges, too; on one machine, and with a URI, there is nothing to say."""
    folder = str(tmp_path)
    refuse_unshared(spark, settings, folder)
    monkeypatch.setattr(spark.sparkContext, "master", "spark://somewhere:7077")
    with pytest.raises(OutputNotShared, match="set SHAREQUEUE_OUTPUT_SHARED=true"):
        refuse_unshared(spark, settings, folder)
    with pytest.raises(OutputNotShared):
        refuse_unshared(spark, settings, f"file:{folder}")
    refuse_unshared(spark, settings.replace(output_shared=True), folder)


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("lease_id", "cast(lease_id as string)", "`lease_id` is of type string: expected bigint"),
        ("offset", "cast(offset as int)", "`offset` is of type int: expected bigint"),
        ("outcome", "1", "`outcome` is of type int: expected string"),
        ("not_before", "timestamp_ntz'2100-01-01 00:00:00'", "`not_before` is of type timestamp_ntz"),
    ],
)
def test_a_column_of_another_type_is_named(spark: SparkSession, column: str, value: str, said: str) -> None:
    """Before anything is read: rows under a lease id of another type would be found nowhere."""
    records = spark.createDataFrame([("t", 0, 1, 7)], RECORD).withColumn("outcome", fn.lit("accept"))
    with pytest.raises(HandlerError, match=said):
        with_outcomes(records.withColumn(column, fn.expr(value)))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("nothing", "null", "`nothing` contains type void"),
        ("deep", "array(named_struct('a', null))", "`deep` contains type void"),
        ("gap", "make_interval(1)", "`gap` contains type interval"),
        ("empty", "struct()", "`empty` contains type struct<>"),
        ("outcome", "'accept'", "the columns `outcome` and `outcome`"),
        ("Offset", "1", "the columns `offset` and `Offset`"),
        ("sharequeue_lease", "1", "a column `sharequeue_lease`, the name"),
    ],
)
def test_a_column_that_parquet_cannot_store_is_named(
    spark: SparkSession, name: str, value: str, said: str
) -> None:
    """By the handler's contract, and not by Spark in the middle of a write; `error` may be of any type."""
    records = spark.createDataFrame([("t", 0, 1, 7)], RECORD)
    result = records.selectExpr("*", "'accept' as outcome", "null as error")
    with_outcomes(result)
    with pytest.raises(HandlerError, match=said):
        with_outcomes(result.selectExpr("*", f"{value} as {name}"))


def test_a_record_that_python_cannot_represent_fails_alone(spark: SparkSession) -> None:
    """Invalid UTF-8 in a text, a lone surrogate in a message, a list as result, a time that is none: each is that
    record's outcome."""

    class Odd(Exception):
        outcome, not_before = "release", "tomorrow"

    def function(record: dict[str, object]) -> object:
        results: dict[object, object] = {"list": ["name"], "empty": []}
        if record["text"] == "surrogate":
            raise ValueError("\ud800")
        if record["text"] == "odd":
            raise Odd
        return results.get(record["text"], {"name": record["text"]})

    values = [b"fine", b"\xff\xfe", b"surrogate", b"list", b"empty", b"odd"]
    rows = [("t", 0, at, 7, bytearray(value)) for at, value in enumerate(values)]
    records = spark.createDataFrame(rows, f"{RECORD}, value binary")
    texts = records.selectExpr("topic", "partition", "offset", "lease_id", "cast(value as string) as text")
    found = by_row(function, "name string", on_error="reject")(texts).orderBy("offset").collect()  # type: ignore[arg-type]
    assert [row["outcome"] for row in found] == ["accept", "reject", "reject", "reject", "reject", "release"]
    assert found[1]["error"].startswith("ValueError: column text: UnicodeDecodeError")
    assert found[2]["error"] == "ValueError: \\ud800"
    assert (
        found[3]["error"]
        == found[4]["error"]
        == "TypeError: the function returned a list: expected a dict, or None"
    )


def test_folders_of_several_shapes_are_one_table(spark: SparkSession, tmp_path: Path) -> None:
    """A column that was widened, and one that came later; what cannot be one column is named."""
    selects = ("1 as n", "2L as n", "3 as n, 'x' as later", "cast(4.5 as float) as f, 4L as n")
    folders = [str(tmp_path / f"lease=[{at}]") for at in range(len(selects))]
    for folder, select in zip(folders, selects, strict=True):
        spark.sql(f"select {select}").write.parquet(folder)
    read = read_parquet(spark, folders)
    assert sorted(row["n"] for row in read.collect()) == [1, 2, 3, 4]
    assert {row["later"] for row in read.collect()} == {None, "x"}
    spark.sql("select 'text' as n").write.parquet(f"{tmp_path}/text")
    with pytest.raises(ColumnChanged, match="column n is bigint in some folders and string in others"):
        read_parquet(spark, [*folders, f"{tmp_path}/text"])


def test_times_are_copied_as_utc_whatever_zone_the_session_names() -> None:
    """Arrow does not know `UTC+2`."""
    at = pa.array([datetime(2013, 7, 4, 5, 6, 7, tzinfo=UTC)], pa.timestamp("us", "UTC")).cast(
        pa.timestamp("us", "UTC+2")
    )
    text: io.BytesIO = as_csv(pa.RecordBatch.from_arrays([at], names=["at"]), "a")
    assert text.getvalue() == b'"a",2013-07-04 05:06:07.000000Z\n'
