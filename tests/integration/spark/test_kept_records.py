"""Released records are kept in files, and read from there when they are delivered again."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import StringType, StructField, StructType

from sharequeue.database import Database
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import Delivery, Lease
from sharequeue.groups.configs import GroupConfigs, alter_group_configs
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.topics import Topics
from sharequeue.spark.formats import json as decoded
from sharequeue.spark.handler import RAW, Handler, HandlerError
from sharequeue.spark.kept_records import KeptFiles
from sharequeue.spark.leased_records import Unacknowledged, lease
from sharequeue.spark.output.folders import is_kept, lease_in
from sharequeue.spark.output.manifest import read_output
from sharequeue.spark.progress import Progress
from sharequeue.spark.raw_records import KEEP, kept_apart, with_raw
from sharequeue.spark.reading import kept as reading_kept
from sharequeue.spark.reading.source import TopicSource
from sharequeue.spark.row_handlers import by_row
from sharequeue.spark.sinks.postgres.sink import PostgresTable
from sharequeue.spark.sweep import sweep_outputs
from sharequeue.state import State
from sharequeue.state.kept import Kept
from tests.fixtures.pipelines import Assigned, Holder, MakeTable, Produce, RunJob, job_of, offsets_in
from tests.fixtures.raw_records import NOT_UTF8, RawRecord, produce_raw
from tests.fixtures.stack import MakeTopic
from tests.waiting import PATIENCE_S


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep released records although they are many of their lease, as in these small topics."""
    monkeypatch.setattr(reading_kept, "SPARSE", 1)


def odd_later(records: DataFrame) -> DataFrame:
    """Release records with an odd value at their first delivery, and accept them at their second."""
    odd = "cast(cast(value as string) as int) % 2 = 1 and delivery_count = 1"
    return records.selectExpr("*", f"if({odd}, 'release', 'accept') as outcome")


def odd_refused(record: Mapping[str, Any]) -> dict[str, Any]:
    """The same for `by_row`."""
    number = int(record["value"])
    if number % 2 and record["delivery_count"] == 1:
        raise ValueError("odd")
    return {"number": number}


@pytest.fixture
def log_reads(monkeypatch: pytest.MonkeyPatch) -> list[list[OffsetSet]]:
    """Give the offsets of each read of records from the log, by lease."""
    reads: list[list[OffsetSet]] = []
    whole = TopicSource.records

    def noted(source: TopicSource, leases: list[Lease], *, by_offset: bool = False) -> DataFrame:
        reads.append([lease.offsets for lease in leases])
        return whole(source, leases, by_offset=by_offset)

    monkeypatch.setattr(TopicSource, "records", noted)
    return reads


@pytest.fixture
def numbers(make_topic: MakeTopic, produce: Produce) -> str:
    """A topic of two partitions with the values 0 to 19."""
    topic = make_topic(2)
    for partition in range(2):
        produce(topic, partition, range(20))
    return topic


def files_of(settings: Settings, sink: str, *, kept: bool) -> list[Path]:
    """The Parquet files of a sink that have raw records, or those that have none."""
    found = (settings.local_output / sink).glob("leases=*/*/*.parquet")
    return sorted(file for file in found if is_kept(int(file.parent.name.partition("=")[2])) == kept)


@pytest.mark.parametrize("how", ["frame", "by row"])
def test_a_released_record_is_read_from_files_when_it_comes_again(
    how: str,
    group: str,
    numbers: str,
    assigned: Assigned,
    run_job: RunJob,
    spark: SparkSession,
    state: State,
    output_settings: Settings,
    log_reads: list[list[OffsetSet]],
) -> None:
    """The second round reads nothing of the log. Accepted rows and exceptions have the same columns as without, the
    run removes what was kept of finished records, and the state is right."""
    seen: list[Path] = []
    handler = odd_later if how == "frame" else by_row(odd_refused, "number int")
    job = job_of(group, numbers, handler, deliveries_per_run=2)

    def look(progress: Progress) -> None:
        if (progress.round, progress.stage) == (2, "write"):
            seen.extend(files_of(output_settings, job.sink, kept=True))

    report = run_job(job, assigned(numbers), progress=look)
    assert (report.accepted, report.released, len(report.rounds)) == (40, 20, 2)
    assert log_reads == [[OffsetSet.of((0, 20)), OffsetSet.of((0, 20))]]
    rows = read_output(spark, state, group, job.sink)
    assert sorted(row["offset"] for row in rows.collect()) == sorted([*range(20)] * 2)
    exceptions = read_output(spark, state, group, job.exceptions_sink)
    assert RAW not in (*rows.columns, *exceptions.columns)
    assert {row["outcome"] for row in exceptions.collect()} == {"release"}
    columns = {tuple(pq.read_schema(file).names) for file in files_of(output_settings, job.sink, kept=False)}
    assert len(columns) == 1
    assert len({file.parent for file in seen}) == 2
    assert state.figures.verify(group) == []
    assert files_of(output_settings, job.sink, kept=True) == []
    assert state.kept.removable(group, all_rows=True) == []
    assert sweep_outputs(spark, output_settings, state, job) == []
    assert read_output(spark, state, group, job.sink).count() == 40


def test_a_table_gets_no_column_more(
    group: str,
    numbers: str,
    assigned: Assigned,
    run_job: RunJob,
    make_table: MakeTable,
    database: Database,
    log_reads: list[list[OffsetSet]],
) -> None:
    """With a sink that refuses columns that its table lacks; its accepted rows go, and kept ones stay in files."""
    table = make_table('"partition" int, "offset" bigint, value bytea, "timestamp" timestamptz')

    def handler(records: DataFrame) -> DataFrame:
        return odd_later(records).drop("key", "headers", "timestamp_type")

    job = job_of(group, numbers, handler, destination=PostgresTable(table), deliveries_per_run=2)
    assert run_job(job, assigned(numbers)).accepted == 40
    assert len(log_reads) == 1
    (row,) = database.rows(sa.text(f'select count(distinct (partition, "offset")) as n from {table}'))  # noqa: S608
    assert row["n"] == 40


def test_keys_in_order_are_kept_too(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    spark: SparkSession,
    state: State,
    log_reads: list[list[OffsetSet]],
) -> None:
    """Of a key that waits, its first record is kept; those behind it are held, and are read from the log."""
    topic = make_topic(1)
    produce(topic, 0, [0, 1, 2, 1, 3, 5])  # the key is made of the value
    job = job_of(group, topic, by_row(odd_refused, "number int"), deliveries_per_run=2)
    holder = assigned(topic, sharequeue_order="key")
    assert run_job(job, holder, max_rounds=1).released == 3
    (row,) = state.kept.removable(group, all_rows=True)
    assert list(row.offsets.iter_offsets()) == [1, 4, 5]
    run_job(job, holder)
    assert offsets_in(read_output(spark, state, group, job.sink)) == [(0, offset) for offset in range(6)]
    assert log_reads[1] == [OffsetSet.of((3, 4))]


def test_files_have_the_types_that_they_have_without(spark: SparkSession) -> None:
    """A column without nulls stays one, a text of the handler's own is null beside a raw record, and names of other
    parts of the library are free."""
    columns = "timestamp timestamp, timestamp_type int, key binary, value binary"
    at = "topic string, partition int, offset long, lease_id long"
    row = ("t", 0, 5, 7, datetime.now(UTC), 0, None, bytearray(b"v"))
    given = spark.createDataFrame([row], f"{at}, {columns}").withColumn(
        "headers", fn.expr("cast(null as array<struct<key:string,value:binary>>)")
    )
    handled = with_raw(given, {"t"}).selectExpr(
        *("topic", "partition", "offset", "lease_id", RAW, "'release' as outcome", "'no' as error"),
        *("1 as n", "cast(value as string) as sharequeue_text", "nullif(2, 3) as sharequeue_raw_text"),
    )
    kept = kept_apart(handled)
    assert [(each.name, each.nullable) for each in kept.schema if each.name in ("n", "sharequeue_text")] == [
        ("n", False),
        ("sharequeue_text", True),
    ]
    rows = {row["outcome"]: row for row in kept.collect()}
    assert (rows["release"]["error"], rows["release"]["sharequeue_text"]) == ("no", "v")
    assert (rows[KEEP]["n"], rows[KEEP]["sharequeue_text"], rows[KEEP]["sharequeue_raw_text"]) == (1, None, 2)


def released(records: DataFrame) -> DataFrame:
    """Release everything."""
    return records.withColumn("outcome", fn.lit("release"))


def held(state: State, holder: Holder, settings: Settings) -> list[Lease]:
    """Lease everything of a holder again."""
    return list(state.acquire(holder.assignment, "holder", None, 10_000, lock_duration_ms=600_000).leases)


@pytest.mark.parametrize("headers", [True, False])
def test_kept_records_are_those_of_the_log(
    headers: bool,
    group: str,
    make_topic: MakeTopic,
    assigned: Assigned,
    run_job: RunJob,
    spark: SparkSession,
    state: State,
    settings: Settings,
    output_settings: Settings,
    topics: Topics,
) -> None:
    """Nulls, empty ones, headers in order and with names that are not UTF-8, both kinds of timestamps: column by
    column, in values and types. A job with headers reads those that were kept without them from the log."""
    created, appended = make_topic(1), make_topic(1, **{"message.timestamp.type": "LogAppendTime"})
    producer = Producer(client_config(settings) | {"log_level": 0})
    some_headers: tuple[Any, ...] = (
        None,
        [],
        [("one", b"1")],
        [("b", b"1"), ("a", None), ("b", b""), ("é", b"\xff ,:")],
    )
    for topic in (created, appended):
        for given in some_headers:
            for key, value in ((None, None), (b"", b""), (b"\x00\xff", b"{}"), (b"key", bytes(range(256)))):
                for timestamp in (0, 1, -62_000_000_000_000, 1_700_000_000_123):
                    producer.produce(topic, value, key, 0, timestamp=max(timestamp, 0), headers=given)
    assert producer.flush(PATIENCE_S) == 0
    early = -62_000_000_000_000
    produce_raw(settings, created, [RawRecord(b"a", [NOT_UTF8]), RawRecord(b"b", [(b"", b"")], early)])
    holder = assigned(created, appended)
    job = job_of(group, created, released, failed_share=None, headers=headers)
    job = replace(job, topics=(created, appended))
    assert run_job(job, holder).released == 2 * 64 + 2
    leases = held(state, holder, settings)
    source = TopicSource(output_settings, state, topics, spark, headers=headers)
    files = KeptFiles.of(source, GroupConfigs.load(state.database, group), [created, appended])
    assert files is not None
    kept = files.find(leases)
    assert sum(row.offsets.count for rows in kept.rows.values() for row in rows) == 130
    from_files, from_log = files.records(leases, kept), source.records(leases)
    some = [
        replace(each, deliveries=(Delivery(2, OffsetSet.of((0, 30))), Delivery(3, OffsetSet.of((30, 64)))))
        for each in leases
    ]
    assert found(files.records(some, kept)) == found(source.records(some))
    assert from_files.dtypes == from_log.dtypes
    assert "kafka" not in from_files._jdf.queryExecution().toString().lower()
    assert found(from_files) == found(from_log)
    with_headers = KeptFiles.of(
        TopicSource(output_settings, state, topics, spark),
        GroupConfigs.load(state.database, group),
        [created],
    )
    assert with_headers is not None
    assert bool(with_headers.find(leases).rows) == headers


def found(records: DataFrame) -> list[tuple[Any, ...]]:
    exact = records.withColumn("timestamp", fn.expr("unix_micros(timestamp)"))
    return sorted((tuple(row) for row in exact.collect()), key=lambda row: row[:3])


def gone(files: list[Path]) -> None:
    for file in files:
        shutil.rmtree(file.parent, ignore_errors=True)


def truncated(files: list[Path]) -> None:
    for file in files:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def fewer(files: list[Path]) -> None:
    for file in files:
        pq.write_table(pq.read_table(file).slice(1), file)
        (file.parent / f".{file.name}.crc").unlink(missing_ok=True)


def other(files: list[Path]) -> None:
    for file in files:
        pq.write_table(pa.table({"a": [1]}), file)
        (file.parent / f".{file.name}.crc").unlink(missing_ok=True)


def changed(files: list[Path]) -> None:
    for file in files:
        table = pq.read_table(file)
        texts = pa.array([text.replace("-", "x") + "A" for text in table["error"].to_pylist()])
        pq.write_table(table.set_column(table.schema.get_field_index("error"), "error", texts), file)
        (file.parent / f".{file.name}.crc").unlink(missing_ok=True)


def moved(files: list[Path]) -> None:
    for file in files:
        table = pq.read_table(file)
        elsewhere = pa.array([7] * table.num_rows, pa.int32())
        pq.write_table(
            table.set_column(table.schema.get_field_index("partition"), "partition", elsewhere), file
        )
        (file.parent / f".{file.name}.crc").unlink(missing_ok=True)


DAMAGES = (gone, truncated, fewer, other, changed, moved)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda each: each.__name__)
def test_damaged_files_are_forgotten_and_their_records_read_from_the_log(
    damage: Any,
    group: str,
    numbers: str,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    output_settings: Settings,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the same round, with one warning: no run fails, and no record is lost."""
    holder = assigned(numbers)
    job = job_of(group, numbers, odd_later)
    assert run_job(job, holder).released == 20
    files = files_of(output_settings, job.sink, kept=True)
    damage([file for file in files if file.parent == files[0].parent])
    dropped: list[list[int]] = []
    drop = Kept.drop

    def noted(kept: Kept, group_id: str, lease_ids: list[int]) -> int:
        dropped.append(list(lease_ids))
        return drop(kept, group_id, lease_ids)

    monkeypatch.setattr(Kept, "drop", noted)
    with caplog.at_level(logging.WARNING, "sharequeue.spark.kept_records"):
        report = run_job(job, holder)
    assert (report.accepted, len(report.rounds)) == (20, 1)
    (warning,) = [each for each in caplog.records if each.name == "sharequeue.spark.kept_records"]
    assert "kept records cannot be read" in warning.getMessage()
    assert "occurred while calling" not in warning.getMessage()  # which says nothing of the file
    assert dropped[0] == [lease_in(int(files[0].parent.name.partition("=")[2]))]
    assert state.figures.verify(group) == []


@pytest.mark.parametrize("when", ["before the plan", "after it"])
def test_files_that_go_after_the_check_do_not_fail_the_round(
    when: str,
    group: str,
    numbers: str,
    assigned: Assigned,
    run_job: RunJob,
    output_settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log is read in their place, and the job is run again if it had begun."""
    holder = assigned(numbers)
    job = job_of(group, numbers, odd_later)
    run_job(job, holder)
    whole = KeptFiles.records

    def late(files: KeptFiles, leases: list[Lease], kept: Any, *, by_offset: bool = False) -> DataFrame:
        left = files_of(output_settings, job.sink, kept=True)
        if when == "before the plan":
            gone(left)
        records = whole(files, leases, kept, by_offset=by_offset)
        if when == "after it":
            gone(left)
        return records

    monkeypatch.setattr(KeptFiles, "records", late)
    report = run_job(job, holder)
    assert (report.accepted, len(report.rounds)) == (20, 1)


def test_what_was_kept_and_cannot_be_scanned_is_read_by_offset(
    group: str,
    make_topic: MakeTopic,
    settings: Settings,
    assigned: Assigned,
    run_job: RunJob,
    output_settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The files go when the job has begun: it is run again on the log, which Spark's connector cannot read, and then
    once more."""
    topic = make_topic(1, message_timestamp_after_max_ms=str(2**63 - 1))
    producer = Producer(client_config(settings))
    for number in range(4):
        producer.produce(topic, str(number), timestamp=1_700_000_000_000_000_000, partition=0)
    producer.flush(PATIENCE_S)
    holder = assigned(topic)
    job = job_of(group, topic, odd_later)
    assert run_job(job, holder).released == 2
    whole = KeptFiles.records

    def late(files: KeptFiles, leases: list[Lease], kept: Any, *, by_offset: bool = False) -> DataFrame:
        records = whole(files, leases, kept, by_offset=by_offset)
        gone(files_of(output_settings, job.sink, kept=True))
        return records

    monkeypatch.setattr(KeptFiles, "records", late)
    report = run_job(job, holder)
    assert (report.accepted, len(report.rounds)) == (2, 1)


def test_a_lease_reads_kept_records(
    group: str,
    numbers: str,
    assigned: Assigned,
    run_job: RunJob,
    spark: SparkSession,
    state: State,
    output_settings: Settings,
    log_reads: list[list[OffsetSet]],
) -> None:
    """It forgets none: it may run where the files cannot be reached, and then reads the log."""
    holder = assigned(numbers)
    job = job_of(group, numbers, odd_later)
    run_job(job, holder)
    leased = lease(
        group, [numbers], settings=output_settings, spark=spark, state=state, membership=holder
    ).open()
    assert sorted(int(row["value"]) for row in leased.records.collect()) == sorted([*range(1, 20, 2)] * 2)
    assert len(log_reads) == 1
    gone(files_of(output_settings, job.sink, kept=True))
    assert leased.records.count() == 20
    assert len(log_reads) == 2
    with pytest.warns(Unacknowledged):
        leased.close()
    assert len(state.kept.removable(group, all_rows=True)) == 2


def test_switched_off_nothing_is_read_and_the_sweep_removes_all(
    group: str,
    numbers: str,
    assigned: Assigned,
    run_job: RunJob,
    spark: SparkSession,
    state: State,
    database: Database,
    output_settings: Settings,
    log_reads: list[list[OffsetSet]],
) -> None:
    """What must not be kept elsewhere goes, also that of records that are still open; a dry run only names it."""
    holder = assigned(numbers)
    job = job_of(group, numbers, odd_later)
    run_job(job, holder)
    assert sweep_outputs(spark, output_settings, state, job) == []
    alter_group_configs(database, group, {"sharequeue.retry.keep.enable": "false"})
    named = sweep_outputs(spark, output_settings, state, job, dry_run=True)
    assert len(named) == 2
    assert files_of(output_settings, job.sink, kept=True)
    assert sorted(sweep_outputs(spark, output_settings, state, job)) == sorted(named)
    assert files_of(output_settings, job.sink, kept=True) == []
    assert run_job(job, holder).accepted == 20
    odd = OffsetSet.from_offsets(range(1, 20, 2))
    assert log_reads[1:] == [[odd, odd]]


def test_a_compacted_topic_keeps_nothing(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    output_settings: Settings,
) -> None:
    """Its log may have lost a record since."""
    topic = make_topic(1, **{"cleanup.policy": "compact"})
    produce(topic, 0, range(20))
    job = job_of(group, topic, odd_later, deliveries_per_run=2)
    assert run_job(job, assigned(topic)).accepted == 20
    assert files_of(output_settings, job.sink, kept=True) == []
    assert state.kept.removable(group, all_rows=True) == []


def test_only_the_raw_record_of_a_row_is_kept(
    group: str,
    numbers: str,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
) -> None:
    """Not that of another record, none without the column, and none of a lease with several rows for one record. A
    column that was changed is the handler's mistake."""
    holder = assigned(numbers)

    def of_another(records: DataFrame) -> DataFrame:
        return released(records).withColumn(RAW, fn.expr(f"named_struct({OTHER})"))

    def without(records: DataFrame) -> DataFrame:
        return released(records).drop(RAW)

    def twice(records: DataFrame) -> DataFrame:
        return released(records).selectExpr("*", "explode(array(1, 2)) as number")

    for handler in (of_another, without, twice):
        job = job_of(group, numbers, handler, failed_share=None)
        assert run_job(job, holder, max_rounds=1).released == 40
        assert state.kept.removable(group, all_rows=True) == []
    with pytest.raises(HandlerError, match="sharequeue_raw` is of type int"):
        run_job(job_of(group, numbers, lambda each: released(each).withColumn(RAW, fn.lit(1))), holder)


OTHER = ", ".join(
    f"'{name}', {'offset + 1' if name == 'offset' else f'{RAW}.{name}'}"
    for name in ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers")
)


def test_by_row_keeps_what_was_read_whatever_was_made_of_it(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    spark: SparkSession,
    state: State,
    topics: Topics,
    output_settings: Settings,
) -> None:
    """The bytes of a decoded value are kept. A value that was replaced by other bytes is not."""
    topic = make_topic(1)
    produce(topic, 0, (json.dumps({"number": number}) for number in range(4)))

    def refuse(record: Mapping[str, Any]) -> None:
        assert RAW not in record
        assert not [name for name in record if name.startswith("sharequeue")]
        raise ValueError("no")

    holder = assigned(topic)

    def parsed(records: DataFrame) -> DataFrame:
        return by_row(refuse, "number int")(decoded(records, "number int"))

    assert run_job(job_of(group, topic, parsed, failed_share=None), holder).released == 4
    leases = held(state, holder, output_settings)
    source = TopicSource(output_settings, state, topics, spark)
    files = KeptFiles.of(source, GroupConfigs.load(state.database, group), [topic])
    assert files is not None
    kept = files.find(leases)
    assert found(files.records(leases, kept)) == found(source.records(leases))
    assert sum(row.offsets.count for rows in kept.rows.values() for row in rows) == 4
    state.release(leases, refund=True)
    before = {row.lease_id for row in state.kept.removable(group, all_rows=True)}

    def replaced(records: DataFrame) -> DataFrame:
        return by_row(refuse, "number int")(records.withColumn("value", fn.expr("substring(value, 2)")))

    assert run_job(job_of(group, topic, replaced, failed_share=None), holder).released == 4
    assert {row.lease_id for row in state.kept.removable(group, all_rows=True)} == before


def selected(records: DataFrame) -> DataFrame:
    """The same as `odd_later` twice, of a handler that names its columns."""
    odd = "cast(cast(value as string) as int) % 2 = 1 and delivery_count < 3"
    return records.selectExpr(
        *("topic", "partition", "offset", "lease_id", f"if({odd}, 'release', 'accept') as outcome")
    )


def in_pandas(records: DataFrame) -> DataFrame:
    """The same in a function that gets whole rows, and adds nothing of its own to what it must pass on."""

    def later(frames: Iterable[Any]) -> Iterable[Any]:
        for frame in frames:
            assert RAW not in frame.columns
            odd = frame.value.map(int) % 2 == 1
            frame["outcome"] = (odd & (frame.delivery_count < 3)).map({True: "release", False: "accept"})
            yield frame

    return records.mapInPandas(later, StructType([*records.schema, StructField("outcome", StringType())]))


def in_two_rows(records: DataFrame) -> DataFrame:
    """The same with two rows for each record, all of its columns among them."""
    odd = "cast(cast(value as string) as int) % 2 = 1 and delivery_count < 3"
    return records.selectExpr(
        "*", f"if({odd}, 'release', 'accept') as outcome", "explode(array(1, 2)) as row"
    )


def of_known_columns(records: DataFrame) -> DataFrame:
    """The same of a handler that refuses a column which it does not know."""
    assert RAW not in records.columns
    return selected(records)


@pytest.mark.parametrize("handler", [selected, in_pandas, of_known_columns, in_two_rows])
def test_what_comes_again_is_kept_while_it_is_read(
    handler: Handler,
    group: str,
    numbers: str,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    output_settings: Settings,
    log_reads: list[list[OffsetSet]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The handler does not pass on the raw record, so the second delivery reads the log once more, and the third one
    reads files. Nothing is left of them afterwards."""
    monkeypatch.setattr(reading_kept, "LARGE", 0)
    job = job_of(group, numbers, handler, deliveries_per_run=3)
    report = run_job(job, assigned(numbers))
    assert [(each.accepted, each.released) for each in report.rounds] == [(20, 20), (0, 20), (20, 0)]
    odd = OffsetSet.from_offsets(range(1, 20, 2))
    assert log_reads == [[OffsetSet.of((0, 20))] * 2, [odd] * 2]
    assert state.figures.verify(group) == []
    assert files_of(output_settings, job.sink, kept=True) == []
    assert state.kept.removable(group, all_rows=True) == []


def test_a_failure_of_many_records_is_not_kept(
    group: str,
    numbers: str,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    output_settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their topic would be stored twice, and a scan reads it as fast."""
    monkeypatch.setattr(reading_kept, "SPARSE", 4)
    job, holder = job_of(group, numbers, odd_later), assigned(numbers)
    assert run_job(job, holder).released == 20
    assert state.kept.removable(group, all_rows=True) == []
    assert files_of(output_settings, job.sink, kept=True) == []
    assert run_job(job, holder).accepted == 20
