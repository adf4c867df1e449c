"""How does a Delta table take each transfer once?

By the transaction of an application, which Delta keeps for streams: a commit names the application and a version, and
Delta leaves out a version that is not above the last one. A commit that began before, and finds at its end that the
application has committed meanwhile, fails (DELTA_CONCURRENT_TRANSACTION). The application is the sink of this state
database, the version is the transfer's number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyspark.errors import AnalysisException
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import StructType

from sharequeue.jvm.jar_sets import fetch_command
from sharequeue.spark.output.folders import SinkNames
from sharequeue.spark.session import EXTENSIONS
from sharequeue.spark.sinks.interface import OpenSink, SinkContext, SinkRefused
from sharequeue.spark.sinks.transferring import CLAIM_SECONDS, OpenTransfer, Rows, Step, refuse_not_null
from sharequeue.state import State

_FORGETS = "delta.setTransactionRetentionDuration"
_FILLED_BY_DELTA = ("delta.generationExpression", "delta.identity.start")


@dataclass(frozen=True, slots=True)
class DeltaTable:
    """A Delta table that gets every accepted record exactly once, a moment after its acknowledgement.

    `table` is a name in the session's catalog, or a path or URI, which has a slash in it. The table exists, and
    columns go by name: every column of the handler's must be there, and wide enough, but `topic`, `partition`,
    `offset`, `lease_id` and `delivery_count` are left out where it has none of that name; its other columns get null.
    It must not refuse rows (NOT NULL, CHECK). Spark needs Delta: `sharequeue jars fetch delta` and
    `SHAREQUEUE_SPARK_JARS=delta`.

    Acknowledged rows lie in files until the transfer has committed. A run that is killed in between leaves them to
    the next run of the group, which transfers them before it leases anything.
    """

    table: str
    on_step: Callable[[Step], None] = field(default=lambda step: None, compare=False, repr=False)

    def open(self, context: SinkContext) -> OpenSink:
        """Make ready for a run, and transfer what an earlier one has left. Raises SinkRefused when there is no such
        table, when it may refuse rows, and when Spark has no Delta.
        """
        opened = OpenTransfer(context, _Table.found(context, self.table), self.on_step)
        opened.transfer(CLAIM_SECONDS)
        return opened

    def sweep(self, state: State, names: SinkNames, *, dry_run: bool) -> list[str]:
        """Return nothing: the files are swept for every sink."""
        return []


@dataclass(frozen=True, slots=True)
class _Table:
    spark: SparkSession
    path: str
    application: str
    name: str

    @classmethod
    def found(cls, context: SinkContext, table: str) -> _Table:
        spark = context.spark
        if EXTENSIONS["delta"] not in str(spark.conf.get("spark.sql.extensions", "") or ""):
            raise SinkRefused(
                f"this Spark session has no Delta: run {fetch_command('delta')}, which fetches it once, and set "
                "SHAREQUEUE_SPARK_JARS=delta. A session of your own needs Delta's jars, its extension "
                f"(spark.sql.extensions={EXTENSIONS['delta']}) and its catalog."
            )
        detail = _detail(spark, table)
        names = context.names
        application = f"sharequeue-{context.state.outputs.state_id()}-{names.group}-{names.sink}"
        path = str(detail["location"])
        found = cls(spark, path, application, f"delta:{table}")
        _refuse_what_refuses(found.name, found.columns(), detail["properties"] or {})
        return found

    def columns(self) -> StructType:
        return self.spark.read.format("delta").load(self.path).schema

    def append(self, rows: Rows, number: int) -> None:
        once = {"txnAppId": self.application, "txnVersion": str(number)}
        rows(self.spark).write.format("delta").mode("append").options(**once).save(self.path)


def _detail(spark: SparkSession, table: str) -> Row:
    quoted = table.replace("`", "``")
    name = f"delta.`{quoted}`" if "/" in table else table
    try:
        [detail] = spark.sql(f"describe detail {name}").collect()
    except AnalysisException as error:
        raise SinkRefused(
            f"there is no Delta table {table} ({str(error).splitlines()[0]}): create it first, such as by `create "
            f"table {name} (…) using delta`; its columns, partitions and place are yours to say."
        ) from error
    if detail["format"] != "delta":
        raise SinkRefused(f"{table} is a table of {detail['format']}: expected one of Delta.")
    return detail


def _refuse_what_refuses(name: str, there: StructType, properties: Mapping[str, str]) -> None:
    """Raise SinkRefused for a table that could refuse a row after its record was acknowledged, or forget a number."""
    refuse_not_null(name, there)
    checks = [key.rpartition(".")[2] for key in properties if re.match(r"delta\.constraints\.", key)]
    if checks:
        raise SinkRefused(
            f"table {name} has the constraint {', '.join(sorted(checks))}: a row that it refuses has been "
            "acknowledged by then, and nothing could be transferred any more. Drop it, and have the handler "
            "reject such records."
        )
    filled = [each.name for each in there.fields if any(key in each.metadata for key in _FILLED_BY_DELTA)]
    if filled:
        raise SinkRefused(
            f"table {name} fills {', '.join(filled)} by itself (generated, or an identity), and would refuse other "
            "values. Transfer into a table without such columns, and go on from there."
        )
    if _FORGETS in properties:
        raise SinkRefused(
            f"table {name} has {_FORGETS}: it would forget which transfers it has taken, and take one twice. Unset "
            f"it: alter table … unset tblproperties ('{_FORGETS}')."
        )
