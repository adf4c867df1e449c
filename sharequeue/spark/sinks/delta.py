"""The sink DeltaTable: a Delta table that accepts each transfer once.

Delta has application transactions for streams: a commit names an application and a version, and Delta skips a version
that is not above the last one. A commit that finds at its end that the application has committed since it began fails
(DELTA_CONCURRENT_TRANSACTION). The application is the sink of this state database, the version is the transfer's
number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from sharequeue.domain.errors import first_line
from sharequeue.domain.results.runs import Stored
from sharequeue.domain.settings import Settings
from sharequeue.domain.settings.addresses import is_uri
from sharequeue.domain.settings.jar_sets import fetch_command
from sharequeue.spark.output.folders import SinkNames
from sharequeue.spark.session import EXTENSIONS
from sharequeue.spark.sinks.columns import Limit, Shape, folder_limits
from sharequeue.spark.sinks.interface import OpenSink, Sink, SinkContext, SinkRefused
from sharequeue.spark.sinks.transfers import Rows, Step, opened
from sharequeue.spark.sql_texts import quoted

_READS_CHECKPOINTS = (4, 3)
"""The first Delta that reads checkpoints with every Spark of its series; an older one calls a constructor that Spark
4.1.2 has changed.
"""
_SINCE_SPARK = (4, 1, 2)
_FORGETS = "delta.setTransactionRetentionDuration"
_CHECK = "delta.constraints."
_NULL = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = r"""[\\x01-\\x1f"#%\'*/:=?\\\\\\x7f{}\\[\\]^]"""
"""The characters that Delta escapes to three characters in a folder's name, as an SQL literal."""
_FILLED_BY_DELTA = ("delta.generationExpression", "delta.identity.start")


@dataclass(frozen=True, slots=True)
class DeltaTable(Sink):
    """A Delta table of a lakehouse. It gets every accepted record exactly once, shortly after its acknowledgement.

    `table` is a name in the session's catalog, or a path or URI, which contains a slash. The table must exist, and
    columns are matched by name: it must have every column of the handler's result, wide enough; but `topic`,
    `partition`, `offset`, `lease_id` and `delivery_count` are left out if it has no such column. Its other columns
    get null. A record with a row that the table would refuse or change (NOT NULL, `char(n)`, `varchar(n)`, CHECK, an
    empty or too long text in a partition column) is rejected, with the reason. The table must not have generated or
    identity columns. Spark needs Delta: `sharequeue jars fetch delta` and `SHAREQUEUE_SPARK_JARS=delta`.

    Acknowledged rows are in files until the transfer has committed. If a run is killed in between, the next run of
    the group transfers them before it leases anything.
    """

    table: str
    on_step: Callable[[Step], None] = field(default=lambda step: None, compare=False, repr=False)

    def open(self, context: SinkContext) -> AbstractContextManager[OpenSink]:
        """Prepare a run, and complete the transfers of earlier runs. Raises SinkRefused if there is no such table, if
        it cannot accept transfers, or if Spark has no Delta.
        """
        return opened(context, _OpenDeltaTable.found(context, self.table), self.on_step)

    def stored(self, settings: Settings, names: SinkNames) -> Stored:
        """Return the table's name in the catalog, or its address."""
        if "/" not in self.table:
            return Stored("delta", table=self.table)
        return Stored("delta", uri=self.table if is_uri(self.table) else Path(self.table).absolute().as_uri())


@dataclass(frozen=True, slots=True)
class _OpenDeltaTable:
    spark: SparkSession
    path: str
    application: str
    name: str

    @classmethod
    def found(cls, context: SinkContext, table: str) -> _OpenDeltaTable:
        spark = context.spark
        if EXTENSIONS["delta"] not in str(spark.conf.get("spark.sql.extensions", "") or ""):
            raise SinkRefused(
                f"this Spark session has no Delta: run {fetch_command('delta')}, which fetches it once, and set "
                "SHAREQUEUE_SPARK_JARS=delta. A session of your own needs Delta's jars, its extension "
                f"(spark.sql.extensions={EXTENSIONS['delta']}) and its catalog."
            )
        _refuse_old(spark)
        names = context.names
        application = f"sharequeue-{context.state.outputs.identity().origin_id}-{names.group}-{names.sink}"
        return cls(spark, str(_detail(spark, table)["location"]), application, f"delta:{table}")

    def _snapshot(self) -> Any:
        jvm: Any = self.spark._jvm
        log = jvm.org.apache.spark.sql.delta.DeltaLog
        return log.forTableWithSnapshot(self.spark._jsparkSession, self.path)._2()

    def shape(self) -> Shape:
        metadata = json.loads(str(self._snapshot().metadata().json()))["metaData"]
        columns = StructType.fromJson(json.loads(metadata["schemaString"]))
        properties: Mapping[str, str] = metadata.get("configuration", {})
        _refuse_what_cannot_be_foreseen(self.name, columns, properties)
        limits = [
            (f"not coalesce({check}, false)", f"CHECK {key.removeprefix(_CHECK)} of the table: {check}")
            for key, check in sorted(properties.items())
            if key.startswith(_CHECK)
        ]
        for name in metadata.get("partitionColumns", ()):
            limits += _of_partition(self.name, columns[name])
        return Shape(_with_parents(columns), limits=tuple(limits))

    def append(self, rows: Rows, number: int) -> None:
        taken = self._snapshot().transactions().get(self.application)
        if taken.isDefined() and int(taken.get()) >= number:
            return
        once = {"txnAppId": self.application, "txnVersion": str(number)}
        rows(self.spark).write.format("delta").mode("append").options(**once).save(self.path)


def _refuse_old(spark: SparkSession) -> None:
    """Raise SinkRefused for a Delta that cannot read the checkpoints that it writes: a table would stand still after
    its first ten commits.
    """
    jvm: Any = spark._jvm
    try:
        delta = str(getattr(getattr(jvm.io.delta, "package$"), "MODULE$").VERSION())
    except (Py4JError, TypeError):
        return  # a custom build
    if not reads_checkpoints(delta, spark.version):
        raise SinkRefused(
            f"Delta {delta} cannot read its own checkpoints with Spark {spark.version} (NoSuchMethodError), and a "
            "table has one after ten commits: nothing could be written from then on. Run "
            f"{fetch_command('delta')}, which fetches a version that can, or put Delta "
            f"{'.'.join(map(str, _READS_CHECKPOINTS))} or newer into a session of your own."
        )


def reads_checkpoints(delta: str, spark: str) -> bool:
    """Return whether this version of Delta reads checkpoints with this version of Spark."""
    return _numbers(delta) >= _READS_CHECKPOINTS or _numbers(spark) < _SINCE_SPARK


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


def _detail(spark: SparkSession, table: str) -> Row:
    name = f"delta.{quoted(table)}" if "/" in table else table
    try:
        [detail] = spark.sql(f"describe detail {name}").collect()
    except AnalysisException as error:
        raise SinkRefused(
            f"there is no Delta table {table} ({first_line(error)}): create it first, for example with "
            f"`create table {name} (…) using delta`; choose its columns, partitions and location yourself."
        ) from error
    if detail["format"] != "delta":
        raise SinkRefused(f"{table} is a table of format {detail['format']}: expected a Delta table.")
    return detail


def _refuse_what_cannot_be_foreseen(name: str, there: StructType, properties: Mapping[str, str]) -> None:
    """Raise SinkRefused for a table that fills columns itself, or may lose the number of a transfer."""
    filled = [each.name for each in there.fields if any(key in each.metadata for key in _FILLED_BY_DELTA)]
    if filled:
        raise SinkRefused(
            f"table {name} fills {', '.join(filled)} by itself (generated, or an identity), and would refuse other "
            "values. Use a table without such columns."
        )
    if _FORGETS in properties:
        raise SinkRefused(
            f"table {name} has {_FORGETS}: it would forget which transfers it has accepted, and accept one twice. "
            f"Unset it: alter table … unset tblproperties ('{_FORGETS}')."
        )


def _with_parents(columns: StructType) -> StructType:
    """Return columns with NOT NULL also on each column that has a NOT NULL part: Delta refuses a null there, too."""
    found = []
    for each in columns.fields:
        kind = _with_parents(each.dataType) if isinstance(each.dataType, StructType) else each.dataType
        strict = isinstance(kind, StructType) and not all(part.nullable for part in kind.fields)
        found.append(StructField(each.name, kind, each.nullable and not strict, each.metadata))
    return StructType(found)


def _of_partition(table: str, column: StructField) -> list[Limit]:
    """Return the limits of a partition column: Delta stores its value as a text, and an empty text as null."""
    name, at = column.name, quoted(column.name)
    if isinstance(column.dataType, BinaryType):
        raise SinkRefused(
            f"table {table} is partitioned by {name}, which is binary: Delta cannot store every such value. "
            "Partition it by another column."
        )
    if not isinstance(column.dataType, StringType):
        return []
    escaped = f"regexp_replace({at}, '{_ESCAPED}', '%00')"
    return [
        (
            f"{at} in ('', '{_NULL}')",
            f"{name} is a partition column, in which Delta stores this text as null",
        ),
        *folder_limits(name, column.dataType, escaped),
    ]
