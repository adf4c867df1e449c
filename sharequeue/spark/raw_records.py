"""The raw record in a column, and its way into the files of a round and back.

A frame has the raw record in the column RAW, which costs nothing unless a handler passes it on: Spark leaves out what
nobody uses. `kept_apart` adds a row for each released record that has it. Such a row has the outcome KEEP and the raw
record as a text in `error`, so that it has the columns of all other rows, and one write of a round has them all. The
files of accepted rows and of exceptions do not change. `from_text` makes the columns of the record again.

All texts are built-in expressions of Spark. A text has a hash of it and of the record's place: a row that was changed
is an error, and is not delivered.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Self, cast

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import (
    BooleanType,
    DatetimeType,
    IntegerType,
    LongType,
    NumericType,
    StructField,
    StructType,
)

from sharequeue.spark.handler import KEPT_COLUMNS, KEY_HASH, RAW, RECORD_COLUMNS, RELEASE, HandlerError
from sharequeue.spark.sql_texts import quoted, select_texts, text_literal

KEEP = "sharequeue_keep"
"""The outcome of a row that only has a raw record. A handler cannot give it."""
DAMAGED = "sharequeue: a kept record was changed: lease"
"""The beginning of Spark's error for a row whose text does not have its hash; the lease that kept it follows."""

PART = "sharequeue_raw_"
"""The beginning of a column with a part of a raw record."""
_BYTES = ("key", "value", "headers")
_MADE = {
    f"{PART}timestamp": ("unix_micros({raw}.timestamp)", LongType()),
    f"{PART}timestamp_type": ("{raw}.timestamp_type", IntegerType()),
    # Null without a raw record.
    f"{PART}hash": ("if({raw} is null, null, {hash})", LongType()),
}
_TEXT = "sharequeue_raw_text"
_SMALL = (NumericType, BooleanType, DatetimeType)
"""Types whose values are as small as a null."""
_NONE = "-"
"""Stands for a null in a text; base64 does not have it."""
_HEADERS = "array<struct<key:string,value:binary>>"
_KIND = (
    "struct<topic:string,partition:int,offset:bigint,timestamp:timestamp,timestamp_type:int,key:binary,value:binary,"
    f"headers:{_HEADERS}>"
)


def with_raw(records: DataFrame, topics: Collection[str]) -> DataFrame:
    """Return leased records with the column RAW, which is null for topics other than these."""
    some = ", ".join(text_literal(topic) for topic in sorted(topics)) or "null"
    return select_texts(
        records, "*", f"if(topic in ({some}), struct({', '.join(RECORD_COLUMNS)}), null) as {RAW}"
    )


def kept_apart(handled: DataFrame) -> DataFrame:
    """Return a checked result of a handler without the column RAW, with a row for each released record that has it.

    The handler's own numbers are in such a row, too: Spark takes longer to leave them out of it than to write them.
    Texts and other columns that may be large are null there. A raw record of another offset is not kept. Raises
    HandlerError if the column was changed.
    """
    fields = handled.schema.fields
    known = f"if(outcome = '{KEEP}', '{KEEP}, a name of the library', outcome)"
    raw = next((each.dataType.simpleString() for each in fields if each.name == RAW), None)
    if raw is None:
        return handled.withColumn("outcome", fn.expr(known))
    if raw != _KIND:
        raise HandlerError(
            f"the handler's `{RAW}` is of type {raw}: expected the column as it was read; pass it on, or leave it out"
        )
    made_of = _TEXT
    while made_of in (each.name.lower() for each in fields):
        made_of += "_"
    same = " and ".join(f"{RAW}.{name} = {name}" for name in RECORD_COLUMNS[:3])
    text = f"if(outcome = '{RELEASE}' and {same}, array(null, {_as_text(f'{RAW}.')}), array(cast(null as string)))"
    both = select_texts(
        handled, *(quoted(each.name) for each in fields if each.name != RAW), f"explode({text}) as {made_of}"
    )
    made = {
        "outcome": f"if({made_of} is null, {known}, '{KEEP}')",
        "error": f"if({made_of} is null, error, concat({_hash(made_of)}, ' ', {made_of}))",
    }
    as_given = {*KEPT_COLUMNS, KEY_HASH}

    def column(each: StructField) -> str:
        name = quoted(each.name)
        if each.name in made:
            return f"{made[each.name]} as {name}"
        # A column without nulls stays one: its type in the files must not depend on what is kept.
        if each.name in as_given or not each.nullable or isinstance(each.dataType, _SMALL):
            return name
        return f"if({made_of} is null, {name}, null) as {name}"

    return select_texts(both, *(column(each) for each in fields if each.name != RAW))


def as_kept(records: DataFrame) -> DataFrame:
    """Return the row with which each of these leased records is kept, in the columns of a result."""
    text = _as_text("")
    return select_texts(
        records,
        *("topic", "partition", "offset", "lease_id", f"'{KEEP}' as outcome"),
        f"concat({_hash(text)}, ' ', {text}) as error",
    )


def from_text(rows: DataFrame, *others: str, headers: bool) -> DataFrame:
    """Return the columns of records from rows that were kept, and others of their columns.

    A row that was changed is an error of Spark when it is read. Without `headers` these are null.
    """
    text = "substring(error, length(substring_index(error, ' ', 1)) + 2)"
    intact = f"substring_index(error, ' ', 1) = {_hash(text)}"
    damaged = f"raise_error(concat('{DAMAGED} ', cast(lease_id as string)))"
    parts = select_texts(rows, "*", f"if({intact}, split({text}, ' ', -1), {damaged}) as {_TEXT}")
    at = [f"nullif(element_at({_TEXT}, {number}), '{_NONE}')" for number in range(1, 6)]
    pairs = f"from_json(cast(unbase64({at[4]}) as string), '{_HEADERS}')"
    return select_texts(
        parts,
        "topic",
        "partition",
        "offset",
        f"timestamp_micros(cast({at[0]} as bigint)) as timestamp",
        f"cast({at[1]} as int) as timestamp_type",
        f"unbase64({at[2]}) as key",
        f"unbase64({at[3]}) as value",
        f"{pairs if headers else f'cast(null as {_HEADERS})'} as headers",
        *others,
    )


@dataclass(frozen=True, slots=True)
class RawParts:
    """The raw record of a row for a function in Python (`by_row`): its bytes are sent there once.

    Key, value and headers are taken from the columns of the records that the function gets anyway, unless these have
    another type. A hash, made before, shows whether a column of the same name and type was changed: then the record
    is not kept.
    """

    sources: tuple[str, ...]
    """The columns of the records with the parts of the raw record."""
    field: StructField
    """The column of these parts in the result of the function."""

    @classmethod
    def of(cls, columns: StructType) -> Self:
        """Return the parts of the raw record of records with these columns, RAW among them."""
        raw = cast("StructType", columns[RAW].dataType)

        def source(name: str) -> str:
            there = (
                name in columns.names
                and columns[name].dataType.simpleString() == raw[name].dataType.simpleString()
            )
            return name if there else f"{PART}{name}"

        sources = tuple(source(name) for name in _BYTES)
        kinds = [raw[name].dataType for name in _BYTES]
        parts = [StructField(name, kind) for name, kind in zip(sources, kinds, strict=True)]
        parts += [StructField(name, kind) for name, (_, kind) in _MADE.items()]
        return cls((*sources, *_MADE), StructField(RAW, StructType(parts)))

    def apart(self, records: DataFrame) -> DataFrame:
        """Return the records with their parts in columns, without the column RAW."""
        given = [f"{RAW}.{name.removeprefix(PART)} as {name}" for name in self.sources if name not in _MADE]
        hidden = [each for each in given if each.rpartition(" ")[2].startswith(PART)]
        hash_of = _hash_of([f"{RAW}.{name}" for name in _BYTES])
        made = [f"{text.format(raw=RAW, hash=hash_of)} as {name}" for name, (text, _) in _MADE.items()]
        return select_texts(records, "*", *hidden, *made).drop(RAW)

    def together(self, handled: DataFrame) -> DataFrame:
        """Return the function's result with the column RAW as a frame has it."""
        there = [f"{RAW}.{name}" for name in self.sources[: len(_BYTES)]]
        raw = (
            "named_struct('topic', topic, 'partition', partition, 'offset', offset,"
            f" 'timestamp', timestamp_micros({RAW}.{PART}timestamp), 'timestamp_type', {RAW}.{PART}timestamp_type,"
            f" 'key', {there[0]}, 'value', {there[1]}, 'headers', {there[2]})"
        )
        return handled.withColumn(RAW, fn.expr(f"if({RAW}.{PART}hash = {_hash_of(there)}, {raw}, null)"))


def _hash_of(columns: Sequence[str]) -> str:
    # The hash alone does not see which of them is null.
    return f"xxhash64({', '.join(f'{name} is null, {name}' for name in columns)})"


def _as_text(raw: str) -> str:
    """Return the text of a raw record, whose columns have this prefix."""
    parts = (
        f"coalesce(cast(unix_micros({raw}timestamp) as string), '{_NONE}')",
        f"coalesce(cast({raw}timestamp_type as string), '{_NONE}')",
        _bytes(f"{raw}key"),
        _bytes(f"{raw}value"),
        # Not by `transform`: Spark generates no code for a stage with it.
        _bytes(f"cast(to_json({raw}headers) as binary)"),
    )
    return f"concat_ws(' ', {', '.join(parts)})"


def _bytes(name: str) -> str:
    return f"coalesce(base64({name}), '{_NONE}')"


def _hash(text: str) -> str:
    # Of the place, too: with that of another record it would be delivered as that one.
    return f"cast(xxhash64(topic, partition, offset, {text}) as string)"
