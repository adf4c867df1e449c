"""Decode Avro; reject records that do not decode.

Spark's own `from_avro` decodes. It needs the schema that a record was written with, and a topic may have records of
several schemas. So a first pass over a lease reads five bytes of each record to find the schema ids, and the driver
requests each new id from the registry. `from_avro` gives a struct of nulls for bytes that do not decode, which cannot
be distinguished from a record of nulls, and ignores bytes that follow the value. So both schemas are wrapped in a
record of two fields, and a secret is appended to the bytes: the second field reads it only if the value has decoded,
and ends where the bytes end.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.avro.functions import from_avro

from sharequeue.domain.settings.jar_sets import fetch_command
from sharequeue.spark.formats.avro_units import changed_unit
from sharequeue.spark.formats.decoded_column import DECODED, after_registry, decided, of_registry, shown
from sharequeue.spark.handler import HandlerError
from sharequeue.spark.registry import Registry
from sharequeue.spark.session import AVRO_LIMITS, SparkNotReady
from sharequeue.spark.sql_texts import bytes_literal, quoted, text_literal

MOST_IDS = 1_000
"""The most schema ids of one lease. More mean that the topic has other bytes, and each would be a request to the
registry.
"""
MOST_SAID = 300
"""The most characters of Spark's own error in a message."""
_ID = "sharequeue_schema_id"
_NOT_THE_READERS = ", or not of the reader's: "
_END_BYTES = 16
_END = {"type": "fixed", "name": "sharequeue_end", "size": _END_BYTES}
"""The type of the secret that follows the value."""


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
    _limit_lengths(records)
    raw, end = quoted(column), secrets.token_bytes(_END_BYTES)
    if registry is None:
        assert schema is not None  # noqa: S101 - see above
        text = _checked(records, schema, "the schema")
        _refuse_untyped(records, text, "the schema")
        read = records.withColumn(DECODED, _from_avro(fn.col(raw), text, text, end))
        return _decided(read, column, "'the schema'", end)
    what = "the reader's schema"
    if schema is None:
        what = f"the latest schema of {subject}"
        latest = registry.latest(subject or "")
        _refuse_references(latest, what)
        schema = _avro_of(latest, what)
    reader = _checked(records, schema, what)
    _refuse_untyped(records, reader, what)
    schema_id = f"cast(conv(hex(substring({raw}, 2, 4)), 16, 10) as bigint)"
    with_ids = records.withColumn(_ID, fn.expr(f"if({of_registry(raw)}, {schema_id}, null)"))
    # The first branch never applies: it gives the column its type if no schema can be used.
    decoded = fn.when(fn.lit(False), _from_avro(fn.col(raw), reader, reader, end))
    unframed = text_literal("not in the registry's format (a zero byte, four of a schema id): ")
    problems = [f"when {_ID} is null then concat({unframed}, {shown(raw)})"]
    for each in _ids(with_ids):
        here, name = fn.col(_ID) == each, f"schema {each}"
        found = registry.schema(each)
        if found is not None:
            _refuse_references(found, name)
        try:
            if found is None:
                raise HandlerError(f"{name} is not in the registry")
            writer = _checked(records, _avro_of(found, name), name)
            _refuse_other_units(writer, reader, name)
        except HandlerError as error:
            problems.append(f"when {_ID} = {each} then {text_literal(str(error))}")
        else:
            decoded = decoded.when(here, _from_avro(fn.expr(after_registry(raw)), writer, reader, end))
    name_of = f"concat('schema ', cast({_ID} as string))"
    return _decided(with_ids.withColumn(DECODED, decoded), column, name_of, end, problems).drop(_ID)


def _decided(
    records: DataFrame, column: str, name: str, end: bytes, problems: Sequence[str] = ()
) -> DataFrame:
    found, shows = f"{DECODED}.`end`", shown(quoted(column))
    undecoded = f"concat('no Avro of ', {name}, {text_literal(_NOT_THE_READERS)}, {shows})"
    longer = f"concat('longer than its value of ', {name}, ': ', {shows})"
    cases = [
        *problems,
        f"when {found} is null then {undecoded}",
        f"when {found} != {bytes_literal(end)} then {longer}",
    ]
    return decided(records, column, f"{DECODED}.value", f"case {' '.join(cases)} end")


def _ids(records: DataFrame) -> list[int]:
    """Return the schema ids of the records; this runs a Spark job over all of them."""
    rows = records.select(_ID).where(fn.col(_ID).isNotNull()).distinct().limit(MOST_IDS + 1).collect()
    if len(rows) > MOST_IDS:
        raise HandlerError(
            f"these records have more than {MOST_IDS:,} schema ids: their values are not in a registry's format"
        )
    return sorted(int(row[0]) for row in rows)


def _avro_of(found: Any, what: str) -> str:
    if found.schema_type != "AVRO":
        raise HandlerError(f"{what} is {found.schema_type}: expected AVRO")
    return str(found.schema_str)


def _refuse_references(found: Any, what: str) -> None:
    if found.references:
        raise HandlerError(
            f"{what} takes {', '.join(each.name for each in found.references)} from other subjects, which is not "
            "supported: register it with these types included"
        )


def _from_avro(raw: Column, writer: str, reader: str, end: bytes) -> Column:
    options = {"mode": "PERMISSIVE", "avroSchema": _wrapped(reader)}
    return from_avro(fn.concat(raw, fn.lit(end)), _wrapped(writer), options)


def _wrapped(schema: str) -> str:
    # No namespace here: the schemas inside would inherit it.
    fields = [{"name": "value", "type": json.loads(schema)}, {"name": "end", "type": _END}]
    return json.dumps({"type": "record", "name": "sharequeue_value", "fields": fields})


def _checked(records: DataFrame, schema: str, what: str) -> str:
    """Return the schema as JSON, without its wrong defaults. Raises HandlerError if it is not a schema.

    Registries have schemas with wrong defaults. Their records can be read, but Spark cannot pass such a schema to its
    executors.
    """
    jvm: Any = records.sparkSession._jvm

    def parsed(text: str, *, defaults: bool = True) -> str:
        return str(jvm.org.apache.avro.Schema.Parser().setValidateDefaults(defaults).parse(text).toString())

    try:
        text = parsed(schema, defaults=False)
    except Py4JJavaError as error:
        raise HandlerError(f"{what} is not an Avro schema: {error.java_exception.getMessage()}") from None
    try:
        return parsed(text)
    except Py4JJavaError:
        return _without_wrong_defaults(json.loads(text), parsed)


def _refuse_untyped(records: DataFrame, reader: str, what: str) -> None:
    """Raise HandlerError if Spark has no type for a schema: one that contains itself, for example."""
    try:
        records.select(_from_avro(fn.lit(b""), reader, reader, b""))
    except (Py4JJavaError, PySparkException) as error:
        raise HandlerError(f"{what} cannot be a type of Spark: {_reason(error)}") from None


def _reason(error: Py4JJavaError | PySparkException) -> str:
    java = getattr(error, "java_exception", None)
    return " ".join(str(error if java is None else java.getMessage()).split())[:MOST_SAID]


def _without_wrong_defaults(schema: Any, parsed: Callable[[str], str]) -> str:
    fields = [each for each in _fields(schema) if "default" in each]
    defaults = [each.pop("default") for each in fields]
    for field, default in zip(fields, defaults, strict=True):
        field["default"] = default
        try:
            parsed(json.dumps(schema))
        except Py4JJavaError:
            del field["default"]
    return json.dumps(schema)


def _fields(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield the fields of all records in a schema, those inside another field's type first."""
    if isinstance(schema, list):
        for each in schema:
            yield from _fields(each)
    elif isinstance(schema, dict):
        for part in ("type", "items", "values"):
            yield from _fields(schema.get(part))
        for field in schema.get("fields", ()):
            yield from _fields(field)
            yield field


def _refuse_other_units(writer: str, reader: str, name: str) -> None:
    if (part := changed_unit(json.loads(writer), json.loads(reader))) is not None:
        raise HandlerError(f"{name} has other values than the reader's schema would read ({part})")


def _limit_lengths(records: DataFrame) -> None:
    """Limit the lengths that a record may claim, in the driver's JVM, unless it has limits of its own.

    The executors of a cluster have them from `spark_session`; Avro reads them once.
    """
    jvm: Any = records.sparkSession._jvm
    for name, most in AVRO_LIMITS.items():
        if jvm.java.lang.System.getProperty(name) is None:
            jvm.java.lang.System.setProperty(name, str(most))


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
