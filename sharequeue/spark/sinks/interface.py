"""The protocol of a sink: five methods, of which a new sink has to write two (`Sink.open`, `OpenSink.acknowledge`).

Every round writes its rows to files first, by lease (`output/lease_files.py`), and reads its outcomes from them. A
sink then decides what becomes of the accepted rows:

- `ParquetByLease` (`parquet.py`) leaves them where they are: the manifest makes each count once, at whatever point a
  process is killed.
- `PostgresTable` (`postgres.py`) moves them into a table in the acknowledgement's own transaction: exactly once.
- `DeltaTable` and `IcebergTable` (`delta.py`, `iceberg.py`) acknowledge them in the files, and then take them on into
  a table, under a number that the table takes once (`lake_table.py`): exactly once, a moment later.
- `AtLeastOnce` (`at_least_once.py`) gives them to a function of the user's before the acknowledgement: again after a
  crash in between.

Released and rejected records stay in `<sink>-exceptions` for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sharequeue.spark.handler import KEPT_COLUMNS, RESULT_NAMES, PipelineError
from sharequeue.spark.leasing.renewal import LeaseKeeper
from sharequeue.spark.outcomes.outcomes import Acknowledgement
from sharequeue.spark.output.files import Files
from sharequeue.spark.output.folders import SinkNames, remove_lease
from sharequeue.spark.output.lease_files import Written
from sharequeue.spark.output.parquet import ColumnChanged
from sharequeue.spark.output.written_columns import WrittenColumns
from sharequeue.state import State
from sharequeue.words.errors import InvalidRequest
from sharequeue.words.offsets import OffsetSet
from sharequeue.words.settings import Settings
from sharequeue.words.values import Acknowledged, Lease, LeaseOutput

OPTIONAL = frozenset((*KEPT_COLUMNS, "delivery_count"))
"""Columns that every handler passes on: a table gets them if it has them."""
NEVER = frozenset(RESULT_NAMES)
"""Columns for the queue, which no table gets."""


class SinkRefused(PipelineError):
    """A sink cannot take this job's output; the message has the reason and what to do. Nothing was leased, or
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
    """What a round has of one lease: the folder of its accepted rows, None without any, their number, what is to be
    acknowledged, and the other outputs that count with that.
    """

    lease: Lease
    folder: str | None
    rows: int
    acknowledgement: Acknowledgement
    outputs: Sequence[LeaseOutput] = ()


@dataclass(frozen=True, slots=True)
class WrittenRound:
    """A round whose rows are in files: nothing of it counts yet."""

    written: Written
    leases: Sequence[Accepted]
    keeper: LeaseKeeper
    """Of the locks of these leases."""
    stage: Callable[[str], AbstractContextManager[None]]
    """Reports and times a step of the round, by its name."""

    def one_by_one(self, acknowledge: Callable[[Accepted], Acknowledged]) -> list[Acknowledged]:
        """Call a function for one lease after the other, each with the lock that its acknowledgement needs."""
        done = []
        for each in self.leases:
            with self.keeper.acknowledging(each.lease) as kept:
                done.append(acknowledge(replace(each, lease=kept)))
        return done


@dataclass(frozen=True, slots=True)
class Replacement:
    """Records whose rows in a sink are to be replaced, and the files with the new rows."""

    name: str
    offsets: Mapping[tuple[str, int], OffsetSet]
    """By topic and partition."""
    accepted_path: str
    accepted_rows: int
    summaries: Mapping[str, Callable[[DataFrame], DataFrame]]
    """How the summaries of the job are computed from accepted rows, by their sinks."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """What a replacement changed, or would change."""

    where: str
    hidden_rows: int
    folders: int = 0
    summaries: tuple[str, ...] = ()


class OpenSink(Protocol):
    """A sink in one run. A subclass inherits `fits` from here, if its rows need no check."""

    overlaps: ClassVar[bool] = False
    """Whether the next round may be written before this one has been acknowledged: nothing but files is prepared."""

    def fits(self, handled: DataFrame) -> DataFrame:
        """Return what the handler made as it can be taken: with a reject, and the reason, in place of each record
        that could not be. Raise SinkRefused when rows with these columns cannot be taken. Nothing has been written.
        """
        return handled

    def acknowledge(self, round: WrittenRound) -> list[Acknowledged]:
        """Acknowledge the leases of a round, and have their accepted rows count with that, each lease whole or not
        at all. Return the results in the order of the leases.
        """
        ...


class Sink(Protocol):
    """Where accepted rows go: a value that a job carries. A subclass inherits `sweep` and `replace` from here, if it
    leaves nothing outside the files and cannot take rows out.
    """

    def open(self, context: SinkContext) -> AbstractContextManager[OpenSink]:
        """Make ready for a run; at the end of the block remove what was prepared and does not count. Raises
        SinkRefused before anything is leased.
        """
        ...

    def sweep(self, state: State, names: SinkNames, *, dry_run: bool) -> list[str]:
        """Remove what ended leases have left outside the files; return what was removed."""
        return []

    def replace(self, context: SinkContext, replacement: Replacement, *, execute: bool) -> Replaced:
        """Replace the rows of some records by others; without `execute` only count. Raises InvalidRequest when rows
        cannot be taken out, and SinkRefused.
        """
        raise InvalidRequest(
            f"The rows of {context.names.sink} went to {type(self).__name__}, which gives none back: what "
            f"{replacement.accepted_path} has must be published by your own program."
        )


def discard(context: SinkContext, accepted: Accepted) -> None:
    """Remove a lease's files once its rows count elsewhere. A run that is killed before leaves them to the sweep."""
    if accepted.folder is not None:
        remove_lease(Files(context.spark, accepted.folder), accepted.folder)
