"""The protocol of a sink, of which a new sink has to write two methods (`Sink.open`, `OpenSink.put`).

Each round first writes its rows to files, by lease (`output/lease_files.py`), and reads its outcomes from these
files. The sink then returns where the accepted rows of each lease are: they count there from the acknowledgement on,
which the round sends. There are four ways:

- They stay in the files, and the manifest counts each row once, even if a process is killed at any point
  (`parquet.py`).
- They go into a table in the transaction of the acknowledgement: exactly once (`postgres/`).
- They are acknowledged first. Then the files are written to a table or a topic, with a number that it accepts only
  once: exactly once, shortly afterwards (`transfers.py`).
- They are written before the acknowledgement: at least once. After a crash in between they are written again
  (`at_least_once.py`).

With every sink, released and rejected records are in `<sink>-exceptions`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from pyspark.sql import DataFrame, SparkSession

from sharequeue.domain.errors import InvalidRequest, PipelineError
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.results.runs import Stored
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import Lease
from sharequeue.spark.handler import KEPT_COLUMNS, KEY_HASH, RESULT_NAMES
from sharequeue.spark.output.files import literal
from sharequeue.spark.output.folders import SinkNames
from sharequeue.state import State

AT = ["topic", "partition", "offset"]
"""The columns that name a record."""
OPTIONAL = frozenset((*KEPT_COLUMNS, KEY_HASH, "delivery_count"))
"""Columns that every handler passes on. They are written to a table only if it has a column of that name."""
NEVER = frozenset(RESULT_NAMES)
"""Columns that only the queue reads. They are never written to a table."""


class SinkRefused(PipelineError):
    """A sink cannot accept the output of this job. The message has the reason and what to do. Nothing was leased, or
    the leased records have been given back.
    """


@dataclass(frozen=True, slots=True)
class SinkContext:
    """The context of a run, for its sink: settings, state, Spark session, the names of the output, and the topics."""

    settings: Settings
    state: State
    spark: SparkSession
    names: SinkNames
    topics: tuple[str, ...] = ()
    """The topics that the run reads."""


@dataclass(frozen=True, slots=True)
class AcceptedRows:
    """The accepted rows of one lease, which are in files. They do not count yet."""

    lease: Lease
    folder: str | None
    """The folder of the files; None if there are no rows."""
    count: int
    """The number of rows."""
    records: int
    """The number of accepted records, each with a row or several."""


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


Refused = Mapping[int, Mapping[int, str]]
"""The records that a sink refuses: the reasons by lease id and offset."""

SinkStep = Literal["stage", "transfer"]
"""A step of a sink before or after the acknowledgement."""


class OpenSink(Protocol):
    """A sink in one run. A subclass writes `put`, unless the files are its output; the other methods have a default
    that does nothing.

    A round asks `waits` before it leases. It calls `stage` for all its leases, then acknowledges each with the place
    that `put` returns, then calls `transfer`.
    """

    overlaps: ClassVar[bool] = False
    """Whether the next round may be written before this one is acknowledged. True only if the sink prepares nothing
    but files.
    """
    together: ClassVar[bool] = False
    """Whether the leases of a round are acknowledged in a few calls, after `put` of all of them. Otherwise each lease
    is put and acknowledged before the next one, in its `transaction`.
    """
    passes_traces: ClassVar[bool] = False
    """Whether `fits` uses the column TRACE: the header `traceparent` of a record, which its rows get too."""
    steps: ClassVar[tuple[SinkStep, ...]] = ()
    """The steps that a run reports and measures, besides the acknowledgement: those of these methods that the sink
    has.
    """
    held: str | None = None
    """Why acknowledged rows are not at their last place yet, and what to do, for the report of the run; None if the
    next transfer brings them there.
    """
    remark: str | None = None
    """What the report of the run says about the sink."""

    def fits(self, handled: DataFrame) -> DataFrame:
        """Return the handler's result in the form that the sink accepts: each record that it cannot accept is
        rejected, with the reason. Raise SinkRefused if it cannot accept rows with these columns. Nothing has been
        written yet.
        """
        return handled

    def waits(self) -> str | None:
        """Return why nothing more may be leased now; None if the sink can accept more. Raise SinkRefused if it cannot
        accept anything any more.
        """
        return None

    def stage(self, leases: Sequence[AcceptedRows]) -> Refused:
        """Prepare the accepted rows of a round, and return the records that the sink refuses. A lease of which
        records were refused, here or by `transaction`, is not acknowledged, and comes again without them.
        """
        return {}

    def put(self, rows: AcceptedRows) -> str | None:
        """Put the accepted rows of a lease where they belong, and return that place as the manifest has it
        (`output/manifest.py`); by default None, because they stay in their folder. They count there from the
        acknowledgement on, all of them or none. If the place is not their folder, the folder is removed then.
        """
        return None

    def transaction(self, state: State, rows: AcceptedRows) -> AbstractContextManager[State]:
        """Return a context manager for the acknowledgement of a lease, with the state to send it to; by default
        `state`. A sink in the state's database moves the rows in the same transaction, which ends with the block.
        Raise RowsRefused (`outcomes/acknowledging.py`) for records that only this shows to be refused.

        If the end of the transaction is not known, it is repeated once: check whether the first one has committed.
        """
        return nullcontext(state)

    def transfer(self) -> None:
        """Move rows that now count to their last place."""
        return


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
