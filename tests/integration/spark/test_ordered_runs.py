"""Order by key: of each key, nothing is accepted before its earlier records, and only that key waits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
import sqlalchemy as sa
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.database import Database
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.record_bytes import key_hash
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import Delivery, Lease, SharePartition
from sharequeue.kafka.clients import client_config
from sharequeue.spark import PostgresTable, Reject, Release, by_row, lease, pipeline
from sharequeue.spark.handler import HandlerError
from sharequeue.spark.ordering.frames import KeyOrder
from sharequeue.spark.output.manifest import read_output
from sharequeue.state import State
from sharequeue.state.calls import BlockedKeys
from tests.fixtures.pipelines import Assigned, Holder, MakeTable, RunJob, job_of
from tests.fixtures.stack import MakeTopic
from tests.waiting import PATIENCE_S

Keyed = Sequence[tuple[str | None, str]]
Send = Callable[[str, Keyed], None]
RECORDS: Keyed = [
    ("a", "accept"),
    ("a", "release"),
    ("b", "accept"),
    ("a", "accept"),
    (None, "release"),
    (None, "accept"),
    ("a", "reject"),
    ("", "release"),
    ("", "accept"),
    ("c", "reject"),
    ("c", "accept"),
]
ACCEPTED, RELEASED, REJECTED, HELD = [0, 2, 5], [1, 4, 7], [9], [3, 6, 8, 10]

A_LEASE = Lease(
    *(7, SharePartition("g", "t", 0), 0, "m", None, UUID(int=1), datetime(2100, 1, 1, tzinfo=UTC), 1000),
    *((Delivery(1, OffsetSet.of((0, 1000))),), "read_committed"),
)


@pytest.fixture
def send(settings: Settings) -> Send:
    """Give a function that appends records, by key and value, to the first partition of a topic."""
    producer = Producer(client_config(settings, enable_idempotence=True) | {"log_level": 0})

    def sent(topic: str, records: Keyed) -> None:
        for key, value in records:
            producer.produce(topic, value.encode(), None if key is None else key.encode(), partition=0)
        assert producer.flush(PATIENCE_S) == 0

    return sent


def ordered(assigned: Assigned, topic: str, **configs: str) -> Holder:
    return assigned(topic, sharequeue_order="key", **configs)


def by_text(records: DataFrame) -> DataFrame:
    """The outcome is what the value says."""
    text = "cast(value as string)"
    kept = ("topic", "partition", "offset", "lease_id", "key_hash", "delivery_count")
    return records.selectExpr(*kept, f"{text} as outcome", f"if({text} = 'accept', null, 'because') as error")


def accepting(records: DataFrame) -> DataFrame:
    """Everything is accepted."""
    return by_text(records).withColumns({"outcome": fn.lit("accept"), "error": fn.lit(None).cast("string")})


def keep_outcome(record: dict[str, Any]) -> dict[str, Any]:
    """Raise what the value says."""
    if (text := record["value"].decode()) != "accept":
        raise (Release if text == "release" else Reject)("because")
    return {"delivery_count": record["delivery_count"]}


def offsets(rows: DataFrame, where: str = "true") -> list[int]:
    return sorted(row["offset"] for row in rows.where(where).select("offset").collect())


def deliveries(rows: DataFrame) -> dict[int, int]:
    return {row["offset"]: row["delivery_count"] for row in rows.select("offset", "delivery_count").collect()}


def proved(state: State, group: str) -> None:
    """The state has no fault, and no lease."""
    assert state.figures.leases(group) == []
    assert state.figures.verify(group) == []


@pytest.mark.parametrize(
    "handler", [by_text, by_row(keep_outcome, "delivery_count int")], ids=["frame", "row"]
)
def test_a_key_is_cut_behind_its_first_record_that_is_not_accepted(
    handler: Callable[[DataFrame], DataFrame],
    group: str,
    make_topic: MakeTopic,
    send: Send,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    spark: SparkSession,
) -> None:
    """Its later records wait, whatever the handler gave them, and cost no delivery; other keys and records without a
    key go on. What waits for a dead letter goes on in the same run, the rest in the next one, with its first."""
    topic = make_topic(1)
    send(topic, RECORDS)
    holder = ordered(assigned, topic)
    job = job_of(group, topic, handler, failed_share=None)
    report = run_job(job, holder)
    assert (report.accepted, report.released, report.rejected, report.held) == (4, 3, 1, 4)
    assert len(report.rounds) == 2, "nothing is leased again that waits for what this run has released"
    output, exceptions = (
        partial(read_output, spark, state, group, sink) for sink in (job.sink, job.exceptions_sink)
    )
    assert offsets(output()) == [*ACCEPTED, 10]
    outcomes = {name: offsets(exceptions(), f"outcome = '{name}'") for name in ("release", "reject", "hold")}
    assert outcomes == {"release": RELEASED, "reject": REJECTED, "hold": HELD}
    assert offsets(exceptions(), "outcome = 'hold' and error is not null") == []
    proved(state, group)

    report = run_job(replace(job, handler=accepting), holder)
    assert report.accepted == len(RELEASED) + len(HELD) - 1
    later = {at: n for at, n in deliveries(output()).items() if at in [*RELEASED, *HELD]}
    assert later == {**dict.fromkeys(HELD, 1), **dict.fromkeys(RELEASED, 2)}
    proved(state, group)


def test_a_blocked_key_never_reaches_the_handler(
    group: str,
    make_topic: MakeTopic,
    send: Send,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    spark: SparkSession,
) -> None:
    """While a record waits for its back-off, later ones of its key are held without a call and without a delivery;
    those of other keys are accepted, also by a handler that drops rows or shuffles them."""
    topic = make_topic(1)
    send(topic, [("a", "release"), ("b", "accept")])
    holder = ordered(assigned, topic, sharequeue_retry_backoff_ms="3600000")
    job = job_of(group, topic, by_text, failed_share=None)
    assert run_job(job, holder).accepted == 1
    send(topic, [("a", "accept"), ("b", "accept"), (None, "accept"), ("a", "accept"), ("b", "leave out")])

    def strict(records: DataFrame) -> DataFrame:
        """Fail the job if it gets a record of the blocked key; leave out a row."""
        blocked = "if(key_hash = md5('a'), raise_error('out of turn'), outcome) as outcome"
        kept = [name for name in by_text(records).columns if name != "outcome"]
        return by_text(records).selectExpr(*kept, blocked).where("outcome <> 'leave out'").repartition(2)

    report = run_job(replace(job, handler=strict, without_row="accept"), holder)
    assert (report.accepted, report.held, report.without_row) == (3, 2, 1)
    assert offsets(read_output(spark, state, group, job.sink)) == [1, 3, 4]
    status = state.figures.describe(group)[0]
    assert (status.available, status.lag) == (3, 3)
    proved(state, group)


def test_blocked_keys_cost_no_second_read(spark: SparkSession) -> None:
    """The handler and the rows of held records read the topic once, whatever columns and rows each of them needs."""
    read = spark.sparkContext.accumulator(0)

    def counted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            read.add(batch.num_rows)
            yield batch

    columns = "'t' as topic, 0 as partition, id as offset, 7L as lease_id, cast(id % 10 as string) as text"
    named = spark.range(1000).selectExpr(*columns.split(", "))
    records = named.selectExpr("*", "cast(text as binary) as key", "cast(text as binary) as value")
    source = records.mapInArrow(counted, records.schema)
    key = key_hash(b"3")
    order = KeyOrder({7: BlockedKeys([key], [500], [None])})
    offered = order.offered(source, [A_LEASE])
    handled = by_text(offered.records.withColumn("delivery_count", fn.lit(1))).where("offset % 2 = 0")
    rows = offered.with_held(handled).collect()
    assert read.value == 1000
    assert sorted(row["offset"] for row in rows if row["outcome"] == "hold") == list(range(503, 1000, 10))
    others = [row for row in rows if row["outcome"] != "hold"]
    assert len(others) == 500
    assert {row["offset"] for row in others if row["key_hash"] == key.hex} == set()


def test_by_row_and_blocked_keys_share_one_shuffle(spark: SparkSession) -> None:
    """Records that are by key already are not shuffled again; others are, also if their hash was computed anew."""
    columns = "'t' as topic, 0 as partition, id as offset, 7L as lease_id, cast(string(id) as binary) as key"
    named = spark.range(10).selectExpr(*columns.split(", "), "1 as delivery_count")
    order = KeyOrder({7: BlockedKeys([key_hash(b"3")], [5], [None])})
    offered = order.offered(named, [A_LEASE]).records
    handler = by_row(lambda record: {"n": 1}, "n int")

    def shuffles(records: DataFrame) -> int:
        plan = str(handler(records)._jdf.queryExecution().executedPlan())
        return plan.count("Exchange hashpartitioning(")

    assert shuffles(offered) == 1
    assert shuffles(offered.where("offset > 0").withColumn("value", fn.lit(1))) == 1
    assert shuffles(offered.withColumn("key_hash", fn.lit("x"))) == 2
    assert shuffles(offered.repartition(3)) == 2


def test_without_the_key_hash_nothing_is_accepted(
    group: str, make_topic: MakeTopic, send: Send, assigned: Assigned, run_job: RunJob, state: State
) -> None:
    """The trial on no records names the column that the handler has to pass on, and why. If it is null in a row, as
    after an outer join, nothing is acknowledged."""
    topic = make_topic(1)
    send(topic, RECORDS)
    holder = ordered(assigned, topic)
    job = job_of(group, topic, lambda records: by_text(records).drop("key_hash"), try_empty=True)
    with pytest.raises(HandlerError, match=r"lacks key_hash: .*because the group has sharequeue\.order=key"):
        run_job(job, holder)
    assert state.figures.describe(group)[0].speo == 0
    cut_short = "if(offset % 3 = 0, null, left(key_hash, 31))"
    lost = fn.expr(f"if(key_hash = md5('a'), {cut_short}, key_hash)")
    with pytest.raises(
        HandlerError, match=r"4 records \(.*-0 0-1, 3, 6\) got a key_hash that is null or no hash"
    ):
        run_job(replace(job, handler=lambda records: by_text(records).withColumn("key_hash", lost)), holder)
    assert state.figures.describe(group)[0].spso == 0


def test_what_the_table_refuses_cuts_its_key(
    group: str,
    make_topic: MakeTopic,
    send: Send,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    make_table: MakeTable,
    database: Database,
) -> None:
    """A row that the table refuses is rejected, and later records of its key are not in the table: they wait, and
    come when its dead letter is out of the way. A record without a row cuts its key as well."""
    topic = make_topic(1)
    send(topic, [("a", "x"), ("a", "refused"), ("a", "y"), ("b", "z"), ("c", "leave out"), ("c", "v")])
    holder = ordered(assigned, topic)
    table = make_table("\"offset\" bigint, key_hash text, text text check (text <> 'refused')")

    def handler(records: DataFrame) -> DataFrame:
        rows = (
            accepting(records)
            .drop("delivery_count")
            .join(records.selectExpr("offset", "cast(value as string) as text"), "offset")
        )
        return rows.where("text <> 'leave out'")

    destination = PostgresTable(table)
    job = job_of(group, topic, handler, destination=destination, failed_share=None, without_row="reject")
    report = run_job(job, holder, max_rounds=1)
    assert (report.accepted, report.rejected, report.held) == (2, 2, 2)
    assert in_table(database, table) == [(0, key_hash(b"a").hex), (3, key_hash(b"b").hex)]
    proved(state, group)
    assert run_job(job, holder).accepted == 2
    assert [offset for offset, _ in in_table(database, table)] == [0, 2, 3, 5]


def in_table(database: Database, table: str) -> list[tuple[int, str]]:
    rows = database.rows(sa.text(f'select "offset", key_hash from {table} order by 1'))  # noqa: S608 - of this test
    return [(row["offset"], row["key_hash"]) for row in rows]


def test_a_lease_is_cut_as_well(
    group: str,
    make_topic: MakeTopic,
    send: Send,
    assigned: Assigned,
    settings: Settings,
    state: State,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    """`lease` gives the records whose turn it is, and accepts none behind one of its key that is not accepted."""
    topic = make_topic(1)
    send(topic, RECORDS)
    holder = ordered(assigned, topic, sharequeue_retry_backoff_ms="3600000")
    leasing = partial(lease, group, [topic], settings=settings, spark=spark, state=state, membership=holder)
    with leasing() as leased:
        by_text(leased.records).drop("key_hash").write.parquet(f"{tmp_path}/without")
        with pytest.raises(HandlerError, match="lack key_hash"):
            leased.acknowledge(f"{tmp_path}/without")
        leased.write(by_text(leased.records), tmp_path)
        done = leased.acknowledge()
    assert (done.accepted, done.released, done.rejected, done.held) == (3, 3, 1, 4)
    send(topic, [("a", "accept"), ("b", "accept")])
    with leasing() as leased:
        assert offsets(leased.records) == [10, 12]
        leased.write(by_text(leased.records), tmp_path)
        done = leased.acknowledge()
    assert (done.accepted, done.held) == (2, 1)
    with leasing() as leased:
        assert not leased
        assert "key_hash" in leased.records.columns
    proved(state, group)


def test_a_replay_holds_nothing(
    group: str,
    make_topic: MakeTopic,
    send: Send,
    assigned: Assigned,
    run_job: RunJob,
    output_settings: Settings,
    state: State,
    spark: SparkSession,
) -> None:
    """It leases nothing, so no record waits for another: each gets the outcome that the handler gives it, also behind
    a failure of its key. So does a trial of the handler."""
    topic = make_topic(1)
    send(topic, RECORDS)
    holder = ordered(assigned, topic)
    job = pipeline(group=group, topics=topic, sink=f"sink-{group}", failed_share=None)(
        by_row(keep_outcome, "delivery_count int")
    )
    trial = job.try_on(len(RECORDS), output_settings, spark=spark, state=state)
    assert trial.outcomes == {"accept": 6, "reject": 2, "release": 3}
    run_job(job_of(group, topic, accepting, name=job.name), holder)
    every = {(topic, 0): OffsetSet.of((0, len(RECORDS)))}
    replay = job.replay(output_settings, offsets=every, name="again", spark=spark, state=state)
    assert (replay.accepted, replay.released, replay.rejected) == (6, 3, 2)
