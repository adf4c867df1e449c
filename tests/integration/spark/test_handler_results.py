"""What a handler returns: rows in any order, rows of no record, rows that contradict each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as fn

from sharequeue.spark import by_row
from sharequeue.spark.handler import KEPT_COLUMNS, KEY_HASH, RECORD_COLUMNS, HandlerError, with_outcomes
from sharequeue.spark.job import ShareGroupJob
from sharequeue.spark.known_handlers import KnownHandler
from sharequeue.spark.ordering.frames import hashed
from sharequeue.spark.output.manifest import read_output
from sharequeue.spark.raw_column import HandlerCalls
from sharequeue.spark.reading.frame import no_records
from sharequeue.state import State
from tests.fixtures.pipelines import (
    Assigned,
    Produce,
    RunJob,
    all_accepted,
    by_value,
    job_of,
    offsets_in,
)
from tests.fixtures.stack import MakeTopic

Handler = Callable[[DataFrame], DataFrame]


def test_columns_for_the_queue_may_be_written_in_any_case(spark: SparkSession) -> None:
    """Spark ignores the case of names, so `ERROR` is the error, and `Not_Before` the time."""
    given = spark.range(1).selectExpr(
        *("'t' as topic", "0 as partition", "id as offset", "1L as lease_id", "'release' as outcome"),
        *("'no' as ERROR", "timestamp'2030-01-01 00:00:00Z' as Not_Before"),
    )
    (row,) = with_outcomes(given).collect()
    assert (row["outcome"], row["error"], row["not_before"].year) == ("release", "no", 2030)


@pytest.mark.parametrize(
    ("without_row", "counted"), [("release", "released"), ("accept", "accepted"), ("reject", "rejected")]
)
def test_a_record_without_a_row_gets_the_outcome_of_the_policy(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    without_row: str,
    counted: str,
) -> None:
    """A handler that filters drops records: they get the outcome that the job says, and are counted."""
    topic = make_topic(1)
    produce(topic, 0, range(10))
    even: Handler = lambda records: all_accepted(records.where(fn.col("offset") % 2 == 0))  # noqa: E731
    report = run_job(job_of(group, topic, even, without_row=without_row), assigned(topic), max_rounds=1)
    assert report.without_row == 5
    assert report.gaps == 0
    assert getattr(report, counted) == (10 if without_row == "accept" else 5)


def test_rows_in_any_order_and_several_by_record(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    spark: SparkSession,
    state: State,
) -> None:
    """A handler may shuffle its rows, and make three of one record: all are written, each record is
    answered once."""
    topic = make_topic(1)
    produce(topic, 0, range(2000))

    def tripled(records: DataFrame) -> DataFrame:
        copies = records.withColumn("copy", fn.explode(fn.array(fn.lit(1), fn.lit(2), fn.lit(3))))
        return all_accepted(copies.repartition(5, fn.xxhash64("offset", "copy"))).orderBy(fn.rand(seed=7))

    report = run_job(job_of(group, topic, tripled), assigned(topic))
    assert (report.accepted, report.without_row, report.gaps) == (2000, 0, 0)
    assert Counter(offsets_in(read_output(spark, state, group, f"sink-{group}"))) == {
        (0, n): 3 for n in range(2000)
    }
    (output,) = state.outputs.counted(group, f"sink-{group}")
    assert output.records == 6000


def test_rows_of_one_record_must_agree(
    group: str, make_topic: MakeTopic, produce: Produce, assigned: Assigned, run_job: RunJob, state: State
) -> None:
    """Accepted and rejected at once is refused before anything is acknowledged, and everything is given
    back."""
    topic = make_topic(1)
    produce(topic, 0, range(5))

    def torn(records: DataFrame) -> DataFrame:
        both = fn.explode(fn.array(fn.lit("accept"), fn.lit("reject")))
        return records.select("topic", "partition", "offset", "lease_id", both.alias("outcome"))

    with pytest.raises(HandlerError, match="more than one outcome"):
        run_job(job_of(group, topic, torn), assigned(topic))
    _nothing_happened(state, group, 5)


def test_offsets_that_were_not_leased_are_refused(
    group: str, make_topic: MakeTopic, produce: Produce, assigned: Assigned, run_job: RunJob, state: State
) -> None:
    topic = make_topic(1)
    produce(topic, 0, range(5))
    shifted: Handler = lambda records: all_accepted(records.withColumn("offset", fn.col("offset") + 1))  # noqa: E731
    with pytest.raises(HandlerError, match="was not leased"):
        run_job(job_of(group, topic, shifted), assigned(topic))
    _nothing_happened(state, group, 5)


def test_a_handler_must_pass_on_the_record_of_each_row(
    group: str, make_topic: MakeTopic, produce: Produce, assigned: Assigned, run_job: RunJob, state: State
) -> None:
    topic = make_topic(1)
    produce(topic, 0, range(5))
    lacking: Handler = lambda records: records.drop("lease_id")  # noqa: E731
    with pytest.raises(HandlerError, match="lacks lease_id, outcome"):
        run_job(job_of(group, topic, lacking, try_empty=True), assigned(topic))
    _nothing_happened(state, group, 0)


@pytest.mark.parametrize(
    ("planned", "told"),
    [
        (lambda records: records.withColumn("outcome", fn.col("valu")), "`valu` cannot be resolved.*`value`"),
        (lambda records: records.withColumn("outcome", records.valu), "Attribute `valu` is not supported"),
        (
            lambda records: records.withColumn("outcome", fn.expr("uper(value)")),
            "Cannot resolve routine `uper`",
        ),
        (lambda records: records.withColumn("outcome", fn.expr("upper(")), "Syntax error"),
    ],
    ids=["column", "attribute", "function", "expression"],
)
def test_a_handler_that_spark_cannot_plan_is_an_error_in_one_line(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    capfd: pytest.CaptureFixture[str],
    planned: Handler,
    told: str,
) -> None:
    """Before a record is touched, and without the JVM's stack: not in the message, and not on stderr as JSON."""
    topic = make_topic(1)
    produce(topic, 0, range(5))
    with pytest.raises(HandlerError, match=f"^Spark cannot plan what the handler does: .*{told}") as failed:
        run_job(job_of(group, topic, planned, try_empty=True), assigned(topic))
    assert len(str(failed.value).splitlines()) == 1
    assert '"stacktrace"' not in "".join(capfd.readouterr())
    _nothing_happened(state, group, 0)


@pytest.mark.parametrize(
    ("lease_id", "told"), [("lease_id + 1000", r"lease_id \d+"), ("null", "lease_id null")]
)
def test_rows_with_another_lease_id_are_refused(
    job: ShareGroupJob,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    lease_id: str,
    told: str,
) -> None:
    """They would be found nowhere: an error, and nothing is answered."""
    (topic,) = job.topics
    produce(topic, 0, ["accept a", "accept b"])

    def changing(records: DataFrame) -> DataFrame:
        changed = fn.when(fn.col("offset") == 1, fn.expr(lease_id)).otherwise(fn.col("lease_id"))
        return by_value(records).withColumn("lease_id", changed.cast("long"))

    with pytest.raises(HandlerError, match=f"rows with {told}, which this round does not have"):
        run_job(replace(job, handler=changing), assigned(topic))
    _nothing_happened(state, job.group, 2)


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [
        ("topic", "'x'", "topic 'x' and partition 0"),
        ("topic", "concat('x', offset)", r"topic 'x\d' and partition 0"),
        ("partition", "if(offset = 1, partition + 1, partition)", "and partition 1"),
        ("partition", "cast(null as int)", "and partition None"),
    ],
)
@pytest.mark.parametrize("delays", [False, True])
def test_rows_with_another_partition_are_refused(
    job: ShareGroupJob,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    column: str,
    value: str,
    told: str,
    delays: bool,
) -> None:
    """They would be found under a record that is not theirs: an error, and nothing is answered."""
    (topic,) = job.topics
    produce(topic, 0, ["accept a", "accept b", "reject c"])

    def changing(records: DataFrame) -> DataFrame:
        handled = by_value(records).withColumn(column, fn.expr(value))
        return handled.withColumn("not_before", fn.current_timestamp()) if delays else handled

    with pytest.raises(HandlerError, match=told):
        run_job(replace(job, handler=changing), assigned(topic))
    _nothing_happened(state, job.group, 3)


def _nothing_happened(state: State, group: str, available: int) -> None:
    """No answer was given, no output counts, nothing is held: what was leased waits to be delivered again."""
    statuses = state.figures.describe(group)
    assert sum(status.acquired for status in statuses) == 0
    assert sum(status.available for status in statuses) == available
    assert state.outputs.counted(group, f"sink-{group}") == []
    assert state.figures.verify(group) == []


def test_a_session_that_cuts_times_to_milliseconds_is_refused(spark: SparkSession) -> None:
    """Spark would write other values than the handler's, without an error; a result without times is accepted."""
    row = "select 't' as topic, 0 as partition, 0L as offset, 1L as lease_id, 'accept' as outcome"
    setting = "spark.sql.parquet.outputTimestampType"
    before = spark.conf.get(setting)
    spark.conf.set(setting, "TIMESTAMP_MILLIS")
    try:
        with pytest.raises(
            HandlerError, match=r"TIMESTAMP_MILLIS\), which would change the handler's `at`: expected"
        ):
            with_outcomes(spark.sql(f"{row}, array(timestamp'2024-01-01') as at"))
        with_outcomes(spark.sql(f"{row}, timestamp_ntz'2024-01-01' as at"))
    finally:
        spark.conf.set(setting, str(before))


OF_KEPT = {name: (name,) for name in KEPT_COLUMNS[:3]}


def _with_outcome(records: DataFrame) -> DataFrame:
    return records.withColumn("outcome", fn.lit("accept"))


def _swapped(records: DataFrame) -> DataFrame:
    return records.select(*KEPT_COLUMNS, fn.col("value").alias("key"), fn.col("key").alias("value"))


def _decoded(records: DataFrame) -> DataFrame:
    order = fn.from_json(fn.col("value").cast("string"), "id int, lines array<struct<sku:string>>")
    orders = (
        records.where("value is not null")
        .select(*KEPT_COLUMNS, "headers", order.alias("order"))
        .alias("orders")
    )
    rows = orders.select("*", fn.explode("order.lines").alias("line")).orderBy("offset").limit(10)
    upper = fn.udf(lambda text: text.upper())
    names = fn.transform("headers", lambda header: header["key"])
    return rows.select(*KEPT_COLUMNS, "order.id", upper("line.sku").alias("sku"), names.alias("names"))


def _with_lookup(records: DataFrame) -> DataFrame:
    other = records.sparkSession.range(3).withColumnRenamed("id", "at")
    joined = records.join(fn.broadcast(other), fn.col("partition") == fn.col("at"), "left")
    highest = fn.expr("offset + (select max(id) from range(3))")
    both = fn.concat("at", "value").alias("both")
    return joined.select(
        *KEPT_COLUMNS, "at", both, highest.alias("highest"), fn.current_date().alias("today"), "key"
    )


def _numbered(records: DataFrame) -> DataFrame:
    order = Window.partitionBy("key").orderBy("offset")
    return records.select(*KEPT_COLUMNS, fn.row_number().over(order).alias("number"), "timestamp")


def _with_counts(records: DataFrame) -> DataFrame:
    return records.join(records.groupBy("key").count(), "key").select(*KEPT_COLUMNS, "key", "count")


def _grouped(records: DataFrame) -> DataFrame:
    return records.groupBy(*KEPT_COLUMNS).agg(fn.first("value").alias("value"))


def _in_pandas(records: DataFrame) -> DataFrame:
    return records.mapInPandas(lambda frames: frames, records.schema)


@pytest.mark.parametrize(
    ("handler", "sources"),
    [
        (_swapped, {**OF_KEPT, "key": ("value",), "value": ("key",)}),
        (_decoded, {**OF_KEPT, "id": ("value",), "sku": ("value",), "names": ("headers",)}),
        (_with_lookup, {**OF_KEPT, "key": ("key",)}),
        (_numbered, {**OF_KEPT, "timestamp": ("timestamp",)}),
        (_with_counts, {**OF_KEPT, "key": ("key",)}),
        (_grouped, {}),
        (_in_pandas, {}),
        (lambda records: records.union(records), {}),
    ],
)
def test_the_plan_shows_what_columns_are_made_of(
    spark: SparkSession, handler: Handler, sources: dict[str, tuple[str, ...]]
) -> None:
    """A column that is selected or computed has sources, whatever its name is, with and without the columns for
    traces and for raw records. One that in part comes from elsewhere, or is made of nothing, has none.
    """
    for topics, traced in ((None, False), (["topic"], True)):
        known = KnownHandler(columns_wanted=True)
        accepted: Handler = lambda records: _with_outcome(handler(records))  # noqa: E731
        HandlerCalls(accepted, known, topics, traced)(no_records(spark))
        assert known.columns is not None
        assert known.columns.sources == sources


def test_the_hash_of_a_key_is_made_of_the_key(spark: SparkSession) -> None:
    """The lease and the delivery count are not of the record."""
    known = KnownHandler(columns_wanted=True)
    HandlerCalls(_with_outcome, known, None, False)(hashed(no_records(spark)))
    assert known.columns is not None
    assert known.columns.sources == {**{name: (name,) for name in RECORD_COLUMNS}, KEY_HASH: ("key",)}


def test_comments_of_columns_are_kept(spark: SparkSession) -> None:
    """Those that a frame has, and those in the columns of `by_row`."""
    text = fn.col("value").cast("string").alias("text", metadata={"comment": "The order."})
    for handler in (
        lambda records: _with_outcome(records.withColumn("text", text)),
        by_row(lambda record: {}, "text string comment 'The order.', other int"),
    ):
        known = KnownHandler(columns_wanted=True)
        HandlerCalls(handler, known, None, False)(no_records(spark))
        assert known.columns is not None
        assert known.columns.comments == {"text": "The order."}
