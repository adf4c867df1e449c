"""A topic as a sink: what its records are, which rows it refuses, and what happens while it cannot be written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.domain.settings import Settings
from sharequeue.groups.configs import alter_group_configs
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.topics import Topics
from sharequeue.spark import KafkaTopic, SinkRefused, read_output
from sharequeue.spark.output.folders import SinkNames
from sharequeue.spark.run import run_rounds
from sharequeue.spark.sinks.interface import SinkContext
from sharequeue.spark.sinks.kafka.records import RECORD, RecordColumns, TargetTopic, with_records
from sharequeue.spark.sinks.transfers import Step
from sharequeue.state import State
from tests.fixtures.pipelines import Assigned, Produce, RunJob, all_accepted, job_of
from tests.fixtures.registry import RegistryServer
from tests.fixtures.results import results_in
from tests.fixtures.stack import MakeTopic
from tests.waiting import PATIENCE_S

HASHES = {
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    "abc": 479470107,
}
"""Keys with their hashes, from the tests of Kafka's own client."""
PARTITIONS = 7


def named(records: DataFrame) -> DataFrame:
    """Rows whose key is the value of the record."""
    note = fn.col("value").cast("string").alias("note")
    at = fn.expr("timestamp_millis(1700000000000 + offset)").alias("at")
    header = fn.create_map(fn.lit("kind"), fn.lit("a note")).alias("given")
    accept = fn.lit("accept").alias("outcome")
    return records.select("topic", "partition", "offset", "lease_id", note, at, header, accept)


def test_rows_become_records(
    group: str,
    settings: Settings,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
) -> None:
    """Each has the key, value, headers and timestamp of its row, the headers of its source, and the partition that
    Kafka's own producers give its key."""
    topic, target = make_topic(1), make_topic(PARTITIONS)
    produce(topic, 0, HASHES)
    sink = KafkaTopic(target, key="note", headers="given", timestamp="at")
    run_job(job_of(group, topic, named, destination=sink), assigned(topic))
    found = {(each.key or b"").decode(): each for each in results_in(settings, target)}
    assert {key: each.partition for key, each in found.items()} == {
        key: (hashed & 0x7FFFFFFF) % PARTITIONS for key, hashed in HASHES.items()
    }
    one = found["foobar"]
    assert json.loads(one.value or b"") == {
        "note": "foobar",
        "at": "2023-11-14T22:13:20.001000Z",
        "given": {"kind": "a note"},
    }
    assert one.timestamp == 1700000000001
    names = [name for name, _ in one.headers]
    assert one.headers[:4] == (
        ("kind", b"a note"),
        ("sharequeue.result.topic", topic.encode()),
        ("sharequeue.result.partition", b"0"),
        ("sharequeue.result.offset", b"1"),
    )
    assert names[4:] == ["sharequeue.result.lease"]


def in_two_rows(records: DataFrame) -> DataFrame:
    """Two rows of each record: the second one of record 1 is too large, record 2 names a partition, and each row of
    record 3 is half as large as the topic allows."""
    number = fn.col("offset").cast("int")
    first = fn.when(number == 3, 1000).otherwise(3)
    rows = fn.explode(fn.array(first, fn.when(number == 1, 5000).otherwise(first))).alias("size")
    to = fn.when(number == 2, 9).alias("to")
    accept = fn.lit("accept").alias("outcome")
    made = records.select("topic", "partition", "offset", "lease_id", to, rows, accept)
    return made.withColumn("text", fn.expr("repeat('x', size)"))


def test_a_record_with_a_row_that_the_topic_would_refuse_is_rejected(
    group: str,
    settings: Settings,
    state: State,
    spark: SparkSession,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """None of its rows is in the topic, also those that fit; the other records of its lease are accepted. All rows of
    a record must fit into one transaction, too."""
    monkeypatch.setattr("sharequeue.spark.sinks.kafka.records.MOST_RECORD_BYTES", 2500)
    topic, target = make_topic(1), make_topic(2, max_message_bytes="2000")
    produce(topic, 0, range(5))
    sink = KafkaTopic(target, value="text", partition="to")
    job = job_of(group, topic, in_two_rows, destination=sink, failed_share=None)
    report = run_job(job, assigned(topic))
    assert (report.accepted, report.rejected) == (2, 3)
    sent = [each.source["offset"] for each in results_in(settings, target)]
    assert sent == [0, 0, 4, 4]
    rows = (
        read_output(spark, state, group, job.exceptions_sink).select("offset", "error").distinct().collect()
    )
    reasons = {row["offset"]: row["error"] for row in rows}
    assert reasons[1].startswith("RecordTooLarge: the record takes up to 53")
    assert reasons[2].endswith(f"{target} has 2 partitions, and the row names partition 9")
    assert reasons[3].startswith("RecordTooLarge: all rows of the record take up to 26")
    assert reasons[3].endswith("and go into one transaction, which takes 2500 of one record")


class Failed(Exception):
    """What a run dies of."""


@pytest.mark.parametrize("step", ["begun", "appended"])
def test_a_run_that_fails_at_a_step_is_completed_by_the_next(
    group: str,
    settings: Settings,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    step: Step,
    short_claims: None,
) -> None:
    """Before the rows are sent, or after it: the next run, which leases nothing, sends what is missing of each source
    partition."""
    topic, target = make_topic(2), make_topic(1)
    for partition in range(2):
        produce(topic, partition, range(5 * partition, 5 * partition + 5))
    holder = assigned(topic)

    def fail(reached: Step) -> None:
        if reached == step:
            raise Failed

    with pytest.raises(Failed):
        run_job(
            job_of(group, topic, named, destination=KafkaTopic(target, value="note", on_step=fail)), holder
        )
    run_job(job_of(group, topic, named, destination=KafkaTopic(target, value="note")), holder)
    found = results_in(settings, target)
    for partition in range(2):
        mine = [
            (each.source["offset"], each.value) for each in found if each.source["partition"] == partition
        ]
        assert mine == [(offset, b"%d" % (5 * partition + offset)) for offset in range(5)]


def test_a_lost_marker_holds_the_rows_until_an_operator_decides(
    group: str,
    settings: Settings,
    state: State,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
) -> None:
    """The run goes on and names the reason; nothing more is leased once too many rows wait; and after the offset of
    the marker was set, all that waits is sent."""
    topic, target = make_topic(1), make_topic(1)
    produce(topic, 0, range(3))
    holder, admin = assigned(topic), AdminClient(client_config(settings))
    markers = f"sharequeue.results.{group}.sink-{group}.{state.outputs.identity().origin_id}"

    def lose(step: Step) -> None:
        if step == "begun":
            admin.delete_consumer_groups([markers])[markers].result(PATIENCE_S)

    job = job_of(group, topic, named, destination=KafkaTopic(target, value="note", on_step=lose))
    report = run_job(job, holder)
    assert report.accepted == 3
    assert (
        f"3 accepted rows wait for kafka:{target}: the marker of {topic}-0 in group {markers} is missing"
        in str(report.remark)
    )
    assert results_in(settings, target) == []
    assert state.outputs.waiting(group, f"sink-{group}") == {(topic, 0): 3}
    alter_group_configs(state.database, group, {"sharequeue.results.max.waiting.records": "3"})
    produce(topic, 0, range(3, 5))
    job = job_of(group, topic, named, destination=KafkaTopic(target, value="note"))
    report = run_job(job, holder)
    assert (report.accepted, report.drained) == (0, False)
    assert f"3 accepted rows wait for topic {target}, so nothing more is leased" in str(report.remark)
    gone: Any = None
    context = SinkContext(settings, state, gone, SinkNames(group, f"sink-{group}"), (topic,))
    expected = "create it first. 3 accepted rows wait for absent in their files"
    with pytest.raises(SinkRefused, match=expected), KafkaTopic("absent").open(context):
        pass
    chosen = ConsumerGroupTopicPartitions(markers, [TopicPartition(topic, 0, 0)])
    admin.alter_consumer_group_offsets([chosen])[markers].result(PATIENCE_S)
    assert run_job(job, holder).accepted == 2
    assert [each.value for each in results_in(settings, target)] == [b"%d" % n for n in range(5)]
    assert state.outputs.waiting(group, f"sink-{group}") == {}


def test_a_marker_may_be_gone_when_a_round_begins(
    group: str,
    settings: Settings,
    state: State,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
) -> None:
    """The broker removes one that is old, also during a run: while nothing waits, nothing is lost with it."""
    topic, target = make_topic(1), make_topic(1)
    produce(topic, 0, range(4))
    admin = AdminClient(client_config(settings))
    markers = f"sharequeue.results.{group}.sink-{group}.{state.outputs.identity().origin_id}"

    def lose(step: Step) -> None:
        if step == "removed":
            admin.delete_consumer_groups([markers])[markers].result(PATIENCE_S)

    sink = KafkaTopic(target, value="note", on_step=lose)
    report = run_job(job_of(group, topic, named, destination=sink), assigned(topic), max_records=2)
    assert (report.accepted, report.remark) == (4, None)
    assert len(report.rounds) > 1
    assert [each.value for each in results_in(settings, target)] == [b"%d" % n for n in range(4)]


def test_a_topic_that_cannot_take_the_results_is_refused_before_anything_is_leased(
    group: str, settings: Settings, state: State, make_topic: MakeTopic, assigned: Assigned
) -> None:
    """One that does not exist, that the group reads, that is compacted while the records have no key, or that has too
    few replicas."""
    source, compacted = make_topic(1), make_topic(1, cleanup_policy="compact")
    letters, few = make_topic(1), make_topic(1, min_insync_replicas="2")
    assigned(source)
    alter_group_configs(state.database, group, {"errors.deadletterqueue.topic.name": letters})
    nothing: Any = None
    context = SinkContext(settings, state, nothing, SinkNames(group, "sink"), (source,))
    refusals = {
        f"{source}-gone": "create it first",
        "not a topic": "cannot be the name of a topic",
        source: "would get its own results as records",
        letters: "is the dead-letter topic of group",
        compacted: "takes no record without a key",
        few: "a partition with 1 replica, and its min.insync.replicas is 2",
    }
    for name, expected in refusals.items():
        with pytest.raises(SinkRefused, match=expected), KafkaTopic(name).open(context):
            pass


def test_a_topic_for_smaller_records_than_the_input_is_remarked(
    group: str, settings: Settings, state: State, make_topic: MakeTopic, assigned: Assigned
) -> None:
    """Its results may still fit, so that it is not refused."""
    source, small, large = make_topic(1), make_topic(1, max_message_bytes="2000"), make_topic(1)
    assigned(source)
    nothing: Any = None
    context = SinkContext(settings, state, nothing, SinkNames(group, "sink"), (source,))
    with KafkaTopic(large).open(context) as opened:
        assert opened.remark is None
    with KafkaTopic(small).open(context) as opened:
        assert opened.remark == (
            f"max.message.bytes of {source} is larger than that of {small}: a record whose result is larger than "
            "2,000 bytes is rejected"
        )


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (
            {"key": "absent"},
            "no column absent for the key: they have topic, partition, offset, lease_id, outcome, x",
        ),
        ({"value": "x"}, "column x for the value of records of topic t is double: expected binary, string"),
        (
            {"headers": "outcome"},
            "column outcome for the headers of records of topic t is string: expected a map",
        ),
        ({"timestamp": "offset"}, "is bigint: expected timestamp. Cast it in the handler"),
        ({"partition": "offset"}, "is bigint: expected int. Cast it in the handler"),
    ],
)
def test_columns_that_cannot_be_written_are_refused(
    spark: SparkSession, changed: Mapping[str, str], expected: str
) -> None:
    """The error names the column, its type, and the types that are possible."""
    rows = spark.createDataFrame(
        [], "topic string, partition int, offset bigint, lease_id bigint, outcome string, x double"
    )
    given: dict[str, Any] = {
        "key": None,
        "value": "to_json",
        "headers": None,
        "partition": None,
        "timestamp": None,
    }
    target = TargetTopic("t", "id", 2, 1000, compacted=False, most_bytes=1000)
    with pytest.raises(SinkRefused, match=expected):
        with_records(rows, RecordColumns(**{**given, **changed}), target, source_headers=True)
    only = all_accepted(rows)
    with pytest.raises(SinkRefused, match="have no column for the value"):
        with_records(only, RecordColumns(**given), target, source_headers=True)


ROWS = "topic string, partition int, offset bigint, lease_id bigint, outcome string, v binary"
PARTS: dict[str, Any] = {"key": None, "value": "v", "headers": None, "partition": None, "timestamp": None}
ROW = {"topic": "t", "partition": 0, "offset": 0, "lease_id": 1, "outcome": "accept", "v": b"v"}


def test_a_timestamp_is_kept_missing_or_refused(spark: SparkSession) -> None:
    """Without one, the row gets the time of sending. Kafka's client cannot write the first millisecond of 1970: it
    takes 0 for the time of sending."""
    rows = spark.createDataFrame([{**ROW, "at": at} for at in (None, 0, 1, -1)], f"{ROWS}, at bigint")
    target = TargetTopic("t", "id", 1, 1_000, compacted=False, most_bytes=1_000)
    columns = RecordColumns(**{**PARTS, "timestamp": "at"})
    timed = rows.withColumn("at", fn.timestamp_millis("at"))
    made = with_records(timed, columns, target, source_headers=False).select(f"{RECORD}.*").collect()
    assert [row["timestamp"] for row in made] == [None, 0, 1, -1]
    assert [row["fault"] is None for row in made] == [True, False, True, False]
    assert made[1]["fault"].startswith("InvalidTimestamp: the timestamp is not after 1970-01-01 00:00 UTC")


ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "string"}, {"name": "amount", "type": "int"}],
}


def numbered(records: DataFrame) -> DataFrame:
    """Rows whose amount is what the value says: the one of the value 2 is too large for an int of Avro."""
    text = fn.col("value").cast("string")
    amount = fn.when(text == "2", fn.lit(2**31)).otherwise(text.cast("long")).alias("amount")
    outcome = fn.when(text == "3", fn.lit("reject")).otherwise(fn.lit("accept")).alias("outcome")
    return records.select("topic", "partition", "offset", "lease_id", text.alias("id"), amount, outcome)


def test_a_value_is_written_with_the_schema_of_its_subject(
    group: str,
    settings: Settings,
    output_settings: Settings,
    state: State,
    topics: Topics,
    spark: SparkSession,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    registry_server: RegistryServer,
) -> None:
    """confluent-kafka's deserializer reads key and value. A record that the schema refuses is rejected with the
    reason, before the acknowledgement; only the driver has asked the registry."""
    topic, target = make_topic(1), make_topic(1)
    registry_server.register(f"{target}-value", ORDER, 7)
    registry_server.register(f"{target}-key", {"type": "string"}, 8, "JSON")
    produce(topic, 0, range(4))
    with_registry = output_settings.replace(registry={"url": registry_server.url})
    sink = KafkaTopic(target, key="id", key_subject=f"{target}-key", value_subject=f"{target}-value")
    job = job_of(group, topic, numbered, destination=sink, failed_share=None)
    report = run_rounds(
        with_registry, job, membership=assigned(topic), state=state, topics=topics, spark=spark
    )
    assert (report.accepted, report.rejected) == (2, 2)
    assert registry_server.asked == [
        f"/subjects/{target}-{part}/versions/latest" for part in ("key", "value")
    ]
    client = SchemaRegistryClient({"url": registry_server.url})
    context = SerializationContext(target, MessageField.VALUE)
    found = results_in(settings, target)
    read = AvroDeserializer(client)
    assert [read(each.value, context) for each in found] == [
        {"id": "0", "amount": 0},
        {"id": "1", "amount": 1},
    ]
    assert [each.key for each in found] == [b'\0\0\0\0\x08"0"', b'\0\0\0\0\x08"1"']
    [row] = (
        read_output(spark, state, group, job.exceptions_sink).where("offset = 2").select("error").collect()
    )
    assert row["error"].startswith(
        f"InvalidRecord: the value does not fit schema 7 of subject {target}-value: Order.amount is <2147483648>"
    )
