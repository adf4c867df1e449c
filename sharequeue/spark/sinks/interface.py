"""What does a run ask of a sink, and what does it give it?

Every round writes its rows to files first, by lease (`output/lease_files.py`), and reads its outcomes from them. A
sink then decides what becomes of the accepted rows:

- `ParquetByLease` (`parquet.py`) leaves them where they are: the manifest makes each count once, at whatever point a
  process is killed.
- `PostgresTable` (`postgres.py`) moves them into a table in the acknowledgement's own transaction: exactly once.
- `DeltaTable` and `IcebergTable` (`delta.py`, `iceberg.py`) acknowledge them in the files, and then take them on into
  a table, under a number that the table takes once (`transferring.py`): exactly once, a moment later.
- `AtLeastOnce` (`at_least_once.py`) gives them to a function of the user's before the acknowledgement: again after a
  crash in between.

Released and rejected records stay in `<sink>-exceptions` for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sharequeue.settings import Settings
from sharequeue.spark.contract import KEPT_COLUMNS, RESULT_NAMES
from sharequeue.spark.outcomes.missing import Acknowledgement
from sharequeue.spark.output.files import Files
from sharequeue.spark.output.folders import SinkNames, remove_lease
from sharequeue.spark.output.lease_files import Written
from sharequeue.spark.output.parquet import ColumnChanged
from sharequeue.spark.output.written_columns import WrittenColumns
from sharequeue.state import State
from sharequeue.values import Acknowledged, Lease, LeaseOutput

OPTIONAL = frozenset((*KEPT_COLUMNS, "delivery_count"))
"""Columns that every handler passes on: a table gets them if it has them."""
NEVER = frozenset(RESULT_NAMES)
"""Columns for the queue, which no table gets."""


class SinkRefused(Exception):
    """A sink cannot take this job's output; the message says what is wrong and what to do. Nothing was leased, or
    what was leased has been given back.
    """


@dataclass(frozen=True, slots=True)
class SinkContext:
    """What a run gives its sink: its settings, its state, its Spark, and the names of its output."""

    settings: Settings
    state: State
    spark: SparkSession
    names: SinkNames
    written: WrittenColumns = field(default_factory=WrittenColumns, compare=False)

    def columns_fit(self, columns: StructType, *, keep: bool = False) -> None:
        """Raise SinkRefused when files with these columns could not be read together with those of earlier leases.

        With `keep` they are the sink's from now on: rows with them are about to count.
        """
        try:
            if keep:
                self.written.keep(self.spark, self.state, self.names, columns)
            else:
                self.written.check(self.spark, self.state, self.names, columns)
        except ColumnChanged as error:
            raise SinkRefused(
                f"the files of sink {self.names.sink} could not be read as one table any more: {error}. Give the "
                "column another name, cast it in the handler, or give the pipeline another sink (`sink=`)."
            ) from error


@dataclass(frozen=True, slots=True)
class Accepted:
    """What a lease has for its sink: the folder of its accepted rows, None without any, and their number."""

    lease: Lease
    folder: str | None
    rows: int


class OpenSink(Protocol):
    """A sink in one run. The calls come in this order, all but the first and the last once a round."""

    @property
    def stages(self) -> bool:
        """Whether there is something to do between the writing and the acknowledgements."""
        ...

    def fits(self, handled: DataFrame) -> DataFrame:
        """Return what the handler made as it can be taken: with a reject, and the reason, in place of each record
        that could not be. Raise SinkRefused when rows with these columns cannot be taken. Nothing has been written.
        """
        ...

    def stage(self, written: Written) -> None:
        """Prepare what the files of a round hold; nothing of it may count yet."""
        ...

    def output(self, accepted: Accepted) -> LeaseOutput | None:
        """Return what counts with the acknowledgement of a lease, if the sink has nothing else to do: then one call
        acknowledges many leases. Return None if the sink must `acknowledge` each itself.
        """
        ...

    def acknowledge(
        self, accepted: Accepted, acknowledgement: Acknowledgement, outputs: Sequence[LeaseOutput]
    ) -> Acknowledged:
        """Acknowledge a lease, and have its accepted rows count with that."""
        ...

    @property
    def transfers(self) -> bool:
        """Whether acknowledged rows go on from the files."""
        ...

    def transfer(self) -> None:
        """Move acknowledged rows on from the files. What this leaves undone is done by the next call, or the next
        run.
        """
        ...

    def close(self) -> None:
        """Remove what was prepared and will not count: the run has ended, however it did, and holds nothing."""
        ...


class Sink(Protocol):
    """Where accepted rows go: a value that a job carries."""

    def open(self, context: SinkContext) -> OpenSink:
        """Make ready for a run. Raises SinkRefused before anything is leased."""
        ...

    def sweep(self, state: State, names: SinkNames, *, dry_run: bool) -> list[str]:
        """Remove what ended leases have left outside the files; return what was removed."""
        ...


def discard(context: SinkContext, accepted: Accepted) -> None:
    """Remove a lease's files once its rows count elsewhere. A run that is killed before leaves them to the sweep."""
    if accepted.folder is not None:
        remove_lease(Files(context.spark, accepted.folder), accepted.folder)
