"""Which columns have the files of a sink, and may the next lease add others?

The state keeps them with their types from the moment before rows with them count: all that a reader of the sink
meets. A new
column is added, and a wider type takes the place of a narrower one, as `read_parquet` reads them. What could not be
read together is refused before anything is leased. Accepted rows and exceptions have the same columns.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from sharequeue.spark.contract import RESULT_NAMES
from sharequeue.spark.output.folders import SinkNames
from sharequeue.spark.output.manifest import ELSEWHERE, PENDING
from sharequeue.spark.output.parquet import ColumnChanged, nullable, read_parquet, together, wider
from sharequeue.state import State


class WrittenColumns:
    """The columns of a sink's files, as one run knows them."""

    def __init__(self) -> None:
        self._checked: StructType | None = None
        self._added: dict[str, None] = {}
        self._dropped: dict[str, None] = {}

    @property
    def remark(self) -> str | None:
        """Which columns are not those of earlier rows; None where all are."""
        said = []
        if self._dropped:
            said.append(f"earlier rows have {_columns(self._dropped)}, which rows of this run have as null")
        if self._added:
            said.append(f"rows of this run have {_columns(self._added)}, which earlier rows have as null")
        return "; ".join(said) or None

    def check(self, spark: SparkSession, state: State, names: SinkNames, columns: StructType) -> None:
        """Raise ColumnChanged when one has a type that does not fit with the one that it has in files that count."""
        if columns == self._checked:
            return
        known = state.outputs.keep_columns(names.group, names.sink)
        try:
            _refuse_changed(_before(spark, state, names, known), nullable(columns))
        except ColumnChanged:
            # Kept for rows that never came to count, perhaps. With nothing held, none of these can count any more.
            if known is None or state.figures.leases(names.group):
                raise
            before = _of_files(spark, state, names)
            if before is None:
                raise
            _refuse_changed(before, nullable(columns))
            state.outputs.keep_columns(names.group, names.sink, known, json.dumps(before.jsonValue()))
        self._checked = columns

    def keep(self, spark: SparkSession, state: State, names: SinkNames, columns: StructType) -> None:
        """Add columns to those of the sink, whose rows are about to count. Raises ColumnChanged as `check`, and has
        changed nothing then.
        """
        known = state.outputs.keep_columns(names.group, names.sink)
        while True:
            before = _before(spark, state, names, known)
            _refuse_changed(before, nullable(columns))
            if before.fields:
                self._dropped |= _names(before, without=columns)
                self._added |= _names(columns, without=before)
            after = json.dumps(together([before, nullable(columns)]).jsonValue())
            if after == known:
                break
            kept = state.outputs.keep_columns(names.group, names.sink, known, after)
            if kept == after:
                break
            known = kept  # another run has added something


def _before(spark: SparkSession, state: State, names: SinkNames, known: str | None) -> StructType:
    if known is None:
        return _of_files(spark, state, names) or StructType([])
    return StructType.fromJson(json.loads(known))


def _names(columns: StructType, without: StructType) -> dict[str, None]:
    """Return the names of the columns that `without` does not have, but for those by which the queue is told."""
    there = {name.lower() for name in without.names}
    return dict.fromkeys(name for name in columns.names if name.lower() not in there.union(RESULT_NAMES))


def _columns(names: Iterable[str]) -> str:
    found = list(names)
    return f"column{'s' if len(found) > 1 else ''} {', '.join(found)}"


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


def _of_files(spark: SparkSession, state: State, names: SinkNames) -> StructType | None:
    """Return the columns of all files that count; None where somebody has removed some. Raises ColumnChanged."""
    rows = [
        row for sink in (names.sink, names.exceptions) for row in state.outputs.counted(names.group, sink)
    ]
    folders = {row.location.removeprefix(PENDING) for row in rows if row.records}
    found = sorted(folder for folder in folders if not folder.startswith(ELSEWHERE))
    try:
        return nullable(read_parquet(spark, found).schema) if found else StructType([])
    except AnalysisException:
        return None
