"""Make the records of a topic from rows, and find the rows that the topic would refuse.

Everything is an expression of Spark, so no row passes through Python here, but for a key or value with a schema of a
registry (`serializing.py`). A record is in one column of the row, which goes into the files of its lease: what was
acknowledged is what is sent. A fault is of one row. Its record is rejected by the sink, because all rows of a record
must agree on its outcome, and other rows of it may be right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, types
from pyspark.sql import functions as fn

from sharequeue.deadletters.letters import record_bytes
from sharequeue.deadletters.outbox import TRANSACTION_BYTES
from sharequeue.domain.errors import first_line
from sharequeue.domain.traces import HEADER as TRACE_HEADER
from sharequeue.kafka.headers import Header
from sharequeue.spark.handler import ACCEPT, TRACE
from sharequeue.spark.sinks.interface import NEVER, OPTIONAL, SinkRefused
from sharequeue.spark.sinks.kafka.schemas import refuse_unfit
from sharequeue.spark.sinks.kafka.serializing import (
    AVRO,
    RecordSchema,
    RowSerializer,
)
from sharequeue.spark.sql_texts import quoted
from sharequeue.spark.trace_headers import TRACE_BYTES

RECORD = "sharequeue_record"
"""The column that has the record of an accepted row."""
TO_JSON = "to_json"
"""The value that is made of all columns of a row."""
MOST_RECORD_BYTES = TRANSACTION_BYTES
"""The most bytes of all rows of a record, which are in one transaction: it must end within its timeout."""
BY_KEY = -1
"""The partition of a record that goes where Kafka's own producers put its key (librdkafka's `PARTITION_UA`)."""

TOPIC = "sharequeue.result.topic"
PARTITION = "sharequeue.result.partition"
OFFSET = "sharequeue.result.offset"
LEASE = "sharequeue.result.lease"
SOURCE_HEADERS = (TOPIC, PARTITION, OFFSET, LEASE)
"""The headers that name the source of a record: its topic, partition and offset, and the lease that processed it."""

_HEADERS = "array<struct<key: string, value: binary>>"
RECORD_TYPE = f"struct<key: binary, value: binary, headers: {_HEADERS}, partition: int, timestamp: bigint>"
"""The type of the column RECORD, without size and fault. Without a timestamp it gets the time of sending."""
_SERIALIZED = {"key": "sharequeue_key", "value": "sharequeue_value"}
"""The columns of parts that are serialized with a schema."""
_SERIALIZED_AS = types.StructType().add("data", types.BinaryType()).add("fault", types.StringType())
_DIGITS = 19
"""The most digits of an offset or a lease's id."""
_AS_JSON = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    # By default, to_json cuts them to milliseconds.
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_NESTED = (types.StructType, types.MapType, types.ArrayType)
_AS_TEXT = (types.StringType, types.IntegralType, types.DecimalType, types.BooleanType)


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """The columns of a handler's result from which a record is made."""

    key: str | None
    value: str
    headers: str | None
    partition: str | None
    timestamp: str | None
    key_schema: RecordSchema | None = None
    value_schema: RecordSchema | None = None

    @property
    def schemas(self) -> Mapping[str, RecordSchema]:
        """The schemas of a registry, by the part of the record: `key`, `value`."""
        given = {"key": self.key_schema, "value": self.value_schema}
        return {part: schema for part, schema in given.items() if schema is not None}


@dataclass(frozen=True, slots=True)
class TargetTopic:
    """A topic to which records are written, as the broker describes it."""

    name: str
    topic_id: str
    partitions: int
    max_message_bytes: int
    compacted: bool
    most_bytes: int
    """The most bytes of a record alone in its batch, before compression."""
    latest_ms: int | None = None
    """How far a record's timestamp may be in the future, in milliseconds; None: without a limit."""
    compression: str = "producer"


def with_records(
    handled: DataFrame, columns: RecordColumns, target: TargetTopic, *, source_headers: bool
) -> DataFrame:
    """Return the rows with the column RECORD, which is null unless the row is accepted, and without the column TRACE,
    whose trace becomes a header.

    Raises SinkRefused for a column that does not exist, or whose type cannot be written.
    """
    for added in (RECORD, *(_SERIALIZED[part] for part in columns.schemas)):
        if added in handled.schema.names:
            raise SinkRefused(f"the handler's result has a column {added}, which the sink adds: rename it.")
    made = _Made(handled.schema, columns, target, source_headers=source_headers)
    try:
        rows = _serialized(handled, made, columns, target)
        # The record's parts are columns first, so that the fault is not computed from each of them anew.
        found = rows.withColumn(RECORD, fn.when(fn.col("outcome") == ACCEPT, fn.struct(*made.parts())))
        parts = [fn.col(f"{RECORD}.{name}") for name in made.names]
        checked = fn.struct(*parts, made.size().alias("size"), made.fault().alias("fault"))
        whole = found.withColumn(RECORD, fn.when(fn.col(RECORD).isNotNull(), checked))
        return whole.drop(TRACE, *(_SERIALIZED[part] for part in columns.schemas))
    except AnalysisException as error:
        raise SinkRefused(
            f"rows cannot be written to topic {target.name} ({first_line(error)}): cast the columns in the handler."
        ) from error


def _serialized(handled: DataFrame, made: _Made, columns: RecordColumns, target: TargetTopic) -> DataFrame:
    """Return the rows with a column for each part of the record that has a schema: its bytes, and its fault."""
    if not columns.schemas:
        return handled
    rows, by_column = handled, {}
    for part, schema in columns.schemas.items():
        name, given = _SERIALIZED[part], made.given(part)
        kind = handled.select(given.alias(name)).schema[name].dataType
        refuse_unfit(schema, kind, part)
        if schema.kind != AVRO:
            given = fn.to_json(fn.struct(given.alias("value")), _AS_JSON)
        rows = rows.withColumn(name, fn.when(fn.col("outcome") == ACCEPT, given))
        by_column[name] = part, schema
    fields = [
        types.StructField(each.name, _SERIALIZED_AS) if each.name in by_column else each
        for each in rows.schema
    ]
    return rows.mapInArrow(RowSerializer(target.name, by_column), types.StructType(fields))


def faults(rows: DataFrame, *, several: bool) -> DataFrame:
    """Return `lease_id, offset, fault` of the records with a row that the topic would refuse, and, if some have
    `several` rows, of those whose rows are too many for one transaction.
    """
    if not several:
        # No record is compared with others: nothing is exchanged between tasks.
        return rows.select("lease_id", "offset", f"{RECORD}.fault").where("fault is not null")
    size = fn.sum(f"{RECORD}.size")
    too_large = fn.when(
        size > MOST_RECORD_BYTES,
        fn.concat(
            fn.lit("RecordTooLarge: all rows of the record take up to "),
            size.cast("string"),
            fn.lit(f" bytes, and go into one transaction, which takes {MOST_RECORD_BYTES} of one record"),
        ),
    )
    fault = fn.coalesce(fn.min(f"{RECORD}.fault"), too_large)
    return rows.groupBy("lease_id", "offset").agg(fault.alias("fault")).where("fault is not null")


FAULTS_SCHEMA = f"lease_id bigint, offset bigint, {RECORD} struct<size: bigint, fault: string>"
"""The columns of files that `faults` needs."""


class _Made:
    """The expressions for the parts of a record, and for its fault."""

    names = ("key", "value", "headers", "partition", "timestamp")

    def __init__(
        self, schema: types.StructType, columns: RecordColumns, target: TargetTopic, *, source_headers: bool
    ) -> None:
        self._schema, self._columns, self._target = schema, columns, target
        self._source_headers = source_headers

    def parts(self) -> Iterator[Column]:
        given = self._columns
        key = self._part("key", given.key)
        yield key.alias("key")
        yield self._part("value", given.value).alias("value")
        yield self._with_trace(self._headers()).alias("headers")
        # Without a key, all records of a source partition go to one partition, where they keep their order.
        kept = fn.col("partition") % self._target.partitions
        by_key = fn.when(key.isNull(), kept).otherwise(BY_KEY)
        if given.partition is not None:
            kinds = (types.ByteType, types.ShortType, types.IntegerType)
            by_key = fn.coalesce(self._typed("partition", given.partition, kinds, "int"), by_key)
        yield by_key.cast("int").alias("partition")
        if given.timestamp is None:
            yield fn.lit(None).cast("bigint").alias("timestamp")
        else:
            at = self._typed("timestamp", given.timestamp, (types.TimestampType,), "timestamp")
            yield fn.unix_millis(at).alias("timestamp")

    def given(self, part: str) -> Column:
        """Return the expression for the key or the value before it becomes bytes."""
        name = self._columns.key if part == "key" else self._columns.value
        assert name is not None  # noqa: S101 - a part without a column has no schema
        if part == "value" and name == TO_JSON:
            return fn.struct(*(fn.col(quoted(each)) for each in self._names()))
        self._kind(part, name)
        return fn.col(quoted(name))

    def fault(self) -> Column:
        """Return the expression for the reason why the topic would refuse a record; null if it takes it."""
        of_schemas = [fn.col(_SERIALIZED[part])["fault"] for part in self._columns.schemas]
        return fn.coalesce(*of_schemas, self._fault_of_topic())

    def _fault_of_topic(self) -> Column:
        target, size = self._target, self.size()
        found = fn.when(
            size > target.most_bytes,
            fn.concat(
                fn.lit("RecordTooLarge: the record takes up to "),
                size.cast("string"),
                fn.lit(
                    f" bytes with its headers, and {target.name} takes {target.most_bytes}: its max.message.bytes is "
                    f"{target.max_message_bytes}"
                ),
            ),
        )
        if self._columns.partition is not None:
            at = fn.col(f"{RECORD}.partition")
            found = found.when(
                (at < BY_KEY) | (at >= target.partitions) | ((at == BY_KEY) & self._is_given()),
                fn.concat(
                    fn.lit("UnknownTopicOrPartition: "),
                    fn.lit(f"{target.name} has {target.partitions} partitions, and the row names partition "),
                    at.cast("string"),
                ),
            )
        if target.compacted:
            found = found.when(
                fn.col(f"{RECORD}.key").isNull(),
                fn.lit(f"InvalidRecord: {target.name} is compacted and takes no record without a key"),
            )
        if self._columns.timestamp is not None:
            found = self._with_times(found)
        if self._columns.headers is not None:
            found = found.when(
                fn.exists(fn.col(f"{RECORD}.headers"), lambda header: header["key"].isNull()),
                fn.lit("InvalidRecord: a header has no name"),
            )
        return found

    def _with_times(self, found: Column) -> Column:
        at, latest = fn.col(f"{RECORD}.timestamp"), self._target.latest_ms
        found = found.when(
            at <= 0,
            # Kafka's client takes 0 for the time of sending.
            fn.lit(
                "InvalidTimestamp: the timestamp is not after 1970-01-01 00:00 UTC, the first that can be written"
            ),
        )
        if latest is None:
            return found
        return found.when(
            at > fn.unix_millis(fn.current_timestamp()) + latest,
            fn.lit(
                f"InvalidTimestamp: the timestamp is more than {latest} ms in the future, the limit "
                f"message.timestamp.after.max.ms of {self._target.name}"
            ),
        )

    def _is_given(self) -> Column:
        assert self._columns.partition is not None  # noqa: S101 - only then asked
        return fn.col(quoted(self._columns.partition)).isNotNull()

    def size(self) -> Column:
        """Return the most bytes of a record alone in its batch, before compression: an upper estimate with all
        headers, so that the broker never refuses what passes here."""
        fixed: list[Header] = []
        size = fn.lit(0).cast("bigint")
        if self._source_headers:
            fixed = [(name, b"0" * _DIGITS) for name in SOURCE_HEADERS]
            size += fn.octet_length("topic")
        size += fn.lit(record_bytes(None, None, fixed))
        for name in ("key", "value"):
            size += fn.coalesce(fn.octet_length(f"{RECORD}.{name}"), fn.lit(0))
        if self._columns.headers is not None:
            per_header = record_bytes(None, None, [("", b"")]) - record_bytes(None, None, [])
            of_headers = fn.aggregate(
                fn.col(f"{RECORD}.headers"),
                fn.lit(0).cast("bigint"),
                lambda total, header: (
                    total
                    + per_header
                    + fn.coalesce(fn.octet_length(header["key"]), fn.lit(0))
                    + fn.coalesce(fn.octet_length(header["value"]), fn.lit(0))
                ),
            )
            size += fn.coalesce(of_headers, fn.lit(0))
        elif TRACE in self._schema.names:
            trace = [(TRACE_HEADER, b"0" * TRACE_BYTES)]
            more = record_bytes(None, None, trace) - record_bytes(None, None, [])
            size += fn.when(fn.col(f"{RECORD}.headers").isNotNull(), fn.lit(more)).otherwise(0)
        return size

    def _part(self, part: str, name: str | None) -> Column:
        if part in self._columns.schemas:
            return fn.col(_SERIALIZED[part])["data"]
        if name is None:
            return fn.lit(None).cast("binary")
        return _json(self.given(part)) if (part, name) == ("value", TO_JSON) else self._bytes(part, name)

    def _names(self) -> list[str]:
        """Return the columns of a value that has all columns."""
        without = NEVER | OPTIONAL | {TRACE}
        names = [each for each in self._schema.names if each not in without]
        if not names:
            raise SinkRefused(
                f"the rows for topic {self._target.name} have no column for the value: add one in the handler, "
                "besides those that it passes on."
            )
        return names

    def _bytes(self, part: str, name: str) -> Column:
        kind, column = self._kind(part, name), fn.col(quoted(name))
        if isinstance(kind, types.BinaryType):
            return column
        if isinstance(kind, _NESTED):
            return _json(column)
        if isinstance(kind, _AS_TEXT):
            return column.cast("string").cast("binary")
        raise self._unfit(part, name, kind, "binary, string, boolean, a whole or decimal number, or nested")

    def _headers(self) -> Column:
        name = self._columns.headers
        if name is None:
            return fn.lit(None).cast(_HEADERS)
        kind, column = self._kind("headers", name), fn.col(quoted(name))
        if isinstance(kind, types.MapType):
            column, kind = fn.map_entries(column), _entries(kind)
        if not (
            isinstance(kind, types.ArrayType)
            and isinstance(kind.elementType, types.StructType)
            and kind.elementType.names == ["key", "value"]
            and isinstance(kind.elementType["key"].dataType, types.StringType)
            and isinstance(kind.elementType["value"].dataType, types.StringType | types.BinaryType)
        ):
            raise self._unfit(
                "headers", name, kind, "a map from string to binary, or Kafka's array of key and value"
            )
        return column.cast(_HEADERS)

    def _with_trace(self, headers: Column) -> Column:
        """Return the headers with that of the record's trace, unless they have one."""
        if TRACE not in self._schema.names:
            return headers
        trace = fn.col(TRACE)
        own = fn.struct(fn.lit(TRACE_HEADER).alias("key"), trace.cast("binary").alias("value"))
        if self._columns.headers is None:
            return fn.when(trace.isNotNull(), fn.array(own)).cast(_HEADERS)
        given = fn.coalesce(headers, fn.array().cast(_HEADERS))
        has_one = fn.exists(given, lambda header: header["key"].eqNullSafe(TRACE_HEADER))
        return fn.when(trace.isNull() | has_one, headers).otherwise(fn.concat(given, fn.array(own)))

    def _typed(self, part: str, name: str, kinds: tuple[type[types.DataType], ...], expected: str) -> Column:
        if not isinstance(kind := self._kind(part, name), kinds):
            raise self._unfit(part, name, kind, expected)
        return fn.col(quoted(name))

    def _kind(self, part: str, name: str) -> types.DataType:
        if name not in self._schema.names:
            raise SinkRefused(
                f"the rows for topic {self._target.name} have no column {name} for the {part}: they have "
                f"{', '.join(self._schema.names)}."
            )
        return self._schema[name].dataType

    def _unfit(self, part: str, name: str, kind: types.DataType, expected: str) -> SinkRefused:
        return SinkRefused(
            f"column {name} for the {part} of records of topic {self._target.name} is {kind.simpleString()}: "
            f"expected {expected}. Cast it in the handler."
        )


def _json(column: Column) -> Column:
    return fn.to_json(column, _AS_JSON).cast("binary")


def _entries(kind: types.MapType) -> types.ArrayType:
    fields = [types.StructField("key", kind.keyType), types.StructField("value", kind.valueType)]
    return types.ArrayType(types.StructType(fields))
