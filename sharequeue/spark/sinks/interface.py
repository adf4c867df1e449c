"""The protocol of a sink: five methods, of which a new sink has to write two (`Sink.open`, `OpenSink.acknowledge`).

Each round first writes its rows to files, by lease (`output/lease_files.py`), and reads its outcomes from these
files. The sink then decides what happens to the accepted rows, in one of four ways:

- They stay in the files, and the manifest counts each row once, even if a process is killed at any point
  (`parquet.py`).
- They go into a table in the transaction of the acknowledgement: exactly once (`postgres.py`).
- They are acknowledged first. Then the files are appended to a table, with a number that the table accepts only once:
  exactly once, shortly afterwards (`transfers.py`).
- They are written before the acknowledgement: at least once. After a crash in between they are written again
  (`at_least_once.py`).

With every sink, released and rejected records are in `<sink>-exceptions`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sharequeue.domain.errors import InvalidRequest
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import Acknowledged, Lease, LeaseOutput
from sharequeue.spark.handler import KEPT_COLUMNS, RESULT_NAMES, PipelineError
from sharequeue.spark.leasing.renewal import LeaseKeeper
from sharequeue.spark.outcomes.acknowledging import acknowledge_all, to_send
from sharequeue.spark.outcomes.outcomes import Acknowledgement
from sharequeue.spark.output.files import Files, literal
from sharequeue.spark.output.folders import SinkNames, remove_lease
from sharequeue.spark.output.parquet import ColumnChanged
from sharequeue.spark.output.written_columns import WrittenColumns
from sharequeue.state import State

AT = ["topic", "partition", "offset"]
"""The columns that name a record."""
OPTIONAL = frozenset((*KEPT_COLUMNS, "delivery_count"))
"""Columns that every handler passes on. They are written to a table only if it has a column of that name."""
NEVER = frozenset(RESULT_NAMES)
"""Columns that only the queue reads. They are never written to a table."""


class SinkRefused(PipelineError):
    """A sink cannot accept the output of this job. The message has the reason and what to do. Nothing was leased, or
    the leased records have been given back.
    """


@dataclass(frozen=True, slots=True)
class SinkContext:
    """The context of a run, for its sink: settings, state, Spark session, and the names of the output."""

    settings: Settings
    state: State
    spark: SparkSession
    names: SinkNames
    written: WrittenColumns = field(default_factory=WrittenColumns, compare=False)

    def columns_fit(self, columns: StructType, *, keep: bool = False) -> None:
        """Raise SinkRefused if files with these columns cannot be read together with those of earlier leases.

        With `keep`, record them as the sink's columns: rows with these columns are about to count.
        """
        try:
            if keep:
                self.written.keep(self.spark, self.state, self.names, columns)
            else:
                self.written.check(self.spark, self.state, self.names, columns)
        except ColumnChanged as error:
            raise SinkRefused(
                f"the files of sink {self.names.sink} could no longer be read as one table: {error}. Give the "
                "column another name, cast it in the handler, or give the pipeline another sink (`sink=`)."
            ) from error


@dataclass(frozen=True, slots=True)
class Accepted:
    """The part of a round that belongs to one lease: the folder of its accepted rows (None if there are none), their
    number, its acknowledgement, and the other outputs that count with this acknowledgement.
    """

    lease: Lease
    folder: str | None
    rows: int
    acknowledgement: Acknowledgement
    outputs: Sequence[LeaseOutput] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """What a sink returns for a lease with records that it refuses: the reasons by offset. Nothing of the lease was
    acknowledged or written. The round rejects these records, and passes the lease to the sink again.
    """

    reasons: Mapping[int, str]


_Result = TypeVar("_Result", bound=Acknowledged | Refused)


@dataclass(frozen=True, slots=True)
class WrittenRound:
    """A round whose rows are in files. Nothing of it counts yet."""

    leases: Sequence[Accepted]
    keeper: LeaseKeeper
    """Renews the locks of these leases."""
    stage: Callable[[str], AbstractContextManager[None]]
    """Reports a step of the round by its name, and measures its duration."""

    def acknowledge(self, state: State, output: Callable[[Accepted], LeaseOutput]) -> list[Acknowledged]:
        """Acknowledge all leases in a few calls; `output` returns where the accepted rows of a lease are."""
        with self.stage("acknowledge"):
            given = [
                to_send(each.lease, each.acknowledgement, [output(each), *each.outputs])
                for each in self.leases
            ]
            return acknowledge_all(state, self.keeper, given)

    def one_by_one(self, acknowledge: Callable[[Accepted], _Result]) -> list[_Result]:
        """Call a function for each lease in turn, while the lease has the lock that its acknowledgement needs."""
        done = []
        for each in self.leases:
            with self.keeper.acknowledging([each.lease]) as (kept,):
                result = acknowledge(replace(each, lease=kept))
                done.append(result)
                if isinstance(result, Acknowledged):
                    self.keeper.drop(kept)
        return done


@dataclass(frozen=True, slots=True)
class Stored:
    """Where the accepted rows of a sink are, in the terms of a data catalog; None if a term does not apply."""

    kind: str | None = None
    """The storage, such as `postgres` or `parquet`."""
    table: str | None = None
    uri: str | None = None
    """An address without a user and a password."""
    for_the_queue: bool = False
    """Whether the rows also have the columns for the queue (`outcome`, `error`)."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """The records whose rows in a sink will be replaced, and the files with the new rows."""

    offsets: Mapping[tuple[str, int], OffsetSet]
    """By topic and partition."""
    accepted_path: str
    """The files with the new rows, and with rows of records that are in `left_out`."""
    accepted_rows: int
    summaries: Mapping[str, Callable[[DataFrame], DataFrame]]
    """By sink: the function that computes a summary of the job from accepted rows."""
    left_out: Mapping[tuple[str, int], OffsetSet]
    """Records in the files whose rows are not replaced."""

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return the new rows."""
        rows = spark.read.parquet(literal(self.accepted_path))
        if not self.left_out:
            return rows
        return rows.join(records_at(spark, self.left_out), AT, "left_anti")


@dataclass(frozen=True, slots=True)
class Replaced:
    """The result of a replacement: what it changed, or would change."""

    where: str
    hidden_rows: int
    folders: int = 0
    summaries: tuple[str, ...] = ()


class OpenSink(Protocol):
    """A sink in one run. A subclass whose rows need no check inherits `fits`."""

    overlaps: ClassVar[bool] = False
    """Whether the next round may be written before this one is acknowledged. True only if `acknowledge` prepares
    nothing but files.
    """

    def fits(self, handled: DataFrame) -> DataFrame:
        """Return the handler's result in the form that the sink accepts: each record that it cannot accept is
        rejected, with the reason. Raise SinkRefused if it cannot accept rows with these columns. Nothing has been
        written yet.
        """
        return handled

    def acknowledge(self, round: WrittenRound) -> Sequence[Acknowledged | Refused]:
        """Acknowledge the leases of a round. With its acknowledgement the accepted rows of a lease count, all of them
        or none. Return the results in the order of the leases; for a lease with records that only the write shows to
        be refused, a `Refused`, which names at least one.
        """
        ...


class Sink(Protocol):
    """The destination of accepted rows: a value that is part of a job. A subclass inherits `replace` if it cannot
    remove rows, and `stored` if no data catalog knows its rows.
    """

    def open(self, context: SinkContext) -> AbstractContextManager[OpenSink]:
        """Prepare a run, and remove what killed runs left outside the files. At the end of the block, remove what was
        prepared and does not count. Raises SinkRefused before anything is leased.
        """
        ...

    def stored(self, settings: Settings, names: SinkNames) -> Stored:
        """Return where the accepted rows are, for a data catalog. Nothing is read for it."""
        return Stored()

    def replace(self, context: SinkContext, replacement: Replacement, *, execute: bool) -> Replaced:
        """Replace the rows of some records with others; without `execute` only count them. Raises InvalidRequest if
        rows cannot be removed, and SinkRefused.
        """
        raise InvalidRequest(
            f"The rows of {context.names.sink} were passed to {type(self).__name__}, which cannot remove rows: "
            f"publish the rows in {replacement.accepted_path} with a program of your own."
        )


def records_at(spark: SparkSession, offsets: Mapping[tuple[str, int], OffsetSet]) -> DataFrame:
    """Return `topic, partition, offset` of these records."""
    runs = [(*at, first, end - 1) for at, some in offsets.items() for first, end in some.ranges]
    given = spark.createDataFrame(runs, "topic string, partition int, first long, last long")
    return given.selectExpr(*AT[:2], "explode(sequence(first, last)) as offset")


def discard(context: SinkContext, accepted: Accepted) -> None:
    """Remove a lease's files after its rows count elsewhere. If the run is killed before this, the sweep removes
    them.
    """
    if accepted.folder is not None:
        remove_lease(Files(context.spark, accepted.folder), accepted.folder)
