"""Transfer accepted rows exactly once into a target that accepts a numbered transfer only once.

Such a target, a table of a lakehouse or a topic, has its own transactions, which cannot be committed together with an
acknowledgement. So the acknowledgement comes first, and it alone decides. It counts the lease's files, which are
durable, and marks them for the target (`PENDING` in the manifest). A process that has lost its lock fails at this
point, before the target changes. Then the files of all such leases are written to the target, a transfer:

1. `begin_transfer` stores in Postgres the files of the transfer and its number. Both stay until it has ended.
2. The files are written to the target with the number, if they have as many rows as were acknowledged
   (`refuse_fewer`). The target accepts each number only once. Each subclass of `OpenTransfers` must ensure both: a
   `NumberedTable` in one commit, a topic by a marker for each source partition.
3. `end_transfer` records that the rows are in the target, and the files are removed.

If a process is killed or fails on the way, the next round or run repeats its transfer: the same files with the same
number. If a process was only slow, or paused, and commits after another has repeated its transfer, the target refuses
the commit. In the opposite order, with the target's commit before the acknowledgement, the target would already have
the rows of a lease whose lock was lost.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import ClassVar, Literal, Protocol

from pyspark.sql import DataFrame, SparkSession
from sqlalchemy.exc import SQLAlchemyError

from sharequeue.domain.errors import ShareError
from sharequeue.domain.values import Transfer
from sharequeue.outputs.errors import ColumnChanged
from sharequeue.outputs.manifest import ELSEWHERE, PENDING
from sharequeue.spark.output.damaged import lost, reads_what_counts
from sharequeue.spark.output.files import Files
from sharequeue.spark.output.folders import remove_lease
from sharequeue.spark.output.parquet import read_parquet
from sharequeue.spark.sinks.columns import Shape, as_table, by_name, unfit_rejected
from sharequeue.spark.sinks.interface import AcceptedRows, OpenSink, SinkContext, SinkRefused, SinkStep
from sharequeue.spark.waits import named_wait

_log = logging.getLogger(__name__)

CLAIM_SECONDS = 30.0
"""How long other processes leave a transfer to the process that began it, which extends this while it works. It only
avoids work done twice."""
_WAIT_SECONDS = CLAIM_SECONDS
"""How long a run waits at its start for a transfer that another process has claimed."""
_LOOK_SECONDS = 0.2

Rows = Callable[[SparkSession], DataFrame]
"""A function that returns the rows of a transfer, read from the files by a session."""
Step = Literal["acknowledged", "begun", "appended", "ended", "removed"]


class NumberedTable(Protocol):
    """A table that accepts each transfer once."""

    @property
    def name(self) -> str:
        """Its name in messages and in the manifest, such as `delta:/data/orders`."""
        ...

    def shape(self) -> Shape:
        """Return the columns that it accepts now. Raise SinkRefused if it cannot accept transfers."""
        ...

    def append(self, rows: Rows, number: int) -> None:
        """Append rows in one commit with this number. If the table has the number, do nothing, and do not call
        `rows`. Raise if another commit with this number, or with a higher one, came first.
        """
        ...


class TransferHeld(Exception):
    """The target cannot take a transfer now; the message has the reason and what to do. Its rows wait in files."""


@dataclass(slots=True)
class OpenTransfers(OpenSink):
    """A target of transfers in one run. A subclass writes `append`."""

    context: SinkContext
    name: str
    """The target's name in messages and in the manifest, such as `delta:/data/orders`."""
    on_step: Callable[[Step], None]
    held: str | None = field(init=False, default=None)
    together: ClassVar[bool] = True
    steps: ClassVar[tuple[SinkStep, ...]] = ("transfer",)

    @abstractmethod
    def append(self, found: Transfer) -> None:
        """Write the files of a transfer to the target with its number; do nothing if the target has them.

        Raise TransferHeld if it cannot take them; the run goes on. Any other error ends the run, unless another
        process has done the transfer or a second attempt succeeds.
        """

    def put(self, rows: AcceptedRows) -> str:
        """Return the folder of the rows, marked for the target."""
        return f"{ELSEWHERE}{self.name}" if rows.folder is None else f"{PENDING}{rows.folder}"

    def transfer(self, wait_seconds: float = 0.0) -> None:
        """Transfer all pending files, including those that another process has left behind. While another process has
        claimed a transfer, wait for it up to `wait_seconds`, then return: that process also transfers what is pending
        when it has finished. The next round or run repeats a transfer that fails.
        """
        self.on_step("acknowledged")
        deadline = time.monotonic() + wait_seconds
        found = self._begin()
        while found is not None:
            if found.busy:
                if time.monotonic() >= deadline:
                    return
                time.sleep(_LOOK_SECONDS)
                found = self._begin()
                continue
            try:
                mine, following = self._done(found)
            except TransferHeld as held:
                self._hold(found, held)
                return
            if mine:
                self._end(found)
                following = self._begin()
            self.held = None
            found = following

    def _done(self, found: Transfer) -> tuple[bool, Transfer | None]:
        """Do a transfer; return False, and what is to be done now, if another process has done it."""
        try:
            self._append(found)
        except TransferHeld:
            raise
        except Exception:
            again = self._begin()
            if again is None or again.number != found.number:
                _log.info("transfer %d was done by another process", found.number)
                return False, again
            # Another commit came first, with this number or without one. The table distinguishes the two.
            self._append(found)
        return True, None

    def _begin(self) -> Transfer | None:
        names = self.context.names
        return self.context.state.outputs.begin_transfer(
            names.group, names.sink, timedelta(seconds=CLAIM_SECONDS)
        )

    def _append(self, found: Transfer) -> None:
        self.on_step("begun")
        with self._claimed(found):
            self.append(found)
        self.on_step("appended")

    @contextmanager
    def _claimed(self, found: Transfer) -> Iterator[None]:
        """Extend the claim of a transfer during the block."""
        ended = threading.Event()

        def extend() -> None:
            while not ended.wait(CLAIM_SECONDS / 3):
                try:
                    self.renewed(found)
                except (ShareError, SQLAlchemyError) as error:
                    _log.info("the claim of transfer %d was not extended: %s", found.number, error)

        thread = threading.Thread(target=extend, name=f"transfer-{found.number}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def renewed(self, found: Transfer) -> bool:
        """Extend the claim of a transfer; return False if it has ended."""
        names = self.context.names
        return self.context.state.outputs.renew_transfer(
            names.group, names.sink, found.number, timedelta(seconds=CLAIM_SECONDS)
        )

    def _hold(self, found: Transfer, held: TransferHeld) -> None:
        names = self.context.names
        self.held = f"{found.records:,} accepted rows wait for {self.name}: {held}"
        _log.warning("%s", self.held)
        self.context.state.outputs.hold_transfer(names.group, names.sink, found.number, str(held))

    def _end(self, found: Transfer) -> None:
        names, spark = self.context.names, self.context.spark
        self.context.state.outputs.end_transfer(
            names.group, names.sink, found.number, f"{ELSEWHERE}{self.name}"
        )
        self.on_step("ended")
        for folder in folders_of(found):
            remove_lease(Files(spark, folder), folder)
        self.on_step("removed")


@dataclass(slots=True)
class TableTransfers(OpenTransfers):
    """A table of a lakehouse in one run."""

    table: NumberedTable

    def fits(self, handled: DataFrame) -> DataFrame:
        """Return the rows, with each record rejected that the table would refuse. Raise SinkRefused if the table
        lacks a column of the rows, or has one that cannot hold its values.
        """
        there = self.table.shape()
        return unfit_rejected(handled, there, by_name(self.table.name, there, handled.schema))

    def append(self, found: Transfer) -> None:
        """Append the rows in one commit. Raise OutputDamaged, and append nothing, if files are missing."""
        with reads_what_counts(folders_of(found)):
            self.table.append(lambda spark: self._rows(spark, found), found.number)

    def _rows(self, spark: SparkSession, found: Transfer) -> DataFrame:
        """Return the rows of a transfer with the columns that the table has now: it may have been altered since they
        were written. Raise SinkRefused if it no longer accepts them; in that case nothing has changed.
        """
        there = self.table.shape()
        try:
            rows = read_parquet(spark, folders_of(found))
            pairs = by_name(self.table.name, there, rows.schema)
        except (ColumnChanged, SinkRefused) as error:
            raise SinkRefused(
                f"{found.records:,} accepted rows wait in files for table {self.table.name}, which no longer accepts "
                f"them: {error} Nothing was removed: undo the change of the table, and run again."
            ) from error
        refuse_fewer(found, rows)
        return rows.select(*as_table(there, pairs))


@contextmanager
def opened(context: SinkContext, table: NumberedTable, on_step: Callable[[Step], None]) -> Iterator[OpenSink]:
    """Prepare a run, and complete the transfers of earlier runs. Raise SinkRefused if the table cannot accept any."""
    table.shape()
    transfers = TableTransfers(context, table.name, on_step, table)
    complete_earlier(transfers)
    yield transfers


def complete_earlier(transfers: OpenTransfers) -> None:
    """Complete the transfers of earlier runs, before anything is leased."""
    with named_wait(f"the transfer of rows to {transfers.name}"):
        transfers.transfer(_WAIT_SECONDS)


def refuse_fewer(found: Transfer, rows: DataFrame) -> None:
    """Raise OutputDamaged unless these rows, read from the files of a transfer, are as many as were acknowledged.

    Spark does not know of a file that was removed before it listed the folder.
    """
    # Spark reads no column for a count: only the footers of the files.
    there = rows.count()
    if there != found.records:
        raise lost(
            folders_of(found), f"{found.records:,} rows were acknowledged, and the files have {there:,}"
        )


def folders_of(found: Transfer) -> list[str]:
    """Return the folders of a transfer."""
    return [location.removeprefix(PENDING) for location in found.sources]
