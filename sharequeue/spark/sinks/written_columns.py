"""The columns of a sink's files, and whether the next lease may add others.

The state stores them with their types just before rows with them count, so it has every column that a reader of the
sink can meet. A new column is added, and a wider type replaces a narrower one, as `read_parquet` reads them. Columns
that could not be read together are refused before anything is leased. Accepted rows and exceptions have the same
columns.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from sharequeue.outputs.errors import ColumnChanged
from sharequeue.outputs.manifest import ELSEWHERE, PENDING
from sharequeue.spark.handler import KEY_HASH, RESULT_NAMES, TRACE
from sharequeue.spark.output.folders import SinkNames
from sharequeue.spark.output.parquet import nullable, read_parquet, together, wider
from sharequeue.spark.sinks.interface import SinkRefused
from sharequeue.state import State


class WrittenColumns:
    """The columns of a sink's files, as one run knows them."""

    def __init__(self, spark: SparkSession, state: State, names: SinkNames) -> None:
        self._spark = spark
        self._state = state
        self._names = names
        self._checked: StructType | None = None
        self._added: dict[str, None] = {}
        self._dropped: dict[str, None] = {}

    @property
    def remark(self) -> str | None:
        """The columns that differ from those of earlier rows; None if none differ."""
        remarks = []
        if self._dropped:
            remarks.append(
                f"earlier rows have {_columns(self._dropped)}, which rows of this run have as null"
            )
        if self._added:
            remarks.append(f"rows of this run have {_columns(self._added)}, which earlier rows have as null")
        return "; ".join(remarks) or None

    def check(self, columns: StructType) -> None:
        """Raise SinkRefused if files with these columns cannot be read together with those of earlier leases. The
        column TRACE is not written.
        """
        columns = StructType([each for each in columns if each.name != TRACE])
        if columns == self._checked:
            return
        with self._changes_are_named():
            known = self._stored()
            try:
                _refuse_changed(self._before(known), nullable(columns))
            except ColumnChanged:
                # They may have been stored for rows that never counted. If nothing is held, those rows can no longer
                # count.
                if known is None or self._state.figures.leases(self._names.group):
                    raise
                before = self._of_files()
                if before is None:
                    raise
                _refuse_changed(before, nullable(columns))
                self._stored(known, json.dumps(before.jsonValue()))
        self._checked = columns

    def keep(self, columns: StructType) -> None:
        """Add columns to those of the sink, whose rows are about to count. Raises SinkRefused as `check` does; then
        nothing has changed.
        """
        known = self._stored()
        while True:
            with self._changes_are_named():
                before = self._before(known)
                _refuse_changed(before, nullable(columns))
            if before.fields:
                self._dropped |= _names(before, without=columns)
                self._added |= _names(columns, without=before)
            after = json.dumps(together([before, nullable(columns)]).jsonValue())
            if after == known:
                break
            kept = self._stored(known, after)
            if kept == after:
                break
            known = kept  # another run has added something

    @contextmanager
    def _changes_are_named(self) -> Iterator[None]:
        """Raise SinkRefused in place of ColumnChanged of the block."""
        try:
            yield
        except ColumnChanged as error:
            raise SinkRefused(
                f"the files of sink {self._names.sink} could no longer be read as one table: {error}. Give the "
                "column another name, cast it in the handler, or give the pipeline another sink (`sink=`)."
            ) from error

    def _stored(self, known: str | None = None, columns: str | None = None) -> str | None:
        """Return the columns in the state, where `columns` replace `known` if they are given."""
        return self._state.outputs.keep_columns(self._names.group, self._names.sink, known, columns)

    def _before(self, known: str | None) -> StructType:
        if known is None:
            return self._of_files() or StructType([])
        return StructType.fromJson(json.loads(known))

    def _of_files(self) -> StructType | None:
        """Return the columns of all files that count; None if some files are missing. Raises ColumnChanged."""
        names, outputs = self._names, self._state.outputs
        rows = [row for sink in (names.sink, names.exceptions) for row in outputs.counted(names.group, sink)]
        folders = {row.location.removeprefix(PENDING) for row in rows if row.records}
        found = sorted(folder for folder in folders if not folder.startswith(ELSEWHERE))
        try:
            return nullable(read_parquet(self._spark, found).schema) if found else StructType([])
        except AnalysisException:
            return None


def _names(columns: StructType, without: StructType) -> dict[str, None]:
    """Return the names of the columns that `without` does not have, except those that are for the queue."""
    there = {name.lower() for name in without.names}
    return dict.fromkeys(
        name for name in columns.names if name.lower() not in there.union(RESULT_NAMES, (KEY_HASH,))
    )


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
