"""The sink KafkaTopic: a topic that accepts each transfer once.

The acknowledgement counts the rows of a lease, with their records, in files (`transfers.py`). Then Spark's tasks send
them, each the rows of one source partition, in the order of their offsets and in as many Kafka transactions as
necessary (`sending.py`). Each transaction also commits how far it came: the marker. So a transfer that is repeated
sends only what is missing. No row passes through the driver.

If the topic cannot be written, the transfer is held with the reason, and the run goes on; it leases nothing more when
too many records wait.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import reduce
from typing import ClassVar

from confluent_kafka import KafkaError, KafkaException
from pyspark.sql import DataFrame, Row, SparkSession

from sharequeue.deadletters.outbox import Fenced
from sharequeue.deadletters.topic import inputs_of
from sharequeue.domain.errors import BrokerNotAvailable, ShareError
from sharequeue.domain.results.runs import Stored
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import Transfer
from sharequeue.groups.configs import GroupConfigs
from sharequeue.kafka.clients import portable_config
from sharequeue.kafka.topics import Topics
from sharequeue.kafka.transactions import (
    LARGEST_MESSAGE_BYTES,
    MOST_BATCH_BYTES,
    MarkerGroup,
)
from sharequeue.outputs.errors import OutputDamaged
from sharequeue.outputs.manifest import PENDING
from sharequeue.spark.output.damaged import reads_what_counts
from sharequeue.spark.output.files import literal
from sharequeue.spark.output.folders import SinkNames
from sharequeue.spark.output.parquet import read_parquet
from sharequeue.spark.sinks.interface import (
    AcceptedRows,
    OpenSink,
    Refused,
    Sink,
    SinkContext,
    SinkRefused,
    SinkStep,
)
from sharequeue.spark.sinks.kafka.records import (
    FAULTS_SCHEMA,
    MOST_RECORD_BYTES,
    RECORD,
    RECORD_TYPE,
    SOURCE_HEADERS,
    TO_JSON,
    RecordColumns,
    TargetTopic,
    faults,
    with_records,
)
from sharequeue.spark.sinks.kafka.refusals import Refusals
from sharequeue.spark.sinks.kafka.schemas import read_schema
from sharequeue.spark.sinks.kafka.sending import (
    FENCED,
    OVERTAKEN,
    REPORT,
    Names,
    Problem,
    TopicSender,
    TransferToSend,
    commit_first_marker,
    found_markers,
)
from sharequeue.spark.sinks.kafka.serializing import RecordSchema
from sharequeue.spark.sinks.kafka.target import TargetUnknown, smaller_than, target_of
from sharequeue.spark.sinks.transfers import (
    OpenTransfers,
    Step,
    TransferHeld,
    complete_earlier,
    folders_of,
    refuse_fewer,
)

_log = logging.getLogger(__name__)

TAKEOVERS = 5
"""How often a transfer is repeated after another process has fenced its producers."""
SOURCES_AT_ONCE = 200
"""Source partitions that one Spark job sends: each is a task, and a part of the job's plan."""
MARKERS_AT_ONCE = 4
MOST_REFUSED = 100_000
"""The most records of a round that are rejected one by one; with more, the run ends."""
_ROWS = f"topic string, partition int, offset bigint, lease_id bigint, {RECORD} {RECORD_TYPE}"
_SENT = (
    *("topic", "partition", "offset", "lease_id", f"{RECORD}.key", f"{RECORD}.value", f"{RECORD}.headers"),
    *(f"{RECORD}.partition as to_partition", f"{RECORD}.timestamp"),
)


@dataclass(frozen=True, slots=True)
class KafkaTopic(Sink):
    """A topic, for other queues and for any consumer. It gets every accepted record exactly once, shortly after its
    acknowledgement, for consumers that read committed records.

    The topic must exist. The other arguments name columns of the handler's result. `key` and `value` may be binary,
    text, a boolean, a whole or decimal number, or nested, which becomes JSON; `value="to_json"` is one JSON object of
    all columns, without those of the queue. Without a key it is null. `headers` is a map from text to binary or text,
    or Kafka's array of key and value. `partition` is the number of a partition; without one, or where it is null, the
    key decides as in Kafka's own producers, and records without a key stay together by source partition. `timestamp`
    is a timestamp; without one, a record has the time at which it is sent.

    With `key_subject` or `value_subject`, key or value is written with the latest schema of that subject in the
    registry of the settings: Avro or JSON Schema, by confluent-kafka's serializers, with the schema's id. With
    `value="to_json"`, it has all columns. The schema is read at the start of a run, and none is registered.

    Four headers name the source of each record: `sharequeue.result.topic`, `….partition`, `….offset` and `….lease`;
    not with `source_headers=False`. The header `traceparent` of the source (W3C Trace Context) is passed on, if the
    handler passes on the column `sharequeue_trace`, as `by_row` does, and gives no header of that name.

    A record with a row that the topic would refuse is rejected, with the reason: larger than `max.message.bytes` (an
    upper estimate before compression, with all headers), a partition that does not exist, no key for a compacted
    topic, a value that does not fit its schema. All rows of a record are in one Kafka transaction; a record with more
    than 64 MB of rows is rejected. Records of a source partition are sent in the order of their offsets. A topic that
    the group reads is refused, unless `loop=True`.

    Acknowledged rows are in files until they are sent. If a run is killed in between, the next run of the group sends
    them before it leases anything. If the topic cannot be written, they wait, and the group goes on until
    `sharequeue.results.max.waiting.records` wait. The executors need confluent-kafka.
    """

    topic: str
    key: str | None = None
    value: str = TO_JSON
    headers: str | None = None
    partition: str | None = None
    timestamp: str | None = None
    key_subject: str | None = None
    value_subject: str | None = None
    source_headers: bool = True
    loop: bool = False
    on_step: Callable[[Step], None] = field(default=lambda step: None, compare=False, repr=False)

    @contextmanager
    def open(self, context: SinkContext) -> Iterator[OpenSink]:
        """Prepare a run, and complete the transfers of earlier runs. Raises SinkRefused if there is no such topic, if
        it cannot take the results of this group, or if there is no such schema, and RegistryNotAvailable.
        """
        configs = GroupConfigs.load(context.state.database, context.names.group)
        with Topics(context.settings) as topics:
            with rows_named(context, self.topic):
                refuse_own(self, context, configs)
                target = described(self, topics)
            names = Names(
                context.names.group, context.names.sink, str(context.state.outputs.identity().origin_id)
            )
            opened = _OpenTopic(
                context,
                f"kafka:{self.topic}",
                self.on_step,
                sink=self,
                topics=topics,
                names=names,
                most_waiting=configs.results_max_waiting_records,
                target=target,
                refusals=Refusals(self.topic, names),
                remark=smaller_than(topics, context.topics, target),
            )
            complete_earlier(opened)
            # Rows that wait are records already, which need no registry.
            opened.schemas = self._schemas(context.settings)
            yield opened

    def stored(self, settings: Settings, names: SinkNames) -> Stored:
        """Return the topic."""
        return Stored("kafka", table=self.topic)

    def _schemas(self, settings: Settings) -> Mapping[str, RecordSchema]:
        """Return the schemas of key and value, as the registry has them now."""
        if self.key_subject is not None and self.key is None:
            raise SinkRefused(
                f"key_subject is set for topic {self.topic}, and key is not: name the column of the key."
            )
        return {
            part: read_schema(settings, subject, self.topic, part)
            for part, subject in _subjects(self).items()
            if subject is not None
        }


def _subjects(sink: KafkaTopic) -> Mapping[str, str | None]:
    return {"key": sink.key_subject, "value": sink.value_subject}


def described(sink: KafkaTopic, topics: Topics) -> TargetTopic:
    """Return the topic of a sink as the broker describes it. Raises what `target_of` raises."""
    timed = sink.timestamp is not None
    return target_of(topics, sink.topic, _subjects(sink), keyed=sink.key is not None, timed=timed)


@contextmanager
def rows_named(context: SinkContext, topic: str) -> Iterator[None]:
    """Let a refusal of the topic say how many accepted rows wait for it."""
    try:
        yield
    except SinkRefused as refused:
        names = context.names
        waiting = sum(context.state.outputs.waiting(names.group, names.sink).values())
        rows = (
            f" {waiting:,} accepted rows wait for {topic} in their files, and are sent once it takes them."
            if waiting
            else ""
        )
        raise SinkRefused(f"{refused}{rows}") from refused


def refuse_own(sink: KafkaTopic, context: SinkContext, configs: GroupConfigs) -> None:
    """Raise SinkRefused for a topic that the group reads, or that has its dead letters."""
    group = context.names.group
    if sink.topic == configs.dead_letter_topic:
        raise SinkRefused(f"{sink.topic} is the dead-letter topic of group {group}: write to another one.")
    if not sink.loop and sink.topic in {*context.topics, *inputs_of(context.state.database, group)}:
        raise SinkRefused(
            f"group {group} reads {sink.topic}, and would get its own results as records: write to another topic, or "
            "set loop=True if that is meant."
        )


@dataclass(slots=True)
class _OpenTopic(OpenTransfers):
    """The topic in one run."""

    sink: KafkaTopic
    topics: Topics
    names: Names
    most_waiting: int
    target: TargetTopic
    """The topic as it was described last."""
    refusals: Refusals
    remark: str | None
    schemas: Mapping[str, RecordSchema] = field(init=False, default_factory=dict)
    """The schemas of a registry, by `key` and `value`."""
    passes_traces: ClassVar[bool] = True
    steps: ClassVar[tuple[SinkStep, ...]] = ("stage", "transfer")

    def fits(self, handled: DataFrame) -> DataFrame:
        """Return the rows with their records."""
        sink = self.sink
        given = (sink.key, sink.value, sink.headers, sink.partition, sink.timestamp)
        columns = RecordColumns(*given, self.schemas.get("key"), self.schemas.get("value"))
        return with_records(handled, columns, self.target, source_headers=sink.source_headers)

    def waits(self) -> str | None:
        """Return that too many rows wait for the topic. Raise SinkRefused if it can take no results any more."""
        # In each round, because others may change a topic. While it is gone, the rows wait for it.
        with suppress(TargetUnknown, BrokerNotAvailable):
            self.target = described(self.sink, self.topics)
        names = self.context.names
        waiting = sum(self.context.state.outputs.waiting(names.group, names.sink).values())
        if not waiting or waiting < self.most_waiting:
            return None
        return (
            f"{waiting:,} accepted rows wait for topic {self.sink.topic}, so nothing more is leased: "
            "sharequeue.results.max.waiting.records of the group allows fewer. `sharequeue results list` says why"
        )

    def stage(self, leases: Sequence[AcceptedRows]) -> Refused:
        """Return the records that the topic would refuse, and give each source partition of the others a marker."""
        some = [each for each in leases if each.folder is not None]
        refused = self._refused(some)
        places = {
            (at.topic, at.partition)
            for each in some
            if each.lease.lease_id not in refused
            for at in (each.lease.share_partition,)
        }
        self._mark(sorted(places))
        return refused

    def append(self, found: Transfer) -> None:
        """Send what is missing of a transfer. Raise TransferHeld if the topic cannot take it, or files are gone."""
        try:
            with reads_what_counts(folders_of(found)):
                self._send(found)
        except OutputDamaged as damaged:
            # Another process that has ended the transfer has removed its files.
            if self.renewed(found):
                raise TransferHeld(f"{damaged} If they are lost, {self.refusals.give_up()}") from damaged

    def _send(self, found: Transfer) -> None:
        sources = self._sources(found)
        for _ in range(TAKEOVERS):
            problems = [each for each in self._sent(sources, self._sending(found.number)) if each["problem"]]
            held = [each for each in problems if each["problem"] not in (FENCED, OVERTAKEN)]
            # Otherwise another process works on the transfer, or has ended it.
            if not held and (not problems or not self.renewed(found)):
                return
            held = held or [each for each in problems if each["problem"] == OVERTAKEN]
            if held and not self._has_other_limits():
                raise TransferHeld(self.refusals.reason(held))
        raise TransferHeld(
            f"another process took over {TAKEOVERS} times, or a transaction exceeds its timeout: check that each "
            f"deployment has a state of its own, and that the broker takes {MOST_RECORD_BYTES:,} bytes, the most of "
            "one record, in half a minute. The next round or run tries again."
        )

    def _has_other_limits(self) -> bool:
        """Describe the topic again; return whether it takes other sizes than it did before.

        Each record may be small enough where a batch of them is too large.
        """
        before = self.target.most_bytes
        with suppress(SinkRefused, BrokerNotAvailable):
            self.target = described(self.sink, self.topics)
        return self.target.most_bytes != before

    def _sending(self, number: int) -> TransferToSend:
        """Return what the tasks have to know. Raise TransferHeld if the topic is gone."""
        name, target = self.sink.topic, self.target
        try:
            info = self.topics.describe([name]).get(name)
        except ShareError as error:
            raise TransferHeld(
                f"{error.message} The rows wait, and the next round or run tries again."
            ) from error
        if info is None:
            raise TransferHeld(f"there is no topic {name} any more: create it again.")
        producer = {
            # The partitioner of Kafka's own producers.
            "partitioner": "murmur2_random",
            "message.max.bytes": LARGEST_MESSAGE_BYTES,
            "batch.size": max(1, min(MOST_BATCH_BYTES, target.most_bytes)),
            "compression.type": target.compression
            if target.compression not in ("producer", "uncompressed")
            else "none",
        }
        headers = SOURCE_HEADERS if self.sink.source_headers else None
        client = portable_config(self.context.settings)
        return TransferToSend(client, self.names, name, info.topic_id, producer, number, headers)

    def _sources(self, found: Transfer) -> list[DataFrame]:
        """Return the rows of each source partition of a transfer. Raise OutputDamaged if some are missing."""
        folders: dict[tuple[str, int], list[str]] = {}
        for location, source in found.sources.items():
            folders.setdefault(source, []).append(location.removeprefix(PENDING))
        sources = [read_parquet(self.context.spark, some, _ROWS) for some in folders.values()]
        # Its files are listed after theirs: a file that is missing there is missing here, too.
        refuse_fewer(found, read_parquet(self.context.spark, folders_of(found), _ROWS))
        return sources

    def _sent(self, sources: Sequence[DataFrame], sending: TransferToSend) -> list[Row]:
        """Send the rows of a transfer; return a report for each source partition."""
        reports: list[Row] = []
        # Those of a source partition in one task, and in the order of their offsets.
        ordered = [rows.selectExpr(*_SENT).coalesce(1).sortWithinPartitions("offset") for rows in sources]
        with _partitions_kept(self.context.spark):
            for first in range(0, len(ordered), SOURCES_AT_ONCE):
                rows = reduce(DataFrame.unionAll, ordered[first : first + SOURCES_AT_ONCE])
                reports += rows.mapInArrow(TopicSender(sending), REPORT).collect()
        return reports

    def _refused(self, leases: Sequence[AcceptedRows]) -> Refused:
        if not leases:
            return {}
        folders = [literal(str(each.folder)) for each in leases]
        rows = self.context.spark.read.schema(FAULTS_SCHEMA).parquet(*folders)
        several = any(each.count > each.records for each in leases)
        found = faults(rows, several=several).limit(MOST_REFUSED + 1).collect()
        if len(found) > MOST_REFUSED:
            raise SinkRefused(
                f"topic {self.sink.topic} would refuse more than {MOST_REFUSED:,} records of a round, the first "
                f"with: {found[0]['fault']}. Nothing of the round was acknowledged."
            )
        refused: dict[int, dict[int, str]] = {}
        for row in found:
            refused.setdefault(row["lease_id"], {})[row["offset"]] = row["fault"]
        return refused

    def _mark(self, places: Sequence[tuple[str, int]]) -> None:
        """Give these source partitions a first marker, if they have none.

        In each round: the broker removes a marker after some days, and a run may last longer.
        """
        if not places:
            return
        client = portable_config(self.context.settings)
        try:
            # A marker in an unfinished transaction of another process is there, too: it is not waited for.
            with MarkerGroup(client, self.names.markers, stable=False) as markers:
                found = found_markers(markers, places)
            missing = [at for at, marker in zip(places, found, strict=True) if marker is None]
            if not missing:
                return
            sending = self._first_sending()
            with ThreadPoolExecutor(MARKERS_AT_ONCE, "first-markers") as pool:
                list(pool.map(lambda at: self._mark_one(sending, at), missing))
        except KafkaException as refused:
            raise self.refusals.no_marker(refused.args[0]) from refused
        except Problem as problem:
            raise self.refusals.no_marker(problem.error or KafkaError(KafkaError.UNKNOWN)) from problem

    def _first_sending(self) -> TransferToSend:
        try:
            return self._sending(0)
        except TransferHeld as held:
            raise SinkRefused(f"{held} Nothing of the round was acknowledged.") from held

    def _mark_one(self, sending: TransferToSend, at: tuple[str, int]) -> None:
        names = self.context.names

        def none_waits() -> bool:
            # The marker of rows that wait was lost: it is not made up for.
            return at not in self.context.state.outputs.waiting(names.group, names.sink)

        for _ in range(TAKEOVERS):
            try:
                return commit_first_marker(sending, *at, none_waits)
            except Fenced:
                continue
        raise SinkRefused(
            f"another process writes the first marker of {at[0]}-{at[1]} at the same time: run again."
        )


@contextmanager
def _partitions_kept(spark: SparkSession) -> Iterator[None]:
    """Let unions keep the partitions of their frames, so that the source partitions are sent in parallel. Since Spark
    4.1, a union of frames that have one partition each has one by default.
    """
    before = spark.conf.get(_UNITES, "true")
    spark.conf.set(_UNITES, "false")
    try:
        yield
    finally:
        spark.conf.set(_UNITES, str(before))


_UNITES = "spark.sql.unionOutputPartitioning"
