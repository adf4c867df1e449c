"""Transfer accepted rows into a table of a lakehouse exactly once.

Such a table has transactions of its own, which cannot be committed together with an acknowledgement. So the
acknowledgement comes first, and it alone decides: it counts the lease's files, which are durable, and notes that they
are to go on into the table (`PENDING` in the manifest). Whoever has lost its lock is refused here, before the table
is touched. Then the files of all such leases go into the table in one commit, a transfer:

1. `begin_transfer` writes down in Postgres which files it is of, and its number. Both stay until it has ended.
2. The files are appended to the table. The commit carries the number, and the table takes a number once: this is what
   each table in `delta.py` and `iceberg.py` must see to.
3. `end_transfer` counts the rows at the table, and the files go.

Whoever is killed or fails on the way leaves a transfer that the next round or run repeats: the same files under the
same number. Whoever was only slow, or stopped, and commits when another has done it, is refused by the table. The
other way round, the table's commit before the acknowledgement, rows of a lease whose lock was lost would be in the
table already.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, Protocol

from pyspark.sql import DataFrame, SparkSession

from sharequeue.spark.outcomes.acknowledging import ToAcknowledge, acknowledge_all
from sharequeue.spark.output.files import Files
from sharequeue.spark.output.folders import remove_lease
from sharequeue.spark.output.manifest import ELSEWHERE, PENDING
from sharequeue.spark.output.parquet import ColumnChanged, read_parquet
from sharequeue.spark.sinks.columns import Shape, as_table, by_name, unfit_rejected
from sharequeue.spark.sinks.interface import Accepted, OpenSink, SinkContext, SinkRefused, WrittenRound
from sharequeue.words.values import Acknowledged, LeaseOutput, Transfer

_log = logging.getLogger(__name__)

CLAIM_SECONDS = 30.0
"""How long others leave a transfer to the process that began it. It only spares work."""
_LOOK_SECONDS = 0.2

Rows = Callable[[SparkSession], DataFrame]
"""What is transferred, as a session reads it from the files."""
Step = Literal["acknowledged", "begun", "appended", "ended", "removed"]


class LakeTable(Protocol):
    """A table that takes each transfer once."""

    @property
    def name(self) -> str:
        """What messages and the manifest call it, such as `delta:/data/orders`."""
        ...

    def shape(self) -> Shape:
        """Return what it takes now. Raise SinkRefused where it cannot take transfers."""
        ...

    def append(self, rows: Rows, number: int) -> None:
        """Append rows in one commit with this number; do nothing, and do not ask for them, if the number is in the
        table. Raise when another commit with the number, or a higher one, came first.
        """
        ...


@dataclass(slots=True)
class OpenTransfer(OpenSink):
    """A table of a lakehouse in one run."""

    context: SinkContext
    table: LakeTable
    on_step: Callable[[Step], None]

    def fits(self, handled: DataFrame) -> DataFrame:
        """Return the rows with a reject in place of each record that the table would refuse. Raise SinkRefused when
        the table has no column for one of theirs, or one that cannot hold it.
        """
        there = self.table.shape()
        return unfit_rejected(handled, there, by_name(self.table.name, there, handled.schema))

    def acknowledge(self, round: WrittenRound) -> list[Acknowledged]:
        """Acknowledge the leases of a round, so that their files count, and transfer the files. A transfer that fails
        is done by the next round or run.
        """
        with round.stage("acknowledge"):
            given = [
                ToAcknowledge(each.lease, each.acknowledgement, [self._output(each), *each.outputs])
                for each in round.leases
            ]
            acknowledged = acknowledge_all(self.context.state, round.keeper, given)
        with round.stage("transfer"):
            self.transfer()
        return acknowledged

    def _output(self, accepted: Accepted) -> LeaseOutput:
        where = f"{ELSEWHERE}{self.table.name}" if accepted.folder is None else f"{PENDING}{accepted.folder}"
        return LeaseOutput(self.context.names.sink, where, accepted.rows)

    def transfer(self, wait_seconds: float = 0.0) -> None:
        """Transfer all that waits, and what another process has left. What another has claimed is left to it, after
        so many seconds; it looks again for what waits when it is done.
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
                self._append(found)
            except Exception:
                again = self._begin()
                if again is None or again.number != found.number:
                    _log.info("transfer %d was done by another process", found.number)
                    found = again
                    continue
                # Another commit came first: this number's, or one of anybody's. The table tells them apart.
                self._append(found)
            self._end(found)
            found = self._begin()

    def _begin(self) -> Transfer | None:
        names = self.context.names
        return self.context.state.outputs.begin_transfer(
            names.group, names.sink, timedelta(seconds=CLAIM_SECONDS)
        )

    def _append(self, found: Transfer) -> None:
        self.on_step("begun")
        self.table.append(lambda spark: self._rows(spark, found), found.number)
        self.on_step("appended")

    def _rows(self, spark: SparkSession, found: Transfer) -> DataFrame:
        """Return the rows of a transfer as the table has them now: it may have been altered since they were written.
        Raise SinkRefused, and nothing has changed, where it does not take them any more.
        """
        there = self.table.shape()
        try:
            rows = read_parquet(spark, _folders(found))
            pairs = by_name(self.table.name, there, rows.schema)
        except (ColumnChanged, SinkRefused) as error:
            raise SinkRefused(
                f"{found.records:,} accepted rows wait in files for table {self.table.name}, and do not fit it any "
                f"more: {error} Nothing was removed: alter the table back to what it was then, and run again."
            ) from error
        return rows.select(*as_table(there, pairs))

    def _end(self, found: Transfer) -> None:
        names, spark = self.context.names, self.context.spark
        self.context.state.outputs.end_transfer(
            names.group, names.sink, found.number, f"{ELSEWHERE}{self.table.name}"
        )
        self.on_step("ended")
        for folder in _folders(found):
            remove_lease(Files(spark, folder), folder)
        self.on_step("removed")


def _folders(found: Transfer) -> list[str]:
    return [location.removeprefix(PENDING) for location in found.locations]
