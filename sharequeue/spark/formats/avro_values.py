"""Decode Avro; reject records that do not decode.

Spark's own `from_avro` decodes. It needs the schema that a record was written with, and a topic may have records of
several schemas. So a first pass over a lease reads five bytes of each record to find the schema ids, and the driver
requests each new id from the registry. `from_avro` gives a struct of nulls for bytes that do not decode, which cannot
be distinguished from a record of nulls. Both schemas are therefore wrapped in a record of one field, which changes
nothing in the bytes. The reader's schema has another field, filled by its default: it is null where nothing was
decoded.
"""

from __future__ import annotations

import json
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.avro.functions import from_avro

from sharequeue.spark.formats.decoded_column import DECODED, decided, of_registry, shown
from sharequeue.spark.formats.registry import Registry
from sharequeue.spark.handler import HandlerError
from sharequeue.spark.session import SparkNotReady
from sharequeue.words.settings.jar_sets import fetch_command

MOST_IDS = 1_000
"""The most schema ids of one lease. More mean that the topic has other bytes, and each would be a request to the
registry.
"""
_ID = "sharequeue_schema_id"


def avro(
    records: DataFrame,
    registry: Registry | None = None,
    *,
    schema: str | None = None,
    subject: str | None = None,
    column: str = "value",
) -> DataFrame:
    """Decode a column of Avro in place, with the reader's schema.

    With a `registry` the bytes are in its format: a zero byte, four of the schema id, Avro. Each record is read with
    the schema of its own id, and converted to the reader's schema by Avro's rules: `schema`, as JSON, or the latest
    of `subject`. Without a registry the bytes are plain Avro, written with `schema`.

    The rows get `outcome` and `error`: accept, or reject with the reason where the bytes are not in the format, the
    registry does not have their schema, they do not decode, or the value is null.

    Raises RegistryNotAvailable when the registry does not respond, SparkNotReady without Spark's Avro, and
    HandlerError for an invalid schema, and for more than 1,000 ids.
    """
    if (schema is None) == (subject is None) or (registry is None and schema is None):
        raise HandlerError(
            "avro() needs the reader's schema: `schema`, or with a registry `subject`; not both"
        )
    _refuse_without_avro(records)
    raw = fn.col(column)
    if registry is None:
        assert schema is not None  # noqa: S101 - see above
        text = _checked(records, schema, "the schema")
        read = records.withColumn(DECODED, _from_avro(raw, text, text))
        return _decided(read, column, fn.lit("the schema"))
    reader = (
        _checked(records, schema, "the reader's schema")
        if schema is not None
        else _latest(records, registry, subject or "")
    )
    schema_id = fn.conv(fn.hex(fn.substring(raw, 2, 4)), 16, 10).cast("long")
    with_ids = records.withColumn(_ID, fn.when(of_registry(raw), schema_id))
    decoded: Column | None = None
    problem: Column = fn.when(
        fn.col(_ID).isNull(),
        fn.concat(fn.lit("not in the registry's format (a zero byte, four of a schema id): "), shown(raw)),
    )
    for each in _ids(with_ids):
        here = fn.col(_ID) == each
        found = registry.schema(each)
        if found is None:
            problem = problem.when(here, fn.lit(f"schema {each} is not in the registry"))
        elif found.kind != "AVRO":
            problem = problem.when(here, fn.lit(f"schema {each} is {found.kind}: expected AVRO"))
        else:
            _refuse_references(found.references, f"schema {each}")
            try:
                writer = _checked(records, found.text, f"schema {each}")
            except HandlerError as error:
                problem = problem.when(here, fn.lit(str(error)))
                continue
            made = _from_avro(fn.substring(raw, 6, 2**31 - 1), writer, reader)
            decoded = fn.when(here, made) if decoded is None else decoded.when(here, made)
    if decoded is None:
        decoded = fn.when(fn.lit(False), _from_avro(raw, reader, reader))
    name = fn.concat(fn.lit("schema "), fn.col(_ID).cast("string"))
    return _decided(with_ids.withColumn(DECODED, decoded), column, name, problem).drop(_ID)


def _decided(records: DataFrame, column: str, name: Column, problem: Column | None = None) -> DataFrame:
    undecoded = fn.concat(
        fn.lit("no Avro of "), name, fn.lit(", or not of the reader's: "), shown(fn.col(column))
    )
    failed = fn.col(DECODED)["decoded"].isNull()
    error = fn.when(failed, undecoded) if problem is None else problem.when(failed, undecoded)
    return decided(records, column, fn.col(DECODED)["value"], error)


def _ids(records: DataFrame) -> list[int]:
    """Return the schema ids of the records; this runs a Spark job over all of them."""
    rows = records.select(_ID).where(fn.col(_ID).isNotNull()).distinct().limit(MOST_IDS + 1).collect()
    if len(rows) > MOST_IDS:
        raise HandlerError(
            f"these records have more than {MOST_IDS:,} schema ids: their values are not in a registry's format"
        )
    return sorted(int(row[0]) for row in rows)


def _latest(records: DataFrame, registry: Registry, subject: str) -> str:
    found = registry.latest(subject)
    if found.kind != "AVRO":
        raise HandlerError(f"the latest schema of {subject} is {found.kind}: expected AVRO")
    _refuse_references(found.references, f"the latest schema of {subject}")
    return _checked(records, found.text, f"the latest schema of {subject}")


def _from_avro(raw: Column, writer: str, reader: str) -> Column:
    options = {
        "mode": "PERMISSIVE",
        "avroSchema": _wrapped(reader, {"name": "decoded", "type": "boolean", "default": True}),
    }
    return from_avro(raw, _wrapped(writer), options)


def _wrapped(schema: str, *more: dict[str, Any]) -> str:
    # No namespace here: the schemas inside would inherit it.
    fields = [{"name": "value", "type": json.loads(schema)}, *more]
    return json.dumps({"type": "record", "name": "sharequeue_value", "fields": fields})


def _checked(records: DataFrame, schema: str, what: str) -> str:
    """Return the schema as JSON. Raises HandlerError if it is not a schema."""
    jvm: Any = records.sparkSession._jvm
    try:
        return str(jvm.org.apache.avro.Schema.Parser().parse(schema).toString())
    except Py4JJavaError as error:
        raise HandlerError(f"{what} is not an Avro schema: {error.java_exception.getMessage()}") from None


def _refuse_references(references: tuple[str, ...], what: str) -> None:
    if references:
        raise HandlerError(
            f"{what} takes {', '.join(references)} from other subjects, which is not supported: register it with "
            "these types included"
        )


def _refuse_without_avro(records: DataFrame) -> None:
    jvm: Any = records.sparkSession._jvm
    session: Any = records.sparkSession._jsparkSession
    try:
        jvm.org.apache.spark.sql.execution.datasources.DataSource.lookupDataSource(
            "avro", session.sessionState().conf()
        )
    except Exception as error:
        raise SparkNotReady(
            f"this Spark session has no Avro: run {fetch_command('avro')} and set SHAREQUEUE_SPARK_JARS=avro before "
            "it is made by `sharequeue.spark.spark_session`, or make it with "
            f"spark.jars.packages=org.apache.spark:spark-avro_2.13:{records.sparkSession.version}"
        ) from error
