"""Which columns have the files of a sink, and may the next lease add others?

The state keeps them with their types, as far as leases have written them: all that a reader of the sink meets. A new
column is added, and a wider type takes the place of a narrower one, as `read_parquet` reads them. What could not be
read together is refused before anything is leased. Accepted rows and exceptions have the same columns.
"""

from __future__ import annotations

import json

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from sharequeue.spark.output.files import literal
from sharequeue.spark.output.folders import SinkNames
from sharequeue.spark.output.manifest import ELSEWHERE
from sharequeue.spark.output.parquet import ColumnChanged, nullable, together, wider
from sharequeue.state import State


class WrittenColumns:
    """The columns of a sink's files, as one run knows them."""

    def __init__(self) -> None:
        self._held: StructType | None = None

    def hold(self, spark: SparkSession, state: State, names: SinkNames, columns: StructType) -> None:
        """Add columns to those of the sink. Raises ColumnChanged, and has changed nothing, when one has a type that
        does not fit with the one that it has in files.
        """
        if columns == self._held:
            return
        known = state.outputs.keep_columns(names.group, names.sink)
        while True:
            before = (
                _of_files(spark, state, names) if known is None else StructType.fromJson(json.loads(known))
            )
            _refuse_changed(before, nullable(columns))
            after = json.dumps(together([before, nullable(columns)]).jsonValue())
            if after == known:
                break
            kept = state.outputs.keep_columns(names.group, names.sink, known, after)
            if kept == after:
                break
            known = kept  # another run has added something
        self._held = columns


def _refuse_changed(before: StructType, columns: StructType) -> None:
    names = {each.name.lower(): each for each in before.fields}
    for each in columns.fields:
        there = names.get(each.name.lower())
        if there is not None and there.name != each.name:
            raise ColumnChanged(f"column {each.name} of the handler's result is called {there.name} in files")
        if there is not None and wider(there.dataType, each.dataType) is None:
            raise ColumnChanged(
                f"column {each.name} is {each.dataType.simpleString()} in the handler's result and "
                f"{there.dataType.simpleString()} in files of earlier leases, and neither can hold the other"
            )


def _of_files(spark: SparkSession, state: State, names: SinkNames) -> StructType:
    """Return the columns of the newest files, where an earlier release has kept none."""
    for sink in (names.sink, names.exceptions):
        rows = [row for row in state.outputs.counted(names.group, sink) if row.records]
        folders = [row.location for row in rows if not row.location.startswith(ELSEWHERE)]
        if folders:
            try:
                return nullable(spark.read.parquet(literal(folders[-1])).schema)
            except AnalysisException:
                continue  # somebody has removed them
    return StructType([])
