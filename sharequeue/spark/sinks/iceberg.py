"""The sink IcebergTable: an Iceberg table that accepts each transfer once.

It uses write-audit-publish. The rows are committed as a snapshot that no reader sees, under an id with the transfer's
number (`spark.wap.id`). One transaction then publishes it, and stores the number in the table's properties. Iceberg
refuses to publish an id that one of the table's snapshots has published, and checks again if another commit came
first. The property works even when those snapshots have expired: an unpublished snapshot expires with them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sharequeue.domain.errors import first_line
from sharequeue.domain.results.runs import Stored
from sharequeue.domain.settings import Settings
from sharequeue.domain.settings.jar_sets import fetch_command
from sharequeue.spark.output.folders import SinkNames
from sharequeue.spark.sinks.columns import Shape, folder_limits
from sharequeue.spark.sinks.interface import OpenSink, Sink, SinkContext, SinkRefused
from sharequeue.spark.sinks.transfers import Rows, Step, opened
from sharequeue.spark.sql_texts import quoted

_WAP = "write.wap.enabled"
_WAP_ID = "wap.id"


@dataclass(frozen=True, slots=True)
class IcebergTable(Sink):
    """An Iceberg table of a lakehouse. It gets every accepted record exactly once, shortly after its acknowledgement.

    `table` is its name with its catalog, such as `lake.sales.orders`. The table must exist and have the property
    `write.wap.enabled`, and columns are matched by name: it must have every column of the handler's result, wide
    enough; but `topic`, `partition`, `offset`, `lease_id` and `delivery_count` are left out if it has no such column.
    Its other columns get null. A record with a row that the table would refuse (NOT NULL, a text in a partition
    column that is too long for a folder's name) is rejected, with the reason. Spark needs Iceberg (`sharequeue jars
    fetch iceberg` and `SHAREQUEUE_SPARK_JARS=iceberg`) and the settings of the catalog.

    Acknowledged rows are in files until the transfer has committed. If a run is killed in between, the next run of
    the group transfers them before it leases anything.
    """

    table: str
    on_step: Callable[[Step], None] = field(default=lambda step: None, compare=False, repr=False)

    def open(self, context: SinkContext) -> AbstractContextManager[OpenSink]:
        """Prepare a run, and complete the transfers of earlier runs. Raises SinkRefused if there is no such table, if
        it does not have `write.wap.enabled`, or if Spark has no Iceberg.
        """
        names = context.names
        # Only letters: the name is a key in the table's properties.
        application = f"sharequeue.{context.state.outputs.identity().origin_id}.{names.group}.{names.sink}"
        return opened(context, _OpenIcebergTable(context.spark, self.table, application), self.on_step)

    def stored(self, settings: Settings, names: SinkNames) -> Stored:
        """Return the table's name with its catalog."""
        return Stored("iceberg", table=self.table)


@dataclass(frozen=True, slots=True)
class _OpenIcebergTable:
    spark: SparkSession
    table: str
    application: str

    @property
    def name(self) -> str:
        return f"iceberg:{self.table}"

    def loaded(self) -> Any:
        """Return Iceberg's table object in its current state. Raises SinkRefused."""
        jvm: Any = self.spark._jvm
        try:
            load = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable
        except (AttributeError, TypeError):
            load = None
        if not callable(load) or type(load).__name__ == "JavaPackage":
            raise SinkRefused(
                f"this Spark session has no Iceberg: run {fetch_command('iceberg')}, which fetches it once, and set "
                "SHAREQUEUE_SPARK_JARS=iceberg. A session of your own needs Iceberg's jar."
            )
        session: Any = self.spark._jsparkSession
        # Iceberg looks for the catalog in the configuration of the thread's active session. Only the thread in which
        # the session was made has one by itself.
        if not session.getActiveSession().isDefined():
            session.setActiveSession(session)
        try:
            table = load(session, self.table)
        except (PySparkException, Py4JJavaError) as error:
            java = getattr(error, "java_exception", None)
            reason = first_line(error if java is None else str(java.getMessage()))
            raise SinkRefused(
                f"there is no Iceberg table {self.table} ({reason}): give its name with the catalog, set "
                f"spark.sql.catalog.<name>, and create it first with `create table {self.table} (…) using iceberg "
                f"tblproperties ('{_WAP}'='true')`; choose its columns, partitions and location yourself."
            ) from error
        table.refresh()
        if table.properties().get(_WAP) != "true":
            raise SinkRefused(
                f"table {self.name} lacks the property {_WAP}, without which it may accept a transfer twice: alter "
                f"table {self.table} set tblproperties ('{_WAP}'='true')."
            )
        return table

    def shape(self) -> Shape:
        table = self.loaded()
        columns = self.spark.table(self.table).schema
        exact = str(self.spark.conf.get("spark.sql.caseSensitive")).lower() == "true"
        limits = []
        for part in table.spec().fields():
            name = str(table.schema().findColumnName(part.sourceId()))
            if part.transform().isIdentity() and name in columns.names:
                limits += folder_limits(name, columns[name].dataType, f"url_encode({quoted(name)})")
        return Shape(columns, exact, tuple(limits))

    def append(self, rows: Rows, number: int) -> None:
        table, wap_id = self.loaded(), f"{self.application}-{number}"
        if int(table.properties().get(self.application) or 0) >= number:
            return
        staged = _staged(table, wap_id)
        if staged is None:
            self._stage(rows, wap_id)
            table.refresh()
            staged = _staged(table, wap_id)
            # Checked again after the rows were staged: if the table's snapshots have expired since, these rows have
            # expired with them.
            if int(table.properties().get(self.application) or 0) >= number:
                return
        self._publish(table, staged, number)

    def _stage(self, rows: Rows, wap_id: str) -> None:
        spark: Any = self.spark
        # The id is a session setting: other writers of this session must not use it.
        apart = SparkSession(spark._sc, spark._jsparkSession.cloneSession())
        apart.conf.set("spark.wap.id", wap_id)
        rows(apart).writeTo(self.table).append()

    def _publish(self, table: Any, staged: Any, number: int) -> None:
        transaction = table.newTransaction()
        transaction.manageSnapshots().cherrypick(staged).commit()
        transaction.updateProperties().set(self.application, str(number)).commit()
        transaction.commitTransaction()
        table.refresh()


def _staged(table: Any, wap_id: str) -> Any:
    """Return the newest snapshot's id for a WAP id, None if there is none."""
    found = None
    for snapshot in table.snapshots():
        if snapshot.summary().get(_WAP_ID) == wap_id:
            found = snapshot.snapshotId()
    return found
